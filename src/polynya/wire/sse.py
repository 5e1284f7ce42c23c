"""Server-sent events as the protocol and its official patterns want them (R100 to R106, F30).

A data event is followed by its control event. Both carry the same `id:`, before `event:`, because the patterns want `event:` and `data:`
adjacent; `data:` has no space after the colon. What a client would read as a line's end (CRLF, CR, LF) starts a new `data:` line.
"""

from __future__ import annotations

import re
from base64 import b64encode

_LINE_END = re.compile(rb"\r\n|\r|\n")
COMMENT = b":\n\n"


class SseEncoding:
    """How a stream's bytes are shown in `data:` lines."""

    TEXT = 0  # UTF-8; what is no whole character becomes U+FFFD
    JSON = 1  # an array
    BASE64 = 2


def sse_encoding(media: str) -> int:
    """By media type: JSON arrays, `text/*`, and base64 for all else."""
    if media == "application/json":
        return SseEncoding.JSON
    return SseEncoding.TEXT if media.startswith("text/") else SseEncoding.BASE64


def data_event(event_id: str, payload: bytes, encoding: int) -> bytes:
    """`payload` is in stored form (JSON records end with a comma) and not empty."""
    if encoding == SseEncoding.BASE64:
        shown = b64encode(payload)
    elif encoding == SseEncoding.JSON:
        shown = b"[" + payload[:-1] + b"]"
    else:
        shown = payload if payload.isascii() else payload.decode("utf-8", "replace").encode()
    broken = b"\n" in shown or b"\r" in shown
    lines = b"\n".join(_data_line(line) for line in _LINE_END.split(shown)) if broken else _data_line(shown)
    return b"id:%s\nevent: data\n%s\n\n" % (event_id.encode(), lines)


def control_event(event_id: str, offset: str, cursor: str | None, *, up_to_date: bool, closed: bool) -> bytes:
    """`cursor` is None on the last event of a closed stream."""
    fields = f'"streamNextOffset":"{offset}"'
    if cursor is not None and not closed:
        fields += f',"streamCursor":"{cursor}"'
    if up_to_date:
        fields += ',"upToDate":true'
    if closed:
        fields += ',"streamClosed":true'
    return f"id:{event_id}\nevent: control\ndata:{{{fields}}}\n\n".encode()


def error_event(body: bytes) -> bytes:
    """`body` is the JSON of the error, on one line. No id: the client resumes where it was."""
    return b"event: error\ndata:" + body + b"\n\n"


def chunk(data: bytes) -> bytes:
    """One piece of a chunked HTTP body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _data_line(line: bytes) -> bytes:
    # Clients strip one leading space: a line that begins with one gets another.
    return b"data: " + line if line[:1] == b" " else b"data:" + line
