"""Group snapshots, triggered by journal bytes, and the release of journal segments that nothing needs any more (F12)."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from functools import partial

from polynya.base.errors import CorruptData
from polynya.engine.replicated import ReplicatedEngine
from polynya.engine.snapshots.chain import SnapshotChain, hot_bytes_of
from polynya.engine.snapshots.encode import encode_delta, lowest_place
from polynya.engine.snapshots.merge_process import Job, due, fold_beside
from polynya.engine.snapshots.transfer import payload_at
from polynya.engine.standalone import StandaloneEngine
from polynya.replica import Group
from polynya.stream.machine import Machine
from polynya.stream.state.model import HotBatch
from polynya.wal import Journal
from polynya.wal.errors import DiskFull
from polynya.wal.snapshots import SnapshotLink, SnapshotStore
from polynya.wire.pack import is_intact

PACE_SECONDS = 0.02  # between two groups
KEEP_BYTES = 256 << 20  # of journal: hot batches that lie deeper are copied forward, so that they do not hold old segments
COPY_BYTES = 1 << 20  # of payload in one turn
PATIENCE = 25  # questions whether a round is due that a failed round puts the next one off
SMALL_STREAMS = 256  # a group of so few, whose snapshots …
SMALL_BYTES = 64 << 10  # … have so few bytes, is written as a base: nothing to merge, nothing that takes long
_LOST = frozenset((errno.EIO, errno.ENOENT))
log = logging.getLogger("polynya.snapshots")


class Snapshotter:
    """Writes what changed of each group in turn, and merges; a segment goes when recovery from the snapshots on the disk reads nothing in it.

    What such a recovery reads of a group: the hot batches that the snapshots on the disk name (not those of today's machine, which may
    be in packs by now), and all entries behind them. Where a group has other members, some entries before stay too, for those that lag.
    """

    def __init__(
        self,
        core: StandaloneEngine | ReplicatedEngine,
        store: SnapshotStore,
        *,
        every_bytes: int,
        chains: dict[int, SnapshotChain] | None = None,
    ) -> None:
        """`chains`: what is on the disk; it is kept up to date here."""
        self.count = 0
        self.bytes = 0
        self.folded = 0
        self.covered_ms = 0  # what any group logged before this log time is in a snapshot
        self.lock = asyncio.Lock()  # held for a round
        self.encoding = asyncio.Lock()  # held by whoever takes a machine's changes, until they are encoded
        self._core = core
        self._replicated = core if isinstance(core, ReplicatedEngine) else None
        self._store = store
        self.faulted: Container[int] = ()  # streams whose batches stay where they are in the journal
        self.fold: Callable[[SnapshotStore, Sequence[Job]], Awaitable[None]] = fold_beside
        self._every_bytes = every_bytes
        self._keep_bytes = KEEP_BYTES
        self._small_streams = SMALL_STREAMS
        self._written_at = core.journal.position
        self._chains = {} if chains is None else chains
        self._floors: dict[int, int] = {}  # the lowest place that a recovery of the group reads
        self._running = False
        self._wanted = False
        self._patience = 0

    def want(self) -> None:
        """Releases of objects wait for the snapshots to contain them."""
        self._wanted = True

    def due(self) -> bool:
        """Asked now and then."""
        if self._running:
            return False
        if self._patience:
            self._patience -= 1
            return False
        return self._wanted or self._core.journal.bytes_between(self._written_at, self._core.journal.position) >= self._every_bytes

    async def run(self, now_ms: int, pace_seconds: float = PACE_SECONDS) -> None:
        """Snapshot every group that changed, then release. `now_ms` is the log time. Raises DiskFull, Unavailable, OSError; then it is due
        again after a while."""
        self._running = True
        self._patience = PATIENCE
        wanted, self._wanted = self._wanted, False
        begin = self._core.journal.position
        try:
            async with self.lock:
                await self._round(pace_seconds)
                self.covered_ms = now_ms
                self._written_at = begin
                await self._merge()
            self._patience = 0
        except BaseException:
            self._wanted = self._wanted or wanted
            raise
        finally:
            self._running = False

    async def look(self) -> None:
        """What somebody deleted is written anew, with the next round: all that it said is here."""
        async with self.lock:
            chains = {number: chain.links for number, chain in self._chains.items()}
            try:
                missing = await asyncio.to_thread(self._store.missing, chains)
            except OSError:  # nobody may look; or the disk fails, which the next write says
                return
            for number in missing:
                del self._chains[number]
        if missing:
            log.error(
                "snapshots are not there any more: they are written anew", extra={"groups": missing, "folder": str(self._store.folder)}
            )
            self.want()

    async def doubt(self, number: int) -> None:
        """What the disk has of a group could not be read: what is damaged is written anew, with the next round."""
        async with self.lock:
            group = self._core.shard.groups.get(number)
            if group is not None and number in self._chains and not await self._is_damaged(number):
                await self._copy_damaged(group)

    async def write_installed(self, group: Group) -> SnapshotChain:
        """A snapshot of a machine that is to take the place of the group's: `group` is not the one that is at work. With the lock held."""
        return await self._write(group, whole=True, unapplied=self._core.journal.settled)

    def forget(self, number: int) -> None:
        """The group has no replica here any more. With the lock held."""
        self._chains.pop(number, None)
        self._floors.pop(number, None)

    async def _round(self, pace_seconds: float) -> None:
        await self._copy_forward()
        await self._core.wait_applied()  # what was stamped before now is in the machines
        for number, group in list(self._core.shard.groups.items()):  # others may come meanwhile; none goes
            await self._one(number, group)
            await asyncio.sleep(pace_seconds)
        if self._replicated is not None:
            await self._replicated.renew_states()
        await asyncio.to_thread(self._core.journal.release, self._floor() >> 32)

    def _floor(self) -> int:
        """The lowest place that any recovery reads; of a group that came during the round, where its log begins."""
        came = [number for number in self._core.shard.groups if number not in self._floors]
        floors = [*self._floors.values(), *(self._replicated.floor_of(number) for number in came if self._replicated is not None)]
        return min(floors, default=self._core.journal.position)

    async def _one(self, number: int, group: Group) -> None:
        floor = self._core.applied_place if isinstance(self._core, StandaloneEngine) else 0
        chain = self._chains.get(number)
        if chain is None or chain.index != group.applied_index or group.machine.changes:
            # On nothing: what has no other index than the one before it, and what is most of the state.
            whole = chain is None or chain.index in (0, group.applied_index)
            whole = whole or 2 * len(group.machine.changes.streams) > group.machine.count
            chain = await self._write(group, whole=whole, unapplied=self._unapplied_floor(number))
            if self._replicated is not None:
                self._replicated.snapshotted(number, chain.index, chain.transfer, keep_from=self._written_at)
        elif self._replicated is not None:
            self._replicated.compact(number, keep_from=self._written_at)
        if self._replicated is not None:
            floor = self._replicated.floor_of(number)
        self._floors[number] = floor if chain.needed is None else min(floor, chain.needed)

    def _unapplied_floor(self, number: int) -> int:
        """What is applied to the group from now on lies behind it."""
        return self._core.applied_place if isinstance(self._core, StandaloneEngine) else self._core.floor_of(number, unapplied=True)

    async def _write(self, group: Group, *, whole: bool, unapplied: int) -> SnapshotChain:
        """Of the machine's hot batches no place is missed: those that the snapshot names were there before, or lie behind `unapplied`."""
        chain, number, machine, store = self._chains.get(group.number), group.number, group.machine, self._store
        before: tuple[SnapshotLink, ...] = ()
        write: Callable[[], SnapshotLink]
        async with self.encoding:
            if machine.count <= self._small_streams and (chain is None or chain.bytes <= SMALL_BYTES):
                lowest = machine.needed_places()
                changes, index, term, body = machine.take_changes(), group.applied_index, group.term, machine.snapshot()
                write = partial(store.write, number, term, index, body)
            else:
                lowest = await lowest_place(machine, unapplied)
                delta = await encode_delta(group, whole=whole)
                before = () if whole or chain is None else chain.links
                changes, base = delta.changes, before[-1].index if before else 0
                write = partial(store.write_delta, number, delta.term, delta.index, delta.body, base)
        needed, hot_bytes = lowest if machine.hot else None, hot_bytes_of(machine)  # at this moment, as the body is
        try:
            link = await asyncio.to_thread(write)
        except BaseException:
            machine.changes.put_back(changes)
            raise
        self.count += 1
        self.bytes += link.length
        chain = self._chains[number] = SnapshotChain((*before, link), needed, hot_bytes)
        return chain

    async def _merge(self) -> None:
        """Parts of snapshots, where there are many. It is only tidiness: what fails is tried again with the next round."""
        jobs = [(number, count) for number, chain in self._chains.items() if (count := due(chain.links))]
        if not jobs:
            return
        try:
            await self.fold(self._store, jobs)
        except (OSError, DiskFull, CorruptData) as fault:
            log.warning("snapshots could not be merged; tried again later: %s", fault)
            jobs = [(number, count) for number, count in jobs if not await self._is_damaged(number)]
        for number, _ in jobs:
            chain = self._chains[number]
            links = tuple(await asyncio.to_thread(self._store.links, number))
            self.folded += len(chain.links) - len(links)
            chain.links = links
            if self._replicated is not None:
                self._replicated.snapshotted(number, chain.index, chain.transfer, keep_from=self._written_at)

    async def _is_damaged(self, number: int) -> bool:
        """Whether the group's chain cannot be read: then it begins anew, since no start would go on from it."""
        try:
            await asyncio.to_thread(self._store.check, number)
        except (CorruptData, OSError) as fault:
            if isinstance(fault, OSError) and fault.errno not in _LOST:
                return False
            del self._chains[number]
            log.error("a snapshot cannot be read any more: it is written anew", extra={"group": number, "error": str(fault)})
            self.want()
            return True
        return False

    async def _copy_damaged(self, group: Group) -> None:
        """Hot batches that the journal has no more as they were."""
        hot = [(batch, stream.uid) for stream, batches in group.machine.flush_candidates() for batch in batches]
        lost = await asyncio.to_thread(lambda: [(batch, uid) for batch, uid in hot if not is_there(self._core.journal, batch.place, uid)])
        lost = [(batch, uid) for batch, uid in lost if is_intact(batch)]  # what is damaged here too would only look as if it were there
        if lost:
            log.error("appends cannot be read from the journal any more: they are written again", extra={"group": group.number})
            group.machine.changes.streams.update(uid for _, uid in lost)
            for some in portions([batch for batch, _ in lost]):
                await self._core.copy_forward(group.number, some)
            self.want()

    async def _copy_forward(self) -> None:
        """Hot batches of quiet streams must not hold the whole journal."""
        below = self._deep_below()
        for number, group in list(self._core.shard.groups.items()):
            old = await self._deep(group.machine, below)
            for some in portions(old):
                await self._core.copy_forward(number, some)

    async def _deep(self, machine: Machine, below: int) -> list[HotBatch]:
        """Their streams will be in the next snapshot: they name other places. A batch that is damaged in memory stays where the journal has it."""
        old: list[HotBatch] = []
        for number, (stream, hot) in enumerate(list(machine.flush_candidates())):
            deep = [] if stream.uid in self.faulted else [batch for batch in hot if batch.place >> 32 < below and is_intact(batch)]
            if deep:
                machine.changes.streams.add(stream.uid)
                old += deep
            if number % SMALL_STREAMS == 0:
                await asyncio.sleep(0)
        return old

    def _deep_below(self) -> int:
        """The first segment that is not deeper in the journal than `keep_bytes`."""
        kept = 0
        segments = self._core.journal.segments()
        for number, size in reversed(segments):
            kept += size
            if kept > self._keep_bytes:
                return number
        return 0


def is_there(journal: Journal, place: int, uid: int) -> bool:
    """Whether a hot batch of the stream can be read at the place."""
    try:
        payload_at(journal, place, uid)
    except CorruptData:
        return False
    except OSError as fault:
        return fault.errno not in _LOST
    return True


def portions(batches: list[HotBatch]) -> Iterator[list[HotBatch]]:
    """So many at a time as one turn may copy."""
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
