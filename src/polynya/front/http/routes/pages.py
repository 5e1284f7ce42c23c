"""Render a page of a stream as an HTTP body and its headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from polynya.base.offsets import format_token
from polynya.front.common.response_memory import ResponseMemoryFull
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import JOINED_BYTES_MAX, Exchange, Headers
from polynya.front.http.protocol.responses import NO_STORE, etag_of
from polynya.service.api import Page, ReadQuery, Refusal
from polynya.stream.commands import Encoding
from polynya.wire.headers import accepts_lines, none_match
from polynya.wire.json_records import as_lines

if TYPE_CHECKING:
    from polynya.front.http.server import HttpFront

LINES = "application/x-ndjson"
_NONE: Headers = []
_INERT = frozenset(["application/octet-stream", "text/plain", "text/plain; charset=utf-8"])  # common types that browsers do not execute


def allowed_bytes(front: HttpFront, exchange: Exchange, wanted: int) -> int:
    """Return the page size: `wanted`, or less while other clients leave responses unread. Raises `Failure`."""
    connection = exchange.connection
    connection.uses_reserve = False
    if not front.memory.unread:
        return wanted
    try:
        return front.memory.allow(connection, wanted)
    except ResponseMemoryFull:
        raise Failure("RESPONSE_MEMORY_LIMIT") from None


def within_memory(front: HttpFront, exchange: Exchange, query: ReadQuery) -> ReadQuery:
    """Return the query with the page size that the memory for unread responses allows. Raises `Failure`."""
    wanted = query.bytes_max
    if not front.memory.unread:
        exchange.connection.uses_reserve = False
        return query
    allowed = allowed_bytes(front, exchange, wanted)
    return query if allowed == wanted else structs.replace(query, bytes_max=allowed)


async def read_allowed(front: HttpFront, exchange: Exchange, query: ReadQuery) -> Page | Refusal:
    """Read a page that may take a wait. Read it again with a smaller limit if other responses took the memory meanwhile. Raises
    `Failure`."""
    page = front.service.read_nowait(query) or await front.service.read(query)
    if not front.memory.unread or isinstance(page, Refusal):
        return page
    size = sum(len(span.payload) for span in page.spans)
    allowed = allowed_bytes(front, exchange, size) if size else 0
    return page if allowed == size else await front.service.read(structs.replace(query, bytes_max=allowed))


def render_json(parts: list[bytes | memoryview], *, lines: bool) -> list[bytes | memoryview]:
    """Return the body of a JSON stream in parts, so that a large page is not copied together."""
    if lines:
        return [as_lines(parts)]
    return [b"[", *parts[:-1], memoryview(parts[-1])[:-1], b"]"] if parts else [b"[]"]


def send_page(exchange: Exchange, page: Page, cache: str, live: Headers = _NONE) -> None:
    """Respond with a page, or with 304 if the client has it. `cache` is the Cache-Control; `live`
    are more headers."""
    facts, head = page.facts, exchange.head.headers
    is_json = facts.encoding == Encoding.JSON
    lines = is_json and "accept" in head and accepts_lines(head["accept"])
    is_last = (page.record, page.byte) == (facts.record, facts.byte)
    is_known = facts.known or facts.closed
    end = format_token(page.record, page.byte)
    headers = [
        ("Content-Type", LINES if lines else facts.content_type),
        ("Stream-Next-Offset", end),
        ("Stream-Incarnation", str(facts.uid)),
    ]
    if page.up_to_date and is_known:
        headers.append(("Stream-Up-To-Date", "true"))
        if facts.closed:
            headers.append(("Stream-Closed", "true"))
    if is_json:
        headers.append(("Vary", "Accept"))
    elif facts.content_type not in _INERT:  # HTML, SVG, …: if opened, it must not run in this origin, whose pages hold tokens
        headers.append(("Content-Security-Policy", "sandbox"))
    headers += live
    if cache != NO_STORE:
        begin = format_token(page.begin_record, page.begin_byte)
        etag = etag_of(facts, begin, end, at_tail=is_last and is_known, variant=":n" if lines else "")
        headers.append(("ETag", etag))
        if "if-none-match" in head and none_match(head["if-none-match"], etag):
            exchange.answer(304, [*headers, ("Cache-Control", cache)])
            return
    headers.append(("Cache-Control", cache))
    parts: list[bytes | memoryview] = [span.payload for span in page.spans]
    if is_json:
        parts = render_json(parts, lines=lines)
    if sum(map(len, parts)) <= JOINED_BYTES_MAX:
        exchange.answer(200, headers, b"".join(parts))
    else:
        exchange.answer_parts(200, headers, parts)
