"""Group snapshots, triggered by journal bytes, and the release of journal segments that nothing needs any more (F12)."""

from __future__ import annotations

import asyncio

from polynya.node.core import Core
from polynya.wal.snapshots import SnapshotStore

PACE_SECONDS = 0.02  # between two groups: encoding one blocks the loop


class Snapshotter:
    """Writes a base of each changed group in turn; a segment goes when no group and no hot batch needs it."""

    def __init__(self, core: Core, store: SnapshotStore, *, every_bytes: int, floors: dict[int, int]) -> None:
        self._core = core
        self._store = store
        self._every_bytes = every_bytes
        self._written_at = core.journal.position
        self._indexes: dict[int, int] = {}
        self._floors = dict(floors)  # group → a place at or before the first entry that a recovery must replay
        self._running = False
        self._wanted = False
        self.count = 0
        self.covered_ms = 0  # what any group logged before this log time is in a snapshot

    def want(self) -> None:
        """Releases of objects wait for the snapshots to contain them."""
        self._wanted = True

    def due(self) -> bool:
        if self._running:
            return False
        return self._wanted or self._core.journal.bytes_between(self._written_at, self._core.journal.position) >= self._every_bytes

    async def run(self, now_ms: int) -> None:
        """Snapshot every group that changed, then release. `now_ms` is the log time."""
        self._running = True
        self._wanted = False
        try:
            self._written_at = self._core.journal.position
            for number, group in self._core.shard.groups.items():
                await self._one(number, group.applied_index)
                await asyncio.sleep(PACE_SECONDS)
            await asyncio.to_thread(self._core.journal.release, self._needed_from())
            self.covered_ms = now_ms
        finally:
            self._running = False

    async def _one(self, number: int, index: int) -> None:
        group = self._core.shard.groups[number]
        floor = self._core.applied_place
        if self._indexes.get(number) != group.applied_index:
            index, term, body = group.applied_index, group.term, group.machine.snapshot()
            await asyncio.to_thread(self._store.write, number, term, index, body)
            self._indexes[number] = index
            self.count += 1
        self._floors[number] = floor

    def _needed_from(self) -> int:
        """The lowest journal segment that a recovery, or a hot batch, still needs."""
        needed = list(self._floors.values())
        for group in self._core.shard.groups.values():
            place = group.machine.needed_places()
            if place is not None:
                needed.append(place)
        return min(needed) >> 32
