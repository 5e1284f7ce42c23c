"""The links of one core to the other nodes of its cluster: which nodes there are, what this core
says of itself to them, and who is rejected."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from polynya.base.errors import Unavailable
from polynya.transport.backoff import Connect
from polynya.transport.dialing import Dialer, PeerTls
from polynya.transport.handshake import (
    LANE_ASK,
    LANE_RAFT,
    Hello,
    address,
    node_of,
    stale_copy_text,
)
from polynya.transport.link import FrameLink
from polynya.transport.link_events import LinkEvents
from polynya.transport.peer_journal_positions import PeerJournalPositions
from polynya.transport.peer_listener import ConnectionSet
from polynya.transport.peer_pool import PeerPool
from polynya.transport.port import NodePort
from polynya.transport.raft_links import RaftLinks
from polynya.transport.traffic import LinkTraffic


class PeerCluster(msgspec.Struct, frozen=True):
    """The other nodes with their peer addresses, and the listening socket of this core."""

    id: str
    history: int
    node: int
    groups: int
    others: Mapping[int, tuple[str, int]]
    listener: socket.socket
    tls: PeerTls | None = None


class NodeLinks:
    """The links of one core to other nodes. `hello` introduces it. `peers` are the connections for
    requests, `bulk(node, core, body)` sends non-urgent Raft messages over them."""

    def __init__(
        self,
        cluster: PeerCluster,
        hello: Hello,
        directory: str,
        *,
        peers: PeerPool,
        bulk: Callable[[int, int, bytes], bool],
    ) -> None:
        # another node rejects this one as removed from the cluster
        self.on_removed: Callable[[Hello], None] = lambda hello: None
        # … or as a stale copy of its data
        self.on_stale_copy: Callable[[Hello], None] = lambda hello: None
        # a core of another node completed the handshake
        self.on_met: Callable[[Hello], None] = lambda hello: None
        self.peer_positions = PeerJournalPositions()  # journal positions of other nodes
        self.traffic = LinkTraffic()  # to other nodes
        self.tls = cluster.tls  # contexts may be replaced; new connections use them
        self._hello = hello
        self._peers = peers
        self._dialers = {
            node: self._dialer(node, endpoint) for node, endpoint in cluster.others.items()
        }
        self.raft = raft = RaftLinks(
            (hello.core, hello.cores),
            {node: _lane_to(dialer) for node, dialer in self._dialers.items()},
            bulk,
        )
        raft.on_gone.append(self._core_lost)
        # also those from the other cores of this node
        self.connections = ConnectionSet(raft.arrived, self.peer_positions.record_synced)
        self._port = NodePort(
            self.connections,
            hello,
            cluster.others,
            listener=cluster.listener,
            directory=directory,
            tls=cluster.tls,
            events=_PortEvents(self),
        )

    def open(self) -> None:
        """Listen at the peer port."""
        self._port.open()

    def start(self) -> None:
        """Connect to the other nodes in the background."""
        self.raft.start()

    async def close(self) -> None:
        """Close the peer port and the connections of Raft messages."""
        await self._port.close()
        await self.raft.close()

    def tick(self, now: float) -> None:
        """Look for silent connections; called a few times a second."""
        self._port.tick()
        self.raft.tick(now)

    # --- what this core says of itself ------------------------------------------------------------

    def work_at(self, level: int) -> None:
        """Record that a group here has reached this log level. Nodes that do not support it are
        rejected from now on."""
        if level != self._hello.works_at:
            self._say(msgspec.structs.replace(self._hello, works_at=level))

    def vouch(self, journal: int, opened: int, synced: Callable[[], int]) -> None:
        """Announce this core's journal to other nodes: its number, its end when opened, and how far
        it is synced. Call before `start`. The others remember it, and reject a later incarnation
        that has less."""
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
        self._hello = self._port.own = hello
        for dialer in self._dialers.values():
            dialer.own = hello

    # --- the nodes of the cluster -----------------------------------------------------------------

    @property
    def nodes(self) -> list[int]:
        """Return the other nodes, connected or not."""
        return sorted(self._dialers)

    def add_node(self, node: int, endpoint: tuple[str, int]) -> None:
        """Add a node of the cluster, or a new address of it."""
        if node in self._dialers:
            self._dialers[node].move(endpoint)
        else:
            self._dialers[node] = dialer = self._dialer(node, endpoint)
            self.raft.add(node, _lane_to(dialer))
        self._port.admit(node)

    async def remove_node(self, node: int) -> None:
        """Remove a node from the cluster. Later requests to it are refused."""
        self._port.dismiss(node)
        # only it may reach us; it receives the reason when it reconnects
        for connection in list(self.connections.inbound):
            if node_of(connection.core) == node:
                connection.link.close()
        if self._dialers.pop(node, None) is None:
            return
        peers, tasks = self._peers.detach(node)
        await asyncio.gather(self.raft.remove(node), *tasks, return_exceptions=True)
        for peer in peers:
            peer.close()

    def dismiss_node(self, node: int, removed: int = 0) -> None:
        """Reject new connections of a node that is being removed. Open ones continue until
        `remove_node`. `removed`: the epoch of a map without it, which the node receives."""
        self._port.dismiss(node, removed)

    def connector(self, core_id: int) -> Connect:
        """Return the connector for requests to a core of another node. Raise Unavailable for an
        unknown node."""
        dialer = self._dialers.get(node_of(core_id))
        if dialer is None:
            raise not_a_member(core_id)
        return partial(dialer.connect, core_id & 0xFF, LANE_ASK)

    # --- reports ----------------------------------------------------------------------------------

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
        return self._port.twins

    # --- handshakes -------------------------------------------------------------------------------

    def _dialer(self, node: int, endpoint: tuple[str, int]) -> Dialer:
        return Dialer(
            self._hello,
            node,
            endpoint,
            self.tls,
            _DialEvents(self),
        )

    def greeted(self, hello: Hello) -> None:
        """Record the `Hello` of a core of another node."""
        self.peer_positions.record_accepted(hello)
        self.raft.greeted(hello)
        self.on_met(hello)
        self._peers.trim(hello.node, hello.cores)  # it may have fewer cores than before

    def hurry(self, node: int) -> None:
        """Reconnect to a node at once, because it has connected to this one."""
        self.raft.hurry(node)
        self._peers.hurry(node)

    def _core_lost(self, node: int, core: int) -> None:
        """Fail the requests to a lost core. Cores without shared groups detect the loss on their
        own connections."""
        peer = self._peers.by_core.get(address(node, core))
        if peer is not None:
            peer.drop()


class _DialEvents(LinkEvents):
    """The listener of the dialers."""

    def __init__(self, links: NodeLinks) -> None:
        self._links = links
        self._positions = links.peer_positions
        self._traffic = links.traffic

    def greeted(self, hello: Hello) -> None:
        self._links.greeted(hello)

    def opened(self, node: int, link: FrameLink) -> None:
        self._traffic.open(node, link)

    def removed(self, hello: Hello) -> None:
        self._links.on_removed(hello)

    def stale_copy(self, hello: Hello) -> None:
        self._links.on_stale_copy(hello)

    def rejection(self, hello: Hello) -> str:
        return self._positions.rejection(hello)


class _PortEvents(_DialEvents):
    """The listener of the peer port."""

    def greeted(self, hello: Hello) -> None:
        self._links.greeted(hello)
        self._links.hurry(hello.node)

    def sending(self, core_id: int) -> None:
        self._links.raft.sending(core_id)

    def life_of(self, node: int) -> str:
        return self._links.raft.life_of(node)


def not_a_member(core_id: int) -> Unavailable:
    """Return the error of a request to a core of an unknown node."""
    return Unavailable(f"node {node_of(core_id)} does not belong to the cluster; retry")


def _lane_to(dialer: Dialer) -> Callable[[int], Connect]:
    return lambda core: partial(dialer.connect, core, LANE_RAFT)
