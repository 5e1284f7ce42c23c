"""ListOffsets: the first and the next offset of partitions, and the offset of a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.base.limits import PAGE_BYTES_MAX
from polynya.front.kafka.adopted import AT_ONCE_BYTES, read_batches
from polynya.front.kafka.errors import Error, error_of, error_of_fault
from polynya.front.kafka.fetch import READ_UNCOMMITTED
from polynya.front.kafka.leaders import epoch_error_of
from polynya.front.kafka.turns import in_turns
from polynya.service.api import Facts, Position, ReadQuery, Refusal, Service
from polynya.stream.commands import Encoding
from polynya.wire.kafka.batches import batches_of, header_of
from polynya.wire.kafka.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from polynya.wire.kafka.records import UnreadableBatch, decoded_records

if TYPE_CHECKING:
    from polynya.front.kafka.dispatch import Call

LATEST, EARLIEST, NEWEST_TIME, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_NONE = (-1, -1)  # timestamp, offset


async def list_offsets(call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Answer each partition. All values are linearizable: an acknowledged record is counted."""
    response = ListOffsetsResponse()
    uncommitted = request.isolation_level == READ_UNCOMMITTED
    for asked in request.topics:
        answers = ListOffsetsTopicResponse(asked.name)
        response.topics.append(answers)
        async for partition in in_turns(call, asked.partitions):
            answer = ListOffsetsPartitionResponse(partition.partition_index)
            answers.partitions.append(answer)
            try:
                await _fill(call, asked.name, partition, answer, uncommitted=uncommitted)
            except PolynyaError as fault:
                answer.error_code = error_of_fault(fault)
    return response


async def _fill(
    call: Call,
    name: str,
    asked: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
    *,
    uncommitted: bool,
) -> None:
    if not call.caller.may(Verb.READ, name):
        answer.error_code = Error.TOPIC_AUTHORIZATION_FAILED
        return
    topic = await call.front.topics.find(name)
    if topic is None or not 0 <= asked.partition_index < topic.partitions:
        answer.error_code = Error.UNKNOWN_TOPIC_OR_PARTITION
        return
    front, stream = call.front, topic.stream(asked.partition_index)
    answer.error_code = epoch_error_of(front, stream, asked.current_leader_epoch)
    if answer.error_code:
        return
    facts = await front.service.facts(stream)
    if isinstance(facts, Refusal):
        answer.error_code = error_of(facts.code)
        return
    answer.leader_epoch = front.brokers.epoch_of(front.service.group_of(stream))
    found = await _place(call, facts, asked.timestamp, uncommitted=uncommitted)
    if found is None:
        answer.error_code = Error.INVALID_REQUEST
    else:
        answer.timestamp, answer.offset = found


async def _place(
    call: Call, facts: Facts, timestamp: int, *, uncommitted: bool
) -> tuple[int, int] | None:
    """Return (timestamp, offset) of a special or a real timestamp; None for an unknown special
    one."""
    if timestamp == LATEST:
        return -1, facts.high_watermark if uncommitted else facts.record
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, facts.first_record
    if timestamp == LATEST_TIERED:
        return _NONE
    if timestamp == NEWEST_TIME or timestamp >= 0:
        return await search(call.front.service, facts, timestamp, uncommitted=uncommitted)
    return None


async def offset_of_time(service: Service, facts: Facts, time_ms: int) -> int:
    """Return the offset of the first record of this time or later, else the end."""
    offset = (await search(service, facts, time_ms, uncommitted=False))[1]
    return facts.record if offset < 0 else offset


async def search(
    service: Service, facts: Facts, timestamp: int, *, uncommitted: bool
) -> tuple[int, int]:
    """Return the first record of this time or later, or of the newest time. The index finds the
    batch; to the index, one without a time has its append time, so the batch itself decides."""
    newest = timestamp == NEWEST_TIME
    special = Position.NEWEST if newest else Position.AT_RECORD_TIME
    at = await _walk(
        service, facts, (special, max(0, timestamp)), timestamp, uncommitted=uncommitted
    )
    if newest and at[0] <= 0 and facts.encoding == Encoding.KAFKA:
        start = (facts.first_record, 0)
        return await _walk(service, facts, start, timestamp, uncommitted=uncommitted)
    return at


async def _walk(
    service: Service, facts: Facts, begin: tuple[int, int], timestamp: int, *, uncommitted: bool
) -> tuple[int, int]:
    """Look at the headers of batches from a position on, until one is of this time or later. For
    the newest time, look at the first batch of a special position, and else at all."""
    (record, byte), newest_ms, size = begin, -1, 1
    newest: tuple[memoryview, int] | None = None
    while record < facts.high_watermark:
        query = ReadQuery(
            facts.name,
            record,
            byte,
            size,
            touch=False,
            whole_records=True,
            uncommitted=uncommitted,
            append_times=True,
        )
        page = await read_batches(service, query)
        if isinstance(page, Refusal) or not page.spans:
            break
        for span in page.spans:
            at = span.record
            for batch in batches_of(span.payload):
                header = header_of(batch)
                if timestamp >= 0 and header.max_timestamp >= timestamp:
                    return await _in_batch(batch, at, timestamp)
                if header.max_timestamp > newest_ms:
                    newest_ms, newest = header.max_timestamp, (batch, at)
                at += header.last_offset_delta + 1
        if begin[0] == Position.NEWEST:
            break
        record, byte, size = page.record, 0, PAGE_BYTES_MAX
    if timestamp != NEWEST_TIME or newest is None:
        return _NONE
    return await _in_batch(*newest, newest_ms)


async def _in_batch(batch: memoryview, base: int, timestamp: int) -> tuple[int, int]:
    """Return the first record of this time or later in a batch whose header says that it has one.
    A large or a compressed batch is decoded in a thread."""
    if header_of(batch).codec or len(batch) > AT_ONCE_BYTES:
        return await asyncio.to_thread(_first_of, batch, base, timestamp)
    return _first_of(batch, base, timestamp)


def _first_of(batch: memoryview, base: int, timestamp: int) -> tuple[int, int]:
    """Return the first such record; the batch's first one if it cannot be decoded."""
    try:
        for record in decoded_records(batch, base):
            if record.timestamp >= timestamp:
                return record.timestamp, record.offset
    except UnreadableBatch:
        pass  # its client compressed it wrongly, or too far
    return header_of(batch).base_timestamp, base
