"""Fetch: the stored batches of partitions, with their offsets, as soon as there are enough
bytes."""

from __future__ import annotations

import asyncio

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.base.limits import (
    KAFKA_ELEMENTS_PER_TURN,
    KAFKA_REPEATED_FETCH_BYTES_MAX,
    MIB,
    PAGE_BYTES_MAX,
)
from polynya.front.kafka.brokers import zone_tag
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error, error_of, error_of_fault
from polynya.front.kafka.leaders import epoch_error_of, follower_of, racks_of, tell_of_fetch
from polynya.front.kafka.repeated_fetches import RepeatedFetch, Waiting
from polynya.front.kafka.tails import ParkedFetch, Tail
from polynya.local.api import OWN_ENCODING, Page, ReadQuery, Refusal, StreamInfo
from polynya.service.api import Service
from polynya.stream.commands import Encoding
from polynya.stream.replies import Code
from polynya.stream.rules.topics import Topic
from polynya.wire.kafka.batches import place_all
from polynya.wire.kafka.generated.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from polynya.wire.kafka.messages import encode_response
from polynya.wire.kafka.primitives import Bytes, Malformed
from polynya.wire.plain_batches import NO_TIME, record_batches
from polynya.wire.record_pages import StoredSpan

_IDS_SINCE = 13  # the first version of Fetch that names topics by id
_WAIT_SECONDS_MAX = 60.0
_AGAIN_SECONDS = 0.1  # during an election
AT_ONCE_BYTES = 64 << 10  # of records that HTTP wrote; batches of more are built in a thread
READ_UNCOMMITTED = 0  # the isolation level of readers that want open transactions too


class _Wanted:
    """One partition of a request: where it is read, and its part of the answer."""

    __slots__ = ("answer", "asked", "is_beyond", "is_read", "name", "size")

    def __init__(self, asked: FetchPartition, name: str) -> None:
        self.asked = asked
        self.name = name  # "": its topic is not known
        self.answer = PartitionData(asked.partition, records=[], aborted_transactions=None)
        self.size = 0
        self.is_read = False
        self.is_beyond = False  # the offset is behind all records that are known here

    def refuse(self, error: Error) -> None:
        self.is_read, self.is_beyond = True, False
        self.answer.error_code, self.answer.high_watermark = error, -1
        self.answer.records = []

    def has_changed(self, tail: Tail) -> bool:
        """Report whether there may be more to read than there was."""
        if self.is_beyond:
            return not tail.is_live or tail.high >= self.asked.fetch_offset
        high, stable = self.answer.high_watermark, self.answer.last_stable_offset
        return not tail.is_live or tail.high > high or tail.stable > stable

    def place(self, info: StreamInfo) -> None:
        """Take over the ends of the partition; there may be nothing to read."""
        self.is_read, self.is_beyond = True, False
        answer = self.answer
        answer.high_watermark, answer.last_stable_offset = info.high_watermark, info.record
        answer.log_start_offset = info.first_record

    def fill(self, page: Page, leader_epoch: int) -> None:
        self.place(page.info)
        pieces: list[Bytes] = []
        self.size = 0
        for span in page.spans:
            try:
                self.size += place_all(span.payload, span.record, leader_epoch, pieces.append)
            except Malformed:
                self.answer.error_code = Error.NONE if pieces else Error.CORRUPT_MESSAGE
                break
        self.answer.records = pieces

    @property
    def is_answered(self) -> bool:
        """Report whether the client is to act before it fetches here again."""
        return bool(self.answer.error_code) or self.answer.preferred_read_replica >= 0


async def fetch(call: Call, request: FetchRequest) -> FetchResponse | list[Bytes]:
    """Answer with batches, and with the leaders of partitions that another broker leads. An answer
    without records is kept for a repeat of the request."""
    call.session.repeated = None
    response, waiting = await _fetch(call, request)
    tell_of_fetch(call, response)
    if not waiting or call.throttle_ms or len(call.data) > KAFKA_REPEATED_FETCH_BYTES_MAX:
        return response
    assert call.api is not None
    pieces = encode_response(call.api, call.version, call.header.correlation, response)
    wait = (request.min_bytes, _wait_seconds(request))
    call.session.repeated = RepeatedFetch(call, pieces, waiting, wait)
    return pieces


def _wait_seconds(request: FetchRequest) -> float:
    return min(max(request.max_wait_ms, 0) / 1000, _WAIT_SECONDS_MAX)


