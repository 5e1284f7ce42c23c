"""GET: return a catch-up page, or start a long-poll or SSE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.responses import CACHE_PAGE, NO_CACHE, NO_STORE, etag_of
from polynya.front.http.routes.long_poll import long_poll
from polynya.front.http.routes.pages import allowed_bytes, page_headers, read_allowed, render
from polynya.front.http.routes.positions import is_local, page_bytes, parse_position
from polynya.front.http.routes.preconditions import is_other_incarnation
from polynya.front.http.routes.refusals import fail_refusal
from polynya.front.http.routes.sse import open_sse
from polynya.service.api import Page, Position, ReadQuery, Refusal
from polynya.stream.commands import Encoding
from polynya.wire.headers import accepts_lines, none_match

if TYPE_CHECKING:
    from polynya.front.http.server import HttpFront


def read(front: HttpFront, exchange: Exchange) -> None:
    """Handle a read. Raises `Failure`."""
    live = exchange.query.get("live")
    if live is None:
        record, byte = parse_position(exchange, front.service.now_ms())
        query = ReadQuery(exchange.route.name, record, byte, allowed_bytes(front, exchange, page_bytes(exchange)), local=is_local(exchange))
        page = front.service.read_nowait(query)
        if page is None:
            exchange.spawn(_wait_page(front, exchange, query), waits=True)
        else:
            _answer(exchange, query, page)
    elif live not in ("long-poll", "sse"):
        raise Failure("INVALID_PARAMETER", f"live must be long-poll or sse, not '{exchange.query['live'][:64]}'")
    elif live == "long-poll":
        long_poll(front, exchange)
    else:
        open_sse(front, exchange)


async def _wait_page(front: HttpFront, exchange: Exchange, query: ReadQuery) -> None:
    _answer(exchange, query, await read_allowed(front, exchange, query))


def _answer(exchange: Exchange, query: ReadQuery, page: Page | Refusal) -> None:
    if isinstance(page, Refusal):
        fail_refusal(exchange, page)
        return
    facts = page.facts
    if is_other_incarnation(exchange, facts):
        return
    lines = facts.encoding == Encoding.JSON and accepts_lines(exchange.head.headers.get("accept"))
    headers = page_headers(page, lines=lines)
    if query.record == Position.NOW:
        exchange.answer_page(200, [*headers, ("Cache-Control", NO_STORE)], render(page, lines=lines))
        return
    begin, end = (page.begin_record, page.begin_byte), (page.record, page.byte)
    etag = etag_of(facts, begin, end, variant=":n" if lines else "")
    headers += [("ETag", etag), ("Cache-Control", _kept(query, page))]
    if none_match(exchange.head.headers.get("if-none-match"), etag):
        exchange.answer(304, headers)
    else:
        exchange.answer_page(200, headers, render(page, lines=lines))


def _kept(query: ReadQuery, page: Page) -> str:
    """Return the Cache-Control of a page. The position of a time may change, and a page at the known tail may grow: caches must
    revalidate both."""
    return CACHE_PAGE if (page.closed or not page.up_to_date) and query.record != Position.AT_TIME else NO_CACHE
