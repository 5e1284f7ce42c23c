"""The object tier of a core: the store, proven and claimed, and what reads, fills and cleans it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from polynya.base import limits
from polynya.base.errors import ConfigError, Unavailable
from polynya.cold import ColdReader, Collector, CollectorSettings, Flusher, FlushSettings, Merger, MergeSettings, Verifier
from polynya.node.config import ColdConfig
from polynya.node.groups import CoreGroups
from polynya.node.start import CoreStart
from polynya.objectstore import (
    ObjectStore,
    StoreError,
    StoreUnavailable,
    claim_root,
    open_store,
    owns_root,
    prove_conditional_writes,
    release_root,
)

START_TRIES = 5
MEMBERS = "members of the cluster"  # own the root together: whoever leads a group deletes what it let go of
RELEASE_SECONDS = 2.0
COLLECT_MS_MIN = 500
log = logging.getLogger("polynya.tier")


def flush_settings(cold: ColdConfig) -> FlushSettings:
    return FlushSettings(
        from_bytes=cold.flush_from_bytes,
        pack_bytes_max=cold.pack_bytes_max,
        age_ms_max=cold.flush_max_age_ms,
        interval_ms=cold.flush_interval_ms,
        concurrency=cold.flush_max_concurrency,
    )


def merge_settings(cold: ColdConfig) -> MergeSettings:
    """Where nothing is flushed by itself, nothing is merged either."""
    return MergeSettings(interval_ms=limits.MERGE_INTERVAL_MS if cold.flush_interval_ms else 0)


def collector_settings(cold: ColdConfig) -> CollectorSettings:
    """A short grace is looked after more often."""
    grace_ms = cold.delete_grace_ms
    known = CollectorSettings()
    return CollectorSettings(
        interval_ms=min(known.interval_ms, max(COLLECT_MS_MIN, grace_ms)),
        grace_ms=grace_ms,
        snapshot_wait_ms=min(known.snapshot_wait_ms, grace_ms),
    )


class Tier:
    """Of one core. Made by `open_tier`; None in its place is the backend `none`."""

    def __init__(self, store: ObjectStore, start: CoreStart, groups: CoreGroups, claim: Any) -> None:
        cluster = start.birth.cluster_id
        self.store = store
        self._claim = claim if start.core == 0 and not start.birth.node else None  # the other nodes of a cluster go on
        self.verifier = Verifier(groups, store)
        self.reader = ColdReader(store)
        self.flusher = Flusher(groups, store, flush_settings(start.config.cold), cluster)
        self.merger = Merger(groups, store, merge_settings(start.config.cold), cluster, self.flusher.in_flight)
        self.collector = Collector(
            groups,
            store,
            collector_settings(start.config.cold),
            packs_prefix=f"{cluster}/packs/",
            in_flight=self.flusher.in_flight,
            owns_root=lambda: owns_root(store, claim),
            sweep_deletes=start.birth.history == 1,
        )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What runs for ever beside the core."""
        return [self.flusher.run(), self.merger.run(), self.collector.run()]

    async def read_object(self, key: str) -> bytes:
        """For rooms that know no store. Raises Unavailable."""
        try:
            return await self.store.get(key)
        except StoreError as error:
            raise Unavailable(f"the object store has not given {key}: {error}") from None

    async def close(self) -> None:
        """The first core says that the node has stopped, if the store answers soon."""
        await self.reader.close()
        if self._claim is not None:
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await release_root(self.store, self._claim)
        await self.store.close()


async def open_tier(start: CoreStart, groups: CoreGroups) -> Tier | None:
    """Open the store, prove that it honours conditions, and take its root. Raises ConfigError when it cannot work."""
    store = open_store(start.config.store)
    if store is None:
        return None
    for attempt in range(START_TRIES):
        try:
            if start.core == 0:
                await prove_conditional_writes(store)
            claim = await claim_root(store, start.birth.cluster_id, start.birth.history, MEMBERS if start.birth.node else start.start_id)
            return Tier(store, start, groups, claim)
        except StoreUnavailable as error:
            if attempt == START_TRIES - 1:
                raise ConfigError(f"cold: the object store cannot be reached: {error}") from None
            log.warning("the object store does not answer yet", extra={"error": str(error)})
            await asyncio.sleep(2**attempt * 0.5)
    raise AssertionError
