"""GET: return a catch-up page, or start a long-poll or SSE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.responses import CACHE_PAGE, NO_CACHE, NO_STORE
from polynya.front.http.routes.decoded_pages import needs_decoding, send_decoded
from polynya.front.http.routes.long_poll import long_poll
from polynya.front.http.routes.pages import json_form, read_allowed, send_page, within_memory
from polynya.front.http.routes.preconditions import is_other_incarnation
from polynya.front.http.routes.read_request import parse_read
from polynya.front.http.routes.refusals import fail_refusal
from polynya.front.http.routes.sse import open_sse
from polynya.service.api import Page, Position, ReadQuery, Refusal

if TYPE_CHECKING:
    from polynya.front.http.server import HttpFront


def read(front: HttpFront, exchange: Exchange) -> None:
    """Handle a read. Raises `Failure`."""
    request = parse_read(exchange, front.service.now_ms, front.settings.long_poll_seconds)
    if request.live == "sse":
        open_sse(front, exchange, request)
        return
    query = within_memory(front, exchange, request.query)
    if request.live:
        long_poll(front, exchange, query, request.seconds)
        return
    page = front.service.read_nowait(query)
    if page is None:
        exchange.spawn(_wait_page(front, exchange, query), waits=True)
    else:
        _answer(exchange, query, page)


async def _wait_page(front: HttpFront, exchange: Exchange, query: ReadQuery) -> None:
    _answer(exchange, query, await read_allowed(front, exchange, query))


def _answer(exchange: Exchange, query: ReadQuery, page: Page | Refusal) -> None:
    """Send the page. Caches must revalidate the position of a time, which may change, and a page
    at the known tail, which may grow."""
    if isinstance(page, Refusal):
        fail_refusal(exchange, page)
        return
    if "stream-incarnation" in exchange.head.headers and is_other_incarnation(exchange, page.facts):
        return
    lasts = (not page.up_to_date or page.facts.closed) and query.record not in Position.TIMES
    cache = NO_STORE if query.record == Position.NOW else CACHE_PAGE if lasts else NO_CACHE
    if needs_decoding(page, json_form(exchange)):
        exchange.spawn(send_decoded(exchange, query, page, cache), waits=True)
        return
    send_page(exchange, page, cache)
