"""Outgoing connections to cores of other nodes: TCP, optional TLS, and the handshake."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any

import msgspec
import uvloop

from polynya.base.msgpack import UNREADABLE
from polynya.transport.handshake import (
    LANE_ASK,
    MAGIC,
    PREAMBLE,
    Hello,
    decode_hello,
    encode_hello,
    judge,
    node_name,
    stale_copy_text,
)
from polynya.transport.link import FRAME_BYTES_MAX, HELLO_BYTES_MAX, FrameLink, FrameType
from polynya.transport.link_events import LinkEvents

CONNECT_SECONDS = 2.0
GREET_SECONDS = 3.0
ENDPOINTS_MAX = 3  # addresses of a node, from the settings and from the cluster map
TROUBLES_MAX = 8  # distinct problems that are logged only once
_UNGREETED = "the peer closed the connection without an answer (is TLS enabled on one side only?)"
_UNTRUSTED = (
    "the peer closed the connection without an answer: it may reject this node's certificate; see "
    "its log"
)
log = logging.getLogger("polynya.transport")


class PeerTls(msgspec.Struct):
    """TLS contexts. Both sides present a certificate of the cluster's authority. A reload replaces
    the contexts; open connections continue."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class HandshakeRefused(ConnectionError):
    """One of the two sides rejected the other."""


