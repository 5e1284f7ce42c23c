"""The parts of one core, in start order; they stop in reverse order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from polynya.admin import metric_sources
from polynya.admin.access_keeper import Keeper
from polynya.admin.backup_routes import Backups
from polynya.admin.debug_state import core_state
from polynya.admin.disk_health import DataDisk
from polynya.admin.health import KAFKA_BROKERS, Health
from polynya.admin.http_listeners import HttpListeners
from polynya.admin.listeners import Listeners, connection_shares, text_listeners
from polynya.admin.node_figures import NodeFigures
from polynya.admin.reducers.watcher import ReducerWatcher
from polynya.admin.routes import Backends, iceberg_catalog, table_routes
from polynya.admin.store_checks import StoreChecks
from polynya.admin.workers.node_table_runs import node_table_runs
from polynya.admin.workers.table_watcher import TableWatcher
from polynya.base.limits import HOT_BYTES_PER_CORE
from polynya.cluster.join import cluster_of, locations_of, transport_of
from polynya.cluster.kafka_clients import KafkaClients
from polynya.cluster.map_cache import NodeHosts
from polynya.config.core_start import CoreStart
from polynya.engine.log_clock import LogClock, wall_ms
from polynya.engine.storage import Storage
from polynya.front.http.api.iceberg_catalog import MOUNT as CATALOG
from polynya.front.http.api.kafka.clients import CLIENTS, ClientRoutes
from polynya.front.http.api.kafka.groups import GROUPS, GroupRoutes
from polynya.front.http.api.kafka.transactions import TRANSACTIONS, TransactionRoutes
from polynya.front.http.api.subscriptions import PREFIXES, SubscriptionRoutes
from polynya.front.http.api.table_runs import TableRunRoutes
from polynya.front.kafka.offsets import offset_of_time
from polynya.node.cluster_parts import cluster_parts
from polynya.node.core_links import links_of
from polynya.node.cost_parts import CostParts
from polynya.node.fail_stop import fail_stop, lost_task
from polynya.node.kafka import brokers_check, kafka_listeners
from polynya.node.otlp_export import OtlpExport
from polynya.node.periodic_work import PeriodicWork
from polynya.node.tier_parts import NoTier, TierParts, tier_parts
from polynya.node.trace_export import TraceExport
from polynya.service.assembly import CoreRuntime, Shape
from polynya.service.consumer_groups.admin import GroupAdmin
from polynya.service.consumer_groups.lag import GroupLags
from polynya.service.node_service import NodeService
from polynya.service.table_jobs import TableJobs
from polynya.service.tables import Tables
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.parts import SegmentLimits
from polynya.subscriptions import Subscriptions
from polynya.transport import Transport


class Assembly:
    """All parts of one core process. `start` returns when the core serves."""

    def __init__(self, start: CoreStart, storage: Storage) -> None:
        self._start = start
        transport = transport_of(start)
        self._links = links_of(transport)
        self._engine = runtime_of(start, storage, transport)
        self._cluster = cluster_parts(start, self._engine, transport, fail_stop)
        # else clients could have webhooks call this machine's services
        trusted = start.config.is_local and not start.config.needs_token
        self._subscriptions = Subscriptions(self.service, allow_loopback=trusted)
        self._engine.after_turn.append(self._subscriptions.pump)
        self._health = Health(start, transport, self._cluster.urls)
        self._health.add("reached", self._links.unreached)
        registry = self._health.registry
        state = partial(core_state, start.core, self._engine, registry.read)
        self._figures = NodeFigures(registry, transport, state)
        self._otlp = OtlpExport(start, self._health, os.environ)
        self._traces = TraceExport(start, self._health, os.environ)
        self._keeper = Keeper(start, transport)
        self._cluster.share(self._keeper)
        self._costs = CostParts(start, transport, self._cluster.maps)
        self._kafka_clients = KafkaClients((start.identity.node, start.core), transport)
        self._group_lags = GroupLags(self.service, self._engine.group_coordinator)
        self._table_runs = node_table_runs(start, transport, Tables(self.service), wall_ms)
        self._periodic = PeriodicWork(self._engine, self._cluster.look_at_memory)
        # `start` opens these
        self._tier: NoTier | TierParts = NoTier()
        self._listeners = Listeners((), {}, self._health.registry, self._costs.history)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def service(self) -> NodeService:
        return self._engine.service

    async def start(self) -> None:
        """Open the store, the links and the listeners. Raises ConfigError."""
        self._tier = await tier_parts(self._start, self._engine)
        self._cluster.follow_store(self._tier.access)
        behind = self._backends()
        self._report()
        await self._links.start()
        self._cluster.start()
        self._spawn(self._tier.tasks())
        await self._keeper.start()
        retention = self._start.config.kafka.offsets_retention
        self._engine.group_coordinator.retention_ms = round(retention * 1000)
        self._spawn([self._keeper.run(), self._engine.group_coordinator.run()])
        self._spawn([self._group_lags.run(), self._subscriptions.lags.run(), self._costs.run()])
        self._spawn([self._health.recent.run(wall_ms), self._table_runs.run()])
        self._spawn([*self._periodic.tasks(), *self._cluster.tasks()])
        watcher = TableWatcher(behind.tables, lambda: META_GROUP in self._engine.local.led)
        self._health.registry.add(watcher.samples)
        self.service.reducers.runs_modules = self._start.config.reduce.workers > 0
        reducers = ReducerWatcher(
            self.service.reducers, lambda: META_GROUP in self._engine.local.led
        )
        self._health.registry.add(reducers.samples)
        self._listeners = self._listeners_of(behind)
        self._cluster.follow_traffic(self._listeners, self._costs.history)
        self._listeners.trace(self._traces.tracer)
        self.service.trace(self._traces.tracer)
        await self._listeners.open()
        self._spawn([watcher.run(), reducers.run(), self._otlp.run(), self._traces.run()])
        await self._subscriptions.start(lost_task)

    async def meet(self) -> None:
        """Wait until this core and all others are connected, for a limited time.

        All cores are connected to the last core of a node before it reports ready. So the node's
        first requests find every core."""
        await self._links.meet()

    async def stop(self) -> None:
        """Answer requests in flight, then close the files. Acknowledged data does not depend on
        it."""
        await self._cluster.hand_over()
        self._otlp.close()
        self._engine.group_coordinator.close()
        await self._listeners.close()
        await self._traces.stop()
        await self._tier.drain()  # commits need the links
        await self._links.closed_listeners()
        await self._subscriptions.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.keep()
        self._cluster.close()
        await self._engine.core.drain()
        await self._tier.close()
        await self._costs.save()  # with the requests of the stop
        await self._links.close()
        await self._engine.stop()
        self._engine.close()
        self._keeper.close()

    def reload(self) -> None:
        """Reload what may change at run time: certificates, tokens, an issuer's keys."""
        self._keeper.reload()
        self._cluster.reload()

    def _backends(self) -> Backends:
        tier = self._tier.tier
        checks = StoreChecks(self.service, tier)
        jobs = TableJobs(self.service, self.service.flush)
        tables = table_routes(self._start, jobs, self.service.now_ms, checks.read_object)
        return Backends(
            tables,
            TableRunRoutes(Tables(self.service), self._table_runs, tables),
            {
                **dict.fromkeys(PREFIXES, SubscriptionRoutes(self._subscriptions).handle),
                GROUPS: GroupRoutes(
                    GroupAdmin(self.service, self._engine.group_coordinator, offset_of_time)
                ).handle,
                TRANSACTIONS: TransactionRoutes(self._engine.transactions).handle,
                CLIENTS: ClientRoutes(self._kafka_clients).handle,
                CATALOG: iceberg_catalog(
                    self._start, Tables(self.service), checks.read_object
                ).handle,
            },
            checks,
            Backups(self._start, self._engine, tier),
            self._cluster.operations,
            NodeHosts(self._start.config.cluster, self._cluster.maps),
            self._costs.view,
            self._figures,
        )

    def _listeners_of(self, behind: Backends) -> Listeners:
        """Return the listeners of all protocols. The supervisor reserves their addresses."""
        start, keeper = self._start, self._keeper
        connections = connection_shares(start)
        http = HttpListeners(start, self._engine, behind, self._health, keeper)
        listeners = [
            *http.listeners(connections),
            *text_listeners(start, self._engine, keeper, connections_max=connections.text),
            *kafka_listeners(
                start,
                self._engine,
                self._cluster.maps,
                keeper,
                self._cluster.group_status,
                clients=self._kafka_clients.here,
                connections_max=connections.kafka,
            ),
        ]
        return Listeners(listeners, start.listeners, self._health.registry, self._costs.history)

    def _report(self) -> None:
        """Add the health checks and the metrics of all parts."""
        health, engine = self._health, self._engine
        disk = DataDisk(
            Path(self._start.config.data),
            engine.core.counters.pace,
            others_lead=self._cluster.others_lead,
        )
        self._cluster.view.disk = disk.trouble
        health.warn("disk", disk.check)
        health.warn("streams", engine.local.faulted.trouble)
        health.add(KAFKA_BROKERS, brokers_check(self._start, self._cluster.maps, wall_ms))
        for samples in (
            disk.samples,
            metric_sources.of_core(engine.core),
            metric_sources.of_groups(engine.local),
            lambda: {"polynya_batches_repaired_total": engine.repairer.repaired},
            self._keeper.samples,
            metric_sources.of_group_lags(self._group_lags),
            metric_sources.of_work(self._subscriptions.lags),
            metric_sources.of_transactions(engine.transaction_jobs),
            metric_sources.of_appends_across(engine.appends_across.counters),
        ):
            health.registry.add(samples)
        for counters, names in (
            (self._subscriptions.counters, metric_sources.SUBSCRIPTIONS),
            (engine.local.trims, metric_sources.TRIMS),
            (engine.local.segments.counters, metric_sources.SEGMENTS),
            (engine.local.rehydration.counters, metric_sources.RECALLS),
            (engine.retainer.counters, metric_sources.RETENTION),
            (engine.snapshotter.counters, metric_sources.SNAPSHOTS),
        ):
            health.registry.add(metric_sources.counted(counters, names))
        counted = engine.core.counters
        for name, histogram in (
            ("polynya_journal_fsync_seconds", counted.pace.writes),
            ("polynya_commit_seconds", counted.commits),
            ("polynya_forward_seconds", self.service.proposals.forward_seconds),
            ("polynya_webhook_seconds", self._subscriptions.webhook_seconds),
        ):
            health.registry.add_histogram(name, histogram)
        delivered = engine.local.feeds.seconds
        health.registry.add_histogram("polynya_tail_delivery_seconds", delivered, way="feed")
        self._cluster.report(health)
        self._tier.report(health, self._cluster.view, self._costs.history)

    def _spawn(self, works: list[Coroutine[Any, Any, None]]) -> None:
        for work in works:
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(lost_task)
            self._tasks.append(task)


def runtime_of(start: CoreStart, storage: Storage, transport: Transport | None) -> CoreRuntime:
    """Return the engine of this core, with its clock."""
    shape = Shape(
        core=start.core,
        cores=start.cores,
        groups=start.groups,
        history=start.identity.history,
        hot_bytes_max=start.config.cold.max_hot_bytes_per_group
        or HOT_BYTES_PER_CORE,  # 0: no separate limit
        segment_limits=SegmentLimits(start.config.segments.records, start.config.segments.bytes),
    )
    clock = LogClock(storage.log_ms, loop=asyncio.get_running_loop())
    return CoreRuntime(
        storage,
        shape,
        now_ms=clock.now_ms,
        transport=transport,
        fatal=fail_stop,
        cluster=cluster_of(start, transport, clock),
        locations=locations_of(start, transport),
    )
