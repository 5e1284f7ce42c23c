"""Creation of streams, and what a repeated creation is compared with."""

from __future__ import annotations

from sys import intern
from typing import TYPE_CHECKING, TypeAlias

from polynya.base.levels import INTERNAL_LEVEL
from polynya.base.names import is_internal, owner_of
from polynya.base.offsets import format_token
from polynya.stream.command import applies, level_of
from polynya.stream.features.appends.producers import (
    accept_producer,
    last_of,
    producer_key,
)
from polynya.stream.features.attributes.held import attributes_of, has_room, hold
from polynya.stream.features.lifetimes.commands import Create, CreateWithAttributes
from polynya.stream.features.lifetimes.rules import (
    is_expired,
    release,
    tail_reply,
)
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.features.profiles.rules import begin_first, profile_differences
from polynya.stream.features.retention.rules import retention_of, set_retention
from polynya.stream.features.segments.rules import open_first, segment_differences
from polynya.stream.features.subscriptions.links import link_created
from polynya.stream.parts import Fork, Retention
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import KafkaState, Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

from polynya.stream.features.appends.rules import add_batch, body_crc, media_type

Value: TypeAlias = str | int | None  # of a setting


@applies(CreateWithAttributes)
@applies(Create)
def apply_create(machine: Machine, command: Create, position: int) -> Reply:
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
        add_batch(machine, stream, command, batch, position)
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
    owner = owner_of(command.name)
    if owner and (refusal := _judge_owner(machine, owner, command.now_ms)) is not None:
        return refusal
    if fork is not None and fork.attempt in machine.forks.refused:
        return Reply(Code.ATTEMPT_REFUSED)
    if producer is not None and producer.sequence != 0:
        return Reply(
            Code.PRODUCER_GAP,
            producer_epoch=producer.epoch,
            expected_sequence=0,
            received_sequence=producer.sequence,
        )
    if not has_room(machine, None, _attributes(command)):
        return Reply(Code.ATTRS_FULL)
    return None


def _judge_owner(machine: Machine, name: str, now_ms: int) -> Reply | None:
    """Refuse a companion of a stream that does not live: nothing would release it."""
    owner = machine.directory.streams.get(name)
    if owner is None:
        return machine.directory.absent(name)
    if owner.deleted or is_expired(owner, now_ms):
        return Reply(Code.NOT_FOUND)
    return None


def _attributes(command: Create) -> bytes | None:
    return command.attributes if isinstance(command, CreateWithAttributes) else None


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
    if isinstance(command, CreateWithAttributes):
        hold(machine, stream, command.attributes)
        machine.counters.raise_level(level_of(CreateWithAttributes))
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
    compared only when the PUT names one: it may have changed since; so are attributes. The source
    of a fork is not revealed: permission to create the fork does not imply access to it."""
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
        + _attribute_differences(stream, _attributes(command))
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
    if asked.snapshots != known.snapshots:
        found.append(("retention_snapshots", None))
    return found


def _attribute_differences(stream: Stream, asked: bytes | None) -> list[tuple[str, Value]]:
    held = attributes_of(stream)
    is_other = asked is not None and (held is None or held.value != asked)
    return [("attributes", None)] if is_other else []


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