class Dialer:
    """Connects one core to the cores of node `node` at `endpoint` (host, port) or at an address
    given later. It tries several addresses in turn. It logs once why the node is unreachable, and
    again when the reason changes."""

    def __init__(
        self,
        own: Hello,
        node: int,
        endpoint: tuple[str, int],
        tls: PeerTls | None,
        events: LinkEvents,
    ) -> None:
        self.node = node
        self.own = own
        self._endpoints = [endpoint]  # the first is tried next
        self._tls = tls
        self._events = events
        self._troubles: set[str] | None = None  # None before the first attempt
        self.refusal = ""  # why one side rejected the other in the last attempt

    def move(self, endpoint: tuple[str, int]) -> None:
        """Add a new address of the node."""
        if endpoint not in self._endpoints:
            self._endpoints = [endpoint, *self._endpoints][:ENDPOINTS_MAX]

    async def connect(self, core: int, lane: int) -> FrameLink:
        """Return a connection after the handshake. Raises OSError."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS + GREET_SECONDS):
                link = await self._connect(core, lane)
        except OSError as error:
            self._note(why(error), wanted=not isinstance(error, (HandshakeRefused, ssl.SSLError)))
            self._endpoints.append(self._endpoints.pop(0))
            raise
        except Exception as error:  # `keep_connected` retries only after an OSError
            self._note(repr(error))
            raise ConnectionError(repr(error)) from error
        self._note("")
        self._events.opened(self.node, link)
        return link

    async def ask(self) -> Hello:
        """Return the `Hello` of the node's first core without joining (`own.asks`). Raises
        OSError."""
        async with asyncio.timeout(CONNECT_SECONDS + GREET_SECONDS):
            link, type_, kind, body = await self._handshake(0, LANE_ASK)
        certified = certified_names(link)
        link.close()
        try:
            other = decode_hello(body[:kind] if type_ == FrameType.REFUSED else body)
        except UNREADABLE:
            raise HandshakeRefused("the peer does not support this protocol") from None
        if (other.cluster, other.node) != (self.own.cluster, self.node) or (
            certified is not None and node_name(self.node) not in certified
        ):
            raise HandshakeRefused(f"the peer is node {other.node} of the cluster {other.cluster}")
        return other

    async def _connect(self, core: int, lane: int) -> FrameLink:
        link, type_, kind, body = await self._handshake(core, lane)
        try:
            self._judge(type_, kind, body, core, link)
        except BaseException:
            link.close()
            raise
        link.body_bytes_max = FRAME_BYTES_MAX
        link.on_invalid = self._unsound
        return link

    async def _handshake(self, core: int, lane: int) -> tuple[FrameLink, int, int, bytes]:
        """Connect and send our `Hello`. Return the link and the answer."""
        async with asyncio.timeout(CONNECT_SECONDS):
            raw = await self._open()
            try:
                await asyncio.get_running_loop().sock_sendall(raw, PREAMBLE.pack(MAGIC, core, lane))
            except BaseException:
                raw.close()
                raise
        unanswered = (
            ConnectionResetError(_UNGREETED) if self._tls is None else HandshakeRefused(_UNTRUSTED)
        )
        greeting = _Greeting(unanswered, checked=self._tls is None)
        context = self._tls.client if self._tls is not None else None
        name = node_name(self.node) if context is not None else None
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(
                lambda: greeting.link, sock=raw, ssl=context, server_hostname=name
            )
        finally:
            detach_socket(raw, loop)
        try:
            greeting.link.send(FrameType.HELLO, 0, 0, encode_hello(self.own))
            return greeting.link, *await greeting.answer
        except BaseException:
            greeting.link.close()
            raise

    async def _open(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        host, port = self._endpoints[0]
        error: OSError = OSError(f"{host} has no address")
        for family, kind, number, _, where in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            raw = socket.socket(family, kind, number)
            try:
                raw.setblocking(False)
                tune(raw)
                await loop.sock_connect(raw, where)
                return raw
            except OSError as found:
                raw.close()
                error = found
            except BaseException:
                raw.close()
                raise
        raise error

    def _judge(self, type_: int, kind: int, body: bytes, core: int, link: FrameLink) -> None:
        try:
            other = decode_hello(body[:kind] if type_ == FrameType.REFUSED else body)
        except UNREADABLE:
            raise HandshakeRefused("the peer does not support this protocol") from None
        if type_ == FrameType.REFUSED:
            if (other.removed or other.lacks) and not judge(
                self.own, other, expected=self.node, certified=certified_names(link)
            ):
                (self._events.removed if other.removed else self._events.stale_copy)(other)
            raise HandshakeRefused(f"it refuses this node: {body[kind:].decode(errors='replace')}")
        reason = judge(self.own, other, expected=self.node, certified=certified_names(link))
        if type_ != FrameType.WELCOME or reason:
            raise HandshakeRefused(reason or "the peer does not support this protocol")
        lacking = self._events.rejection(other)
        if lacking:  # the peer receives the reason when it connects to this node
            raise HandshakeRefused(stale_copy_text(self.node, lacking))
        self._events.greeted(other)
        if other.core != core:
            raise HandshakeRefused(
                f"it has {other.cores} cores, and core {other.core} answered for core {core}"
            )

    def _unsound(self, reason: str) -> None:
        log.warning(
            "invalid data from a node: the connection is dropped",
            extra={"node": self.node, "reason": reason},
        )

    def _note(self, trouble: str, *, wanted: bool = True) -> None:
        self.refusal = "" if wanted else trouble
        where = "{}:{}".format(*self._endpoints[0])
        if trouble:
            if trouble not in (self._troubles or ()):
                log.warning(
                    "a node cannot be reached",
                    extra={"node": self.node, "at": where, "reason": trouble},
                )
            self._troubles = (
                {*(self._troubles or ()), trouble}
                if len(self._troubles or ()) < TROUBLES_MAX
                else {trouble}
            )
        elif self._troubles is None or self._troubles:
            log.info("a node can be reached", extra={"node": self.node, "at": where})
            self._troubles = set()


class _Greeting:
    """A link that waits for the answer to the handshake."""

    def __init__(self, unanswered: OSError, *, checked: bool) -> None:
        self._unanswered = unanswered
        self.answer: asyncio.Future[tuple[int, int, bytes]] = (
            asyncio.get_running_loop().create_future()
        )
        # a handshake that failed before it waits for the answer raises the reason itself
        self.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        self.link = FrameLink(
            _nothing,
            self._frame,
            self._lost,
            checked=checked,
            body_bytes_max=HELLO_BYTES_MAX,
            on_invalid=lambda reason: None,  # `_note` logs the missing answer
        )

    def _frame(self, type_: int, kind: int, ident: int, body: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result((type_, kind, body))

    def _lost(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(self._unanswered)


def detach_socket(raw: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    """Detach `raw` after `create_connection`: the transport owns its descriptor, whatever the
    outcome.

    uvloop attaches the object to the transport only after its first wait. If the connection breaks
    before that, the transport has already closed the descriptor. The garbage-collected object would
    close the same number again, which may then belong to another file (uvloop issues 645 and 738,
    fixed in part).
    """
    if isinstance(loop, uvloop.Loop):
        raw.detach()


def certified_names(link: FrameLink) -> tuple[str, ...] | None:
    """Return the names in the peer's certificate; None without TLS."""
    ended: Any = link.transport.get_extra_info("ssl_object") if link.transport is not None else None
    if ended is None:
        return None
    certificate = ended.getpeercert() or {}
    return tuple(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")


def tune(raw: socket.socket) -> None:
    """Send small frames at once, and let the kernel detect a dead peer even while much data is
    unsent."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


def why(error: OSError) -> str:
    """Return a readable reason; empty if the error has none."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return error.strerror or str(error)


def _nothing() -> None:
    pass


def report_lost(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle exceptions of an event loop. uvloop's TLS raises when it writes to a connection that
    has just ended; log that in one line."""
    fault, transport = context.get("exception"), context.get("transport")
    # a transport that another error closed is not "closing"
    if isinstance(fault, RuntimeError) and (
        (transport is not None and transport.is_closing()) or "the handler is closed" in str(fault)
    ):
        log.info("a connection ended while data was being written", extra={"error": str(fault)})
    else:
        loop.default_exception_handler(context)
