"""Subscriptions in their owner group: life cycle, membership, and the state transition table that
fences every worker.

The watched links live in the streams' groups (`subscriptions/links.py`). A wake starts only from
IDLE. Each transition to IDLE is followed by a check of the links, which finds records appended in
the meantime. Later appends are notified by the streams' groups. So no wake is lost permanently,
although notifications are volatile.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

from polynya.base.limits import (
    ATTEMPTS_REMEMBERED_MAX,
    SUBSCRIPTION_STREAMS_MAX,
    SUBSCRIPTIONS_PER_GROUP_MAX,
)
from polynya.stream.command import applies, level_of
from polynya.stream.features.subscriptions.commands import (
    ForgetFailure,
    SubscriptionDelete,
    SubscriptionEvent,
    SubscriptionLinked,
    SubscriptionPut,
    SubscriptionPutLimited,
    SubscriptionRetry,
    SubscriptionStreams,
)
from polynya.stream.features.subscriptions.state import (
    NO_FAILURES,
    Failures,
    State,
    Subscription,
    Tombstone,
)
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

WEBHOOK = 0
PULL_WAKE = 1


class Event(enum.IntEnum):
    """The events of a subscription. All but WAKE and CLAIM are fenced by generation and wake id."""

    WAKE = 1  # there is pending work
    CLAIM = 2  # a worker wants the lease (pull-wake)
    HEARTBEAT = 3  # the worker is alive
    DONE = 4  # the worker has finished or gives up: release
    DELIVERED = 5  # the webhook accepted the wake, or the wake stream has it
    FAILED = 6  # the delivery failed
    EXPIRE = 7  # the lease has expired
    NOTHING = 8  # the wake was checked and nothing is pending (any more)


@applies(SubscriptionPut)
def apply_put(machine: Machine, command: SubscriptionPut, position: int) -> Reply:
    """Create or confirm a subscription: CREATED, EXISTS, EXISTS_DIFFERENT or TOO_MANY. The reply's
    uid is that of this incarnation."""
    return _put(machine, command, NO_FAILURES)


@applies(SubscriptionPutLimited)
def apply_put_limited(machine: Machine, command: SubscriptionPutLimited, position: int) -> Reply:
    """Create or confirm a subscription with a limit of attempts. Replies as `apply_put`."""
    machine.counters.raise_level(_LEVEL)  # a standalone node gets no `SetLevel`
    return _put(machine, command, Failures(command.max_attempts, command.dead_letter))


def _put(
    machine: Machine, command: SubscriptionPut | SubscriptionPutLimited, failures: Failures
) -> Reply:
    owned = machine.subscriptions.owned
    known = owned.get(command.id)
    if known is not None:
        if known.config != command.config or _limit(known.failures) != _limit(failures):
            return Reply(Code.EXISTS_DIFFERENT, known.uid)
        known.base_url = command.base_url
        machine.changes.subscriptions.add(command.id)
        return Reply(Code.EXISTS, known.uid)
    if len(owned) >= SUBSCRIPTIONS_PER_GROUP_MAX:
        return Reply(Code.TOO_MANY)
    streams = dict.fromkeys(command.config.streams)
    subscription = Subscription(
        command.id,
        machine.counters.next_uid(),
        command.config,
        command.base_url,
        command.now_ms,
        streams,
        failures=failures,
    )
    owned[command.id] = subscription
    machine.changes.subscriptions.add(command.id)
    return Reply(Code.CREATED, subscription.uid)


def _limit(failures: Failures) -> tuple[int, str]:
    return failures.max_attempts, failures.dead_letter


@applies(SubscriptionStreams)
def apply_streams(machine: Machine, command: SubscriptionStreams, position: int) -> Reply:
    """Change the explicit links: OK after a change, EXISTS without one, NOT_FOUND, TOO_MANY."""
    subscription = machine.subscriptions.owned.get(command.id)
    if subscription is None:
        return Reply(Code.NOT_FOUND)
    streams = subscription.streams.copy()
    for name in command.remove:
        streams.pop(name, None)
    streams.update(dict.fromkeys(command.add))
    if len(streams) > SUBSCRIPTION_STREAMS_MAX:
        return Reply(Code.TOO_MANY, subscription.uid)
    if streams.keys() == subscription.streams.keys():
        return Reply(Code.EXISTS, subscription.uid)
    subscription.streams = streams
    machine.changes.subscriptions.add(command.id)
    subscription.revision += 1
    return Reply(Code.OK, subscription.uid)


@applies(SubscriptionDelete)
def apply_delete(machine: Machine, command: SubscriptionDelete, position: int) -> Reply:
    """Delete a subscription and keep a tombstone until every group has dropped its links."""
    state = machine.subscriptions
    subscription = state.owned.pop(command.id, None)
    if subscription is None:
        return Reply(Code.NOT_FOUND)
    machine.changes.subscriptions.add(command.id)
    machine.changes.watched = True
    state.awake.pop(command.id, None)
    state.graves[subscription.uid] = Tombstone(command.id, subscription.uid)
    while len(state.graves) > ATTEMPTS_REMEMBERED_MAX:
        del state.graves[next(iter(state.graves))]
    return Reply(Code.OK, subscription.uid)


@applies(SubscriptionLinked)
def apply_linked(machine: Machine, command: SubscriptionLinked, position: int) -> Reply:
    """Record the link revision that every group has applied, or drop the tombstone."""
    state = machine.subscriptions
    if state.graves.pop(command.uid, None) is not None:
        machine.changes.watched = True
        return Reply(Code.OK, command.uid)
    subscription = state.owned.get(command.id)
    if subscription is None or subscription.uid != command.uid:
        return Reply(Code.NOT_FOUND)
    machine.changes.subscriptions.add(command.id)
    subscription.linked = max(subscription.linked, command.revision)
    return Reply(Code.OK, command.uid)


@applies(SubscriptionEvent)
def apply_event(machine: Machine, command: SubscriptionEvent, position: int) -> Reply:
    """Apply an event. OK: it took effect; the detail is [generation, wake id, holder]. NOT_FOUND:
    another incarnation, or none. HELD: leased to the detail's holder. FENCED: of an older wake, or
    not allowed in this state. ACTIVE: a wake is in flight, or a lease still runs."""
    state = machine.subscriptions
    subscription = state.owned.get(command.id)
    if subscription is None or (command.uid and command.uid != subscription.uid):
        return Reply(Code.NOT_FOUND)
    machine.changes.subscriptions.add(command.id)
    if command.event not in _UNFENCED and (command.generation, command.wake_id) != (
        subscription.generation,
        subscription.wake_id,
    ):
        code = Code.FENCED
    else:
        rule = _TABLE.get((subscription.state, subscription.config.kind, command.event))
        code = (
            rule(subscription, command)
            if rule is not None
            else _NOT_TAKEN.get(command.event, Code.FENCED)
        )
    if subscription.state == State.IDLE:
        state.awake.pop(command.id, None)
    else:
        state.awake[command.id] = None
    return Reply(
        code,
        subscription.uid,
        detail=[subscription.generation, subscription.wake_id, subscription.holder],
    )


@applies(SubscriptionRetry)
def apply_retry(machine: Machine, command: SubscriptionRetry, position: int) -> Reply:
    """End a wake with a failed record: OK, NOT_FOUND or FENCED, as for an event. It is another
    attempt if the same record failed last."""
    machine.counters.raise_level(_LEVEL)
    state = machine.subscriptions
    subscription = state.owned.get(command.id)
    if subscription is None or command.uid != subscription.uid:
        return Reply(Code.NOT_FOUND)
    fence = (subscription.generation, subscription.wake_id)
    held = (subscription.state, subscription.config.kind) in _HELD
    if not held or (command.generation, command.wake_id) != fence:
        return Reply(Code.FENCED, subscription.uid)
    machine.changes.subscriptions.add(command.id)
    failures = subscription.failures
    subscription.failures = Failures(
        *_limit(failures),
        failures.attempts_at(command.stream, command.record, command.byte) + 1,
        command.stream,
        command.record,
        command.byte,
        command.until_ms,
        command.error,
    )
    _finish(subscription)
    state.awake.pop(command.id, None)
    return Reply(Code.OK, subscription.uid)


@applies(ForgetFailure)
def apply_forget_failure(machine: Machine, command: ForgetFailure, position: int) -> Reply:
    """Forget the failed record of a stream: OK, also when another one or none has failed last.
    NOT_FOUND as for an event. A wake that waits for the end of the pause goes on waiting."""
    machine.counters.raise_level(_LEVEL)
    subscription = machine.subscriptions.owned.get(command.id)
    if subscription is None or command.uid != subscription.uid:
        return Reply(Code.NOT_FOUND)
    if subscription.failures.attempts and subscription.failures.stream == command.stream:
        machine.changes.subscriptions.add(command.id)
        subscription.failures = Failures(*_limit(subscription.failures))
    return Reply(Code.OK, subscription.uid)


def _wake(subscription: Subscription, command: SubscriptionEvent) -> Code:
    """Start a wake. A webhook's lease begins now, or at the time of an earlier scheduled retry: the
    schedule outlives the wake."""
    subscription.state = State.WAKING
    subscription.generation += 1
    subscription.wake_id = command.wake_id
    subscription.stream = command.text
    subscription.next_attempt_ms = max(
        subscription.next_attempt_ms, command.now_ms, subscription.failures.until_ms
    )
    if subscription.config.kind == WEBHOOK:
        subscription.lease_until_ms = (
            subscription.next_attempt_ms + subscription.config.lease_ttl_ms
        )
    return Code.OK


def _claim(subscription: Subscription, command: SubscriptionEvent) -> Code:
    if subscription.state == State.LEASED and command.now_ms < subscription.lease_until_ms:
        return Code.HELD
    if command.now_ms < subscription.failures.until_ms:
        return Code.NOT_YET
    if subscription.state != State.WAKING:
        subscription.generation += 1
        subscription.wake_id = command.wake_id
    subscription.state = State.LEASED
    subscription.holder = command.text
    subscription.attempts = subscription.next_attempt_ms = 0
    return _extend(subscription, command)


def _extend(subscription: Subscription, command: SubscriptionEvent) -> Code:
    subscription.lease_until_ms = command.now_ms + subscription.config.lease_ttl_ms
    return Code.OK


def _heartbeat(subscription: Subscription, command: SubscriptionEvent) -> Code:
    _forget_failure(subscription, command)
    return _extend(subscription, command)


def _forget_failure(subscription: Subscription, command: SubscriptionEvent) -> None:
    """Forget the failed record if the event says that the cursor of its stream has passed it."""
    if command.text and command.text == subscription.failures.stream:
        subscription.failures = Failures(*_limit(subscription.failures))


def _rest(subscription: Subscription, command: object = None) -> Code:
    """Return to IDLE: the wake is over, and its id is no longer valid."""
    subscription.state = State.IDLE
    subscription.wake_id = subscription.holder = subscription.stream = ""
    subscription.lease_until_ms = 0
    if not subscription.attempts:
        subscription.next_attempt_ms = 0
    return Code.OK


def _done(subscription: Subscription, command: SubscriptionEvent) -> Code:
    _forget_failure(subscription, command)
    return _finish(subscription)


def _finish(subscription: Subscription) -> Code:
    subscription.attempts = subscription.next_attempt_ms = 0
    return _rest(subscription)


def _expire(subscription: Subscription, command: SubscriptionEvent) -> Code:
    return (
        _rest(subscription, command)
        if command.now_ms >= subscription.lease_until_ms
        else Code.ACTIVE
    )


def _delivered(subscription: Subscription, command: SubscriptionEvent) -> Code:
    """Record a delivery. It proves that the webhook's endpoint is alive, so the lease starts over.
    An unclaimed wake event is announced again at `until_ms`."""
    subscription.attempts = 0
    subscription.next_attempt_ms = command.until_ms
    if subscription.config.kind == WEBHOOK:
        subscription.state = State.LEASED
        return _extend(subscription, command)
    return Code.OK


def _failed(subscription: Subscription, command: SubscriptionEvent) -> Code:
    """Schedule the next attempt; a webhook's lease begins with it."""
    subscription.attempts += 1
    subscription.next_attempt_ms = command.until_ms
    if subscription.config.kind == WEBHOOK:
        subscription.lease_until_ms = command.until_ms + subscription.config.lease_ttl_ms
    return Code.OK


