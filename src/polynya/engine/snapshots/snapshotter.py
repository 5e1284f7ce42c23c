"""Write group snapshots, triggered by journal bytes, and release the journal segments that recovery
does not need."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from functools import partial

import msgspec

from polynya.base.errors import CorruptData
from polynya.engine.replicated import ReplicatedEngine
from polynya.engine.snapshots.chain import SnapshotChain, hot_bytes_of
from polynya.engine.snapshots.encode import encode_delta, lowest_position
from polynya.engine.snapshots.merge_process import Job, due, fold_beside
from polynya.engine.snapshots.transfer import payload_at
from polynya.engine.standalone import StandaloneEngine
from polynya.replica import Group
from polynya.stream.machine import Machine
from polynya.stream.snapshots.encode import snapshot_of
from polynya.stream.state.model import HotBatch
from polynya.wal import Journal
from polynya.wal.errors import DiskFull
from polynya.wal.snapshots import SnapshotLink, SnapshotStore
from polynya.wire.slice_building import is_intact

PACE_SECONDS = 0.02  # between two groups
# of journal: older hot batches are copied forward, so that they do not pin old segments
KEEP_BYTES = 256 << 20
COPY_BYTES = 1 << 20  # of payload in one turn
SKIPS_AFTER_FAILURE = 25  # calls of `due` that are skipped after a failed round
SMALL_STREAMS = 256  # a group with at most this many streams …
# … and this many snapshot bytes is written whole: fast, and there is nothing to merge
SMALL_BYTES = 64 << 10
_LOST = frozenset((errno.EIO, errno.ENOENT))
log = logging.getLogger("polynya.snapshots")


class SnapshotCounters(msgspec.Struct):
    """Counters for metrics; they only grow."""

    count: int = 0
    bytes: int = 0
    folded: int = 0  # parts that were merged into others


class Snapshotter:
    """Snapshots the changes of each group in turn, merges parts, and releases segments.

    Recovery of a group reads the hot batches that its snapshots on disk refer to, and all entries
    behind them. The machine's current batches do not matter; they may be in packs by now. A
    replicated group keeps some earlier entries for followers that lag."""

    def __init__(
        self,
        core: StandaloneEngine | ReplicatedEngine,
        store: SnapshotStore,
        *,
        every_bytes: int,
        chains: dict[int, SnapshotChain] | None = None,
        faulted: Container[int] = (),
    ) -> None:
        """`chains`: the snapshots on disk; this class updates it. `faulted`: uids of streams whose
        batches keep their place in the journal."""
        self.counters = SnapshotCounters()
        self.covered_ms = 0  # every entry logged before this log time is in a snapshot
        self.lock = asyncio.Lock()  # held for a round
        # held from taking a machine's changes until they are encoded
        self.encoding = asyncio.Lock()
        self._core = core
        self._keeper = core.keeper if isinstance(core, ReplicatedEngine) else None
        self._copy: Callable[[int, list[HotBatch]], Awaitable[bool | None]] = (
            core.keeper.copy_forward if isinstance(core, ReplicatedEngine) else core.copy_forward
        )
        self._store = store
        self._faulted = faulted
        self.fold: Callable[[SnapshotStore, Sequence[Job]], Awaitable[None]] = fold_beside
        self._every_bytes = every_bytes
        self._keep_bytes = KEEP_BYTES
        self._small_streams = SMALL_STREAMS
        self._written_at = core.journal.position
        self._chains = {} if chains is None else chains
        self._floors: dict[int, int] = {}  # the lowest position that recovery of the group reads
        self._running = False
        self._wanted = False
        self._skips_left = 0

    def want(self) -> None:
        """Request a round; object deletions wait until a snapshot contains them."""
        self._wanted = True

    def due(self) -> bool:
        """Return True if a round is due; polled regularly."""
        if self._running:
            return False
        if self._skips_left:
            self._skips_left -= 1
            return False
        return (
            self._wanted
            or self._core.journal.segments.bytes_between(
                self._written_at, self._core.journal.position
            )
            >= self._every_bytes
        )

    async def run(self, now_ms: int, pace_seconds: float = PACE_SECONDS) -> None:
        """Snapshot every group that changed, then release segments. `now_ms` is the log time.

        Raises DiskFull, Unavailable or OSError; then the round is retried later."""
        self._running = True
        self._skips_left = SKIPS_AFTER_FAILURE
        wanted, self._wanted = self._wanted, False
        begin = self._core.journal.position
        try:
            async with self.lock:
                await self._round(pace_seconds)
                self.covered_ms = now_ms
                self._written_at = begin
                await self._merge()
            self._skips_left = 0
        except BaseException:
            self._wanted = self._wanted or wanted
            raise
        finally:
            self._running = False

    async def look(self) -> None:
        """Find deleted snapshot files, and rewrite those groups in the next round: their state is
        in memory."""
        async with self.lock:
            chains = {number: chain.links for number, chain in self._chains.items()}
            try:
                missing = await asyncio.to_thread(self._store.missing, chains)
            except OSError:  # no permission, or a failing disk, which the next write reports
                return
            for number in missing:
                del self._chains[number]
        if missing:
            log.error(
                "snapshot files are missing: rewriting them",
                extra={"groups": missing, "folder": str(self._store.folder)},
            )
            self.want()

    async def doubt(self, number: int) -> None:
        """Check a group's files after a read error; damaged ones are rewritten in the next
        round."""
        async with self.lock:
            group = self._core.core_replicas.groups.get(number)
            if group is not None and number in self._chains and not await self._is_damaged(number):
                await self._copy_damaged(group)

    async def write_installed(self, group: Group) -> SnapshotChain:
        """Write a snapshot of a machine that is about to replace the group's; `group` is not the
        live one. The caller holds the lock."""
        return await self._write(group, whole=True, unapplied=self._core.journal.settled)

    def forget(self, number: int) -> None:
        """Forget a group whose replica was removed. The caller holds the lock."""
        self._chains.pop(number, None)
        self._floors.pop(number, None)

    async def _round(self, pace_seconds: float) -> None:
        await self._copy_forward()
        await self._core.wait_applied()  # so that every entry with an earlier timestamp is applied
        # groups may be added meanwhile; none is removed
        for number, group in list(self._core.core_replicas.groups.items()):
            await self._one(number, group)
            await asyncio.sleep(pace_seconds)
        if self._keeper is not None:
            await self._keeper.renew_states()
        await asyncio.to_thread(self._core.journal.release, self._floor() >> 32)

    def _floor(self) -> int:
        """Return the lowest position that any recovery reads. A group added during the round counts
        from where its log begins."""
        came = [number for number in self._core.core_replicas.groups if number not in self._floors]
        floors = [
            *self._floors.values(),
            *(self._keeper.floor_of(number) for number in came if self._keeper is not None),
        ]
        return min(floors, default=self._core.journal.position)

    async def _one(self, number: int, group: Group) -> None:
        floor = self._core.applied_position if isinstance(self._core, StandaloneEngine) else 0
        chain = self._chains.get(number)
        machine = group.machine
        if chain is None or chain.index != group.applied_index or machine.changes or machine.kept:
            # Write the whole state when the index has not advanced, or when most streams changed.
            whole = chain is None or chain.index in (0, group.applied_index)
            changed = len(machine.changes.streams) + machine.kept.streams
            whole = whole or 2 * changed > machine.directory.count
            chain = await self._write(group, whole=whole, unapplied=self._unapplied_floor(number))
            if self._keeper is not None:
                self._keeper.snapshotted(
                    number, chain.index, chain.transfer, keep_from=self._written_at
                )
        elif self._keeper is not None:
            self._keeper.compact(number, keep_from=self._written_at)
        if self._keeper is not None:
            floor = self._keeper.floor_of(number)
        self._floors[number] = floor if chain.needed is None else min(floor, chain.needed)

    def _unapplied_floor(self, number: int) -> int:
        """Return a lower bound of the positions of entries that are applied from now on."""
        return (
            self._core.applied_position
            if isinstance(self._core, StandaloneEngine)
            else self._core.keeper.floor_of(number, unapplied=True)
        )

    async def _write(self, group: Group, *, whole: bool, unapplied: int) -> SnapshotChain:
        """Write a snapshot. `unapplied` bounds the positions of hot batches that are added
        meanwhile."""
        chain, number, machine, store = (
            self._chains.get(group.number),
            group.number,
            group.machine,
            self._store,
        )
        before: tuple[SnapshotLink, ...] = ()
        write: Callable[[], SnapshotLink]
        async with self.encoding:
            if machine.directory.count <= self._small_streams and (
                chain is None or chain.bytes <= SMALL_BYTES
            ):
                lowest = machine.directory.needed_positions()
                changes, index, term, body = (
                    machine.take_changes(),
                    group.applied_index,
                    group.term,
                    snapshot_of(machine),
                )
                write = partial(store.write, number, term, index, body)
            else:
                lowest = await lowest_position(machine, unapplied)
                delta = await encode_delta(group, whole=whole)
                before = () if whole or chain is None else chain.links
                changes, base = delta.changes, before[-1].index if before else 0
                write = partial(
                    store.write_delta, number, delta.term, delta.index, delta.body, base
                )
        # at the same moment as the body
        needed, hot_bytes = (
            lowest if machine.directory.hot else None,
            hot_bytes_of(machine),
        )
        try:
            link = await asyncio.to_thread(write)
        except BaseException:
            machine.kept.put_back(changes)
            raise
        self.counters.count += 1
        self.counters.bytes += link.length
        chain = self._chains[number] = SnapshotChain((*before, link), needed, hot_bytes)
        return chain

    async def _merge(self) -> None:
        """Merge parts of long chains. A failure is harmless and is retried in the next round."""
        jobs = [
            (number, count) for number, chain in self._chains.items() if (count := due(chain.links))
        ]
        if not jobs:
            return
        try:
            await self.fold(self._store, jobs)
        except (OSError, DiskFull, CorruptData) as fault:
            log.warning("snapshots could not be merged; retrying later: %s", fault)
            jobs = [(number, count) for number, count in jobs if not await self._is_damaged(number)]
        for number, _ in jobs:
            chain = self._chains[number]
            links = tuple(await asyncio.to_thread(self._store.links, number))
            self.counters.folded += len(chain.links) - len(links)
            chain.links = links
            if self._keeper is not None:
                self._keeper.snapshotted(
                    number, chain.index, chain.transfer, keep_from=self._written_at
                )

    async def _is_damaged(self, number: int) -> bool:
        """Return True if the group's chain is unreadable; it is then discarded and rewritten, since
        recovery would fail."""
        try:
            await asyncio.to_thread(self._store.check, number)
        except (CorruptData, OSError) as fault:
            if isinstance(fault, OSError) and fault.errno not in _LOST:
                return False
            del self._chains[number]
            log.error(
                "a snapshot is unreadable: rewriting it",
                extra={"group": number, "error": str(fault)},
            )
            self.want()
            return True
        return False

    async def _copy_damaged(self, group: Group) -> None:
        """Write the hot batches that are damaged in the journal again."""
        hot = [
            (batch, stream.uid)
            for stream, batches in group.machine.directory.flush_candidates()
            for batch in batches
        ]
        lost = await asyncio.to_thread(
            lambda: [
                (batch, uid)
                for batch, uid in hot
                if not is_readable(self._core.journal, batch.position, uid)
            ]
        )
        # a copy of a corrupt batch would look intact
        lost = [(batch, uid) for batch, uid in lost if is_intact(batch)]
        if lost:
            log.error(
                "appends are unreadable in the journal: writing them again",
                extra={"group": group.number},
            )
            group.machine.changes.streams.update(uid for _, uid in lost)
            for some in portions([batch for batch, _ in lost]):
                await self._copy(group.number, some)
            self.want()

    async def _copy_forward(self) -> None:
        """Copy old hot batches of quiet streams forward, so that they do not pin the journal."""
        below = self._deep_below()
        for number, group in list(self._core.core_replicas.groups.items()):
            old = await self._deep(group.machine, below)
            for some in portions(old):
                await self._copy(number, some)

    async def _deep(self, machine: Machine, below: int) -> list[HotBatch]:
        """Return old batches, and mark their streams as changed. A batch that is corrupt in memory
        stays: the journal may be intact."""
        old: list[HotBatch] = []
        for number, (stream, hot) in enumerate(list(machine.directory.flush_candidates())):
            deep = (
                []
                if stream.uid in self._faulted
                else [batch for batch in hot if batch.position >> 32 < below and is_intact(batch)]
            )
            if deep:
                machine.changes.streams.add(stream.uid)
                old += deep
            if number % SMALL_STREAMS == 0:
                await asyncio.sleep(0)
        return old

    def _deep_below(self) -> int:
        """Return the first segment within the last `keep_bytes` of the journal."""
        kept = 0
        segments = self._core.journal.segments.sizes()
        for number, size in reversed(segments):
            kept += size
            if kept > self._keep_bytes:
                return number
        return 0


def is_readable(journal: Journal, position: int, uid: int) -> bool:
    """Return True if the stream's hot batch can be read at the position."""
    try:
        payload_at(journal, position, uid)
    except CorruptData:
        return False
    except OSError as fault:
        return fault.errno not in _LOST
    return True


def portions(batches: list[HotBatch]) -> Iterator[list[HotBatch]]:
    """Split the batches into portions that one turn may copy."""
    some: list[HotBatch] = []
    size = 0
    for batch in batches:
        some.append(batch)
        size += len(batch.payload)
        if size >= COPY_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
