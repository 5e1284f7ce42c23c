"""Fetch: the stored batches of partitions, with their offsets, as soon as there are enough
bytes."""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import structs

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.base.limits import (
    KAFKA_ELEMENTS_PER_TURN,
    KAFKA_REPEATED_FETCH_BYTES_MAX,
    MIB,
    PAGE_BYTES_MAX,
)
from polynya.front.kafka.auth.handlers import charge_elements
from polynya.front.kafka.brokers import zone_tag
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error, error_of, error_of_fault
from polynya.front.kafka.fetch_sessions.session import FINAL_EPOCH, INITIAL_EPOCH, FetchSession
from polynya.front.kafka.leaders import add_leaders_to_fetch, epoch_error_of, follower_of, racks_of
from polynya.front.kafka.repeated_fetches import RepeatedFetch, Waiting
from polynya.front.kafka.tails import ParkedFetch, Tail
from polynya.front.kafka.topics.catalog import OpenTopic
from polynya.local.api import OWN_ENCODING, Page, ReadQuery, Refusal, StreamInfo
from polynya.routing.handle import StreamHandle
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code
from polynya.wire.kafka.aborted import aborted_in
from polynya.wire.kafka.batches import HEADER_BYTES, empty_batch, place_all
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

_GAPS_MAX = 8  # pages without records that one answer passes
_IDS_SINCE = 13  # the first version of Fetch that names topics by id
_WAIT_SECONDS_MAX = 60.0
_AGAIN_SECONDS = 0.1  # during an election
AT_ONCE_BYTES = 64 << 10  # of records that HTTP wrote; batches of more are built in a thread
READ_UNCOMMITTED = 0  # the isolation level of readers that want open transactions too


class _Wanted:
    """One partition of a request that is there: where it is read, and its part of the answer."""

    __slots__ = ("answer", "asked", "has_more", "is_beyond", "is_read", "size", "stream")

    def __init__(self, asked: FetchPartition, stream: StreamHandle, answer: PartitionData) -> None:
        self.asked = asked
        self.stream = stream
        self.answer = answer
        self.size = 0
        self.is_read = False
        self.is_beyond = False  # the offset is behind all records that are known here
        self.has_more = False  # its tail has records from the offset on

    def has_changed(self, tail: Tail) -> bool:
        """Report whether there may be more to read than there was."""
        if self.is_beyond:
            return not tail.is_live or tail.high >= self.asked.fetch_offset
        high, stable = self.answer.high_watermark, self.answer.last_stable_offset
        return not tail.is_live or tail.high > high or tail.stable > stable

    def note_ends(self, info: StreamInfo) -> None:
        """Take over the ends of the partition; there may be nothing to read."""
        self.is_read, self.is_beyond = True, False
        answer = self.answer
        answer.high_watermark = max(info.high, info.record)
        answer.last_stable_offset, answer.log_start_offset = info.record, info.first_record

    def fill(self, page: Page, leader_epoch: int, *, is_committed: bool) -> None:
        self.note_ends(page.info)
        pieces: list[Bytes] = []
        self.size = 0
        for span in page.spans:
            try:
                self.size += place_all(span.payload, span.record, leader_epoch, pieces.append)
            except Malformed:
                self.answer.error_code = Error.NONE if pieces else Error.CORRUPT_MESSAGE
                break
        else:
            last = page.spans[-1] if page.spans else None
            end = self.asked.fetch_offset if last is None else last.record + last.records
            # no record is at the end of what the client may read, or on the page: without an empty
            # batch it would never go on. Elsewhere a gap needs none, and many clients know none
            if end < page.record and (last is None or (page.up_to_date and last.records)):
                pieces.append(empty_batch(page.record - 1, leader_epoch))
                self.size += HEADER_BYTES
        self.answer.records = pieces
        if is_committed:
            self.answer.aborted_transactions = aborted_in(page.spans)


