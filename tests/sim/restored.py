"""A simulated cluster that starts from a backup, with another size, new disks, an object store and
a history of its own. All data of the backup stays, new data continues behind it, and producers
and subscriptions are known."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING

from sim.backups import Taken
from sim.cluster import GROUPS, Node, World
from sim.retention import is_kept
from sim.store import SimStore
from sim.tier import CLUSTER
from sim.workers import BASE, PULL, URL

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.offsets import parse_token
from polynya.config.node_identity import NodeIdentity
from polynya.objectstore import MemoryStore, StoreSettings
from polynya.recovery.from_backup import FromBackup, renaming
from polynya.recovery.restore import Restorer, RestoreTarget
from polynya.stream.features.retention.rules import retention_of
from polynya.stream.machine import Machine
from polynya.stream.parts import Producer
from polynya.stream.replies import Code, Reply
from polynya.stream.state.record_gaps import JUMP
from polynya.subscriptions.messages import Get
from polynya.subscriptions.webhooks import DeliveryOutcome
from polynya.wal import Journal, SnapshotStore

if TYPE_CHECKING:
    from sim.swarm import SwarmEpisode

# nodes, and replicas of each group if not all have it
SIZES = (
    (1, 0),
    (2, 0),
    (3, 0),
    (4, 3),
    (5, 0),
    (5, 3),
)
WIDTH = 8


class SimTarget(RestoreTarget):
    """`polynya.recovery.restore.RestoreTarget` on the simulated disk of a node."""

    def __init__(self, node: Node, history: int) -> None:
        world = node.world
        self._node = node
        self.config = SimpleNamespace(
            cluster=SimpleNamespace(joins=False), store=StoreSettings(backend="memory")
        )  # type: ignore[assignment]
        self.identity = NodeIdentity(
            cluster_id=CLUSTER,
            node=node.number,
            nodes=world.born,
            history=history,
            groups=GROUPS,
            cores=1,
            created_ms=0,
        )
        self._placed = {
            group: SimpleNamespace(voters=voters) for group, voters in world.placed.items()
        }  # type: ignore[misc]
        self._cores: dict[int, tuple[Journal, SnapshotStore]] = {}

    def begin(self) -> None: ...

    def finish(self) -> None:
        self._core(0)[0].close()

    def _core(self, core: int) -> tuple[Journal, SnapshotStore]:
        if core not in self._cores:
            folder, disk = self._node.folder, self._node.disk
            journal = Journal.open(
                folder / "journal",
                journal_id=0,
                segment_bytes=self._node.world.segment_bytes,
                files=disk,
            )
            self._cores[core] = journal, SnapshotStore(folder / "snapshots", files=disk)
        return self._cores[core]

    def write(self, number: int, machine: Machine) -> None:
        if number or not self._placed:
            super().write(number, machine)
        else:  # all have the meta group
            placed, self._placed = self._placed, {}
            super().write(number, machine)
            self._placed = placed


class Restored:
    """One restore of one episode's backup."""

    def __init__(self, episode: SwarmEpisode, taken: Taken, repository: MemoryStore) -> None:
        self._episode, self._taken, self._repository = episode, taken, repository
        self._random = Random(f"restored {episode.seed} {taken.manifest.id}")
        nodes, replicas = self._random.choice(SIZES)
        store = (
            SimStore(episode.seed, episode._wall_ms) if episode.world.store is not None else None
        )
        self.world = World(episode.seed, nodes, replicas, store)
        self._lost: set[str] = set()
        self.world.history = taken.manifest.next_history
        self.world.keeps_house = True
        self.world.receivers[URL] = self._receive
        self.world.evict_after_ms = episode.world.evict_after_ms

    async def check(self) -> None:
        """Compare with the original. Raises AssertionError with the difference."""
        world = self.world
        world.turn(self._episode.knobs)
        world.hot_bytes_max = 1 << 20
        await self._restore()
        await world.start()
        await self._is_there("at first")
        await self._is_done()
        await self._goes_on()
        await self._is_there("behind what came")
        for node in world.alive():
            node.kill(power=0.0)
        for node in world.nodes.values():
            node.start()
        await world.wait_leaders()
        await self._is_there("after a power cut")
        await self._loses_a_disk()
        await world.wait_equal()
        await world.stop()

    async def _restore(self) -> None:
        manifest, world = self._taken.manifest, self.world
        rename = renaming(manifest.cluster, CLUSTER)
        states = FromBackup(self._repository, manifest, rename, has_store=world.store is not None)
        targets = [SimTarget(node, manifest.next_history) for node in world.nodes.values()]
        done = await Restorer(states, targets, world.store, rename).run()
        assert not done.warnings, done.warnings
        self._lost = {note.name for note in done.notes}
        sure = [
            note
            for note in done.notes
            if note.uid in self._taken.sure or note.name in self._taken.promise.records
        ]
        assert not sure, f"what was there before the backup began has lost something: {sure}"

    async def _is_done(self) -> None:
        """Check that acknowledged cursors of the idle subscription stay, and grow only by its
        workers' possible progress."""
        background = self._random.choice(self.world.alive()).background
        cursors = dict[str, tuple[int, int]]()
        for _ in range(50):
            with suppress(Unavailable, OutcomeUnknown):
                answer = await background.ask(
                    background.subscriptions.operate(Get(PULL, BASE)), 8.0
                )
                cursors = {
                    link["path"]: parse_token(link["acked_offset"]) or (0, 0)
                    for link in (answer.value or {}).get("streams", ())
                }
                if cursors.keys() >= self._taken.promise.cursors[PULL].keys():
                    break
            await asyncio.sleep(0.2)
        sent = self._episode.shop.shifts[PULL].sent
        for name, (_, byte) in self._taken.promise.cursors[PULL].items():
            assert name in cursors, f"{PULL} does not watch {name} any more: {cursors}"
            assert cursors[name][1] >= byte, (
                f"{name}: {byte} bytes were done, and {cursors[name]} are"
            )
            assert cursors[name][1] <= sent.get(name, (0, 0))[1], (
                f"{name}: {cursors[name]} is done, and no worker was beyond {sent.get(name)}"
            )

    async def _is_there(self, when: str) -> None:
        """Check the restored streams on any node."""
        for name, (stream, content) in self._taken.streams.items():
            over = name.startswith("ends/") or is_kept(name) or retention_of(stream) is not None
            if over or name in self._lost:
                continue  # over, perhaps; or without what only its source had
            found = await self._read(self._random.choice(self.world.alive()), name)
            assert found is not None, f"{name} is not there {when}"
            assert found.startswith(content), (
                f"{name}: {when} {found!r} is read, and the backup has {content!r}"
            )
            whole = self._episode.whole.get(name)
            if whole is not None and when == "at first":
                assert whole.startswith(found), f"{name}: what is read at first was never there"

    async def _read(self, node: Node, name: str) -> bytes | None:
        for _ in range(50):
            with suppress(Unavailable, OutcomeUnknown):
                return await node.read(name)
            await asyncio.sleep(0.2)
        return None

    async def _goes_on(self) -> None:
        """Assert that numbers are never used again, and that what a producer repeats is known."""
        for name, produced in self._taken.promise.produced.items():
            stream, content = self._taken.streams[name]
            node = self._random.choice(self.world.alive())
            reply = await self._surely(node, name, b"restored", Producer("restored", 0, 0))
            # the latter to what had no answer in time
            done = reply.code in (
                Code.OK,
                Code.DUPLICATE,
            )
            assert done and reply.first_record >= stream.next_record + JUMP, (
                f"{name}: {reply} behind {stream.next_record}"
            )
            for payload in produced[-1:]:
                key = "rare" if payload[:1] == b"r" else payload[:2].decode()
                sequence = len([each for each in produced if each[:2] == payload[:2]]) - 1
                again = await self._surely(node, name, payload, Producer(key, 0, sequence))
                assert again.code == Code.DUPLICATE, (
                    f"{name}: {payload!r} was acknowledged, and is {again} when it comes again"
                )
                there = len(
                    {
                        content[at : at + WIDTH]
                        for at in range(0, len(content), WIDTH)
                        if content[at : at + 2] == payload[:2]
                    }
                )
                new = await self._surely(node, name, b"goes on;", Producer(key, 0, there))
                assert (
                    new.code in (Code.OK, Code.DUPLICATE) and new.first_record > reply.first_record
                ), f"{name}: {there} of producer {key} are there, and the next is {new}"

    async def _surely(self, node: Node, name: str, payload: bytes, producer: Producer) -> Reply:
        for _ in range(50):
            with suppress(Unavailable, OutcomeUnknown):
                return await node.append(name, payload, producer)
            await asyncio.sleep(0.2)
        raise AssertionError(f"nothing can be appended to {name} though nothing is wrong")

    async def _loses_a_disk(self) -> None:
        world = self.world
        node = self._random.choice(world.alive())
        if min(len(voters) for voters in world.map.voters.values()) < 3:
            return
        # on ways that lose what finds no room a snapshot takes minutes; connections between real
        # nodes wait
        world.heal()
        node.kill(power=0.0)
        node.lose_disk()
        node.start()
        await world.wait_moving(lambda: node.remembers)
        await world.wait_equal()
        await self._is_there("after a disk was lost")

    async def _receive(self, body: bytes) -> DeliveryOutcome:
        return DeliveryOutcome(True, done=True)