async def _fetch(call: Call, request: FetchRequest) -> tuple[FetchResponse, list[Waiting]]:
    """Answer with batches, at once or within the time that the client waits for `min_bytes`; and
    with the partitions at whose ends it waits, if nothing else is to tell.

    Fetch sessions are declined, as the protocol allows: each answer has session 0."""
    if request.session_id:
        return FetchResponse(error_code=Error.FETCH_SESSION_ID_NOT_FOUND), []
    connection = call.connection
    async with call.session.fetching:
        if not await connection.wait_writable():
            return FetchResponse(), []
        response, wanted = await _wanted(call, request)
        reading = _Reading(call, request, wanted)
        loop = asyncio.get_running_loop()
        until = loop.time() + _wait_seconds(request)
        await reading.read()
        while not (reading.is_enough or loop.time() >= until or connection.is_ending):
            await reading.wait(until)
            await reading.read()
        await reading.settle()
        if zone := request.rack_id or zone_tag(call.header.client_id):
            call.context.clients.send(zone, reading.size)
        return response, [] if request.rack_id else reading.waiting()


async def _wanted(call: Call, request: FetchRequest) -> tuple[FetchResponse, list[_Wanted]]:
    """Return the empty answer, and its partitions whose topics are known."""
    response, wanted = FetchResponse(), []
    racks = racks_of(call.context, request.rack_id)
    catalog = call.context.topics
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
            wanted.append(each)
            if not len(wanted) % KAFKA_ELEMENTS_PER_TURN:
                await asyncio.sleep(0)
            if not is_there:
                each.refuse(missing if topic is None else Error.UNKNOWN_TOPIC_OR_PARTITION)
            elif error := epoch_error_of(call.context, name, partition.current_leader_epoch):
                each.refuse(error)
            elif (
                topic is not None
                and (follower := follower_of(call.context, topic, name, request.rack_id, racks))
                >= 0
            ):
                each.is_read = True
                each.answer.preferred_read_replica, each.answer.high_watermark = follower, -1
    return response, wanted


