"""The lags of subscriptions for metrics: measured now and then by the core that leads each."""

from __future__ import annotations

import logging
from itertools import islice

import msgspec

from polynya.base.errors import PolynyaError
from polynya.jobs import Failures, repeat
from polynya.stream.features.subscriptions.state import State
from polynya.subscriptions.lane_groups import name_of
from polynya.subscriptions.links import StreamService, SubscriptionLinks

LAG_SECONDS = 15.0
NAMES_MAX = 1000  # that a core measures: each is a series of some metrics
LANES_MAX = 4096  # of one round: each is a lookup in every group

log = logging.getLogger("polynya.core")


class WorkFigures(msgspec.Struct, gc=False):
    """The figures of the lanes of one name that groups of this core own: their number, how many are
    leased, the lag of the one that is furthest behind, and the attempts at the worst record."""

    lanes: int = 0
    leased: int = 0
    lag: int = 0
    attempts: int = 0


class WorkLags:
    """The figures of subscriptions by the names that lists show."""

    def __init__(self, service: StreamService, links: SubscriptionLinks) -> None:
        self.found: dict[str, WorkFigures] = {}
        self._service = service
        self._links = links

    async def run(self) -> None:
        """Measure until cancelled."""
        failures = Failures(
            log, "lags of subscriptions: the last values stay", PolynyaError, level=logging.INFO
        )
        await repeat(self.measure, LAG_SECONDS, failures, at_once=False)

    async def measure(self) -> None:
        """Measure the subscriptions whose owner groups this core leads, in all groups."""
        owned = list(
            islice(
                (
                    subscription
                    for machine in self._service.local.led.values()
                    for subscription in machine.subscriptions.owned.values()
                ),
                LANES_MAX,
            )
        )
        lags = await self._links.lags([subscription.id for subscription in owned])
        found: dict[str, WorkFigures] = {}
        for subscription in owned:
            name = name_of(subscription)
            if name not in found and len(found) >= NAMES_MAX:
                continue
            figures = found.setdefault(name, WorkFigures())
            figures.lanes += 1
            figures.leased += subscription.state == State.LEASED
            figures.lag = max(figures.lag, lags.get(subscription.id, 0))
            figures.attempts = max(figures.attempts, subscription.failures.attempts)
        self.found = found
