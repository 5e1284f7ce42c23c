"""Life cycle of a wake on the core of its owner group: issue, deliver or announce, retry,
end."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from polynya.base.errors import PolynyaError
from polynya.base.names import group_of
from polynya.stream.features.subscriptions.commands import SubscriptionEvent
from polynya.stream.features.subscriptions.rules import WEBHOOK, Event
from polynya.stream.features.subscriptions.state import LinkInfo, State, Subscription
from polynya.stream.replies import Code, Reply
from polynya.subscriptions.keys import Keys
from polynya.subscriptions.links import StreamService, SubscriptionLinks
from polynya.subscriptions.shapes import wake_event, webhook_body
from polynya.subscriptions.webhooks import DeliveryOutcome, Webhooks

RETRY_MS = 1000
RETRY_MS_MAX = 60_000
JITTER = 0.2
DELIVERY_SECONDS_MAX = 60.0  # a slower receiver must respond first and call back later
ANNOUNCE_MS = 60_000  # an unclaimed wake event is written again after this, doubled each time …
ANNOUNCE_MS_MAX = 600_000  # … up to this: the workers that read it may have died
# limit of `_announced`; beyond it all entries are dropped, and open wakes are announced again soon
ANNOUNCED_MAX = 4096
OWNER_PREFIX = "__ds/subscriptions/"


def pause_before(attempts: int) -> int:
    """Return the ms to wait after so many failed attempts: 1 s, doubled up to a minute."""
    return min(RETRY_MS << min(attempts - 1, 16), RETRY_MS_MAX)


def passed_failure(
    subscription: Subscription, cursors: Iterable[tuple[str, tuple[int, int] | None]]
) -> str:
    """Return the stream of the subscription's failed record if these cursors pass the record, else
    ""."""
    failures = subscription.failures
    failed = (failures.record, failures.byte)
    passed = any(
        name == failures.stream and cursor is not None and cursor > failed
        for name, cursor in cursors
    )
    return failures.stream if failures.attempts and passed else ""


class WakeCounters:
    """The counters of wakes, read at scrape time."""

    __slots__ = ("announced", "delivered", "expired", "failed", "faults", "woken")

    def __init__(self) -> None:
        self.woken = self.delivered = self.announced = self.failed = self.expired = self.faults = 0


class Wakes:
    """The wakes of one core. At most one task works on a subscription at a time; `tend` starts the
    due ones."""

    def __init__(
        self, service: StreamService, links: SubscriptionLinks, keys: Keys, webhooks: Webhooks
    ) -> None:
        self.service = service
        self.links = links
        self.keys = keys
        self.webhooks = webhooks
        self.counters = WakeCounters()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._issuing: dict[str, asyncio.Task[None]] = {}
        # the turn of the last scan, and the groups with non-idle subscriptions that it found
        self._turns, self._awake = (
            -1,
            list[int](),
        )
        self._announced: dict[str, int] = {}  # id → announcements of the wake in flight
        self._completing: dict[str, asyncio.Lock] = {}
        self._working: dict[str, int] = {}  # id → requests of the lease holder in progress
        self._looked_ms = 0  # log time of the previous `tend`

    def owner_group_of(self, key: str) -> int:
        """Return the owner group of a subscription's id."""
        return group_of(OWNER_PREFIX + key, self.service.groups)

    def find(self, key: str, uid: int = 0) -> Subscription | None:
        """Return the subscription if its owner group is on this core; `uid` 0 matches any incarnation."""
        machine = self.service.local.machines.get(self.owner_group_of(key))
        subscription = None if machine is None else machine.subscriptions.owned.get(key)
        return subscription if subscription is not None and uid in (0, subscription.uid) else None

    @contextmanager
    def working(self, key: str) -> Iterator[None]:
        """Keep the lease from expiring while a request of its holder is in progress."""
        self._working[key] = self._working.get(key, 0) + 1
        try:
            yield
        finally:
            self._working[key] -= 1
            if not self._working[key]:
                del self._working[key]

    def is_held(self, subscription: Subscription) -> bool:
        """Report whether another worker holds the lease."""
        lasts = (
            self.service.now_ms() < subscription.lease_until_ms or subscription.id in self._working
        )
        return subscription.state == State.LEASED and lasts

    async def event(
        self,
        subscription: Subscription,
        event: Event,
        fence: tuple[int, str] = (0, ""),
        *,
        wake_id: str = "",
        text: str = "",
        until_ms: int = 0,
    ) -> Reply:
        """Propose an event to the owner group."""
        generation, fenced_id = fence
        command = SubscriptionEvent(
            subscription.id,
            subscription.uid,
            event,
            self.service.now_ms(),
            generation,
            fenced_id or wake_id,
            text,
            until_ms,
        )
        return await self.service.call(self.owner_group_of(subscription.id), command)

    # --- issue and end ----------------------------------------------------------------------------

    def news(self, key: str, uid: int, name: str) -> bool:
        """Handle news of a watched stream. Return False if that incarnation was deleted."""
        subscription = self.find(key, uid)
        if subscription is None:
            return False
        if subscription.state == State.IDLE:
            self._start(self._issuing, subscription, partial(self._wake, subscription, name))
        return True

    async def look(self, subscription: Subscription) -> bool:
        """Issue a wake if work has become pending before the subscription went to IDLE. Return True
        if a wake is in flight. Groups without a leader are skipped; they report their news after
        the election."""
        if self.find(subscription.id, subscription.uid) is None:
            return False
        found = await self.links.oldest(subscription, 1, whole=False)
        if not any(info.pending for info in found):
            return False
        return await self._issue(subscription, found[0].name)

    async def nothing_pending(self, subscription: Subscription) -> None:
        """Return a wake without pending work to IDLE; otherwise it would absorb the next news."""
        if subscription.state == State.WAKING:
            reply = await self.event(
                subscription, Event.NOTHING, (subscription.generation, subscription.wake_id)
            )
            if reply.code == Code.OK:
                await self.look(subscription)

    async def complete(self, subscription: Subscription) -> bool:
        """Wait until every group has the links that the subscription wants. Return False if it was
        deleted. Raises Unavailable when its owner group has left this node."""
        key, uid = subscription.id, subscription.uid
        # the registered revision; the applied state here may lag
        lock, registered = (
            self._completing.setdefault(key, asyncio.Lock()),
            0,
        )
        try:
            async with lock:
                while (known := self.find(key, uid)) is not None and max(
                    registered, known.linked
                ) < known.revision:
                    registered = known.revision
                    if not await self.links.register(self.owner_group_of(key), known):
                        return False
        finally:
            if not lock.locked():
                self._completing.pop(key, None)
        self.service.local.here(self.owner_group_of(key))
        return self.find(key, uid) is not None

    async def bury(self, key: str, uid: int) -> None:
        await self.links.untell(self.owner_group_of(key), key, uid)

    async def _wake(self, subscription: Subscription, name: str) -> None:
        await self._issue(subscription, name)

    async def _issue(self, subscription: Subscription, name: str) -> bool:
        reply = await self.event(
            subscription, Event.WAKE, wake_id="w_" + secrets.token_hex(12), text=name
        )
        if reply.code == Code.OK:
            self.counters.woken += 1
            self._announced.pop(subscription.id, None)
            if self.owner_group_of(subscription.id) in self.service.local.led:
                self._tend_one(subscription, self.service.now_ms())
        return reply.code in (Code.OK, Code.ACTIVE)

    # --- due work ---------------------------------------------------------------------------------

    def tend(self) -> None:
        """Start the due work of all non-idle subscriptions. A lease expires only if the previous
        call was already past its end. So requests that arrived while this core was stalled still
        count."""
        local, now_ms = self.service.local, self.service.now_ms()
        if self._turns != local.turns:
            self._turns, self._awake = (
                local.turns,
                [group for group, machine in local.led.items() if machine.subscriptions.awake],
            )
        for machine in [local.led[group] for group in self._awake if group in local.led]:
            for key in tuple(machine.subscriptions.awake):
                self._tend_one(machine.subscriptions.owned[key], now_ms)
        self._looked_ms = now_ms

    def _tend_one(self, subscription: Subscription, now_ms: int) -> None:
        if subscription.id in self._busy:
            return
        if subscription.state == State.WAKING and 0 < subscription.next_attempt_ms <= now_ms:
            deliver = self._deliver if subscription.config.kind == WEBHOOK else self._announce
            self._start(
                self._busy,
                subscription,
                partial(deliver, subscription, (subscription.generation, subscription.wake_id)),
            )
        elif (
            0 < subscription.lease_until_ms <= self._looked_ms
            and subscription.id not in self._working
        ):
            self._start(
                self._busy,
                subscription,
                partial(
                    self._expire, subscription, (subscription.generation, subscription.wake_id)
                ),
            )

    async def close(self) -> None:
        tasks = [*self._busy.values(), *self._issuing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.webhooks.close()

    async def _expire(self, subscription: Subscription, fence: tuple[int, str]) -> None:
        if (await self.event(subscription, Event.EXPIRE, fence)).code == Code.OK:
            self.counters.expired += 1
            await self.look(subscription)

    async def _deliver(self, subscription: Subscription, fence: tuple[int, str]) -> None:
        """Try one delivery. It sends the links that are pending now, and a `done` response
        acknowledges exactly those."""
        links = await self.links.oldest(subscription)
        if not any(info.pending for info in links):
            await self.nothing_pending(subscription)
            return
        signer = await self.keys.signer()
        if (subscription.generation, subscription.wake_id) != fence:
            return
        body = webhook_body(
            subscription,
            links,
            signer.token(subscription.id, subscription.uid, fence[0], self.service.now_ms()),
        )
        headers = {
            "content-type": "application/json",
            "webhook-signature": signer.signature(body),
            "user-agent": "polynya",
        }
        seconds = min(subscription.config.lease_ttl_ms / 1000, DELIVERY_SECONDS_MAX)
        outcome = await self.webhooks.post(subscription.config.webhook_url, body, headers, seconds)
        await self._delivered(subscription, fence, outcome, links)

    async def _delivered(
        self,
        subscription: Subscription,
        fence: tuple[int, str],
        outcome: DeliveryOutcome,
        links: list[LinkInfo],
    ) -> None:
        if not outcome.taken:
            self.counters.failed += 1
            await self.event(
                subscription, Event.FAILED, fence, until_ms=self._retry_at(subscription)
            )
            return
        self.counters.delivered += 1
        if not outcome.done:
            await self.event(subscription, Event.DELIVERED, fence)
            return
        if (await self.event(subscription, Event.HEARTBEAT, fence)).code == Code.OK:
            await self.links.advance(
                subscription,
                [(info.name, info.stream_uid, info.tail_record, info.tail_byte) for info in links],
            )
            passed = passed_failure(
                subscription, [(info.name, (info.tail_record, info.tail_byte)) for info in links]
            )
            if (await self.event(subscription, Event.DONE, fence, text=passed)).code == Code.OK:
                await self.look(subscription)

    async def _announce(self, subscription: Subscription, fence: tuple[int, str]) -> None:
        """Write the wake event. The wake stream belongs to the application: while it is missing,
        closed or not JSON, retry later."""
        if not any(info.pending for info in await self.links.oldest(subscription, 1)):
            await self.nothing_pending(subscription)
            return
        service = self.service
        append = wake_event(subscription, service.now_ms())
        reply = await service.call(service.group_of(append.name), append)
        if reply.code >= Code.NOT_FOUND:
            self.counters.failed += 1
            await self.event(
                subscription, Event.FAILED, fence, until_ms=self._retry_at(subscription)
            )
            return
        self.counters.announced += 1
        times = self._announced.get(subscription.id, 0)
        # most entries belong to ended wakes or deleted subscriptions
        if len(self._announced) >= ANNOUNCED_MAX:
            self._announced.clear()
        self._announced[subscription.id] = times + 1
        until_ms = service.now_ms() + min(ANNOUNCE_MS << min(times, 8), ANNOUNCE_MS_MAX)
        await self.event(subscription, Event.DELIVERED, fence, until_ms=until_ms)

    def _retry_at(self, subscription: Subscription) -> int:
        delay = pause_before(subscription.attempts + 1)
        return self.service.now_ms() + int(delay * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311

    def _start(
        self,
        tasks: dict[str, asyncio.Task[None]],
        subscription: Subscription,
        work: Callable[[], Awaitable[object]],
    ) -> None:
        """Start a task unless the subscription has one of this kind: the log would fence a second
        one."""
        key = subscription.id
        if key not in tasks:
            tasks[key] = asyncio.get_running_loop().create_task(self._guarded(tasks, key, work))

    async def _guarded(
        self, tasks: dict[str, asyncio.Task[None]], key: str, work: Callable[[], Awaitable[object]]
    ) -> None:
        """Run a task and count its faults; `tend` and the sweep retry the rest. If the group has a
        new leader elsewhere, that node continues."""
        try:
            await work()
        except PolynyaError:
            self.counters.faults += 1
            return
        finally:
            tasks.pop(key, None)
        subscription = (
            self.find(key) if self.owner_group_of(key) in self.service.local.led else None
        )
        if subscription is not None and subscription.state != State.IDLE:
            self._tend_one(subscription, self.service.now_ms())
