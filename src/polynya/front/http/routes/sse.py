"""GET with live=sse: attach, catch up by reads, then go live.

A live event is encoded once for all subscribers of the core and costs each one write; no task runs.
A gap, which only the feed of another core can leave, sends the subscriber back to reads. So does an
exhausted byte rate limit. Live bytes are charged a few times a second, as the distance that the
subscriber has moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from polynya.base.errors import Unavailable
from polynya.base.limits import MIB, RAW_STEP_BYTES, SSE_BACKLOG_BYTES_MAX
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NO_CACHE
from polynya.front.http.routes.conditions import is_other_incarnation
from polynya.front.http.routes.decoded_pages import (
    AT_ONCE_BYTES,
    is_compressed,
    page_up_to,
    shown_of,
)
from polynya.front.http.routes.live_response import LiveResponse
from polynya.front.http.routes.pages import allowed_bytes
from polynya.front.http.routes.read_request import ReadRequest, first_number, placed
from polynya.front.http.routes.refusals import fail_refusal, trimmed_message
from polynya.front.http.snapshots.refused import fail_trimmed
from polynya.local.api import LiveEvent, Page, Position, ReadQuery, Refusal, StreamInfo
from polynya.stream.replies import Code
from polynya.wire.http.cursor import current_interval
from polynya.wire.http.sse import SseEncoding, error_event
from polynya.wire.kafka.primitives import Bytes
from polynya.wire.record_pages import StoredSpan, is_plain, show

log = logging.getLogger("polynya.http")

_PAGE_BYTES = MIB  # maximum size of a data event during catch-up
# interval between checks of an exhausted byte limit, which other connections of the caller share
_PACE_SECONDS = 0.5


def open_sse(exchange: Exchange, request: ReadRequest) -> None:
    """Start an event stream."""
    exchange.spawn(_open(exchange, request), waits=True, long=True)


async def _open(exchange: Exchange, request: ReadRequest) -> None:
    """Open the stream. A reconnecting browser gives up on any status but 200, so temporary errors
    are sent as an event."""
    try:
        await _follow(exchange, request)
    except Unavailable as error:
        if "last-event-id" not in exchange.head.headers:
            raise
        headers = [("Content-Type", "text/event-stream"), ("Cache-Control", NO_CACHE)]
        exchange.answer(200, headers, error_event(exchange.error_json("UNAVAILABLE", str(error))))


async def _follow(exchange: Exchange, request: ReadRequest) -> None:
    query, incarnation = request.query, request.incarnation
    subscriber = Subscriber(exchange, local=query.local)
    info = await exchange.stream.attach(subscriber, local=query.local)
    if isinstance(info, Refusal):
        fail_refusal(exchange, info)
        return
    opened = False
    try:
        if incarnation is not None and incarnation != (info.uid, info.history):
            exchange.fail("STREAM_RECREATED")
        elif request.saw_end and info.closed:
            _answer_end(exchange, info)
        elif not is_other_incarnation(exchange, info):
            request = placed(request, info)
            query = request.query
            page = await subscriber.read(query.record, query.byte)
            if isinstance(page, Refusal):
                await fail_trimmed(exchange, page)
            elif page.info.uid != info.uid:
                exchange.fail("STREAM_RECREATED")
            else:
                first = max(query.record, page.first_record)
                subscriber.open(
                    page.info, first_number(page.info, first) if request.numbered else []
                )
                opened = True
                if request.first_event:
                    subscriber.write(request.first_event)
                await subscriber.run(page, asked=query.record)
    finally:
        if not opened:
            exchange.context.service.detach(info.uid, subscriber)


def _answer_end(exchange: Exchange, info: StreamInfo) -> None:
    """Respond 204, which stops the reconnects of a browser's `EventSource` (HTML, server-sent
    events)."""
    at = ("Stream-Next-Offset", format_token(info.record, info.byte))
    exchange.answer(
        204,
        [
            at,
            ("Stream-Closed", "true"),
            ("Stream-Incarnation", str(info.uid)),
            ("Cache-Control", NO_CACHE),
        ],
    )


class Subscriber:
    """A live reader. It has written everything up to (`_record`, `_byte`). Until it is `_live`, it
    buffers events, up to a limit."""

    __slots__ = (
        "_byte",
        "_caught_up",
        "_charged",
        "_context",
        "_exchange",
        "_kept",
        "_kept_bytes",
        "_live",
        "_local",
        "_meter",
        "_page_bytes",
        "_record",
        "_response",
        "_responses",
        "_seen",
        "_shared",
        "_skip_to",
        "principal",
        "stream",
    )

    def __init__(self, exchange: Exchange, *, local: bool = False) -> None:
        self._context, self._exchange = exchange.context, exchange
        self._response = LiveResponse(exchange)
        self._responses = exchange.peer.responses
        self.stream, self.principal = exchange.stream, exchange.principal
        meter = exchange.peer.meter
        self._meter = meter if meter is not None and meter.limits_bytes else None
        self._local = local
        self._record = self._byte = 0
        self._skip_to = 0  # skip events before this record: the client's offset is beyond the tail
        self._live = False
        # key of the cached frame that this reader shares; "": its cursor or offset is ahead of
        # others
        self._shared = ""
        self._kept: list[LiveEvent] = []
        self._kept_bytes = 0
        self._caught_up = False  # the reader has been notified of the tail
        self._seen = (0, 0)  # end of the events that the buffer dropped
        self._charged = 0  # while live: the byte up to which the meter was charged
        self._page_bytes = (
            _PAGE_BYTES
            if self._meter is None
            else min(_PAGE_BYTES, max(RAW_STEP_BYTES, int(self._meter.rates[1])))
        )

    def open(self, info: StreamInfo, more: Headers) -> None:
        """Open the response, with more headers."""
        self._response.open(info, more, self._release)
        self._context.readers.add(self, is_metered=self._meter is not None)

    def write(self, event: bytes) -> None:
        """Write an event before those of the stream."""
        self._response.write(event)

    def sweep(self, tick: int) -> None:
        """Send keep-alives, and end the response after its lifetime."""
        self._response.sweep(tick)

    def finish(self) -> None:
        """End the response; the client resumes."""
        self._response.finish()

    # --- catching up ------------------------------------------------------------------------------

    async def read(self, record: int, byte: int) -> Page | Refusal:
        position = (
            self.stream.name,
            record,
            byte,
            allowed_bytes(self._exchange, self._page_bytes),
        )
        query = ReadQuery(
            *position,
            whole_records=True,
            beyond_tail_waits=True,
            local=self._local,
            append_times=self._response.form.records,
            batch_times=self._response.form.records,
        )
        return self.stream.read_nowait(query) or await self.stream.read(query)

    async def run(self, page: Page | Refusal, *, asked: int = Position.START) -> None:
        """Catch up. Any error ends the response, and the client resumes."""
        try:
            await self._catch_up(page, asked)
        except Exception as error:  # noqa: BLE001 (the response has begun, so no error status is possible)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, Unavailable | Failure):
            log.error(
                "a live reader failed",
                exc_info=error,
                extra={"target": self._exchange.shown_target},
            )
        self.finish()

    async def _catch_up(self, page: Page | Refusal, asked: int) -> None:
        """Write pages until live events continue."""
        await self._wait_for_budget()
        while not self._response.finished:
            if isinstance(page, Refusal):
                trimmed = page.code == Code.TRIMMED  # during catch-up
                self._response.end_with_error(
                    "TRIMMED" if trimmed else "GONE", trimmed_message(page) if trimmed else ""
                )
                return
            if page.info.uid != self._response.uid:
                self._response.end_with_error("STREAM_RECREATED")
                return
            if asked > page.record:
                self._skip_to = asked
            moves = (page.record, page.byte) > (self._record, self._byte)
            if page.spans or page.closed or moves or not self._caught_up:
                first = max(asked, page.first_record)
                shown = await shown_of(page, first, self._response.form, self._page_bytes)
                if shown.damage:
                    self._response.end_at_damage(shown)
                    return
                page = page_up_to(page, shown)
                await self._write_page(page, shown.parts)
            else:
                await asyncio.sleep(0)  # the feed is ahead of what a read can return
            if self._context.connections.stopping:
                self.finish()
            if self._response.finished or self._go_live(page):
                return
            await asyncio.sleep(0)  # a client that reads fast leaves the loop to others too
            await self._responses.wait_writable()
            await self._wait_for_budget()
            if not self._response.finished:
                page = await self.read(self._record, self._byte)

    async def _write_page(self, page: Page, parts: Sequence[Bytes]) -> None:
        payload = b"".join(parts)
        if self._meter is not None:
            self._meter.charge(len(payload))
        events = partial(
            self._response.events,
            payload,
            (page.record, page.byte),
            up_to_date=page.has_all,
            closed=page.closed,
            first_record=page.info.first_record,
        )
        # a whole record is larger, and may consist of line ends; an envelope has an event a record
        at_once = AT_ONCE_BYTES if self._response.form.envelope else _PAGE_BYTES
        shown = events() if len(payload) <= at_once else await asyncio.to_thread(events)
        if self._response.finished:
            return
        self._caught_up = page.up_to_date
        self._record, self._byte = page.record, page.byte
        self._response.write(shown)
        if page.closed:
            self.finish()

    def _go_live(self, page: Page) -> bool:
        """Return True if the buffered events, or the tail, continue at the end of the page."""
        at = (self._record, self._byte)
        kept = [event for event in self._kept if _says_more(event, at)]
        continues = (
            (kept[0].begin_record, kept[0].begin_byte) == at or kept[0].gone or kept[0].cut
            if kept
            else page.up_to_date
        )
        if not continues or self._seen > at:
            self._kept = kept
            return False
        self._live = True
        self._charged = self._byte
        ahead = self._response.cursor > current_interval(self._context.service.now_ms())
        self._shared = "" if ahead or self._skip_to > self._record else self._response.frame_key
        self._kept, self._kept_bytes = [], 0
        for event in kept:
            self.live(event)
        return True

    # --- live -------------------------------------------------------------------------------------

    def live(self, event: LiveEvent) -> None:
        """Handle an event, in stream order, on the loop. For all but the first subscriber a common
        event costs one lookup and one write."""
        responses = self._responses
        if (
            self._live
            and event.begin_record == self._record
            and event.begin_byte == self._byte
            and not responses.write_paused
        ):
            frame = event.frames.get(self._shared)
            if frame is not None and responses.transport is not None:
                responses.transport.write(frame)
                self._record, self._byte = event.record, event.byte
                self._response.wrote = True
                if not event.known:
                    self._request_confirmation()
                return
        if self._live:
            self._live_slowly(event)
        elif not self._response.finished:
            self._keep(event)

    def _live_slowly(self, event: LiveEvent) -> None:
        if event.gone:
            self._response.end_with_error("GONE")
        elif event.cut:
            self.finish()
        elif _says_more(event, (self._record, self._byte)):
            payload = self._payload_of(event)
            if payload is None:
                self._fall_back(event)
            else:
                self._write_event(event, payload)

    def _payload_of(self, event: LiveEvent) -> bytes | None:
        """Return what readers of this form get of an event; None: a read has to find it, because
        events before it are missing, it has no payload, or decoding it may take long."""
        begin = (event.begin_record, event.begin_byte)
        if begin != (self._record, self._byte):
            return None
        if not event.payload and event.record > event.begin_record:  # an ended transaction
            return None
        if self._response.encoding == SseEncoding.TEXT and len(event.payload) > _PAGE_BYTES:
            return None  # of very many lines: page by page
        span = StoredSpan(*begin, event.payload, event.encoding, time_ms=event.time_ms)
        if not event.payload or is_plain((span,), self._response.form):
            return event.payload
        if len(event.payload) > AT_ONCE_BYTES or is_compressed(span):
            return None
        end = (event.record, event.byte)
        shown = show((span,), end, first=0, form=self._response.form, bytes_max=self._page_bytes)
        is_whole = not shown.damage and (shown.record, shown.byte) == end
        return b"".join(shown.parts) if is_whole else None

    def _write_event(self, event: LiveEvent, payload: bytes) -> None:
        transport = self._responses.transport
        if transport is None:
            return
        if transport.get_write_buffer_size() > SSE_BACKLOG_BYTES_MAX:
            self._response.cut()
            return
        self._record, self._byte = event.record, event.byte
        if event.record > self._skip_to or event.closed:
            transport.write(self._frame(event, payload))
            self._response.wrote = True
            if not event.known:
                self._request_confirmation()
        else:
            self._charged = event.byte
        if event.closed:
            self.finish()

    def _frame(self, event: LiveEvent, payload: bytes) -> bytes:
        """Return the encoded event. Common events cache it for the other subscribers."""
        frame = event.frames.get(self._shared)
        if frame is None:
            events = self._response.events(
                payload,
                (event.record, event.byte),
                up_to_date=event.known,
                closed=event.closed,
                first_record=event.first_record,
            )
            frame = self._response.framed(events)
            if self._shared and not event.closed:
                event.frames[self._shared] = frame
        return frame

    def _request_confirmation(self) -> None:
        """Request a confirmation of the tail: this replica may lack acknowledged records. Local
        readers need none."""
        if not self._local:
            self._context.readers.tail_confirmation.request(self)

    def confirm(self, info: StreamInfo | Refusal) -> None:
        """Notify the reader if it is at the leader's tail. Otherwise another event will follow."""
        at = (self._record, self._byte)
        if (
            self._live
            and isinstance(info, StreamInfo)
            and info.uid == self._response.uid
            and at == (info.record, info.byte)
        ):
            first = info.first_record
            self._response.write(
                self._response.events(b"", at, up_to_date=True, closed=False, first_record=first)
            )

    def _keep(self, event: LiveEvent) -> None:
        self._kept.append(event)
        self._kept_bytes += len(event.payload)
        if self._kept_bytes > SSE_BACKLOG_BYTES_MAX:  # drop them, and read them again
            self._seen = max(self._seen, (event.record, event.byte))
            self._kept, self._kept_bytes = [], 0

    def _fall_back(self, event: LiveEvent) -> None:
        self._count()
        self._live = False
        self._keep(event)
        self._exchange.spawn(self._read_on(), waits=True, long=True)

    async def _read_on(self) -> None:
        await self._wait_for_budget()
        if self._response.finished:
            return
        try:
            page = await self.read(self._record, self._byte)
        except Exception as error:  # noqa: BLE001 (as in `run`)
            self._failed(error)
        else:
            await self.run(page)

    # --- byte rate limit --------------------------------------------------------------------------

    def charge(self) -> None:
        """Charge for the live bytes. A reader over its limit returns to reads until it has budget,
        slower but without a gap."""
        assert self._meter is not None
        self._count()
        if self._live and self._meter.owed(self._context.now()):
            self._live = False
            self._exchange.spawn(self._read_on(), waits=True, long=True)

    def _count(self) -> None:
        if self._meter is not None and self._live:
            self._meter.charge(self._byte - self._charged)
            self._charged = self._byte

    async def _wait_for_budget(self) -> None:
        if self._meter is None:
            return
        while not self._response.finished and (seconds := self._meter.owed(self._context.now())):
            await asyncio.sleep(min(seconds, _PACE_SECONDS))

    def _release(self) -> None:
        self._count()
        self._live = False
        self._kept = []
        self._context.readers.discard(self)
        self._context.readers.tail_confirmation.forget(self)
        self._context.service.detach(self._response.uid, self)


def _says_more(event: LiveEvent, at: tuple[int, int]) -> bool:
    """Report whether the event is new to a reader at `at`."""
    return (event.record, event.byte) > at or event.closed or event.gone or event.cut
