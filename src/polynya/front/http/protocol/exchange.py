"""One request and its response, and the parts of a front that all its requests share."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from time import perf_counter
from typing import Any, Protocol

import msgspec

from polynya.access import Principal
from polynya.base.errors import CorruptData
from polynya.base.histogram import Histogram
from polynya.base.log_throttle import LogThrottle
from polynya.base.spans import Span, Tracer
from polynya.front.common.client_traffic import ClientTraffic
from polynya.front.common.connection_set import ConnectionSet, Served
from polynya.front.common.pipeline import Response, Ticks
from polynya.front.common.response_memory import ResponseMemory
from polynya.front.common.tls_handshakes import HANDSHAKES_MAX
from polynya.front.http.protocol.cors import Cors
from polynya.front.http.protocol.errors import ERRORS, error_body, expected_failure
from polynya.front.http.protocol.hosts import Hosts
from polynya.front.http.protocol.incoming_body import BodyBudget
from polynya.front.http.protocol.live_readers import LiveReaders
from polynya.front.http.protocol.peer import Peer
from polynya.front.http.protocol.request_spans import note_response
from polynya.front.http.protocol.responses import (
    CLOSE,
    COMMON,
    KEEP_ALIVE,
    NO_BODY,
    STATUS_LINES,
    header_lines,
    owner_line,
)
from polynya.front.http.protocol.router import OF_STREAMS, Route, Router
from polynya.front.http.protocol.settings import HttpCounters, HttpSettings
from polynya.routing.handle import StreamHandle
from polynya.service.api import Service
from polynya.service.transactions.appends import AppendsAcrossGroups
from polynya.wire.http.http1 import Head, HeadParser

log = logging.getLogger("polynya.http")

# accepted from a client and echoed
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:=/+-]{1,128}", re.ASCII)

_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*", re.ASCII)

CONSOLE = "polynya-console"  # the header of requests with which the web console changes something
JOINED_BYTES_MAX = 64 * 1024  # a larger body is sent without a copy
Headers = list[tuple[str, str]]


class HttpConnection(Served, Protocol):
    """A connection of an HTTP front."""

    @property
    def peer(self) -> Peer: ...


class Authorization(Protocol):
    """The access control of a front."""

    def authorize(self, exchange: Exchange) -> bool:
        """Authorize a request. Return True to dispatch it now; False if it gets its response, or is
        dispatched, later. Raises `Failure`."""
        ...

    def is_known(self, head: Head) -> bool:
        """Report whether the credentials are valid, before a large body is read."""
        ...

    def answered(self, exchange: Exchange, status: int, size: int) -> None:
        """Account for the response to an exchange with a principal."""
        ...

    def release(self, peer: Peer) -> None:
        """Unbind a connection that is closed or has a new principal."""
        ...


class OtherFraming(Protocol):
    """The switch of a front to HTTP/2."""

    def is_negotiated(self, transport: asyncio.Transport) -> bool:
        """Report whether the handshake of TLS chose it."""
        ...

    def may_begin(self, transport: asyncio.Transport) -> bool:
        """Report whether a connection may begin with it unasked."""
        ...

    def take(self, transport: asyncio.Transport, data: bytes) -> None:
        """Serve a connection from here on; `data` is all that it has sent."""
        ...


class MarkedRequests(Protocol):
    """The gate of requests that the web console marks by the header `CONSOLE`."""

    def begin(self, exchange: Exchange) -> None:
        """Admit a request before it is authorized. Raises `Failure`."""
        ...

    def answered(self, exchange: Exchange, status: int) -> None:
        """Account for a response."""
        ...

    def refused(self, exchange: Exchange, error: BaseException) -> None:
        """Account for a request that failed before its handler began."""
        ...


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """The access rules of a front: the authorizer (None: no access control), allowed hosts, allowed
    origins, TLS, and the gate of the console's acts (None: its mark means nothing)."""

    authorizer: Authorization | None = None
    hosts: Hosts = Hosts()
    cors: Cors = Cors()
    tls: ssl.SSLContext | None = None
    console: MarkedRequests | None = None


