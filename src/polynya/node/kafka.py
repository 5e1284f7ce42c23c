"""The Kafka front of a core, and the nodes as its clients see them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from polynya.admin import metric_sources
from polynya.admin.access_keeper import Keeper
from polynya.admin.listeners import Listener
from polynya.cluster.map_cache import ClusterMapCache
from polynya.config.core_start import KAFKA, CoreStart
from polynya.config.model import split_listen
from polynya.front.kafka.server import Broker, KafkaFront, KafkaProtection, TopicDefaults
from polynya.service.assembly import CoreRuntime
from polynya.service.routing.service import NodeService
from polynya.stream.commands import NodeState


class NodeBrokers:
    """The nodes that serve Kafka. A node without a neighbour's address answers for it: it
    forwards."""

    def __init__(
        self, start: CoreStart, service: NodeService, maps: ClusterMapCache | None
    ) -> None:
        host, port = split_listen(start.kafka_advertised)
        self.cluster_id = start.birth.cluster_id
        self.own = start.birth.node
        self._here = Broker(self.own, host, port)
        self._service = service
        self._maps = maps
        self._epoch = -1
        self._all: tuple[Broker, ...] = (self._here,)

    def all(self) -> Sequence[Broker]:
        """Return the brokers by id."""
        if self._maps is not None and self._maps.now.epoch != self._epoch:
            self._epoch = self._maps.now.epoch
            others = [
                Broker(node.id, *split_listen(node.kafka), node.zone or None)
                for node in self._maps.now.nodes.values()
                if node.kafka and node.state != NodeState.REMOVED and node.id != self.own
            ]
            self._all = tuple(sorted([self._here, *others], key=lambda broker: broker.id))
        return self._all

    def leader_of(self, group: int) -> int:
        """Return the broker of the group's leader, or this one if that is not known."""
        leader = self._service.leader_of(group)
        return leader if any(broker.id == leader for broker in self.all()) else self.own

    def replicas_of(self, group: int) -> tuple[list[int], list[int]]:
        """Return the voters of the group, and those that this node reaches."""
        voters = self._service.voters_of(group) or {self.own: True}
        listed = sorted({*voters, self.leader_of(group)})
        return listed, [node for node in listed if voters.get(node, True)]


def kafka_listeners(
    start: CoreStart,
    engine: CoreRuntime,
    maps: ClusterMapCache | None,
    keeper: Keeper,
    *,
    connections_max: int,
) -> list[Listener]:
    """Return the Kafka listener of this core, or none where it is off. It has the access control
    and TLS of the base port."""
    if KAFKA not in start.listeners:
        return []
    protection = KafkaProtection(
        access=keeper.known if start.config.kafka_needs_token else None,
        tls=keeper.tls_context,
        cores=start.cores,
    )
    front = KafkaFront(
        engine.service,
        NodeBrokers(start, engine.service, maps),
        engine.group_coordinator,
        new_id=lambda: secrets.token_bytes(16),
        defaults=TopicDefaults(start.kafka_auto_create, start.kafka_partitions),
        connections_max=connections_max,
        protection=protection,
    )
    measured = metric_sources.counted(front.counters, metric_sources.KAFKA)
    return [Listener(KAFKA, front, (measured,))]
