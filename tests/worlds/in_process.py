"""Work of a core's child processes in this one, for simulated time and for speed."""

from __future__ import annotations

from collections.abc import Sequence

from polynya.cold.compaction.work import Answer, CompactionWork, Request
from polynya.engine.snapshots.merge_process import Job, merge
from polynya.wal.snapshots import SnapshotStore


async def fold_here(store: SnapshotStore, jobs: Sequence[Job]) -> None:
    """Run the jobs of a merge."""
    for group, count in jobs:
        store.fold(group, count, merge)


class HereWorker:
    """Compacts a stream."""

    def __init__(self) -> None:
        self._work = CompactionWork()

    async def run(self, request: Request) -> Answer:
        return self._work.run(request)

    async def close(self) -> None:
        self._work = CompactionWork()
