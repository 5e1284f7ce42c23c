"""`/v1/mirror/TOPIC/PARTITION`: batches of another Kafka cluster, at their own offsets, as
`polynya mirror` sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import google_crc32c
import msgspec

from polynya.access.grants import Verb
from polynya.base.futures import settle
from polynya.base.limits import KIB, MIRROR_BATCHES_MAX, TIME_MS_MAX
from polynya.base.names import REPLICATED
from polynya.front.http.api.kafka.topics import prefix_of
from polynya.front.http.protocol.errors import REFUSALS, Failure
from polynya.front.http.protocol.extension import Request, Response, json_response
from polynya.front.kafka.configs import MIRROR_FROM, PROFILE
from polynya.front.kafka.topics.catalog import NAME_RULE, OpenTopic, TopicCatalog, is_topic_name
from polynya.local.api import Refusal, StreamInfo, TrimQuery
from polynya.routing.handle import StreamHandle
from polynya.service.api import Service
from polynya.stream.features.appends.commands import MirrorBatch, MirrorGap
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code, Reply
from polynya.wire.kafka.batches import (
    BatchHeader,
    InvalidBatch,
    batches_of,
    check_mirrored,
)
from polynya.wire.kafka.primitives import Malformed

PREFIX = "/v1/mirror/"
_AT_ONCE_BYTES = 256 * KIB  # a larger body is checked in a thread
_OFFSET_MAX = 2**62
_DIFFERS = (Code.OFFSET_BEYOND_TAIL, Code.PRECONDITION)
# batches as they are stored, the CRCs of all their bytes, and their headers as sent
Checked = list[tuple[bytes, int, BatchHeader]]


class _Range(msgspec.Struct, frozen=True):
    """The part of the source's log that a request has: all from `begin` to `end`. `first`: where
    that log starts; -1: not said."""

    begin: int
    end: int
    first: int


class MirrorRoutes:
    """The handler below `PREFIX`. `topics`: as the core knows them."""

    def __init__(self, service: Service, topics: TopicCatalog) -> None:
        self._service = service
        self._topics = topics

    async def handle(self, request: Request) -> Response:
        """Get the offsets of a partition, or append batches to it. Raises `Failure`."""
        if len(request.segments) != 2:
            raise Failure("NO_ROUTE", f"expected {PREFIX}TOPIC/PARTITION")
        topic, stream = await self._found(*request.segments)
        if request.method in ("GET", "HEAD"):
            return await self._ends(topic, stream)
        if request.method != "POST":
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD, POST"),))
        _check_rights(request, topic)
        source = topic.rules.mirror_from
        if not source:
            raise Failure("TOPIC_CONFLICT", _no_mirror(topic.topic.name))
        if (profile := topic.topic.settings.get(PROFILE, REPLICATED)) != REPLICATED:
            raise Failure("TOPIC_CONFLICT", _PROFILE.format(topic.topic.name, profile))
        wanted, batches = _range_of(request), await _checked(request.body)
        _check_range(wanted, batches)
        await self._append(stream, wanted, batches)
        return await self._ends(topic, stream)

    async def _found(self, name: str, number: str) -> tuple[OpenTopic, StreamHandle]:
        if not is_topic_name(name):
            raise Failure("TOPIC_INVALID", NAME_RULE)
        await self._topics.refresh(local=True)
        topic = await self._topics.open(name)
        if topic is None:
            raise Failure("TOPIC_NOT_FOUND", f"topic '{name}' does not exist")
        is_number = number.isascii() and number.isdigit() and len(number) < 10
        stream = topic.partition(int(number)) if is_number else None
        if stream is None:
            raise Failure(
                "TOPIC_NOT_FOUND",
                f"topic '{name}' has {topic.topic.partitions} partitions, from 0; there is no "
                f"'{number[:20]}'",
            )
        return topic, stream

    async def _ends(self, topic: OpenTopic, stream: StreamHandle) -> Response:
        info = await _info(stream)
        body = {
            "first_offset": info.first_record,
            "next_offset": info.record,
            MIRROR_FROM: topic.rules.mirror_from or None,
        }
        return json_response(body)

    async def _append(self, stream: StreamHandle, wanted: _Range, batches: Checked) -> None:
        """Append the batches in order, then the gap behind them; and let the start follow that of
        the source. Raises `Failure`."""
        info = await _info(stream)
        if wanted.first >= 0 and not info.record:
            start = min(wanted.first, wanted.begin)
            await self._propose(stream, [self._gap(stream, info, start, start, is_first=True)])
            info = await _info(stream)
        begins = [wanted.begin, *(_end_of(header) for _, _, header in batches)]
        now_ms = self._service.now_ms()
        commands = [
            MirrorBatch(
                stream.name, now_ms, _batch(*each), None, info.uid, begin, each[2].base_offset
            )
            for begin, each in zip(begins, batches, strict=False)
        ]
        await self._propose(stream, commands)
        if wanted.end > begins[-1]:
            await self._propose(stream, [self._gap(stream, info, begins[-1], wanted.end)])
        if wanted.first > info.first_record:
            query = TrimQuery(stream.name, wanted.first, incarnation=info.uid, inside=True)
            trimmed = await self._service.trim(query)
            if isinstance(trimmed, Refusal) and trimmed.code != Code.OFFSET_BEYOND_TAIL:
                raise _refused(trimmed.code, trimmed.record)

    def _gap(
        self,
        stream: StreamHandle,
        info: StreamInfo,
        begin: int,
        end: int,
        *,
        is_first: bool = False,
    ) -> MirrorGap:
        return MirrorGap(stream.name, self._service.now_ms(), info.uid, begin, end, is_first)

    async def _propose(
        self, stream: StreamHandle, commands: Sequence[MirrorBatch | MirrorGap]
    ) -> None:
        """Propose commands in order; raise for the first that is refused."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Reply]] = []
        for command in commands:
            future: asyncio.Future[Reply] = loop.create_future()
            futures.append(future)
            stream.propose(command, partial(settle, future))
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome.code not in (Code.OK, Code.DUPLICATE):
                raise _refused(outcome.code, outcome.record)


