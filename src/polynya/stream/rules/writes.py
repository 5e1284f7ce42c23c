"""Create and append: the rules for writes, checked in the order of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from sys import intern
from typing import TYPE_CHECKING, Any, TypeAlias

from polynya.base.levels import RECEIPT_LEVEL
from polynya.base.names import is_internal
from polynya.base.offsets import format_token
from polynya.stream.commands import Append, Batch, Create, Encoding, Fork, Produce, Retention
from polynya.stream.diskless_commands import Profile
from polynya.stream.replies import Code, Reply
from polynya.stream.rules.lifetimes import is_expired, is_surely_expired, release, tail_reply
from polynya.stream.rules.producers import (
    accept_producer,
    judge_producer,
    last_of,
    producer_key,
    repeat_of,
)
from polynya.stream.rules.profiles import begin_first, judge_logged, profile_differences
from polynya.stream.rules.retention import retention_of, set_retention
from polynya.stream.rules.segments import open_first, segment_differences
from polynya.stream.state.effects import TailMoved
from polynya.stream.state.feature_level import INTERNAL_LEVEL, level_of
from polynya.stream.state.model import HotBatch, KafkaState, Stream
from polynya.stream.state.tails import is_stable
from polynya.stream.subscriptions.links import link_created, note_append

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_KAFKA_LEVEL = level_of(Produce)
Value: TypeAlias = str | int | None  # of a setting
# adds an accepted batch at the tail of a stream, and returns the bytes of its payload
AddBatch: TypeAlias = "Callable[[Machine, Stream, Append | Produce, Batch, int], int]"


def media_type(content_type: str) -> str:
    """Return the part of a content type that is compared: the media type in lower case, without
    parameters."""
    return content_type.split(";", 1)[0].strip().lower()


def add_batch(
    machine: Machine, stream: Stream, command: Append | Create | Produce, batch: Batch, place: int
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
        place,
        origin,
        batch.flags,
    )
    if encoding == Encoding.KAFKA:  # a standalone node gets no `SetLevel`
        machine.counters.raise_level(_KAFKA_LEVEL)
    stream.next_record = record + records
    stream.next_byte = byte + size
    directory = machine.directory
    directory.hot_bytes += size
    if stream.hot:
        stream.hot.append(hot)
    else:
        stream.hot = [hot]
        directory.hot[stream.uid] = stream
    if stream.links is not None:
        note_append(machine.subscriptions, stream)
    return size


def apply_append(machine: Machine, command: Append, place: int, add: AddBatch = add_batch) -> Reply:
    """Append to a stream. This is the hot path: about 2 us with a producer. Nothing changes before
    every check passes. `add` adds an accepted batch: that of the command, or one in a pack."""
    directory = machine.directory
    stream = directory.streams.get(command.name)
    if stream is None:
        return directory.absent(command.name)
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
        records = 0 if batch is None else batch.records
        crc = body_crc(machine, batch)
        reply = accept_producer(stream, producer, now_ms, record, records, crc)
        if reply is not None:
            return reply
    uid = stream.uid
    machine.changes.streams.add(uid)
    size = 0 if batch is None else add(machine, stream, command, batch, place)
    if stream_seq is not None:
        stream.stream_seq = stream_seq
    stream.activity_ms = now_ms
    if command.close:
        stream.closed = True
        if producer is not None:
            stream.closed_by = (producer_key(producer), producer.epoch, producer.sequence)
    tails = machine.tails
    if uid in tails.watched:
        live = batch if add is add_batch else None
        tails.effects.append(tail_moved(stream, live, record, size, time_ms=now_ms))
    epoch = last = -1
    if producer is not None:
        epoch = producer.epoch
        last = producer.sequence if producer.sequence_last < 0 else producer.sequence_last
    tail, end = stream.next_record, stream.next_byte
    return Reply(0, uid, tail, end, stream.closed, epoch, last, -1, -1, record)


def _seq_refusal(machine: Machine, stream: Stream, command: Append) -> Reply:
    """Return the reply to an append whose `Stream-Seq` is not greater than the last one: that to its
    producer goes first."""
    producer, crc = command.producer, body_crc(machine, command.batch)
    refusal = None if producer is None else judge_producer(stream, producer, command.now_ms, crc)
    return refusal or tail_reply(Code.SEQ_REGRESSION, stream)


def body_crc(machine: Machine, batch: Batch | None) -> int:
    """Return the checksum by which the repeat of an append is known to have the same body; 0: it is
    not compared.

    Records with keys, headers or times are not: the server's time may be in them."""
    if batch is None or batch.encoding == Encoding.KAFKA:
        return 0
    counters = machine.counters
    if counters.level < RECEIPT_LEVEL:
        if not counters.standalone:
            return 0
        counters.level = RECEIPT_LEVEL
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


def apply_create(machine: Machine, command: Create, place: int) -> Reply:
    """Create a stream: CREATED, or EXISTS when it has the same configuration. A fork with any other
    reply than CREATED did not happen."""
    known = machine.directory.streams.get(command.name)
    if known is None and command.name in machine.directory.evicted:
        return Reply(Code.EVICTED)
    replaces = (
        known is not None
        and not known.deleted
        and is_expired(known, command.now_ms)
        and not known.pins
    )
    if known is not None and not replaces:
        return judge_known(known, command, over=is_expired(known, command.now_ms))
    reply = _judge_new(machine, command)
    if reply is not None:
        return reply
    if known is not None:
        release(machine, known, command.now_ms)
    stream = _new_stream(machine, command)
    batch = command.batch
    producer = command.producer
    record = -1
    if batch is not None:
        record = stream.next_record
        add_batch(machine, stream, command, batch, place)
    reply = Reply(
        Code.CREATED,
        stream.uid,
        stream.next_record,
        stream.next_byte,
        stream.closed,
        first_record=record,
    )
    if producer is not None:
        records, crc = 0 if batch is None else batch.records, body_crc(machine, batch)
        refusal = accept_producer(stream, producer, command.now_ms, record, records, crc)
        assert refusal is None, "a first sequence on a new stream is taken"
        reply.producer_epoch, reply.producer_sequence = producer.epoch, last_of(producer)
        if command.closed:
            stream.closed_by = (producer_key(producer), producer.epoch, producer.sequence)
    return reply


