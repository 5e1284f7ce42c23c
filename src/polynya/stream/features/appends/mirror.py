"""Batches of another Kafka at their own offsets: the rules of `MirrorBatch` and `MirrorGap`.

The offset takes the place of a producer's sequence: what ends at or before the tail is a repeat,
and what the sender has not sent before cannot be skipped, as each command says where its sender
was. So a mirror that dies goes on from the tail, and a command that is lost leaves no gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.stream.command import applies, level_of
from polynya.stream.features.appends.commands import MirrorBatch, MirrorGap
from polynya.stream.features.appends.rules import AddBatch, add_batch, tail_moved
from polynya.stream.features.lifetimes.rules import is_surely_expired, tail_reply
from polynya.stream.features.profiles.rules import judge_logged
from polynya.stream.features.subscriptions.links import note_append
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code, Reply
from polynya.stream.state.effects import TailMoved
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import is_stable

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_LEVEL = level_of(MirrorBatch)


@applies(MirrorBatch)
def apply_mirror_batch(
    machine: Machine, command: MirrorBatch, position: int, add: AddBatch = add_batch
) -> Reply:
    """Append a batch at its offset: OK, or DUPLICATE for a repeat. `add` as in `apply_append`.

    Refusals: NOT_FOUND, EVICTED, GONE, INCARNATION, CLOSED, CONTENT_TYPE, WRONG_PROFILE, NOT_YET,
    OFFSET_BEYOND_TAIL (something before it is missing), PRECONDITION (the tail is inside it),
    UNSTABLE (a transaction is open)."""
    machine.counters.raise_level(_LEVEL)  # a standalone node gets no `SetLevel`
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    batch = command.batch
    reply = judge_mirrored(stream, command)
    if reply is None and machine.diskless.streams and add is add_batch:
        reply = judge_logged(machine, stream, batch)
    if reply is not None:
        return reply
    machine.changes.streams.add(stream.uid)
    before = stream.next_record
    stream.next_record = command.record
    size = add(machine, stream, command, batch, position)
    stream.activity_ms = command.now_ms
    if stream.uid in machine.tails.watched:
        live = batch if add is add_batch and before == command.record else None
        moved = tail_moved(stream, live, before, size, time_ms=command.now_ms)
        machine.tails.effects.append(moved)
    return _reply(Code.OK, stream, command.record)


def judge_mirrored(stream: Stream, command: MirrorBatch) -> Reply | None:
    """Return the refusal of a batch or the reply to a repeat; None: it may be appended. Changes
    nothing."""
    reply = _judge(stream, command)
    if reply is not None:
        return reply
    if command.record + command.batch.records <= stream.next_record:
        return _reply(Code.DUPLICATE, stream, command.record)
    if command.begin > stream.next_record:
        return tail_reply(Code.OFFSET_BEYOND_TAIL, stream)
    return tail_reply(Code.PRECONDITION, stream) if command.record < stream.next_record else None


@applies(MirrorGap)
def apply_mirror_gap(machine: Machine, command: MirrorGap, position: int) -> Reply:
    """Move the tail over numbers that no record has: OK, or DUPLICATE if it is there. With `first`
    the start of a stream that never had a record moves to `end` too; another is left as it is.

    Refusals: those of `MirrorBatch`."""
    machine.counters.raise_level(_LEVEL)
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    reply = _judge(stream, command)
    if reply is not None:
        return reply
    is_new = not stream.next_record
    if command.end <= stream.next_record or (command.first and not is_new):
        return tail_reply(Code.DUPLICATE, stream)
    if command.begin > stream.next_record and not command.first:
        return tail_reply(Code.OFFSET_BEYOND_TAIL, stream)
    before = stream.next_record, stream.next_byte
    machine.changes.streams.add(stream.uid)
    stream.next_record, stream.activity_ms = command.end, command.now_ms
    if command.first:
        stream.first_record = command.end
    if stream.links is not None:
        note_append(machine.subscriptions, stream)
    if stream.uid in machine.tails.watched:
        after = stream.next_record, stream.next_byte
        machine.tails.effects.append(
            TailMoved(stream.uid, *before, *after, first_record=stream.first_record)
        )
    return tail_reply(Code.OK, stream)


def _judge(stream: Stream, command: MirrorBatch | MirrorGap) -> Reply | None:
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if is_surely_expired(stream, command.now_ms):
        return Reply(Code.NOT_FOUND)
    if command.uid and command.uid != stream.uid:
        return tail_reply(Code.INCARNATION, stream)
    if stream.closed:
        return tail_reply(Code.CLOSED, stream)
    if stream.encoding != Encoding.KAFKA:
        reply = tail_reply(Code.CONTENT_TYPE, stream)
        reply.detail = stream.content_type
        return reply
    return None if is_stable(stream) else tail_reply(Code.UNSTABLE, stream)


def _reply(code: Code, stream: Stream, record: int) -> Reply:
    tail, end = stream.next_record, stream.next_byte
    return Reply(code, stream.uid, tail, end, stream.closed, first_record=record)
