"""The answering side: one inbound connection per requesting core, its replies and pushed messages,
and the socket for the other cores of this node."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Set
from contextlib import suppress
from functools import partial

from polynya.base.errors import InvalidMessage, OutcomeUnknown, PolynyaError, Unavailable
from polynya.base.msgpack import UNREADABLE
from polynya.transport.errors import encode_error
from polynya.transport.link import (
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    PROTOCOL_VERSION,
    FrameLink,
    FrameType,
)

PUSHES_MAX = 65_536  # subscriptions of one core
# time for dropped connections to end, which normally takes one pass of the loop
CLOSE_SECONDS = 5.0
Reply = Callable[[bytes | BaseException], None]
Handler = Callable[[bytes, Reply, int], None]
CheckHello = Callable[["InboundConnection", int, int, int, bytes], int]
"""Validates the first frame of a connection. Returns the core, or -1 to close the connection."""
log = logging.getLogger("polynya.transport")


class PushStream:
    """The pushing end of a subscription. `on_cancel` is called when the other side cancels or is
    gone, but not after `end`."""

    __slots__ = ("_connection", "_ident", "on_cancel", "open")

    def __init__(self, connection: InboundConnection, ident: int) -> None:
        self._connection = connection
        self._ident = ident
        self.open = True
        self.on_cancel: Callable[[], object] = _nothing

    def item(self, body: bytes) -> None:
        """Send one message. If too much is unsent, the subscription ends with Unavailable, and
        `on_cancel` is called."""
        if not self.open:
            return
        if self._connection.link.full or len(body) > FRAME_BYTES_MAX:
            self.end(
                _too_large(body)
                if len(body) > FRAME_BYTES_MAX
                else Unavailable("this subscriber reads too slowly")
            )
            self.on_cancel()
        else:
            self._connection.link.send(FrameType.ITEM, 0, self._ident, body)

    def end(self, error: BaseException | None = None) -> None:
        if self.open:
            self.open = False
            self._connection.pushes.pop(self._ident, None)
            number, text = (0, b"") if error is None else encode_error(error)
            self._connection.link.send(FrameType.END, number, self._ident, text)

    def cancelled(self) -> None:
        self.open = False
        self.on_cancel()


StreamHandler = Callable[[bytes, PushStream, int], None]


class ConnectionSet:
    """All inbound connections of a core, over Unix sockets and TCP, and their handlers."""

    def __init__(
        self,
        on_raft: Callable[[int, bytes], None] | None = None,
        on_synced: Callable[[int, int, int], None] | None = None,
    ) -> None:
        """Create the set. Between nodes, `on_raft(address, messages)` handles Raft messages, and
        `on_synced(address, journal, position)` how far a journal is synced."""
        self.handlers: dict[int, Handler] = {}
        self.stream_handlers: dict[int, StreamHandler] = {}
        self.on_raft = on_raft or _no_groups
        self.on_synced = on_synced or _ignore_position
        self.inbound: set[InboundConnection] = set()
        self._closed = False
        self._empty = asyncio.Event()

    def enter(self, connection: InboundConnection) -> None:
        """Add a connection that came up. Close it if the set was closed after it was accepted."""
        if self._closed:
            connection.link.close()
        else:
            self.inbound.add(connection)

    def leave(self, connection: InboundConnection) -> None:
        """Remove a connection that ended. Idempotent."""
        self.inbound.discard(connection)
        if not self.inbound:
            self._empty.set()

    async def close(self) -> None:
        """Close all connections and accept no more. Returns when they have ended."""
        self._closed = True
        self._empty.clear()
        for connection in list(self.inbound):
            connection.link.close()
        if not self.inbound:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._empty.wait()
        except TimeoutError:  # no known cause; the peers notice when this process ends
            log.error(
                "inbound connections do not close",
                extra={"cores": sorted(connection.core for connection in self.inbound)},
            )


class InboundConnection:
    """One connection from another core."""

    def __init__(
        self,
        connections: ConnectionSet,
        check_hello: CheckHello,
        *,
        checked: bool = False,
        on_gone: Callable[[], None] | None = None,
        on_invalid: Callable[[str], None] | None = None,
    ) -> None:
        """Create a connection whose first frame `check_hello` validates. `on_gone` is called when
        it has ended, `on_invalid` with the reason when its data is invalid."""
        self._connections = connections
        self._check_hello = check_hello
        self._on_gone = on_gone or _nothing
        self.core = -1  # set by the handshake: its number, or its address on another node
        self.journal = 0  # the number of its journal, if reported
        self.received = 0  # bytes received at the last tick
        self.pushes: dict[int, PushStream] = {}
        self.link = FrameLink(
            self._on_up,
            self._on_frame,
            self._on_lost,
            checked=checked,
            body_bytes_max=HELLO_BYTES_MAX,
            pauses_reading=True,
            on_invalid=on_invalid,
        )

    def leave(self) -> None:
        """Remove a connection whose setup failed. After a cancelled setup uvloop closes it without
        `connection_lost`, even after `connection_made`. A later `connection_lost` is harmless."""
        self.link.connection_lost(None)

    def _on_up(self) -> None:
        self._connections.enter(self)

    def _on_lost(self) -> None:
        self._connections.leave(self)
        self._on_gone()
        pushes, self.pushes = self.pushes, {}
        for push in pushes.values():
            push.cancelled()

    def _on_frame(self, type_: int, kind: int, ident: int, body: bytes) -> None:
        if self.core < 0:
            self.core = self._check_hello(self, type_, kind, ident, body)
            if self.core >= 0:
                self.link.body_bytes_max = FRAME_BYTES_MAX
            elif self.link.up:
                self.link.close()
        elif type_ == FrameType.CALL:
            self._handle(kind, body, partial(self._reply, ident))
        elif type_ == FrameType.SEND:
            self._handle(kind, body, _no_reply)
        elif type_ == FrameType.RAFT:
            self._connections.on_synced(self.core, self.journal, ident)
            self._raft(body)
        elif type_ == FrameType.OPEN:
            self._open(kind, ident, body)
        elif type_ == FrameType.CANCEL:
            push = self.pushes.pop(ident, None)
            if push is not None:
                push.cancelled()
        elif type_ == FrameType.PING:
            self._connections.on_synced(self.core, self.journal, ident)
            self.link.send(FrameType.PONG, 0, 0, b"")
        else:
            self.link.fail(f"a frame of type {type_} is unknown to this release")

    def _raft(self, body: bytes) -> None:
        try:
            self._connections.on_raft(self.core, body)
        except InvalidMessage as error:
            self.link.fail(str(error))

    def _handle(self, kind: int, body: bytes, reply: Reply) -> None:
        handler = self._connections.handlers.get(kind)
        if handler is None:
            reply(Unavailable(f"this core does not support messages of kind {kind}"))
            return
        try:
            handler(body, reply, self.core)
        except InvalidMessage as error:
            self.link.fail(str(error))
        except PolynyaError as error:
            reply(error)
        except Exception as error:  # the caller must not wait forever; a bug in a handler must not drop other requests
            reply(self._failed(kind, error))

    def _failed(self, kind: int, error: Exception) -> Exception:
        """Return the answer for a failed handler."""
        if isinstance(error, UNREADABLE):
            log.error(
                "a message from another core cannot be decoded",
                extra={"kind": kind, "from_core": self.core, "error": str(error)},
            )
            return Unavailable(f"this core cannot read that message of kind {kind}")
        log.error("a handler failed", extra={"kind": kind, "from_core": self.core}, exc_info=error)
        return error

    def _open(self, kind: int, ident: int, body: bytes) -> None:
        if ident in self.pushes or len(self.pushes) >= PUSHES_MAX:
            self.link.fail(
                "the subscription id is already in use"
                if ident in self.pushes
                else "the peer has too many subscriptions"
            )
            return
        push = self.pushes[ident] = PushStream(self, ident)
        handler = self._connections.stream_handlers.get(kind)
        if handler is None:
            push.end(Unavailable(f"this core does not support subscriptions of kind {kind}"))
            return
        try:
            handler(body, push, self.core)
        except PolynyaError as error:
            push.end(error)
        except Exception as error:  # as in `_handle`
            push.end(self._failed(kind, error))

    def _reply(self, ident: int, answer: bytes | BaseException) -> None:
        if not isinstance(answer, BaseException) and len(answer) > FRAME_BYTES_MAX:
            answer = _too_large(answer)
        if isinstance(answer, BaseException):
            number, text = encode_error(answer)
            self.link.send(FrameType.ERROR, number, ident, text)
        else:
            self.link.send(FrameType.REPLY, 0, ident, answer)


class PeerListener:
    """The Unix socket on which this core listens for the other cores of its node. `on_arrival` is
    called with each of them after its handshake."""

    def __init__(
        self,
        connections: ConnectionSet,
        path: str,
        start_id: str,
        on_arrival: Callable[[int], None],
    ) -> None:
        self._on_arrival = on_arrival
        self._connections = connections
        self._start_id = start_id
        self._arrival = asyncio.Event()
        self._path = path
        self._server: asyncio.AbstractServer | None = None

    async def open(self) -> None:
        """Listen; replace a socket left by a killed process."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: InboundConnection(self._connections, self._check_hello).link, self._path
        )

    @property
    def present(self) -> Set[int]:
        """Return the cores that are connected to this one."""
        return {connection.core for connection in self._connections.inbound}

    async def wait_for(self, cores: Set[int]) -> None:
        """Wait until all these cores are connected."""
        while not cores <= self.present:
            self._arrival.clear()
            await self._arrival.wait()

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        await self._connections.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _check_hello(
        self, connection: InboundConnection, type_: int, kind: int, ident: int, body: bytes
    ) -> int:
        if (
            type_ == FrameType.HELLO
            and kind == PROTOCOL_VERSION
            and body == self._start_id.encode()
        ):
            connection.core = ident
            self._arrival.set()
            self._on_arrival(ident)
            return ident
        log.warning("a connection was refused: it is not from a core of this node")
        return -1


def _no_groups(sender: int, body: bytes) -> None:
    """Ignore Raft messages on a node outside a cluster; accepted connections do not send them."""


def _ignore_position(sender: int, journal: int, synced: int) -> None:
    """Ignore journal positions between cores of one node."""


def _no_reply(answer: bytes | BaseException) -> None:
    if isinstance(answer, BaseException):
        log.warning("a one-way message failed", extra={"error": str(answer)})


def _too_large(body: bytes) -> OutcomeUnknown:
    """Return the error sent instead of an answer that the peer would reject as an invalid frame."""
    log.error(
        "an answer is too large to send", extra={"bytes": len(body), "bytes_max": FRAME_BYTES_MAX}
    )
    return OutcomeUnknown(
        f"the answer has {len(body)} bytes, more than the {FRAME_BYTES_MAX} that fit into a message"
    )


def _nothing() -> None:
    pass
