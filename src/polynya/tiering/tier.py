"""The object tier of a core: the claimed store, and the workers that read, fill and clean it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from polynya.base import limits
from polynya.base.errors import ConfigError, OutcomeUnknown, Unavailable
from polynya.cold import (
    ColdReader,
    Collector,
    CollectorSettings,
    Evictor,
    EvictSettings,
    Flusher,
    FlushSettings,
    Merger,
    MergeSettings,
    PackVerifier,
    StateReader,
)
from polynya.cold.compaction.child import ChildWorker
from polynya.cold.compaction.compactor import Compactor
from polynya.cold.rewriting.decider import Decider
from polynya.cold.settings import ZSTD_LEVEL
from polynya.cold.steps import Steps
from polynya.config.core_start import CoreStart
from polynya.config.sections import ColdConfig, DisklessConfig
from polynya.diskless import DisklessSettings, Writer
from polynya.objectstore import (
    StoreError,
    StoreUnavailable,
    WatchedStore,
    open_store,
    release_root,
)
from polynya.service.tier_view import CoreGroups
from polynya.tiering.copy_verifier import CopyVerifier
from polynya.tiering.root_claim import StoreRootClaim, was_held
from polynya.tiering.store_health import StoreAccess

CLAIM_SECONDS = 3.0  # how long a start waits for a store that it held before
RELEASE_SECONDS = 2.0
COLLECT_MS_MIN = 500
DISKLESS_ZSTD_LEVEL = 1  # clients wait for it; merges compress again
log = logging.getLogger("polynya.tier")


def flush_settings(cold: ColdConfig) -> FlushSettings:
    return FlushSettings(
        from_bytes=cold.flush_from_bytes,
        pack_bytes_max=cold.pack_bytes_max,
        age_ms_max=cold.flush_max_age_ms,
        hot_bytes_max=cold.max_hot_bytes_per_group,
        interval_ms=cold.flush_interval_ms,
        concurrency=cold.flush_max_concurrency,
        zstd_level=ZSTD_LEVEL if cold.is_compressed else 0,
    )


def merge_settings(cold: ColdConfig) -> MergeSettings:
    """Return the merge settings; without automatic flushing nothing is merged."""
    return MergeSettings(
        interval_ms=limits.MERGE_INTERVAL_MS if cold.flush_interval_ms else 0,
        page_entries=cold.page_slices,
        zstd_level=ZSTD_LEVEL if cold.is_compressed else 0,
    )


def collector_settings(cold: ColdConfig) -> CollectorSettings:
    """Return the collector settings; a short grace period needs frequent collection."""
    grace_ms = cold.delete_grace_ms
    known = CollectorSettings()
    return CollectorSettings(
        interval_ms=min(known.interval_ms, max(COLLECT_MS_MIN, grace_ms)),
        grace_ms=grace_ms,
        snapshot_wait_ms=min(known.snapshot_wait_ms, grace_ms),
    )


def diskless_settings(diskless: DisklessConfig, cold: ColdConfig) -> DisklessSettings:
    return DisklessSettings(
        interval=diskless.interval / 1000,
        pack_bytes=diskless.pack_size,
        zstd_level=DISKLESS_ZSTD_LEVEL if cold.is_compressed else 0,
    )


class Tier:
    """The object tier of one core. Create it with `open_tier`; the backend `none` has no tier.
    Nothing is written before the root is claimed."""

    def __init__(
        self, store: WatchedStore, start: CoreStart, groups: CoreGroups, claim: StoreRootClaim
    ) -> None:
        cluster = start.identity.cluster_id
        self.store = store
        self.claim = claim
        self.access = StoreAccess(store, lambda: claim.reason)
        # in a cluster the other nodes still use it
        self._releases = start.core == 0 and not start.identity.node
        self._claiming: asyncio.Task[None] | None = None
        self._flushing: dict[str, asyncio.Task[None]] = {}
        self._of_tables = store.of("table")
        self.verifier = PackVerifier(groups, store.of("collect"))
        self.copy_verifier = CopyVerifier(store.of("collect"), (cluster, start.identity.history))
        self.reader = ColdReader(store.of("read"))
        self.states = StateReader(store.of("state"))
        self.flusher = Flusher(
            groups, store.of("flush"), flush_settings(start.config.cold), cluster
        )
        store.writes.on_recovery.append(self.flusher.recover)
        self.writer = Writer(
            groups,
            groups.propose_nowait,
            store.of("diskless"),
            diskless_settings(start.config.diskless, start.config.cold),
            cluster,
            in_flight=self.flusher.in_flight,
            keep=self.reader.keep,
            store_is_full=lambda: store.writes.full,
        )
        settings = EvictSettings(after_ms=start.config.cold.evict_after_ms)
        self.merger = Merger(
            groups,
            store.of("merge"),
            merge_settings(start.config.cold),
            cluster,
            self.flusher.in_flight,
            eviction=settings,
        )
        self.compactor = Compactor(
            Steps(groups, store.of("merge"), asyncio.sleep),
            merge_settings(start.config.cold),
            cluster,
            self.merger.in_hand,
            policies=groups.compaction_policies,
            worker=ChildWorker(),
        )
        self.decider = Decider(groups, Steps(groups, store.of("merge"), asyncio.sleep), self.merger)
        self.evictor = Evictor(
            groups, store.of("state"), settings, cluster, in_flight=self.flusher.in_flight
        )
        self.collector = Collector(
            groups,
            store.of("collect"),
            collector_settings(start.config.cold),
            packs_prefix=f"{cluster}/packs/",
            in_flight=self.flusher.in_flight,
            owns_root=claim.owned,
            sweep_deletes=start.identity.history == 1,
        )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background tasks; they end only if the root can never be claimed."""
        return [
            self._claimed(),
            self.access.run(),
            *(
                self.once_claimed(run)
                for run in (
                    self.flusher.run,
                    self.merger.run,
                    self.decider.run,
                    self.compactor.run,
                    self.evictor.run,
                    self.collector.run,
                )
            ),
        ]

    async def begin(self) -> None:
        """Claim the root. If it was held before, return after CLAIM_SECONDS even without a claim.
        Raises ConfigError."""
        self._claiming = asyncio.get_running_loop().create_task(self.claim.make())
        await asyncio.wait([self._claiming], timeout=CLAIM_SECONDS if self.claim.is_known else None)
        if self._claiming.done():
            self._claiming.result()
        else:
            log.warning("serving without the object store until it responds")

    async def flush_now(self, prefix: str | None = None, *, whole: bool = False) -> None:
        """Flush hot data now, with that of open transactions if `whole`; without any, the store is
        not needed. Raises Unavailable."""
        if self.claim.made.is_set():
            await self.flusher.flush_now(prefix, whole=whole)
        elif await self.flusher.has_hot(prefix):
            raise Unavailable("the object store cannot be used yet; retry later")

    def flush_soon(self, name: str) -> None:
        """Begin to flush a stream whose hot batches something waits for, unless that is under
        way."""
        if name in self._flushing:
            return
        task = asyncio.get_running_loop().create_task(self._flush_one(name))
        self._flushing[name] = task
        task.add_done_callback(lambda _: self._flushing.pop(name))

    async def _flush_one(self, name: str) -> None:
        try:
            await self.flush_now(name, whole=True)
        except (Unavailable, OutcomeUnknown) as fault:  # the next refusal begins another
            log.info("a stream could not be flushed now", extra={"error": str(fault)})

    async def _claimed(self) -> None:
        assert self._claiming is not None
        await self._claiming

    async def once_claimed(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a worker after the root is claimed."""
        await self.claim.made.wait()
        await run()

    async def read_object(self, key: str) -> bytes:
        """Read an object of a table. Raises Unavailable."""
        try:
            return await self._of_tables.get(key)
        except StoreError as error:
            raise Unavailable(f"the object {key} cannot be read: {error}") from None

    async def close(self) -> None:
        """Close the store. The first core also releases the root, if the store answers in time."""
        await self.writer.close()
        for task in self._flushing.values():
            task.cancel()
        await self.reader.close()
        await self.states.close()
        if self._claiming is not None:
            self._claiming.cancel()
        if self._releases and self.claim.root is not None:
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await release_root(self.store, self.claim.root)
        await self.store.close()


async def open_tier(
    start: CoreStart, groups: CoreGroups, indexes: Callable[[], Mapping[int, int]]
) -> Tier | None:
    """Open the store, prove that it supports conditional writes, and claim its root, now or later.
    Raises ConfigError."""
    try:
        store = open_store(start.config.store, late=was_held(start))
    except StoreUnavailable as error:
        raise ConfigError(f"cold: {error}") from None
    if store is None:
        return None
    watched = WatchedStore(store, asyncio.get_running_loop().time)
    tier = Tier(watched, start, groups, StoreRootClaim(start, watched, indexes))
    await tier.begin()
    return tier
