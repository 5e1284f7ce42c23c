"""One connection: turn bytes into exchanges, write responses in order, and enforce its limits of
memory and time."""

from __future__ import annotations

import asyncio
from typing import cast

from polynya.base.limits import HEADER_BLOCK_BYTES_MAX, PIPELINED_REQUESTS_MAX
from polynya.front.common.pipeline import IdleClock, ReadPressure, ResponseQueue
from polynya.front.http.protocol.errors import ERRORS, Failure, error_body
from polynya.front.http.protocol.exchange import Context, Exchange, OtherFraming
from polynya.front.http.protocol.incoming_body import IncomingBody, check_size
from polynya.front.http.protocol.peer import Peer
from polynya.front.http.protocol.responses import CLOSE, COMMON, STATUS_LINES
from polynya.front.http.protocol.settings import (
    BODY_BYTES_PER_SECOND,
    BODY_SECONDS,
    HEAD_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    STALL_SECONDS,
)
from polynya.front.http.routes.append_request import RequestTemplate, learn
from polynya.front.http.routes.table import handle
from polynya.wire.http.http1 import BadRequest, Head, find_head

# of requests that wait for earlier ones; beyond it reading pauses
_BUFFER_BYTES_MAX = 4 * HEADER_BLOCK_BYTES_MAX
# of one connection per loop pass: immediate responses would otherwise starve other connections
REQUESTS_PER_PASS = 64
_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"  # of HTTP/2, as a request would end
_NO_HOST = "/"  # differs from every parsed Host


