"""Messages between cores: their kinds and bodies (msgpack of msgspec structs). Errors are encoded
by the transport."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from polynya.base.errors import InvalidMessage
from polynya.local.api import Page, ReadQuery, Refusal, StreamInfo
from polynya.local.reads.pieces import PlannedPage, PlannedSpans
from polynya.stream.features.tables.rules import Lag
from polynya.stream.features.tables.state import Table
from polynya.stream.features.topics.state import TopicNews
from polynya.stream.parts import Retention
from polynya.stream.replies import Reply

PROPOSE = 1
INFO = 2
READ = 3
READ_UID = 4
ATTACH = 5
LIST = 6
TABLES = 7
LAG = 8
FLUSH = 9
POSITION_OF_TIME = 10
BUCKETS = 11
LEADERS = 12
PROPOSE_ALL = 13
META = 14
PASS_ON = 15
TOPICS = 16
CONSUMER_GROUPS = 17
EPOCH_END = 18
LEADERS_OF = 19
TRACED = 20  # to another node only by the peer protocol 5: `polynya.routing.requests`
PROPOSALS = (PROPOSE, PROPOSE_ALL)
_TRACE = struct.Struct("<16sQH")  # trace, span, kind of the request behind it


class ReadUid(msgspec.Struct, array_like=True, gc=False):
    uid: int
    at: tuple[int, int]
    until: tuple[int, int]
    limits: tuple[int, bool]  # bytes, whole records
    local: bool = False
    far: bool = False  # the core that asks can read pieces of diskless streams
    append_times: bool = False
    batch_times: bool = False
    raw: bool = False


class TimeOfUid(msgspec.Struct, array_like=True, gc=False):
    uid: int
    time_ms: int
    until: tuple[int, int]
    record_from: int = -1  # a record time, and from which record on; -1: an append time


class ListQuery(msgspec.Struct, array_like=True, gc=False):
    prefix: str
    after: str
    limit: int
    local: bool = False
    groups: list[int] = []  # the groups to list
    attributes: bool = False  # list them with their attributes


class LagQuery(msgspec.Struct, array_like=True, gc=False):
    table: int
    prefix: str
    without: list[str]
    committed: int
    groups: list[int] = []


class Flush(msgspec.Struct, array_like=True, gc=False):
    prefix: str


class Attach(msgspec.Struct, array_like=True, gc=False):
    group: int
    name: str
    local: bool = False
    numbers: bool = False  # of ATTACH: the events need no payload; an older node sends it


class EpochQuery(msgspec.Struct, array_like=True, gc=False):
    group: int
    name: str
    epoch: int


class TopicQuery(msgspec.Struct, array_like=True, gc=False):
    since: int
    local: bool


class Query(msgspec.Struct, array_like=True, gc=False):
    group: int
    query: ReadQuery
    far: bool = False  # as in `ReadUid`


_encoder = msgspec.msgpack.Encoder(
    enc_hook=lambda value: bytes(value) if isinstance(value, memoryview) else _unknown(value)
)


def _unknown(value: Any) -> Any:
    raise NotImplementedError(type(value))


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def traced(trace: int, span: int, kind: int, body: bytes) -> bytes:
    """Return the body of TRACED: a request that is a part of a span's work."""
    return _TRACE.pack(trace.to_bytes(16, "big"), span, kind) + body


def untraced(body: bytes) -> tuple[int, int, int, bytes]:
    """Return the trace, the span, and the kind and the body of the request. Raises
    InvalidMessage."""
    if len(body) < _TRACE.size:
        raise InvalidMessage("a traced request (TRACED) is too short for its head")
    trace, span, kind = _TRACE.unpack_from(body)
    return int.from_bytes(trace, "big"), span, kind, body[_TRACE.size :]


_REPLY: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_FACTS: msgspec.msgpack.Decoder[StreamInfo | Refusal] = msgspec.msgpack.Decoder(
    StreamInfo | Refusal
)
_PAGE: msgspec.msgpack.Decoder[Page | Refusal | PlannedPage] = msgspec.msgpack.Decoder(
    Page | Refusal | PlannedPage
)
_SPANS: msgspec.msgpack.Decoder[PlannedSpans] = msgspec.msgpack.Decoder(PlannedSpans)
_LIST: msgspec.msgpack.Decoder[list[StreamInfo]] = msgspec.msgpack.Decoder(list[StreamInfo])
DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    PROPOSE: _REPLY,
    INFO: _FACTS,
    READ: _PAGE,
    READ_UID: _SPANS,
    ATTACH: _FACTS,
    LIST: _LIST,
    TABLES: msgspec.msgpack.Decoder(list[Table]),
    LAG: msgspec.msgpack.Decoder(list[Lag]),
    POSITION_OF_TIME: msgspec.msgpack.Decoder(tuple[int, int]),
    BUCKETS: msgspec.msgpack.Decoder(dict[str, Retention]),
    FLUSH: msgspec.msgpack.Decoder(None),
    META: msgspec.msgpack.Decoder(dict[str, bytes]),
    EPOCH_END: msgspec.msgpack.Decoder(int | Refusal),
    TOPICS: msgspec.msgpack.Decoder(TopicNews),
}


def decode(kind: int, body: bytes) -> Any:
    """Decode the body of a response. Raises msgspec.DecodeError."""
    return DECODERS[kind].decode(body)


def payload_of(answer: Any) -> int:
    """Return the bytes of records in an answer to a read."""
    if type(answer) is PlannedPage:
        answer = answer.page
    if type(answer) is not Page and type(answer) is not PlannedSpans:
        return 0
    return sum(len(span.payload) for span in answer.spans)
