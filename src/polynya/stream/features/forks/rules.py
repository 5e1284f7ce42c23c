"""Forks: a protocol of idempotent commands between two groups. The rules of both sides are here; an
outside coordinator drives them.

The source's group pins the fork point, the target's group creates, the source's group confirms. To
give up, first have the target's group refuse the attempt, and only then unpin. A deleted fork sends
its unpin through the outbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from polynya.base.limits import FORK_DEPTH_MAX, RAW_STEP_BYTES
from polynya.stream.command import applies, level_of
from polynya.stream.features.appends.rules import media_type, other_type
from polynya.stream.features.forks.commands import (
    Acknowledge,
    AcknowledgeAll,
    ConfirmPin,
    PinSource,
    RefuseAttempt,
    Unpin,
)
from polynya.stream.features.lifetimes.rules import (
    cut_to_pins,
    is_surely_expired,
    remove,
    tail_reply,
)
from polynya.stream.features.marks.held import covers, marks_of
from polynya.stream.features.retention.trimming import release_trimmed
from polynya.stream.features.transactions.rules import acknowledged
from polynya.stream.parts import Encoding
from polynya.stream.read_plan import AT_BYTE, ReadRefused, locate
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index, record_gaps
from polynya.stream.state.model import Pin, Stream
from polynya.stream.state.profile_epochs import profile_of
from polynya.stream.state.tails import stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


class ForkPoint(msgspec.Struct, frozen=True, gc=False):
    """The boundary where a fork begins, plus `prefix`: the inherited bytes of the record there."""

    record: int
    byte: int
    prefix: int = 0


@applies(PinSource)
def apply_pin_source(machine: Machine, command: PinSource, position: int) -> Reply:
    """Pin the fork point. The reply's detail: [record, byte, content type, encoding, TTL seconds,
    Expires-At ms, depth of the fork, prefix bytes, first kept record that the fork inherits, its
    byte]. The profile of a stream that is not replicated follows.

    NOT_YET: the point lies in cold slices or in an ancestor. Read the stream to find the record's
      boundary, then retry with `resolved`."""
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    pin = stream.pins.get(command.attempt) if stream.pins else None
    if pin is None:
        found = _judge_pin(stream, command)
        if isinstance(found, Reply):
            return found
        first_record = min(stream.first_record, found.record)
        pin = Pin(
            command.target_name,
            found.record,
            found.byte,
            command.now_ms,
            found.prefix,
            first_record=first_record,
        )
        if stream.pins is None:
            stream.pins = {}
        stream.pins[command.attempt] = pin
        machine.forks.unconfirmed[command.attempt] = stream.uid
        machine.changes.streams.add(stream.uid)
    reply = tail_reply(Code.OK, stream)
    lifetime = [stream.ttl_seconds, stream.expires_at_ms]
    first = min((stream.first_record, stream.first_byte), (pin.record, pin.byte))
    reply.detail = [
        pin.record,
        pin.byte,
        stream.content_type,
        stream.encoding,
        *lifetime,
        _depth(stream) + 1,
        pin.prefix,
        *first,
    ]
    if profile := profile_of(stream):  # only nodes of level 3 have such streams
        reply.detail.append(profile)
    return reply


def _judge_pin(stream: Stream, command: PinSource) -> ForkPoint | Reply:
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if is_surely_expired(stream, command.now_ms):
        return Reply(Code.NOT_FOUND)
    if command.content_type and media_type(command.content_type) != media_type(stream.content_type):
        return other_type(stream)
    if _depth(stream) >= FORK_DEPTH_MAX:
        return tail_reply(Code.FORK_DEPTH, stream)
    first = stream.first_record
    if first and covers(marks_of(stream), first):  # a fork has no snapshots: half of a document
        return tail_reply(Code.SNAPSHOT_NEEDED, stream)
    if command.resolved and stream.first_record <= command.record < stable_of(stream)[0]:
        return ForkPoint(command.record, command.byte)
    point = fork_point(stream, command.record, command.byte, command.sub_offset)
    if point is None:
        return tail_reply(Code.NOT_YET, stream)
    if isinstance(point, ReadRefused):
        return Reply(point.code, stream.uid, point.record, point.byte, stream.closed)
    return point


def _depth(stream: Stream) -> int:
    return stream.fork.depth if stream.fork is not None else 0


def fork_point(
    stream: Stream, record: int, byte: int, sub_offset: int
) -> ForkPoint | ReadRefused | None:
    """Return where a fork at this token (record -1: the tail) and sub-offset begins, or None if
    memory alone cannot tell."""
    tail = stable_of(stream)
    if record < 0:
        record, byte = tail
    if record > tail[0]:
        return ReadRefused(Code.OFFSET_BEYOND_TAIL, *tail)
    if record < stream.first_record:
        if not (record or byte or sub_offset):
            return ForkPoint(0, 0)  # this fork inherits nothing, so trimming does not matter
        return ReadRefused(Code.TRIMMED, stream.first_record, stream.first_byte)
    record, byte = record_gaps.behind(stream, stream.cold, (record, byte), tail)
    if sub_offset and stream.encoding != Encoding.BYTES:
        if record + sub_offset > tail[0]:
            return ReadRefused(Code.SUB_OFFSET, *tail)
        return _boundary(stream, record + sub_offset, -1)
    anchor = _boundary(stream, record, byte)
    if anchor is None or not sub_offset:
        return anchor
    position = anchor.byte + anchor.prefix + sub_offset
    if position > tail[1]:
        return ReadRefused(Code.SUB_OFFSET, *tail)
    return _at_byte(stream, position)


def _boundary(stream: Stream, record: int, byte: int) -> ForkPoint | None:
    """Return the point of a token's record number; `byte` counts only as a raw step inside that
    record."""
    tail = stable_of(stream)
    if record == tail[0]:
        return ForkPoint(*tail)
    if not stream.hot or record < stream.hot[0].record:
        begin = _known_byte(stream, record)
        inside = (
            begin is not None
            and stream.encoding == Encoding.BYTES
            and byte > begin
            and (byte - begin) % RAW_STEP_BYTES == 0
        )
        return None if begin is None or inside else ForkPoint(record, begin)
    _, found, start = locate(stream.hot, record, byte, whole_records=True)
    _, _, inner = locate(stream.hot, record, byte, whole_records=False)
    return ForkPoint(max(found, stream.first_record), start, inner - start)


def _known_byte(stream: Stream, record: int) -> int | None:
    """Return where a record begins, if known without its bytes."""
    own = next((byte for known, byte in _own_boundaries(stream) if known == record), None)
    return index.byte_of(stream.cold, record) if own is None else own


def _own_boundaries(stream: Stream) -> list[tuple[int, int]]:
    own = [(stream.first_record, stream.first_byte)]
    if stream.fork is not None:
        own.append((stream.fork.record, stream.fork.byte))
    return own


def _at_byte(stream: Stream, position: int) -> ForkPoint | None:
    """Return the point of a byte position of a raw stream: the record that holds it, and the bytes
    before it."""
    tail = stable_of(stream)
    if position == tail[1]:
        return ForkPoint(*tail)
    if stream.hot and position >= stream.hot[0].byte:
        _, record, begin = locate(stream.hot, AT_BYTE, position, whole_records=True)
        return ForkPoint(max(record, stream.first_record), begin, position - begin)
    own = next((record for record, byte in _own_boundaries(stream) if byte == position), None)
    found = index.record_of(stream.cold, position) if own is None else own
    return None if found is None else ForkPoint(found, position)


@applies(ConfirmPin)
def apply_confirm_pin(machine: Machine, command: ConfirmPin, position: int) -> Reply:
    """Mark the pin's fork as existing. NOT_FOUND: there is no such pin."""
    stream = machine.directory.by_uid.get(command.source_uid)
    pin = stream.pins.get(command.attempt) if stream is not None and stream.pins else None
    if stream is None or pin is None:
        return Reply(Code.NOT_FOUND)
    pin.confirmed = True
    machine.changes.streams.add(stream.uid)
    machine.forks.unconfirmed.pop(command.attempt, None)
    return tail_reply(Code.OK, stream)


