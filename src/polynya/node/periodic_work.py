"""The work that a core does beside its turns, at fixed intervals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from polynya.base.errors import PolynyaError
from polynya.jobs import Failures, repeat
from polynya.service.assembly import CoreRuntime
from polynya.service.snapshot_sweep import sweep_snapshots

SWEEP_SECONDS = 1.0
LOOK_AT_JOURNAL_SECONDS = 0.5  # data acknowledged this long after its file was deleted is lost
LOOK_AT_SNAPSHOTS_SECONDS = 10.0
SETTLE_SECONDS = 5.0
SNAPSHOT_SECONDS = 0.2
SNAPSHOTS_SWEEP_SECONDS = 30.0  # of those of streams: a small part of their grace
log = logging.getLogger("polynya.core")


class PeriodicWork:
    """The periodic work of one core. `swept` is called after each sweep."""

    def __init__(self, engine: CoreRuntime, swept: Callable[[], None]) -> None:
        self._engine = engine
        self._swept = swept

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background tasks; none of them ends."""
        snapshots = Failures(log, "snapshots failed; retrying", PolynyaError, FileNotFoundError)
        retention = Failures(log, "retention failed; retrying", PolynyaError)
        superseded = Failures(log, "removing superseded snapshots failed; retrying", PolynyaError)
        return [
            repeat(self._sweep, SWEEP_SECONDS, at_once=False),
            # it may wait for other nodes, so time-critical work has other tasks
            repeat(self._engine.outbox_sender.sweep, SETTLE_SECONDS, at_once=False),
            repeat(self._engine.transaction_jobs.run_once, SWEEP_SECONDS, at_once=False),
            repeat(self._look_at_journal, LOOK_AT_JOURNAL_SECONDS, at_once=False),
            repeat(self._engine.snapshotter.look, LOOK_AT_SNAPSHOTS_SECONDS, at_once=False),
            repeat(self._snapshot, SNAPSHOT_SECONDS, snapshots, at_once=False),
            repeat(self._retain, SWEEP_SECONDS, retention, at_once=False),
            repeat(self._sweep_snapshots, SNAPSHOTS_SWEEP_SECONDS, superseded, at_once=False),
        ]

    async def _sweep(self) -> None:
        """Run time-based work for idle streams."""
        self._engine.local.sweep()
        self._swept()

    async def _look_at_journal(self) -> None:
        """Check that the journal files exist: a deleted open file accepts writes without an
        error."""
        await asyncio.to_thread(self._engine.core.journal.look)

    async def _retain(self) -> None:
        await self._engine.retainer.run_once()

    async def _sweep_snapshots(self) -> None:
        await sweep_snapshots(self._engine.service)

    async def _snapshot(self) -> None:
        snapshotter = self._engine.snapshotter
        try:
            if snapshotter.due():
                await snapshotter.run(self._engine.service.now_ms())
        except FileNotFoundError:  # files were deleted from outside
            await self._look_at_journal()
            raise
