"""Events of many streams on one connection. Each names its stream and the offset behind it.

An event is in two parts, since readers share all of it but the `id:` line.
"""

from __future__ import annotations

from base64 import b64encode

import msgspec

from polynya.base.offsets import format_token
from polynya.wire.http.sse import SseEncoding, data_lines


def stream_part(name: str, at: tuple[int, int] | None) -> bytes:
    """Return the beginning of an event's object: the stream as it is spelled, and its offset, if it
    has one."""
    part = b'{"stream":' + msgspec.json.encode(name)
    return (
        part if at is None else b'%s,"streamNextOffset":"%s"' % (part, format_token(*at).encode())
    )


def many_data(part: bytes, payload: bytes, encoding: int, *, up_to_date: bool) -> bytes:
    """Format a data event without its id. `payload` is in stored form (JSON records end with a
    comma) and not empty."""
    if encoding == SseEncoding.BASE64:
        value = b'"base64":"' + b64encode(payload) + b'"'
    elif encoding == SseEncoding.JSON:
        value = b'"data":[' + payload[:-1] + b"]"
    else:
        value = b'"text":' + msgspec.json.encode(payload.decode("utf-8", "replace"))
    flag = b',"upToDate":true' if up_to_date else b""
    return b"event: data\n%s\n\n" % data_lines(part + flag + b"," + value + b"}")


def many_control(part: bytes, fields: dict[str, object]) -> bytes:
    """Format a control event without its id."""
    more = msgspec.json.encode(fields)[1:-1]
    return b"event: control\ndata:%s%s}\n\n" % (part, b"," + more if more else b"")


def with_id(event_id: str, rest: bytes, *, chunked: bool) -> bytes:
    """Return a whole event, as a chunk of a chunked body or not."""
    if not chunked:
        return b"id:%s\n%s" % (event_id.encode(), rest)
    size = len(event_id) + len(rest) + 4
    return b"%x\r\nid:%s\n%s\r\n" % (size, event_id.encode(), rest)


def poll_event(event_id: str, rest: bytes) -> bytes:
    """Return an event as an object of a long-poll's page: its name and id before its own members.
    `rest` is the event without its id, as `many_data` and `many_control` format it."""
    name, _, lines = rest.partition(b"\n")
    members = lines[len(b"data:") : -2].replace(b"\ndata:", b"\n").lstrip(b" ")[1:]
    shown = b',"id":"%s"' % event_id.encode() if event_id else b""
    return b'{"event":"%s"%s,%s' % (name[len(b"event: ") :], shown, members)


def poll_page(cursor: str, events: list[bytes], *, up_to_date: bool) -> bytes:
    """Return the page of a long-poll. `cursor` is the id with which the next request goes on."""
    return b'{"cursor":"%s","upToDate":%s,"events":[%s]}' % (
        cursor.encode(),
        b"true" if up_to_date else b"false",
        b",".join(events),
    )