class Connection(asyncio.Protocol):
    """An HTTP/1.1 connection: the framing of its requests."""

    __slots__ = (
        "_body",
        "_buffer",
        "_clock",
        "_context",
        "_continues",
        "_ended",
        "_finished",
        "_held",
        "_host",
        "_in_a_row",
        "_pressure",
        "_responses",
        "peer",
    )

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock = IdleClock(context.ticks)
        self._pressure = ReadPressure()
        self._responses = ResponseQueue(self._on_sent)
        self.peer = Peer(self._responses)
        self._host: str | None = _NO_HOST  # the last Host that was accepted
        self._buffer = b""
        self._in_a_row = 0  # requests since other connections had a turn
        self._continues = False  # the next loop pass continues with `_buffer`
        # a request that waits for earlier ones, and the body that it arrived with in parts
        self._held: tuple[Head, bytes, IncomingBody | None] | None = None
        self._body: IncomingBody | None = None  # a body that arrives
        self._finished = False  # no further requests are read
        self._ended = False  # the client has sent EOF

    # --- transport callbacks ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        self._responses.transport = self._pressure.transport = made
        context = self._context
        if (
            context.connections.stopping
        ):  # accepted before the listeners closed; `stop` does not wait for it
            self._finished = True
            made.abort()
            return
        if context.http2 is not None and context.http2.is_negotiated(made):
            _give_away(self, context.http2, b"")
            return
        context.connections.add(self)
        context.counters.connections_opened += 1
        if len(context.connections) > context.settings.connections_max - context.handshakes_max:
            context.counters.connections_refused += 1
            self._finished = True
            made.write(_bare_error(context, "CONNECTION_LIMIT"))
            made.close()

    def data_received(self, data: bytes) -> None:
        if self._finished:
            return
        peer, responses = self.peer, self._responses
        template: RequestTemplate | None = peer.template
        if (
            template is not None
            and responses.next == responses.sent  # nothing is in flight …
            and self._body is None  # … so this begins a request, which may start at once
            and not (self._buffer or responses.write_paused)
            and (found := template.read(data)) is not None
            # a span needs the full parse, and so does an error
            and ((tracer := self._context.tracer) is None or not tracer.choose())
            and (peer.meter is None or not peer.meter.take(self._context.now(), len(found[0])))
        ):
            responses.exclusive = False
            request = template.request
            request.number = number = responses.next
            responses.next = number + 1
            body, producer = found
            try:
                request.propose(body, producer, template.done)
            except Exception as error:  # noqa: BLE001 (the client must get an answer)
                request.exchange_now().fault(error)
            return
        if self._body is not None:
            self._feed_body(self._body, data)
        elif self._held is not None or self._continues:
            self._buffer += data
            if len(self._buffer) > _BUFFER_BYTES_MAX:
                self._pressure.steer(full=True)
        else:
            self._in_a_row = 0
            if self._buffer:
                self._advance(self._buffer + data)
            else:
                self._clock.touch()
                self._advance(data)

    def eof_received(self) -> bool:
        """Keep the transport for responses to complete requests. A client in a long wait that sends
        EOF counts as disconnected."""
        self._ended = self._responses.is_watched = True
        is_idle = not (self._responses.in_flight or self._continues)
        return not (is_idle or self.peer.waits)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_reading()
        self._pressure.transport = None
        if self._context.authorizer is not None:
            self._context.authorizer.release(self.peer)
        self.peer.lose()
        self._context.memory.drained(self.peer)
        self._context.connections.discard(self)

    def pause_writing(self) -> None:
        self._responses.write_paused = True
        self._context.memory.stalled(self.peer)

    def resume_writing(self) -> None:
        self._context.memory.drained(self.peer)
        self._responses.resume_writing()
        self._resume()

    # --- requests ---------------------------------------------------------------------------------

    def _advance(self, data: bytes) -> None:
        """Dispatch the complete requests in `data`, up to the limit of a loop pass, and buffer the
        rest."""
        position, size = 0, len(data)
        try:
            while position < size:
                if self._in_a_row >= REQUESTS_PER_PASS:
                    self._continues = True
                    asyncio.get_running_loop().call_soon(self._continue)
                    break
                if data[position] == 13 and data[position : position + 2] == b"\r\n":
                    position += 2  # RFC 9112 2.2: an empty line before a request is ignored
                    continue
                begin = position
                end = data.find(b"\r\n\r\n", position, position + HEADER_BLOCK_BYTES_MAX)
                if end < 0 and (end := find_head(data, position)) < 0:
                    break
                head = self._context.parser.parse(data[position:end])
                position = end + 4
                if (
                    head.headers.get("host") != self._host or "origin" in head.headers
                ) and not self._check_host_and_origin(head):
                    return
                length = head.length
                if not length:
                    body = b""
                elif 0 < length <= size - position:
                    body = data[position : position + length]
                    position += length
                else:
                    self._buffer = b""
                    self._begin_body(head, data[position:])
                    return
                if not self._dispatch(head, body) or self._finished:
                    break
                # the only request in `data`
                if length > 0 and begin == 0 and position == size and head.method == "POST":
                    learn(self.peer, head, data[: size - length - 4])
        except BadRequest as bad:
            if bad.code != "HTTP_VERSION" or not _switch(self, data[position:]):
                self.refuse(bad.code, bad.message)
            return
        self._buffer = data[position:] if position < size and not self._finished else b""

    def _check_host_and_origin(self, head: Head) -> bool:
        """Check the Host and the Origin, which web pages cannot forge. A rejected request gets its
        response before its body is read."""
        context = self._context
        host = head.headers.get("host")
        try:
            if host != self._host and context.protection.hosts.check(head):
                self._host = host
            context.protection.cors.check(head)
        except Failure as refused:
            self._stop_reading()
            head.keep_alive = False
            Exchange(context, self.peer, self._responses.take(), head, b"").fault(refused)
            return False
        return True

    def _dispatch(self, head: Head, body: bytes, arrived: IncomingBody | None = None) -> bool:
        """Start the exchange, or hold the request until it may start. Return True if the next
        request may be parsed."""
        responses = self._responses
        in_flight = responses.next - responses.sent
        is_append = head.method == "POST"
        if in_flight or responses.write_paused:
            overlaps = is_append and not (responses.exclusive or responses.write_paused)
            if not overlaps or in_flight >= PIPELINED_REQUESTS_MAX:
                self._held = (head, body, arrived)
                responses.is_watched = True
                return False
        else:
            responses.exclusive = not is_append
        number = responses.next
        responses.next = number + 1
        self._in_a_row += 1
        if not head.keep_alive or self._context.connections.stopping:
            head.keep_alive = False
            self._finished = True  # later bytes of this connection are not read
            self._buffer = b""
        handle(Exchange(self._context, self.peer, number, head, body))
        return True

    def _continue(self) -> None:
        """Continue after the other connections had their turn."""
        self._continues, self._in_a_row = False, 0
        self._process_buffer()
        self._close_if_drained()

    def _resume(self) -> None:
        """Dispatch the held request once it may start."""
        held = self._held
        if held is None or self._responses.transport is None:
            return
        self._held = None
        head, body, arrived = held
        if not self._dispatch(head, body, arrived):
            return
        if arrived is not None:
            arrived.release()
        self._process_buffer()

    def _process_buffer(self) -> None:
        """Process the bytes that arrived meanwhile."""
        if self._responses.transport is None or self._continues:
            return
        self._pressure.steer(full=False)
        buffer, self._buffer = self._buffer, b""
        if buffer and not self._finished:
            self._clock.touch()
            if self._body is None:
                self._advance(buffer)

    # --- partial bodies ---------------------------------------------------------------------------

    def _begin_body(self, head: Head, first: bytes) -> None:
        context = self._context
        bytes_max = context.router.body_bytes_max(head.target)
        try:
            check_size(head.length, bytes_max)
            if context.authorizer is not None and not context.authorizer.is_known(head):
                raise Failure("UNAUTHORIZED")
            if _expects_permission(head) and not (first or self._responses.in_flight):
                self._responses.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._body = IncomingBody(head, bytes_max, context.bodies)
        except Failure as refused:
            self.refuse(refused.code, refused.message)
            return
        self._clock.touch()
        self._feed_body(self._body, first)

    def _feed_body(self, body: IncomingBody, data: bytes) -> None:
        try:
            complete = body.feed(data)
        except (BadRequest, Failure) as refused:
            self.refuse(refused.code, refused.message)
            return
        if complete is None:
            return
        self._body = None
        whole, rest = complete
        # the body waits for earlier requests, and stays reserved until then
        if not self._dispatch(body.head, whole, body):
            self._buffer = rest
            return
        body.release()
        if not self._finished and rest:
            self._clock.touch()
            self._advance(rest)

    # --- the end ----------------------------------------------------------------------------------

    @property
    def _is_ending(self) -> bool:
        """Report whether the connection ends after the responses to the requests received."""
        return self._ended or self._context.connections.stopping

    def _on_sent(self) -> None:
        """Continue after a response that something waits for."""
        responses = self._responses
        if responses.sent > responses.last:
            self._finish()
        elif self._held is not None:
            self._resume()
        elif self._is_ending and not responses.in_flight:
            # the caller may be about to dispatch another request
            asyncio.get_running_loop().call_soon(self._close_if_drained)

    def _close_if_drained(self) -> None:
        """Finish the connection when all responses are sent and the client has sent EOF or this
        front is stopping."""
        is_drained = not (self._responses.in_flight or self._held or self._continues)
        if is_drained and self._is_ending and not self._finished:
            self._finish()

    def refuse(self, code: str, message: str) -> None:
        """Send an error for bytes that are no valid request, after all earlier responses, and stop
        reading requests."""
        self._stop_reading()
        self._context.counters.statuses[ERRORS[code].status] += 1
        number = self._responses.take()
        self._responses.end_after(number)
        self._responses.send(number, _bare_error(self._context, code, message))

    def _stop_reading(self) -> None:
        """Stop reading requests from this connection."""
        self._finished = True
        self._buffer = b""
        for body in (self._body, self._held[2] if self._held is not None else None):
            if body is not None:
                body.release()
        self._body = self._held = None

    def _finish(self) -> None:
        """Finish after the last response. Received bytes are dropped for a while, so that no reset
        overtakes the response."""
        self._finished = True
        self._clock.touch()
        transport = self._responses.transport
        if transport is None or transport.is_closing():
            return
        if self._is_ending or not transport.can_write_eof():
            transport.close()
            return
        self._pressure.steer(full=False)
        transport.write_eof()

    def stop(self) -> None:
        """End with the front, after the responses in flight."""
        self.peer.forget_template()
        self._responses.is_watched = True
        if not self._responses.in_flight:
            self._responses.close()

    def abort(self) -> None:
        """Close at once."""
        if self._responses.transport is not None:
            self._responses.transport.abort()

    def sweep(self, tick: int) -> None:
        """Enforce the timeouts, every other second. A client that keeps reading its response is not
        timed out."""
        unread, is_idle, late = self._responses.unread_bytes, not self._responses.in_flight, ""
        waited = self._clock.waited(tick, self._responses)
        if self._finished or unread:
            if is_idle and waited > (STALL_SECONDS if unread else LINGER_SECONDS):
                self._cut(unread)
        elif self._body is not None:
            if waited > BODY_SECONDS + self._body.size // BODY_BYTES_PER_SECOND:
                late = "the body did not arrive in time"
        elif is_idle and self._buffer:
            if waited > HEAD_SECONDS:
                late = "the request line and headers did not arrive in time"
        elif is_idle and waited > IDLE_SECONDS:
            self._responses.close()
        if late:
            self._context.counters.timeouts += 1
            self.refuse("REQUEST_TIMEOUT", late)

    def _cut(self, unread: int) -> None:
        """Abort a connection whose client does not read its last response, or does not close."""
        transport = self._responses.transport
        if unread and transport is not None and not transport.is_closing():
            self._context.counters.stalled += 1
            said = "closed a connection: the client did not read its response"
            self._context.log_rate_limited(said, "", self.peer)
        self.abort()


