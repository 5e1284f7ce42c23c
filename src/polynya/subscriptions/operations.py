"""User operations on one subscription, run on the core of its owner group."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.limits import (
    SUBSCRIPTION_LINKS_SHOWN,
    SUBSCRIPTION_STREAMS_MAX,
    SUBSCRIPTIONS_PER_GROUP_MAX,
)
from polynya.base.names import spelled_name
from polynya.base.offsets import parse_token
from polynya.stream.features.subscriptions.commands import (
    SubscriptionDelete,
    SubscriptionPut,
    SubscriptionPutLimited,
    SubscriptionRetry,
    SubscriptionStreams,
)
from polynya.stream.features.subscriptions.rules import PULL_WAKE, WEBHOOK, Event
from polynya.stream.features.subscriptions.state import Subscription, holder_of, worker_of
from polynya.stream.replies import Code, Reply
from polynya.subscriptions.links import BadAck
from polynya.subscriptions.messages import (
    NO_PULL_WAKE,
    NO_SUBSCRIPTION,
    AnyOperation,
    ClaimWork,
    DeleteSubscription,
    Get,
    Members,
    OperationResult,
    Put,
    Reset,
    RetryWork,
    ShareLanes,
    Work,
    refuse,
)
from polynya.subscriptions.resets import Resets
from polynya.subscriptions.rosters import Rosters
from polynya.subscriptions.shapes import dead_letter, failure_shape, link_shape, subscription_shape
from polynya.subscriptions.wakes import Wakes, passed_failure, pause_before
from polynya.subscriptions.webhooks import Rejected
from polynya.wal import DiskFull

_NOT_FOUND = refuse(404, "SUBSCRIPTION_NOT_FOUND", NO_SUBSCRIPTION)
_FENCED = refuse(
    409, "FENCED", "the wake is stale: its generation or wake_id is not the current one"
)
_NOT_PULL = refuse(400, "INVALID_REQUEST", NO_PULL_WAKE)
_FULL = refuse(507, "DISK_FULL", "the journal's disk is full")


class Operations:
    """The operations of one core. A refusal is a result; `Unavailable` and `OutcomeUnknown` are
    raised."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._links = wakes.links
        self._service = wakes.service
        self._resets = Resets(wakes)
        self._handlers: dict[type[Any], Callable[[Any], Awaitable[OperationResult]]] = {
            Put: self._put,
            Get: self._get,
            DeleteSubscription: self._delete,
            Members: self._members,
            ClaimWork: self._claim,
            Work: self._work,
            RetryWork: self._work,
            Reset: self._reset,
            ShareLanes: Rosters(wakes).run,
        }

    async def run(self, operation: AnyOperation) -> OperationResult:
        try:
            return await self._handlers[type(operation)](operation)
        except DiskFull:
            return _FULL

    async def _put(self, asked: Put) -> OperationResult:
        if asked.config.kind == WEBHOOK:
            try:
                await self._wakes.webhooks.check(asked.config.webhook_url)
            except Rejected as reason:
                return refuse(400, "WEBHOOK_URL_REJECTED", str(reason))
        service = self._service
        put = (asked.id, service.now_ms(), asked.config, asked.base_url)
        limit = (asked.max_attempts, asked.dead_letter)
        reply = await self._call(
            asked.id, SubscriptionPutLimited(*put, *limit) if limit[0] else SubscriptionPut(*put)
        )
        if reply.code == Code.EXISTS_DIFFERENT:
            return refuse(
                409,
                "SUBSCRIPTION_ALREADY_EXISTS",
                "the subscription exists with another configuration",
            )
        if reply.code == Code.TOO_MANY:
            return refuse(
                429,
                "TOO_MANY_SUBSCRIPTIONS",
                f"the group of this id has reached its limit of {SUBSCRIPTIONS_PER_GROUP_MAX} "
                "subscriptions",
            )
        with _begun():
            subscription = self._wakes.find(asked.id, reply.uid)
            if subscription is None or not await self._wakes.complete(subscription):
                return refuse(
                    409,
                    "SUBSCRIPTION_ALREADY_EXISTS",
                    "the subscription was deleted while it was created; repeat the request",
                )
            status = 201 if reply.code == Code.CREATED else 200
            return await self._shown(
                status, subscription, Get(asked.id, asked.base_url), whole=False
            )

    async def _get(self, asked: Get) -> OperationResult:
        subscription = self._wakes.find(asked.id)
        return _NOT_FOUND if subscription is None else await self._shown(200, subscription, asked)

    async def _shown(
        self, status: int, subscription: Subscription, asked: Get, *, whole: bool = True
    ) -> OperationResult:
        """Show a subscription. `whole`: raise if the links of a group are unavailable."""
        limit = min(asked.limit or SUBSCRIPTION_LINKS_SHOWN, SUBSCRIPTION_LINKS_SHOWN)
        links = await self._links.page(subscription, asked.after, limit + 1, whole=whole)
        kid = (await self._wakes.keys.signer()).kid if subscription.config.kind == WEBHOOK else ""
        value = subscription_shape(subscription, asked.base_url, links[:limit], kid)
        if len(links) > limit:
            # `?after=` this returns the next page
            value["streams_after"] = spelled_name(links[limit - 1].name)
        return OperationResult(status, value)

    async def _delete(self, asked: DeleteSubscription) -> OperationResult:
        reply = await self._call(asked.id, SubscriptionDelete(asked.id, self._service.now_ms()))
        if reply.code == Code.OK:
            # the sweep reaches the remaining groups later
            with suppress(Unavailable, OutcomeUnknown):
                await self._wakes.bury(asked.id, reply.uid)
        return OperationResult(204)

    async def _members(self, asked: Members) -> OperationResult:
        subscription = self._wakes.find(asked.id)
        if subscription is not None and subscription.config.wake_stream in asked.add:
            return refuse(400, "INVALID_REQUEST", "a subscription cannot watch its own wake_stream")
        if subscription is not None and subscription.failures.dead_letter in asked.add:
            return refuse(
                400, "INVALID_REQUEST", "a subscription cannot watch its own dead_letter_stream"
            )
        reply = await self._call(
            asked.id, SubscriptionStreams(asked.id, asked.add, asked.remove, self._service.now_ms())
        )
        if reply.code == Code.TOO_MANY:
            return refuse(
                429,
                "TOO_MANY_STREAMS",
                f"a subscription has at most {SUBSCRIPTION_STREAMS_MAX} explicit streams; use a "
                "pattern",
            )
        subscription = self._wakes.find(asked.id, reply.uid)
        with _begun():
            if subscription is None or not await self._wakes.complete(subscription):
                return _NOT_FOUND
        return OperationResult(204)

    async def _reset(self, asked: Reset) -> OperationResult:
        subscription = self._wakes.find(asked.id)
        return _NOT_FOUND if subscription is None else await self._resets.run(subscription, asked)

    async def _claim(self, asked: ClaimWork) -> OperationResult:
        """Grant the lease and return the pending links. The links are read before the lease is
        granted, and no step after that can fail. A worker that repeats a lost claim with its
        `claim_id` gets the lease that it holds."""
        subscription = self._wakes.find(asked.id)
        if subscription is None:
            return _NOT_FOUND
        if subscription.config.kind != PULL_WAKE:
            return _NOT_PULL
        holder = holder_of(asked.worker, asked.claim_id)
        held = self._wakes.is_held(subscription)
        if held and not (asked.claim_id and subscription.holder == holder):
            return _held(subscription.holder, subscription.generation)
        links = await self._links.oldest(subscription)
        if not held and not any(info.pending for info in links):
            await self._wakes.nothing_pending(subscription)
            return refuse(409, "NO_PENDING_WORK", "the subscription has no pending work")
        signer = await self._wakes.keys.signer()
        reply = await self._wakes.event(subscription, Event.CLAIM, wake_id=_wake_id(), text=holder)
        if reply.code == Code.HELD and asked.claim_id and reply.detail[2] == holder:
            reply = await self._wakes.event(
                subscription, Event.HEARTBEAT, (reply.detail[0], reply.detail[1])
            )
        if reply.code == Code.NOT_FOUND:
            return _NOT_FOUND
        generation, wake_id, holder = reply.detail
        if reply.code == Code.NOT_YET:
            return refuse(
                409,
                "NO_PENDING_WORK",
                "the subscription pauses after a failed attempt; retry_after_ms says how long",
                retry_after_ms=subscription.failures.until_ms - self._service.now_ms(),
            )
        if reply.code != Code.OK:
            return _held(holder, generation)
        value = {
            "wake_id": wake_id,
            "generation": generation,
            "token": signer.token(
                subscription.id, subscription.uid, generation, self._service.now_ms()
            ),
            "streams": [link_shape(info) for info in links],
            "lease_ttl_ms": subscription.config.lease_ttl_ms,
            "failure": failure_shape(subscription.failures),
        }
        return OperationResult(200, value)

    async def _work(self, asked: Work | RetryWork) -> OperationResult:
        subscription = self._wakes.find(asked.id)
        if subscription is None:
            return _NOT_FOUND
        is_pull = subscription.config.kind == PULL_WAKE
        if not isinstance(asked, RetryWork) and asked.verb != "callback" and not is_pull:
            return _NOT_PULL
        refused = await self._judge_token(subscription, asked)
        if refused is not None:
            return refused
        if (asked.generation, asked.wake_id) != (subscription.generation, subscription.wake_id):
            return _FENCED
        with self._wakes.working(asked.id):
            if isinstance(asked, RetryWork):
                return await self._retried(subscription, asked)
            return await self._worked(subscription, asked)

    async def _retried(self, subscription: Subscription, asked: RetryWork) -> OperationResult:
        """Check the fence in the log and apply the acknowledgements. Then either pause until the
        next attempt, or put the record aside."""
        fence = (asked.generation or 0, asked.wake_id or "")
        reply = await self._wakes.event(subscription, Event.HEARTBEAT, fence)
        if reply.code != Code.OK:
            return _refused(reply)
        try:
            await self._links.acknowledge(subscription, asked.acks)
            cursor, after = await self._links.failing(subscription, asked.stream, asked.offset)
        except BadAck as reason:
            return refuse(409, "INVALID_OFFSET", str(reason))
        failures, error = subscription.failures, asked.error
        attempts = failures.attempts_at(cursor.name, cursor.record, cursor.byte) + 1
        now_ms, pause_ms = self._service.now_ms(), 0
        if 0 < failures.max_attempts <= attempts:
            letter = dead_letter(subscription, asked, cursor, attempts, now_ms)
            code = (await self._service.call(self._service.group_of(letter.name), letter)).code
            if code < Code.NOT_FOUND:
                with _begun():
                    return await self._put_aside(subscription, fence, after, attempts)
            self._wakes.counters.failed += 1
            error += f" (the dead-letter stream refused the record: {Code(code).name})"
        pause_ms = pause_before(attempts) if asked.after_ms is None else asked.after_ms
        command = SubscriptionRetry(
            subscription.id,
            subscription.uid,
            now_ms,
            *fence,
            cursor.name,
            cursor.record,
            cursor.byte,
            now_ms + pause_ms,
            error,
        )
        reply = await self._service.call(self._wakes.owner_group_of(subscription.id), command)
        return await self._given_back(subscription, reply, attempts, pause_ms=pause_ms)

    async def _put_aside(
        self,
        subscription: Subscription,
        fence: tuple[int, str],
        after: tuple[str, int, int, int],
        attempts: int,
    ) -> OperationResult:
        """Move on from a record that is in the dead-letter stream. If a step fails, the record is
        given, and put aside, again."""
        await self._links.advance(subscription, [after])
        reply = await self._wakes.event(subscription, Event.DONE, fence, text=after[0])
        return await self._given_back(subscription, reply, attempts, is_dead=True)

    async def _given_back(
        self,
        subscription: Subscription,
        reply: Reply,
        attempts: int,
        *,
        pause_ms: int = 0,
        is_dead: bool = False,
    ) -> OperationResult:
        if reply.code != Code.OK:
            return _refused(reply)
        next_wake = False
        with suppress(Unavailable, OutcomeUnknown):  # the sweep finds pending work
            next_wake = await self._wakes.look(subscription)
        value = {
            "ok": True,
            "next_wake": next_wake,
            "attempts": attempts,
            "retry_after_ms": pause_ms,
            "dead_letter": is_dead,
        }
        return OperationResult(200, value)

    async def _worked(self, subscription: Subscription, asked: Work) -> OperationResult:
        """Check the fence in the log, then move the cursors, then release the lease if the work is
        done. A request for an older wake moves nothing. A retry after a crash between the steps
        finds the wake unchanged."""
        fence = (asked.generation or 0, asked.wake_id or "")
        if asked.verb != "release":
            reply = await self._wakes.event(subscription, Event.HEARTBEAT, fence)
            if reply.code != Code.OK:
                return _refused(reply)
            try:
                await self._links.acknowledge(subscription, asked.acks)
            except BadAck as reason:
                return refuse(409, "INVALID_OFFSET", str(reason))
        passed = passed_failure(
            subscription, [(name, parse_token(offset)) for name, offset in asked.acks]
        )
        if asked.verb != "release" and not asked.done:
            if passed:
                await self._wakes.event(subscription, Event.HEARTBEAT, fence, text=passed)
            return OperationResult(200, {"ok": True, "next_wake": False})
        with _begun() if asked.acks else nullcontext():
            reply = await self._wakes.event(subscription, Event.DONE, fence, text=passed)
        if reply.code != Code.OK:
            return _refused(reply)
        next_wake = False
        with suppress(Unavailable, OutcomeUnknown):  # the sweep finds pending work
            next_wake = await self._wakes.look(subscription)
        return (
            OperationResult(204)
            if asked.verb == "release"
            else OperationResult(200, {"ok": True, "next_wake": next_wake})
        )

    async def _judge_token(
        self, subscription: Subscription, asked: Work | RetryWork
    ) -> OperationResult | None:
        signer = await self._wakes.keys.signer()
        token = signer.read_token(asked.token)
        if token is None or token.id != subscription.id:
            return refuse(
                401, "TOKEN_INVALID", "the bearer token was not issued for this subscription"
            )
        if token.expires_ms <= self._service.now_ms():
            return refuse(401, "TOKEN_EXPIRED", "the bearer token has expired")
        if token.uid != subscription.uid or token.generation != asked.generation:
            return _FENCED
        return None

    async def _call(self, key: str, command: Any) -> Reply:
        owner_group = self._wakes.owner_group_of(key)
        reply = await self._service.call(owner_group, command)
        with _begun():
            # another node may have applied it: wait until this one has, too
            await self._service.local.linearize(owner_group)
        return reply


@contextmanager
def _begun() -> Iterator[None]:
    """Raise OutcomeUnknown instead of Unavailable: an earlier step was applied."""
    try:
        yield
    except Unavailable as fault:
        raise OutcomeUnknown(f"the operation was applied in part ({fault}); retry") from None


def _held(holder: str, generation: int) -> OperationResult:
    return refuse(
        409,
        "ALREADY_CLAIMED",
        "another worker has the lease",
        current_holder=worker_of(holder),
        generation=generation,
    )


def _refused(reply: Reply) -> OperationResult:
    return _NOT_FOUND if reply.code == Code.NOT_FOUND else _FENCED


def _wake_id() -> str:
    return "w_" + secrets.token_hex(12)
