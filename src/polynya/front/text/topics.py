"""The commands of the text protocol over the service: topics, messages and the shared cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.limits import KIB
from polynya.base.msgpack import UNREADABLE
from polynya.base.names import DISKLESS, LEASED, REPLICATED, BadName, canonical_name
from polynya.front.text.cursors import CursorRefused, Cursors, json_batch
from polynya.front.text.protocol import TextCommand
from polynya.local.api import Page, Position, ReadQuery, Refusal
from polynya.routing.handle import StreamHandle
from polynya.routing.proposals import reply_to
from polynya.service.api import Service
from polynya.service.stream_segments import LeasedSegments
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import Encoding, SegmentLimits
from polynya.stream.replies import Code, Reply
from polynya.wire.kafka.records import decoded_records

_JSON = "application/json"
AT_ONCE_BYTES = 64 * KIB  # of a page; the message of a larger one is found in a thread
STREAMS_MAX = 10_000  # whose handles a core keeps
_TRIES = 50  # a GET that loses against others this often answers with an error
_encode = msgspec.json.Encoder().encode


class TextError(Exception):
    """A command failed; the message is the response."""


class NodeView(msgspec.Struct, frozen=True):
    """Facts of the node for `STATE` and `METRICS`. `leader_of` maps a stream to a node, 0
    unknown."""

    node: int
    leader_of: Callable[[str], int]
    leader: Callable[[], int]  # of the meta group
    nodes: Callable[[], list[int]]
    # the segments of a leased stream; None: it has none
    segments: Callable[[str], Awaitable[LeasedSegments | None]]
    profile: str = REPLICATED  # of new topics


class Topics:
    """Topics as streams of JSON strings."""

    def __init__(self, service: Service, view: NodeView) -> None:
        self._service = service
        self._view = view
        self._cursors = Cursors(service)
        self._streams: dict[str, StreamHandle] = {}  # of the topics that were used last

    def _stream(self, topic: str) -> StreamHandle:
        """Return the stream of a topic. Raises `TextError`."""
        found = self._streams.get(topic)
        if found is None:
            name = topic_name(topic)
            if len(self._streams) >= STREAMS_MAX:
                del self._streams[next(iter(self._streams))]
            found = self._streams[topic] = self._service.open(name)
        return found

    async def run(self, command: TextCommand) -> str:
        """Run a command other than PUT and return the response. Raises `TextError`,
        `PolynyaError`."""
        if command.verb == "METRICS":
            return self._metrics()
        stream = self._stream(command.argument)
        if command.verb == "REGISTER":
            return await self._register(command.argument, stream)
        if command.verb == "GET":
            return await self._get(command.argument, stream)
        return await self._state(command.argument, stream)

    def put(self, command: TextCommand, done: Callable[[str], None]) -> None:
        """Append a message; `done` gets the response. Raises `TextError`."""
        topic = command.argument
        stream = self._stream(topic)

        def answered(reply: Reply | BaseException) -> None:
            if isinstance(reply, BaseException):
                done(fault(reply))
            else:
                done("OK" if reply.code < Code.NOT_FOUND else refused(topic, reply.code))

        batch = json_batch(_encode(command.payload))
        stream.append(Append(stream.name, self._service.now_ms(), _JSON, batch), answered)

    async def _register(self, topic: str, stream: StreamHandle) -> str:
        wanted = self._view.profile
        segments = SegmentLimits(0, 0) if wanted == LEASED else None
        profile = Profile.DISKLESS if wanted == DISKLESS else Profile.REPLICATED
        now_ms = self._service.now_ms()
        create = Create(
            stream.name, now_ms, _JSON, Encoding.JSON, segments=segments, profile=profile
        )
        reply = await reply_to(partial(stream.propose, create))
        # perhaps with a retention: what matters is the type
        if reply.code == Code.EXISTS_DIFFERENT:
            info = await stream.info()
            if not isinstance(info, Refusal) and info.encoding == Encoding.JSON:
                return "OK"
        return "OK" if reply.code < Code.NOT_FOUND else refused(topic, reply.code)

    async def _get(self, topic: str, stream: StreamHandle) -> str:
        """Return the message at the cursor, and move the cursor behind it first."""
        for _ in range(_TRIES):
            cursor = await self._cursors.read(stream.name)
            record = cursor.record
            page = await self._read(topic, stream, record, cursor.byte)
            # of a deleted topic with this name
            if page.info.uid != cursor.uid and record != Position.START:
                page = await self._read(topic, stream, Position.START, 0)
            if page.info.encoding != Encoding.JSON:
                return refused(topic, Code.CONTENT_TYPE)
            if not page.spans:
                return "EMPTY"
            take = partial(_first_message, page, max(record, page.first_record))
            is_quick = sum(len(span.payload) for span in page.spans) <= AT_ONCE_BYTES
            message, after = take() if is_quick else await asyncio.to_thread(take)
            try:
                if await self._cursors.advance(cursor, page.info.uid, after, page.byte):
                    return "OK " + message
            except CursorRefused as refusal:
                return refused("the cursor", refusal.code)
        return f"ERR too many readers of {topic} at once; retry"

    async def _read(self, topic: str, stream: StreamHandle, record: int, byte: int) -> Page:
        """Read one message. Raises `TextError`."""
        while True:
            query = ReadQuery(stream.name, record, byte, bytes_max=1)
            page = stream.read_nowait(query) or await stream.read(query)
            if not isinstance(page, Page):
                break
            if page.spans or page.up_to_date or page.record <= record:
                return page
            record, byte = page.record, page.byte  # behind aborted batches, of which there are many
            await asyncio.sleep(0)
        if page.code in (Code.TRIMMED, Code.OFFSET_BEYOND_TAIL) and record != Position.START:
            return await self._read(topic, stream, Position.START, 0)
        raise TextError(refused(topic, page.code))

    async def _state(self, topic: str, stream: StreamHandle) -> str:
        name, info = stream.name, await stream.info()
        if isinstance(info, Refusal):
            return refused(topic, info.code)
        if info.segment:
            found = await self._view.segments(name)
            if found is not None:
                return _encode(_state_of(found)).decode()
        leader = self._view.leader_of(name) or self._view.node
        state = {
            "current_segment": 1,
            "leader_node": leader,
            "last_sealed_entry_offset": 0,
            "sealed_segments": {},
            "segment_leaders": {"1": leader},
        }
        return _encode(state).decode()

    def _metrics(self) -> str:
        """Return the fields of Walrus' Raft metrics that exist here, of the group that keeps the
        cluster."""
        view = self._view
        leader = view.leader() or view.node
        metrics = {
            "running_state": {"Ok": None},
            "id": view.node,
            "state": "Leader" if leader == view.node else "Follower",
            "current_leader": leader,
            "membership_config": {"membership": {"configs": [view.nodes()]}},
        }
        return msgspec.json.format(_encode(metrics), indent=2).decode()


def topic_name(topic: str) -> str:
    """Return the canonical name of a topic's stream. Raises `TextError`."""
    try:
        return canonical_name(topic)
    except BadName as bad:
        raise TextError(f"ERR invalid topic {topic}: {bad}") from None


