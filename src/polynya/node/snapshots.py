"""Group snapshots, triggered by journal bytes, and the release of journal segments that nothing needs any more (F12)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from google_crc32c import value as crc32c

from polynya.node.core import Core
from polynya.node.replicated import ReplicatedCore
from polynya.node.transfer import transfer_size
from polynya.replica import Group
from polynya.stream.machine import Machine
from polynya.stream.model import HotBatch
from polynya.wal.snapshots import SnapshotStore

PACE_SECONDS = 0.02  # between two groups: encoding one blocks the loop
KEEP_BYTES = 256 << 20  # of journal: hot batches that lie deeper are copied forward, so that they do not hold old segments
COPY_BYTES = 1 << 20  # of payload in one turn
PATIENCE = 25  # questions whether a round is due that a failed round puts the next one off


class Snapshotter:
    """Writes a base of each changed group in turn; a segment goes when recovery from the snapshots on the disk reads nothing in it.

    What such a recovery reads of a group: the hot batches that the snapshot on the disk names (not those of today's machine, which may
    be in packs by now), and all entries behind it. Where a group has other members, some entries before it stay too, for those that lag.
    """

    def __init__(self, core: Core | ReplicatedCore, store: SnapshotStore, *, every_bytes: int) -> None:
        self.count = 0
        self.covered_ms = 0  # what any group logged before this log time is in a snapshot
        self.lock = asyncio.Lock()  # held for a round
        self._core = core
        self._replicated = core if isinstance(core, ReplicatedCore) else None
        self._store = store
        self._every_bytes = every_bytes
        self._keep_bytes = KEEP_BYTES
        self._written_at = core.journal.position
        self._indexes: dict[int, int] = {}  # of the snapshots on the disk; none at first: a first round writes every group
        self._needed: dict[int, int | None] = {}  # the lowest place that the group's snapshot on the disk names
        self._floors: dict[int, int] = {}  # the lowest place that a recovery of the group reads
        self._moved: set[int] = set()  # groups with hot batches that lie elsewhere than their snapshot says
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
            self._patience = 0
        except BaseException:
            self._wanted = self._wanted or wanted
            raise
        finally:
            self._running = False

    def installed(self, number: int, index: int, machine: Machine) -> None:
        """The group's snapshot on the disk is one that another node sent. With the lock held."""
        self._indexes[number] = index
        self._needed[number] = machine.needed_places()
        self._moved.discard(number)

    def forget(self, number: int) -> None:
        """The group has no replica here any more. With the lock held."""
        for known in (self._indexes, self._needed, self._floors):
            known.pop(number, None)
        self._moved.discard(number)

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
        floor = self._core.applied_place if isinstance(self._core, Core) else 0
        if self._indexes.get(number) != group.applied_index or number in self._moved:
            index, term, body, needed = group.applied_index, group.term, group.machine.snapshot(), group.machine.needed_places()
            size = transfer_size(len(body), group.machine)
            await asyncio.to_thread(self._store.write, number, term, index, body)
            self._moved.discard(number)
            self._indexes[number] = index
            self._needed[number] = needed
            self.count += 1
            if self._replicated is not None:
                self._replicated.snapshotted(number, index, (size, crc32c(body)), keep_from=self._written_at)
        elif self._replicated is not None:
            self._replicated.compact(number, keep_from=self._written_at)
        if self._replicated is not None:
            floor = self._replicated.floor_of(number)
        hot = self._needed[number]
        self._floors[number] = floor if hot is None else min(floor, hot)

    async def _copy_forward(self) -> None:
        """Hot batches of quiet streams must not hold the whole journal."""
        below = self._deep_below()
        for number, group in list(self._core.shard.groups.items()):
            old = [batch for _, hot in group.machine.flush_candidates() for batch in hot if batch.place >> 32 < below]
            for some in portions(old):
                self._moved.add(number)
                await self._core.copy_forward(number, some)

    def _deep_below(self) -> int:
        """The first segment that is not deeper in the journal than `keep_bytes`."""
        kept = 0
        segments = self._core.journal.segments()
        for number, size in reversed(segments):
            kept += size
            if kept > self._keep_bytes:
                return number
        return 0


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