class _Reading:
    """The reads of one request, and its waits between them."""

    def __init__(self, call: Call, request: FetchRequest, wanted: list[_Wanted]) -> None:
        self._service = call.context.service
        self._brokers = call.context.brokers
        self._tails = call.context.tails
        self._session = call.session
        self._wanted = wanted
        self._uncommitted = request.isolation_level == READ_UNCOMMITTED
        self._min_bytes = request.min_bytes
        self._bytes_max = min(request.max_bytes, PAGE_BYTES_MAX)
        self._size = 0

    @property
    def is_enough(self) -> bool:
        """Report whether the answer may leave: it has enough bytes, or an error."""
        return self._size >= self._min_bytes or any(each.is_answered for each in self._wanted)

    @property
    def size(self) -> int:
        """The bytes of the batches that were read."""
        return self._size

    async def read(self) -> None:
        """Read what is not read, up to the size of the request; the first batch may exceed it.

        Partitions in memory are read first, others together: their slices come at once."""
        late = []
        for number, each in enumerate(self._wanted):
            if number and not number % KAFKA_ELEMENTS_PER_TURN:
                await asyncio.sleep(0)
            if not each.is_read and not self._read_now(each):
                late.append(each)
        while late:
            left = self._bytes_max - self._size
            if left <= 0 and self._size:
                await asyncio.gather(*map(self._place, late))
                return
            some = late[: max(1, left // MIB)]  # each may exceed its share by a batch
            del late[: len(some)]
            await asyncio.gather(*(self._read_late(each, left // len(some)) for each in some))

    def _read_now(self, each: _Wanted) -> bool:
        """Read a partition of this core's memory; return False if it is not there."""
        offset = each.asked.fetch_offset
        if offset < 0:
            each.refuse(Error.OFFSET_OUT_OF_RANGE)
            return True
        info = self._service.info_nowait(each.name)
        left = self._bytes_max - self._size
        if isinstance(info, StreamInfo):
            end = info.high_watermark if self._uncommitted else info.record
            if offset > info.high_watermark:
                each.place(info)
                each.is_beyond = True
                return True
            if (end <= offset <= info.high_watermark) or (left <= 0 and self._size):
                each.place(info)
                return True
        found = self._service.read_nowait(self._query(each, left))
        if found is None:
            return False
        if isinstance(found, Page) and (size := foreign_bytes(found)):
            if size > AT_ONCE_BYTES:
                return False
            build_batches(found)
        self._take(each, found)
        return True

    async def _read_late(self, each: _Wanted, size: int) -> None:
        try:
            self._take(each, await read_batches(self._service, self._query(each, size)))
        except PolynyaError as fault:
            each.refuse(error_of_fault(fault))

    async def _place(self, each: _Wanted) -> None:
        """Give the ends of a partition that is not read, as the answer is full."""
        try:
            info = await self._service.info(each.name)
        except PolynyaError as fault:
            each.refuse(error_of_fault(fault))
            return
        if isinstance(info, StreamInfo):
            each.place(info)
        else:
            each.refuse(error_of(info.code))

    def _query(self, each: _Wanted, size: int) -> ReadQuery:
        return ReadQuery(
            each.name,
            each.asked.fetch_offset,
            0,
            max(1, min(each.asked.partition_max_bytes, size)),
            touch=False,
            whole_records=True,
            uncommitted=self._uncommitted,
            sequential=True,
            append_times=True,
        )

    def _take(self, each: _Wanted, found: Page | Refusal) -> None:
        if isinstance(found, Page):
            self._size -= each.size
            each.fill(found, self._brokers.epoch_of(self._service.group_of(each.name)))
            self._size += each.size
        elif found.code == Code.OFFSET_BEYOND_TAIL:
            each.is_read = each.is_beyond = True
            each.answer.high_watermark = found.record
        else:
            each.refuse(error_of(found.code))

    def waiting(self) -> list[Waiting]:
        """Return where the client waits, if there is nothing else to tell; else nothing."""
        found: list[Waiting] = []
        for each in self._wanted:
            answer, group = each.answer, self._service.group_of(each.name)
            end = answer.high_watermark if self._uncommitted else answer.last_stable_offset
            is_at_end = not each.is_answered and each.asked.fetch_offset >= end
            if not is_at_end or not self._service.is_readable(group):
                return []
            tail = self._tails.known(each.name)
            if tail is None:
                return []
            ends = answer.high_watermark, answer.last_stable_offset
            found.append(Waiting(group, self._brokers.epoch_of(group), tail, *ends))
        return found

    async def wait(self, until: float) -> None:
        """Wait until the partitions have grown enough, or the time is over. Those that have
        changed are to be read again."""
        parked = ParkedFetch(self._min_bytes - self._size)
        self._session.parked = parked
        followed: list[tuple[_Wanted, Tail]] = []
        try:
            for each in self._wanted:
                tail = self._tails.known(each.name) or await self._follow(each, until)
                if tail is None:
                    each.is_read = False
                    parked.wake()
                    continue
                tail.parked[parked] = None
                followed.append((each, tail))
                if each.has_changed(tail):
                    parked.wake()
            await parked.wait_until(until)
        finally:
            self._session.parked = None
            for each, tail in followed:
                tail.parked.pop(parked, None)
                each.is_read = each.is_read and not each.has_changed(tail)

    async def _follow(self, each: _Wanted, until: float) -> Tail | None:
        """Begin to follow a partition; None if that fails, or takes too long."""
        try:
            async with asyncio.timeout_at(until):
                return await self._tails.follow(each.name)
        except TimeoutError:
            return None
        except PolynyaError:
            await asyncio.sleep(_AGAIN_SECONDS)  # an election
            return None

    async def settle(self) -> None:
        """Decide about offsets behind all known records: out of range only if the leader says so,
        as consumers reset their position then."""
        for each in self._wanted:
            if not each.is_beyond:
                continue
            try:
                info = await self._service.info(each.name)
            except PolynyaError:
                each.refuse(Error.OFFSET_NOT_AVAILABLE)
                continue
            if isinstance(info, Refusal):
                each.refuse(error_of(info.code))
            elif each.asked.fetch_offset > info.high_watermark:
                each.refuse(Error.OFFSET_OUT_OF_RANGE)
            else:
                each.place(info)


# --- records that HTTP wrote ---------------------------------------------------------------------


def foreign_bytes(page: Page) -> int:
    """Return the bytes of a page that are not in record batches."""
    if page.info.encoding == Encoding.KAFKA:
        return 0
    return sum(len(span.payload) for span in page.spans if span.encoding != Encoding.KAFKA)


def build_batches(page: Page) -> None:
    """Replace the records that HTTP wrote by record batches."""
    for span in page.spans:
        encoding = page.info.encoding if span.encoding == OWN_ENCODING else span.encoding
        times = (span.time_ms or NO_TIME, span.append_times)
        span.payload = record_batches(
            StoredSpan(span.record, span.byte, span.payload, encoding, span.lengths, *times)
        )
        span.encoding = Encoding.KAFKA


async def read_batches(service: Service, query: ReadQuery) -> Page | Refusal:
    """Read a page whose spans are record batches."""
    page = service.read_nowait(query)
    if page is None:
        page = await service.read(query)
    if not isinstance(page, Page):
        return page
    size = foreign_bytes(page)
    if size > AT_ONCE_BYTES:
        await asyncio.to_thread(build_batches, page)
    elif size:
        build_batches(page)
    return page
