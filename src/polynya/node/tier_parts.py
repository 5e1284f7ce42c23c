"""The object tier of a core, connected to its engine, its health checks and its metrics."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from polynya.admin import metric_sources
from polynya.admin.health import Health
from polynya.backup.copies import CompleteMark
from polynya.cluster.status import ClusterView
from polynya.config.core_start import CoreStart
from polynya.service.assembly import CoreRuntime
from polynya.tiering.state_copies import StateCopyWorker
from polynya.tiering.tier import Tier, open_tier


class NoTier:
    """The object tier of a node without an object store: none."""

    tier = None
    access = None

    def report(self, health: Health, view: ClusterView) -> None:
        """Have nothing to report."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return no tasks."""
        return []

    async def close(self) -> None:
        """Have nothing to close."""


class TierParts:
    """The object tier of one core."""

    def __init__(self, start: CoreStart, engine: CoreRuntime, tier: Tier) -> None:
        self.tier = tier
        self.access = tier.access
        engine.local.cold = tier.reader
        engine.local.rehydration.states = tier.states
        engine.local.memory.store_is_full = lambda: tier.access.store.writes.full
        engine.service.flush_here = tier.flush_now
        birth, grace_ms = start.birth, start.config.cold.delete_grace_ms
        whole = CompleteMark(birth.cluster_id, birth.history, birth.groups)
        self._copy_worker = StateCopyWorker(
            engine, tier.store, whole, tier.claim.owned, soon_seconds=grace_ms / 1000
        )

    def report(self, health: Health, view: ClusterView) -> None:
        """Add the health checks and metrics."""
        tier = self.tier
        health.warn("object store", lambda: tier.access.trouble() or tier.flusher.trouble())
        view.store = lambda: tier.access.trouble() or ""
        for counters, names in (
            (self._copy_worker.counters, metric_sources.COPIER),
            (tier.flusher.counters, metric_sources.FLUSHER),
            (tier.merger.counters, metric_sources.MERGER),
            (tier.evictor.counters, metric_sources.EVICTOR),
            (tier.states.counters, metric_sources.STATES),
            (tier.collector.counters, metric_sources.COLLECTOR),
            (tier.reader.counters, metric_sources.CACHE),
        ):
            health.registry.add(metric_sources.counted(counters, names))
        health.registry.add(lambda: {"polynya_cache_bytes": tier.reader.cached_bytes})
        health.registry.add(
            lambda: {"polynya_object_store_waiting": int(tier.claim.reason is not None)}
        )
        health.registry.add(tier.access.samples)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background tasks."""
        return [*self.tier.tasks(), self.tier.once_claimed(self._copy_worker.run)]

    async def close(self) -> None:
        """Close the store."""
        await self.tier.close()


async def tier_parts(start: CoreStart, engine: CoreRuntime) -> NoTier | TierParts:
    """Open the tier that the settings name, and connect the engine to it. Raises ConfigError."""
    tier = await open_tier(start, engine.groups, engine.indexes)
    return NoTier() if tier is None else TierParts(start, engine, tier)
