"""The parts of transactions that a core's Kafka front uses."""

from __future__ import annotations

from typing import NamedTuple

from polynya.service.node_service import NodeService
from polynya.service.transactions.connections import TransactionConnections
from polynya.service.transactions.coordinator import TransactionService
from polynya.service.transactions.producers import TransactionProducers


class KafkaTransactions(NamedTuple):
    """The coordinators, the ages of connections and the producers of streams."""

    service: TransactionService
    connections: TransactionConnections
    producers: TransactionProducers

    @classmethod
    def of(
        cls, service: NodeService, coordinators: TransactionService, node: int
    ) -> KafkaTransactions:
        """Return those of a core of a node, beside its coordinators."""
        connections = TransactionConnections(service, node)
        return cls(coordinators, connections, TransactionProducers(service))
