"""The object tier of a core, connected to its engine, its health checks and its metrics."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from polynya.admin import metric_sources
from polynya.admin.health import Health
from polynya.backup.copies import CompleteMark
from polynya.cluster.status import ClusterView
from polynya.config.core_start import CoreStart
from polynya.cost import PACKED, STORE, Counts, UsageHistory
from polynya.service.assembly import CoreRuntime
from polynya.tiering.copy_deltas import CopyDeltaWorker
from polynya.tiering.state_copies import StateCopyWorker
from polynya.tiering.tier import Tier, open_tier


class NoTier:
    """The object tier of a node without an object store: none."""

    tier = None
    access = None

    def report(self, health: Health, view: ClusterView, history: UsageHistory) -> None:
        """Have nothing to report."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return no tasks."""
        return []

    async def drain(self) -> None:
        """Have no writer."""

    async def close(self) -> None:
        """Have nothing to close."""


class TierParts:
    """The object tier of one core."""

    def __init__(self, start: CoreStart, engine: CoreRuntime, tier: Tier) -> None:
        self.tier = tier
        self.access = tier.access
        engine.local.reads.cold = tier.reader
        engine.local.profiles.flush_soon = tier.flush_soon
        engine.local.rehydration.states = tier.states
        engine.local.memory.store_is_full = lambda: tier.access.store.writes.full
        engine.service.flush_here = tier.flush_now
        engine.compaction.compactor = tier.compactor
        engine.service.proposals.take_diskless(tier.writer)
        identity, grace_ms = start.identity, start.config.cold.delete_grace_ms
        whole = CompleteMark(identity.cluster_id, identity.history, identity.groups)
        interval = start.config.diskless.copy_interval / 1000
        self._copy_worker = StateCopyWorker(
            engine,
            tier.store.of("state"),
            whole,
            tier.claim.owned,
            soon_seconds=grace_ms / 1000,
            diskless_seconds=interval,
        )
        self._delta_worker = CopyDeltaWorker(engine, tier.store.of("state"), whole, interval)

    def report(self, health: Health, view: ClusterView, history: UsageHistory) -> None:
        """Add the health checks, the metrics, and the counts of each hour."""
        tier = self.tier
        health.warn("object store", lambda: tier.access.trouble() or tier.flusher.trouble())
        health.warn("packs", tier.reader.damage.trouble)
        view.store = lambda: tier.access.trouble() or ""
        for counters, names in (
            (self._copy_worker.counters, metric_sources.COPIER),
            (self._delta_worker.counters, metric_sources.COPY_DELTAS),
            (tier.flusher.counters, metric_sources.FLUSHER),
            (tier.merger.counters, metric_sources.MERGER),
            (tier.decider.counters, metric_sources.DECIDER),
            (tier.merger.pager.counters, metric_sources.PAGER),
            (tier.compactor.counters, metric_sources.COMPACTOR),
            (tier.writer.counters, metric_sources.DISKLESS_WRITER),
            (tier.writer.commits.counters, metric_sources.DISKLESS_COMMITS),
            (tier.evictor.counters, metric_sources.EVICTOR),
            (tier.states.counters, metric_sources.STATES),
            (tier.collector.counters, metric_sources.COLLECTOR),
            (tier.reader.counters, metric_sources.CACHE),
        ):
            health.registry.add(metric_sources.counted(counters, names))
        health.registry.add(lambda: {"polynya_cache_bytes": tier.reader.cached_bytes})
        health.registry.add(tier.compactor.samples)
        health.registry.add(
            lambda: {"polynya_object_store_waiting": int(tier.claim.reason is not None)}
        )
        health.registry.add(tier.access.samples)
        health.registry.add(tier.reader.damage.samples)
        usage = tier.store.usage
        health.registry.add(metric_sources.of_store(usage))
        metric_sources.add_store_times(health.registry, usage)
        history.add(lambda: {(STORE, *key): count for key, count in usage.counts().items()})
        history.add(self._packed)

    def _packed(self) -> Counts:
        """Return the bytes of slices in packs, before and after their compression."""
        flusher, merger = self.tier.flusher.counters, self.tier.merger.counters
        writer = self.tier.writer.counters
        return {
            (PACKED, "flush", "payload"): flusher.bytes,
            (PACKED, "flush", "stored"): flusher.stored_bytes,
            (PACKED, "merge", "payload"): merger.bytes,
            (PACKED, "merge", "stored"): merger.stored_bytes,
            (PACKED, "diskless", "payload"): writer.payload_bytes,
            (PACKED, "diskless", "stored"): writer.bytes,
        }

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background tasks."""
        workers = (self._copy_worker.run, self._delta_worker.run)
        return [*self.tier.tasks(), *map(self.tier.once_claimed, workers)]

    async def drain(self) -> None:
        """Store and commit the appends to diskless streams that were taken."""
        await self.tier.writer.close()

    async def close(self) -> None:
        """Close the store."""
        await self.tier.close()


async def tier_parts(start: CoreStart, engine: CoreRuntime) -> NoTier | TierParts:
    """Open the tier that the settings name, and connect the engine to it. Raises ConfigError."""
    tier = await open_tier(start, engine.groups, engine.indexes)
    return NoTier() if tier is None else TierParts(start, engine, tier)
