"""Results of the client: stream properties, append results, pages and records; and the JSON
codec."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.base.offsets import format_token, parse_token
from polynya.client.errors import AnswerDamaged

JSON_TYPE = "application/json"
RECORDS_TYPE = "application/vnd.polynya.records+json"  # of pages of whole records
START = "-1"  # the offset of a stream's start
NOW = "now"  # the offset of its tail
SERVER_DEFAULT = "http://127.0.0.1:4437"

# all acknowledged appends; or the contacted node's copy
Consistency: TypeAlias = Literal["leader", "local"]
Profile: TypeAlias = Literal["replicated", "leased"]  # of streams
Json: TypeAlias = Any  # any value that msgspec can encode; msgspec.Raw is JSON text
_encoder = msgspec.json.Encoder()
_raw = msgspec.json.Decoder(msgspec.Raw)
_raws = msgspec.json.Decoder(list[msgspec.Raw])


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a stream.

    `offset` is its tail. It is deleted after `ttl_seconds` without use, or at `expires_at` (RFC
    3339). `retained_offset` is the first retained record, if older ones were trimmed. `profile` is
    None for a replicated stream, and in listings."""

    name: str
    content_type: str
    offset: str = msgspec.field(name="next_offset")  # its name in listings
    closed: bool = False
    incarnation: str = ""
    ttl_seconds: int | None = None
    expires_at: str | None = None
    retained_offset: str | None = None
    created_at: str | None = None  # only in listings
    profile: str | None = None


class Leased(msgspec.Struct, frozen=True, kw_only=True):
    """The profile of a stream of segments with one writer each. A segment is full with so many
    `records` or `bytes`; None: the server's setting."""

    records: int | None = None
    bytes: int | None = None


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a create or a fork. `created` is False if the stream existed, or if the first
    response was lost."""

    created: bool
    offset: str
    closed: bool
    incarnation: str


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a durable append. `offset` is the one after it; after a retry, the stream's
    tail."""

    offset: str
    closed: bool = False
    incarnation: str = ""


class Trimming(msgspec.Struct, frozen=True):
    """The result of a trim: the number of deleted `records` and `bytes`. Reading can start at
    `retained_offset`."""

    retained_offset: str
    records: int = 0
    bytes: int = 0


