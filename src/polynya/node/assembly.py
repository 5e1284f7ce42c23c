"""The parts of one core, in start order; they stop in reverse order."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from polynya.admin import metric_sources
from polynya.admin.access_keeper import Keeper
from polynya.admin.backup_routes import Backups
from polynya.admin.disk_health import DataDisk
from polynya.admin.health import Health
from polynya.admin.listeners import Backends, Listeners
from polynya.admin.store_checks import StoreChecks
from polynya.admin.table_watcher import TableWatcher
from polynya.backup.copies import CompleteMark
from polynya.base.errors import ConfigError, CorruptData, PolynyaError
from polynya.base.limits import HOT_BYTES_PER_CORE
from polynya.cluster.controller import Controller
from polynya.cluster.feature_level import LOOK_SECONDS, FeatureLevels
from polynya.cluster.join import ClusterMember, cluster_of, transport_of
from polynya.cluster.map_cache import ClusterMapCache, NodeHosts
from polynya.cluster.operations import ClusterOperations, NoCluster
from polynya.cluster.placement import PlacementReconciler
from polynya.cluster.reconfiguration import Reconfiguration
from polynya.cluster.removal import Removal
from polynya.cluster.stale_copy import StaleCopyGuard
from polynya.cluster.status import ClusterView
from polynya.config.core_start import EXIT_CORRUPT, EXIT_ROOT, EXIT_STORAGE, CoreStart
from polynya.engine.log_clock import LogClock, once_per_pass
from polynya.engine.replica_lag import ReplicaLag
from polynya.engine.storage import Storage
from polynya.front.http.api.cluster import ClusterActs
from polynya.front.http.api.groups import GROUPS, GroupRoutes
from polynya.front.http.api.subscriptions import PREFIXES, SubscriptionRoutes
from polynya.front.kafka.server import KafkaFront
from polynya.node.kafka import STOP_SECONDS, kafka_front, open_kafka
from polynya.node.shutdown_barrier import ShutdownBarrier
from polynya.observability.metrics import Samples
from polynya.replica.planner import moving
from polynya.service.assembly import CoreRuntime, Shape
from polynya.service.consumer_groups.admin import GroupAdmin
from polynya.service.consumer_groups.lag import GroupLags
from polynya.service.routing.service import NodeService
from polynya.service.tables import Tables
from polynya.stream.placement import META_GROUP
from polynya.subscriptions import Subscriptions
from polynya.tiering.state_copies import StateCopyWorker
from polynya.tiering.tier import Tier, open_tier
from polynya.transport import report_lost
from polynya.wal import JournalFailed

EXIT_FAULT = 1  # a bug: a restart may help
SWEEP_SECONDS = 1.0
LOOK_AT_JOURNAL_SECONDS = 0.5  # data acknowledged this long after its file was deleted is lost
LOOK_AT_SNAPSHOTS_SECONDS = 10.0
SETTLE_SECONDS = 5.0
SNAPSHOT_SECONDS = 0.2
MAP_SECONDS = 0.5
ASK_MAP_SECONDS = 2.0  # between requests to another known node
MEET_SECONDS = 10.0  # for a core that does not start
log = logging.getLogger("polynya.core")


class Assembly:
    """All parts of one core process. `start` returns when the core serves."""

    def __init__(self, start: CoreStart, storage: Storage) -> None:
        self._start = start
        cores = start.cores
        shape = Shape(
            core=start.core,
            cores=cores,
            groups=start.groups,
            history=start.birth.history,
            hot_bytes_max=start.config.cold.max_hot_bytes_per_group
            or HOT_BYTES_PER_CORE,  # 0: no separate limit
        )
        self._transport = transport_of(start)
        self._shutdown_barrier = (
            ShutdownBarrier(self._transport) if self._transport is not None else None
        )
        clock = LogClock(storage.log_ms)
        now_ms = once_per_pass(clock.now_ms, asyncio.get_running_loop())
        self._engine = CoreRuntime(
            storage,
            shape,
            now_ms=now_ms,
            transport=self._transport,
            fatal=fail_stop,
            cluster=cluster_of(start, self._transport, clock),
        )
        self._maps: ClusterMapCache | None = None
        if start.config.cluster.is_on:
            self._maps = ClusterMapCache(
                start.birth, start.config.cluster, self._transport, core=start.core
            )
            self._engine.after_turn.append(self._look_at_map)
            self._look_at_map()
        self._member: ClusterMember | None = None
        if self._engine.replicated is not None and self._transport is not None:
            self._member = ClusterMember(start, self._transport, self._engine)
        # else clients could have webhooks call this machine's services
        trusted = start.config.is_local and not start.config.needs_token
        self._subscriptions = Subscriptions(self.service, allow_loopback=trusted)
        self._engine.after_turn.append(self._subscriptions.pump)
        self._health = Health(start, self._transport)
        self._health.add("reached", self._unreached)
        self._view = ClusterView(
            start,
            self._transport,
            self._member.replicas if self._member is not None else list,
            self._maps,
        )
        self._operations: ClusterActs = NoCluster(self._view)
        self._reconciler: PlacementReconciler | None = None
        self._levels: FeatureLevels | None = None
        self._reader_lag: ReplicaLag | None = None
        self._controller: Controller | None = None
        self._stale_copy_guard: StaleCopyGuard | None = None
        if self._member is not None and self._maps is not None and self._transport is not None:
            self._stale_copy_guard = StaleCopyGuard(
                start, self._transport, storage.journal, end=fail_stop
            )
            self._take_part(self._member, self._maps)
        self._keeper = Keeper(start, self._transport)
        if self._member is not None:
            self._keeper.join(self.service)
        self._tier: Tier | None = None
        self._listeners: Listeners | None = None
        self._kafka: KafkaFront | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def service(self) -> NodeService:
        return self._engine.service

    async def start(self) -> None:
        self._tier = await open_tier(self._start, self._engine.groups, self._engine.indexes)
        if self._tier is not None:
            self._engine.local.cold = self._tier.reader
            self._engine.local.rehydration.states = self._tier.states
            self.service.flush_here = self._tier.flush_now
            access, flusher = self._tier.access, self._tier.flusher
            self._engine.local.memory.store_is_full = lambda: access.store.writes.full
            self._health.warn("object store", lambda: access.trouble() or flusher.trouble())
            self._view.store = lambda: access.trouble() or ""
            store_leads = None if self._member is None else self._member.store_leads(access)
        disk = DataDisk(
            Path(self._start.config.data),
            self._engine.core.counters.pace,
            others_lead=self._member is not None,
        )
        self._health.warn("disk", disk.check)
        self._health.warn("streams", self._engine.local.faulted.trouble)
        self._health.registry.add(disk.samples)
        self._view.disk = disk.trouble
        checks = StoreChecks(self.service, self._tier)
        backups = Backups(self._start, self._engine, self._tier)
        if (
            self._transport is not None
        ):  # other cores send requests from here on: everything they need must exist
            await self._transport.start()
        if self._member is not None:
            self._member.forwarding.start()
        if self._tier is not None:
            for task in self._tier.tasks() + (
                [] if store_leads is None else [store_leads.run(), store_leads.answer()]
            ):
                self._spawn(task)
            self._spawn(self._tier.once_claimed(self._state_copy_worker(self._tier).run))
        await self._keeper.start()
        self._spawn(self._keeper.run())
        self._register_samples()
        self._spawn(self._sweep())
        self._spawn(self._settle())
        self._spawn(self._look_at_journal())
        self._spawn(self._look_at_snapshots())
        if self._member is not None:
            self._spawn(self._look_after_readers(self._member))
        if self._maps is not None:
            self._spawn(self._follow_map(self._maps))
            self._spawn(self._ask_others(self._maps))
        if self._levels is not None:
            self._spawn(self._raise_levels(self._levels))
        if self._stale_copy_guard is not None:
            self._spawn(self._stale_copy_guard.run())
        for each in (self._reconciler, self._controller):
            if each is not None:
                self._spawn(each.run())
        self._spawn(self._snapshot())
        self._spawn(self._engine.group_coordinator.run())
        self._spawn(self._retain())
        mounts = dict.fromkeys(PREFIXES, SubscriptionRoutes(self._subscriptions).handle)
        groups = GroupAdmin(self.service, self._engine.group_coordinator)
        mounts[GROUPS] = GroupRoutes(groups).handle
        retention = self._start.config.kafka.offsets_retention
        self._engine.group_coordinator.retention_ms = round(retention * 1000)
        lags = GroupLags(self.service, self._engine.group_coordinator)
        self._health.registry.add(metric_sources.of_group_lags(lags))
        self._spawn(lags.run())
        read_object = None if self._tier is None else self._tier.read_object
        tables = Tables(self.service, self.service.flush)
        hosts = NodeHosts(self._start.config.cluster, self._maps)
        behind = Backends(tables, mounts, read_object, checks, backups, self._operations, hosts)
        self._listeners = Listeners(self._start, self.service, behind, self._health, self._keeper)
        watcher = TableWatcher(self._listeners.tables, lambda: 0 in self._engine.local.led)
        self._health.registry.add(watcher.samples)
        await self._listeners.open()
        if self._start.kafka_port:
            self._kafka = kafka_front(
                self._start, self.service, self._engine.group_coordinator, self._maps
            )
            self._health.registry.add(
                metric_sources.counted(self._kafka.counters, metric_sources.KAFKA)
            )
            await open_kafka(self._kafka, self._start)
        self._spawn(watcher.run())
        await self._subscriptions.start(_ended)

    async def meet(self) -> None:
        """Wait until this core and all others are connected, or MEET_SECONDS have passed.

        All cores are connected to the last core of a node before it reports ready. So the node's
        first requests find every core."""
        if self._transport is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(MEET_SECONDS):
                    await self._transport.wait_met()

    async def stop(self) -> None:
        """Answer requests in flight, then close the files. Acknowledged data does not depend on
        it."""
        if self._member is not None:
            await self._member.hand_over()
        self._engine.group_coordinator.close()
        if self._kafka is not None:
            await self._kafka.stop(STOP_SECONDS)
        if self._listeners is not None:
            await self._listeners.close()
        if self._shutdown_barrier is not None:
            await self._shutdown_barrier.say()
        await self._subscriptions.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._stale_copy_guard is not None:
            await self._stale_copy_guard.keep()
        if self._member is not None:
            self._member.forwarding.close()
        await self._engine.core.drain()
        if self._tier is not None:
            await self._tier.close()
        if self._transport is not None:
            await self._transport.close()
        await self._engine.stop()
        self._engine.close()
        self._keeper.close()

    def _state_copy_worker(self, tier: Tier) -> StateCopyWorker:
        birth, grace_ms = self._start.birth, self._start.config.cold.delete_grace_ms
        whole = CompleteMark(birth.cluster_id, birth.history, birth.groups)
        copier = StateCopyWorker(
            self._engine, tier.store, whole, tier.claim.owned, soon_seconds=grace_ms / 1000
        )
        self._health.registry.add(metric_sources.counted(copier.counters, metric_sources.COPIER))
        return copier

    def _unreached(self) -> str | None:
        """Return a message if a core has not connected. Running cores report their own health; here
        they only need to connect."""
        strangers = self._transport.missing_cores() if self._transport is not None else []
        return (
            f"core {', '.join(map(str, strangers))} has not connected to this core"
            if strangers
            else None
        )

    def reload(self) -> None:
        """Reload what may change at run time: certificates, tokens, an issuer's keys."""
        self._keeper.reload()
        if self._member is not None:
            self._member.reload()

    def _register_samples(self) -> None:
        registry = self._health.registry
        registry.add(metric_sources.of_core(self._engine.core))
        registry.add(metric_sources.of_groups(self._engine.local))
        registry.add(lambda: {"polynya_batches_repaired_total": self._engine.repairer.repaired})
        registry.add(
            metric_sources.counted(self._subscriptions.counters, metric_sources.SUBSCRIPTIONS)
        )
        registry.add(metric_sources.counted(self._engine.local.trims, metric_sources.TRIMS))
        registry.add(
            metric_sources.counted(self._engine.local.rehydration.counters, metric_sources.RECALLS)
        )
        registry.add(
            metric_sources.counted(self._engine.retainer.counters, metric_sources.RETENTION)
        )
        registry.add(self._keeper.samples)
        if self._member is not None:
            registry.add(self._member.samples)
            registry.add(self._placed_samples)
            if self._reader_lag is not None:
                registry.add(self._reader_lag.samples)
            for name, check in self._member.checks():
                self._health.add(name, check)
        registry.add(metric_sources.counted(self._engine.snapshotter, metric_sources.SNAPSHOTS))
        if self._tier is not None:
            registry.add(
                metric_sources.counted(self._tier.flusher.counters, metric_sources.FLUSHER)
            )
            registry.add(metric_sources.counted(self._tier.merger.counters, metric_sources.MERGER))
            registry.add(
                metric_sources.counted(self._tier.evictor.counters, metric_sources.EVICTOR)
            )
            registry.add(metric_sources.counted(self._tier.states.counters, metric_sources.STATES))
            registry.add(
                metric_sources.counted(self._tier.collector.counters, metric_sources.COLLECTOR)
            )
            registry.add(metric_sources.counted(self._tier.reader.counters, metric_sources.CACHE))
            reader = self._tier.reader
            registry.add(lambda: {"polynya_cache_bytes": reader.cached_bytes})
            claim = self._tier.claim
            registry.add(lambda: {"polynya_object_store_waiting": int(claim.reason is not None)})
            registry.add(self._tier.access.samples)

    def _take_part(self, member: ClusterMember, maps: ClusterMapCache) -> None:
        """Join the cluster: follow the map and serve cluster operations. The controller on core 0
        acts where the meta group is led."""
        start, replicated = self._start, self._engine.replicated
        assert replicated is not None and self._engine.replica_lifecycle is not None
        reconfiguration = Reconfiguration(self.service, replicated)
        groups = range(start.core, start.groups + 1, start.cores)
        self._reconciler = reconciler = PlacementReconciler(
            replicated,
            self._engine.replica_lifecycle,
            reconfiguration,
            member.forwarding.group_locations,
            groups,
        )
        reconciler.adopt(maps.now)
        self._health.nodes = lambda: member.urls
        self._health.warn("replicas", self._lost_here)
        self._health.warn("certificate", member.certificate_trouble)
        self._view.certificate = member.certificate_trouble
        self._view.lost = lambda: sorted(reconciler.missing)
        self._levels = member.levels(lambda: maps.now.members if maps.now.epoch else ())
        self._view.works_at = self._levels.lowest
        self._reader_lag = member.reader_lag(lambda: maps.now.readers)
        self._view.lags = self._reader_lag.lags
        member.meet(maps.now)
        maps.on_map += [member.meet, reconciler.adopt]
        member.on_removed = Removal(start, maps).told
        self._operations = ClusterOperations(
            self._view, maps, reconfiguration, self.service, start.birth.cluster_id
        )
        if start.core == 0:
            self._controller = Controller(
                start,
                maps,
                self._view,
                reconfiguration,
                self.service,
                lambda: META_GROUP in replicated.led,
            )
            replicated.on_leadership.append(self._controller.led)

    def _placed_samples(self) -> Samples:
        assert self._maps is not None and self._reconciler is not None
        return {
            "polynya_map_epoch": self._maps.now.epoch,
            "polynya_groups_moving": len(moving(self._maps.now)),
            "polynya_placement_steps_total": 0
            if self._controller is None
            else self._controller.steps,
            "polynya_replicas_lost": len(self._reconciler.missing),
        }

    def _lost_here(self) -> str | None:
        lost = sorted(self._reconciler.missing) if self._reconciler is not None else []
        node = self._start.birth.node
        return (
            f"{len(lost)} groups need replicas that this node has lost: run polynya cluster "
            f"replace-disk {node}"
            if lost
            else None
        )

    def _look_at_map(self) -> None:
        """Read the cluster map from the meta group, on core 0."""
        meta = self._engine.storage.shard.groups.get(META_GROUP)
        if self._maps is not None and meta is not None:
            self._maps.take(meta.machine.map)

    async def _raise_levels(self, levels: FeatureLevels) -> None:
        while True:
            levels.look()
            if self._reader_lag is not None:
                self._reader_lag.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _follow_map(self, maps: ClusterMapCache) -> None:
        """Update the map where a turn does not: after a snapshot install, or after core 0 sent it
        before this core listened."""
        while True:
            self._look_at_map()
            await maps.ask()
            if self._member is not None:
                await self._member.part(maps.now)
            await asyncio.sleep(MAP_SECONDS)

    async def _ask_others(self, maps: ClusterMapCache) -> None:
        """Request newer maps from other nodes."""
        while True:
            await asyncio.sleep(ASK_MAP_SECONDS)
            await maps.ask_another()

    async def _settle(self) -> None:
        """Complete operations across groups. It may wait for other nodes, so time-critical work has
        other tasks."""
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            await self._engine.outbox_sender.sweep()

    async def _sweep(self) -> None:
        """Run time-based work for idle streams."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._engine.local.sweep()
            if self._member is not None:
                self._member.look_at_memory()

    async def _look_at_journal(self) -> None:
        """Check that the journal files exist: a deleted open file accepts writes without an
        error."""
        while True:
            await asyncio.sleep(LOOK_AT_JOURNAL_SECONDS)
            await asyncio.to_thread(self._engine.core.journal.look)

    async def _look_at_snapshots(self) -> None:
        """Check that the snapshot files exist. The check is rare: only a start needs them, and
        there may be thousands."""
        while True:
            await asyncio.sleep(LOOK_AT_SNAPSHOTS_SECONDS)
            await self._engine.snapshotter.look()

    async def _look_after_readers(self, member: ClusterMember) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await member.stranded.look()

    async def _retain(self) -> None:
        trouble = ""  # logged once, not every second until the cluster has formed
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self._engine.retainer.run_once()
                trouble = ""
            except PolynyaError as fault:
                if str(fault) != trouble:
                    trouble = str(fault)
                    log.warning("retention failed; retrying", extra={"error": trouble})

    async def _snapshot(self) -> None:
        snapshotter = self._engine.snapshotter
        while True:
            await asyncio.sleep(SNAPSHOT_SECONDS)
            try:
                if snapshotter.due():
                    await snapshotter.run(self.service.now_ms())
            except PolynyaError as fault:
                log.warning("snapshots failed; retrying later", extra={"error": str(fault)})
            except FileNotFoundError as fault:  # files were deleted from outside
                await asyncio.to_thread(self._engine.core.journal.look)
                log.warning("snapshots failed; retrying later", extra={"error": str(fault)})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_ended)
        self._tasks.append(task)


def lost_callback(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an exception in a loop callback. After MemoryError the state is unknown, so stop,
    except for a connection: that is closed."""
    fault = context.get("exception")
    if isinstance(fault, MemoryError) and "transport" not in context:
        fail_stop(fault)
    report_lost(loop, context)


def lost_thread(ended: threading.ExceptHookArgs) -> None:
    """Stop the core: a thread that it depends on ended unexpectedly."""
    if ended.exc_type is not SystemExit:
        fail_stop(ended.exc_value or RuntimeError("a thread ended"))


def _ended(task: asyncio.Task[None]) -> None:
    """Stop the core if a background task failed, since going on would hide the fault."""
    if not task.cancelled() and task.exception() is not None:
        fail_stop(task.exception() or RuntimeError("a task ended"))


def fail_stop(error: BaseException) -> None:
    """Exit the process at once. The exit code tells the supervisor whether a restart can help."""
    log.critical(
        "this core stops after a fatal error",
        exc_info=error,
        extra={"error": str(error) or repr(error)},
    )
    ends = (
        (OSError | JournalFailed, EXIT_STORAGE),
        (CorruptData, EXIT_CORRUPT),
        (ConfigError, EXIT_ROOT),
    )
    os._exit(next((code for kinds, code in ends if isinstance(error, kinds)), EXIT_FAULT))