def _batch(stored: bytes, crc: int, header: BatchHeader) -> Batch:
    """Return a batch whose records are its span of offsets."""
    time_ms = min(max(0, header.max_timestamp), TIME_MS_MAX)
    return Batch(
        Encoding.KAFKA, header.last_offset_delta + 1, stored, crc, record_time_ms_max=time_ms
    )


def _check_rights(request: Request, topic: OpenTopic) -> None:
    """Check that the caller may create the topic and append to it. Raises `Failure`."""
    name, principal = topic.topic.name, request.principal
    for verb in (Verb.CREATE, Verb.APPEND):
        if principal is not None and not principal.may(verb, prefix_of(name)):
            raise Failure("FORBIDDEN", f"the token does not allow '{verb}' on topic '{name}'")


def _no_mirror(name: str) -> str:
    return (
        f"topic '{name}' is no mirror: it was created by others, or its mirror has ended. Delete it "
        "with 'polynya topic rm', or mirror the source under the other name that it has there"
    )


_PROFILE = (
    "topic '{}' has profile={}: batches keep their offsets in replicated topics alone. Mirror into a "
    "topic with profile=replicated, and set another after the cut-over"
)


async def _info(stream: StreamHandle) -> StreamInfo:
    info = await stream.info()
    if isinstance(info, Refusal):
        raise _refused(info.code, info.record)
    return info


def _refused(code: int, tail: int) -> Failure:
    if code in _DIFFERS:
        return Failure(
            "TOPIC_CONFLICT",
            f"the partition ends at offset {tail}, and the request does not go on there: it leaves "
            "something out, or the batches are not those of before; send from that offset on",
        )
    return Failure(REFUSALS.get(code, "UNAVAILABLE"))


def _range_of(request: Request) -> _Range:
    """Return the offsets of a request. Raises `Failure`."""
    begin, end = (_offset(request, name) for name in ("begin", "end"))
    if begin < 0 or end < begin:
        raise Failure(
            "INVALID_PARAMETER",
            f"begin={begin} and end={end}: expected the offsets between which the body has all "
            "records of the source",
        )
    return _Range(begin, end, _offset(request, "first"))


def _offset(request: Request, name: str) -> int:
    text = request.query.get(name)
    if text is None:
        return -1
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _OFFSET_MAX):
        raise Failure("INVALID_PARAMETER", f"{name}={text[:32]}: expected an offset")
    return int(text)


async def _checked(body: bytes) -> Checked:
    """Return the batches of a body. Raises `Failure`."""
    try:
        if len(body) <= _AT_ONCE_BYTES:
            return _check_all(body)
        return await asyncio.to_thread(_check_all, body)
    except (InvalidBatch, Malformed) as invalid:
        raise Failure("INVALID_REQUEST", f"the body is not of record batches: {invalid}") from None


def _check_all(body: bytes) -> Checked:
    found: Checked = []
    size = 0
    for batch in batches_of(body):
        if len(found) == MIRROR_BATCHES_MAX:
            raise InvalidBatch(
                f"more than {MIRROR_BATCHES_MAX} of them; send them in several bodies"
            )
        stored, header = check_mirrored(batch)
        found.append((stored, google_crc32c.value(stored), header))
        size += len(batch)
    if size != len(body):
        raise InvalidBatch(f"{len(body) - size} bytes follow the last whole one")
    return found


def _check_range(wanted: _Range, batches: Checked) -> None:
    """Check that the batches are in order and in the range of the request. Raises `Failure`."""
    at = wanted.begin
    for _, _, header in batches:
        if header.base_offset < at:
            raise Failure(
                "INVALID_REQUEST",
                f"a batch begins at offset {header.base_offset}; expected {at} or later, behind the "
                "one before",
            )
        at = _end_of(header)
    if at > wanted.end:
        raise Failure("INVALID_REQUEST", f"the last batch ends at offset {at}, behind {wanted.end}")


def _end_of(header: BatchHeader) -> int:
    return header.base_offset + header.last_offset_delta + 1
