"""The Kafka front of a core, and the brokers that its clients see."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from polynya.admin import metric_sources
from polynya.admin.access_keeper import Keeper
from polynya.admin.health import Check
from polynya.admin.listeners import Listener, Timed, node_profiles
from polynya.base.owners import owner
from polynya.cluster.map_cache import ClusterMapCache
from polynya.config.core_start import KAFKA, CoreStart
from polynya.config.model import split_listen
from polynya.cost import APPEND, Counts
from polynya.front.kafka.auth.user_admin import UserAdmin
from polynya.front.kafka.brokers import Broker
from polynya.front.kafka.connections import KafkaProtection
from polynya.front.kafka.context import TopicDefaults
from polynya.front.kafka.server import KafkaFront
from polynya.front.kafka.telemetry.instances import ClientInstances
from polynya.jobs import repeat
from polynya.node.kafka_quorum import MetaQuorum, StatusSource
from polynya.routing.directory import Leaders
from polynya.service.assembly import CoreRuntime
from polynya.stream.features.placement.commands import NodeState

LEADERS_SECONDS = 1.0  # between two looks for the leaders of groups without a replica here
CORES_MAX = 256  # of a node, in the ids of brokers
# of a new cluster, in which it may lack brokers without being ready. It takes about two; a node
# that serves no Kafka, or is down, announces none
BROKERS_SECONDS = 10.0


class NodeBrokers:
    """The brokers: the cores of the nodes that serve Kafka, or such a node itself if it has one
    port for all cores. This core answers for a node without an address: it forwards."""

    def __init__(
        self,
        start: CoreStart,
        directory: Leaders,
        maps: ClusterMapCache | None,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        """Read the brokers. `refresh` asks for the leaders of groups without a replica here."""
        self.cluster_id = start.identity.cluster_id
        self._node = start.identity.node
        ports = tuple(address.port for address in start.kafka_direct)
        self._own_ports = (start.kafka_advertised, ports)
        self._own_zone = start.config.cluster.own.zone if start.config.cluster.is_on else ""
        self.own = self._node * CORES_MAX + (start.core if ports else 0)
        self._directory, self._refresh = directory, refresh
        self._maps = maps
        self._epoch = -1
        self._ports: dict[int, int] = {}  # node -> the number of its brokers
        self._all: tuple[Broker, ...] = ()
        self._active: dict[int, str] = {}  # the active nodes that serve Kafka -> their zones
        self.zone = ""
        self._learn()

    def all(self) -> Sequence[Broker]:
        """Return the brokers by id."""
        if self._maps is not None and self._maps.now.epoch != self._epoch:
            self._learn()
        return self._all

    def leader_of(self, group: int) -> int:
        """Return the broker that leads the group, or this one if that is not known."""
        self.all()
        leader = self._directory.leader(group) or (self._node if self._maps is None else -1)
        return self._at(leader, group) if leader in self._ports else self.own

    def epoch_of(self, group: int) -> int:
        """Return the epoch of the group's leader; -1: unknown."""
        return self._directory.epoch_of(group)

    def replicas_of(self, group: int) -> tuple[list[int], list[int]]:
        """Return the brokers of the group's voters, and those of nodes that this node reaches."""
        voters = self._directory.voters_of(group) or {self._node: True}
        there = {self._at(node, group): is_up for node, is_up in voters.items()}
        listed = sorted({*there, self.leader_of(group)})
        return listed, [broker for broker in listed if there.get(broker, True)]

    def nodes_in(self, zone: str) -> tuple[int, ...]:
        """Return the active nodes of a zone that are up."""
        return tuple(node for node in self._there() if self._active[node] == zone)

    def owners(self, zone: str) -> tuple[int, ...]:
        """Return the owners for a zone. Without an active node this one answers for all."""
        return (self.nodes_in(zone) if zone else ()) or self._there() or (self._node,)

    def owner_of(self, stream: str, group: int, zone: str) -> int:
        """Return the broker that owns a diskless stream for clients of a zone."""
        return self._at(owner(stream, self.owners(zone)), group)

    def owners_of(self, stream: str, group: int, zone: str) -> list[int]:
        """Return the brokers that own a diskless stream: for clients of this zone, and then of the
        other zones."""
        zones = sorted({self._active[node] for node in self._there()} - {"", zone})
        owners = (self.owner_of(stream, group, each) for each in (zone, *zones))
        return list(dict.fromkeys(owners))

    def _there(self) -> tuple[int, ...]:
        self.all()
        return tuple(node for node in self._active if self._directory.seems_up(node))

    async def follow(self) -> None:
        """Learn now and then who leads the groups without a replica here. Run until cancelled."""
        await repeat(self._refresh, LEADERS_SECONDS)

    def broker_of(self, node: int, group: int) -> int:
        """Return the broker of a node that a group's requests go to."""
        self.all()
        return self._at(node, group)

    def _at(self, node: int, group: int) -> int:
        return node * CORES_MAX + group % self._ports.get(node, 1)

    def _learn(self) -> None:
        """Read the brokers from the cluster map. Of this node the settings are newer."""
        nodes = dict[int, tuple[str, tuple[int, ...], str]]()
        if self._maps is not None:
            self._epoch = self._maps.now.epoch
            nodes = {
                node.id: (node.kafka, node.kafka_ports, node.zone)
                for node in self._maps.now.nodes.values()
                if node.kafka and node.state != NodeState.REMOVED
            }
        self.zone = zone = self._own_zone or nodes.get(self._node, ("", (), ""))[2]
        nodes[self._node] = (*self._own_ports, zone)
        self._active = {node: nodes[node][2] for node in sorted(nodes) if self._is_active(node)}
        self._ports = {node: len(ports) or 1 for node, (_, ports, _) in nodes.items()}
        self._all = tuple(
            Broker(node * CORES_MAX + core, host, port, zone or None)
            for node, (address, ports, zone) in sorted(nodes.items())
            for host, shared in [split_listen(address)]
            for core, port in enumerate(ports or (shared,))
        )

    def _is_active(self, node: int) -> bool:
        """Report whether a node may own streams: it votes, and is neither
        cordoned nor on its way out."""
        if self._maps is None or node not in self._maps.now.nodes:
            return True
        return node in self._maps.now.active


