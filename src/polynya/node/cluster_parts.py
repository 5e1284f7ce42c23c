"""The parts of one core that only a cluster has, and their stand-in on a standalone node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from polynya.admin.access_keeper import Keeper
from polynya.admin.health import Health
from polynya.admin.listeners import Listeners
from polynya.cluster.controller import Controller
from polynya.cluster.feature_level import LOOK_SECONDS, FeatureLevels
from polynya.cluster.join import ClusterMember
from polynya.cluster.map_cache import ClusterMapCache
from polynya.cluster.operations import ClusterOperations, NoCluster
from polynya.cluster.placement import PlacementReconciler
from polynya.cluster.reconfiguration import Reconfiguration
from polynya.cluster.removal import Removal
from polynya.cluster.sole_status import SoleStatus
from polynya.cluster.stale_copy import StaleCopyGuard
from polynya.cluster.status import ClusterView, MemberReport
from polynya.cluster.zone_traffic import ZoneTraffic
from polynya.config.core_start import CoreStart
from polynya.cost import UsageHistory
from polynya.engine.replicas.lag import ReplicaLag
from polynya.engine.replicas.lifecycle import ReplicaLifecycle
from polynya.engine.replicated import ReplicatedEngine
from polynya.front.http.api.cluster import ClusterActs
from polynya.jobs import repeat
from polynya.node.periodic_work import SWEEP_SECONDS
from polynya.observability.metrics import Samples
from polynya.replica.planner import moving
from polynya.service.assembly import CoreRuntime
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.tiering.store_health import StoreAccess
from polynya.tiering.store_leadership import StoreLeadership
from polynya.transport import Transport, node_of

MAP_SECONDS = 0.5
ASK_MAP_SECONDS = 2.0  # between requests to another known node


class Standalone:
    """The cluster parts of a standalone node: none."""

    maps = None
    others_lead = False

    def __init__(self, start: CoreStart, engine: CoreRuntime, transport: Transport | None) -> None:
        self.view = ClusterView(start, transport, MemberReport(), None)
        self.group_status = SoleStatus(
            engine.service.rpc, engine.storage.core_replicas.groups, start.identity.node
        )
        self.operations: ClusterActs = NoCluster(self.view)

    def urls(self) -> dict[int, str]:
        """Return no other nodes."""
        return {}

    def share(self, keeper: Keeper) -> None:
        """Leave the tokens of the node alone."""

    def follow_store(self, access: StoreAccess | None) -> None:
        """Have no leadership to move."""

    def start(self) -> None:
        """Have nothing to forward."""

    def report(self, health: Health) -> None:
        """Have nothing to report."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return no tasks."""
        return []

    def look_at_memory(self) -> None:
        """Wait for no node."""

    def follow_traffic(self, listeners: Listeners, history: UsageHistory) -> None:
        """Have no zones."""

    def reload(self) -> None:
        """Have no node certificate."""

    async def hand_over(self) -> None:
        """Have no leadership to transfer."""

    async def keep(self) -> None:
        """Have no reported positions to write."""

    def close(self) -> None:
        """Have nothing to close."""


