"""The transport of one core, the interface of this package."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial

from polynya import __version__
from polynya.base import levels
from polynya.base.errors import Unavailable
from polynya.base.futures import settle
from polynya.transport.backoff import Connect
from polynya.transport.handshake import PROTOCOL_MAX, PROTOCOL_MIN, Hello, address
from polynya.transport.link import PROTOCOL_VERSION, FrameLink, FrameType
from polynya.transport.node_links import NodeLinks, PeerCluster, not_a_member
from polynya.transport.peer import Done, PeerSubscription
from polynya.transport.peer_listener import ConnectionSet, Handler, PeerListener, StreamHandler
from polynya.transport.peer_pool import PeerPool
from polynya.transport.raft_links import RaftLinks

CALL_SECONDS = 60.0  # a call without an answer for this long fails, because the peer hangs
TICK_SECONDS = 0.25
KIND_BULK = 65_535  # non-urgent Raft messages


class Transport:
    """All connections of core `core` of `cores`. Register handlers, call `start`, and finally
    `close`. Not thread-safe.

    A local core is addressed by its number, a core of another node by `address(node, core)`.
    """

    def __init__(
        self,
        core: int,
        cores: int,
        directory: str,
        *,
        start_id: str = "",
        cluster: PeerCluster | None = None,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self.core = core
        self._cores = cores
        self.others = [other for other in range(cores) if other != core]
        self._peers = PeerPool(
            {other: _to_core(core, _path(directory, other), start_id) for other in self.others},
            self._connector,
            call_seconds=call_seconds,
        )
        self._peer = self._peers.of
        self._ticker: asyncio.TimerHandle | None = None
        self.node_links: NodeLinks | None = None  # None outside a cluster, as the next
        self.raft: RaftLinks | None = None
        if cluster is not None:
            hello = Hello(
                PROTOCOL_MIN,
                PROTOCOL_MAX,
                cluster.id,
                cluster.history,
                cluster.groups,
                cluster.node,
                core,
                cores,
                start_id,
                release=__version__,
                level=levels.LEVEL,
            )
            self.node_links = NodeLinks(
                cluster,
                hello,
                directory,
                peers=self._peers,
                bulk=lambda node, core, body: self.send(address(node, core), KIND_BULK, body),
            )
            self.raft = self.node_links.raft
            self._connections = self.node_links.connections
        else:
            self._connections = ConnectionSet()
        self._listener = PeerListener(
            self._connections, _path(directory, core), start_id, self._arrived
        )
        if self.raft is not None:
            raft = self.raft
            self.on(KIND_BULK, lambda body, reply, sender: raft.arrived(sender, body))

    def on(self, kind: int, handler: Handler) -> None:
        """Register `handler(body, reply, core)` for calls and messages of a kind (0 … 65535). It
        calls `reply(bytes or error)` at most once, now or later. An exception is an answer, too:
        errors of `polynya.base.errors` unchanged, others as OutcomeUnknown."""
        assert kind not in self._connections.handlers, f"kind {kind} has a handler"
        self._connections.handlers[kind] = handler

    def on_stream(self, kind: int, handler: StreamHandler) -> None:
        """Register `handler(body, push, core)`, which serves subscriptions of this kind through
        `push`."""
        assert kind not in self._connections.stream_handlers, f"kind {kind} has a handler"
        self._connections.stream_handlers[kind] = handler

    async def start(self) -> None:
        """Listen, and connect to the other cores in the background."""
        await self._listener.open()
        if self.node_links is not None:
            self.node_links.open()
        self._tick()
        self._peers.start()
        if self.node_links is not None:
            self.node_links.start()

    async def close(self) -> None:
        """Close all connections; open calls and subscriptions fail."""
        self._peers.stop()
        if self._ticker is not None:
            self._ticker.cancel()
        if self.node_links is not None:
            await self.node_links.close()
        await self._peers.close()
        await self._listener.close()

    async def wait_connected(self) -> None:
        """Wait until this core is connected to every other core of the node."""
        for core in self.others:
            await self._peers.by_core[core].wait_connected()

    async def wait_met(self) -> None:
        """Wait until this core and every other core are connected in both directions. Afterwards
        neither finds the other missing."""
        await self.wait_connected()
        await self._listener.wait_for(set(self.others))

    def missing_cores(self) -> list[int]:
        """Return the cores that have not connected to this one yet. Their requests wait until then,
        or fail."""
        return sorted(set(self.others) - self._listener.present)

    def call_nowait(self, core: int, kind: int, body: bytes, done: Done) -> None:
        """Call another core. `done` is called once: with the answer, Unavailable (not applied;
        possibly before this returns) or OutcomeUnknown."""
        try:
            peer = self._peer(core)
        except Unavailable as gone:
            done(gone)
        else:
            peer.call_nowait(kind, body, done)

    async def call(self, core: int, kind: int, body: bytes) -> bytes:
        """Call another core and wait for the answer. Raises the error."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._peer(core).call_nowait(kind, body, partial(settle, future))
        return await future

    def protocol(self, core: int) -> int:
        """Return the newest protocol that both cores support."""
        return PROTOCOL_MAX if core < 256 or self.raft is None else self.raft.protocol(core >> 8)

    def cores_of(self, node: int) -> int:
        """Return the number of cores of another node; that of this node until it is known."""
        return self._cores if self.raft is None else self.raft.cores_of(node)

    def send(self, core: int, kind: int, body: bytes) -> bool:
        """Send a message without an answer, at most once. Return False if it was refused."""
        try:
            return self._peer(core).send(kind, body)
        except Unavailable:
            return False

    def subscribe(
        self,
        core: int,
        kind: int,
        body: bytes,
        on_item: Callable[[bytes], None],
        on_end: Callable[[BaseException | None], None],
    ) -> PeerSubscription:
        """Subscribe to messages of another core. The subscription ends with `on_end(None)` if that
        core ends it. It ends with `on_end(error)`, possibly before this returns, if the connection
        breaks or this side lags. `cancel` of the result ends it, too. Raises Unavailable for an
        unknown node."""
        return self._peer(core).subscribe(kind, body, on_item, on_end)

    def counters(self) -> dict[str, int]:
        """Return counters for metrics, see `PeerPool.counters`."""
        return self._peers.counters()

    def _arrived(self, core: int) -> None:
        """Reconnect to a local core at once, because it has connected to this one."""
        peer = self._peers.by_core.get(core)
        if peer is not None:
            peer.hurry()

    def _connector(self, core_id: int) -> Connect:
        """Return the connector to a core of another node. Raise Unavailable for an unknown node."""
        if self.node_links is None:
            raise not_a_member(core_id)
        return self.node_links.connector(core_id)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        # first: an exception in a callback must not stop the ticks
        self._ticker = loop.call_later(TICK_SECONDS, self._tick)
        now = loop.time()
        self._peers.tick(now)
        if self.node_links is not None:
            self.node_links.tick(now)


def _path(directory: str, core: int) -> str:
    return os.path.join(directory, f"core-{core}.sock")


def _to_core(own: int, path: str, start_id: str) -> Connect:
    """Return a connector to another core of this node."""

    async def connect() -> FrameLink:
        link = FrameLink(_nothing, _no_frame, _nothing)
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(loop.create_unix_connection(lambda: link, path))
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            # Wait for it: uvloop never calls `connection_lost` for a connection that has just come up
            await asyncio.gather(connecting, return_exceptions=True)
            link.close()
            raise
        link.send(FrameType.HELLO, PROTOCOL_VERSION, own, start_id.encode())
        return link

    return connect


def _nothing() -> None:
    pass


def _no_frame(type_: int, kind: int, ident: int, body: bytes) -> None:
    """Ignore frames: the peer sends nothing before the first request."""
