"""Assembly of one core's stream engine: turn loop, machines, service, outbox sender, snapshots.
Listeners and the object tier build on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from polynya.engine.membership import ClusterSettings
from polynya.engine.repair import Repairer
from polynya.engine.replicas.lifecycle import ReplicaLifecycle
from polynya.engine.replicated import ReplicatedEngine
from polynya.engine.snapshots.catch_up import CatchUp
from polynya.engine.snapshots.snapshotter import Snapshotter
from polynya.engine.standalone import StandaloneEngine
from polynya.engine.storage import Storage
from polynya.engine.turns import WriteExecutor
from polynya.local.local import LocalGroups
from polynya.local.segments import SEGMENT_LIMITS, ClusterRotation
from polynya.routing.forwarding import Forwarding, ForwardingTransport
from polynya.routing.group_locations import CoreAddress, GroupLocations
from polynya.routing.rpc import CoreTransport
from polynya.service.consumer_groups.coordinator import ConsumerGroupCoordinator
from polynya.service.node_service import NodeService
from polynya.service.outbox_sender import OutboxSender
from polynya.service.retention_job import RetentionJob
from polynya.service.stream_compaction import CompactionFinder
from polynya.service.stream_segments import SegmentFinder
from polynya.service.tier_view import CoreGroups
from polynya.service.transactions.appends import AppendsAcrossGroups
from polynya.service.transactions.coordinator import TransactionService
from polynya.service.transactions.jobs import TransactionJobs
from polynya.service.transactions.kafka import KafkaTransactions
from polynya.stream.parts import SegmentLimits

SNAPSHOT_BYTES = 64 << 20  # journal bytes between two rounds of snapshots


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of one core."""

    core: int
    cores: int
    groups: int
    history: int
    hot_bytes_max: int  # per group
    snapshot_bytes: int = SNAPSHOT_BYTES
    segment_limits: SegmentLimits = SEGMENT_LIMITS


class NodeTransport(CoreTransport, ForwardingTransport, Protocol):
    """Messages to the other cores of the node, and in a cluster to other nodes; see
    `polynya.transport`."""


