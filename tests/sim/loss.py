"""The loss of all nodes at some moment: a recovery from the object store has everything that had
reached it by then. The simulation copies the store at that moment, and the episode continues."""

from __future__ import annotations

import asyncio
import re
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sim.store import SimStore
from sim.tier import CLUSTER

from polynya.backup.copies import MARK, folder_of
from polynya.backup.streams import BackupPiece, BackupStreams, streams_of
from polynya.objectstore import MemoryStore, claim_root
from polynya.recovery.from_store import FromStore
from polynya.recovery.restore import Restorer
from polynya.stream.features.pages.eviction import where_of
from polynya.stream.machine import Machine
from polynya.stream.state import index
from polynya.stream.state.profile_epochs import profile_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.swarm import SwarmEpisode

SHARE = 0.4  # of the episodes with a store
LOOK_SECONDS = 0.5
Ends = dict[str, tuple[int, int, int, bool]]  # name -> uid, next record and byte; a fork
_DELTA = re.compile(r"(\d{20})-\d{20}-(\d{20})")


class Loss:
    """The loss of a cluster in one episode."""

    def __init__(self, episode: SwarmEpisode) -> None:
        self._episode = episode
        self.strikes = (
            Random(f"loss {episode.seed}").random() < SHARE and episode.world.store is not None
        )
        self.recovered = 0  # streams
        self.deltas = 0  # of copies, in the store when all nodes are lost
        self._objects: dict[str, Any] | None = None
        self._reached: Ends = {}  # of what is in the store
        # group -> the ends of its diskless streams, with the entry applied last, in order
        self._seen: dict[int, list[tuple[int, Ends]]] = {}

    async def watch(self) -> None:
        """Look again and again where the diskless streams end."""
        while self.strikes and self._objects is None:
            for group, newest in self._newest():
                found = {
                    stream.name: (
                        stream.uid,
                        stream.next_record,
                        stream.next_byte,
                        stream.fork is not None,
                    )
                    for stream in streams_of(newest.machine)
                    if profile_of(stream) and stream.next_record > stream.first_record
                }
                self._seen.setdefault(group, []).append((newest.applied_index, found))
            await asyncio.sleep(LOOK_SECONDS)

    def _newest(self) -> Iterator[tuple[int, Any]]:
        """Yield each group as the node has it that has applied most."""
        engines = [node.engine for node in self._episode.world.nodes.values() if not node.gone]
        for group in range(1, engines[0].service.groups + 1):
            found = [
                engine.storage.core_replicas.groups[group]
                for engine in engines
                if group in engine.storage.core_replicas.groups
            ]
            yield group, max(found, key=lambda each: each.applied_index)

    def strike(self) -> None:
        """Record the current content of the store and its published part, by the node that has
        applied most."""
        store = self._episode.world.store
        if (
            not self.strikes
            or not isinstance(store, SimStore)
            or not any(key.endswith(MARK) for key in store.objects)
        ):
            return
        self._objects = dict(store.objects)
        for group, newest in self._newest():
            copied = self._copied(group)
            if newest.applied_index < copied:
                continue  # nodes that have just started have not applied again what the copy has
            known = self._known(group, copied)
            for stream in streams_of(newest.machine):
                if stream.extras is not None and stream.extras.profile_epoch is not None:
                    # only copies and their deltas say which appends were committed
                    if stream.name in known and known[stream.name][0] == stream.uid:
                        self._reached[stream.name] = known[stream.name]
                    continue
                if where_of(stream) is not None:
                    end = (stream.next_record, stream.next_byte)
                elif stream.cold is not None:
                    end = index.end_of(stream.cold, index.count(stream.cold) - 1)
                else:
                    continue
                # that there is a stream without records, only a copy says
                if end[0] > stream.first_record:
                    self._reached[stream.name] = (stream.uid, *end, stream.fork is not None)

    def _copied(self, group: int) -> int:
        """Return the entry up to which the store has the group's state."""
        folder = f"{folder_of(CLUSTER, 1)}{group:05d}/"
        names = [key.removeprefix(folder) for key in self._objects or () if key.startswith(folder)]
        copied = max((int(name[:20]) for name in names if not _DELTA.fullmatch(name)), default=0)
        deltas = [match for name in names if (match := _DELTA.fullmatch(name))]
        self.deltas += len(deltas)
        return max(
            [copied, *(int(match[1]) for match in deltas if int(match[2]) <= copied)],
        )

    def _known(self, group: int, copied: int) -> Ends:
        """Return the ends of diskless streams at that entry or before."""
        before = [ends for at, ends in self._seen.get(group, ()) if at <= copied]
        return before[-1] if before else {}

    async def finish(self) -> None:
        """Recover, and compare."""
        if self._objects is None:
            return
        store = MemoryStore()
        store.objects = self._objects
        await claim_root(store, CLUSTER, 1, "lost")
        states = await FromStore.open(store)
        target = Target(states)
        done = await Restorer(states, [target], store, lambda key: key).run()  # type: ignore[list-item]
        # of such packs either the commit is lost, or no append was taken
        strange = [each for each in done.warnings if "slices of diskless streams" not in each]
        assert not strange, strange
        library = Recovered(store, target.machines)
        found = {}
        for machine in target.machines.values():
            for stream in streams_of(machine):
                pieces = [piece async for piece in library.pieces(machine, stream)]
                found[stream.name] = stream
                self._is_as_it_was(stream, pieces)
        self.recovered = len(found)
        for name, (uid, record, byte, is_fork) in self._reached.items():
            here = found.get(name)
            if here is None or here.uid != uid:
                assert is_fork, (
                    f"{name}: life {uid} had reached the store up to record {record}, and is not "
                    "recovered"
                )
                continue
            assert here.next_record >= record, (
                f"{name}: {record} records had reached the store, {here.next_record} are recovered"
            )
            assert here.next_byte >= byte, (
                f"{name}: {(record, byte)} had reached the store, "
                f"{(here.next_record, here.next_byte)} are recovered"
            )

    def _is_as_it_was(self, stream: Any, pieces: list[BackupPiece]) -> None:
        """Check that nothing was added. A fork may lack its inherited part."""
        episode = self._episode
        if stream.name in episode.whole:
            content = b"".join(piece.payload for piece in pieces)
            assert episode.whole[stream.name].startswith(content), (
                f"{stream.name}: the recovery has what was never there"
            )
        for piece in pieces:
            episode.keeps.saw(stream.name, piece.record, piece.payload)
        for piece in pieces if stream.name in episode.lives.pasts else ():
            episode.lives.pasts[stream.name].saw(
                stream.uid, (piece.record, piece.byte), piece.payload
            )


class Target:
    """`polynya.recovery.restore.RestoreTarget` without a disk."""

    def __init__(self, states: FromStore) -> None:
        whole = states.whole
        self.identity = SimpleNamespace(
            cluster_id=whole.cluster, history=states.next_history, groups=whole.groups
        )
        self.machines: dict[int, Machine] = {}

    def begin(self) -> None: ...

    def write(self, number: int, machine: Machine) -> None:
        self.machines[number] = machine

    def finish(self) -> None:
        """Finish without open work."""


class Recovered(BackupStreams):
    """The recovered streams."""

    def __init__(self, store: MemoryStore, machines: dict[int, Machine]) -> None:
        self._repository = RepositoryStore(store)  # type: ignore[assignment]
        self._recovered = machines

    async def machine(self, group: int) -> Machine:
        return self._recovered[group]


class RepositoryStore:
    """The store, as a backup's objects are named."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._store.get_range(key.removeprefix("objects/"), start, length)
