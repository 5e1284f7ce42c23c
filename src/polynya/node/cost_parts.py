"""The costs of one core: its counts per hour, kept in a file, and the view over all nodes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from polynya.cluster.cost_view import CostView
from polynya.cluster.map_cache import ClusterMapCache
from polynya.config.core_start import CoreStart
from polynya.cost import UsageHistory
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
        self._trouble = ""  # logged once, not every minute until it works

    async def run(self) -> None:
        """Save the counts every minute, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self.save()

    async def save(self) -> None:
        """Save the counts now. A failure is logged."""
        try:
            await self.history.save()
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning(
                    "cannot save the counts of past hours; retrying", extra={"error": str(error)}
                )
