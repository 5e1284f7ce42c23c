"""Create and append: the rules for writes, checked in the order of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from polynya.base.levels import RECEIPT_LEVEL
from polynya.stream.command import RULES, applies, level_of
from polynya.stream.features.appends.commands import Append, Bundle, Produce
from polynya.stream.features.appends.producers import (
    accept_producer,
    judge_producer,
    producer_key,
    repeat_of,
)
from polynya.stream.features.appends.undecided import is_awaited
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.lifetimes.rules import (
    is_surely_expired,
    tail_reply,
)
from polynya.stream.features.profiles.rules import judge_logged
from polynya.stream.features.subscriptions.links import note_append
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code, Reply
from polynya.stream.state.effects import TailMoved
from polynya.stream.state.model import HotBatch, Stream
from polynya.stream.state.tails import is_stable

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_KAFKA_LEVEL = level_of(Produce)
# adds an accepted batch at the tail of a stream, and returns the bytes of its payload
AddBatch: TypeAlias = "Callable[[Machine, Stream, Append | Produce, Batch, int], int]"


def media_type(content_type: str) -> str:
    """Return the part of a content type that is compared: the media type in lower case, without
    parameters."""
    return content_type.split(";", 1)[0].strip().lower()


def add_batch(
    machine: Machine,
    stream: Stream,
    command: Append | Create | Produce,
    batch: Batch,
    position: int,
) -> int:
    """Add the command's batch at the stream's tail, as a hot one. Return the bytes of its
    payload."""
    producer = command.producer
    origin: tuple[Any, ...] | None = None
    if producer is not None:
        origin = (producer.id, producer.epoch, producer.sequence)
        if producer.kind:
            origin += (producer.sequence_last, producer.kind)
    payload, records, encoding = batch.payload, batch.records, batch.encoding
    record, byte, size = stream.next_record, stream.next_byte, len(payload)
    hot = HotBatch(
        record,
        byte,
        records,
        payload,
        batch.lengths,
        batch.crc,
        command.now_ms,
        batch.record_time_ms_max,
        encoding,
        position,
        origin,
        batch.flags,
    )
    if encoding == Encoding.KAFKA:  # a standalone node gets no `SetLevel`
        machine.counters.raise_level(_KAFKA_LEVEL)
    stream.next_record = record + records
    stream.next_byte = byte + size
    machine.directory.hot_bytes += size
    if stream.hot:
        stream.hot.append(hot)
    else:
        stream.hot = [hot]
        machine.directory.hot[stream.uid] = stream
    if stream.links is not None:
        note_append(machine.subscriptions, stream)
    return size


@applies(Append)
def apply_append(
    machine: Machine, command: Append, position: int, add: AddBatch = add_batch
) -> Reply:
    """Append to a stream. This is the hot path: about 2 us with a producer. Nothing changes before
    every check passes. `add` adds an accepted batch: that of the command, or one in a pack."""
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    now_ms = command.now_ms
    producer = command.producer
    batch = command.batch
    if (
        stream.deleted
        or stream.closed
        or command.incarnation
        or stream.expires_at_ms is not None
        or stream.ttl_seconds is not None
    ) and (reply := judge_state(stream, command)) is not None:
        return reply
    if (
        machine.diskless.streams
        and add is add_batch
        and (reply := judge_logged(machine, stream, batch))
    ):
        return reply
    content_type = command.content_type
    if (
        batch is not None
        and content_type != stream.content_type
        and media_type(content_type) != media_type(stream.content_type)
    ):
        return other_type(stream)
    stream_seq = command.stream_seq
    # Comparing str by code point gives the bytewise order of UTF-8.
    if stream_seq is not None and stream.stream_seq is not None and stream_seq <= stream.stream_seq:
        return _seq_refusal(machine, stream, command)
    record = -1 if batch is None else stream.next_record
    if producer is not None:
        if stream.kafka is not None and is_awaited(stream, producer):
            return tail_reply(Code.UNSTABLE, stream)
        records = 0 if batch is None else batch.records
        crc = body_crc(machine, batch)
        reply = accept_producer(stream, producer, now_ms, record, records, crc)
        if reply is not None:
            return reply
    uid = stream.uid
    machine.changes.streams.add(uid)
    size = 0 if batch is None else add(machine, stream, command, batch, position)
    if stream_seq is not None:
        stream.stream_seq = stream_seq
    stream.activity_ms = now_ms
    if command.close:
        stream.closed = True
        if producer is not None:
            stream.closed_by = (producer_key(producer), producer.epoch, producer.sequence)
    if uid in machine.tails.watched:
        live = batch if add is add_batch else None
        machine.tails.effects.append(tail_moved(stream, live, record, size, time_ms=now_ms))
    epoch = last = -1
    if producer is not None:
        epoch = producer.epoch
        last = producer.sequence if producer.sequence_last < 0 else producer.sequence_last
    tail, end = stream.next_record, stream.next_byte
    return Reply(0, uid, tail, end, stream.closed, epoch, last, -1, -1, record)


def _seq_refusal(machine: Machine, stream: Stream, command: Append) -> Reply:
    """Return the reply to an append whose `Stream-Seq` is not greater than the last one: that to
    its producer goes first."""
    return _judge_its_producer(machine, stream, command) or tail_reply(Code.SEQ_REGRESSION, stream)


def _judge_its_producer(machine: Machine, stream: Stream, command: Append) -> Reply | None:
    if command.producer is None:
        return None
    if is_awaited(stream, command.producer):
        return tail_reply(Code.UNSTABLE, stream)
    crc = body_crc(machine, command.batch)
    return judge_producer(stream, command.producer, command.now_ms, crc)


def judge_before_condition(
    machine: Machine, stream: Stream, command: Append, *, logged: bool = True
) -> Reply | None:
    """Return the refusal or the repeat by what is judged before a condition: the stream's state,
    its profile (for the batch of a log entry), its type and the producer. Changes nothing."""
    reply = judge_state(stream, command)
    if reply is None and logged:
        reply = judge_logged(machine, stream, command.batch)
    if reply is None and _has_other_type(stream, command):
        reply = other_type(stream)
    return reply or _judge_its_producer(machine, stream, command)


def judge_behind_condition(stream: Stream, command: Append) -> Reply | None:
    """Return the refusal by `Stream-Seq`, which is judged last."""
    last, given = stream.stream_seq, command.stream_seq
    if given is None or last is None or given > last:
        return None
    return tail_reply(Code.SEQ_REGRESSION, stream)


def _has_other_type(stream: Stream, command: Append) -> bool:
    return command.batch is not None and media_type(command.content_type) != media_type(
        stream.content_type
    )


def body_crc(machine: Machine, batch: Batch | None) -> int:
    """Return the checksum by which the repeat of an append is known to have the same body; 0: it is
    not compared.

    Records with keys, headers or times are not: the server's time may be in them."""
    if batch is None or batch.encoding == Encoding.KAFKA:
        return 0
    if machine.counters.level < RECEIPT_LEVEL:
        if not machine.counters.standalone:
            return 0
        machine.counters.level = RECEIPT_LEVEL
    return batch.crc