class Record(msgspec.Struct, frozen=True):
    """A record of a JSON stream, or a piece of another stream.

    `data` holds the exact bytes. `offset` is the position after it, or "" when only the page's end
    is known (offsets of other implementations). Only a reader of whole records gives `key`,
    `headers` and `timestamp` (in milliseconds)."""

    data: bytes
    offset: str
    stream: str = ""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None

    @property
    def value(self) -> Json:
        """The decoded JSON. Raises msgspec.DecodeError if it is invalid."""
        return msgspec.json.decode(self.data)

    def decode(self, shape: type[Any]) -> Any:
        """Decode the JSON as a type that msgspec knows: a Struct, a dataclass, `list[int]` … Raises
        msgspec.ValidationError."""
        return msgspec.json.decode(self.data, type=shape)

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One response to a read, or one event of a tail.

    `body` holds the exact bytes between `begin` and `offset`. `up_to_date`: the page reached the
    tail. `closed`: the page reached the end of a closed stream."""

    stream: str
    begin: str
    offset: str
    content_type: str
    body: bytes
    up_to_date: bool
    closed: bool
    raws: tuple[bytes, ...] = ()  # of a JSON stream, and whole records of any
    json_values: bool = True  # of whole records: the stream is JSON

    @property
    def is_json(self) -> bool:
        return is_array(self.content_type)

    @property
    def size(self) -> int:
        """The number of records of a JSON stream, or of bytes of another."""
        return len(self.raws) if self.is_json else len(self.body)

    @property
    def values(self) -> list[Json]:
        """All records, decoded."""
        values: list[Json] = msgspec.json.decode(self.body or b"[]")
        return values

    @property
    def records(self) -> list[Record]:
        """Each record with the offset after it. A page of a stream that is not JSON is one
        record."""
        if not self.is_json:
            return [Record(self.body, self.offset, self.stream)] if self.body else []
        end = parse_token(self.offset)
        if self.content_type == RECORDS_TYPE:
            return self._whole(end)
        if end is None:
            return [
                Record(raw, "" if left else self.offset, self.stream)
                for left, raw in zip(range(len(self.raws))[::-1], self.raws, strict=True)
            ]
        record, byte = end[0] - len(self.raws), end[1] - sum(len(raw) + 1 for raw in self.raws)
        found = []
        for raw in self.raws:
            record, byte = record + 1, byte + len(raw) + 1
            found.append(Record(raw, format_token(record, max(0, byte)), self.stream))
        return found

    def _whole(self, end: tuple[int, int] | None) -> list[Record]:
        """Return whole records. The record number alone positions a reader between them."""
        found = []
        for raw in self.raws:
            whole = whole_record(raw)
            after = format_token(whole.offset + 1, end[1] if end else 0)
            data = whole.data(as_json=self.json_values)
            fields = (whole.key_bytes, whole.header_pairs, whole.timestamp)
            found.append(Record(data, after, self.stream, *fields))
        return found


def is_local(consistency: Consistency) -> bool:
    """Return True for "local". Raises ValueError."""
    if consistency not in ("leader", "local"):
        raise ValueError(f"consistency must be 'leader' or 'local', not {consistency!r}")
    return consistency == "local"


def time_text(time: str | datetime) -> str:
    """Format a time for the server. Raises ValueError for a datetime without a timezone."""
    if isinstance(time, str):
        return time
    if time.tzinfo is None:
        raise ValueError("a time needs a time zone, such as datetime.now(UTC)")
    return time.isoformat()


def is_json(content_type: str) -> bool:
    """Return True if streams of this type hold JSON records."""
    return content_type.split(";", maxsplit=1)[0].strip().lower() == JSON_TYPE


def is_array(content_type: str) -> bool:
    """Return True if pages of this type are JSON arrays: of values, or of whole records."""
    return content_type == RECORDS_TYPE or is_json(content_type)


def split_array(body: bytes, what: str) -> tuple[bytes, ...]:
    """Return the exact bytes of each element of a JSON array. Raises `AnswerDamaged`."""
    try:
        return tuple(bytes(raw).strip(b" \t\r\n") for raw in _raws.decode(body)) if body else ()
    except UNREADABLE:
        return _split_leniently(body, what)


def _split_leniently(body: bytes, what: str) -> tuple[bytes, ...]:
    """Split with the standard library: the server accepts lone surrogates, msgspec does not."""
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
        raise AnswerDamaged(f"{what}: the response is not a JSON array") from None


def encode(value: Json) -> bytes:
    """Encode one record of a JSON stream. Raises TypeError, ValueError."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            "a record of a JSON stream is a value, not bytes; pass encoded JSON as msgspec.Raw(...)"
        )
    if isinstance(value, msgspec.Raw):
        try:
            return bytes(_raw.decode(bytes(value))).strip(b" \t\r\n")
        except UNREADABLE as error:
            raise ValueError(f"the msgspec.Raw is not valid JSON: {error}") from None
    text = _encoder.encode(value)
    if b"null" in text and (inner_path := _not_finite(msgspec.to_builtins(value))) is not None:
        raise ValueError(
            f"the record has NaN or an infinity{f' at {inner_path}' if inner_path else ''}, which JSON lacks; "
            "expected finite numbers: pass None, a string or msgspec.Raw(...) in its place"
        )
    return text


def _not_finite(value: Any, path: str = "") -> str | None:
    """Return the path of a number that JSON lacks, or None. msgspec encodes it as null."""
    if isinstance(value, float):
        return None if abs(value) < float("inf") else path.lstrip(".")
    within: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        within = ((f"{path}.{name}", inner) for name, inner in value.items())
    elif isinstance(value, list | tuple):
        within = ((f"{path}[{at}]", inner) for at, inner in enumerate(value))
    return next(
        (
            found
            for inner_path, inner in within
            if (found := _not_finite(inner, inner_path)) is not None
        ),
        None,
    )


def to_bytes(value: object) -> bytes:
    """Encode one append to a stream that is not JSON. Raises TypeError."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a stream that is not JSON accepts bytes or str, not {type(value).__name__}")


class _Coded(msgspec.Struct, rename={"data": "$base64"}):
    data: str


class WholeRecord(msgspec.Struct, frozen=True):
    """A record as `application/vnd.polynya.records+json` shows it."""

    offset: int
    timestamp: int | None
    key: str | _Coded | None
    headers: list[tuple[str, str | _Coded | None]]
    value: msgspec.Raw

    def data(self, *, as_json: bool) -> bytes:
        """Return the bytes of the value; of a record without one `null` in JSON, else none."""
        if as_json:
            return bytes(self.value)
        return bytes_of(_coded(self.value)) or b""

    @property
    def key_bytes(self) -> bytes | None:
        return bytes_of(self.key)

    @property
    def header_pairs(self) -> tuple[tuple[str, bytes | None], ...]:
        return tuple((name, bytes_of(value)) for name, value in self.headers)


_coded = msgspec.json.Decoder(str | _Coded | None).decode
whole_record = msgspec.json.Decoder(WholeRecord).decode


def bytes_of(shown: str | _Coded | None) -> bytes | None:
    """Return the bytes of a text or of base64; None for null."""
    if isinstance(shown, _Coded):
        return b64decode(shown.data)
    return None if shown is None else shown.encode()
