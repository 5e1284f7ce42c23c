"""The transport of one core, the interface of this package."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from polynya import __version__
from polynya.base import levels
from polynya.base.errors import Unavailable
from polynya.base.futures import settle
from polynya.transport.backoff import Connect
from polynya.transport.dialing import Dialer, PeerTls
from polynya.transport.handshake import (
    LANE_ASK,
    LANE_RAFT,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Hello,
    address,
    node_of,
    stale_copy_text,
)
from polynya.transport.keepalive import Keepalive
from polynya.transport.link import PROTOCOL_VERSION, FrameLink, FrameType
from polynya.transport.peer import Done, Peer, PeerSubscription
from polynya.transport.peer_journal_positions import PeerJournalPositions
from polynya.transport.peer_listener import ConnectionSet, Handler, PeerListener, StreamHandler
from polynya.transport.port import NodePort
from polynya.transport.raft_links import RaftLinks
from polynya.transport.traffic import LinkTraffic

CALL_SECONDS = 60.0  # a call without an answer for this long fails, because the peer hangs
TICK_SECONDS = 0.25
KIND_BULK = 65_535  # non-urgent Raft messages


class PeerCluster(msgspec.Struct, frozen=True):
    """The other nodes with their peer addresses, and the listening socket of this core."""

    id: str
    history: int
    node: int
    groups: int
    others: Mapping[int, tuple[str, int]]
    listener: socket.socket
    tls: PeerTls | None = None


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
        self._call_seconds = call_seconds
        self._connections = ConnectionSet()
        self._listener = PeerListener(self._connections, _path(directory, core), start_id)
        self._listener.on_arrival = self._arrived
        self._peers: dict[int, Peer] = {}
        for other in range(cores):
            if other != core:
                self._peers[other] = Peer(
                    f"core {other}",
                    _to_core(core, _path(directory, other), start_id),
                    call_seconds=call_seconds,
                )
        self.others = list(self._peers)
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by peer address
        self._closed = False
        self._ticker: asyncio.TimerHandle | None = None
        self._dialers: dict[int, Dialer] = {}
        self._dialer: Callable[[int, tuple[str, int]], Dialer] | None = None
        self._port: NodePort | None = None
        # another node rejects this one as removed from the cluster
        self.on_removed: Callable[[Hello], None] = lambda hello: None
        # … or as a stale copy of its data
        self.on_stale_copy: Callable[[Hello], None] = lambda hello: None
        # a core of another node completed the handshake
        self.on_met: Callable[[Hello], None] = lambda hello: None
        self.peer_positions = PeerJournalPositions()  # journal positions of other nodes
        self.traffic = LinkTraffic()  # to other nodes
        self.raft: RaftLinks | None = None  # None outside a cluster
        # contexts may be replaced; new connections use them
        self.tls = cluster.tls if cluster is not None else None
        if cluster is not None:
            about = Hello(
                PROTOCOL_MIN,
                PROTOCOL_MAX,
                cluster.id,
                cluster.history,
                cluster.groups,
                cluster.node,
                core,
                cores,
                start_id,
            )
            self._join(
                cluster,
                msgspec.structs.replace(about, release=__version__, level=levels.LEVEL),
                directory,
            )

    def _join(self, cluster: PeerCluster, own: Hello, directory: str) -> None:
        self._hello = own

        def dialer(node: int, place: tuple[str, int]) -> Dialer:
            made = Dialer(self._hello, node, place, cluster.tls, self._greeted)
            made.on_removed = self._removed
            made.on_stale_copy = self._reject_stale_copy
            made.rejection = self.peer_positions.rejection
            made.on_link = partial(self.traffic.open, node)
            return made

        self._dialer = dialer
        self._dialers = {node: self._dialer(node, place) for node, place in cluster.others.items()}
        self.raft = raft = RaftLinks(
            (own.core, own.cores),
            {node: _lane_to(dialer) for node, dialer in self._dialers.items()},
            lambda node, core, body: self.send(address(node, core), KIND_BULK, body),
        )
        raft.on_gone.append(self._core_lost)
        self._connections.on_raft, self._connections.on_synced = (
            raft.arrived,
            self.peer_positions.record_synced,
        )
        self.on(KIND_BULK, lambda body, reply, sender: raft.arrived(sender, body))
        self._port = NodePort(
            self._connections,
            own,
            cluster.others,
            listener=cluster.listener,
            directory=directory,
            tls=cluster.tls,
        )
        self._port.on_hello, self._port.peer_positions = self._visited, self.peer_positions
        self._port.on_link = self.traffic.open
        self._port.life_of = raft.life_of
        self._port.on_sending = raft.sending

    def work_at(self, level: int) -> None:
        """Record that a group here has reached this log level. Nodes that do not support it are
        rejected from now on."""
        if level != self._hello.works_at:
            self._say(msgspec.structs.replace(self._hello, works_at=level))

    def vouch(self, journal: int, opened: int, synced: Callable[[], int]) -> None:
        """Announce this core's journal to other nodes: its number, its end when opened, and how far
        it is synced. Call before `start`, in a cluster. The others remember it, and reject a later
        incarnation that has less."""
        assert self.raft is not None
        self.raft.synced = synced
        self._say(
            msgspec.structs.replace(
                self._hello, journal=journal, opened=opened, incarnation=secrets.randbits(63)
            )
        )

    def know(self, epoch: int) -> None:
        """Announce the newest cluster map known here. A node that is not in it may join if it knows
        a newer one."""
        self._say(msgspec.structs.replace(self._hello, epoch=epoch))

    def _say(self, hello: Hello) -> None:
        """Use this `Hello` in all later handshakes."""
        assert self._port is not None
        self._hello = self._port.own = hello
        for dialer in self._dialers.values():
            dialer.own = hello

    def add_node(self, node: int, place: tuple[str, int]) -> None:
        """Add a node of the cluster, or a new address of it. In a cluster only."""
        assert self.raft is not None and self._port is not None and self._dialer is not None
        if node in self._dialers:
            self._dialers[node].move(place)
        else:
            self._dialers[node] = dialer = self._dialer(node, place)
            self.raft.add(node, _lane_to(dialer))
        self._port.admit(node)

    async def remove_node(self, node: int) -> None:
        """Remove a node from the cluster. Later requests to it are refused."""
        assert self.raft is not None and self._port is not None
        self._port.dismiss(node)
        # only it may reach us; it receives the reason when it reconnects
        for connection in list(self._connections.inbound):
            if node_of(connection.core) == node:
                connection.link.close()
        if self._dialers.pop(node, None) is None:
            return
        tasks = [
            self._tasks.pop(place)
            for place in [place for place in self._tasks if place >> 8 == node]
        ]
        for task in tasks:
            task.cancel()
        gone = [
            self._peers.pop(place)
            for place in [place for place in self._peers if place >> 8 == node]
        ]
        await asyncio.gather(self.raft.remove(node), *tasks, return_exceptions=True)
        for peer in gone:
            peer.close()

    def dismiss_node(self, node: int, removed: int = 0) -> None:
        """Reject new connections of a node that is being removed. Open ones continue until
        `remove_node`. `removed`: the epoch of a map without it, which the node receives."""
        if self._port is not None:
            self._port.dismiss(node, removed)

    @property
    def nodes(self) -> list[int]:
        """Return the other nodes, connected or not."""
        return sorted(self._dialers)

    @property
    def refusals(self) -> dict[int, str]:
        """Return why this core and other nodes reject each other, by node, as text."""
        rejected = {
            node: stale_copy_text(node, lacks)
            for node, lacks in self.peer_positions.rejected.items()
        }
        return rejected | {
            node: dialer.refusal for node, dialer in self._dialers.items() if dialer.refusal
        }

    @property
    def twins(self) -> dict[int, str]:
        """Return other nodes whose id a second process uses, and the address of that process."""
        return {} if self._port is None else self._port.twins

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
        if self._port is not None:
            self._port.open()
        self._tick()
        for place, peer in self._peers.items():
            self._keep(place, peer)
        if self.raft is not None:
            self.raft.start()

    async def close(self) -> None:
        """Close all connections; open calls and subscriptions fail."""
        self._closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        if self._port is not None:
            await self._port.close()
        if self.raft is not None:
            await self.raft.close()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for peer in self._peers.values():  # a task that never started does not close its peer
            peer.close()
        await self._listener.close()

    async def wait_connected(self) -> None:
        """Wait until this core is connected to every other core of the node."""
        for core in self.others:
            await self._peers[core].wait_connected()

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
        """Return counters for metrics: connected peers, unanswered calls, and the totals of refused
        and failed calls."""
        peers = self._peers.values()
        return {
            "connected": sum(peer.connected for peer in peers),
            "outstanding": sum(peer.outstanding for peer in peers),
            "refused": sum(peer.refused for peer in peers),
            "failed": sum(peer.failed for peer in peers),
        }

    def _arrived(self, core: int) -> None:
        """Reconnect to a local core at once, because it has connected to this one."""
        if core in self._peers:
            self._peers[core].hurry()

    def _peer(self, place: int) -> Peer:
        peer = self._peers.get(place)
        if peer is None:  # the first request to a core of another node
            node, core = place >> 8, place & 0xFF
            dialer = self._dialers.get(node)
            if self._closed:
                raise Unavailable("this core is stopping")
            if dialer is None:
                raise Unavailable(f"node {node} does not belong to the cluster; retry")
            name = f"core {core} of node {node}"
            peer = Peer(
                name,
                lambda: dialer.connect(core, LANE_ASK),
                call_seconds=self._call_seconds,
                keepalive=Keepalive(),
            )
            peer.tick(asyncio.get_running_loop().time())
            self._peers[place] = peer
            self._keep(place, peer)
        return peer

    def _keep(self, place: int, peer: Peer) -> None:
        self._tasks[place] = asyncio.get_running_loop().create_task(
            peer.keep(), name=f"transport to {peer.name}"
        )

    def _greeted(self, hello: Hello) -> None:
        """Record the `Hello` of a core of another node."""
        assert self.raft is not None
        self.peer_positions.record_accepted(hello)
        self.raft.greeted(hello)
        self.on_met(hello)
        for place in [
            place
            for place in self._peers
            if place >> 8 == hello.node and place & 0xFF >= hello.cores
        ]:
            self._tasks.pop(place).cancel()
            self._peers.pop(place).close()  # the node has fewer cores than before

    def _removed(self, hello: Hello) -> None:
        self.on_removed(hello)  # the listener may be set after the dialers are created

    def _reject_stale_copy(self, hello: Hello) -> None:
        self.on_stale_copy(hello)

    def _visited(self, hello: Hello) -> None:
        """Record an inbound connection from another node, and reconnect to it at once."""
        assert self.raft is not None
        self._greeted(hello)
        self.raft.hurry(hello.node)
        for place in [place for place in self._peers if place >> 8 == hello.node]:
            self._peers[place].hurry()

    def _core_lost(self, node: int, core: int) -> None:
        """Fail the requests to a lost core. Cores without shared groups detect the loss on their
        own connections."""
        peer = self._peers.get(address(node, core))
        if peer is not None:
            peer.drop()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        # first: an exception in a callback must not stop the ticks
        self._ticker = loop.call_later(TICK_SECONDS, self._tick)
        now = loop.time()
        for peer in list(self._peers.values()):
            peer.tick(now)
        if self._port is not None:
            self._port.tick()
        if self.raft is not None:
            self.raft.tick(now)


def _lane_to(dialer: Dialer) -> Callable[[int], Connect]:
    return lambda core: partial(dialer.connect, core, LANE_RAFT)


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