_LEVEL = level_of(SubscriptionRetry)
_UNFENCED = frozenset([Event.WAKE, Event.CLAIM])
_NOT_TAKEN: dict[int, Code] = {Event.WAKE: Code.ACTIVE}
_TABLE: dict[tuple[int, int, int], Callable[[Subscription, SubscriptionEvent], Code]] = {
    (State.IDLE, WEBHOOK, Event.WAKE): _wake,
    (
        State.WAKING,
        WEBHOOK,
        Event.HEARTBEAT,
    ): _heartbeat,  # the callback may arrive before the webhook's response
    (State.WAKING, WEBHOOK, Event.DELIVERED): _delivered,
    (State.WAKING, WEBHOOK, Event.FAILED): _failed,
    (State.WAKING, WEBHOOK, Event.DONE): _done,
    (State.WAKING, WEBHOOK, Event.EXPIRE): _expire,
    (State.WAKING, WEBHOOK, Event.NOTHING): _rest,
    (State.LEASED, WEBHOOK, Event.HEARTBEAT): _heartbeat,
    (State.LEASED, WEBHOOK, Event.DONE): _done,
    (State.LEASED, WEBHOOK, Event.EXPIRE): _expire,
    (State.IDLE, PULL_WAKE, Event.WAKE): _wake,
    (State.IDLE, PULL_WAKE, Event.CLAIM): _claim,
    (State.WAKING, PULL_WAKE, Event.CLAIM): _claim,
    (State.WAKING, PULL_WAKE, Event.DELIVERED): _delivered,
    (State.WAKING, PULL_WAKE, Event.FAILED): _failed,
    (State.WAKING, PULL_WAKE, Event.NOTHING): _rest,
    (State.LEASED, PULL_WAKE, Event.CLAIM): _claim,
    (State.LEASED, PULL_WAKE, Event.HEARTBEAT): _heartbeat,
    (State.LEASED, PULL_WAKE, Event.DONE): _done,
    (State.LEASED, PULL_WAKE, Event.EXPIRE): _expire,
}
# where a worker may report a failed record: a callback may arrive before the webhook's response
_HELD = frozenset([(State.LEASED, PULL_WAKE), (State.LEASED, WEBHOOK), (State.WAKING, WEBHOOK)])
