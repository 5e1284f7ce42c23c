"""Fetch: the stored batches of partitions, with their offsets, as soon as there are enough
bytes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.base.limits import PAGE_BYTES_MAX
from polynya.front.kafka.errors import Error, error_of, error_of_fault
from polynya.front.kafka.leaders import epoch_error_of, follower_of, racks_of, tell_of_fetch
from polynya.service.api import LiveEvent, Page, ReadQuery, Refusal
from polynya.stream.rules.topics import Topic
from polynya.wire.kafka.batches import batches_of, header_of, placed
from polynya.wire.kafka.generated.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from polynya.wire.kafka.primitives import Bytes, Malformed

if TYPE_CHECKING:
    from polynya.front.kafka.dispatch import Call

_IDS_SINCE = 13  # the first version of Fetch that names topics by id
_WAIT_SECONDS_MAX = 60.0
READ_UNCOMMITTED = 0  # the isolation level of readers that want open transactions too


class _Wanted:
    """One partition of a request: where it is read, and its part of the answer."""

    __slots__ = ("answer", "asked", "name", "size")

    def __init__(self, asked: FetchPartition, name: str) -> None:
        self.asked = asked
        self.name = name  # "": its topic is not known
        self.answer = PartitionData(asked.partition)
        self.size = 0

    @property
    def is_answered(self) -> bool:
        """Report whether the client is to act before it fetches here again."""
        return bool(self.answer.error_code) or self.answer.preferred_read_replica >= 0


async def fetch(call: Call, request: FetchRequest) -> FetchResponse:
    """Answer with batches, and with the leaders of partitions that another broker leads."""
    response = await _fetch(call, request)
    tell_of_fetch(call, response)
    return response


async def _fetch(call: Call, request: FetchRequest) -> FetchResponse:
    """Answer with batches, at once or within the time that the client waits for `min_bytes`.

    Fetch sessions are declined, as the protocol allows: each answer has session 0."""
    if request.session_id:
        return FetchResponse(error_code=Error.FETCH_SESSION_ID_NOT_FOUND)
    connection = call.connection
    async with connection.fetching:
        if not await connection.wait_writable():
            return FetchResponse()
        response, wanted = await _wanted(call, request)
        loop = asyncio.get_running_loop()
        until = loop.time() + min(max(request.max_wait_ms, 0) / 1000, _WAIT_SECONDS_MAX)
        while True:
            await _read_all(call, request, [each for each in wanted if not each.is_answered])
            size = sum(each.size for each in wanted)
            if size >= request.min_bytes or loop.time() >= until or connection.transport is None:
                return response
            if any(each.is_answered for each in wanted):
                return response
            await _wait(call, wanted, until)


async def _wanted(call: Call, request: FetchRequest) -> tuple[FetchResponse, list[_Wanted]]:
    """Return the empty answer, and its partitions whose topics are known."""
    response, wanted = FetchResponse(), []
    racks = racks_of(call.front, request.rack_id)
    catalog = call.front.topics
    for asked in request.topics:
        by_id = call.version >= _IDS_SINCE
        missing = Error.UNKNOWN_TOPIC_ID if by_id else Error.UNKNOWN_TOPIC_OR_PARTITION
        topic: Topic | None = None
        try:
            topic = await (catalog.find_id(asked.topic_id) if by_id else catalog.find(asked.topic))
        except PolynyaError as fault:
            missing = error_of_fault(fault)
        name = asked.topic if topic is None else topic.name
        if (topic is not None or not by_id) and not call.caller.may(Verb.READ, name):
            topic, missing = None, Error.TOPIC_AUTHORIZATION_FAILED
        answers = FetchableTopicResponse(asked.topic, asked.topic_id)
        response.responses.append(answers)
        for partition in asked.partitions:
            is_there = topic is not None and 0 <= partition.partition < topic.partitions
            name = topic.stream(partition.partition) if topic is not None else ""
            each = _Wanted(partition, name if is_there else "")
            answers.partitions.append(each.answer)
            each.answer.records = []
            each.answer.aborted_transactions = None
            if is_there:
                given = partition.current_leader_epoch
                each.answer.error_code = epoch_error_of(call.front, name, given)
                follower = follower_of(call.front, name, request.rack_id, racks)
                if follower >= 0:
                    each.answer.preferred_read_replica, each.answer.high_watermark = follower, -1
                wanted.append(each)
            else:
                each.answer.error_code = (
                    missing if topic is None else Error.UNKNOWN_TOPIC_OR_PARTITION
                )
                each.answer.high_watermark = -1
    return response, wanted


async def _read_all(call: Call, request: FetchRequest, wanted: list[_Wanted]) -> None:
    """Fill in the batches, up to the size of the request; the first batch may exceed it."""
    left = min(request.max_bytes, PAGE_BYTES_MAX)
    for each in wanted:
        size = max(1, min(each.asked.partition_max_bytes, left))
        query = ReadQuery(
            each.name,
            each.asked.fetch_offset,
            0,
            size,
            touch=False,
            whole_records=True,
            uncommitted=request.isolation_level == READ_UNCOMMITTED,
        )
        try:
            page = await _read(call, query) if each.asked.fetch_offset >= 0 else None
        except PolynyaError as fault:
            each.answer.error_code = error_of_fault(fault)
            continue
        if isinstance(page, Page):
            fits = left > 0 or not any(other.size for other in wanted)
            _fill(call, each, page, fits=fits)
            left -= each.size
        else:
            each.answer.error_code = (
                Error.OFFSET_OUT_OF_RANGE if page is None else error_of(page.code)
            )
            each.answer.high_watermark = -1


async def _read(call: Call, query: ReadQuery) -> Page | Refusal:
    found = call.front.service.read_nowait(query)
    return await call.front.service.read(query) if found is None else found


def _fill(call: Call, each: _Wanted, page: Page, *, fits: bool) -> None:
    answer, facts = each.answer, page.facts
    service = call.front.service
    epoch = call.front.brokers.epoch_of(service.group_of(each.name))
    answer.high_watermark, answer.last_stable_offset = facts.high_watermark, facts.record
    answer.log_start_offset = facts.first_record
    pieces: list[Bytes] = []
    each.size = 0
    for span in page.spans if fits else ():
        record = span.record
        try:
            for batch in batches_of(span.payload):
                pieces += placed(batch, record, epoch)
                record += header_of(batch).last_offset_delta + 1
                each.size += len(batch)
        except Malformed:
            answer.error_code = Error.NONE if pieces else Error.CORRUPT_MESSAGE
            break
    answer.records = pieces


class _TailWatch:
    """A subscriber that only reports that something was appended."""

    uncommitted = True

    def __init__(self, moved: asyncio.Event) -> None:
        self._moved = moved

    def live(self, event: LiveEvent) -> None:
        self._moved.set()


async def _wait(call: Call, wanted: list[_Wanted], until: float) -> None:
    """Wait until one of the partitions grows, or the time is over."""
    service, moved = call.front.service, asyncio.Event()
    watch = _TailWatch(moved)
    uids: list[int] = []
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                for each in wanted:
                    facts = await service.attach(each.name, watch)
                    if isinstance(facts, Refusal):
                        return
                    uids.append(facts.uid)
                    if facts.high_watermark != each.answer.high_watermark:
                        return
                await moved.wait()
    except PolynyaError:
        await asyncio.sleep(0.1)  # an election: look again soon
    finally:
        for uid in uids:
            service.detach(uid, watch)