def tail_moved(
    stream: Stream, batch: Batch | None, record: int, size: int, *, time_ms: int
) -> TailMoved:
    """Return the effect of an append of `size` bytes on the stream's live readers. `record` is the
    first one appended, or -1. Without `batch` readers read them."""
    return TailMoved(
        stream.uid,
        stream.next_record if record < 0 else record,
        stream.next_byte - size,
        stream.next_record,
        stream.next_byte,
        batch,
        stream.closed,
        unstable=not is_stable(stream),
        time_ms=time_ms,
        first_record=stream.first_record,
    )


def other_type(stream: Stream) -> Reply:
    """Return the refusal of a content type that differs from the stream's; the detail is the
    stream's."""
    reply = tail_reply(Code.CONTENT_TYPE, stream)
    reply.detail = stream.content_type
    return reply


def judge_state(stream: Stream, command: Append) -> Reply | None:
    """Return the refusal for deletion, expiry, a failed precondition or a closed stream, or
    None."""
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if is_surely_expired(stream, command.now_ms):
        return Reply(Code.NOT_FOUND)
    if command.incarnation and command.incarnation != stream.uid:
        return tail_reply(Code.INCARNATION, stream)
    if not stream.closed:
        return None
    producer = command.producer
    if producer is not None:
        if stream.closed_by == (producer_key(producer), producer.epoch, producer.sequence):
            return repeat_of(stream, producer)
    elif command.batch is None:
        return tail_reply(Code.ALREADY_CLOSED, stream)
    return tail_reply(Code.CLOSED, stream)


@applies(Bundle)
def apply_bundle(machine: Machine, bundle: Bundle, position: int) -> Reply:
    """Apply each append as if it were alone."""
    counters = machine.counters
    replies, log_ms = [], counters.log_ms
    for number, command in enumerate(bundle.commands, position):
        apply = apply_append if type(command) is Append else RULES[type(command)]
        replies.append(apply(machine, command, number))  # type: ignore[arg-type]
        if command.now_ms > log_ms:
            counters.log_ms = log_ms = command.now_ms
    return Reply(Code.OK, detail=replies)