class Context:
    """The parts of one front that its connections and handlers use."""

    def __init__(
        self, service: Service, settings: HttpSettings, router: Router, protection: Protection
    ) -> None:
        self.service = service
        self.settings = settings
        self.router = router
        self.protection = protection
        self.authorizer = protection.authorizer
        self.parser = HeadParser()
        self.counters = HttpCounters()
        self.clients = ClientTraffic()
        self.connections = ConnectionSet[HttpConnection]()
        self.bodies = BodyBudget()
        self.memory = ResponseMemory()
        self.readers = LiveReaders(self.connections.spawn)
        self.across: AppendsAcrossGroups | None = None  # for appends to several groups at once
        self.tracer: Tracer | None = None  # None: no request is traced
        self.http2: OtherFraming | None = None  # None: this front speaks HTTP/1.1 alone
        self.now = time.monotonic
        self.random = random.Random()  # noqa: S311 (jitter, no secret)
        self._log_throttle = LogThrottle()
        self._ids = map(f"{secrets.token_hex(4)}-{{:x}}".format, itertools.count(1))

    @property
    def console(self) -> MarkedRequests | None:
        """The gate of the console's acts."""
        return self.protection.console

    @property
    def ticks(self) -> Ticks:
        """The coarse seconds of the front."""
        return self.connections.ticks

    @property
    def handshakes_max(self) -> int:
        """The TLS handshakes in progress, which count as connections."""
        is_tls = self.protection.tls is not None
        return min(HANDSHAKES_MAX, self.settings.connections_max // 4 + 1) if is_tls else 0

    def new_request_id(self) -> str:
        """Return an id that is unique on the node: the id of this start of the core, and a
        counter."""
        return next(self._ids)

    def log_rate_limited(self, said: str, target: str, peer: Peer) -> None:
        """Log a client that does not read its response, at most once a minute per target."""
        times = self._log_throttle.due(self.now(), said, target, peer.remote)
        if times:
            fields = {"target": target, "from": peer.remote, "unsent": peer.unread_bytes}
            log.warning(said, extra=fields | {"times": times})


class Exchange:
    """A request that gets exactly one response, now or later, by `answer` or `fail`. After the
    connection is lost, the response is dropped."""

    __slots__ = (
        "began",
        "body",
        "context",
        "head",
        "keep_alive",
        "number",
        "peer",
        "principal",
        "query",
        "request_id",
        "route",
        "span",
        "stream",
    )

    def __init__(self, context: Context, peer: Peer, number: int, head: Head, body: bytes) -> None:
        self.context = context
        self.peer = peer
        self.number = number
        self.head = head
        self.body = body
        self.keep_alive = head.keep_alive
        self.principal: Principal | None = None  # the authenticated caller
        self.began = 0.0  # a read's start, until the first byte of its response
        self.request_id = ""
        self.span: Span | None = None  # of a traced request
        if "x-request-id" in head.headers and _REQUEST_ID.fullmatch(head.headers["x-request-id"]):
            self.request_id = head.headers["x-request-id"]
        self.route: Route
        self.stream: StreamHandle  # of a stream's route
        self.query: dict[str, str]

    @property
    def base_url(self) -> str:
        headers = self.head.headers
        is_tls = self.context.protection.tls is not None
        is_https = is_tls or headers.get("x-forwarded-proto", "").lower() == "https"
        scheme = "https" if is_https else "http"
        return f"{scheme}://{headers.get('host') or 'localhost'}"

    @property
    def shown_target(self) -> str:
        """The target without a token, for logs."""
        path, _, query = self.head.target.partition("?")
        return f"{path}?…" if "access_token" in query else self.head.target

    def send(self, response: Response) -> None:
        """Send a complete, encoded response."""
        if self.began:
            self.first_byte()
        if self.span is not None:
            self.span.end()
        if not self.keep_alive:
            self.peer.responses.end_after(self.number)
        self.peer.responses.send(self.number, response)

    def first_byte(self) -> None:
        """Count the time until the first byte of a read's response, once."""
        if not self.began:
            return
        seconds, self.began = perf_counter() - self.began, 0.0
        histogram = self.context.counters.first_byte_seconds
        histogram.observe(seconds)
        self.trace(histogram, seconds)

    def trace(self, histogram: Histogram, seconds: float) -> None:
        """Keep a duration that was counted as an exemplar, if the client named its trace (W3C Trace
        Context) or its request."""
        parent = self.head.headers.get("traceparent")
        if self.span is not None:
            histogram.remember(seconds, "trace_id", self.span.trace_id)
        elif parent is not None and (found := _TRACE_PARENT.fullmatch(parent)):
            histogram.remember(seconds, "trace_id", found[1])
        elif self.request_id and "x-request-id" in self.head.headers:  # not that of an error
            histogram.remember(seconds, "request_id", self.request_id)

    def answer(self, status: int, headers: Headers, body: bytes | memoryview = b"") -> None:
        self._account(status, len(body))
        lines = self.head_lines(status, headers)
        if status in NO_BODY or self.head.method == "HEAD":
            self.send(lines + b"\r\n")
        else:
            self.send(lines + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def answer_parts(self, status: int, headers: Headers, parts: list[bytes | memoryview]) -> None:
        """Respond like `answer` to a GET, without a copy of the parts."""
        size = sum(map(len, parts))
        self._account(status, size)
        lines = self.head_lines(status, headers) + b"Content-Length: %d\r\n\r\n" % size
        self.send([lines, *parts])

    async def answer_pieces(
        self, status: int, headers: Headers, size: int, pieces: AsyncIterator[bytes | memoryview]
    ) -> None:
        """Respond to a GET with pieces of `size` bytes together, each once the client has read those
        before. An error on the way breaks the connection: the client sees that bytes are missing."""
        self._account(status, size)
        responses = self.peer.responses
        lines = self.head_lines(status, headers)
        responses.write(lines + b"Content-Length: %d\r\n\r\n" % size)
        try:
            async for piece in pieces:
                responses.write(piece)
                if not await responses.wait_writable():
                    return
        except BaseException:
            responses.close()
            responses.end()  # an error response would look like the rest of the body
            raise
        self.send(b"")

    def _account(self, status: int, size: int) -> None:
        context = self.context
        context.counters.statuses[status] += 1
        if self.span is not None:
            note_response(self.span, status, self.request_id)
        if size and "stream-zone" in self.head.headers:
            context.clients.send(self.head.headers["stream-zone"], size)
        if self.principal is not None and context.authorizer is not None:
            context.authorizer.answered(self, status, size)
        if (
            context.protection.console is not None
            and CONSOLE in self.head.headers
            and hasattr(self, "route")
        ):
            context.protection.console.answered(self, status)

    def head_lines(self, status: int, headers: Headers) -> bytes:
        """Return the status line and all headers but Content-Length."""
        if self.principal is not None:
            headers = _for_one(headers, by_cookie="cookie" in self.head.headers)
        parts = [STATUS_LINES[status], header_lines(headers), COMMON]
        if self.context.service.hint is not None and (owner := self._owner()):
            parts.append(owner_line(owner))
        if self.head.method in ("GET", "HEAD", "OPTIONS") or "origin" in self.head.headers:
            page, host = self.head.headers.get("origin"), self.head.headers.get("host")
            parts.append(self.context.protection.cors.lines(page, host))
        if self.request_id:
            parts.append(header_lines([("X-Request-Id", self.request_id)]))
        if not self.keep_alive:
            parts.append(CLOSE)
        elif not self.head.minor:
            parts.append(KEEP_ALIVE)
        return b"".join(parts)

    def _owner(self) -> str:
        """Return the URL of the node that serves the stream best; "" for this one."""
        route = getattr(self, "route", None)  # the failure may precede routing
        hint = self.context.service.hint
        return (
            hint(route.name, self.head.headers.get("stream-zone", ""))
            if hint is not None and route is not None and route.kind in OF_STREAMS
            else ""
        )

    def fail(self, code: str, message: str = "", headers: Headers | None = None) -> None:
        """Respond with an error of the table."""
        error = ERRORS[code]
        lines = [
            ("Content-Type", "application/json"),
            ("Cache-Control", "no-store"),
            ("Stream-Outcome", error.outcome),
        ]
        own = headers or []
        if error.retry_after is not None and not any(name == "Retry-After" for name, _ in own):
            lines.append(("Retry-After", str(error.retry_after)))
        self.answer(error.status, lines + own, self.error_json(code, message))

    def error_json(self, code: str, message: str = "") -> bytes:
        if not self.request_id:
            self.request_id = self.context.new_request_id()
        text = message or ERRORS[code].message
        return error_body(code, text, self.request_id, self.head.target)

    def complete_error(self, body: bytes) -> bytes:
        """Add the request id to the error body of a handler or mount."""
        answer = msgspec.json.decode(body)
        self.request_id = self.request_id or self.context.new_request_id()
        answer["error"].setdefault("message", "")
        answer["error"]["request_id"] = self.request_id
        return msgspec.json.encode(answer)

    def fault(self, error: BaseException) -> None:
        """Respond to an exception, or to the failure of a proposal."""
        if (failure := expected_failure(error)) is not None:
            self.fail(failure.code, failure.message, list(failure.headers))
        elif isinstance(error, CorruptData):
            self.fail("DATA_DAMAGED", f"{error}; run 'polynya store verify' for details")
            log.error(
                "data is missing or damaged",
                extra={
                    "request_id": self.request_id,
                    "target": self.shown_target,
                    "error": str(error),
                },
            )
        elif isinstance(error, MemoryError):
            self.fail("NO_MEMORY")
            log.error(
                "out of memory while handling a request",
                extra={"request_id": self.request_id, "target": self.shown_target},
            )
        else:
            self.fail("INTERNAL")
            log.error(
                "request failed",
                exc_info=error,
                extra={"request_id": self.request_id, "target": self.shown_target},
            )

    def spawn(
        self, work: Coroutine[Any, Any, None], *, waits: bool = False, long: bool = False
    ) -> None:
        """Run work that may block. `waits`: it has no side effects, so it is cancelled when the
        client disconnects. `long`: an EOF of the client cancels it too, since the wait may never
        end."""
        task = self.context.connections.spawn(self._guarded(work))
        task.add_done_callback(lambda _: work.close())  # it was cancelled before it began
        if waits:
            self.peer.waiting_task, self.peer.waits_long = task, long

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 (the client must get an answer; what is unexpected is logged)
            self.fault(error)
        finally:
            if self.peer.waiting_task is asyncio.current_task():
                self.peer.waiting_task = None


def _for_one(headers: Headers, *, by_cookie: bool) -> Headers:
    """Replace `public` in Cache-Control: a cache must not share a response that needed a token (RFC
    9111 3.5)."""
    found: Headers = []
    varies = "Authorization, Cookie" if by_cookie else "Authorization"
    for name, value in headers:
        if name == "Cache-Control" and value.startswith("public"):
            found += [(name, value.replace("public", "private", 1)), ("Vary", varies)]
        else:
            found.append((name, value))
    return found
