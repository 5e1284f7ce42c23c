"""Render a page of a stream as an HTTP body and its headers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import structs

from polynya.base.limits import KIB
from polynya.base.offsets import format_token
from polynya.front.common.response_memory import ResponseMemoryFull
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import JOINED_BYTES_MAX, Exchange, Headers
from polynya.front.http.protocol.responses import NO_STORE, etag_of
from polynya.local.api import Page, ReadQuery, Refusal, StreamInfo
from polynya.stream.parts import Encoding
from polynya.wire.headers import (
    ENVELOPE,
    RECORDS,
    accepts_lines,
    accepts_records,
    media_type,
    none_match,
)
from polynya.wire.json_records import array_parts, as_lines
from polynya.wire.kafka.values import values_type

LINES = "application/x-ndjson"
VARIANTS = {"": "", LINES: ":n", RECORDS: ":r", ENVELOPE: ":e"}  # parts of ETags
_VIEWS = {"records": RECORDS, "envelope": ENVELOPE}  # of `record_view`
LINES_AT_ONCE_BYTES = 256 * KIB  # as stored; more becomes lines in a thread
_NONE: Headers = []
# common types that browsers do not execute
_INERT = frozenset(["application/octet-stream", "text/plain", "text/plain; charset=utf-8"])


def allowed_bytes(exchange: Exchange, wanted: int) -> int:
    """Return the page size: `wanted`, or less while other clients leave responses unread. Raises
    `Failure`."""
    exchange.peer.uses_reserve = False
    if not exchange.context.memory.unread:
        return wanted
    try:
        return exchange.context.memory.allow(exchange.peer, wanted)
    except ResponseMemoryFull:
        raise Failure("RESPONSE_MEMORY_LIMIT") from None


def within_memory(exchange: Exchange, query: ReadQuery) -> ReadQuery:
    """Return the query with the page size that the memory for unread responses allows. Raises
    `Failure`."""
    wanted = query.bytes_max
    if not exchange.context.memory.unread:
        exchange.peer.uses_reserve = False
        return query
    allowed = allowed_bytes(exchange, wanted)
    return query if allowed == wanted else structs.replace(query, bytes_max=allowed)


async def read_allowed(exchange: Exchange, query: ReadQuery) -> Page | Refusal:
    """Read a page that may take a wait. Read it again with a smaller limit if other responses took
    the memory meanwhile. Raises `Failure`."""
    page = exchange.stream.read_nowait(query) or await exchange.stream.read(query)
    if not exchange.context.memory.unread or isinstance(page, Refusal):
        return page
    size = sum(len(span.payload) for span in page.spans)
    allowed = allowed_bytes(exchange, size) if size else 0
    return (
        page
        if allowed == size
        else await exchange.stream.read(structs.replace(query, bytes_max=allowed))
    )


async def lines_of(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return the body of a JSON stream as NDJSON, which takes long for a large one."""
    if sum(map(len, parts)) <= LINES_AT_ONCE_BYTES:
        return as_lines(parts)
    return await asyncio.to_thread(as_lines, parts)


def is_json_stream(info: StreamInfo) -> bool:
    """Report whether the values of a stream are JSON."""
    if info.encoding == Encoding.KAFKA:
        return media_type(values_type(info.content_type)) == "application/json"
    return info.encoding == Encoding.JSON


def json_form(exchange: Exchange) -> str:
    """Return the form of JSON that a read names: LINES, RECORDS, ENVELOPE, or "" for an array."""
    if "record_view" in exchange.query:
        return _VIEWS.get(exchange.query["record_view"], "")
    accept = exchange.head.headers.get("accept")
    if accept is None:
        return ""
    return LINES if accepts_lines(accept) else RECORDS if accepts_records(accept) else ""


def wants_records(exchange: Exchange) -> bool:
    """Report whether a read names whole records, or their numbers. Raises `Failure`."""
    view = exchange.query.get("record_view", "records")
    if view not in _VIEWS:
        raise Failure(
            "INVALID_PARAMETER", f"record_view must be records or envelope, not '{view[:64]}'"
        )
    accept = exchange.head.headers.get("accept")
    return "record_view" in exchange.query or (accept is not None and accepts_records(accept))


def send_page(exchange: Exchange, page: Page, cache: str, live: Headers = _NONE) -> None:
    """Respond with a page as it is stored, or with 304 if the client has it. `cache` is the
    Cache-Control; `live` are more headers."""
    is_json = page.info.encoding == Encoding.JSON
    form = json_form(exchange) if is_json else ""
    headers = page_headers(page, form or page.info.content_type, is_array=is_json)
    headers += live
    if cache != NO_STORE and is_fresh(exchange, page, headers, cache, VARIANTS[form]):
        return
    headers.append(("Cache-Control", cache))
    parts: list[bytes | memoryview] = [span.payload for span in page.spans]
    if form == LINES and sum(map(len, parts)) > LINES_AT_ONCE_BYTES:
        exchange.spawn(_send_lines(exchange, headers, parts), waits=True)
        return
    if is_json:
        parts = [as_lines(parts)] if form == LINES else array_parts(parts)
    send_parts(exchange, headers, parts)


async def _send_lines(
    exchange: Exchange, headers: Headers, parts: Sequence[bytes | memoryview]
) -> None:
    send_parts(exchange, headers, [await lines_of(parts)])


def page_headers(page: Page, content_type: str, *, is_array: bool) -> Headers:
    """Return the headers of a page in a representation. `is_array`: of JSON, which runs nowhere."""
    info = page.info
    end = format_token(page.record, page.byte)
    headers = [
        ("Content-Type", content_type),
        ("Stream-Next-Offset", end),
        ("Stream-Incarnation", str(info.uid)),
    ]
    if page.up_to_date and (info.known or info.closed):
        headers.append(("Stream-Up-To-Date", "true"))
        if info.closed:
            headers.append(("Stream-Closed", "true"))
    headers.append(("Vary", "Accept"))
    if not is_array and content_type not in _INERT:
        # HTML, SVG, …: if opened, it must not run in this origin, whose pages hold tokens
        headers.append(("Content-Security-Policy", "sandbox"))
    return headers


def is_fresh(exchange: Exchange, page: Page, headers: Headers, cache: str, variant: str) -> bool:
    """Add the ETag of the representation. Return whether the client has it, after answering 304."""
    info, head = page.info, exchange.head.headers
    begin = format_token(page.begin_record, page.begin_byte)
    end = format_token(page.record, page.byte)
    is_last = (page.record, page.byte) == (info.record, info.byte)
    at_tail = is_last and (info.known or info.closed)
    etag = etag_of(info, begin, end, at_tail=at_tail, variant=variant)
    headers.append(("ETag", etag))
    if "if-none-match" in head and none_match(head["if-none-match"], etag):
        exchange.answer(304, [*headers, ("Cache-Control", cache)])
        return True
    return False


def send_parts(exchange: Exchange, headers: Headers, parts: Sequence[bytes | memoryview]) -> None:
    """Respond with a body in parts, joined if it is small."""
    if sum(map(len, parts)) <= JOINED_BYTES_MAX:
        exchange.answer(200, headers, b"".join(parts))
    else:
        exchange.answer_parts(200, headers, [*parts])
