"""Serve snapshots and old entries to members on other nodes that are behind, and install the
snapshots that arrive here."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from polynya.base.errors import CorruptData, PolynyaError, Unavailable
from polynya.engine.replicated import ReplicatedEngine
from polynya.engine.snapshots.chain import identity_of
from polynya.engine.snapshots.receive import SnapshotReceiver
from polynya.engine.snapshots.snapshotter import Snapshotter, portions
from polynya.engine.snapshots.transfer import pack_transfer, unpack_transfer
from polynya.raft import ChunkWanted, Effects, Entry, EntryLoad, Snapshot
from polynya.replica import Group
from polynya.replica.member import Member
from polynya.stream.machine import Machine
from polynya.wal import SnapshotStore
from polynya.wal.scratch import Scratch

PACKED_MAX = 2  # concurrent outgoing snapshots; each is an unnamed file
READS_MAX = 1  # of these, for read replicas
PACKED_SECONDS = 30.0  # without progress
IDLE_SECONDS = 2.0  # without progress; then another snapshot may take the place
LOADED_MAX = 4096  # entries in one load
MISSING_SECONDS = 0.2  # delay before missing entries are requested again, until a snapshot exists
log = logging.getLogger("polynya.catch_up")
_Key = tuple[int, int, int]  # group, index, identity


class _Packed(msgspec.Struct):
    """An outgoing snapshot. `file` is None while it is packed. `reads`: only read replicas have
    requested it. `reached`: the furthest offset that each member has requested; a repeated request
    is no progress, for the member may be dead."""

    asked: deque[ChunkWanted]
    at: float  # time of the last progress
    file: Scratch | None = None
    reads: bool = False
    reached: dict[int, int] = {}


class CatchUp:
    """The snapshot transfers of one core. `installed` is called with each machine that replaces a
    group's."""

    def __init__(
        self,
        core: ReplicatedEngine,
        store: SnapshotStore,
        snapshotter: Snapshotter,
        installed: Callable[[int, Machine], None],
    ) -> None:
        self._core, self._store, self._snapshotter = core, store, snapshotter
        self._installed = installed
        self._packed: dict[_Key, _Packed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.arriving = SnapshotReceiver(core, store, self._spawn)

    def carry_out(self, member: Member, effects: Effects) -> None:
        """Carry out a turn's snapshot and entry-load effects."""
        for wanted in effects.chunks_wanted:
            self._want(member, wanted)
        self.arriving.keep(member, effects.chunks_arrived)
        if effects.install is not None:
            self._spawn(self._install(member, effects.install))
        if effects.load is not None:
            self._spawn(self._load(member, effects.load))

    def forget(self, number: int) -> None:
        """Drop the incoming snapshot of a removed replica."""
        self.arriving.forget(number)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.arriving.close()
        for key in list(self._packed):
            self._forget(key)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._core.fail(task.exception() or RuntimeError("a task ended"))

    # --- out --------------------------------------------------------------------------------------

    def _want(self, member: Member, wanted: ChunkWanted) -> None:
        """Send a chunk. A request above the limits is ignored; the member retries."""
        now, reads = (
            asyncio.get_running_loop().time(),
            wanted.to in member.raft.configuration.readers,
        )
        key = (member.group.number, wanted.snapshot.index, wanted.snapshot.identity)
        packed = self._packed.get(key)
        if packed is not None and packed.at < 0:
            self._forget(key)
            packed = None
        if packed is None:
            if not self._make_room(now, reads):
                return
            packed = self._packed[key] = _Packed(
                deque([wanted]), now, reads=reads, reached={wanted.to: wanted.offset}
            )
            self._spawn(self._pack(member, key, packed, wanted.snapshot))
            return
        packed.reads = packed.reads and reads
        if wanted.offset > packed.reached.get(wanted.to, -1):
            packed.at, packed.reached[wanted.to] = now, wanted.offset
        # already queued; a second read would grow the queue on a slow disk
        if wanted in packed.asked:
            return
        packed.asked.append(wanted)
        if len(packed.asked) == 1 and packed.file is not None:
            self._spawn(self._give(member, packed, packed.file))

    def _make_room(self, now: float, reads: bool) -> bool:
        """Evict idle snapshots. Read replicas may be distant and slow, so they leave a slot for a
        voter."""
        while (full := len(self._packed) >= PACKED_MAX) or (
            reads and sum(each.reads for each in self._packed.values()) >= READS_MAX
        ):
            idle = [
                key
                for key, packed in self._packed.items()
                if not packed.asked and now - packed.at >= IDLE_SECONDS and (full or packed.reads)
            ]
            if not idle:
                return False
            self._forget(idle[0])
        return True

    async def _pack(self, member: Member, key: _Key, packed: _Packed, snapshot: Snapshot) -> None:
        file: Scratch | None = None
        try:
            file = await asyncio.to_thread(self._store.scratch)
            await asyncio.to_thread(self._fill, file, key[0], snapshot)
        except (OSError, PolynyaError) as fault:
            log.info("this snapshot cannot be sent; a newer one will be: %s", fault)
            if file is not None:
                await asyncio.to_thread(file.close)
            self._packed.pop(key, None)
            for wanted in packed.asked if self._is_here(member) else ():
                member.raft.snapshots.chunk_missing(wanted, self._core.now_ms())
            self._core.kick()
            if isinstance(fault, OSError | CorruptData):
                await self._snapshotter.doubt(key[0])
            return
        except BaseException:
            if file is not None:
                file.close()
            raise
        packed.file = file
        await self._give(member, packed, file)
        self._sweep_later(key)

    def _fill(self, file: Scratch, number: int, snapshot: Snapshot) -> None:
        links = self._store.links(number)
        if not links or (links[-1].index, links[-1].term) != (snapshot.index, snapshot.term):
            raise Unavailable(
                f"the snapshot of group {number} at {snapshot.index} is no longer the newest"
            )
        if identity_of(links) != snapshot.identity:  # merged, or its payload has moved
            raise Unavailable(f"the snapshot of group {number} at {snapshot.index} was rewritten")
        pack_transfer(links, self._store, self._core.journal, file)
        if file.size != snapshot.size:
            raise CorruptData(
                f"the snapshot of group {number} at {snapshot.index} has {file.size} bytes "
                f"instead of {snapshot.size}"
            )

    async def _give(self, member: Member, packed: _Packed, file: Scratch) -> None:
        """Send the requested chunks in order."""
        while packed.asked:
            wanted = packed.asked[0]
            try:
                data = await asyncio.to_thread(file.read_checked, wanted.offset, wanted.length)
            except (OSError, EOFError, CorruptData) as fault:
                log.warning("an outgoing snapshot cannot be read back; packing it again: %s", fault)
                packed.asked.clear()
                packed.at = float("-inf")
                return
            packed.asked.popleft()
            if self._is_here(member):
                member.raft.snapshots.chunk_read(wanted, data, self._core.now_ms())
                self._core.kick()

    def _sweep_later(self, key: _Key) -> None:
        loop = asyncio.get_running_loop()

        def sweep() -> None:
            packed = self._packed.get(key)
            if (
                packed is not None
                and not packed.asked
                and loop.time() - packed.at >= PACKED_SECONDS
            ):
                self._forget(key)
            elif packed is not None:
                loop.call_later(PACKED_SECONDS, sweep)

        loop.call_later(PACKED_SECONDS, sweep)

    def _forget(self, key: _Key) -> None:
        packed = self._packed.pop(key)
        if packed.file is not None:
            packed.file.close()

    async def _load(self, member: Member, load: EntryLoad) -> None:
        positions: list[int] = []
        for index in range(load.begin, min(load.end, load.begin + LOADED_MAX)):
            position = member.position_of(index)
            if position is None:
                break
            positions.append(position)
        try:
            entries = await asyncio.to_thread(self._entries, positions, load)
        except (OSError, CorruptData) as fault:
            log.info("old entries are missing from the journal; sending a snapshot: %s", fault)
            entries = []
        if not entries:
            self._snapshotter.want()
            await asyncio.sleep(MISSING_SECONDS)
        if not self._is_here(member):
            return
        member.raft.loaded(load.begin, entries, self._core.now_ms())
        self._core.kick()

    def _entries(self, positions: list[int], load: EntryLoad) -> list[Entry]:
        entries: list[Entry] = []
        size = 0
        for index, position in enumerate(positions, load.begin):
            found = self._core.journal.segments.read_entry(position)
            if found.index != index:
                raise CorruptData(
                    f"journal position {position:#x} holds entry {found.index} instead of {index}"
                )
            size += len(found.payload)
            if entries and size > load.bytes_max:
                break
            entries.append(
                Entry(found.payload, found.kind, found.term, found.index, found.group, position)
            )
        return entries

    # --- in ---------------------------------------------------------------------------------------

    async def _install(self, member: Member, snapshot: Snapshot) -> None:
        file = await self.arriving.take(member.group.number, snapshot)
        try:
            # a concurrent snapshot round would release payload that no snapshot on disk refers to
            # yet
            async with self._snapshotter.lock:
                if self._is_here(member):
                    await self._install_from(file, member, snapshot)
        finally:
            if file is not None:
                await asyncio.to_thread(file.close)

    async def _install_from(self, file: Scratch | None, member: Member, snapshot: Snapshot) -> None:
        """Write the payload to the journal, then the snapshot's file, then reset the log to begin
        behind it."""
        number, core = member.group.number, self._core
        try:
            if file is None:
                raise OSError(
                    "the received file is incomplete: the disk is full, or the transfer was dropped"
                )
            machine = await asyncio.to_thread(unpack_transfer, file, snapshot.identity)
            for some in portions(
                [batch for _, hot in machine.directory.flush_candidates() for batch in hot]
            ):
                if not await core.keeper.copy_forward(number, some):
                    raise OSError("the disk is full")
            if not await core.keeper.configured(number, snapshot):
                raise OSError("the disk is full")
            chain = await self._snapshotter.write_installed(
                Group(number, machine, term=snapshot.term, index=snapshot.index)
            )
        except (PolynyaError, OSError) as fault:
            log.warning("a received snapshot of group %d could not be installed: %s", number, fault)
            await asyncio.sleep(MISSING_SECONDS)
            member.raft.snapshots.install_failed(snapshot.identity, core.now_ms())
            core.kick()
            return
        core.keeper.install(member, snapshot, machine)
        core.keeper.snapshotted(number, snapshot.index, chain.transfer, keep_from=0)
        self._installed(number, machine)
        log.info("group %d installed a received snapshot at index %d", number, snapshot.index)

    def _is_here(self, member: Member) -> bool:
        """Return False if the replica was removed meanwhile."""
        return self._core.members.get(member.group.number) is member
