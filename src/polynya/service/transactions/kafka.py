"""The parts of transactions that a core's Kafka front uses."""

from __future__ import annotations

from typing import NamedTuple

from polynya.service.node_service import NodeService
from polynya.service.transactions.connections import TransactionConnections
from polynya.service.transactions.coordinator import TransactionService
from polynya.service.transactions.jobs import TransactionJobs
from polynya.service.transactions.producers import TransactionProducers


class KafkaTransactions(NamedTuple):
    """The coordinators, the ages of connections, the producers of streams and the jobs."""

    service: TransactionService
    connections: TransactionConnections
    producers: TransactionProducers
    jobs: TransactionJobs

    @classmethod
    def of(
        cls,
        service: NodeService,
        coordinators: TransactionService,
        jobs: TransactionJobs,
    ) -> KafkaTransactions:
        """Return those of a core, beside its coordinators and their jobs."""
        return cls(coordinators, coordinators.connections, TransactionProducers(service), jobs)
