"""Records with keys, headers and times, as HTTP clients send them: three headers for the records of
one body, or a JSON body with whole records. Pure code.

docs/protocol.md has the syntax. Both become one Kafka record batch.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from google_crc32c import value as crc32c

from polynya.base.limits import APPEND_BYTES_MAX, RECORD_BATCH_RECORDS_MAX, TIME_MS_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.stream.parts import Batch, Encoding
from polynya.wire.headers import BadField
from polynya.wire.json_records import RECORDS_PER_APPEND_MAX, BadJson, TooManyRecords, check_text
from polynya.wire.kafka.batches import Record, build_batch
from polynya.wire.times import parse_duration_ms, parse_time_ms

_RECORD_BYTES = 32  # of a record besides its key, headers and value, at most
_ITEM = re.compile(
    r"[ \t]*+([!#$%&'*+\-.^_`|~0-9A-Za-z]++)"
    r'[ \t]*+(?:=[ \t]*+("(?:[^"\\]|\\.)*+"|[^,"]*+))?[ \t]*+(?:,|\Z)'
)
_ESCAPE = re.compile(r"\\(.)")
_BYTES = "between two colons is base64 (RFC 8941)"

Fields = tuple[tuple[str, bytes | None], ...]


class BatchTooLarge(ValueError):
    """The record batch of an append would be larger than an append may be."""


class RecordFields(msgspec.Struct, frozen=True):
    """The key, headers and time of all records in a body; None: none, or the server's time."""

    key: bytes | None
    headers: Fields
    timestamp: int | None


class _Coded(msgspec.Struct, forbid_unknown_fields=True, rename={"data": "$base64"}):
    """Bytes that are not UTF-8."""

    data: str


_Text = str | _Coded | None
_Time = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]


class _Posted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A record as a client sends it, in the shape in which records are read."""

    key: _Text = None
    headers: list[tuple[str, _Text]] = []
    timestamp: _Time | None = None
    # of a record that was read elsewhere; not stored
    offset: object = None
    append_time: object = None


class _PostedJson(_Posted):
    value: msgspec.Raw


class _PostedBytes(_Posted):
    value: _Text


_Decode = Callable[[bytes], Sequence[_PostedJson | _PostedBytes]]
_json_records: _Decode = msgspec.json.Decoder(list[_PostedJson]).decode
_bytes_records: _Decode = msgspec.json.Decoder(list[_PostedBytes]).decode


def parse_record_fields(headers: Mapping[str, str]) -> RecordFields | None:
    """Parse `Record-Key`, `Record-Header` and `Record-Timestamp`; None if all are absent. Raises
    BadField."""
    key, named = headers.get("record-key"), headers.get("record-header")
    time = headers.get("record-timestamp")
    if key is None and named is None and time is None:
        return None
    return RecordFields(
        None if key is None else _bytes("Record-Key", key),
        () if named is None else _headers(named),
        None if time is None else _time(time),
    )


def _bytes(field: str, text: str) -> bytes:
    """Return the bytes of a header's text: as sent, or from base64 between colons."""
    if not text.startswith(":"):
        return text.encode("latin-1")
    try:
        if len(text) < 2 or not text.endswith(":"):
            raise ValueError
        return b64decode(text[1:-1], validate=True)
    except ValueError:
        raise BadField(
            f"{field}: a value {_BYTES}, and one that begins with a colon must be sent so, not "
            f"'{text[:64]}'"
        ) from None


def _headers(text: str) -> Fields:
    found: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(text):
        match = _ITEM.match(text, at)
        if match is None:
            raise BadField(
                "Record-Header must be NAME=VALUE, where a value with a comma or a quote is in "
                f"double quotes and one {_BYTES}, not '{text[at : at + 64]}'"
            )
        at = match.end()
        found.append((match[1], None if match[2] is None else _header_value(match[2])))
    return tuple(found)


def _header_value(text: str) -> bytes:
    if text.startswith('"'):
        return _ESCAPE.sub(r"\1", text[1:-1]).encode("latin-1")
    return _bytes("Record-Header", text.rstrip(" \t"))


def _time(text: str) -> int:
    try:
        if parse_duration_ms(text) is not None:
            raise BadField(text)
        time_ms = parse_time_ms(text, 0)
    except BadField:
        time_ms = TIME_MS_MAX + 1
    if time_ms > TIME_MS_MAX:
        raise BadField(
            "Record-Timestamp must be milliseconds since 1970, or a time such as "
            f"2030-01-31T12:00:00Z, up to the year 9999, not '{text[:64]}'"
        )
    return time_ms


def described(values: Sequence[bytes], fields: RecordFields, now_ms: int) -> Batch:
    """Return the batch of values that have the same key, headers and time. Raises TooManyRecords,
    BatchTooLarge."""
    time_ms = now_ms if fields.timestamp is None else fields.timestamp
    return _batch([Record(fields.key, each, time_ms, fields.headers) for each in values])


def parse_batch(body: bytes, now_ms: int, *, is_json: bool) -> Batch | None:
    """Return the batch of a body with whole records; None for an empty array. `is_json`: values
    are JSON.

    Raises BadJson, TooManyRecords, BatchTooLarge.
    """
    check_text(body)
    if body.count(b'"value"') > RECORDS_PER_APPEND_MAX:
        raise _too_many()
    try:
        posted = (_json_records if is_json else _bytes_records)(body)
    except UNREADABLE as fault:
        raise BadJson(f"the body is not an array of records: {fault}") from None
    if not posted:
        return None
    return _batch([_record(at, each, each.value, now_ms) for at, each in enumerate(posted)])


def _record(at: int, posted: _Posted, value: msgspec.Raw | _Text, now_ms: int) -> Record:
    if isinstance(value, msgspec.Raw):
        stored = bytes(value).strip(b" \t\r\n")
        data = None if stored == b"null" else stored
    else:
        data = _decoded(at, "value", value)
    return Record(
        _decoded(at, "key", posted.key),
        data,
        now_ms if posted.timestamp is None else posted.timestamp,
        tuple((name, _decoded(at, "headers", each)) for name, each in posted.headers),
    )


def _decoded(at: int, field: str, text: _Text) -> bytes | None:
    if not isinstance(text, _Coded):
        return None if text is None else text.encode()
    try:
        return b64decode(text.data, validate=True)
    except ValueError:
        raise BadJson(
            f"$base64 in `{field}` of record {at} of the body is not valid base64"
        ) from None


def _batch(records: Sequence[Record]) -> Batch:
    """Return one Kafka record batch."""
    if len(records) > RECORD_BATCH_RECORDS_MAX:
        raise _too_many()
    size = sum(map(_size, records))
    if size > APPEND_BYTES_MAX:
        raise BatchTooLarge(
            f"the records have {size:,} bytes with their keys and headers, and an append has at "
            f"most {APPEND_BYTES_MAX:,}; split it"
        )
    payload = build_batch(records)
    newest = max(each.timestamp for each in records)
    return Batch(Encoding.KAFKA, len(records), payload, crc32c(payload), record_time_ms_max=newest)


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") + _RECORD_BYTES for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_BYTES


def _too_many() -> TooManyRecords:
    return TooManyRecords(
        f"one append takes at most {RECORD_BATCH_RECORDS_MAX:,} records with keys, headers or "
        "times; send them in several"
    )
