"""Snapshots and old entries for members of other nodes that are behind, and the snapshot that another node sends here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData, PolynyaError
from polynya.node.replicated import ReplicatedCore
from polynya.node.snapshots import Snapshotter, portions
from polynya.node.transfer import pack_transfer, transfer_size, unpack_transfer
from polynya.raft import ChunkWanted, Effects, Entry, Load, Snapshot
from polynya.replica.member import Member
from polynya.stream.machine import Machine
from polynya.wal import SnapshotStore

PACKED_MAX = 2  # snapshots held while they are sent; each at most a group's state and its hot bytes
PACKED_SECONDS = 30.0  # since they were last asked for
LOADED_MAX = 4096  # entries of one answer
MISSING_SECONDS = 0.2  # entries that are gone are asked for again, until there is a snapshot
log = logging.getLogger("polynya.exchange")
_Key = tuple[int, int, int]  # group, index, identity


class Exchange:
    """One per core. `installed` is told of a machine that takes the place of a group's."""

    def __init__(
        self, core: ReplicatedCore, store: SnapshotStore, snapshotter: Snapshotter, installed: Callable[[int, Machine], None]
    ) -> None:
        self._core, self._store, self._snapshotter = core, store, snapshotter
        self._installed = installed
        self._packed: dict[_Key, bytes] = {}
        self._asked: dict[_Key, list[ChunkWanted]] = {}
        self._timers: dict[_Key, asyncio.TimerHandle] = {}
        self._incoming: dict[int, bytearray] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def carry_out(self, member: Member, effects: Effects) -> None:
        """What a turn has left to do for snapshots and old entries."""
        number = effects.group
        for wanted in effects.chunks_wanted:
            self._want(member, wanted)
        for arrived in effects.chunks_arrived:
            if arrived.offset == 0:
                self._incoming[number] = bytearray()
            self._incoming[number] += arrived.data
        if effects.install is not None:
            self._spawn(self._install(member, effects.install, bytes(self._incoming.pop(number))))
        if effects.load is not None:
            self._spawn(self._load(member, effects.load))

    def forget(self, number: int) -> None:
        """The group has no replica here any more."""
        self._incoming.pop(number, None)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._core.fail(task.exception() or RuntimeError("a task ended"))

    # --- out -------------------------------------------------------------------------------------------------------------------

    def _want(self, member: Member, wanted: ChunkWanted) -> None:
        key = (member.group.number, wanted.snapshot.index, wanted.snapshot.identity)
        data = self._packed.get(key)
        if data is not None:
            self._give(member, wanted, data, key)
        elif key in self._asked:
            self._asked[key].append(wanted)
        else:
            self._asked[key] = [wanted]
            self._spawn(self._pack(member, key, wanted.snapshot))

    def _give(self, member: Member, wanted: ChunkWanted, data: bytes, key: _Key) -> None:
        member.raft.chunk(wanted, data[wanted.offset : wanted.offset + wanted.length], self._core.now_ms())
        if key in self._timers:
            self._timers.pop(key).cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(PACKED_SECONDS, self._forget, key)

    async def _pack(self, member: Member, key: _Key, snapshot: Snapshot) -> None:
        try:
            data = await asyncio.to_thread(self._read, key, snapshot)
        except (OSError, CorruptData) as fault:
            log.info("a snapshot to be sent is gone, a newer one is: %s", fault)
            for wanted in self._asked.pop(key):
                member.raft.chunk_missing(wanted, self._core.now_ms())
        else:
            while len(self._packed) >= PACKED_MAX:
                self._forget(next(iter(self._packed)))
            self._packed[key] = data
            for wanted in self._asked.pop(key):
                self._give(member, wanted, data, key)
        self._core.kick()

    def _read(self, key: _Key, snapshot: Snapshot) -> bytes:
        number, index, identity = key
        body = self._store.read(number, index).body
        if crc32c(body) != identity:
            raise CorruptData(f"the snapshot of group {number} at {index} was written anew")
        data = pack_transfer(body, self._core.journal)
        if len(data) != snapshot.size:
            raise CorruptData(f"the snapshot of group {number} at {index} has {len(data)} bytes instead of {snapshot.size}")
        return data

    def _forget(self, key: _Key) -> None:
        self._packed.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def _load(self, member: Member, load: Load) -> None:
        places: list[int] = []
        for index in range(load.begin, min(load.end, load.begin + LOADED_MAX)):
            place = member.place_of(index)
            if place is None:
                break
            places.append(place)
        try:
            entries = await asyncio.to_thread(self._entries, places, load)
        except (OSError, CorruptData) as fault:
            log.info("old entries are gone from the journal, a snapshot is sent: %s", fault)
            entries = []
        if not entries:
            self._snapshotter.want()
            await asyncio.sleep(MISSING_SECONDS)
        member.raft.loaded(load.begin, entries, self._core.now_ms())
        self._core.kick()

    def _entries(self, places: list[int], load: Load) -> list[Entry]:
        entries: list[Entry] = []
        size = 0
        for index, place in enumerate(places, load.begin):
            found = self._core.journal.read_entry(place)
            if found.index != index:
                raise CorruptData(f"journal place {place:#x} holds entry {found.index} instead of {index}")
            size += len(found.payload)
            if entries and size > load.bytes_max:
                break
            entries.append(Entry(found.payload, found.kind, found.term, found.index, found.group, place))
        return entries

    # --- in --------------------------------------------------------------------------------------------------------------------

    async def _install(self, member: Member, snapshot: Snapshot, data: bytes) -> None:
        """Payload into the own journal, then the snapshot's file, then the log that begins behind it."""
        number, core = member.group.number, self._core
        async with self._snapshotter.lock:  # a round would let go of the payload that no snapshot on the disk names yet
            if core.members.get(number) is not member:  # the group has left this node
                return
            try:
                machine = await asyncio.to_thread(unpack_transfer, data, snapshot.identity)
                for some in portions([batch for _, hot in machine.flush_candidates() for batch in hot]):
                    if not await core.copy_forward(number, some):
                        raise OSError("the disk is full")
                body = machine.snapshot()
                if not await core.configured(number, snapshot):
                    raise OSError("the disk is full")
                await asyncio.to_thread(self._store.write, number, snapshot.term, snapshot.index, body)
            except (PolynyaError, OSError) as fault:
                log.warning("a snapshot of group %d that another node sent could not be installed: %s", number, fault)
                await asyncio.sleep(MISSING_SECONDS)
                member.raft.install_failed(snapshot.identity, core.now_ms())
                core.kick()
                return
            core.install(member, snapshot, machine)
            core.snapshotted(number, snapshot.index, (transfer_size(len(body), machine), crc32c(body)), keep_from=0)
            self._snapshotter.installed(number, snapshot.index, machine)
            self._installed(number, machine)
            log.info("group %d goes on from a snapshot at %d that another node sent", number, snapshot.index)
