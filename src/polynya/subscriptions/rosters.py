"""Share the lanes of a subscription between its workers, on the core of its owner group."""

from __future__ import annotations

from contextlib import suppress

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.limits import SUBSCRIPTION_WORKERS_MAX
from polynya.stream.features.subscriptions.commands import SubscriptionWorker
from polynya.stream.features.subscriptions.rules import PULL_WAKE
from polynya.stream.features.subscriptions.state import Subscription
from polynya.stream.replies import Code
from polynya.subscriptions.messages import (
    NO_PULL_WAKE,
    NO_SUBSCRIPTION,
    OperationResult,
    ShareLanes,
    refuse,
)
from polynya.subscriptions.shapes import workers_event
from polynya.subscriptions.wakes import Wakes

_NOT_FOUND = refuse(404, "SUBSCRIPTION_NOT_FOUND", NO_SUBSCRIPTION)
_FULL = refuse(
    429,
    "TOO_MANY_WORKERS",
    f"{SUBSCRIPTION_WORKERS_MAX} workers share this subscription; retry when one has left",
)


class Rosters:
    """The reports of workers of one core."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._service = wakes.service

    async def run(self, asked: ShareLanes) -> OperationResult:
        """Count a worker for the time of a lease, and answer with the lanes that it keeps. Workers
        that wait for work hear that they have to report."""
        subscription = self._wakes.find(asked.id)
        if subscription is None:
            return _NOT_FOUND
        if subscription.config.kind != PULL_WAKE:
            return refuse(400, "INVALID_REQUEST", NO_PULL_WAKE)
        now_ms, session_ms = self._service.now_ms(), subscription.config.lease_ttl_ms
        reply = await self._service.call(
            self._wakes.owner_group_of(asked.id),
            SubscriptionWorker(
                asked.id,
                subscription.uid,
                now_ms,
                asked.worker,
                asked.lanes,
                0 if asked.leaves else now_ms + session_ms,
                asked.busy,
            ),
        )
        if reply.code == Code.TOO_MANY:
            return _FULL
        if reply.code == Code.EXISTS_DIFFERENT:
            return _other_lanes(asked.lanes, reply.detail)
        if reply.code != Code.OK:
            return _NOT_FOUND
        lanes, workers, has_news = reply.detail
        if has_news:
            with suppress(Unavailable, OutcomeUnknown):  # they hear it with their next report
                await self._append_event(subscription)
        return OperationResult(200, {"lanes": lanes, "workers": workers, "session_ms": session_ms})

    async def _append_event(self, subscription: Subscription) -> None:
        append = workers_event(subscription, self._service.now_ms())
        await self._service.call(self._service.group_of(append.name), append)


def _other_lanes(asked: int, lanes: int) -> OperationResult:
    return refuse(
        409,
        "LANES_DIFFER",
        f"lanes is {asked}, and the other workers of this subscription share {lanes}: pass that "
        "number, or wait until they have left",
        lanes=lanes,
    )
