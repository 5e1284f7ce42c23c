"""Render a page of a stream as an HTTP body and its headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from polynya.base.offsets import format_token
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.service.api import Page, ReadQuery, Refusal
from polynya.stream.commands import Encoding
from polynya.wire.json_records import as_lines

if TYPE_CHECKING:
    from polynya.front.http.server import HttpFront

LINES = "application/x-ndjson"
_INERT = frozenset(["application/octet-stream", "text/plain", "text/plain; charset=utf-8"])  # common types that browsers do not execute


def allowed_bytes(front: HttpFront, exchange: Exchange, wanted: int) -> int:
    """Return the page size: `wanted`, or less while other clients leave responses unread. Raises `Failure`."""
    connection = exchange.connection
    connection.uses_reserve = False
    return front.memory.allow(connection, wanted) if front.memory.unread else wanted


async def read_allowed(front: HttpFront, exchange: Exchange, query: ReadQuery) -> Page | Refusal:
    """Read a page that may take a wait. Read it again with a smaller limit if other responses took the memory meanwhile. Raises
    `Failure`."""
    page = front.service.read_nowait(query) or await front.service.read(query)
    if not front.memory.unread or isinstance(page, Refusal):
        return page
    size = sum(len(span.payload) for span in page.spans)
    allowed = allowed_bytes(front, exchange, size) if size else 0
    return page if allowed == size else await front.service.read(structs.replace(query, bytes_max=allowed))


def render(page: Page, *, lines: bool) -> list[bytes | memoryview]:
    """Return the body in parts, so that a large page is not copied together."""
    parts: list[bytes | memoryview] = [span.payload for span in page.spans]
    if page.facts.encoding != Encoding.JSON:
        return parts
    if lines:
        return [as_lines(parts)]
    return [b"[", *parts[:-1], memoryview(parts[-1])[:-1], b"]"] if parts else [b"[]"]


def page_headers(page: Page, *, lines: bool) -> Headers:
    facts = page.facts
    headers = [
        ("Content-Type", LINES if lines else facts.content_type),
        ("Stream-Next-Offset", format_token(page.record, page.byte)),
        ("Stream-Incarnation", str(facts.uid)),
    ]
    if page.has_all:
        headers.append(("Stream-Up-To-Date", "true"))
        if facts.closed:
            headers.append(("Stream-Closed", "true"))
    if facts.encoding == Encoding.JSON:
        headers.append(("Vary", "Accept"))
    elif facts.content_type not in _INERT:  # HTML, SVG, …: if opened, it must not run in this origin, whose pages hold tokens
        headers.append(("Content-Security-Policy", "sandbox"))
    return headers
