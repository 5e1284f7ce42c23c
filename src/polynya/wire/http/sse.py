"""Server-sent events for the protocol and its official patterns.

A data event is followed by its control event. Both have the same `id:` before `event:`, because the
patterns require adjacent `event:` and `data:`. `data:` has no space after the colon. Every line end
that a client recognizes (CRLF, CR, LF) starts a new `data:` line.
"""

from __future__ import annotations

from base64 import b64encode

COMMENT = b":\n\n"
_PART = 64 * 1024  # of a text, whose lines are broken in one call


class SseEncoding:
    """Representations of a stream's bytes in `data:` lines."""

    TEXT = 0  # UTF-8; incomplete characters become U+FFFD
    JSON = 1  # a JSON array
    BASE64 = 2


def sse_encoding(media: str) -> int:
    """Return the encoding by media type: JSON arrays, text for `text/*`, base64 for others."""
    if media == "application/json":
        return SseEncoding.JSON
    return SseEncoding.TEXT if media.startswith("text/") else SseEncoding.BASE64


def data_event(event_id: str, payload: bytes, encoding: int) -> bytes:
    """Format a data event. `payload` is in stored form (JSON records end with a comma) and not
    empty."""
    if encoding == SseEncoding.BASE64:
        shown = b64encode(payload)
    elif encoding == SseEncoding.JSON:
        shown = b"[" + payload[:-1] + b"]"
    else:
        shown = payload if payload.isascii() else payload.decode("utf-8", "replace").encode()
    lines = data_lines(shown)
    return b"id:%s\nevent: data\n%s\n\n" % (event_id.encode(), lines)


def whole_event(event_id: str, kind: str, value: bytes, encoding: int = SseEncoding.JSON) -> bytes:
    """Format an event of another kind, with a value as it is: one of JSON, text, or bytes."""
    if encoding == SseEncoding.BASE64:
        value = b64encode(value)
    elif not value.isascii():
        value = value.decode("utf-8", "replace").encode()
    return b"id:%s\nevent: %s\n%s\n\n" % (event_id.encode(), kind.encode(), data_lines(value))


def control_event(
    event_id: str,
    offset: str,
    cursor: str | None,
    *,
    up_to_date: bool,
    closed: bool,
    records: tuple[int, int] | None = None,
) -> bytes:
    """Format a control event. `cursor` is None on the last event of a closed stream. `records`: for
    a reader of record numbers, the first one kept (-1: unknown) and the next one."""
    fields = f'"streamNextOffset":"{offset}"'
    if records is not None:
        if records[0] >= 0:
            fields += f',"streamFirstRecord":{records[0]}'
        fields += f',"streamNextRecord":{records[1]}'
    if cursor is not None and not closed:
        fields += f',"streamCursor":"{cursor}"'
    if up_to_date:
        fields += ',"upToDate":true'
    if closed:
        fields += ',"streamClosed":true'
    return f"id:{event_id}\nevent: control\ndata:{{{fields}}}\n\n".encode()


def error_event(body: bytes, event_id: str = "") -> bytes:
    """Format an error event. `body` is the JSON of the error, on one line. Without an id the client
    resumes at its last offset."""
    id_line = f"id:{event_id}\n".encode() if event_id else b""
    return id_line + b"event: error\ndata:" + body + b"\n\n"


def chunk(data: bytes) -> bytes:
    """Format one chunk of a chunked HTTP body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def data_lines(shown: bytes) -> bytes:
    """Return a `data:` line for each line. Clients strip one leading space, so a line that begins
    with a space gets another. No line is looked at alone, as a text may consist of line ends, and
    other threads run between two parts of a large one."""
    found, at, begins = [b"data:"], 0, True
    while at < len(shown):
        end = at + _PART
        end += shown[end - 1 : end + 1] == b"\r\n"
        part, at = shown[at:end], end
        if begins and part[:1] == b" ":
            found.append(b" ")
        if b"\r" in part:
            part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        begins = part[-1:] == b"\n"
        if b"\n" in part:
            part = part.replace(b"\n", b"\ndata:").replace(b"\ndata: ", b"\ndata:  ")
        found.append(part)
    return b"".join(found)