class CoreRuntime:
    """The stream engine of one core. Create it on a running loop. `now_ms` returns log time;
    `fatal` is called when the journal fails."""

    def __init__(  # noqa: PLR0913
        self,
        storage: Storage,
        shape: Shape,
        *,
        now_ms: Callable[[], int],
        transport: NodeTransport | None,
        fatal: Callable[[BaseException], None],
        cluster: ClusterSettings | None = None,
        locations: GroupLocations | None = None,
        writer: WriteExecutor | None = None,
    ) -> None:
        """Assemble the core. `cluster`: the groups are replicated, `storage` was opened for this
        member, and `locations` has the nodes of each group."""
        self.storage = storage
        self.replicated: ReplicatedEngine | None = None
        self.exchange: CatchUp | None = None
        self.replica_lifecycle: ReplicaLifecycle | None = None
        if cluster is None:
            self.core: StandaloneEngine | ReplicatedEngine = StandaloneEngine(
                storage.core_replicas, storage.journal, fatal=fatal
            )
        else:
            self.core = replicated = ReplicatedEngine(cluster, storage, fatal=fatal, writer=writer)
            self.replicated = replicated
            now_ms = _not_before(replicated, now_ms, cluster.reached)
        machines = {number: group.machine for number, group in storage.core_replicas.groups.items()}
        self.local = LocalGroups(
            machines,
            self.core,
            now_ms,
            groups=shape.groups,
            hot_bytes_max=shape.hot_bytes_max,
            history=shape.history,
            segment_limits=shape.segment_limits,
        )
        router: Forwarding | None = None
        if self.replicated is not None:
            assert locations is not None and transport is not None
            address = CoreAddress(locations.node, shape.core, shape.cores, shape.groups)
            replicas = self.replicated.replicas
            router = Forwarding(address, replicas, transport, self.local, locations)
        self.service = NodeService(
            self.local,
            groups=shape.groups,
            core=shape.core,
            cores=shape.cores,
            transport=transport,
            router=router,
        )
        self.outbox_sender = OutboxSender(self.service, self._term)
        self.retainer = RetentionJob(self.service)
        self.snapshotter = Snapshotter(
            self.core,
            storage.snapshots,
            every_bytes=shape.snapshot_bytes,
            chains=storage.chains,
            faulted=self.local.faulted,
        )
        self.segments = SegmentFinder(self.service)
        self.compaction = CompactionFinder(self.service)
        self.repairer = Repairer(storage.journal, storage.core_replicas.groups)
        self.group_coordinator = ConsumerGroupCoordinator(self.service, self._term)
        self.transactions = TransactionService(self.service, self.outbox_sender.markers, locations)
        self.transaction_jobs = TransactionJobs(self.service)
        of_transactions = (self.transactions, self.transaction_jobs)
        self.kafka_transactions = KafkaTransactions.of(self.service, *of_transactions)
        self.appends_across = AppendsAcrossGroups(self.service, self.transactions, locations)
        self.groups = CoreGroups(
            self._term,
            self.service,
            self.snapshotter,
            self.repairer,
            is_replicated=cluster is not None,
        )
        if self.replicated is not None:
            self._join(self.replicated)
        self.core.on_applied, self.core.watched = self.local.applied, self.local.feeds.sinks
        self.after_turn = self.core.after_turn
        self.after_turn += [self.local.memory.measure, self.outbox_sender.pump]

    def indexes(self) -> dict[int, int]:
        """Return the applied index of each group."""
        return {
            number: group.applied_index
            for number, group in self.storage.core_replicas.groups.items()
        }

    async def stop(self) -> None:
        """Stop the background work. Call this before `close`."""
        self.local.rehydration.close()
        if self.exchange is not None:
            await self.exchange.close()

    def close(self) -> None:
        """Close the engine and the journal. Call this after the last proposal; nothing acknowledged
        depends on it."""
        self.core.close()
        self.storage.journal.close()

    def _join(self, core: ReplicatedEngine) -> None:
        """Connect the parts that only a cluster has. Work that must happen once per cluster runs on
        the leader."""
        self.local.join(core.reads, core.led)
        self.local.segments.join(ClusterRotation(core))
        core.leadership.hold(self.local.segments.holds)
        self.local.lifetimes.propose = self.service.proposals.propose_to
        self.exchange = CatchUp(core, self.storage.snapshots, self.snapshotter, self.local.put)
        self.replica_lifecycle = ReplicaLifecycle(core, self.storage.snapshots, self.snapshotter)
        core.on_snapshot_effects = self.exchange.carry_out
        core.replicas.on_made.append(
            lambda group: self.local.put(group, core.core_replicas.groups[group].machine)
        )
        coordinator = self.group_coordinator
        leadership_changed = [
            coordinator.leadership_changed,
            self.outbox_sender.leadership_changed,
            self.kafka_transactions.connections.leadership_changed,
        ]
        core.on_leadership += leadership_changed
        core.replicas.on_dropped += [
            self.local.remove,
            self.exchange.forget,
            *leadership_changed,
        ]

    def _term(self, group: int) -> int:
        return (
            self.storage.core_replicas.groups[group].term
            if self.replicated is None
            else self.replicated.replicas.term(group)
        )


def _not_before(
    core: ReplicatedEngine, now_ms: Callable[[], int], reached: Callable[[int], None]
) -> Callable[[], int]:
    """Return a clock that never runs behind the log time of earlier leaders. It does not pause
    until the wall clock catches up. Another node's clock may have been hours ahead; leases, ages
    and TTLs would stall for as long."""

    def now() -> int:
        log_ms, floor_ms = now_ms(), core.floor_ms
        if log_ms >= floor_ms:
            return log_ms
        reached(floor_ms)
        return floor_ms

    return now
