"""The work that a core does beside its turns, at fixed intervals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from polynya.base.errors import PolynyaError
from polynya.service.assembly import CoreRuntime

SWEEP_SECONDS = 1.0
LOOK_AT_JOURNAL_SECONDS = 0.5  # data acknowledged this long after its file was deleted is lost
LOOK_AT_SNAPSHOTS_SECONDS = 10.0
SETTLE_SECONDS = 5.0
SNAPSHOT_SECONDS = 0.2
log = logging.getLogger("polynya.core")


class PeriodicWork:
    """The periodic work of one core. `swept` is called after each sweep."""

    def __init__(self, engine: CoreRuntime, swept: Callable[[], None]) -> None:
        self._engine = engine
        self._swept = swept
        self._trouble = ""  # of retention; logged once, not every second until it works

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background tasks; none of them ends."""
        return [
            every(SWEEP_SECONDS, self._sweep),
            # it may wait for other nodes, so time-critical work has other tasks
            every(SETTLE_SECONDS, self._engine.outbox_sender.sweep),
            every(LOOK_AT_JOURNAL_SECONDS, self._look_at_journal),
            every(LOOK_AT_SNAPSHOTS_SECONDS, self._engine.snapshotter.look),
            every(SNAPSHOT_SECONDS, self._snapshot),
            every(SWEEP_SECONDS, self._retain),
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
        try:
            await self._engine.retainer.run_once()
            self._trouble = ""
        except PolynyaError as fault:
            if str(fault) != self._trouble:
                self._trouble = str(fault)
                log.warning("retention failed; retrying", extra={"error": self._trouble})

    async def _snapshot(self) -> None:
        snapshotter = self._engine.snapshotter
        try:
            if snapshotter.due():
                await snapshotter.run(self._engine.service.now_ms())
        except PolynyaError as fault:
            log.warning("snapshots failed; retrying later", extra={"error": str(fault)})
        except FileNotFoundError as fault:  # files were deleted from outside
            await self._look_at_journal()
            log.warning("snapshots failed; retrying later", extra={"error": str(fault)})


async def every(seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the work, with a pause before each run, until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        await work()
