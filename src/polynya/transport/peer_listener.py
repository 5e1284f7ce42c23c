"""The answering side: one guest per core that asks, its replies and pushed messages; and the socket for the other cores of this node."""

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
from polynya.transport.link import FRAME_BYTES_MAX, HELLO_BYTES_MAX, PROTOCOL_VERSION, FrameLink, FrameType

PUSHES_MAX = 65_536  # subscriptions of one core
CLOSE_SECONDS = 5.0  # for connections that are dropped to be gone, which takes a pass of the loop
Reply = Callable[[bytes | BaseException], None]
Handler = Callable[[bytes, Reply, int], None]
Greet = Callable[["InboundConnection", int, int, int, bytes], int]
"""Judges the first frame of a guest: who it is, or -1, and then it is let go."""
log = logging.getLogger("polynya.transport")


class PushStream:
    """The pushing end of a subscription. `on_cancel` is called when the other side wants no more or is gone, not after `end`."""

    __slots__ = ("_guest", "_ident", "on_cancel", "open")

    def __init__(self, guest: InboundConnection, ident: int) -> None:
        self._guest = guest
        self._ident = ident
        self.open = True
        self.on_cancel: Callable[[], object] = _nothing

    def item(self, body: bytes) -> None:
        """One message. If too much is unsent the subscription ends with Unavailable, and `on_cancel` is called."""
        if not self.open:
            return
        if self._guest.link.full or len(body) > FRAME_BYTES_MAX:
            self.end(_too_large(body) if len(body) > FRAME_BYTES_MAX else Unavailable("this subscriber reads too slowly"))
            self.on_cancel()
        else:
            self._guest.link.send(FrameType.ITEM, 0, self._ident, body)

    def end(self, error: BaseException | None = None) -> None:
        if self.open:
            self.open = False
            self._guest.pushes.pop(self._ident, None)
            number, text = (0, b"") if error is None else encode_error(error)
            self._guest.link.send(FrameType.END, number, self._ident, text)

    def cancelled(self) -> None:
        self.open = False
        self.on_cancel()


StreamHandler = Callable[[bytes, PushStream, int], None]