def judge_known(stream: Stream, command: Create, *, over: bool) -> Reply:
    """Return the reply to a create of a name that is taken. A repeat with the same configuration,
    or of the same fork attempt, is no error. `over`: the stream has expired. EXISTS has the
    stream's own content type as its detail, which may be spelled differently. EXISTS_DIFFERENT has
    the `differences`."""
    if (
        command.fork is not None
        and stream.fork is not None
        and command.fork.attempt == stream.fork.attempt
    ):
        return tail_reply(Code.CREATED, stream)
    if stream.deleted or over:
        pending = any(not pin.confirmed for pin in (stream.pins or {}).values())
        return tail_reply(Code.ATTEMPT_PENDING if pending else Code.GONE, stream)
    found = differences(stream, command)
    reply = tail_reply(Code.EXISTS_DIFFERENT if found else Code.EXISTS, stream)
    reply.detail = found or stream.content_type
    return reply


def _judge_new(machine: Machine, command: Create) -> Reply | None:
    fork, producer = command.fork, command.producer
    if fork is not None and fork.attempt in machine.forks.refused:
        return Reply(Code.ATTEMPT_REFUSED)
    if producer is not None and producer.sequence != 0:
        return Reply(
            Code.PRODUCER_GAP,
            producer_epoch=producer.epoch,
            expected_sequence=0,
            received_sequence=producer.sequence,
        )
    return None


def _new_stream(machine: Machine, command: Create) -> Stream:
    fork = command.fork
    stream = Stream(
        uid=machine.counters.next_uid(),
        name=command.name,
        content_type=intern(command.content_type),  # few distinct values
        encoding=command.encoding,
        created_ms=command.now_ms,
        activity_ms=command.now_ms,
        closed=command.closed,
        ttl_seconds=command.ttl_seconds,
        expires_at_ms=command.expires_at_ms,
        stream_seq=command.stream_seq,
        fork=fork,
    )
    if fork is not None:
        stream.next_record, stream.next_byte = fork.record, fork.byte
        stream.first_record, stream.first_byte = fork.first_record, fork.first_byte
    if command.retention is not None:
        set_retention(machine, stream, command.retention)
    if command.segments is not None:
        open_first(machine, stream, command.segments)
    if command.profile == Profile.DISKLESS:
        begin_first(machine, stream, command.profile)
    if command.producer_id_max >= 0:
        stream.kafka = KafkaState(command.producer_id_max)
    if is_internal(stream.name):  # a standalone node gets no `SetLevel`
        machine.counters.raise_level(INTERNAL_LEVEL)
    machine.directory.add(stream)
    machine.changes.streams.add(stream.uid)
    if machine.subscriptions.watches:
        link_created(machine.subscriptions, stream)
    return stream


def differences(stream: Stream, command: Create) -> list[tuple[str, Value]]:
    """Return the settings in which a PUT differs from the stream, with the stream's own values;
    empty if it asks for the same.

    A fork without a content type or lifetime inherits them, and so does not differ. A retention is
    compared only when the PUT names one: it may have changed since. The source of a fork is not
    revealed: permission to create the fork does not imply access to it."""
    fork = command.fork
    found: list[tuple[str, Value]] = []
    if (fork is None or command.content_type) and media_type(command.content_type) != media_type(
        stream.content_type
    ):
        found.append(("content_type", stream.content_type))
    if fork is None or command.ttl_seconds is not None or command.expires_at_ms is not None:
        if command.ttl_seconds != stream.ttl_seconds:
            found.append(("ttl_seconds", stream.ttl_seconds))
        if command.expires_at_ms != stream.expires_at_ms:
            found.append(("expires_at_ms", stream.expires_at_ms))
    if command.closed != stream.closed:
        found.append(("closed", stream.closed))
    return (
        found
        + _retention_differences(retention_of(stream), command.retention)
        + segment_differences(stream, command.segments)
        + profile_differences(stream, command.profile)
        + _fork_differences(stream.fork, fork)
    )


def _retention_differences(
    known: Retention | None, asked: Retention | None
) -> list[tuple[str, Value]]:
    if asked is None or asked == known:
        return []
    if known is None:
        return [("retention", None)]
    found: list[tuple[str, Value]] = []
    if asked.age_seconds != known.age_seconds:
        found.append(("retention_age", known.age_seconds))
    if asked.bytes != known.bytes:
        found.append(("retention_bytes", known.bytes))
    return found


def _fork_differences(known: Fork | None, asked: Fork | None) -> list[tuple[str, Value]]:
    if known is None or asked is None:
        return [] if known is asked else [("is_fork", known is not None)]
    if known.source_name != asked.source_name:
        return [("fork_source", None)]
    found: list[tuple[str, Value]] = []
    offset = asked.requested_offset
    at_fork_point = not known.requested_offset and offset == format_token(known.record, known.byte)
    if offset not in ("", known.requested_offset) and not at_fork_point:
        found.append(
            ("fork_offset", known.requested_offset or format_token(known.record, known.byte))
        )
    if asked.requested_sub_offset != known.requested_sub_offset:
        found.append(("fork_sub_offset", known.requested_sub_offset))
    return found
