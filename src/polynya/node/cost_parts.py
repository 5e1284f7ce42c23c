"""The costs of one core: its counts per hour, kept in a file, and the view over all nodes."""

from __future__ import annotations

import logging
from pathlib import Path

from polynya.cluster.cost_view import CostView
from polynya.cluster.map_cache import ClusterMapCache
from polynya.config.core_start import CoreStart
from polynya.cost import UsageHistory
from polynya.jobs import Failures, repeat
from polynya.transport import Transport

SAVE_SECONDS = 60.0  # a crash loses the counts since the last save
log = logging.getLogger("polynya.core")


class CostParts:
    """The history of one core and the cost view. The disk may fail: counting goes on in memory."""

    def __init__(
        self, start: CoreStart, transport: Transport | None, maps: ClusterMapCache | None
    ) -> None:
        self.history = UsageHistory(Path(start.config.data), start.core, start.cores)
        for refused in self.history.load():
            log.warning("cannot read the counts of past hours", extra={"error": refused})
        self.view = CostView(start, transport, self.history, maps)
        self._failures = Failures(log, "cannot save the counts of past hours; retrying", OSError)

    async def run(self) -> None:
        """Save the counts every minute, until cancelled."""
        await repeat(self.save, SAVE_SECONDS, at_once=False)

    async def save(self) -> None:
        """Save the counts now. A failure is logged."""
        with self._failures:
            await self.history.save()
