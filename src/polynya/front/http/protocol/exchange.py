"""One request and its one answer."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from polynya.access import Principal
from polynya.base.errors import CorruptData, OutcomeUnknown, Unavailable
from polynya.front.http.protocol.errors import ERRORS, Failure, error_body
from polynya.front.http.protocol.responses import (
    CLOSE,
    COMMON,
    KEEP_ALIVE,
    STATUS_LINES,
    has_body,
    header_lines,
    owner_line,
)
from polynya.front.http.protocol.router import Route, RouteKind
from polynya.wire.http1 import Head

if TYPE_CHECKING:
    from polynya.front.http.connection import Connection

log = logging.getLogger("polynya.http")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:=/+-]{1,128}", re.ASCII)  # of a client's own, echoed

_JOINED_BYTES_MAX = 64 * 1024
Headers = list[tuple[str, str]]


class Exchange:
    """Answered exactly once, by `answer` or `fail`, at any later time; an answer after the connection is gone goes nowhere."""

    __slots__ = ("body", "connection", "head", "keep_alive", "number", "principal", "query", "request_id", "route")

    def __init__(self, connection: Connection, number: int, head: Head, body: bytes) -> None:
        self.connection = connection
        self.number = number
        self.head = head
        self.body = body
        self.keep_alive = head.keep_alive
        self.principal: Principal | None = None  # who asks, once that is proven
        self.request_id = ""
        if "x-request-id" in head.headers and _REQUEST_ID.fullmatch(head.headers["x-request-id"]):
            self.request_id = head.headers["x-request-id"]
        self.route: Route
        self.query: dict[str, str]

    @property
    def plain(self) -> bool:
        """Whether the answer needs none of the headers that only some clients need."""
        head = self.head
        return self.keep_alive and not self.request_id and head.minor == 1 and "origin" not in head.headers

    @property
    def base_url(self) -> str:
        headers = self.head.headers
        is_https = self.connection.front.is_tls or headers.get("x-forwarded-proto", "").lower() == "https"
        scheme = "https" if is_https else "http"
        return f"{scheme}://{headers.get('host') or 'localhost'}"

    @property
    def shown_target(self) -> str:
        """The target as it may be logged: without a token."""
        path, _, query = self.head.target.partition("?")
        return f"{path}?…" if "access_token" in query else self.head.target

    def send(self, data: bytes) -> None:
        """A complete answer, already encoded."""
        self.connection.send(self.number, data, close=not self.keep_alive)

    def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        front = self.connection.front
        front.counters.statuses[status] += 1
        if self.principal is not None:
            front.answered(self, status, len(body))
        lines = self.head_lines(status, headers)
        if not has_body(status) or self.head.method == "HEAD":
            self.send(lines + b"\r\n")
        else:
            self.send(lines + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def answer_page(self, status: int, headers: Headers, parts: list[bytes | memoryview]) -> None:
        """`answer` with a body that is copied together only when it is small."""
        size = sum(map(len, parts))
        if size <= _JOINED_BYTES_MAX or self.head.method == "HEAD":
            self.answer(status, headers, b"".join(parts))
            return
        front = self.connection.front
        front.counters.statuses[status] += 1
        if self.principal is not None:
            front.answered(self, status, size)
        lines = self.head_lines(status, headers) + b"Content-Length: %d\r\n\r\n" % size
        self.connection.send(self.number, lines, close=not self.keep_alive, body=parts)

    def head_lines(self, status: int, headers: Headers) -> bytes:
        """The status line and all headers but the length."""
        if self.principal is not None:
            headers = _for_one(headers)
        parts = [STATUS_LINES[status], header_lines(headers), COMMON]
        if self.connection.front.service.hint is not None and (owner := self._owner()):
            parts.append(owner_line(owner))
        if self.head.method in ("GET", "HEAD", "OPTIONS") or "origin" in self.head.headers:
            parts.append(self.connection.front.cors.lines(self.head.headers.get("origin"), self.head.headers.get("host")))
        if self.request_id:
            parts.append(header_lines([("X-Request-Id", self.request_id)]))
        if not self.keep_alive:
            parts.append(CLOSE)
        elif not self.head.minor:
            parts.append(KEEP_ALIVE)
        return b"".join(parts)

    def _owner(self) -> str:
        """The URL of the node that this had better be asked of."""
        route = getattr(self, "route", None)  # it may have failed before it had one
        hint = self.connection.front.service.hint
        return hint(route.name) if hint is not None and route is not None and route.kind in (RouteKind.STREAM, RouteKind.RETENTION) else ""

    def fail(self, code: str, message: str = "", headers: Headers | None = None) -> None:
        """Answer with an error of the table."""
        error = ERRORS[code]
        lines = [("Content-Type", "application/json"), ("Cache-Control", "no-store"), ("Stream-Outcome", error.outcome)]
        own = headers or []
        if error.retry_after is not None and not any(name == "Retry-After" for name, _ in own):
            lines.append(("Retry-After", str(error.retry_after)))
        self.answer(error.status, lines + own, self.error_json(code, message))

    def error_json(self, code: str, message: str = "") -> bytes:
        if not self.request_id:
            self.request_id = self.connection.front.new_request_id()
        return error_body(code, message or ERRORS[code].message, self.request_id)

    def complete_error(self, body: bytes) -> bytes:
        """The error that a handler or a mount answers, with the request's id, as all have it."""
        answer = msgspec.json.decode(body)
        self.request_id = self.request_id or self.connection.front.new_request_id()
        answer["error"].setdefault("message", "")
        answer["error"]["request_id"] = self.request_id
        return msgspec.json.encode(answer)

    def fault(self, error: BaseException) -> None:
        """Answer for what was raised, or given as the outcome of a proposal."""
        if isinstance(error, Failure):
            self.fail(error.code, error.message, list(error.headers))
        elif isinstance(error, Unavailable):
            self.fail("UNAVAILABLE", str(error))
        elif isinstance(error, OutcomeUnknown):
            self.fail("OUTCOME_UNKNOWN", str(error))
        elif isinstance(error, CorruptData):
            self.fail("DATA_DAMAGED", f"{error}; 'polynya store verify' says more")
            log.error("data is missing or damaged", extra={"request_id": self.request_id, "target": self.shown_target, "error": str(error)})
        elif isinstance(error, MemoryError):
            self.fail("NO_MEMORY")
            log.error("there is no memory for a request", extra={"request_id": self.request_id, "target": self.shown_target})
        else:
            self.fail("INTERNAL")
            log.error("request failed", exc_info=error, extra={"request_id": self.request_id, "target": self.shown_target})

    def spawn(self, work: Coroutine[Any, Any, None], *, waits: bool = False, long: bool = False) -> None:
        """Run what may block. `waits`: it changes nothing, so it is cancelled when the client goes. `long`: and a client that sends nothing more is
        taken to be gone, as nobody knows when there will be something to tell it."""
        task = self.connection.front.spawn(self._guarded(work))
        if waits:
            self.connection.waiting_task, self.connection.waits_long = task, long

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 (the client must get an answer; what is unexpected is logged)
            self.fault(error)
        finally:
            if self.connection.waiting_task is asyncio.current_task():
                self.connection.waiting_task = None


def _for_one(headers: Headers) -> Headers:
    """What a token was needed for must not be given to others by a cache, which `public` would allow (RFC 9111 3.5)."""
    found: Headers = []
    for name, value in headers:
        if name == "Cache-Control" and value.startswith("public"):
            found += [(name, value.replace("public", "private", 1)), ("Vary", "Authorization")]
        else:
            found.append((name, value))
    return found
