"""The peer port: each connection from another node is handed to its target core, which does the
handshake.

All cores of a node listen on one port, and the kernel gives a connection to any of them. Its first
bytes, in clear text, name the target core. If that is another core, the connection is passed on as
a file descriptor, before TLS.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from polynya.base.log_throttle import LogThrottle
from polynya.base.msgpack import UNREADABLE
from polynya.transport.dialing import PeerTls, certified_names, tune, why
from polynya.transport.handshake import (
    LANE_ASK,
    LANE_RAFT,
    MAGIC,
    PREAMBLE,
    Hello,
    address,
    decode_hello,
    encode_hello,
    judge,
    stale_copy_text,
)
from polynya.transport.keepalive import MOVED_BYTES
from polynya.transport.link import FrameLink, FrameType
from polynya.transport.link_events import LinkEvents
from polynya.transport.peer_listener import ConnectionSet, InboundConnection
from polynya.transport.unauthenticated import UnauthenticatedConnection, UnauthenticatedConnections

PREAMBLE_SECONDS = 3.0
TWIN_SECONDS = 10.0  # a rejected node retries much sooner
REFUSED = "a connection to the peer port was refused"
SILENT_TICKS_MAX = 20  # ticks without data, PINGs included, after which a connection is closed
_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
log = logging.getLogger("polynya.transport")


class NodePort:
    """The peer port of one core. `listener` is the shared listening socket; `directory` contains
    the sockets of the cores."""

    def __init__(
        self,
        connections: ConnectionSet,
        own: Hello,
        nodes: Iterable[int],
        *,
        listener: socket.socket,
        directory: str,
        tls: PeerTls | None,
        events: LinkEvents,
    ) -> None:
        self._events = events
        self._connections = connections
        self.own = own
        self._nodes = set(nodes)
        self._dismissed: dict[
            int, int
        ] = {}  # node → the epoch of a map that removed it; 0: it is being removed
        self._listener = listener
        self._directory = directory
        self._tls = tls
        self._handed: socket.socket | None = None
        self._entering: set[asyncio.Task[None]] = set()
        self._unauthenticated = UnauthenticatedConnections()
        # accepting is suspended until the next tick, because no descriptor was available
        self._pausing = False
        self._complaints = LogThrottle()
        self._inbound: dict[
            InboundConnection, int
        ] = {}  # each connection and the number of its silent ticks
        self._twins: dict[
            int, tuple[str, float]
        ] = {}  # nodes whose id another process uses: its address, and when it last connected

    def admit(self, node: int) -> None:
        """Accept connections of a node that belongs to the cluster."""
        self._nodes.add(node)
        self._dismissed.pop(node, None)

    def dismiss(self, node: int, removed: int = 0) -> None:
        """Reject new connections of a node. `removed`: the epoch of a map without it, which the
        node receives."""
        self._nodes.discard(node)
        self._dismissed[node] = self._dismissed.get(node) or removed

    @property
    def twins(self) -> dict[int, str]:
        """Return connected nodes whose id another process used in the last seconds, and its
        address."""
        now = asyncio.get_running_loop().time()
        return {
            node: where for node, (where, seen) in self._twins.items() if now - seen < TWIN_SECONDS
        }

    def open(self) -> None:
        """Start accepting connections."""
        loop = asyncio.get_running_loop()
        path = self._path(self.own.core)
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._handed = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._handed.setblocking(False)
        self._handed.bind(path)
        loop.add_reader(self._handed, self._take_handed)
        loop.add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Stop accepting; `ConnectionSet` closes the accepted connections."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._listener.close()
        if self._handed is not None:
            loop.remove_reader(self._handed)
            self._handed.close()
            with suppress(FileNotFoundError):
                os.unlink(self._path(self.own.core))
        for task in list(self._entering):
            task.cancel()
        await asyncio.gather(*self._entering, return_exceptions=True)

    def tick(self) -> None:
        """Close silent connections and those that exceed the handshake time. Called a few times a
        second."""
        if self._pausing and self._listener.fileno() >= 0:
            self._pausing = False
            asyncio.get_running_loop().add_reader(self._listener, self._accept)
        for where in self._unauthenticated.tick():
            self._log_rate_limited(REFUSED, where, "the handshake timed out")
        for connection, silent in list(self._inbound.items()):
            link = connection.link
            if not link.up:
                del self._inbound[connection]
            elif silent >= SILENT_TICKS_MAX:
                link.close()
            else:
                if (
                    link.awaited == FrameType.RAFT
                    and link.received - connection.received >= MOVED_BYTES
                ):
                    self._events.sending(connection.core)
                connection.received = link.received
                self._inbound[connection] = silent + 1 if link.quiet else 0
                link.quiet = True

    # --- which core -------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            raw, where = self._listener.accept()
        except OSError as error:
            # the connection stays in the kernel's queue, and would wake this reader again at once
            if error.errno in _NO_ROOM:
                self._pausing = True
                asyncio.get_running_loop().remove_reader(self._listener)
                self._log_rate_limited(
                    "connections from other nodes cannot be accepted",
                    "",
                    f"{error.strerror}: raise the limit of open files",
                )
            return  # else the peer closed it
        raw.setblocking(False)
        host = _host(where)
        if self._unauthenticated.welcome(host):
            self._spawn(self._route, raw, host)
        else:
            raw.close()
            self._log_rate_limited(
                "a connection to the peer port was rejected without a handshake",
                host,
                "too many connections from this address",
            )

    def _take_handed(self) -> None:
        assert self._handed is not None
        try:
            _, descriptors, _, _ = socket.recv_fds(self._handed, 1, 1)
        except OSError:
            return
        for descriptor in descriptors:
            raw = socket.socket(fileno=descriptor)
            raw.setblocking(False)
            try:
                host = _host(raw.getpeername())
            except OSError:  # the peer closed it
                raw.close()
            else:
                self._spawn(self._enter, raw, host)

    def _spawn(
        self,
        work: Callable[[socket.socket, UnauthenticatedConnection], Coroutine[Any, Any, None]],
        raw: socket.socket,
        host: str,
    ) -> None:
        pending, crowded = self._unauthenticated.enter(host)
        if crowded:
            self._log_rate_limited(
                "too many connections to the peer port await their handshake",
                host,
                "the oldest was dropped",
            )
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work(raw, pending))
        self._entering.add(task)
        pending.drop = task.cancel

        def ended(task: asyncio.Task[None]) -> None:
            self._entering.discard(task)
            if task.cancelled():  # possibly before it started
                raw.close()
                self._unauthenticated.leave(pending)

        task.add_done_callback(ended)

    async def _route(self, raw: socket.socket, pending: UnauthenticatedConnection) -> None:
        try:
            async with asyncio.timeout(PREAMBLE_SECONDS):
                head = await _read_exactly(raw, PREAMBLE.size)
            magic, core, lane = PREAMBLE.unpack(head)
        except BaseException as error:
            raw.close()
            self._unauthenticated.leave(pending)
            if not isinstance(error, OSError):
                raise
            return
        if (
            magic == MAGIC
            and lane in (LANE_ASK, LANE_RAFT)
            and (core == self.own.core or core >= self.own.cores)
        ):
            await self._enter(raw, pending)  # the handshake answers a connection for a wrong core
            return
        self._unauthenticated.leave(pending)
        if magic != MAGIC or lane not in (LANE_ASK, LANE_RAFT):
            self._log_rate_limited(REFUSED, pending.address, "it is not from a Polynya node")
            raw.close()
        else:
            self._hand_over(raw, core)

    def _hand_over(self, raw: socket.socket, core: int) -> None:
        with raw, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as carrier:
            carrier.setblocking(False)
            try:
                carrier.connect(self._path(core))
                socket.send_fds(carrier, [b"c"], [raw.fileno()])
            except OSError:  # that core is starting; the other node retries
                log.debug("a connection for a core that is down was dropped", extra={"for": core})

    def _path(self, core: int) -> str:
        return os.path.join(self._directory, f"peers-{core}.sock")

    # --- handshake --------------------------------------------------------------------------------

    async def _enter(self, raw: socket.socket, pending: UnauthenticatedConnection) -> None:
        where = pending.address
        connection = InboundConnection(
            self._connections,
            partial(self._check_hello, pending),
            checked=self._tls is None,
            on_gone=partial(self._unauthenticated.leave, pending),
            on_invalid=partial(
                self._log_rate_limited,
                "invalid data on a connection from another node: it is dropped",
                where,
            ),
        )
        context = self._tls.server if self._tls is not None else None
        try:
            tune(raw)
            async with asyncio.timeout(PREAMBLE_SECONDS):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection.link, raw, ssl=context
                )
            self._inbound[connection] = 0
            pending.drop = connection.link.close
        except BaseException as error:
            raw.close()
            connection.leave()
            self._unauthenticated.leave(pending)
            if not isinstance(error, OSError):
                raise
            self._log_rate_limited(
                REFUSED,
                where,
                why(error) or "it ended the handshake: it may not accept this node's certificate",
            )

    def _check_hello(
        self,
        pending: UnauthenticatedConnection,
        connection: InboundConnection,
        type_: int,
        kind: int,
        ident: int,
        body: bytes,
    ) -> int:
        where = pending.address
        self._unauthenticated.leave(pending)
        try:
            if type_ != FrameType.HELLO:
                raise msgspec.DecodeError("no hello")
            other = decode_hello(body)
        except UNREADABLE:
            self._log_rate_limited(REFUSED, where, "it is not from a Polynya node")
            return -1
        reason = self._judge(other, connection.link)
        if not reason and self._events.life_of(other.node) not in ("", other.start):
            reason = f"node {other.node} is already running elsewhere; every node needs its own id"
            self._twins[other.node] = where, asyncio.get_running_loop().time()
        if other.asks:
            self._refuse(connection, "it only requested information", self._removed_at(other))
            return -1
        lacking = "" if reason else self._events.rejection(other)
        if reason or lacking:
            reason = reason or stale_copy_text(other.node, lacking)
            self._log_rate_limited("a node was refused", where, reason, node=other.node)
            self._refuse(
                connection,
                reason,
                self._removed_at(other) if reason == _removed(other.node) else 0,
                lacking,
            )
            return -1
        connection.journal = other.journal
        self._events.greeted(other)
        self._events.opened(other.node, connection.link)
        connection.link.send(FrameType.WELCOME, 0, 0, encode_hello(self.own))
        return address(other.node, other.core)

    def _log_rate_limited(self, said: str, where: str, reason: str, **more: int) -> None:
        """Log a rejection, rate limited, because a rejected peer keeps retrying."""
        times = self._complaints.due(asyncio.get_running_loop().time(), said, where, reason)
        if times:
            log.warning(said, extra={**more, "from": where, "reason": reason, "times": times})

    def _refuse(
        self, connection: InboundConnection, reason: str, removed: int, lacks: str = ""
    ) -> None:
        """Send the reason of a rejection with our own `Hello`."""
        own = encode_hello(msgspec.structs.replace(self.own, removed=removed, lacks=lacks))
        connection.link.send(FrameType.REFUSED, len(own), 0, own + reason.encode())
        connection.link.end()

    def _judge(self, other: Hello, link: FrameLink) -> str:
        if other.node == self.own.node and other.cluster == self.own.cluster:
            return (
                f"it claims to be node {other.node}, the id of this node; every node needs its "
                "own id"
            )
        reason = judge(self.own, other, expected=other.node, certified=certified_names(link))
        if not reason and self._removed_at(other):
            reason = _removed(other.node)
        elif not reason and other.node in self._dismissed:
            reason = (
                f"node {other.node} is being removed from the cluster: another node replaces it "
                "at its address"
            )
        elif (
            not reason and other.node not in self._nodes and other.epoch <= self.own.epoch
        ):  # else the peer may know newer members
            reason = (
                f"node {other.node} is not a known member of the cluster; add new nodes with "
                "'polynya cluster add'"
            )
        return reason

    def _removed_at(self, other: Hello) -> int:
        return self._dismissed.get(other.node, 0) if other.cluster == self.own.cluster else 0


def _removed(node: int) -> str:
    return (
        f"node {node} was removed from the cluster; start it with an empty data directory and a "
        "new id"
    )


async def _read_exactly(raw: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    found = b""
    while len(found) < size:
        piece = await loop.sock_recv(raw, size - len(found))
        if not piece:
            raise ConnectionResetError("the peer closed the connection")
        found += piece
    return found


def _host(where: Any) -> str:
    return str(where[0]) if isinstance(where, tuple) else str(where)
