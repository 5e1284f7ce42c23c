"""Run the subscriptions of one core: route operations to their owner groups, send news between groups,
start due work, repair losses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from heapq import nsmallest
from operator import itemgetter
from typing import Any

from polynya.base.errors import NotLeader, PolynyaError, Unavailable, UpgradePending
from polynya.base.levels import WORK_QUEUE_LEVEL
from polynya.jobs import repeat
from polynya.stream.features.subscriptions.commands import UnlinkSubscription
from polynya.stream.features.subscriptions.links import pending_watches
from polynya.stream.machine import Machine
from polynya.subscriptions import lane_groups, messages
from polynya.subscriptions.keys import Keys
from polynya.subscriptions.lags import WorkLags
from polynya.subscriptions.links import StreamService, SubscriptionLinks
from polynya.subscriptions.messages import (
    AnyOperation,
    Get,
    ListRequest,
    OperationResult,
    Put,
    Reset,
    RetryWork,
    Shapes,
    ShareLanes,
    TailUpdates,
)
from polynya.subscriptions.operations import Operations
from polynya.subscriptions.shapes import listed_shape
from polynya.subscriptions.wakes import WakeCounters, Wakes
from polynya.subscriptions.webhooks import Webhooks

TICK_SECONDS = 0.1  # the resolution of leases and retries
SWEEP_TICKS = 50


class Subscriptions:
    """The subscriptions of one core. Call `pump` after every turn. `allow_loopback`: webhooks may
    call plain-http receivers on this machine."""

    def __init__(self, service: StreamService, *, allow_loopback: bool) -> None:
        self._service = service
        self._keys = Keys(service)
        self._links = SubscriptionLinks(service)
        webhooks = Webhooks(allow_loopback=allow_loopback)
        self.webhook_seconds = webhooks.seconds
        self.lags = WorkLags(service, self._links)
        self._wakes = Wakes(service, self._links, self._keys, webhooks)
        self._operations = Operations(self._wakes)
        self._pending_updates: dict[
            int, dict[str, tuple[int, str]]
        ] = {}  # core → id → (uid, stream) not sent yet
        self._senders: dict[int, asyncio.Task[None]] = {}
        self._ticks, self._turns, self._led = 0, -1, set[int]()
        self._task: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        service.rpc.serve(messages.OPERATE, AnyOperation, OperationResult, self._operate)
        service.rpc.serve(messages.UPDATES, TailUpdates, messages.Over, self._on_updates)
        service.rpc.serve(messages.LIST, ListRequest, messages.Shapes, self._list)

    @property
    def _machines(self) -> Mapping[int, Machine]:
        return self._service.local.led

    @property
    def counters(self) -> WakeCounters:
        return self._wakes.counters

    async def start(
        self, ended: Callable[[asyncio.Task[None]], object] = lambda task: None
    ) -> None:
        """Start the periodic work. `ended` gets its task when it ends."""
        self._task = asyncio.get_running_loop().create_task(repeat(self._keep, TICK_SECONDS))
        self._task.add_done_callback(ended)

    async def stop(self) -> None:
        tasks = [*self._senders.values(), *filter(None, (self._task, self._sweeping))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._wakes.close()

    def now_ms(self) -> int:
        """Return the log time."""
        return self._service.now_ms()

    async def operate(self, operation: AnyOperation) -> OperationResult:
        """Run an operation on the core that acts for the id's owner group. Raises `Unavailable` and
        `OutcomeUnknown`."""
        needs_level = isinstance(operation, RetryWork | Reset | ShareLanes) or (
            isinstance(operation, Put) and operation.max_attempts > 0
        )
        if needs_level and self._service.local.level < WORK_QUEUE_LEVEL:
            raise UpgradePending(
                "retries, dead letters, resets and workers with lanes need level "
                f"{WORK_QUEUE_LEVEL}; some nodes run an older release. Finish the upgrade."
            )
        owner_group = self._wakes.owner_group_of(operation.id)
        changes = not isinstance(operation, Get)
        answer: OperationResult = await self._service.rpc.at_home(
            owner_group, messages.OPERATE, operation, self._operate, changes=changes
        )
        return answer

    async def _operate(self, operation: AnyOperation) -> OperationResult:
        owner_group = self._wakes.owner_group_of(operation.id)
        if owner_group not in self._machines:
            raise NotLeader(0)
        try:
            await self._service.local.linearize(owner_group)
            return await self._operations.run(operation)
        except Unavailable as fault:  # of a later step; a NotLeader would cause a retry elsewhere
            raise Unavailable(str(fault)) from None

    async def jwks(self) -> dict[str, Any]:
        """Return the JWK Set of the webhook signing key."""
        return await self._keys.jwks()

    async def listed(self, prefix: str, after: str, limit: int) -> OperationResult:
        """Return a page of all subscriptions by id. `next` is the `after` of the next page. Raises
        `Unavailable`."""
        service = self._service

        def question(groups: list[int]) -> ListRequest:
            return ListRequest(prefix, after, limit + 1, tuple(groups))

        parts = await service.rpc.of_groups(
            range(1, service.groups + 1), messages.LIST, question, self._list
        )
        found = sorted((shape for part in parts for shape in part), key=itemgetter("id"))
        shown = found[:limit]
        return OperationResult(
            200, {"subscriptions": shown, "next": shown[-1]["id"] if len(found) > limit else None}
        )

    async def listed_by_name(self, prefix: str, after: str, limit: int) -> OperationResult:
        """Return a page of all subscriptions by name, with their lags; the lanes of a group are one
        row. Otherwise as `listed`."""
        service = self._service

        def question(groups: list[int]) -> ListRequest:
            return ListRequest(prefix, after, limit + 1, tuple(groups), by_name=True)

        parts = await service.rpc.of_groups(
            range(1, service.groups + 1), messages.LIST, question, self._list
        )
        found = [shape for part in parts for shape in part]
        names = sorted({shape.get("group") or shape["id"] for shape in found})
        shown = set(names[:limit])
        found = [shape for shape in found if (shape.get("group") or shape["id"]) in shown]
        lags = await self._links.lags([shape["id"] for shape in found])
        after = names[limit - 1] if len(names) > limit else ""
        return OperationResult(
            200, {"subscriptions": lane_groups.rows(found, lags), "next": after or None}
        )

    def pump(self) -> None:
        """Send the news of the last turn to the subscriptions' owner groups."""
        for machine in self._machines.values():
            state = machine.subscriptions
            if state.wakes:
                wakes, state.wakes = state.wakes, {}
                for key, (uid, name) in wakes.items():
                    self._queue_update(key, uid, name)

    def _queue_update(self, key: str, uid: int, name: str) -> None:
        try:
            core = self._service.rpc.home_of(self._wakes.owner_group_of(key))
        except NotLeader:
            return  # the sweep sends it again
        if core == self._service.rpc.core:
            if not self._wakes.news(key, uid, name):
                self._forget(key, uid)
            return
        self._pending_updates.setdefault(core, {})[key] = (uid, name)
        if core not in self._senders:
            self._senders[core] = asyncio.get_running_loop().create_task(self._send_updates(core))

    async def _send_updates(self, core: int) -> None:
        """Send updates to a core, one message at a time. Those that arrive meanwhile share the next
        one."""
        try:
            while updates := self._pending_updates.pop(core, None):
                wakes = [(key, uid, name) for key, (uid, name) in updates.items()]
                for key, uid in await self._service.rpc.ask(
                    core, messages.UPDATES, TailUpdates(wakes)
                ):
                    self._forget(key, uid)
        except PolynyaError:
            self._wakes.counters.faults += 1  # the sweep sends it again
        finally:
            del self._senders[core]

    async def _on_updates(self, updates: TailUpdates) -> list[tuple[str, int]]:
        if any(
            self._wakes.owner_group_of(key) not in self._machines for key, _, _ in updates.wakes
        ):
            raise NotLeader(0)  # only the leader knows the latest state
        return [
            (key, uid) for key, uid, name in updates.wakes if not self._wakes.news(key, uid, name)
        ]

    async def _list(self, question: ListRequest) -> Shapes:
        local = self._service.local
        await local.linearize_all(question.groups)
        owned = {
            key: subscription
            for machine in map(local.here, question.groups)
            for key, subscription in machine.subscriptions.owned.items()
        }
        names = {
            key: lane_groups.name_of(subscription) if question.by_name else key
            for key, subscription in owned.items()
        }
        asked = {
            name
            for name in names.values()
            if name > question.after and name.startswith(question.prefix)
        }
        shown = set(nsmallest(question.limit, asked))
        return [listed_shape(owned[key]) for key, name in sorted(names.items()) if name in shown]

    def _forget(self, key: str, uid: int) -> None:
        """Remove the registration of a deleted incarnation that a crash has left."""
        for group, machine in self._machines.items():
            watch = machine.subscriptions.watches.get(key)
            if watch is not None and watch.registration.uid == uid:
                self._service.proposals.propose_to(group, UnlinkSubscription(key, uid), _ignore)

    async def _keep(self) -> None:
        self._wakes.tend()
        new_groups = set[int]()
        if self._turns != self._service.local.turns:  # leadership changes with a turn
            self._turns, new_groups = self._service.local.turns, self._machines.keys() - self._led
            self._led = set(self._machines)
        # a new leader must look for unfinished work at once
        if self._ticks % SWEEP_TICKS == 0 or new_groups:
            self._begin_sweep()
        self._ticks += 1

    def _begin_sweep(self) -> None:
        """Start a sweep in the background, because it may wait for a group without a leader. An
        unexpected error of the last sweep is raised."""
        if self._sweeping is not None and not self._sweeping.done():
            self._queue_pending()
            return
        if self._sweeping is not None:
            self._sweeping.result()
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    def _queue_pending(self) -> None:
        """Send pending news again."""
        for machine in self._machines.values():
            for key, uid, name in pending_watches(machine):
                self._queue_update(key, uid, name)

    async def _sweep(self) -> None:
        """Send pending news again, and finish operations across groups that a crash interrupted."""
        self._queue_pending()
        for group, machine in tuple(self._machines.items()):
            state = machine.subscriptions
            try:
                for subscription in [
                    each for each in state.owned.values() if each.linked < each.revision
                ]:
                    await self._wakes.complete(subscription)
                for grave in list(state.graves.values()):
                    await self._links.untell(group, grave.id, grave.uid)
            except PolynyaError:
                self._wakes.counters.faults += 1


def _ignore(reply: object) -> None:
    """Ignore the reply; the next sweep checks the result."""