def brokers_check(
    start: CoreStart, maps: ClusterMapCache | None, now_ms: Callable[[], float]
) -> Check:
    """Return a check that holds clients of a new cluster back until the cluster map has the
    brokers of all nodes: Metadata would name one broker alone. `now_ms`: of the wall clock."""
    identity = start.identity
    nodes = (
        (*identity.nodes, *identity.readers)
        if maps is not None and KAFKA in start.listeners
        else ()
    )
    is_done = not nodes

    def check() -> str | None:
        nonlocal is_done
        if is_done or maps is None:
            return None
        known = maps.now.nodes
        unknown = [node for node in nodes if node not in known or not known[node].kafka]
        is_new = 0 <= now_ms() - identity.created_ms < BROKERS_SECONDS * 1000
        is_done = not (unknown and is_new)
        if is_done:
            return None
        listed = ", ".join(map(str, unknown))
        return f"a new cluster: the Kafka brokers of these nodes are not known yet: {listed}"

    return check


def kafka_listeners(
    start: CoreStart,
    engine: CoreRuntime,
    maps: ClusterMapCache | None,
    keeper: Keeper,
    status: StatusSource,
    *,
    clients: ClientInstances,
    connections_max: int,
) -> list[Listener]:
    """Return the Kafka listener of this core, or none where it is off. It has the access control
    and TLS of the base port."""
    if KAFKA not in start.listeners:
        return []
    access = keeper.known if start.config.kafka_needs_token else None
    protection = KafkaProtection(
        access=access,
        tls=keeper.tls_context,
        cores=start.cores,
        user_admin=None
        if access is None
        else UserAdmin(lambda: keeper.tokens, access, keeper.audit.record),
    )
    brokers = NodeBrokers(start, engine.service.directory, maps, engine.service.refresh_leaders)
    front = KafkaFront(
        engine.service,
        brokers,
        engine.group_coordinator,
        engine.kafka_transactions,
        new_id=lambda: secrets.token_bytes(16),
        defaults=TopicDefaults(
            start.kafka_auto_create,
            start.kafka_partitions,
            node_profiles(start.config),
            start.config.kafka.offsets_retention,
        ),
        connections_max=connections_max,
        protection=protection,
        quorum=MetaQuorum(status, brokers.broker_of),
    )
    front.context.telemetry.clients = clients
    measured = (
        metric_sources.counted(front.context.counters, metric_sources.KAFKA),
        metric_sources.counted(front.context.fetch_sessions, metric_sources.KAFKA_FETCH_SESSIONS),
        metric_sources.of_kafka_clients(clients, monotonic),
    )
    own = start.kafka_direct[start.core : start.core + 1]
    traffic = (front.context.clients,)
    return [Listener(KAFKA, front, measured, own, (_appended(front),), traffic, _times(front))]


def _times(front: KafkaFront) -> tuple[Timed, ...]:
    counters = front.context.counters
    return (
        Timed("polynya_kafka_produce_seconds", counters.produce_seconds),
        Timed("polynya_kafka_fetch_seconds", counters.fetch_seconds),
        Timed("polynya_tail_delivery_seconds", counters.woken_fetch_seconds, "kafka"),
    )


def _appended(front: KafkaFront) -> Callable[[], Counts]:
    counters = front.context.counters
    return lambda: {
        (APPEND, "kafka", "requests"): counters.batches,
        (APPEND, "kafka", "bytes"): counters.bytes_in,
    }
