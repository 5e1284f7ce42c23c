"""Encode responses: status line, common headers, and the caller's own headers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus

from polynya.local.api import StreamInfo

NO_BODY = frozenset((204, 304))
STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
COMMON = b"X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: cross-origin\r\n"
_EXPOSED = (
    "stream-offset, stream-next-offset, stream-cursor, stream-up-to-date, stream-closed, stream-incarnation, "
    "stream-owner, stream-bucket, stream-profile, stream-retained-offset, stream-ttl, "
    "stream-expires-at, stream-retention-age, stream-retention-bytes, stream-outcome, "
    "stream-sse-data-encoding, stream-data-content-type, stream-extensions, producer-epoch, "
    "producer-seq, producer-expected-seq, producer-received-seq, stream-record-first, "
    "stream-record-start, stream-record-next, stream-seq, "
    "stream-snapshot-offset, stream-snapshot-digest, stream-snapshot-part, stream-reducer, repr-digest, "
    "etag, location, link, content-type, content-range, "
    "content-encoding, retry-after, vary, x-request-id"
)
_ALLOWED = (
    "content-type, authorization, if-none-match, if-match, stream-expected-offset, "
    "stream-record-match, stream-seq, stream-ttl, stream-expires-at, "
    "stream-retention-age, "
    "stream-retention-bytes, stream-closed, stream-attrs, stream-incarnation, stream-forked-from, "
    "stream-fork-offset, stream-fork-sub-offset, "
    "producer-id, producer-epoch, producer-seq, record-key, record-header, record-timestamp, "
    "stream-snapshot-parts, range, if-range, "
    "stream-zone, content-encoding, content-digest, repr-digest, last-event-id, cache-control, accept, x-request-id"
)
CORS = f"Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: {_EXPOSED}\r\n".encode()
PREFLIGHT = (
    "Access-Control-Allow-Methods: GET, HEAD, PUT, PATCH, POST, DELETE, OPTIONS\r\n"
    f"Access-Control-Allow-Headers: {_ALLOWED}\r\n"
    "Access-Control-Max-Age: 86400\r\n"
).encode()
CLOSE = b"Connection: close\r\n"
KEEP_ALIVE = b"Connection: keep-alive\r\n"  # only for HTTP/1.0 clients

CACHE_PAGE = "public, max-age=60, stale-while-revalidate=300"
CACHE_LONG_POLL = "public, max-age=20"
NO_CACHE = "no-cache"
NO_STORE = "no-store"
# of answers with the numbers of JSON records, as Ursula names what its clients look for
NUMBERED_JSON = ("Stream-Extensions", "json-record-coordinates-v1")


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode headers as Latin-1, like the parser. Values come from validated input or from this
    server; a line end in one is a bug."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers])
    assert text.count("\n") == text.count("\r\n") == text.count("\r")
    return text.encode("latin-1", "replace")


@lru_cache(maxsize=256)
def owner_line(url: str) -> bytes:
    """Return the header that names the node to send the next request to."""
    return f"Stream-Owner: {url}\r\n".encode("latin-1")


def etag_of(info: StreamInfo, begin: str, end: str, *, at_tail: bool, variant: str = "") -> str:
    """Return a strong ETag: the bytes of a stream incarnation between two offset tokens never
    change, unless key compaction has rewritten slices (`:r`). The tag includes whether they reach
    the tail (`:t`) or the end (`:c`). So a cached claim to reach the tail expires with the next
    append. `at_tail`: they do. A replica that may lack acknowledged records makes no such claim.
    `variant` is the rendering."""
    state = (":c" if info.closed else ":t") if at_tail else ""
    rewritten = f":r{info.rewrites:x}" if info.rewrites else ""
    return f'"{info.uid:x}.{info.history:x}-{begin}-{end}{variant}{rewritten}{state}"'
