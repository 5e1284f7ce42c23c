"""Connect one core to its cluster: links to peers, Raft messages, and forwarding of proposals to
leaders."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from polynya.base.errors import ConfigError
from polynya.cluster.certificates import date_trouble, expires, peer_tls_of
from polynya.cluster.feature_level import FeatureLevels
from polynya.cluster.map_cache import initial_map
from polynya.cluster.owner_hints import OwnerHints
from polynya.cluster.status import Replica, replica_of
from polynya.config.cluster_settings import ClusterNode
from polynya.config.core_start import CoreStart
from polynya.engine.log_clock import LogClock
from polynya.engine.membership import ClusterSettings, Membership
from polynya.engine.repair import others_of
from polynya.engine.replicas.lag import ReplicaLag
from polynya.engine.replicated import ReplicatedEngine
from polynya.observability.metrics import Samples
from polynya.raft import group_of_message
from polynya.replica.memory import waits
from polynya.routing.group_locations import BirthMap, GroupLocations
from polynya.service.assembly import CoreRuntime
from polynya.service.stale_readers import StaleReaders
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import NodeState
from polynya.system.ports import shared_listener
from polynya.tiering.store_health import StoreAccess
from polynya.tiering.store_leadership import StoreLeadership
from polynya.transport import PeerCluster, RaftReceiver, Transport, address

HAND_OVER_SECONDS = 2.0  # limit for leadership transfers before a stop
HAND_OVER_LOOK_SECONDS = 0.02
log = logging.getLogger("polynya.core")


def membership_of(start: CoreStart) -> Membership | None:
    """Return the membership of this node, or None on a standalone node."""
    cluster = start.config.cluster
    if not cluster.is_on:
        return None
    born = initial_map(start.identity, cluster)
    return Membership(
        cluster.node,
        start.identity.nodes,
        {group: placement.voters for group, placement in born.groups.items()},
    )


def transport_of(start: CoreStart) -> Transport | None:
    """Return the transport to other cores and nodes, or None on a standalone node with one core."""
    cluster = start.config.cluster
    if start.cores == 1 and not cluster.is_on:
        return None
    peers = None
    if cluster.is_on:
        peers = PeerCluster(
            id=start.identity.cluster_id,
            history=start.identity.history,
            node=start.identity.node,
            groups=start.groups,
            others={node.id: node.peer_address for node in cluster.others},
            listener=shared_listener(start.peer_host, start.peer_port),
            tls=peer_tls_of(cluster),
        )
    return Transport(
        start.core, start.cores, start.run_directory, start_id=start.start_id, cluster=peers
    )


def cluster_of(
    start: CoreStart, transport: Transport | None, clock: LogClock
) -> ClusterSettings | None:
    """Return the engine's cluster settings, or None on a standalone node."""
    membership = membership_of(start)
    if membership is None:
        return None
    assert transport is not None and transport.raft is not None
    return ClusterSettings(membership, transport.raft, start.groups, reached=clock.reach)


def locations_of(start: CoreStart, transport: Transport | None) -> GroupLocations | None:
    """Return the initial locations of the groups, or None on a standalone node."""
    cluster = start.config.cluster
    if not cluster.is_on:
        return None
    assert transport is not None and transport.raft is not None
    raft, born = transport.raft, initial_map(start.identity, cluster)
    # a joining node asks these
    nodes = tuple(sorted(node.id for node in cluster.voting))
    known = born if born.groups else BirthMap(nodes)
    return GroupLocations(start.identity.node, known, raft.is_up, raft.seems_up)


class _Replication(RaftReceiver):
    """The engine of this core, as the links to other nodes see it."""

    def __init__(self, core: ReplicatedEngine) -> None:
        self._core = core
        self._peers = core.peers

    def group_of(self, message: bytes) -> int:
        return group_of_message(message)

    def messages(self, node: int, messages: list[bytes]) -> None:
        self._core.received(messages, node)

    def found(self, node: int, shared: Callable[[int], bool]) -> None:
        self._core.leadership.found(node)
        self._peers.found(node, shared)

    def lost(self, node: int, shared: Callable[[int], bool], silent_ms: int) -> None:
        self._peers.unreachable(node, shared)
        self._peers.lost(node, self._core.now_ms() - silent_ms, shared)

    def sending(self, node: int, shared: Callable[[int], bool]) -> None:
        self._peers.sending(node, shared)

    def taking(self, node: int, shared: Callable[[int], bool]) -> None:
        self._peers.receiving(node, shared)


