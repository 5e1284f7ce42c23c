"""The Kafka front of a core, and the nodes as its clients see them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from polynya.cluster.map_cache import ClusterMapCache
from polynya.config.core_start import CoreStart
from polynya.config.model import split_listen
from polynya.front.kafka.server import Broker, KafkaFront, TopicDefaults
from polynya.service.routing.service import NodeService
from polynya.stream.commands import NodeState
from polynya.system.ports import shared_listener

STOP_SECONDS = 3.0


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


def kafka_front(start: CoreStart, service: NodeService, maps: ClusterMapCache | None) -> KafkaFront:
    """Return the front of this core, which does not listen yet."""
    return KafkaFront(
        service,
        NodeBrokers(start, service, maps),
        new_id=lambda: secrets.token_bytes(16),
        defaults=TopicDefaults(start.kafka_auto_create, start.kafka_partitions),
    )


async def open_kafka(front: KafkaFront, start: CoreStart) -> None:
    """Listen on the port that the supervisor holds."""
    await front.start([shared_listener(start.kafka_host, start.kafka_port)])
