"""A core takes its part in a cluster: its links to the others, its replicas' way over them, and its proposals' way to whoever leads."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from polynya.base.errors import ConfigError
from polynya.cluster.certificates import date_trouble, expires, peer_tls_of
from polynya.cluster.feature_level import FeatureLevels
from polynya.cluster.map_cache import map_at_birth
from polynya.cluster.status import Replica, replica_of
from polynya.config.cluster_settings import ClusterNode
from polynya.config.core_start import CoreStart
from polynya.engine.log_clock import LogClock
from polynya.engine.membership import ClusterSettings, Membership
from polynya.engine.repair import others_of
from polynya.engine.replica_lag import ReplicaLag
from polynya.engine.replicated import ReplicatedEngine
from polynya.observability.metrics import Samples
from polynya.raft import group_of_message
from polynya.replica.memory import waits
from polynya.service.assembly import CoreRuntime
from polynya.service.routing.forwarding import CoreAddress, Forwarding
from polynya.service.routing.group_locations import BirthMap, GroupLocations
from polynya.service.stale_readers import StaleReaders
from polynya.stream.commands import NodeState
from polynya.stream.placement import ClusterMap
from polynya.system.ports import shared_listener
from polynya.tiering.store_health import StoreAccess
from polynya.tiering.store_leadership import StoreLeadership
from polynya.transport import PeerCluster as Links
from polynya.transport import RaftLinks, Transport, address

HAND_OVER_SECONDS = 2.0  # for leaderships to go elsewhere before a stop; without others they stay
HAND_OVER_LOOK_SECONDS = 0.02
log = logging.getLogger("polynya.core")


def membership_of(start: CoreStart) -> Membership | None:
    """None on a node by itself."""
    cluster = start.config.cluster
    if not cluster.is_on:
        return None
    born = map_at_birth(start.birth, cluster)
    return Membership(cluster.node, start.birth.nodes, {group: placement.voters for group, placement in born.groups.items()})


def transport_of(start: CoreStart) -> Transport | None:
    """What this core needs to reach others, of this node and of other nodes. None when there are none."""
    cluster = start.config.cluster
    if start.cores == 1 and not cluster.is_on:
        return None
    links = None
    if cluster.is_on:
        links = Links(
            id=start.birth.cluster_id,
            history=start.birth.history,
            node=start.birth.node,
            groups=start.groups,
            others={node.id: node.peer_place for node in cluster.others},
            listener=shared_listener(start.peer_host, start.peer_port),
            tls=peer_tls_of(cluster),
        )
    return Transport(start.core, start.cores, start.run_directory, start_id=start.start_id, cluster=links)


def cluster_of(start: CoreStart, transport: Transport | None, clock: LogClock) -> ClusterSettings | None:
    """What the engine needs of it."""
    membership = membership_of(start)
    if membership is None:
        return None
    assert transport is not None and transport.raft is not None
    return ClusterSettings(membership, transport.raft, start.groups, reached=clock.reach)


class ClusterMember:
    """The ways between one core's engine and the other nodes."""

    def __init__(self, start: CoreStart, transport: Transport, engine: CoreRuntime) -> None:
        assert transport.raft is not None and engine.replicated is not None
        self._start = start
        self._transport = transport
        self._tls = transport.tls
        self._expires = self._look_at_certificate()
        self._refused = ""  # why the files' certificate was not taken at the last SIGHUP
        self._waits_for = self._said = ""
        self._core: ReplicatedEngine = engine.replicated
        self._raft: RaftLinks = transport.raft
        own = start.birth.node
        local = engine.local
        nodes = tuple(sorted(node.id for node in start.config.cluster.voting))  # where a node that joins looks for the cluster
        born = map_at_birth(start.birth, start.config.cluster)
        self.forwarding = Forwarding(
            CoreAddress(own, start.core, start.cores, start.groups),
            self._core,
            transport,
            local.propose,
            stamped=local.stamped,
            address=address,
            whereabouts=GroupLocations(own, born if born.groups else BirthMap(nodes), transport.raft.is_there),
        )
        engine.repairer.join(transport, others_of(self._core, self.forwarding.core_at))
        service = engine.service
        service.join(self.forwarding)
        self.stranded = StaleReaders(service, self.forwarding)
        self.urls = {node.id: node.http for node in start.config.cluster.nodes}  # where clients reach the nodes
        service.hint = lambda name: self.urls.get(self.forwarding.elsewhere(service.group_of(name)), "")
        if start.config.cluster.leads_follow_writers:
            self._core.leadership.follow(self.forwarding.demand, self.forwarding.whereabouts.may_lead, self.forwarding.core_at)
        self._core.on_leadership.append(self.forwarding.led)
        self._core.on_dropped.append(self.forwarding.gone)
        self._raft.on_messages = lambda node, messages: self._core.received(messages, node)
        self._core.leadership.listen(transport)
        self._raft.on_found = self._found
        self._raft.on_sending = self._core.peer_sends
        self._raft.on_taking = self._core.peer_takes
        self._raft.group_of = group_of_message
        self.forwarding.cores_of = self._raft.cores_of
        self._raft.on_lost = self._lost
        self.on_removed: Callable[[int, int], None] = lambda by, epoch: None  # told by which node, and by a map of which epoch
        transport.on_removed = lambda hello: self.on_removed(hello.node, hello.removed)

    def meet(self, now: ClusterMap) -> None:
        """The nodes of the cluster are connected to, where the map has them. One that was removed is let go once it is gone: until then it may
        still hear of that."""
        self._transport.know(now.epoch)
        self.urls = {number: now.nodes[number].http for number in now.members if now.nodes[number].http} or self.urls
        for number, record in now.nodes.items():
            if number == self._start.birth.node:
                continue
            if record.state != NodeState.REMOVED and record.peer:
                self._transport.add_node(number, ClusterNode(number, record.peer, "").peer_place)
            elif record.state == NodeState.REMOVED:
                self._transport.dismiss_node(number, now.epoch)
            elif number in self._transport.nodes:
                self._transport.dismiss_node(number)

    async def part(self, now: ClusterMap) -> None:
        """From those that were removed, and are not there any more."""
        for number in self._transport.nodes:
            record = now.nodes.get(number)
            away = not self._raft.is_there(number)
            if away and record is not None and (record.state == NodeState.REMOVED or not record.peer):
                await self._transport.remove_node(number)

    def levels(self, members: Callable[[], Iterable[int]]) -> FeatureLevels:
        """Who raises the levels of the groups here. `members`: the nodes of the cluster; none before they are known."""
        return FeatureLevels(self._core, members, self._raft.level_of, self._transport.work_at)

    def reader_lag(self, readers: Callable[[], Collection[int]]) -> ReplicaLag:
        """How far read replicas are behind. `readers`: their nodes."""
        return ReplicaLag(self._core, readers, asyncio.get_running_loop().time)

    def store_leads(self, access: StoreAccess) -> StoreLeadership:
        """Who hands leaderships to others while the object store cannot be used here."""
        return StoreLeadership(self._core.leadership, access, self._transport, self._cores_there)

    def _cores_there(self) -> list[int]:
        """Those of the other nodes that may lead something that is here."""
        voters = {node for member in self._core.members.values() for node in member.raft.configuration.voters}
        there = [node for node in self._transport.nodes if node in voters and self._raft.is_there(node)]
        return [address(node, core) for node in there for core in range(self._raft.cores_of(node))]

    def replicas(self) -> list[Replica]:
        """For the cluster's view."""
        return [replica_of(number, status, self._core.node) for number, status in self._core.statuses().items()]

    def samples(self) -> Samples:
        forwarding = self.forwarding
        now, own = forwarding.whereabouts.map, self._start.birth.node
        return {
            "polynya_nodes_away": sum(node != own and not self._raft.is_there(node) for node in now.members),
            "polynya_groups_led": len(self._core.led),
            "polynya_leads_followed_total": self._core.leadership.followed,
            "polynya_peers_connected": self._raft.there,
            "polynya_peer_messages_dropped_total": self._raft.dropped,
            "polynya_forwarded_total": forwarding.forwarded,
            "polynya_forward_retries_total": forwarding.retried,
            "polynya_forward_refused_total": forwarding.refused,
        }

    def checks(self) -> list[tuple[str, Callable[[], str | None]]]:
        """For the health of this core."""
        return [("leaders", self._leaderless)]

    async def hand_over(self) -> None:
        """Before a stop: others lead what this core leads, if they can, and give it back when it has come back."""
        leads, loop = self._core.leadership, asyncio.get_running_loop()
        leads.leave(self._transport, self._cores_there())
        deadline = loop.time() + HAND_OVER_SECONDS
        while leads.hand_over_all() and self._raft.there and loop.time() < deadline:  # again: one that was asked may be just going, too
            await asyncio.sleep(HAND_OVER_LOOK_SECONDS)

    def reload(self) -> None:
        """Take the certificates that the files hold now, if the other nodes would accept them; connections that are there go on."""
        try:
            made = peer_tls_of(self._start.config.cluster, dates=True)
        except ConfigError as error:
            self._refused = str(error)
            log.error("the new certificate for other nodes cannot be used: the old one is kept", extra={"error": str(error)})
            return
        if made is None or self._tls is None:
            return
        self._tls.server, self._tls.client = made.server, made.client
        self._refused = ""
        self._expires = self._look_at_certificate()
        log.info(
            "took the certificate for other nodes", extra={"file": self._start.config.cluster.cert, "until": f"{self._expires:%Y-%m-%d}"}
        )

    def certificate_trouble(self) -> str | None:
        """That it is over, or soon will be, or that the files hold one that cannot be used; for health."""
        found = None if self._expires is None else date_trouble(self._expires, dt.datetime.now(dt.UTC))
        if not self._refused:
            return found
        kept = f"at SIGHUP the old certificate was kept, which a restart would not: {self._refused}"
        return f"{kept}; {found}" if found else kept

    def _look_at_certificate(self) -> dt.datetime | None:
        cert = self._start.config.cluster.cert
        found = expires(Path(cert)) if cert else None
        trouble = None if found is None else date_trouble(found, dt.datetime.now(dt.UTC))
        if trouble is not None:
            log.warning(trouble)
        return found

    def _found(self, node: int, shared: Callable[[int], bool]) -> None:
        self._core.leadership.found(node)
        self._core.peer_found(node, shared)

    def _lost(self, node: int, shared: Callable[[int], bool], silent_ms: int) -> None:
        self._core.unreachable(node, shared)
        self._core.peer_lost(node, self._core.now_ms() - silent_ms, shared)

    def _leaderless(self) -> str | None:
        without = leaderless(self._core.members, self._core.leader_of, self.forwarding.whereabouts)
        waiting = self._waiting() if without else ""
        return f"{without}; this node {waiting}" if waiting else without

    def _waiting(self) -> str:
        rafts = {number: member.raft for number, member in self._core.members.items()}
        forgotten = {
            number: raft.unheard | raft.unmet for number, raft in rafts.items() if (raft.forgetful or raft.unmet) and not raft.leader
        }
        return waits(forgotten, self._transport.nodes)

    def look_at_memory(self) -> None:
        """About once a second: a node that has lost its disk says what it waits for, once it lasts, and when that changes."""
        waiting = self._waiting()
        if waiting and waiting == self._waits_for and waiting != self._said:
            self._said = waiting
            log.warning("this node %s", waiting)
        self._waits_for = waiting


def leaderless(groups: Iterable[int], leader_of: Callable[[int], int], whereabouts: GroupLocations) -> str | None:
    """How many of the groups here have no leader, for health. A member without a vote starts no election: it remembers the last leader it
    heard, however long ago, so of a read replica's groups those count whose leader is there."""
    own, now = whereabouts.node, whereabouts.map
    reads = own in now.nodes and now.nodes[own].reader
    belong = [number for number in groups if own in now.replicas_of(number)]  # others are on their way out
    without = [number for number in belong if not (leader := leader_of(number)) or (reads and not whereabouts.is_there(leader))]
    return f"no leader is known of {len(without)} of {len(belong)} groups" if without else None