class ClusterMember:
    """The connections between one core's engine and the other nodes."""

    def __init__(self, start: CoreStart, transport: Transport, engine: CoreRuntime) -> None:
        assert transport.node_links is not None and engine.replicated is not None
        self._start = start
        self._transport = transport
        self.links = links = transport.node_links
        self._tls = links.tls
        self._expires = self._look_at_certificate()
        self._refused = ""  # why the last SIGHUP rejected the certificate files
        self._waits_for = self._said = ""
        self._core: ReplicatedEngine = engine.replicated
        self._raft = links.raft
        service, own = engine.service, start.identity.node
        assert service.forwarding is not None
        self.forwarding = forwarding = service.forwarding
        self.directory = forwarding.directory
        engine.repairer.join(transport, others_of(self._core, forwarding.targets.core_at))
        self.stranded = StaleReaders(service.local, self.directory, forwarding.targets, service.rpc)
        urls = {node.id: node.http for node in start.config.cluster.nodes}
        self._hints = OwnerHints(
            own,
            self.directory,
            urls,
            group_of=service.group_of,
            expects_diskless=service.proposals.expects_diskless,
        )
        service.hint = self._hints.url
        if start.config.cluster.leader_follows_writers:
            self._core.leadership.follow(
                forwarding.demand, self.directory.locations.may_lead, forwarding.targets.core_at
            )
        self._core.on_leadership.append(forwarding.led)
        self._core.replicas.on_dropped.append(forwarding.gone)
        self._core.leadership.listen(transport)
        self._raft.join(_Replication(self._core))
        # (reporting node, epoch of its map)
        self.on_removed: Callable[[int, int], None] = lambda by, epoch: None
        links.on_removed = lambda hello: self.on_removed(hello.node, hello.removed)

    @property
    def urls(self) -> dict[int, str]:
        """The client URL of each node."""
        return self._hints.urls

    def meet(self, now: ClusterMap) -> None:
        """Connect to the nodes of the map and dismiss those that it drops.
        A removed node stays connected until it disconnects, so that it learns of its removal."""
        self.links.know(now.epoch)
        self._hints.learn(now)
        for number, record in now.nodes.items():
            if number == self._start.identity.node:
                continue
            if record.state != NodeState.REMOVED and record.peer:
                self.links.add_node(number, ClusterNode(number, record.peer, "").peer_address)
            elif record.state == NodeState.REMOVED:
                self.links.dismiss_node(number, now.epoch)
            elif number in self.links.nodes:
                self.links.dismiss_node(number)

    async def part(self, now: ClusterMap) -> None:
        """Drop the links to removed nodes that have disconnected."""
        for number in self.links.nodes:
            record = now.nodes.get(number)
            away = not self._raft.is_up(number)
            if (
                away
                and record is not None
                and (record.state == NodeState.REMOVED or not record.peer)
            ):
                await self.links.remove_node(number)

    def levels(self, members: Callable[[], Iterable[int]]) -> FeatureLevels:
        """Create the object that raises the local groups' feature levels. `members` returns the
        cluster's nodes, empty until known."""
        return FeatureLevels(self._core, members, self._raft.level_of, self.links.work_at)

    def reader_lag(self, readers: Callable[[], Collection[int]]) -> ReplicaLag:
        """Create the lag tracker of read replicas. `readers` returns their nodes."""
        return ReplicaLag(self._core, readers, asyncio.get_running_loop().time)

    def store_leads(self, access: StoreAccess) -> StoreLeadership:
        """Create the object that transfers leaderships while this node cannot use the object
        store."""
        return StoreLeadership(self._core.leadership, access, self._transport, self._cores_there)

    def _cores_there(self) -> list[int]:
        """Return the addresses of the connected cores that may lead a local group."""
        voters = {
            node
            for member in self._core.members.values()
            for node in member.raft.configuration.voters
        }
        there = [node for node in self.links.nodes if node in voters and self._raft.is_up(node)]
        return [address(node, core) for node in there for core in range(self._raft.cores_of(node))]

    def replicas(self) -> list[Replica]:
        """Return the state of the local replicas for the cluster view."""
        return [
            replica_of(number, status, self._core.node)
            for number, status in self._core.replicas.statuses().items()
        ]

    def samples(self) -> Samples:
        forwarding = self.forwarding
        now, own = self.directory.locations.map, self._start.identity.node
        return {
            "polynya_nodes_down": sum(
                node != own and not self._raft.is_up(node) for node in now.members
            ),
            "polynya_groups_led": len(self._core.led),
            "polynya_leads_followed_total": self._core.leadership.followed,
            "polynya_peers_connected": self._raft.there,
            "polynya_peer_messages_dropped_total": self._raft.dropped,
            "polynya_forwarded_total": forwarding.forwarded,
            "polynya_forward_retries_total": forwarding.targets.redirects,
            "polynya_forward_refused_total": forwarding.attempts.refused,
        }

    def checks(self) -> list[tuple[str, Callable[[], str | None]]]:
        """Return the cluster's health checks of this core."""
        return [("leaders", self._leaderless)]

    async def hand_over(self) -> None:
        """Transfer this core's leaderships before a stop, for at most `HAND_OVER_SECONDS`. The
        receivers return them after its restart."""
        leads, loop = self._core.leadership, asyncio.get_running_loop()
        leads.leave(self._transport, self._cores_there())
        deadline = loop.time() + HAND_OVER_SECONDS
        # retry: a target may be stopping too
        while leads.hand_over_all() and self._raft.there and loop.time() < deadline:
            await asyncio.sleep(HAND_OVER_LOOK_SECONDS)

    def reload(self) -> None:
        """Load the certificate files again if the other nodes would accept them. Open connections
        stay."""
        try:
            made = peer_tls_of(self._start.config.cluster, dates=True)
        except ConfigError as error:
            self._refused = str(error)
            log.error(
                "cannot use the new node certificate; keeping the old one",
                extra={"error": str(error)},
            )
            return
        if made is None or self._tls is None:
            return
        self._tls.server, self._tls.client = made.server, made.client
        self._refused = ""
        self._expires = self._look_at_certificate()
        log.info(
            "loaded the node certificate",
            extra={"file": self._start.config.cluster.cert, "until": f"{self._expires:%Y-%m-%d}"},
        )

    def certificate_trouble(self) -> str | None:
        """Return a warning for health: the certificate expires, or the files are unusable. None if
        neither."""
        found = (
            None if self._expires is None else date_trouble(self._expires, dt.datetime.now(dt.UTC))
        )
        if not self._refused:
            return found
        kept = f"SIGHUP kept the old certificate, but a restart would fail: {self._refused}"
        return f"{kept}; {found}" if found else kept

    def _look_at_certificate(self) -> dt.datetime | None:
        cert = self._start.config.cluster.cert
        found = expires(Path(cert)) if cert else None
        trouble = None if found is None else date_trouble(found, dt.datetime.now(dt.UTC))
        if trouble is not None:
            log.warning(trouble)
        return found

    def _leaderless(self) -> str | None:
        without = leaderless(
            self._core.members, self._core.replicas.leader_of, self.directory.locations
        )
        waiting = self._waiting() if without else ""
        return f"{without}; this node {waiting}" if waiting else without

    def _waiting(self) -> str:
        rafts = {number: member.raft for number, member in self._core.members.items()}
        forgotten = {
            number: raft.loss.awaiting_term | raft.loss.undiscovered
            for number, raft in rafts.items()
            if (raft.amnesiac or raft.loss.undiscovered) and not raft.leader
        }
        return waits(forgotten, self.links.nodes)

    def look_at_memory(self) -> None:
        """Log what a node without its disk waits for, once it persists for two calls and when it
        changes. Called every second."""
        waiting = self._waiting()
        if waiting and waiting == self._waits_for and waiting != self._said:
            self._said = waiting
            log.warning("this node %s", waiting)
        self._waits_for = waiting


def leaderless(
    groups: Iterable[int], leader_of: Callable[[int], int], group_locations: GroupLocations
) -> str | None:
    """Return how many local groups have no known leader, or None. A member without a vote starts no
    election and remembers its last leader. On a read replica, a group therefore also counts when
    that leader is disconnected."""
    own, now = group_locations.node, group_locations.map
    reads = own in now.nodes and now.nodes[own].reader
    # the others are being dropped
    belong = [number for number in groups if own in now.replicas_of(number)]
    without = [
        number
        for number in belong
        if not (leader := leader_of(number)) or (reads and not group_locations.is_there(leader))
    ]
    return f"no known leader for {len(without)} of {len(belong)} groups" if without else None