def _switch(connection: Connection, data: bytes) -> bool:
    """Give a connection that begins with the preface of HTTP/2 away. Return False if it may not
    begin so."""
    context, responses = connection._context, connection._responses
    transport = responses.transport
    if (
        context.http2 is None
        or transport is None
        or responses.next  # it has spoken HTTP/1.1
        or not data.startswith(_PREFACE)
        or not context.http2.may_begin(transport)
    ):
        return False
    context.connections.discard(connection)
    context.counters.connections_opened -= 1  # it is counted again
    _give_away(connection, context.http2, data)
    return True


def _give_away(connection: Connection, http2: OtherFraming, data: bytes) -> None:
    """Let HTTP/2 serve a connection from here on."""
    transport = connection._responses.transport
    assert transport is not None
    connection._finished = True
    connection._pressure.transport = None
    connection.peer.lose()
    http2.take(transport, data)


def _expects_permission(head: Head) -> bool:
    """Report whether the client waits for a permission to send its body. Raises `Failure`."""
    expectation = head.headers.get("expect")
    if expectation is None or not head.minor:  # HTTP/1.0 has none (RFC 9110 10.1.1)
        return False
    if expectation.lower() != "100-continue":
        raise Failure("EXPECTATION")
    return True


def _bare_error(context: Context, code: str, message: str = "") -> bytes:
    """Return an error response to bytes that could not be parsed as a request."""
    error, request_id = ERRORS[code], context.new_request_id()
    body = error_body(code, message or error.message, request_id)
    retry = b"Retry-After: %d\r\n" % error.retry_after if error.retry_after is not None else b""
    if error.status == 401:
        retry = b"WWW-Authenticate: Bearer\r\n"
    head = (
        b"Content-Type: application/json\r\nCache-Control: no-store\r\nStream-Outcome: %b\r\n"
        b"X-Request-Id: %b\r\nContent-Length: %d\r\n"
    )
    lines = head % (error.outcome.encode(), request_id.encode(), len(body))
    return (
        STATUS_LINES[error.status]
        + lines
        + retry
        + COMMON
        + context.protection.cors.lines(None, None)
        + CLOSE
        + b"\r\n"
        + body
    )