class ConnectionSet:
    """What answers guests, whichever door they came in by."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        self.stream_handlers: dict[int, StreamHandler] = {}
        self.on_raft: Callable[[int, bytes], None] = _no_groups
        self.on_synced: Callable[[int, int, int], None] = _nobody_asks  # (address, the journal's number, how far it is)
        self.guests: set[InboundConnection] = set()
        self._closed = False
        self._empty = asyncio.Event()

    def enter(self, guest: InboundConnection) -> None:
        """Its connection is up. It may have been accepted before the doors were closed, and come up after."""
        if self._closed:
            guest.link.close()
        else:
            self.guests.add(guest)

    def leave(self, guest: InboundConnection) -> None:
        """Its connection is gone. May be called again."""
        self.guests.discard(guest)
        if not self.guests:
            self._empty.set()

    async def close(self) -> None:
        """Let all guests go, and nobody in; returns when they have gone."""
        self._closed = True
        self._empty.clear()
        for guest in list(self.guests):
            guest.link.close()
        if not self.guests:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._empty.wait()
        except TimeoutError:  # nothing that is known: the others see the end of this process
            log.error("connections of others do not close", extra={"cores": sorted(guest.core for guest in self.guests)})


class InboundConnection:
    """One connection from another core."""

    def __init__(self, house: ConnectionSet, greet: Greet, *, checked: bool = False) -> None:
        self._house = house
        self._greet = greet
        self.on_gone: Callable[[], None] = _nothing
        self.core = -1  # until it said hello; then its number, or its address on another node
        self.journal = 0  # the number of its journal, if it said one
        self.received = 0  # bytes, until the last look
        self.pushes: dict[int, PushStream] = {}
        self.link = FrameLink(self._on_up, self._on_frame, self._on_lost, checked=checked)
        self.link.pauses_reading = True
        self.link.body_bytes_max = HELLO_BYTES_MAX

    @property
    def complain(self) -> Callable[[str], None]:
        """Called with the reason when what comes over the connection makes no sense."""
        return self.link.complain

    @complain.setter
    def complain(self, complain: Callable[[str], None]) -> None:
        self.link.complain = complain

    def leave(self) -> None:
        """It did not come in after all. uvloop closes a connection whose connecting was cancelled without `connection_lost`, even after
        `connection_made`; where that still follows it does nothing."""
        self.link.connection_lost(None)

    def _on_up(self) -> None:
        self._house.enter(self)

    def _on_lost(self) -> None:
        self._house.leave(self)
        self.on_gone()
        pushes, self.pushes = self.pushes, {}
        for push in pushes.values():
            push.cancelled()

    def _on_frame(self, type_: int, kind: int, ident: int, body: bytes) -> None:
        if self.core < 0:
            self.core = self._greet(self, type_, kind, ident, body)
            if self.core >= 0:
                self.link.body_bytes_max = FRAME_BYTES_MAX
            elif self.link.up:
                self.link.close()
        elif type_ == FrameType.CALL:
            self._handle(kind, body, partial(self._reply, ident))
        elif type_ == FrameType.SEND:
            self._handle(kind, body, _no_reply)
        elif type_ == FrameType.RAFT:
            self._house.on_synced(self.core, self.journal, ident)
            self._raft(body)
        elif type_ == FrameType.OPEN:
            self._open(kind, ident, body)
        elif type_ == FrameType.CANCEL:
            push = self.pushes.pop(ident, None)
            if push is not None:
                push.cancelled()
        elif type_ == FrameType.PING:
            self._house.on_synced(self.core, self.journal, ident)
            self.link.send(FrameType.PONG, 0, 0, b"")
        else:
            self.link.fail(f"a frame of type {type_} is none that this release knows")

    def _raft(self, body: bytes) -> None:
        try:
            self._house.on_raft(self.core, body)
        except InvalidMessage as error:
            self.link.fail(str(error))

    def _handle(self, kind: int, body: bytes, reply: Reply) -> None:
        handler = self._house.handlers.get(kind)
        if handler is None:
            reply(Unavailable(f"this core knows no message of kind {kind}"))
            return
        try:
            handler(body, reply, self.core)
        except InvalidMessage as error:
            self.link.fail(str(error))
        except PolynyaError as error:
            reply(error)
        except Exception as error:  # the caller must not wait for ever; a bug here is told, and is no reason to drop the others
            reply(self._failed(kind, error))

    def _failed(self, kind: int, error: Exception) -> Exception:
        """The answer."""
        if isinstance(error, UNREADABLE):
            log.error("a message of another core makes no sense", extra={"kind": kind, "from_core": self.core, "error": str(error)})
            return Unavailable(f"this core cannot read that message of kind {kind}")
        log.error("a handler failed", extra={"kind": kind, "from_core": self.core}, exc_info=error)
        return error

    def _open(self, kind: int, ident: int, body: bytes) -> None:
        if ident in self.pushes or len(self.pushes) >= PUSHES_MAX:
            self.link.fail("a subscription is there already" if ident in self.pushes else "it has too many subscriptions")
            return
        push = self.pushes[ident] = PushStream(self, ident)
        handler = self._house.stream_handlers.get(kind)
        if handler is None:
            push.end(Unavailable(f"this core knows no subscription of kind {kind}"))
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
    """The listening socket of this core for the others of its node."""

    def __init__(self, house: ConnectionSet, path: str, start_id: str) -> None:
        self.on_arrival: Callable[[int], None] = _nobody  # called with each core of this node that has said hello
        self._house = house
        self._start_id = start_id
        self._arrival = asyncio.Event()
        self._path = path
        self._server: asyncio.AbstractServer | None = None

    async def open(self) -> None:
        """Listen; a socket that a killed predecessor left is replaced."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: InboundConnection(self._house, self._greet).link, self._path
        )

    @property
    def present(self) -> Set[int]:
        """The cores that have reached this one."""
        return {guest.core for guest in self._house.guests}

    async def wait_for(self, cores: Set[int]) -> None:
        """Until each of them has come."""
        while not cores <= self.present:
            self._arrival.clear()
            await self._arrival.wait()

    async def close(self) -> None:
        """Listen no more, and let all guests go."""
        if self._server is not None:
            self._server.close()
        await self._house.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _greet(self, guest: InboundConnection, type_: int, kind: int, ident: int, body: bytes) -> int:
        if type_ == FrameType.HELLO and kind == PROTOCOL_VERSION and body == self._start_id.encode():
            guest.core = ident
            self._arrival.set()
            self.on_arrival(ident)
            return ident
        log.warning("a connection that is none of this node's cores was refused")
        return -1


def _no_groups(sender: int, body: bytes) -> None:
    """Messages of groups on a node that is in no cluster: greeted guests do not send them."""


def _nobody_asks(sender: int, journal: int, synced: int) -> None:
    """Between cores of a node."""


def _no_reply(answer: bytes | BaseException) -> None:
    if isinstance(answer, BaseException):
        log.warning("a one-way message failed", extra={"error": str(answer)})


def _too_large(body: bytes) -> OutcomeUnknown:
    """Sent in place of what the other side would take for garbage, and drop the connection for."""
    log.error("an answer is too large to send", extra={"bytes": len(body), "bytes_max": FRAME_BYTES_MAX})
    return OutcomeUnknown(f"the answer has {len(body)} bytes, more than the {FRAME_BYTES_MAX} that fit into a message")


def _nothing() -> None:
    pass


def _nobody(core: int) -> None:
    pass