async def fetch(call: Call, request: FetchRequest) -> FetchResponse | list[Bytes]:
    """Answer with batches, at once or within the time that the client waits for `min_bytes`; and
    with the leaders of partitions that another broker leads. An answer without records is kept for
    a repeat of the request. In a session, the answer has those partitions that have news."""
    repeated, call.session.repeated = call.session.repeated, None
    connection = call.connection
    seconds = min(max(request.max_wait_ms, 0) / 1000, _WAIT_SECONDS_MAX)
    async with call.session.fetching:
        if repeated is not None:
            repeated.end()
        responses = connection.responses
        if responses.write_paused:
            await responses.wait_writable()
        if responses.transport is None:
            return FetchResponse()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        session, is_repeatable = None, True
        if request.session_id or request.session_epoch != FINAL_EPOCH:
            changes_session = bool(request.topics or request.forgotten_topics_data)
            session, error = _resumed(call, request)
            if error:
                return FetchResponse(error_code=error)
            is_repeatable = session is None or not changes_session
        reading = _Reading(call, request)
        await reading.find()
        while not (await reading.read() or loop.time() >= until or connection.is_ending):
            await reading.wait(until)
        response, waiting = await reading.ended()
        if session is not None:
            response.session_id = session.id
            response.responses = session.take(response.responses)
        elif request.session_epoch == INITIAL_EPOCH:
            is_repeatable = not _create_session(call, request, response)
    if not (waiting and is_repeatable) or call.throttle_ms:
        return response
    if len(call.data) > KAFKA_REPEATED_FETCH_BYTES_MAX:
        return response
    assert call.api is not None
    encode = partial(encode_response, call.api, call.version, call.header.correlation)
    pieces, wait = encode(response), (request.min_bytes, seconds)
    empty = encode(FetchResponse(session_id=session.id)) if session is not None else pieces
    call.session.repeated = RepeatedFetch(call, empty, waiting, wait, session)
    return pieces


def _resumed(call: Call, request: FetchRequest) -> tuple[FetchSession | None, Error]:
    """Find the session of a request, whose partitions become all those of the session."""
    now = asyncio.get_running_loop().time()
    sessions, by_id = call.context.fetch_sessions, call.version >= _IDS_SINCE
    session, error = sessions.resume(call.session.fetches, request, by_id=by_id, now=now)
    if session is not None:
        request.topics = session.topics()
        if len(session.partitions) >= KAFKA_ELEMENTS_PER_TURN:
            charge_elements(call, len(session.partitions))
    return session, error


def _create_session(call: Call, request: FetchRequest, response: FetchResponse) -> bool:
    """Offer a session to a client that wants one, if its connection is still open; return False
    if there is none."""
    if call.connection.responses.transport is None:
        return False
    now, by_id = asyncio.get_running_loop().time(), call.version >= _IDS_SINCE
    session = call.context.fetch_sessions.create(
        request.topics, response.responses, by_id=by_id, now=now
    )
    call.session.fetches = session
    if session is None:
        return False
    response.session_id = session.id
    return True


def _goes_on(found: Page | Refusal, query: ReadQuery) -> bool:
    """Report whether a page has no records because it was in a gap: they follow it."""
    return (
        isinstance(found, Page)
        and not found.spans
        and not found.up_to_date
        and found.record > query.record
    )


