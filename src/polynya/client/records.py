"""Records with keys, headers and times: the body and the headers that send them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from polynya.client.values import RECORDS_TYPE, Json, encode, is_json, to_bytes

__all__ = ["RECORDS_TYPE", "NewRecord", "header_list", "header_text", "records_body"]

Headers: TypeAlias = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]
# what a header can carry as it is: no control character, no space at an end, no colon first
_PLAIN = re.compile(r"(?:[\x21-\x39\x3b-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_QUOTED = re.compile(r'[",]')
_text = msgspec.json.Encoder().encode


class NewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record to append, with a key, headers and a time of its own.

    `value` is what `append` takes; None is a record without a value. `headers` are a mapping, or
    pairs where a name comes twice. `timestamp` is in milliseconds since 1970, or a datetime with a
    time zone; the server's time without one."""

    value: Json = None
    key: str | bytes | None = None
    headers: Headers = ()
    timestamp: int | datetime | None = None


def records_body(records: Iterable[Json], content_type: str) -> bytes:
    """Return the body of one append of whole records; others are records without a key. Raises
    TypeError, ValueError."""
    as_json = is_json(content_type)
    rows = [each if isinstance(each, NewRecord) else NewRecord(value=each) for each in records]
    return b"[" + b",".join([_row(each, as_json=as_json) for each in rows]) + b"]"


def _row(record: NewRecord, *, as_json: bool) -> bytes:
    value = record.value
    if as_json:
        shown = encode(value)
    else:
        shown = b"null" if value is None else _shown(to_bytes(value))
    parts = [b'"value":' + shown]
    if record.key is not None:
        parts.append(b'"key":' + _shown(record.key))
    pairs = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
    if pairs:
        named = [b"[" + _text(name) + b"," + _shown(each) + b"]" for name, each in pairs]
        parts.append(b'"headers":[' + b",".join(named) + b"]")
    if record.timestamp is not None:
        parts.append(b'"timestamp":%d' % _time_ms(record.timestamp))
    return b"{" + b",".join(parts) + b"}"


def _shown(data: str | bytes | None) -> bytes:
    if data is None:
        return b"null"
    try:
        return _text(data if isinstance(data, str) else data.decode())
    except UnicodeDecodeError:
        return _text({"$base64": b64encode(data).decode()})  # type: ignore[arg-type]


def _time_ms(time: int | datetime) -> int:
    if isinstance(time, int):
        return time
    if time.tzinfo is None:
        raise ValueError("a timestamp needs a time zone, such as datetime.now(UTC)")
    return round(time.timestamp() * 1000)


def header_text(data: bytes) -> str:
    """Return the value of `Record-Key` for these bytes: as they are, or in base64."""
    text = data.decode("latin-1")
    return text if _PLAIN.fullmatch(text) else f":{b64encode(data).decode()}:"


def header_list(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Return the value of `Record-Header` for these names and values."""
    return ", ".join(
        name if value is None else f"{name}={_quoted(header_text(value))}"
        for name, value in headers
    )


def _quoted(text: str) -> str:
    if not _QUOTED.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
