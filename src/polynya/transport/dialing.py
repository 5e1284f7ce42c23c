"""Connections to cores of other nodes: over TCP, with TLS where there is some, greeted."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
import uvloop

from polynya.transport.handshake import (
    LANE_ASK,
    MAGIC,
    PREAMBLE,
    Hello,
    decode_hello,
    encode_hello,
    judge,
    node_name,
    older_text,
)
from polynya.transport.link import FRAME_BYTES_MAX, HELLO_BYTES_MAX, FrameLink, FrameType

CONNECT_SECONDS = 2.0
GREET_SECONDS = 3.0
PLACES_MAX = 3  # where a node may be: as the settings, and as the cluster have it
TROUBLES_MAX = 8  # that are not said again
_UNGREETED = "it closed the connection before it answered (is TLS on on one side only?)"
_UNTRUSTED = "it closed the connection before it answered: it may not accept this node's certificate; its log says why"
log = logging.getLogger("polynya.transport")


class PeerTls(msgspec.Struct):
    """Both sides show a certificate of the cluster's authority. A reload replaces the contexts; connections that are there go on."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class HandshakeRefused(ConnectionError):
    """One of the two sides does not want the other."""


class Dialer:
    """Connects one core to those of the node `node` at `place` (host, port), or where it was said to be later: of several places the one where it
    answers. Says once in the log why it cannot, and again when that changes."""

    def __init__(self, own: Hello, node: int, place: tuple[str, int], tls: PeerTls | None, on_hello: Callable[[Hello], None]) -> None:
        self.node = node
        self.own = own
        self._places = [place]  # the first is tried next
        self._tls = tls
        self._on_hello = on_hello
        self.on_removed: Callable[[Hello], None] = lambda hello: None  # told by whom this node was removed, as that one knows
        self.on_older: Callable[[Hello], None] = lambda hello: None  # … and who says that its data is an older copy
        self.keep_out: Callable[[Hello], str] = lambda hello: ""  # what the journal of the node lacks, if it is an older copy
        self._troubles: set[str] | None = None  # not tried yet
        self.refusal = ""  # why one of the two sides does not want the other, as far as the last attempt says

    def move(self, place: tuple[str, int]) -> None:
        """The node is said to be there now."""
        if place not in self._places:
            self._places = [place, *self._places][:PLACES_MAX]

    async def connect(self, core: int, lane: int) -> FrameLink:
        """A link that may be used. Raises OSError."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS + GREET_SECONDS):
                link = await self._connect(core, lane)
        except OSError as error:
            self._note(why(error), wanted=not isinstance(error, (HandshakeRefused, ssl.SSLError)))
            self._places.append(self._places.pop(0))
            raise
        except Exception as error:  # who keeps the connection tries again after an OSError, and only then
            self._note(repr(error))
            raise ConnectionError(repr(error)) from error
        self._note("")
        return link

    async def ask(self) -> Hello:
        """What the node's first core says of itself, to one that does not come in (`own.asks`). Raises OSError."""
        async with asyncio.timeout(CONNECT_SECONDS + GREET_SECONDS):
            link, type_, kind, body = await self._greet(0, LANE_ASK)
        certified = certified_names(link)
        link.close()
        try:
            other = decode_hello(body[:kind] if type_ == FrameType.REFUSED else body)
        except msgspec.DecodeError:
            raise HandshakeRefused("it does not speak this protocol") from None
        if (other.cluster, other.node) != (self.own.cluster, self.node) or (
            certified is not None and node_name(self.node) not in certified
        ):
            raise HandshakeRefused(f"it is node {other.node} of the cluster {other.cluster}")
        return other

    async def _connect(self, core: int, lane: int) -> FrameLink:
        link, type_, kind, body = await self._greet(core, lane)
        try:
            self._judge(type_, kind, body, core, link)
        except BaseException:
            link.close()
            raise
        link.body_bytes_max = FRAME_BYTES_MAX
        link.complain = self._unsound
        return link

    async def _greet(self, core: int, lane: int) -> tuple[FrameLink, int, int, bytes]:
        """A connection, and how the other side answered the greeting."""
        async with asyncio.timeout(CONNECT_SECONDS):
            raw = await self._open()
            try:
                await asyncio.get_running_loop().sock_sendall(raw, PREAMBLE.pack(MAGIC, core, lane))
            except BaseException:
                raw.close()
                raise
        unanswered = ConnectionResetError(_UNGREETED) if self._tls is None else HandshakeRefused(_UNTRUSTED)
        greeting = _Greeting(unanswered, checked=self._tls is None)
        context = self._tls.client if self._tls is not None else None
        name = node_name(self.node) if context is not None else None
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: greeting.link, sock=raw, ssl=context, server_hostname=name)
        finally:
            let_go(raw, loop)
        try:
            greeting.link.send(FrameType.HELLO, 0, 0, encode_hello(self.own))
            return greeting.link, *await greeting.answer
        except BaseException:
            greeting.link.close()
            raise

    async def _open(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        host, port = self._places[0]
        error: OSError = OSError(f"{host} has no address")
        for family, kind, number, _, where in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
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
        except msgspec.DecodeError:
            raise HandshakeRefused("it does not speak this protocol") from None
        if type_ == FrameType.REFUSED:
            if (other.removed or other.lacks) and not judge(self.own, other, expected=self.node, certified=certified_names(link)):
                (self.on_removed if other.removed else self.on_older)(other)
            raise HandshakeRefused(f"it refuses this node: {body[kind:].decode(errors='replace')}")
        reason = judge(self.own, other, expected=self.node, certified=certified_names(link))
        if type_ != FrameType.WELCOME or reason:
            raise HandshakeRefused(reason or "it does not speak this protocol")
        lacking = self.keep_out(other)
        if lacking:  # it hears of it when it comes here
            raise HandshakeRefused(older_text(self.node, lacking))
        self._on_hello(other)
        if other.core != core:
            raise HandshakeRefused(f"it has {other.cores} cores, and core {other.core} answered for core {core}")

    def _unsound(self, reason: str) -> None:
        log.warning("what a node says makes no sense: the connection is dropped", extra={"node": self.node, "reason": reason})

    def _note(self, trouble: str, *, wanted: bool = True) -> None:
        self.refusal = "" if wanted else trouble
        where = "{}:{}".format(*self._places[0])
        if trouble:
            if trouble not in (self._troubles or ()):
                log.warning("a node cannot be reached", extra={"node": self.node, "at": where, "reason": trouble})
            self._troubles = {*(self._troubles or ()), trouble} if len(self._troubles or ()) < TROUBLES_MAX else {trouble}
        elif self._troubles is None or self._troubles:
            log.info("a node can be reached", extra={"node": self.node, "at": where})
            self._troubles = set()


class _Greeting:
    """A link that waits for its first frame."""

    def __init__(self, unanswered: OSError, *, checked: bool) -> None:
        self._unanswered = unanswered
        self.answer: asyncio.Future[tuple[int, int, bytes]] = asyncio.get_running_loop().create_future()
        self.link = FrameLink(_nothing, self._frame, self._lost, checked=checked)
        self.link.body_bytes_max = HELLO_BYTES_MAX
        self.link.complain = lambda reason: None  # that it did not answer is said

    def _frame(self, type_: int, kind: int, ident: int, body: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result((type_, kind, body))

    def _lost(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(self._unanswered)


def let_go(raw: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    """`raw` was given to `create_connection`, and its descriptor is the transport's, however that ended.

    uvloop attaches the object to the transport only after its first wait: a connection that broke by then has closed the descriptor, and the
    object would close the same number again when it is collected, whosever that is by then (uvloop's issues 645 and 738, mended in part).
    """
    if isinstance(loop, uvloop.Loop):
        raw.detach()


def certified_names(link: FrameLink) -> tuple[str, ...] | None:
    """The names that the other side's certificate is for; None without TLS."""
    ended: Any = link.transport.get_extra_info("ssl_object") if link.transport is not None else None
    if ended is None:
        return None
    certificate = ended.getpeercert() or {}
    return tuple(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")


def tune(raw: socket.socket) -> None:
    """Small frames leave at once; a dead other side is noticed by the kernel too, also while much is unsent."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


def why(error: OSError) -> str:
    """For people; empty when the error says nothing."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return error.strerror or str(error)


def _nothing() -> None:
    pass


def report_lost(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A loop's exception handler: what uvloop's TLS says when it writes to a connection that has just ended is a line in the log."""
    fault, transport = context.get("exception"), context.get("transport")
    if isinstance(fault, RuntimeError) and transport is not None and transport.is_closing():
        log.info("a connection ended just as something arrived on it", extra={"error": str(fault)})
    else:
        loop.default_exception_handler(context)