class _Reading:
    """The reads of one request, and its waits between them."""

    def __init__(self, call: Call, request: FetchRequest) -> None:
        self._call = call
        self._request = request
        self._response = FetchResponse()
        self._wanted: list[_Wanted] = []
        self._uncommitted = request.isolation_level == READ_UNCOMMITTED
        self._bytes_max = min(request.max_bytes, PAGE_BYTES_MAX)
        self._size = 0
        # the client is to act on a partition before it fetches there again
        self._is_answered = False

    async def find(self) -> None:
        """Find the partitions, and answer for those that are not read here."""
        call, rack = self._call, self._request.rack_id
        racks = racks_of(call.context.brokers, rack) if rack else {}
        catalog, by_id = call.context.topics, call.version >= _IDS_SINCE
        unknown = Error.UNKNOWN_TOPIC_ID if by_id else Error.UNKNOWN_TOPIC_OR_PARTITION
        found: dict[str | bytes, tuple[OpenTopic | None, Error]] = {}
        worked = 0
        for asked in self._request.topics:
            key = asked.topic_id if by_id else asked.topic
            topic, missing = found.get(key) or (catalog.ready(key), unknown)
            if key not in found:  # a session may have a topic in several places
                if topic is None:
                    try:
                        topic = await catalog.open(key)
                    except PolynyaError as fault:
                        missing = error_of_fault(fault)
                name = asked.topic if topic is None else topic.topic.name
                if (topic is not None or not by_id) and not call.caller.may(Verb.READ, name):
                    topic, missing = None, Error.TOPIC_AUTHORIZATION_FAILED
                found[key] = topic, missing
            answers = FetchableTopicResponse(asked.topic, asked.topic_id)
            self._response.responses.append(answers)
            for partition in asked.partitions:
                answer = PartitionData(partition.partition, records=[], aborted_transactions=None)
                answers.partitions.append(answer)
                worked += 1
                if not worked % KAFKA_ELEMENTS_PER_TURN:
                    await asyncio.sleep(0)
                if topic is None:
                    self._refuse(answer, missing)
                else:
                    self._want(partition, topic, racks, answer)

    def _want(
        self,
        asked: FetchPartition,
        topic: OpenTopic,
        racks: dict[int, str],
        answer: PartitionData,
    ) -> None:
        """Read a partition, unless it is not there or another broker is to be asked."""
        brokers, rack = self._call.context.brokers, self._request.rack_id
        stream, given = topic.partition(asked.partition), asked.current_leader_epoch
        if stream is None:
            self._refuse(answer, Error.UNKNOWN_TOPIC_OR_PARTITION)
        elif given >= 0 and (error := epoch_error_of(brokers, stream.group, given)):
            self._refuse(answer, error)
        elif racks and (follower := follower_of(brokers, topic.topic, stream, rack, racks)) >= 0:
            self._is_answered = True
            answer.preferred_read_replica, answer.high_watermark = follower, -1
        else:
            self._wanted.append(_Wanted(asked, stream, answer))

    def _refuse(self, answer: PartitionData, error: Error) -> None:
        self._is_answered = True
        answer.error_code, answer.records = error, []
        answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1

    def _give_up(self, each: _Wanted, error: Error) -> None:
        """Refuse a partition that could not be read."""
        each.is_read, each.is_beyond = True, False
        self._refuse(each.answer, error)

    async def read(self) -> bool:
        """Read what is not read, up to the size of the request; the first batch may exceed it.
        Return whether the answer may leave: it has enough bytes, or an error.

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
                await asyncio.gather(*map(self._update_ends, late))
                break
            some = late[: max(1, left // MIB)]  # each may exceed its share by a batch
            del late[: len(some)]
            await asyncio.gather(*(self._read_late(each, left // len(some)) for each in some))
        return self._size >= self._request.min_bytes or self._is_answered

    def _read_now(self, each: _Wanted) -> bool:
        """Read a partition of this core's memory; return False if it is not there."""
        offset, left = each.asked.fetch_offset, self._bytes_max - self._size
        if offset < 0:
            self._give_up(each, Error.OFFSET_OUT_OF_RANGE)
            return True
        is_full = left <= 0 and self._size > 0
        info = None if each.has_more and not is_full else each.stream.info_nowait()
        if isinstance(info, StreamInfo):
            each.note_ends(info)
            ends = each.answer
            each.is_beyond = offset > ends.high_watermark
            end = ends.high_watermark if self._uncommitted else ends.last_stable_offset
            if each.is_beyond or end <= offset or is_full:
                return True
        query = self._query(each, left)
        found = each.stream.read_nowait(query)
        if found is None or _goes_on(found, query):
            return False
        if (
            isinstance(found, Page)
            and found.info.encoding != Encoding.KAFKA
            and (size := foreign_bytes(found))
        ):
            if size > AT_ONCE_BYTES:
                return False
            build_batches(found)
        self._take(each, found)
        return True

    async def _read_late(self, each: _Wanted, size: int) -> None:
        query = self._query(each, size)
        try:
            found = await read_batches(each.stream, query)
            for _ in range(_GAPS_MAX):
                if not _goes_on(found, query):
                    break
                query = structs.replace(query, record=found.record)
                found = await read_batches(each.stream, query)
            self._take(each, found)
        except PolynyaError as fault:
            self._give_up(each, error_of_fault(fault))

    async def _update_ends(self, each: _Wanted) -> None:
        """Give the ends of a partition that is not read, as the answer is full."""
        try:
            info = await each.stream.info()
        except PolynyaError as fault:
            self._give_up(each, error_of_fault(fault))
            return
        if isinstance(info, StreamInfo):
            each.note_ends(info)
        else:
            self._give_up(each, error_of(info.code))

    def _query(self, each: _Wanted, size: int) -> ReadQuery:
        return ReadQuery(
            each.stream.name,
            each.asked.fetch_offset,
            0,
            max(1, min(each.asked.partition_max_bytes, size)),
            touch=False,
            whole_records=True,
            uncommitted=self._uncommitted,
            sequential=True,
            append_times=True,
            raw=True,
        )

    def _take(self, each: _Wanted, found: Page | Refusal) -> None:
        if isinstance(found, Page):
            self._size -= each.size
            epoch = self._call.context.brokers.epoch_of(each.stream.group)
            each.fill(found, epoch, is_committed=not self._uncommitted)
            self._size += each.size
            self._is_answered |= bool(each.answer.error_code)
        elif found.code == Code.OFFSET_BEYOND_TAIL:
            each.is_read = each.is_beyond = True
            each.answer.high_watermark = found.record
        else:
            self._give_up(each, error_of(found.code))

    async def ended(self) -> tuple[FetchResponse, list[Waiting]]:
        """Return the answer, and where the client waits, if there is nothing else to tell."""
        call = self._call
        for each in self._wanted:
            if each.is_beyond:
                await self._settle(each)
        if zone := self._request.rack_id or zone_tag(call.header.client_id):
            call.context.clients.send(zone, self._size)
        if self._is_answered:
            add_leaders_to_fetch(call, self._response)
        elif not (self._size or self._request.rack_id):
            return self._response, self._waiting()
        return self._response, []

    def _waiting(self) -> list[Waiting]:
        """Return where the client waits; nothing if it got records."""
        found: list[Waiting] = []
        context = self._call.context
        for each in self._wanted:
            answer, stream = each.answer, each.stream
            end = answer.high_watermark if self._uncommitted else answer.last_stable_offset
            if each.asked.fetch_offset < end or not stream.is_readable:
                return []
            tail = context.tails.known(stream.name)
            if tail is None:
                return []
            ends = answer.high_watermark, answer.last_stable_offset
            epoch = context.brokers.epoch_of(stream.group)
            found.append(Waiting(stream.group, epoch, tail, *ends))
        return found

    async def wait(self, until: float) -> None:
        """Wait until the partitions have grown enough, or the time is over. Those that have
        changed are to be read again."""
        parked = ParkedFetch(self._request.min_bytes - self._size)
        self._call.session.parked = parked
        followed: list[tuple[_Wanted, Tail]] = []
        tails = self._call.context.tails
        try:
            for each in self._wanted:
                tail = tails.known(each.stream.name) or await self._follow(each, until)
                if tail is None:
                    each.is_read = False
                    parked.wake()
                    continue
                tail.parked[parked] = None
                followed.append((each, tail))
                if each.has_changed(tail):
                    parked.wake()
            await parked.wait_until(until)
            self._call.waited(is_woken=parked.is_touched)
        finally:
            self._call.session.parked = None
            for each, tail in followed:
                tail.parked.pop(parked, None)
                each.is_read = each.is_read and not each.has_changed(tail)
                end = tail.high if self._uncommitted else tail.stable
                each.has_more = tail.is_live and end > each.asked.fetch_offset

    async def _follow(self, each: _Wanted, until: float) -> Tail | None:
        """Begin to follow a partition; None if that fails, or takes too long."""
        try:
            async with asyncio.timeout_at(until):
                return await self._call.context.tails.follow(each.stream)
        except TimeoutError:
            return None
        except PolynyaError:
            await asyncio.sleep(_AGAIN_SECONDS)  # an election
            return None

    async def _settle(self, each: _Wanted) -> None:
        """Decide about an offset behind all known records: out of range only if the leader says so,
        as consumers reset their position then."""
        try:
            info = await each.stream.info()
        except PolynyaError:
            self._give_up(each, Error.OFFSET_NOT_AVAILABLE)
            return
        if isinstance(info, Refusal):
            self._give_up(each, error_of(info.code))
        elif each.asked.fetch_offset > info.high_watermark:
            self._give_up(each, Error.OFFSET_OUT_OF_RANGE)
        else:
            each.note_ends(info)


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


async def read_batches(stream: StreamHandle, query: ReadQuery) -> Page | Refusal:
    """Read a page whose spans are record batches."""
    page = stream.read_nowait(query)
    if page is None:
        page = await stream.read(query)
    if not isinstance(page, Page):
        return page
    size = foreign_bytes(page)
    if size > AT_ONCE_BYTES:
        await asyncio.to_thread(build_batches, page)
    elif size:
        build_batches(page)
    return page
