"""The links of subscriptions to a group's streams: patterns, explicit links, cursors, and pending
records.

A pattern reaches every group before its PUT is answered, so a stream created later is linked at
creation, before its first append. A link is a field of its stream and is deleted with it. The
registration remembers which explicit links are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, cast

from polynya.base.limits import ATTEMPTS_REMEMBERED_MAX, SUBSCRIPTION_LAGS_MAX
from polynya.base.names import spelled_name
from polynya.stream.command import applies, level_of, needs
from polynya.stream.features.pages.eviction import needed_by
from polynya.stream.features.subscriptions.commands import (
    AckLinks,
    LinkSubscription,
    ResetLinks,
    UnlinkSubscription,
)
from polynya.stream.features.subscriptions.globs import compile_pattern, first_segment
from polynya.stream.features.subscriptions.state import (
    EXPLICIT,
    GLOB,
    Link,
    LinkInfo,
    Registration,
    State,
    Subscription,
    SubscriptionsImage,
    SubscriptionState,
    Watch,
)
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


# --- commands -------------------------------------------------------------------------------------


@applies(LinkSubscription)
def apply_link(machine: Machine, command: LinkSubscription, position: int) -> Reply:
    """Apply a link revision; existing streams are linked at their tails. Replies OK,
    ATTEMPT_REFUSED (the incarnation is over) or EVICTED."""
    state = machine.subscriptions
    watch = state.watches.get(command.id)
    if command.uid in state.dropped or (watch is not None and watch.registration.uid > command.uid):
        return Reply(Code.ATTEMPT_REFUSED, command.uid)
    news = (
        watch is None
        or watch.registration.uid < command.uid
        or watch.registration.revision < command.revision
    )
    if news and machine.directory.evicted and next(needed_by(machine, command), None) is not None:
        return Reply(Code.EVICTED, command.uid)
    if watch is not None and watch.registration.uid < command.uid:
        _drop(machine, watch)
        watch = None
    if watch is None:
        registration = Registration(
            command.id, command.uid, command.revision, command.pattern, command.without, {}
        )
        watch = _watch(state, registration)
        if command.pattern:
            for stream in machine.directory.streams.values():
                if not stream.deleted and watch.matches(stream.name):
                    _link(watch, stream, GLOB)
                    machine.changes.streams.add(stream.uid)
    elif command.revision <= watch.registration.revision:
        return Reply(Code.OK, command.uid)
    machine.changes.watched = True
    watch.registration.revision = command.revision
    _set_streams(machine, watch, dict.fromkeys(command.streams))
    return Reply(Code.OK, command.uid)


def _set_streams(machine: Machine, watch: Watch, wanted: dict[str, None]) -> None:
    state, key, known = machine.subscriptions, watch.registration.id, watch.registration.streams
    watch.registration.streams = wanted
    for name in [name for name in known if name not in wanted]:
        _discard(state.by_name, name, key)
        stream = machine.directory.streams.get(name)
        if stream is not None and stream.links and key in stream.links:
            _unlink(watch, stream, EXPLICIT)
            machine.changes.streams.add(stream.uid)
    for name in wanted:
        stream = machine.directory.streams.get(name)
        if name not in known:
            state.by_name.setdefault(name, {})[key] = None
            if stream is not None and not stream.deleted:
                _link(watch, stream, EXPLICIT)
                machine.changes.streams.add(stream.uid)


@applies(UnlinkSubscription)
def apply_unlink(machine: Machine, command: UnlinkSubscription, position: int) -> Reply:
    """End an incarnation of a subscription and drop its links."""
    state = machine.subscriptions
    machine.changes.watched = True
    state.dropped[command.uid] = None
    if len(state.dropped) > ATTEMPTS_REMEMBERED_MAX:
        del state.dropped[next(iter(state.dropped))]
    watch = state.watches.get(command.id)
    if watch is not None and watch.registration.uid <= command.uid:
        _drop(machine, watch)
    return Reply(Code.OK, command.uid)


@applies(AckLinks)
def apply_ack(machine: Machine, command: AckLinks, position: int) -> Reply:
    """Advance cursors. OK; the detail lists the refused names: the link no longer exists, or the
    position is beyond the tail."""
    watch = machine.subscriptions.watches.get(command.id)
    if watch is None or watch.registration.uid != command.uid:
        return Reply(Code.NOT_FOUND)
    refused = []
    for name, uid, record, byte in command.acks:
        stream = machine.directory.streams.get(name)
        link = (
            stream.links.get(command.id)
            if stream is not None and stream.links and stream.uid == uid
            else None
        )
        tail = stable_of(stream) if stream is not None else (0, 0)
        if stream is None or link is None or record > tail[0]:
            refused.append(name)
        elif (record, byte) > (link.record, link.byte):
            link.record, link.byte = record, min(byte, tail[1])
            machine.changes.streams.add(uid)
            if record == tail[0]:
                link.byte = tail[1]
                watch.pending.pop(stream.uid, None)
    return Reply(Code.OK, command.uid, detail=refused)


@applies(ResetLinks)
def apply_reset(machine: Machine, command: ResetLinks, position: int) -> Reply:
    """Set cursors, within the records that a stream keeps. OK; the detail lists the refused names:
    the link no longer exists, or the position is beyond the tail."""
    machine.counters.raise_level(level_of(ResetLinks))  # a standalone node gets no `SetLevel`
    watch = machine.subscriptions.watches.get(command.id)
    if watch is None or watch.registration.uid != command.uid:
        return Reply(Code.NOT_FOUND)
    refused = []
    for name, uid, record, byte in command.cursors:
        stream = machine.directory.streams.get(name)
        if stream is None or stream.uid != uid or command.id not in (stream.links or {}):
            refused.append(name)
            continue
        tail = stable_of(stream)
        if record > tail[0]:
            refused.append(name)
            continue
        assert stream.links is not None
        link = stream.links[command.id]
        first = (stream.first_record, stream.first_byte)
        place_at = max((record, min(byte, tail[1])), first)
        link.record, link.byte = tail if record == tail[0] else place_at
        machine.changes.streams.add(uid)
        watch.pending.pop(uid, None)
        if link.record < tail[0]:
            watch.pending[uid] = None
    return Reply(Code.OK, command.uid, detail=refused)


# --- called by the rules of streams ---------------------------------------------------------------


def link_created(state: SubscriptionState, stream: Stream) -> None:
    """Link a new stream, before its first append, to every subscription that matches. A fork's
    links begin at its fork point."""
    spelled = spelled_name(stream.name)
    for segment in ("", spelled.split("/", 1)[0]):
        for key in state.by_segment.get(segment, ()):
            watch = state.watches[key]
            if watch.matches(stream.name):
                _link(watch, stream, GLOB)
    named = (state.watches[key] for key in state.by_name.get(stream.name, ()))
    # no snapshot keeps the order in which the names were registered
    for watch in sorted(named, key=_life):
        _link(watch, stream, EXPLICIT)


def note_append(state: SubscriptionState, stream: Stream) -> None:
    """Mark the stream as pending, if readers see more than was acknowledged. A subscription without
    other pending streams in this group is notified."""
    stable = stable_of(stream)[0]
    for key, link in (stream.links or {}).items():
        if link.record >= stable:
            continue
        watch = state.watches[key]
        pending = watch.pending
        if stream.uid not in pending:
            if not pending:
                state.wakes[key] = (watch.registration.uid, stream.name)
            pending[stream.uid] = None


def note_trim(state: SubscriptionState, stream: Stream) -> None:
    """Advance cursors past the trimmed records."""
    first = (stream.first_record, stream.first_byte)
    for key, link in (stream.links or {}).items():
        link.record, link.byte = max((link.record, link.byte), first)
        if link.record >= stable_of(stream)[0]:
            state.watches[key].pending.pop(stream.uid, None)


def forget_stream(state: SubscriptionState, stream: Stream) -> None:
    """Remove the links of a stream that is being deleted."""
    for key in stream.links or ():
        watch = state.watches[key]
        watch.linked.pop(stream.uid, None)
        watch.pending.pop(stream.uid, None)
    stream.links = None


# --- queries --------------------------------------------------------------------------------------


def oldest_links(machine: Machine, key: str, uid: int, limit: int) -> list[LinkInfo]:
    """Return at most `limit` links: pending ones first, longest waiting first, then the others."""
    watch = machine.subscriptions.watches.get(key)
    if watch is None or watch.registration.uid != uid:
        return []
    found: list[LinkInfo] = []
    for stream_uid in watch.pending:
        if len(found) == limit:
            return found
        found.append(_info(machine.directory.by_uid[stream_uid], key))
    for stream_uid in watch.linked:
        if len(found) == limit:
            return found
        if stream_uid not in watch.pending:
            found.append(_info(machine.directory.by_uid[stream_uid], key))
    return (found + list(_missing(machine, watch)))[:limit]


def page_of_links(machine: Machine, key: str, uid: int, after: str, limit: int) -> list[LinkInfo]:
    """Return the first `limit` links by spelled name after `after`."""
    watch = machine.subscriptions.watches.get(key)
    if watch is None or watch.registration.uid != uid:
        return []
    names = {
        machine.directory.by_uid[stream_uid].name for stream_uid in watch.linked
    } | watch.registration.streams.keys()
    page = nsmallest(
        limit, (name for name in names if spelled_name(name) > after), key=spelled_name
    )
    return [_info_of(machine, name, key) for name in page]


def named_links(machine: Machine, key: str, uid: int, names: list[str]) -> list[LinkInfo]:
    """Return the links among these stream names."""
    watch = machine.subscriptions.watches.get(key)
    if watch is None or watch.registration.uid != uid:
        return []
    found = (_info_of(machine, name, key) for name in names)
    return [info for info in found if info.kinds]


def lag_of(machine: Machine, key: str) -> int:
    """Return the number of records here that a subscription has not acknowledged, of its first
    `SUBSCRIPTION_LAGS_MAX` pending streams."""
    watch = machine.subscriptions.watches.get(key)
    pending = () if watch is None else islice(watch.pending, SUBSCRIPTION_LAGS_MAX)
    return sum(_info(machine.directory.by_uid[uid], key).lag for uid in pending)


def pending_watches(machine: Machine) -> list[tuple[str, int, str]]:
    """Return (id, uid, a stream) of every subscription with pending records here; the repair job
    notifies them again."""
    return [
        (key, watch.registration.uid, machine.directory.by_uid[next(iter(watch.pending))].name)
        for key, watch in machine.subscriptions.watches.items()
        if watch.pending
    ]


def _missing(machine: Machine, watch: Watch) -> Iterator[LinkInfo]:
    """Yield the explicit links of streams that do not exist."""
    for name in watch.registration.streams:
        stream = machine.directory.streams.get(name)
        if stream is None or stream.links is None or watch.registration.id not in stream.links:
            yield LinkInfo(name, EXPLICIT, 0, 0)


def _info_of(machine: Machine, name: str, key: str) -> LinkInfo:
    stream = machine.directory.streams.get(name)
    if stream is not None and stream.links and key in stream.links:
        return _info(stream, key)
    wanted = name in machine.subscriptions.watches[key].registration.streams
    return LinkInfo(name, EXPLICIT if wanted else 0, 0, 0)


def _info(stream: Stream, key: str) -> LinkInfo:
    assert stream.links is not None
    link = stream.links[key]
    return LinkInfo(
        stream.name,
        link.kinds,
        link.record,
        link.byte,
        *stable_of(stream),
        stream.uid,
    )


# --- state ----------------------------------------------------------------------------------------


def encode_image(state: SubscriptionState) -> SubscriptionsImage:
    """Return the state as snapshots contain it."""
    registrations = [watch.registration for watch in state.watches.values()]
    owned = cast("list[Subscription]", [each.written() for each in state.owned.values()])
    return SubscriptionsImage(
        owned, list(state.graves.values()), registrations, list(state.dropped)
    )


def decode_image(machine: Machine, image: SubscriptionsImage) -> None:
    """Restore the state after the streams are in place; derived sets are recomputed."""
    state = machine.subscriptions
    state.owned = {subscription.id: subscription for subscription in image.owned}
    state.graves = {grave.uid: grave for grave in image.graves}
    state.dropped = dict.fromkeys(image.dropped)
    state.awake = {
        key: None for key, subscription in state.owned.items() if subscription.state != State.IDLE
    }
    for registration in image.registrations:
        _watch(state, registration)
    for stream in machine.directory.streams.values():
        for key, link in (stream.links or {}).items():
            watch = state.watches[key]
            watch.linked[stream.uid] = None
            if stable_of(stream)[0] > link.record:
                watch.pending[stream.uid] = None


def _watch(state: SubscriptionState, registration: Registration) -> Watch:
    pattern, without = registration.pattern, registration.without
    matches = compile_pattern(pattern) if pattern else _never
    watch = Watch(registration, lambda name: name != without and matches(name))
    state.watches[registration.id] = watch
    if pattern:
        state.by_segment.setdefault(first_segment(pattern), {})[registration.id] = None
    for name in registration.streams:
        state.by_name.setdefault(name, {})[registration.id] = None
    return watch


def _life(watch: Watch) -> int:
    return watch.registration.uid


def _never(name: str) -> bool:
    return False


def _drop(machine: Machine, watch: Watch) -> None:
    state, registration = machine.subscriptions, watch.registration
    for uid in watch.linked:
        _forget_link(machine.directory.by_uid[uid], registration.id)
        machine.changes.streams.add(uid)
    del state.watches[registration.id]
    state.wakes.pop(registration.id, None)
    if registration.pattern:
        _discard(state.by_segment, first_segment(registration.pattern), registration.id)
    for name in registration.streams:
        _discard(state.by_name, name, registration.id)


def _discard(index: dict[str, dict[str, None]], entry: str, key: str) -> None:
    del index[entry][key]
    if not index[entry]:
        del index[entry]


def _link(watch: Watch, stream: Stream, kind: int) -> None:
    if stream.links is None:
        stream.links = {}
    link = stream.links.get(watch.registration.id)
    if link is None:
        stream.links[watch.registration.id] = Link(kind, *stable_of(stream))
        watch.linked[stream.uid] = None
    else:
        link.kinds |= kind


def _unlink(watch: Watch, stream: Stream, kind: int) -> None:
    assert stream.links is not None
    link = stream.links[watch.registration.id]
    link.kinds &= ~kind
    if not link.kinds:
        _forget_link(stream, watch.registration.id)
        watch.linked.pop(stream.uid, None)
        watch.pending.pop(stream.uid, None)


def _forget_link(stream: Stream, key: str) -> None:
    assert stream.links is not None
    del stream.links[key]
    stream.links = stream.links or None


@needs(LinkSubscription)
def _watched_by(machine: Machine, command: LinkSubscription) -> Iterator[str]:
    watch = machine.subscriptions.watches.get(command.id)
    known = (
        watch.registration.streams
        if watch is not None and watch.registration.uid == command.uid
        else {}
    )
    yield from (name for name in command.streams if name not in known)
    if command.pattern and (watch is None or watch.registration.uid < command.uid):
        matches = compile_pattern(command.pattern)
        yield from (
            name for name in machine.directory.evicted if name != command.without and matches(name)
        )
