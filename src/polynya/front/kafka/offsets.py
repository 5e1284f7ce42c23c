"""ListOffsets: the first and the next offset of partitions, and the offset of a time."""

from __future__ import annotations

import asyncio
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from polynya.access.grants import Verb
from polynya.access.kafka_acls import Operation
from polynya.base.errors import PolynyaError
from polynya.base.limits import PAGE_BYTES_MAX
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.errors import Error, error_of, error_of_fault
from polynya.front.kafka.fetch import AT_ONCE_BYTES, READ_UNCOMMITTED, read_batches
from polynya.front.kafka.leaders import epoch_error_of
from polynya.local.api import Position, ReadQuery, Refusal, StreamInfo
from polynya.routing.handle import StreamHandle
from polynya.service.api import Service
from polynya.stream.parts import Encoding
from polynya.wire.kafka.batches import batches_of, header_of
from polynya.wire.kafka.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from polynya.wire.kafka.records import UnreadableBatch, decoded_records

LATEST, EARLIEST, NEWEST_TIME, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
# the first version of the request with each special timestamp; Kafka refuses an earlier one, and
# any other negative timestamp, with UNSUPPORTED_VERSION
_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    NEWEST_TIME: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING: 11,
}
_NONE = (-1, -1)  # timestamp, offset
_TIMESTAMP = attrgetter("timestamp")


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
    if not call.caller.may(Verb.READ, name, Operation.DESCRIBE):
        answer.error_code = Error.TOPIC_AUTHORIZATION_FAILED
        return
    if asked.timestamp < 0 and call.version < _SINCE.get(asked.timestamp, call.version + 1):
        answer.error_code = Error.UNSUPPORTED_VERSION
        return
    topic, brokers = await call.context.topics.open(name), call.context.brokers
    stream = None if topic is None else topic.partition(asked.partition_index)
    if stream is None:
        answer.error_code = Error.UNKNOWN_TOPIC_OR_PARTITION
        return
    answer.error_code = epoch_error_of(brokers, stream.group, asked.current_leader_epoch)
    if answer.error_code:
        return
    info = await stream.info()
    if isinstance(info, Refusal):
        answer.error_code = error_of(info.code)
        return
    found = await _offset_at(stream, info, asked.timestamp, uncommitted=uncommitted)
    answer.timestamp, answer.offset = found
    if found != _NONE:
        answer.leader_epoch = brokers.epoch_of(stream.group)


async def _offset_at(
    stream: StreamHandle, info: StreamInfo, timestamp: int, *, uncommitted: bool
) -> tuple[int, int]:
    """Return (timestamp, offset) of a special or a real timestamp. No data is tiered as Kafka means
    it, so there is no last tiered record, and none that an upload is pending for."""
    if timestamp == LATEST:
        return -1, info.high_watermark if uncommitted else info.record
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, info.first_record
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING):
        return _NONE
    return await search(stream, info, timestamp, uncommitted=uncommitted)


async def offset_of_time(service: Service, info: StreamInfo, time_ms: int) -> int:
    """Return the offset of the first record of this time or later, else the end."""
    offset = (await search(service.open(info.name), info, time_ms, uncommitted=False))[1]
    return info.record if offset < 0 else offset


async def search(
    stream: StreamHandle, info: StreamInfo, timestamp: int, *, uncommitted: bool
) -> tuple[int, int]:
    """Return the first record of this time or later, or of the newest time. The index finds the
    batch; to the index, one without a time has its append time, so the batch itself decides."""
    newest = timestamp == NEWEST_TIME
    begin = ReadQuery(
        info.name,
        Position.NEWEST if newest else Position.AT_RECORD_TIME,
        max(0, timestamp),
        1,
        touch=False,
        whole_records=True,
        uncommitted=uncommitted,
        append_times=True,
        raw=True,
    )
    at = await _find(stream, info, begin, timestamp)
    if newest and at[0] <= 0 and info.encoding == Encoding.KAFKA:
        begin = replace(begin, record=info.first_record, byte=0)
        return await _find(stream, info, begin, timestamp)
    return at


class _Cut(msgspec.Struct, frozen=True):
    """A batch that may be the one to find, and that holds records before the log start."""

    batch: memoryview
    record: int
    end: int
    first: int  # log start


async def _find(
    stream: StreamHandle, info: StreamInfo, begin: ReadQuery, timestamp: int
) -> tuple[int, int]:
    """Search from a position on. Of a batch that holds records before the log start, only the
    others count, so those behind it are searched too."""
    best = _NONE
    while isinstance(found := await _walk(stream, info, begin, timestamp), _Cut):
        own = await _in_batch(found.batch, found.record, timestamp, found.first)
        if timestamp != NEWEST_TIME and own != _NONE:
            return own
        best = own if own[0] > best[0] else best
        if found.end <= max(begin.record, begin.record_from):
            return best  # a node of an older release does not know `record_from`
        if begin.record < 0:
            begin = replace(begin, record_from=found.end)
        else:
            begin = replace(begin, record=found.end)
    return found if found[0] > best[0] else best


async def _walk(
    stream: StreamHandle, info: StreamInfo, begin: ReadQuery, timestamp: int
) -> tuple[int, int] | _Cut:
    """Look at the headers of batches from a position on, until one is of this time or later. For
    the newest time, look at the first batch of a special position, and else at all."""
    query, newest_ms = begin, -1
    newest: tuple[memoryview, int] | None = None
    while query.record < info.high_watermark:
        page = await read_batches(stream, query)
        if isinstance(page, Refusal) or not page.spans:
            break
        first = page.info.first_record
        for span in page.spans:
            at = span.record
            for batch in batches_of(span.payload):
                header = header_of(batch)
                end = at + header.last_offset_delta + 1
                if header.max_timestamp >= timestamp and at < first:
                    return _Cut(batch, at, end, first)
                if timestamp >= 0 and header.max_timestamp >= timestamp:
                    return await _in_batch(batch, at, timestamp, first)
                if header.max_timestamp > newest_ms:
                    newest_ms, newest = header.max_timestamp, (batch, at)
                at = end
        if begin.record == Position.NEWEST:
            break
        query = replace(query, record=page.record, byte=0, bytes_max=PAGE_BYTES_MAX)
    if timestamp != NEWEST_TIME or newest is None:
        return _NONE
    return await _in_batch(*newest, newest_ms, 0)


async def _in_batch(batch: memoryview, base: int, timestamp: int, first: int) -> tuple[int, int]:
    """Return the first record of this time or later, or of the newest one, in a batch whose header
    says that it has one. Those before the record `first` do not count. A large or a compressed
    batch is decoded in a thread."""
    if header_of(batch).codec or len(batch) > AT_ONCE_BYTES:
        return await asyncio.to_thread(_first_of, batch, base, timestamp, first)
    return _first_of(batch, base, timestamp, first)


def _first_of(batch: memoryview, base: int, timestamp: int, first: int) -> tuple[int, int]:
    """Return the first such record, or `_NONE` if `first` excludes all; the batch's first one if it
    cannot be decoded."""
    try:
        records = (each for each in decoded_records(batch, base) if each.offset >= first)
        if timestamp == NEWEST_TIME:
            found = max(records, key=_TIMESTAMP, default=None)
        else:
            found = next((each for each in records if each.timestamp >= timestamp), None)
    except UnreadableBatch:  # its client compressed it wrongly, or too far
        return header_of(batch).base_timestamp, max(base, first)
    if found is not None:
        return found.timestamp, found.offset
    return _NONE if base < first else (header_of(batch).base_timestamp, base)