@applies(Unpin)
def apply_unpin(machine: Machine, command: Unpin, position: int) -> Reply:
    """Remove a pin, and release the data that only it held. OK even for an unknown pin."""
    stream = machine.directory.by_uid.get(command.source_uid)
    if stream is None or not stream.pins or command.attempt not in stream.pins:
        return Reply(Code.OK)
    pin = stream.pins.pop(command.attempt)
    machine.changes.streams.add(stream.uid)
    machine.forks.unconfirmed.pop(command.attempt, None)
    reply = tail_reply(Code.OK, stream)
    # the usual case; a stream may have very many forks
    if any(_covers(other, pin) for other in reversed(stream.pins.values())):
        return reply
    if not stream.pins:
        stream.pins = None
        if stream.deleted:
            remove(machine, stream, command.now_ms)
    elif stream.deleted:
        cut_to_pins(machine, stream, command.now_ms)
    if stream.first_record and stream.uid in machine.directory.by_uid:
        release_trimmed(machine, stream, command.now_ms)
    return reply


def _covers(other: Pin, pin: Pin) -> bool:
    """Report whether another pin holds everything that `pin` holds."""
    return other.first_record <= pin.first_record and other.record + (
        other.prefix > 0
    ) >= pin.record + (pin.prefix > 0)


@applies(RefuseAttempt)
def apply_refuse_attempt(machine: Machine, command: RefuseAttempt, position: int) -> Reply:
    """Refuse a fork attempt for good. EXISTS: the attempt created the fork, which exists. OK: it
    will never create it, or the fork was deleted."""
    stream = machine.directory.streams.get(command.name)
    if stream is not None and stream.fork is not None and stream.fork.attempt == command.attempt:
        return tail_reply(Code.EXISTS, stream)
    machine.forks.refuse(command.attempt)
    return Reply(Code.OK)


@applies(Acknowledge)
def apply_acknowledge(machine: Machine, command: Acknowledge, position: int) -> Reply:
    """Drop an outbox message. Idempotent."""
    _drop_message(machine, command.message)
    return Reply(Code.OK)


@applies(AcknowledgeAll)
def apply_acknowledge_all(machine: Machine, command: AcknowledgeAll, position: int) -> Reply:
    """Drop outbox messages. Idempotent."""
    machine.counters.raise_level(level_of(AcknowledgeAll))
    for message in command.messages:
        _drop_message(machine, message)
    return Reply(Code.OK)


def _drop_message(machine: Machine, message: int) -> None:
    machine.outbox.messages.pop(message, None)
    machine.changes.messages.add(message)
    acknowledged(machine, message)
