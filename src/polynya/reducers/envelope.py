"""Records as a reducer gets them, from a page of whole records as the server answers it. Pure.

A worker and a core parse the same bytes, so that both compute the same states.
"""

from __future__ import annotations

from base64 import b64decode

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.reducers.reducer import Record, ReducerFault


class _Whole(msgspec.Struct, gc=False):
    offset: int
    timestamp: int | None
    append_time: int | None
    key: msgspec.Raw
    value: msgspec.Raw


class _Coded(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    base64: str = msgspec.field(name="$base64")


_page = msgspec.json.Decoder(list[_Whole]).decode
_text = msgspec.json.Decoder(str).decode
_coded = msgspec.json.Decoder(_Coded).decode
_NULL = b"null"


def parse_page(body: bytes, *, is_json: bool) -> list[Record]:
    """Return the records of a page (`application/vnd.polynya.records+json`). `is_json`: values of the
    stream are JSON. Raises `ReducerFault`."""
    try:
        return [_record(each, is_json=is_json) for each in _page(body)]
    except (*UNREADABLE, ValueError) as damage:
        raise ReducerFault(f"the page of records cannot be read: {damage}") from None


def _record(whole: _Whole, *, is_json: bool) -> Record:
    append_ms = whole.append_time or 0
    time_ms = append_ms if whole.timestamp is None else whole.timestamp
    key, value = bytes(whole.key), bytes(whole.value)
    return Record(
        whole.offset,
        append_ms,
        time_ms,
        None if key == _NULL else _bytes(key),
        None if value == _NULL else value if is_json else _bytes(value),
    )


def _bytes(field: bytes) -> bytes:
    """Return the bytes of a string, or of `{"$base64": "…"}`."""
    if field[:1] == b"{":
        return b64decode(_coded(field).base64)
    return _text(field).encode()
