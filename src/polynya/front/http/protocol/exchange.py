"""One request and its response."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from polynya.access import Principal
from polynya.base.errors import CorruptData, OutcomeUnknown, Unavailable, UpgradePending
from polynya.front.http.protocol.errors import ERRORS, Failure, error_body
from polynya.front.http.protocol.responses import (
    CLOSE,
    COMMON,
    KEEP_ALIVE,
    NO_BODY,
    STATUS_LINES,
    header_lines,
    owner_line,
)
from polynya.front.http.protocol.router import Route, RouteKind
from polynya.wire.http1 import Head

if TYPE_CHECKING:
    from polynya.front.http.connection import Connection

log = logging.getLogger("polynya.http")

# accepted from a client and echoed
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:=/+-]{1,128}", re.ASCII)

JOINED_BYTES_MAX = 64 * 1024  # a larger body is sent without a copy
Headers = list[tuple[str, str]]


class Exchange:
    """A request that gets exactly one response, now or later, by `answer` or `fail`. After the
    connection is lost, the response is dropped."""

    __slots__ = (
        "body",
        "connection",
        "head",
        "keep_alive",
        "number",
        "principal",
        "query",
        "request_id",
        "route",
    )

    def __init__(self, connection: Connection, number: int, head: Head, body: bytes) -> None:
        self.connection = connection
        self.number = number
        self.head = head
        self.body = body
        self.keep_alive = head.keep_alive
        self.principal: Principal | None = None  # the authenticated caller
        self.request_id = ""
        if "x-request-id" in head.headers and _REQUEST_ID.fullmatch(head.headers["x-request-id"]):
            self.request_id = head.headers["x-request-id"]
        self.route: Route
        self.query: dict[str, str]

    @property
    def base_url(self) -> str:
        headers = self.head.headers
        is_https = (
            self.connection.front.is_tls or headers.get("x-forwarded-proto", "").lower() == "https"
        )
        scheme = "https" if is_https else "http"
        return f"{scheme}://{headers.get('host') or 'localhost'}"

    @property
    def shown_target(self) -> str:
        """The target without a token, for logs."""
        path, _, query = self.head.target.partition("?")
        return f"{path}?…" if "access_token" in query else self.head.target

    def send(self, data: bytes) -> None:
        """Send a complete, encoded response."""
        self.connection.send(self.number, data, close=not self.keep_alive)

    def answer(self, status: int, headers: Headers, body: bytes | memoryview = b"") -> None:
        front = self.connection.front
        front.counters.statuses[status] += 1
        if "stream-zone" in self.head.headers and body:
            front.clients.send(self.head.headers["stream-zone"], len(body))
        if self.principal is not None:
            front.answered(self, status, len(body))
        lines = self.head_lines(status, headers)
        if status in NO_BODY or self.head.method == "HEAD":
            data = lines + b"\r\n"
        else:
            data = lines + b"Content-Length: %d\r\n\r\n" % len(body) + body
        self.connection.send(self.number, data, close=not self.keep_alive)

    def answer_parts(self, status: int, headers: Headers, parts: list[bytes | memoryview]) -> None:
        """Respond like `answer` to a GET, without a copy of the parts."""
        size = sum(map(len, parts))
        front = self.connection.front
        front.counters.statuses[status] += 1
        if "stream-zone" in self.head.headers:
            front.clients.send(self.head.headers["stream-zone"], size)
        if self.principal is not None:
            front.answered(self, status, size)
        lines = self.head_lines(status, headers) + b"Content-Length: %d\r\n\r\n" % size
        self.connection.send(self.number, lines, close=not self.keep_alive, body=parts)

    def head_lines(self, status: int, headers: Headers) -> bytes:
        """Return the status line and all headers but Content-Length."""
        if self.principal is not None:
            headers = _for_one(headers)
        parts = [STATUS_LINES[status], header_lines(headers), COMMON]
        if self.connection.front.service.hint is not None and (owner := self._owner()):
            parts.append(owner_line(owner))
        if self.head.method in ("GET", "HEAD", "OPTIONS") or "origin" in self.head.headers:
            parts.append(
                self.connection.front.cors.lines(
                    self.head.headers.get("origin"), self.head.headers.get("host")
                )
            )
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
        hint = self.connection.front.service.hint
        return (
            hint(route.name, self.head.headers.get("stream-zone", ""))
            if hint is not None
            and route is not None
            and route.kind in (RouteKind.STREAM, RouteKind.RETENTION)
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
            self.request_id = self.connection.front.new_request_id()
        text = message or ERRORS[code].message
        return error_body(code, text, self.request_id, self.head.target)

    def complete_error(self, body: bytes) -> bytes:
        """Add the request id to the error body of a handler or mount."""
        answer = msgspec.json.decode(body)
        self.request_id = self.request_id or self.connection.front.new_request_id()
        answer["error"].setdefault("message", "")
        answer["error"]["request_id"] = self.request_id
        return msgspec.json.encode(answer)

    def fault(self, error: BaseException) -> None:
        """Respond to an exception, or to the failure of a proposal."""
        if isinstance(error, Failure):
            self.fail(error.code, error.message, list(error.headers))
        elif isinstance(error, UpgradePending):
            self.fail("UPGRADE_PENDING")
        elif isinstance(error, Unavailable):
            self.fail("UNAVAILABLE", str(error))
        elif isinstance(error, OutcomeUnknown):
            self.fail("OUTCOME_UNKNOWN", str(error))
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
        task = self.connection.front.spawn(self._guarded(work))
        task.add_done_callback(lambda _: work.close())  # it was cancelled before it began
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
    """Replace `public` in Cache-Control: a cache must not share a response that needed a token (RFC
    9111 3.5)."""
    found: Headers = []
    for name, value in headers:
        if name == "Cache-Control" and value.startswith("public"):
            found += [(name, value.replace("public", "private", 1)), ("Vary", "Authorization")]
        else:
            found.append((name, value))
    return found