def refused(topic: str, code: int) -> str:
    """Return the response for a refusal."""
    if code in (Code.NOT_FOUND, Code.GONE):
        return f"ERR unknown topic {topic}"
    if code in (Code.CONTENT_TYPE, Code.EXISTS_DIFFERENT):
        return (
            f"ERR stream {topic} does not hold JSON records; the text protocol reads and writes "
            "JSON strings"
        )
    return f"ERR {Code(code).name}: the command for {topic} was refused"


def fault(error: BaseException) -> str:
    """Return the response for a fault."""
    if isinstance(error, PolynyaError):
        return f"ERR {error}"
    return f"ERR internal error: {type(error).__name__}"


def _state_of(found: LeasedSegments) -> dict[str, object]:
    """Return the segments as Walrus' `STATE` has them; a segment's number is its epoch."""
    opened = found.segments[-1]
    return {
        "current_segment": opened.epoch,
        "leader_node": opened.writer,
        "last_sealed_entry_offset": opened.record,
        "sealed_segments": {str(each.epoch): each.records for each in found.segments[:-1]},
        "segment_leaders": {str(each.epoch): each.writer for each in found.segments},
    }


def _first_message(page: Page, record: int) -> tuple[str, int]:
    """Return the text of the first message in a page, from a record on, and the record after it."""
    span = page.spans[0]
    if span.encoding != Encoding.KAFKA:
        return _message(b"".join(bytes(span.payload) for span in page.spans)[:-1]), page.record
    first = next(
        each for each in decoded_records(span.payload, span.record) if each.offset >= record
    )
    return _message(first.value or b"null"), first.offset + 1


def _message(stored: bytes) -> str:
    """Return the text of a record; a record that is no string as its JSON."""
    if not stored.startswith(b'"'):
        return stored.decode()
    try:
        return msgspec.json.decode(stored, type=str)
    except UNREADABLE:  # a string with half a surrogate pair, which only HTTP clients write
        return stored.decode()
