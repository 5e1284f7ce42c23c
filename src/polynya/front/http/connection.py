"""One connection: turn bytes into exchanges, write responses in order, and enforce its limits of
memory and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from polynya.base.limits import APPEND_BYTES_MAX, HEADER_BLOCK_BYTES_MAX, PIPELINED_REQUESTS_MAX
from polynya.front.http.protocol.errors import ERRORS, Failure, error_body
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.responses import CLOSE, COMMON, STATUS_LINES
from polynya.front.http.protocol.settings import (
    BODY_BYTES_PER_CORE,
    BODY_BYTES_PER_SECOND,
    BODY_SECONDS,
    HEAD_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    STALL_SECONDS,
)
from polynya.front.http.routes.append_template import RequestTemplate, compile_template
from polynya.wire.http1 import CHUNKED, BadRequest, ChunkedBody, Head, find_head

if TYPE_CHECKING:
    from polynya.access import Principal
    from polynya.access.rate_limits import Meter
    from polynya.front.http.routes.append import AppendRequest
    from polynya.front.http.server import HttpFront

# of requests that wait for earlier ones; beyond it reading pauses
_BUFFER_BYTES_MAX = 4 * HEADER_BLOCK_BYTES_MAX
# of one connection per loop pass: immediate responses would otherwise starve other connections
REQUESTS_PER_PASS = 64
_NO_HOST = "/"  # differs from every parsed Host
_LARGE_BODY_BYTES = 64 * 1024  # a larger body counts against the core's budget


class Connection(asyncio.Protocol):
    """An HTTP/1.1 connection. `front` is the server. A live reader that has taken over the
    connection sets `on_lost`."""

    __slots__ = (
        "_appends",
        "_appends_alone",
        "_body",
        "_body_head",
        "_body_max",
        "_buffer",
        "_drain",
        "_ended",
        "_finished",
        "_going_on",
        "_held",
        "_host",
        "_in_a_row",
        "_next",
        "_read_paused",
        "_ready",
        "_reserved",
        "_sent",
        "_since",
        "_template",
        "_unsent",
        "front",
        "last_append",
        "meter",
        "on_lost",
        "principal",
        "transport",
        "uses_reserve",
        "waiting_task",
        "waits_long",
        "write_paused",
    )

    def __init__(self, front: HttpFront) -> None:
        self.front = front
        self.transport: asyncio.Transport | None = None
        self.waiting_task: asyncio.Task[None] | None = None
        self.waits_long = False  # the task may wait for another client's action
        self.on_lost: Callable[[], None] | None = None  # called once, when the connection is lost
        self.write_paused = False
        # the page being sent counts against the reserve of the front's response memory
        self.uses_reserve = False
        # sender of the last request, and of those that match `_template`
        self.principal: Principal | None = None
        self.meter: Meter | None = None  # of the principal, if it has a rate limit
        self._host: str | None = _NO_HOST  # the last Host that was accepted
        self._since = front.tick  # since when the connection waits for the client
        self._unsent = 0  # response bytes that the client had not read at the last sweep
        self._buffer = b""
        self._next = 0  # number of the next request
        self._sent = 0  # number of the next response to send
        # set when an append was parsed, and so authorized
        self.last_append: AppendRequest | None = None
        # of this connection's appends, after the second one
        self._template: RequestTemplate | None = None
        self._appends = 0
        self._ready: dict[int, tuple[bytes, bool]] = {}
        self._appends_alone = True  # all requests in flight are POSTs
        self._in_a_row = 0  # requests since other connections had a turn
        self._going_on = False  # the next loop pass continues with `_buffer`
        self._held: tuple[Head, bytes] | None = None  # a request that waits for earlier ones
        self._body_head: Head | None = None  # of the body being received
        self._body: bytearray | ChunkedBody | None = None
        self._body_max = APPEND_BYTES_MAX  # of the route whose body is being received
        self._reserved = 0  # bytes reserved from the core's budget
        self._read_paused = False
        self._finished = False  # no further requests are read
        self._ended = False  # the client has sent EOF
        self._drain: asyncio.Future[None] | None = None

    # --- transport callbacks ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.front.stopping:  # accepted before the listeners closed; `stop` does not wait for it
            self._finished = True
            self.transport.abort()
        elif not self.front.admit(self):
            self._finished = True
            self.transport.write(_bare_error(self.front, "CONNECTION_LIMIT"))
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._finished:
            return
        template = self._template
        if (
            template is not None
            and self._next == self._sent  # nothing is in flight …
            and self._body is None  # … so this begins a request, which may start at once
            and not (self._buffer or self.write_paused or self.front.stopping)
            and (found := template.read(data)) is not None
            # an error needs the full parse
            and (self.meter is None or not self.meter.take(self.front.now(), len(found[0])))
        ):
            self._appends_alone = True
            template.number = number = self._next
            self._next = number + 1
            body, producer = found
            try:
                template.propose(body, producer, template.done)
            except Exception as error:  # noqa: BLE001 (the client must get an answer)
                template.exchange_now().fault(error)
            return
        if self._body is not None:
            self._feed_body(data)
        elif self._held is not None or self._going_on:
            self._buffer += data
            if len(self._buffer) > _BUFFER_BYTES_MAX and not self._read_paused:
                self._read_paused = True
                self._transport().pause_reading()
        else:
            self._in_a_row = 0
            if self._buffer:
                self._advance(self._buffer + data)
            else:
                self._since = self.front.tick
                self._advance(data)

    def eof_received(self) -> bool:
        """Keep the transport for responses to complete requests. A client in a long wait that sends
        EOF counts as disconnected."""
        self._ended = True
        waits = self.on_lost is not None or (self.waiting_task is not None and self.waits_long)
        return not ((self._sent == self._next and not self._going_on) or waits)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._finished = True
        self._buffer = b""
        self._held = None
        self._release_body()
        self.forget_template()
        self.front.forget(self)
        if self.waiting_task is not None:
            self.waiting_task.cancel()
            self.waiting_task = None
        if self.on_lost is not None:
            lost, self.on_lost = self.on_lost, None
            lost()
        self._wake_writer()

    def pause_writing(self) -> None:
        self.write_paused = True
        self.front.memory.stalled(self)

    def resume_writing(self) -> None:
        self.write_paused = False
        self.front.memory.drained(self)
        self._wake_writer()
        self._resume()

    # --- requests ---------------------------------------------------------------------------------

    def _advance(self, data: bytes) -> None:
        """Dispatch the complete requests in `data`, up to the limit of a loop pass, and buffer the
        rest."""
        position, size = 0, len(data)
        try:
            while position < size:
                if self._in_a_row >= REQUESTS_PER_PASS:
                    self._going_on = True
                    asyncio.get_running_loop().call_soon(self._go_on)
                    break
                if data[position] == 13 and data[position : position + 2] == b"\r\n":
                    position += 2  # RFC 9112 2.2: an empty line before a request is ignored
                    continue
                begin = position
                end = data.find(b"\r\n\r\n", position, position + HEADER_BLOCK_BYTES_MAX)
                if end < 0 and (end := find_head(data, position)) < 0:
                    break
                head = self.front.parser.parse(data[position:end])
                position = end + 4
                if (
                    head.headers.get("host") != self._host or "origin" in head.headers
                ) and not self._is_let_in(head):
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
                    request, self.last_append = self.last_append, None
                    self._appends += 1
                    if self._appends > 1 and request is not None and request.exchange.head is head:
                        self._template = compile_template(request, data[: size - length - 4])
        except BadRequest as bad:
            self.refuse(bad.code, bad.message)
            return
        self._buffer = data[position:] if position < size and not self._finished else b""

    def _is_let_in(self, head: Head) -> bool:
        """Check the Host and the Origin, which web pages cannot forge. A rejected request gets its
        response before its body is read."""
        host = head.headers.get("host")
        try:
            if host != self._host and self.front.hosts.check(head):
                self._host = host
            self.front.cors.check(head)
        except Failure as refused:
            self._stop_reading()
            head.keep_alive = False
            number = self._next
            self._next = number + 1
            Exchange(self, number, head, b"").fault(refused)
            return False
        return True

    def _dispatch(self, head: Head, body: bytes) -> bool:
        """Start the exchange, or hold the request until it may start. Return True if the next
        request may be parsed."""
        in_flight = self._next - self._sent
        if in_flight or self.write_paused:
            overlaps = head.method == "POST" and self._appends_alone and not self.write_paused
            if not overlaps or in_flight >= PIPELINED_REQUESTS_MAX:
                self._held = (head, body)
                return False
        else:
            self._appends_alone = head.method == "POST"
        number = self._next
        self._next = number + 1
        self._in_a_row += 1
        if not head.keep_alive or self.front.stopping:
            head.keep_alive = False
            self._finished = True  # later bytes of this connection are not read
            self._buffer = b""
        self.front.handle(Exchange(self, number, head, body))
        return True

    def hold_later_requests(self) -> None:
        """Hold later requests until those in flight are answered, also appends."""
        self._appends_alone = False

    def _go_on(self) -> None:
        """Continue after the other connections had their turn."""
        self._going_on, self._in_a_row = False, 0
        self._take_up()
        self._finish_if_over()

    def _resume(self) -> None:
        """Dispatch the held request once it may start."""
        held = self._held
        if held is None or self.transport is None:
            return
        self._held = None
        if not self._dispatch(*held):
            return
        self._release_body()
        self._take_up()

    def _take_up(self) -> None:
        """Process the bytes that arrived meanwhile."""
        if self.transport is None or self._going_on:
            return
        if self._read_paused:
            self._read_paused = False
            self.transport.resume_reading()
        buffer, self._buffer = self._buffer, b""
        if buffer and not self._finished:
            self._since = self.front.tick
            if self._body is None:
                self._advance(buffer)

    def _finish_if_over(self) -> None:
        """Finish the connection when all responses are sent and the client has sent EOF or this
        front is stopping."""
        over = self._sent == self._next and self._held is None and not self._going_on
        if over and (self._ended or self.front.stopping) and not self._finished:
            self.finish()

    # --- partial bodies ---------------------------------------------------------------------------

    def _begin_body(self, head: Head, first: bytes) -> None:
        length = head.length
        self._body_max = self.front.router.body_bytes_max(head.target)
        if length > self._body_max:
            self._refuse_body()
            return
        if self.front.authorizer is not None and not self.front.authorizer.is_known(head):
            self.refuse("UNAUTHORIZED", "")
            return
        if not self._expectation_met(head, first):
            return
        if length != CHUNKED and not self._reserve(length):
            return
        self._body_head = head
        self._body = ChunkedBody() if length == CHUNKED else bytearray()
        self._since = self.front.tick
        self._feed_body(first)

    def _refuse_body(self) -> None:
        self.refuse("BODY_TOO_LARGE", f"a body has at most {self._body_max} bytes here; split it")

    def _expectation_met(self, head: Head, first: bytes) -> bool:
        expectation = head.headers.get("expect")
        if expectation is None or not head.minor:  # HTTP/1.0 has none (RFC 9110 10.1.1)
            return True
        if expectation.lower() != "100-continue":
            self.refuse("EXPECTATION", "")
            return False
        if not first and self._next == self._sent:
            self._transport().write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _feed_body(self, data: bytes) -> None:
        head, body = self._body_head, self._body
        assert head is not None and body is not None
        if isinstance(body, ChunkedBody):
            try:
                rest = body.feed(data)
            except BadRequest as bad:
                self.refuse(bad.code, bad.message)
                return
            if body.size > self._body_max:
                self._refuse_body()
                return
            if not self._reserve(body.size) or not body.done:
                return
            whole = bytes(body.data)
        else:
            left = head.length - len(body)
            body += data[:left] if len(data) > left else data
            if len(body) < head.length:
                return
            whole, rest = bytes(body), data[left:]
        self._body = self._body_head = None
        # the body waits for earlier requests, and stays reserved until then
        if not self._dispatch(head, whole):
            self._buffer = rest
            return
        self._release_body()
        if not self._finished and rest:
            self._since = self.front.tick
            self._advance(rest)

    def _reserve(self, size: int) -> bool:
        """Reserve bytes of the core's budget for the body. Return False when the budget is
        exhausted; the error has then been sent."""
        more = size - self._reserved
        if size > _LARGE_BODY_BYTES and more > 0:
            if self.front.body_bytes + more > BODY_BYTES_PER_CORE:
                self.refuse("REQUEST_MEMORY_LIMIT", "")
                return False
            self._reserved = size
            self.front.body_bytes += more
        return True

    def _release_body(self) -> None:
        self.front.body_bytes -= self._reserved
        self._reserved = 0
        self._body = self._body_head = None

    # --- responses --------------------------------------------------------------------------------

    def send(
        self, number: int, data: bytes, close: bool = False, body: Sequence[bytes | memoryview] = ()
    ) -> None:
        """Send the complete response to request `number`, `body` after `data`. It is held until all
        earlier responses are sent.

        The defaults are positional: the interpreter calls such a function without a new C frame."""
        if number != self._sent:
            self._ready[number] = (b"".join((data, *body)) if body else data, close)
            return
        if self.transport is None:
            return
        self._sent = number + 1
        if body:
            self.transport.writelines([data, *body])
        else:
            self.transport.write(data)
        if close:
            self.finish()
            return
        if self._ready and (following := self._ready.pop(self._sent, None)) is not None:
            self.send(self._sent, following[0], close=following[1])
            return
        self._since = self.front.tick
        if self._held is not None:
            self._resume()
        elif (self._ended or self.front.stopping) and self._sent == self._next:
            # the caller may be about to dispatch another request
            asyncio.get_running_loop().call_soon(self._finish_if_over)

    def refuse(self, code: str, message: str) -> None:
        """Send an error for bytes that are no valid request, after all earlier responses, and stop
        reading requests."""
        self._stop_reading()
        error = ERRORS[code]
        self.front.counters.statuses[error.status] += 1
        number = self._next
        self._next = number + 1
        self.send(number, _bare_error(self.front, code, message), close=True)

    def _stop_reading(self) -> None:
        """Stop reading requests from this connection."""
        self._finished = True
        self._buffer = b""
        self._release_body()

    def finish(self) -> None:
        """Finish after the last response. Received bytes are dropped for a while, so that no reset
        overtakes the response."""
        self._finished = True
        self._since = self.front.tick
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._ended or self.front.stopping or not transport.can_write_eof():
            transport.close()
            return
        if self._read_paused:
            self._read_paused = False
            transport.resume_reading()
        self.front.linger(self)
        transport.write_eof()

    def forget_template(self) -> None:
        """Discard the template, so that the next request is parsed in full."""
        self._template = self.last_append = None
        self._appends = 0

    @property
    def remote(self) -> str:
        """The peer address; empty after the connection is lost."""
        found = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(found[0]) if isinstance(found, tuple) else ""

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    @property
    def unread_bytes(self) -> int:
        """Response bytes that the client has not read yet."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    async def wait_writable(self) -> None:
        """Wait until the transport's buffer has drained or the connection is lost."""
        if self.write_paused and self.transport is not None:
            self._drain = asyncio.get_running_loop().create_future()
            await self._drain

    # --- timeouts ---------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Report whether every complete request has its response."""
        return self._next == self._sent

    def sweep(self, tick: int) -> None:
        """Enforce the timeouts, every other second. A client that keeps reading its response is not
        timed out."""
        unsent = 0 if self.transport is None else self.transport.get_write_buffer_size()
        if unsent != self._unsent and self._next == self._sent:
            self._unsent, self._since = unsent, tick
        waited = tick - self._since
        if self._finished or unsent:
            patience = STALL_SECONDS if unsent else LINGER_SECONDS
            if self._next == self._sent and waited > patience and self.transport is not None:
                if unsent and not self.transport.is_closing():
                    self.front.counters.stalled += 1
                    self.front.log_rate_limited(
                        "closed a connection: the client did not read its response", "", self
                    )
                self.transport.abort()
        elif self._body is not None:
            arrived = len(self._body) if isinstance(self._body, bytearray) else len(self._body.data)
            if waited > BODY_SECONDS + arrived // BODY_BYTES_PER_SECOND:
                self._time_out("the body did not arrive in time")
        elif self._next != self._sent:
            return
        elif self._buffer:
            if waited > HEAD_SECONDS:
                self._time_out("the request line and headers did not arrive in time")
        elif waited > IDLE_SECONDS:
            self.close()

    def _time_out(self, message: str) -> None:
        self.front.counters.timeouts += 1
        self.refuse("REQUEST_TIMEOUT", message)

    def _transport(self) -> asyncio.Transport:
        assert self.transport is not None
        return self.transport

    def _wake_writer(self) -> None:
        drain, self._drain = self._drain, None
        if drain is not None and not drain.done():
            drain.set_result(None)


def _bare_error(front: HttpFront, code: str, message: str = "") -> bytes:
    """Return an error response to bytes that could not be parsed as a request."""
    error, request_id = ERRORS[code], front.new_request_id()
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
        + front.cors.lines(None, None)
        + CLOSE
        + b"\r\n"
        + body
    )
