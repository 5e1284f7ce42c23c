"""The end of streams: TTL and Expires-At, deletion, and releasing a deleted stream's resources."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from polynya.base.names import companion_of
from polynya.stream.command import applies
from polynya.stream.features.attributes.held import hold
from polynya.stream.features.forks.commands import Unpin
from polynya.stream.features.lifetimes.commands import Delete, Expire, Touch
from polynya.stream.features.retention.trimming import (
    past_of,
    release_past,
    release_trimmed,
    tidy,
)
from polynya.stream.features.subscriptions.links import forget_stream
from polynya.stream.features.tables.watches import count_lost, held_from
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.effects import TailMoved
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

TOUCH_GRACE_MS_MAX = 60_000  # reads extend a sliding TTL, and are logged at least this often


def is_expired(stream: Stream, now_ms: int, touched_ms: int = 0) -> bool:
    """Report whether the stream has expired. `touched_ms`: a read that is not yet in the log."""
    if stream.expires_at_ms is not None:
        return now_ms >= stream.expires_at_ms
    if stream.ttl_seconds is None:
        return False
    return now_ms >= max(stream.activity_ms, touched_ms) + stream.ttl_seconds * 1000


def is_surely_expired(stream: Stream, now_ms: int) -> bool:
    """Report whether the stream has expired even if it was read as late as an unlogged read can
    be."""
    ttl_seconds = stream.ttl_seconds
    if ttl_seconds is None:
        return stream.expires_at_ms is not None and now_ms >= stream.expires_at_ms
    return is_expired(stream, now_ms - min(ttl_seconds * 125, TOUCH_GRACE_MS_MAX))


def tail_reply(code: Code, stream: Stream) -> Reply:
    """Return a reply with the stream's uid and the end of what readers see."""
    return Reply(code, stream.uid, *stable_of(stream), stream.closed)


@applies(Delete)
def apply_delete(machine: Machine, command: Delete, position: int) -> Reply:
    """Delete a stream. Refusals: NOT_FOUND, GONE, INCARNATION, EVICTED."""
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if is_surely_expired(stream, command.now_ms):
        return Reply(Code.NOT_FOUND)
    if command.incarnation and command.incarnation != stream.uid:
        return tail_reply(Code.INCARNATION, stream)
    reply = tail_reply(Code.OK, stream)
    release(machine, stream, command.now_ms)
    _note_gone(machine, reply)
    return reply


@applies(Expire)
def apply_expire(machine: Machine, command: Expire, position: int) -> Reply:
    """Delete a stream whose time has passed. Refusals: ACTIVE, HELD (by a table), NOT_FOUND, GONE,
    EVICTED."""
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    if stream.uid != command.uid:
        return Reply(Code.NOT_FOUND)
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if not is_expired(stream, command.now_ms) or (
        stream.expires_at_ms is None and stream.activity_ms > command.activity_ms
    ):
        return tail_reply(Code.ACTIVE, stream)
    if held_from(machine, stream) is not None:
        return tail_reply(Code.HELD, stream)
    reply = tail_reply(Code.OK, stream)
    release(machine, stream, command.now_ms)
    _note_gone(machine, reply)
    return reply


def _note_gone(machine: Machine, reply: Reply) -> None:
    if reply.uid in machine.tails.watched:
        at = (reply.record, reply.byte)
        machine.tails.effects.append(TailMoved(reply.uid, *at, *at, gone=True))


@applies(Touch)
def apply_touch(machine: Machine, command: Touch, position: int) -> Reply:
    """Advance the activity times of streams that were read."""
    for uid, read_ms in command.touches:
        stream = machine.directory.by_uid.get(uid)
        if stream is not None:
            stream.activity_ms = max(stream.activity_ms, min(read_ms, command.now_ms))
            machine.changes.streams.add(uid)
    return Reply(Code.OK)


def release(machine: Machine, stream: Stream, now_ms: int) -> None:
    """Delete the stream: softly while forks need it, else at once."""
    machine.changes.streams.add(stream.uid)
    count_lost(machine, stream)
    hold(machine, stream, None)
    _drop_snapshots(machine, stream, now_ms)
    if stream.links is not None:
        forget_stream(machine.subscriptions, stream)
    if stream.pins:
        stream.deleted = True
        if stream.kafka is not None:
            stream.kafka.open = {}  # what forks inherit is decided
            machine.directory.undecided.pop(stream.uid, None)
        cut_to_pins(machine, stream, now_ms)
    else:
        remove(machine, stream, now_ms)


def _drop_snapshots(machine: Machine, stream: Stream, now_ms: int) -> None:
    """Drop the snapshots of a stream, and the companion that has their bodies."""
    if stream.uid in machine.directory.marked:
        del machine.directory.marked[stream.uid]
        assert stream.extras is not None
        stream.extras.marks = None
        tidy(stream)
    companion = machine.directory.streams.get(companion_of(stream.name))
    if companion is not None:
        machine.changes.streams.add(companion.uid)
        remove(machine, companion, now_ms)


def cut_to_pins(machine: Machine, stream: Stream, now_ms: int) -> None:
    """Cut a soft-deleted stream to the records that its forks inherit; its tail becomes their
    end."""
    assert stream.deleted
    assert stream.pins
    needed = max(pin.record + (pin.prefix > 0) for pin in stream.pins.values())
    hot = stream.hot or []
    kept = bisect_left(hot, needed, key=attrgetter("record"))
    if kept < len(hot):
        machine.directory.hot_bytes -= stream.next_byte - hot[kept].byte
        stream.next_record, stream.next_byte = hot[kept].record, hot[kept].byte
        stream.hot = hot[:kept] or None
        if stream.hot is None:
            del machine.directory.hot[stream.uid]
    first = index.first_from(stream.cold, needed)
    if stream.cold is not None and not stream.hot and first < index.count(stream.cold):
        stream.next_record, stream.next_byte = index.begin_of(stream.cold, first)
        for number in reversed(index.pack_numbers(stream.cold, first)):
            machine.packs.drop_slice(number, now_ms)
        stream.cold = index.before(stream.cold, first) or None
    if past_of(stream):
        release_trimmed(machine, stream, now_ms)


def remove(machine: Machine, stream: Stream, now_ms: int) -> None:
    """Remove a stream that nothing needs: its payload, its references to packs, its pin on a
    source."""
    assert not stream.pins
    directory = machine.directory
    directory.remove(stream)
    machine.changes.gone(stream.uid)
    if stream.hot:
        directory.hot_bytes -= stream.next_byte - stream.hot[0].byte
        del directory.hot[stream.uid]
    for number in index.pack_numbers(stream.cold):
        machine.packs.drop_slice(number, now_ms)
    release_past(machine, stream, now_ms)
    directory.retaining.pop(stream.uid, None)
    directory.leased.pop(stream.uid, None)
    directory.compacted.pop(stream.uid, None)
    machine.diskless.remove(stream)
    fork = stream.fork
    if fork is None:
        return
    # the attempt succeeded: a late repeat must not create the fork again
    machine.forks.refuse(fork.attempt)
    if stream.extras is None or not stream.extras.detached:
        machine.outbox.send(fork.source_uid >> 48, Unpin(fork.source_uid, fork.attempt, now_ms))
