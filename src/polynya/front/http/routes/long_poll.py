"""GET with live=long-poll: return present data at once, or data that arrives before the timeout."""

from __future__ import annotations

import asyncio
from time import perf_counter

import msgspec

from polynya.base.offsets import format_token
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import CACHE_LONG_POLL, NO_STORE
from polynya.front.http.routes.conditions import is_other_incarnation
from polynya.front.http.routes.decoded_pages import needs_decoding, send_decoded
from polynya.front.http.routes.pages import json_form, read_allowed, send_page
from polynya.front.http.routes.read_request import ReadRequest, placed, record_numbers
from polynya.front.http.routes.refusals import fail_refusal
from polynya.front.http.snapshots.refused import fail_read
from polynya.local.api import LiveEvent, Page, Position, Refusal
from polynya.wire.http.cursor import next_cursor


def long_poll(exchange: Exchange, request: ReadRequest) -> None:
    """Handle a long-poll. The position of `now`, of a time or counted from the tail changes, so its
    response must not be cached. Raises `Failure`."""
    query = request.query
    moves = query.record in (Position.NOW, *Position.TIMES) or request.tail_records
    cache = NO_STORE if moves else CACHE_LONG_POLL
    exchange.context.counters.long_polls += 1
    if query.record != Position.NOW and not request.tail_records:
        page = exchange.stream.read_nowait(query)
        if page is not None and (isinstance(page, Refusal) or page.spans or page.closed):
            _answer(exchange, request, page, cache)
            return
    exchange.spawn(_wait(exchange, request, cache), waits=True, long=True)


class _Waiter:
    """The sink of a long-poll. Each event wakes it, and so does the timeout or the end of the
    feed."""

    __slots__ = ("over", "since", "woken")

    def __init__(self) -> None:
        self.over = False
        self.since = 0.0  # when the last event came
        self.woken = asyncio.Event()

    def live(self, event: LiveEvent) -> None:
        if event.cut:  # the last event: let the client retry
            self.over = True
        self.since = perf_counter()
        self.woken.set()

    def expire(self) -> None:
        self.over = True
        self.woken.set()


async def _wait(exchange: Exchange, request: ReadRequest, cache: str) -> None:
    waiter, query = _Waiter(), request.query
    # before the read, so that no event is missed
    info = await exchange.stream.attach(waiter, local=query.local, numbers=True)
    if isinstance(info, Refusal):
        fail_refusal(exchange, info)
        return
    timer = asyncio.get_running_loop().call_later(request.seconds, waiter.expire)
    exchange.context.readers.waiters.add(waiter)
    try:
        if is_other_incarnation(exchange, info):  # now, not after the timeout
            return
        request = placed(request, info)
        while True:
            query = request.query
            waiter.woken.clear()
            page = await read_allowed(exchange, query)
            if isinstance(page, Page) and page.info.uid != info.uid:
                exchange.fail("STREAM_RECREATED")
                return
            if (
                isinstance(page, Refusal)
                or page.spans
                or page.closed
                or waiter.over
                or exchange.context.connections.stopping
            ):
                _answer(exchange, request, page, cache)
                if waiter.since and not waiter.over:
                    seconds = perf_counter() - waiter.since
                    exchange.context.counters.long_poll_seconds.observe(seconds)
                return
            moves = query.record < page.record
            if moves:  # from a special position, or over what the reader does not get
                query = msgspec.structs.replace(query, record=page.record, byte=page.byte)
                request = msgspec.structs.replace(request, query=query)
            if moves and not page.up_to_date:
                await asyncio.sleep(0)
            else:
                await waiter.woken.wait()
    finally:
        timer.cancel()
        exchange.context.readers.waiters.discard(waiter)
        exchange.context.service.detach(info.uid, waiter)


def _answer(exchange: Exchange, request: ReadRequest, page: Page | Refusal, cache: str) -> None:
    if isinstance(page, Refusal):
        fail_read(exchange, page)
        return
    if is_other_incarnation(exchange, page.info):
        return
    cursor = next_cursor(
        exchange.query.get("cursor"),
        exchange.context.service.now_ms(),
        exchange.context.random.random(),
    )
    live: Headers = [("Stream-Cursor", str(cursor))]
    if not page.spans:
        tail = [("Stream-Next-Offset", format_token(page.record, page.byte))]
        if page.has_all:
            tail.append(("Stream-Up-To-Date", "true"))
        closed = [("Stream-Closed", "true")] if page.closed else live
        exchange.answer(
            204,
            [
                *tail,
                *record_numbers(request, page),
                *closed,
                ("Stream-Incarnation", str(page.info.uid)),
                ("Cache-Control", NO_STORE),
            ],
        )
        return
    if request.records_max or needs_decoding(page, json_form(exchange)):
        exchange.spawn(send_decoded(exchange, request, page, cache, live), waits=True)
        return
    send_page(exchange, page, cache, record_numbers(request, page) + live)
