"""Records as HTTP shows them: values, elements of JSON arrays, or whole records as JSON. Pure
code."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable

import msgspec

from polynya.stream.features.appends.commands import KAFKA_CONTENT_TYPE
from polynya.wire.json_records import valid_value
from polynya.wire.kafka.batches import Record

OCTET_STREAM = "application/octet-stream"
_OF = f'{KAFKA_CONTENT_TYPE}; of="'
_text = msgspec.json.Encoder().encode

Show = Callable[[Record], bytes]
"""Return one record as a piece of a body; a JSON one ends with a comma."""


def partition_type(content_type: str) -> str:
    """Return the stored content type of a partition whose values have this one.

    It stays Kafka's own media type, so that no HTTP client writes to the stream.
    """
    return f'{_OF}{content_type}"' if content_type else KAFKA_CONTENT_TYPE


def values_type(content_type: str) -> str:
    """Return the content type of the values, from the stored one of their partition."""
    if content_type.startswith(_OF):
        return content_type[len(_OF) : -1]
    return OCTET_STREAM if content_type == KAFKA_CONTENT_TYPE else content_type


def show_value(record: Record) -> bytes:
    return record.value or b""


def show_json(record: Record) -> bytes:
    """Return the value as JSON: what is no JSON is a string, or base64 in an object."""
    return _json_value(record.value) + b","


def show_record(record: Record, appended: bytes = b"") -> bytes:
    return _record(record, appended, _string(record.value))


def show_json_record(record: Record, appended: bytes = b"") -> bytes:
    return _record(record, appended, _json_value(record.value))


def plain_record(offset: int, value: bytes, appended: bytes, *, is_json: bool) -> bytes:
    """Return a record that was posted alone: it has no key, no headers and no time of its own."""
    return b'{"offset":%d,"timestamp":null,%b"key":null,"headers":[],"value":%b},' % (
        offset,
        appended,
        value if is_json else _string(value),
    )


def enveloped(offset: int, value: bytes, *, is_json: bool) -> bytes:
    """Return a value with the number of its record, as a line."""
    shown = value if is_json else _string(value)
    return _line(offset, shown)


def show_envelope(record: Record) -> bytes:
    return _line(record.offset, _string(record.value))


def show_json_envelope(record: Record) -> bytes:
    return _line(record.offset, _json_value(record.value))


def _line(offset: int, value: bytes) -> bytes:
    """CR and LF inside a value, which are whitespace there, become spaces."""
    value = value.replace(b"\r", b" ").replace(b"\n", b" ")
    return b'{"record":%d,"value":%b}\n' % (offset, value)


def line_record(line: bytes) -> int:
    """Return the number of the record that such a line shows."""
    return int(line[len(b'{"record":') : line.index(b",")])


def append_time(time_ms: int) -> bytes:
    """Return the member of a whole record with its append time; 0: an older node has not told."""
    return b'"append_time":%d,' % time_ms if time_ms else b'"append_time":null,'


def _record(record: Record, appended: bytes, value: bytes) -> bytes:
    headers = b",".join(
        b"[" + _text(name) + b"," + _string(data) + b"]" for name, data in record.headers
    )
    return b'{"offset":%d,"timestamp":%d,%b"key":%b,"headers":[%b],"value":%b},' % (
        record.offset,
        record.timestamp,
        appended,
        _string(record.key),
        headers,
        value,
    )


def _json_value(value: bytes | None) -> bytes:
    found = None if value is None else valid_value(value)
    return _string(value) if found is None else found


def _string(data: bytes | None) -> bytes:
    if data is None:
        return b"null"
    try:
        return _text(data.decode())
    except UnicodeDecodeError:
        return b'{"$base64":"' + b64encode(data) + b'"}'
