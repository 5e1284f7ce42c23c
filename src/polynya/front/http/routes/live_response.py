"""The response to a live reader: its head, its events and keep-alives, and its end."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from polynya.base.offsets import format_token
from polynya.front.http.protocol.exchange import Context, Exchange, Headers
from polynya.front.http.protocol.request_spans import note_response
from polynya.front.http.protocol.responses import NO_CACHE
from polynya.front.http.routes.pages import is_json_stream, json_form
from polynya.front.http.routes.read_request import END_SUFFIX, is_numbered
from polynya.local.api import StreamInfo
from polynya.wire.headers import (
    ENVELOPE,
    ENVELOPE_EVENT,
    RECORDS,
    format_event_id,
    media_type,
)
from polynya.wire.http.cursor import current_interval, next_cursor
from polynya.wire.http.sse import (
    COMMENT,
    SseEncoding,
    chunk,
    control_event,
    data_event,
    error_event,
    sse_encoding,
    whole_event,
)
from polynya.wire.kafka.values import line_record, values_type
from polynya.wire.record_pages import Form, Shown


def recycle_at(context: Context) -> int:
    """Return the coarse second at which a reader that begins now has to begin again, so that
    clients redistribute."""
    seconds = context.settings.sse_recycle_seconds
    return context.ticks.now + int(seconds * (0.85 + 0.3 * context.random.random()))


class LiveResponse:
    """The response to one reader: its framing, its keep-alives and its end. Once open it has the
    connection to itself, until it is `finished`. What to send is for `Subscriber` to decide."""

    __slots__ = (
        "_context",
        "_ends_at",
        "_exchange",
        "_history",
        "_numbered",
        "_on_end",
        "_peer",
        "_wrote_at",
        "chunked",
        "cursor",
        "encoding",
        "finished",
        "form",
        "uid",
        "wrote",
    )

    def __init__(self, exchange: Exchange) -> None:
        self._context = context = exchange.context
        self._exchange = exchange
        self._peer = exchange.peer
        self.chunked = exchange.head.minor == 1
        self.cursor = next_cursor(
            exchange.query.get("cursor"), context.service.now_ms(), context.random.random()
        )
        self.encoding = SseEncoding.BASE64
        form = json_form(exchange)
        self.form = Form(form in (RECORDS, ENVELOPE), is_json=False, envelope=form == ENVELOPE)
        self._numbered = is_numbered(exchange)
        self.uid = self._history = 0
        self.wrote = True  # since the last sweep
        self._wrote_at = self._ends_at = 0
        self.finished = False
        self._on_end: Callable[[], None] | None = None

    @property
    def frame_key(self) -> str:
        """The key of the frames of all readers with the same form and framing."""
        key = "sse-records" if self.form.records else "sse"
        if self.form.envelope:
            key = "sse-envelope"
        elif self._numbered:
            key += "-numbered"
        return f"{key}-chunk" if self.chunked else key

    def open(self, info: StreamInfo, more: Headers, on_end: Callable[[], None]) -> None:
        """Begin the response for a stream, with more headers."""
        self.uid, self._history = info.uid, info.history
        self.form = structs.replace(self.form, is_json=is_json_stream(info))
        values = values_type(info.content_type)
        media = "application/json" if self.form.records else values
        self.encoding = sse_encoding(media_type(media))
        shown = RECORDS if self.form.records else values
        headers: Headers = [
            ("Stream-Incarnation", str(info.uid)),
            ("Stream-Data-Content-Type", ENVELOPE_EVENT if self.form.envelope else shown),
            *more,
        ]
        if self.encoding == SseEncoding.BASE64:
            headers.append(("Stream-SSE-Data-Encoding", "base64"))
        self.begin(headers, on_end)

    def begin(self, more: Headers, on_end: Callable[[], None]) -> None:
        """Write the response head, with more headers, and take over the connection. `on_end` is
        called once, at the end of the response or of the connection."""
        self._on_end = on_end
        headers: Headers = [
            ("Content-Type", "text/event-stream"),
            ("Cache-Control", NO_CACHE),
            ("X-Accel-Buffering", "no"),
            *more,
        ]
        if self.chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        self._exchange.keep_alive = False  # the connection ends with the event stream
        context = self._context
        context.counters.live_opened += 1
        context.counters.statuses[200] += 1
        self._ends_at = recycle_at(context)
        self._wrote_at = context.ticks.now
        self._peer.on_lost = self._end
        self._peer.responses.write(self._exchange.head_lines(200, headers) + b"\r\n")
        self._exchange.first_byte()
        if self._exchange.span is not None:  # its end is not a figure of the node
            note_response(self._exchange.span, 200, self._exchange.request_id)
            self._exchange.span.end()

    def events(
        self,
        payload: bytes,
        at: tuple[int, int],
        *,
        up_to_date: bool,
        closed: bool,
        first_record: int,
    ) -> bytes:
        """Return a data event, if there is data, and its control event. Numbered values are one
        data event each. `first_record`: the first one that the stream keeps; -1: unknown."""
        cursor = max(self.cursor, current_interval(self._context.service.now_ms()))
        event_id = format_event_id(*at, (self.uid, self._history))
        last_id = event_id + END_SUFFIX if closed else event_id
        control = control_event(
            last_id,
            format_token(*at),
            str(cursor),
            up_to_date=up_to_date,
            closed=closed,
            records=(first_record, at[0]) if self._numbered else None,
        )
        if not payload:
            return control
        if self.form.envelope:
            return self._one_by_one(payload, event_id) + control
        return data_event(event_id, payload, self.encoding) + control

    def _one_by_one(self, payload: bytes, event_id: str) -> bytes:
        """Return a data event for each line. Its id is the position behind its record, so that a
        reader resumes there; the last one's is `event_id`."""
        *before, last = payload[:-1].split(b"\n")
        life = (self.uid, self._history)
        events = [
            whole_event(format_event_id(line_record(line) + 1, 0, life), "data", line)
            for line in before
        ]
        return b"".join([*events, whole_event(event_id, "data", last)])

    def framed(self, events: bytes) -> bytes:
        """Return events as they are written."""
        return chunk(events) if self.chunked else events

    def sweep(self, tick: int) -> None:
        """Send keep-alives, and end the response after its lifetime, so that clients
        redistribute."""
        if tick >= self._ends_at:
            self.finish()
        elif self.wrote:
            self.wrote, self._wrote_at = False, tick
        elif tick - self._wrote_at >= self._context.settings.sse_keepalive_seconds:
            self.write(COMMENT)

    def finish(self) -> None:
        """End the response; the client resumes from its last event."""
        if self.finished:
            return
        self._end()
        self._peer.on_lost = None
        self._exchange.send(b"0\r\n\r\n" if self.chunked else b"")

    def _end(self) -> None:
        self.finished = True
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def cut(self) -> None:
        """End with the error of a client that reads too slowly."""
        self._context.counters.live_cut += 1
        self._context.log_rate_limited(
            "disconnected a live reader: it was too slow for its stream",
            self._exchange.shown_target,
            self._peer,
        )
        self.end_with_error("SLOW_READER")

    def end_at_damage(self, shown: Shown) -> None:
        """End with the error of a batch that cannot be decoded. Its id lets the client resume
        behind the batch."""
        at = format_event_id(shown.record, shown.byte, (self.uid, self._history))
        body = self._exchange.error_json("KAFKA_BATCH_UNREADABLE", shown.damage)
        self.write(error_event(body, at))
        self.finish()

    def end_with_error(self, code: str, message: str = "") -> None:
        """End with an error event."""
        self.write(error_event(self._exchange.error_json(code, message)))
        self.finish()

    def write(self, data: bytes) -> None:
        """Write encoded events."""
        self._peer.responses.write(self.framed(data))
        self.wrote = True
