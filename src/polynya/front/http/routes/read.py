"""GET: return a catch-up page, or start a long-poll or SSE."""

from __future__ import annotations

from time import perf_counter

from msgspec import structs

from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.responses import CACHE_PAGE, NO_CACHE, NO_STORE
from polynya.front.http.routes.conditions import is_other_incarnation
from polynya.front.http.routes.decoded_pages import needs_decoding, send_decoded
from polynya.front.http.routes.long_poll import long_poll
from polynya.front.http.routes.pages import json_form, read_allowed, send_page, within_memory
from polynya.front.http.routes.read_request import (
    ReadRequest,
    parse_read,
    placed,
    record_numbers,
)
from polynya.front.http.routes.refusals import fail_refusal
from polynya.front.http.routes.sse import open_sse
from polynya.front.http.snapshots.begin import SNAPSHOT, begin_at_snapshot
from polynya.front.http.snapshots.refused import fail_read
from polynya.local.api import Page, Position, Refusal
from polynya.stream.replies import Code


def read(exchange: Exchange) -> None:
    """Handle a read. Raises `Failure`."""
    if exchange.query and exchange.query.get("offset") == SNAPSHOT:
        begin_at_snapshot(exchange)
        return
    request = parse_read(
        exchange, exchange.context.service.now_ms, exchange.context.settings.long_poll_seconds
    )
    if request.live != "long-poll":
        exchange.began = perf_counter()
    if request.live == "sse":
        open_sse(exchange, request)
        return
    query = within_memory(exchange, request.query)
    if query is not request.query:
        request = structs.replace(request, query=query)
    if request.live:
        long_poll(exchange, request)
        return
    page = None if request.tail_records else exchange.stream.read_nowait(query)
    if page is None:
        exchange.spawn(_wait_page(exchange, request), waits=True)
    else:
        _answer(exchange, request, page)


async def _wait_page(exchange: Exchange, request: ReadRequest) -> None:
    if request.tail_records:
        info = await exchange.stream.info(local=request.query.local)
        if isinstance(info, Refusal):
            fail_refusal(exchange, info)
            return
        request = placed(request, info)
    page = await read_allowed(exchange, request.query)
    if request.tail_records and isinstance(page, Refusal) and page.code == Code.TRIMMED:
        # trimmed since: what is left of the last records begins at the start
        request = structs.replace(
            request, query=structs.replace(request.query, record=Position.START)
        )
        page = await read_allowed(exchange, request.query)
    _answer(exchange, request, page)


def _answer(exchange: Exchange, request: ReadRequest, page: Page | Refusal) -> None:
    """Send the page. Caches must revalidate a position of a time or counted from the tail, which
    may change, and a page at the known tail, which may grow."""
    query = request.query
    if isinstance(page, Refusal):
        fail_read(exchange, page)
        return
    if "stream-incarnation" in exchange.head.headers and is_other_incarnation(exchange, page.info):
        return
    moves = query.record in Position.TIMES or request.tail_records
    lasts = (not page.up_to_date or page.info.closed) and not moves
    cache = NO_STORE if query.record == Position.NOW else CACHE_PAGE if lasts else NO_CACHE
    if request.records_max or needs_decoding(page, json_form(exchange)):
        exchange.spawn(send_decoded(exchange, request, page, cache), waits=True)
        return
    send_page(exchange, page, cache, record_numbers(request, page))
