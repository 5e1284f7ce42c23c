"""What the client gives back: facts of streams, receipts of appends, pages, records, events; and JSON in and out."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from polynya.base.offsets import format_token, parse_token
from polynya.client.errors import AnswerDamaged

JSON_TYPE = "application/json"
START = "-1"  # the offset of a stream's start
NOW = "now"  # the offset of its tail
SERVER_DEFAULT = "http://127.0.0.1:4437"

Consistency: TypeAlias = Literal["leader", "local"]  # all that was acknowledged before the question; what the asked node has
Json: TypeAlias = Any  # what msgspec can encode; msgspec.Raw is JSON text as it is
_encoder = msgspec.json.Encoder()
_raw = msgspec.json.Decoder(msgspec.Raw)
_raws = msgspec.json.Decoder(list[msgspec.Raw])


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a stream. `offset` is its tail; `ttl_seconds` the time without use after which it goes, `expires_at` the time at
    which it does (RFC 3339); `retained_offset` the first kept record, when older ones were trimmed."""

    name: str
    content_type: str
    offset: str = msgspec.field(name="next_offset")  # as listings call it
    closed: bool = False
    incarnation: str = ""
    ttl_seconds: int | None = None
    expires_at: str | None = None
    retained_offset: str | None = None
    created_at: str | None = None  # in listings alone


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a create or a fork. `created` is False when the stream was there already, or when the first answer was lost."""

    created: bool
    offset: str
    closed: bool
    incarnation: str


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """The append is durable. `offset` is the one after it: of a repeat, the stream's tail."""

    offset: str
    closed: bool = False
    incarnation: str = ""


class Trimming(msgspec.Struct, frozen=True):
    """A trim is done: `records` and `bytes` went, and reading can begin at `retained_offset`."""

    retained_offset: str
    records: int = 0
    bytes: int = 0


class Record(msgspec.Struct, frozen=True):
    """A record of a JSON stream, or a piece of another one. `data` is the exact bytes; `offset` is where to go on after it, or "" when
    only the page's end is known (another server's offsets)."""

    data: bytes
    offset: str
    stream: str = ""

    @property
    def value(self) -> Json:
        """The decoded JSON. Raises msgspec.DecodeError when it is none."""
        return msgspec.json.decode(self.data)

    def decode(self, shape: type[Any]) -> Any:
        """The JSON as a type that msgspec knows: a Struct, a dataclass, `list[int]` … Raises msgspec.ValidationError."""
        return msgspec.json.decode(self.data, type=shape)

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to a read, or one event of a tail: `body` is what lies between `begin` and `offset`, as it came. `up_to_date`: there was
    nothing more; `closed`: and there never will be."""

    stream: str
    begin: str
    offset: str
    content_type: str
    body: bytes
    up_to_date: bool
    closed: bool
    raws: tuple[bytes, ...] = ()  # of a JSON stream

    @property
    def is_json(self) -> bool:
        return is_json(self.content_type)

    @property
    def size(self) -> int:
        """Records of a JSON stream, bytes of another."""
        return len(self.raws) if self.is_json else len(self.body)

    @property
    def values(self) -> list[Json]:
        """All records, decoded."""
        values: list[Json] = msgspec.json.decode(self.body or b"[]")
        return values

    @property
    def records(self) -> list[Record]:
        """Each record with the offset after it. What is no JSON stream has its whole body as one."""
        if not self.is_json:
            return [Record(self.body, self.offset, self.stream)] if self.body else []
        end = parse_token(self.offset)
        if end is None:
            return [
                Record(raw, "" if left else self.offset, self.stream)
                for left, raw in zip(range(len(self.raws))[::-1], self.raws, strict=True)
            ]
        record, byte = end[0] - len(self.raws), end[1] - sum(len(raw) + 1 for raw in self.raws)
        found = []
        for raw in self.raws:
            record, byte = record + 1, byte + len(raw) + 1
            found.append(Record(raw, format_token(record, byte), self.stream))
        return found


def is_local(consistency: Consistency) -> bool:
    """Raises ValueError."""
    if consistency not in ("leader", "local"):
        raise ValueError(f"consistency is 'leader' or 'local', not {consistency!r}")
    return consistency == "local"


def time_text(time: str | datetime) -> str:
    """A time as the server reads it. Raises ValueError for a datetime without a zone."""
    if isinstance(time, str):
        return time
    if time.tzinfo is None:
        raise ValueError("a time needs a zone: datetime.now(UTC), for one")
    return time.isoformat()


def is_json(content_type: str) -> bool:
    """Whether streams of this type hold JSON records."""
    return content_type.split(";", maxsplit=1)[0].strip().lower() == JSON_TYPE


def split_array(body: bytes, what: str) -> tuple[bytes, ...]:
    """The exact bytes of each element of a JSON array. Raises `AnswerDamaged`."""
    try:
        return tuple(bytes(raw).strip(b" \t\r\n") for raw in _raws.decode(body)) if body else ()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _split_leniently(body, what)


def _split_leniently(body: bytes, what: str) -> tuple[bytes, ...]:
    """msgspec refuses lone surrogates, which the server takes: the standard library does not."""
    import json

    try:
        text = body.decode()
        decoder, at = json.JSONDecoder(), text.index("[") + 1
        found: list[bytes] = []
        while True:
            while text[at] in " \t\r\n,":
                at += 1
            if text[at] == "]":
                return tuple(found)
            begin = at
            _, at = decoder.raw_decode(text, at)
            found.append(text[begin:at].encode())
    except (ValueError, IndexError, RecursionError):
        raise AnswerDamaged(f"{what}: the answer is not the JSON array that it should be") from None


def encode(value: Json) -> bytes:
    """One record of a JSON stream. Raises TypeError, ValueError."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("a record of a JSON stream is a value, not bytes; JSON text that is encoded already goes in msgspec.Raw(...)")
    if isinstance(value, msgspec.Raw):
        try:
            return bytes(_raw.decode(bytes(value))).strip(b" \t\r\n")
        except msgspec.DecodeError as error:
            raise ValueError(f"the msgspec.Raw is no JSON: {error}") from None
    return _encoder.encode(value)


def to_bytes(value: object) -> bytes:
    """One append to a stream that is not JSON. Raises TypeError."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a stream that is not JSON takes bytes or text, not {type(value).__name__}")