class ClusterParts:
    """The cluster parts of one core: it follows the map and serves cluster operations. The
    controller on core 0 acts where the meta group is led."""

    others_lead = True

    def __init__(
        self,
        start: CoreStart,
        engine: CoreRuntime,
        replicated: ReplicatedEngine,
        transport: Transport,
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._start, self._engine = start, engine
        self.maps = maps = ClusterMapCache(
            start.identity, start.config.cluster, transport, core=start.core
        )
        engine.after_turn.append(self._look_at_map)
        self._look_at_map()
        self._member = member = ClusterMember(start, transport, engine)
        self._stale_copy_guard = StaleCopyGuard(
            start, member.links, engine.storage.journal, end=fatal
        )
        self.group_status = reconfiguration = Reconfiguration(engine.service.rpc, replicated)
        self._reconciler = self._reconcile(replicated, reconfiguration)
        self._levels: FeatureLevels = member.levels(
            lambda: maps.now.members if maps.now.epoch else ()
        )
        self._reader_lag: ReplicaLag = member.reader_lag(lambda: maps.now.readers)
        self.view = ClusterView(start, transport, self._member_report(), maps)
        member.meet(maps.now)
        maps.on_map += [member.meet, self._reconciler.adopt]
        member.on_removed = Removal(start, maps).on_removed
        self.operations: ClusterActs = ClusterOperations(
            self.view, maps, reconfiguration, engine.service, start.identity.cluster_id
        )
        self._controllers = self._control(replicated, reconfiguration)
        self._traffic = self._zone_traffic(replicated)
        self._store_leaderships: list[StoreLeadership] = []

    def urls(self) -> dict[int, str]:
        """Return the client URL of each node."""
        return self._member.urls

    def share(self, keeper: Keeper) -> None:
        """Switch to the tokens of the cluster."""
        keeper.join(self._engine.service.meta_group, self._engine.local.machines)

    def follow_store(self, access: StoreAccess | None) -> None:
        """Transfer leaderships while this node cannot use its object store, if it has one."""
        if access is not None:
            self._store_leaderships.append(self._member.store_leads(access))

    def start(self) -> None:
        """Begin to forward, once the transport listens."""
        self._member.forwarding.start()

    def report(self, health: Health) -> None:
        """Add the health checks and metrics."""
        member = self._member
        health.warn("replicas", self._lost_here)
        health.warn("certificate", member.certificate_trouble)
        for name, check in member.checks():
            health.add(name, check)
        for samples in (
            member.samples,
            self._placed_samples,
            self._reader_lag.samples,
            self._traffic.samples,
        ):
            health.registry.add(samples)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background tasks; none of them ends."""
        return [
            *(work for each in self._store_leaderships for work in (each.run(), each.answer())),
            repeat(self._member.stranded.look, SWEEP_SECONDS, at_once=False),
            repeat(self._follow_map, MAP_SECONDS),
            repeat(self.maps.ask_another, ASK_MAP_SECONDS, at_once=False),
            repeat(self._raise_levels, LOOK_SECONDS),
            self._stale_copy_guard.run(),
            self._reconciler.run(),
            *(controller.run() for controller in self._controllers),
        ]

    def look_at_memory(self) -> None:
        """Log which nodes a node without its disk waits for. Called every second."""
        self._member.look_at_memory()

    def follow_traffic(self, listeners: Listeners, history: UsageHistory) -> None:
        """Count the bytes between zones, also those of clients."""
        self._traffic.clients += listeners.clients
        history.add(self._traffic.counts)

    def reload(self) -> None:
        """Load the node certificate again."""
        self._member.reload()

    async def hand_over(self) -> None:
        """Transfer this core's leaderships before a stop."""
        await self._member.hand_over()

    async def keep(self) -> None:
        """Write the journal positions that peers reported."""
        await self._stale_copy_guard.keep()

    def close(self) -> None:
        """Stop to forward."""
        self._member.forwarding.close()

    # --- construction -----------------------------------------------------------------------------

    def _reconcile(
        self, replicated: ReplicatedEngine, reconfiguration: Reconfiguration
    ) -> PlacementReconciler:
        start, lifecycle = self._start, self._engine.replica_lifecycle
        assert isinstance(lifecycle, ReplicaLifecycle)
        groups = range(start.core, start.groups + 1, start.cores)
        reconciler = PlacementReconciler(
            replicated,
            lifecycle,
            reconfiguration,
            self._member.directory.locations,
            groups,
        )
        reconciler.adopt(self.maps.now)
        return reconciler

    def _zone_traffic(self, replicated: ReplicatedEngine) -> ZoneTraffic:
        """Return the counters of bytes between zones: of Raft messages, and of calls."""
        service, forwarding = self._engine.service, self._member.forwarding
        return ZoneTraffic(
            self._start.identity.node,
            self.maps,
            self._member.links.traffic.sent,
            (
                lambda: replicated.payload,
                lambda: _by_node(service.rpc.payload),
                lambda: _by_node(forwarding.payload),
            ),
        )

    def _member_report(self) -> MemberReport:
        return MemberReport(
            self._member.replicas,
            lost=lambda: sorted(self._reconciler.missing),
            works_at=self._levels.lowest,
            lags=self._reader_lag.lags,
            certificate=self._member.certificate_trouble,
        )

    def _control(
        self, replicated: ReplicatedEngine, reconfiguration: Reconfiguration
    ) -> list[Controller]:
        """Return the controller on core 0, and none elsewhere."""
        if self._start.core:
            return []
        controller = Controller(
            self._start,
            self.maps,
            self.view,
            reconfiguration,
            self._engine.service,
            lambda: META_GROUP in replicated.led,
        )
        replicated.on_leadership.append(controller.led)
        return [controller]

    # --- reports ----------------------------------------------------------------------------------

    def _placed_samples(self) -> Samples:
        return {
            "polynya_map_epoch": self.maps.now.epoch,
            "polynya_groups_moving": len(moving(self.maps.now)),
            "polynya_placement_steps_total": sum(each.steps for each in self._controllers),
            "polynya_replicas_lost": len(self._reconciler.missing),
        }

    def _lost_here(self) -> str | None:
        lost = len(self._reconciler.missing)
        return (
            f"{lost} groups need replicas that this node has lost: run polynya cluster "
            f"replace-disk {self._start.identity.node}"
            if lost
            else None
        )

    # --- periodic work ----------------------------------------------------------------------------

    def _look_at_map(self) -> None:
        """Read the cluster map from the meta group, on core 0."""
        meta = self._engine.storage.core_replicas.groups.get(META_GROUP)
        if meta is not None:
            self.maps.take(meta.machine.meta.map)

    async def _raise_levels(self) -> None:
        self._levels.look()
        self._reader_lag.look()

    async def _follow_map(self) -> None:
        """Update the map where a turn does not: after a snapshot install, or after core 0 sent it
        before this core listened."""
        self._look_at_map()
        await self.maps.ask()
        await self._member.part(self.maps.now)


def _by_node(by_core: Mapping[int, int]) -> Counter[int]:
    """Add up counts of cores by their node; 0 is this one."""
    found = Counter[int]()
    for core, count in by_core.items():
        found[node_of(core)] += count
    return found


def cluster_parts(
    start: CoreStart,
    engine: CoreRuntime,
    transport: Transport | None,
    fatal: Callable[[BaseException], None],
) -> Standalone | ClusterParts:
    """Return the cluster parts of this core."""
    if engine.replicated is None or transport is None:
        return Standalone(start, engine, transport)
    return ClusterParts(start, engine, engine.replicated, transport, fatal)
