"""The parts of a core's Kafka front that handlers share: the context of each request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol

import msgspec

from polynya.base.histogram import Histogram
from polynya.base.limits import OFFSETS_RETENTION_SECONDS
from polynya.base.spans import Tracer
from polynya.front.common.client_traffic import ClientTraffic
from polynya.front.kafka.admin.quorum_members import Quorum, unknown_quorum
from polynya.front.kafka.auth.user_admin import UserAdmin
from polynya.front.kafka.brokers import Brokers
from polynya.front.kafka.configs import NodeProfiles
from polynya.front.kafka.fetch_sessions.table import FetchSessions
from polynya.front.kafka.tails import Tails
from polynya.front.kafka.telemetry.parts import Telemetry
from polynya.front.kafka.topic_frames import TopicFrames
from polynya.front.kafka.topics.catalog import TopicCatalog
from polynya.front.kafka.topics.producers import ProducerIdSource
from polynya.front.kafka.topics.steps import TopicService
from polynya.front.kafka.transactions.known import TransactionNumbers
from polynya.service.transactions.kafka import KafkaTransactions
from polynya.stream.features.consumer_groups import calls
from polynya.stream.features.consumer_groups.calls import Answer, Description


class TopicDefaults(msgspec.Struct, frozen=True, gc=False):
    """The settings for topics whose clients leave them open."""

    auto_create: bool = True  # a topic that a client names first
    partitions: int = 1
    profiles: NodeProfiles = NodeProfiles()
    offsets_retention_seconds: float = OFFSETS_RETENTION_SECONDS


class GroupService(Protocol):
    """The coordinators of all cores, as one core reaches them."""

    def group_of(self, id_: str) -> int:
        """Return the Raft group of a consumer group."""
        ...

    async def call(self, call: calls.Call, *, here: bool = False) -> Answer:
        """Return the coordinator's answer. `here`: of one on this node alone. Raises PolynyaError."""
        ...

    async def list_groups(self, raft_groups: Iterable[int]) -> list[Description]:
        """Return the consumer groups of some Raft groups."""
        ...


class KafkaCounters:
    """Counters of one core."""

    def __init__(self) -> None:
        self.requests = self.malformed = 0
        self.batches = self.bytes_in = 0  # proposed, and their bytes as they came
        self.connections = self.connections_opened = self.connections_refused = 0
        self.unauthenticated = self.connections_dropped = 0  # before authentication, for newer ones
        self.produce_seconds = Histogram()
        self.fetch_seconds = Histogram()  # that did not wait for records
        self.woken_fetch_seconds = Histogram()  # from the wake by records


class ThreadTurns:
    """Locks of work in threads."""

    def __init__(self) -> None:
        self.checking = asyncio.Lock()  # one request's batches in the thread that checks them
        self.coding = asyncio.Lock()  # one large message in the thread that codes it


class Context:
    """The node as the handlers of one core use it."""

    def __init__(
        self,
        service: TopicService,
        brokers: Brokers,
        groups: GroupService,
        transactions: KafkaTransactions,
        *,
        new_id: Callable[[], bytes],
        defaults: TopicDefaults,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """`spawn` runs work that ends with the front."""
        self.service = service
        self.brokers = brokers
        self.groups = groups
        self.transactions = transactions.service
        self.transaction_parts = transactions
        self.numbers = TransactionNumbers()
        self.defaults = defaults
        self.spawn = spawn
        self.user_admin: UserAdmin | None = None  # None: no access control
        self.quorum: Callable[[], Awaitable[Quorum]] = unknown_quorum
        self.topics = TopicCatalog(service, new_id)
        self.topic_frames = TopicFrames(brokers, self.topics, service.groups)
        self.producer_ids = ProducerIdSource(service)
        self.tails = Tails(service)
        self.fetch_sessions = FetchSessions()
        self.turns = ThreadTurns()
        self.counters = KafkaCounters()
        self.telemetry = Telemetry(service.meta_group)
        self.tracer: Tracer | None = None  # None: no request is traced
        self.clients = ClientTraffic()
