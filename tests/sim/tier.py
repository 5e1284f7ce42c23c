"""The object tier of a simulated node: flusher, merger, collector and reader of one life, with
small bounds and all chance from the world's seed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol
from unittest import mock

from sim.store import SimStore
from worlds.in_process import HereWorker

from polynya.admin import backup_routes
from polynya.admin.store_checks import StoreChecks
from polynya.backup import pruning, writer
from polynya.backup.copies import CompleteMark
from polynya.base.errors import PolynyaError
from polynya.cli.storage import source
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
    StateReader,
    collector,
    evictor,
    flusher,
    pager,
    steps,
)
from polynya.cold.compaction.compactor import Compactor
from polynya.cold.rewriting import merger
from polynya.cold.steps import Steps
from polynya.diskless import DisklessSettings, Writer
from polynya.diskless import commit as diskless_commit
from polynya.diskless import writer as diskless_writer
from polynya.local import forks
from polynya.objectstore import WatchedStore
from polynya.service import outbox_sender, retention_job
from polynya.service.assembly import CoreRuntime
from polynya.stream.features.pages import rules as paging
from polynya.stream.features.profiles import commits
from polynya.subscriptions import keys, operations, wakes
from polynya.tiering import state_copies
from polynya.tiering.copy_deltas import CopyDeltaWorker
from polynya.tiering.decider import Decider
from polynya.tiering.state_copies import StateCopyWorker
from polynya.tiering.store_health import StoreAccess, StorePatience
from polynya.tiering.store_leadership import StoreLeadership, StoreLeadershipTransport
from polynya.transport import address

if TYPE_CHECKING:
    from sim.cluster import World

CLUSTER = "c" * 32
FLUSH = FlushSettings(
    from_bytes=160, pack_bytes_max=512, slice_bytes_max=256, age_ms_max=2000, interval_ms=300
)
MERGE = MergeSettings(interval_ms=1500)
PATIENCE = StorePatience(persists=6.0, failures=3, probe=0.5, look=0.25)
DISKLESS = DisklessSettings(interval=0.1, pack_bytes=2000, bytes_max=100_000)
COLLECT = CollectorSettings(
    interval_ms=700,
    grace_ms=2000,
    snapshot_wait_ms=2000,
    settle_after_ms=3000,
    orphan_ms=10_000,
    sweep_every_ms=5000,
)
WRITE_MS_MAX = 4000  # what takes longer may have been swept: clocks are wrong by less than a third
LATE_MS = 2 * WRITE_MS_MAX


class TierTransport(StoreLeadershipTransport, Protocol):
    """The connection to the other nodes of the world."""

    node: Any


def _addresses(nodes: Mapping[int, Any], own: int) -> list[int]:
    return [address(node, 0) for node in nodes if node != own]


async def _soon(seconds: float) -> None:
    await asyncio.sleep(seconds / 10)


async def _owned() -> bool:
    return True


class SimTier:
    """The tiering of one incarnation: its tasks are cancelled when that ends."""

    def __init__(self, engine: CoreRuntime, shared: SimStore, way: TierTransport) -> None:
        assert engine.replicated is not None
        world = way.node.world
        self._engine, self._pace = engine, world.round_pace
        node, nodes, turn = engine.replicated.node, world.nodes, world.knobs.turn
        store = self.store = WatchedStore(
            shared.on(node, way.node.disk.at), asyncio.get_running_loop().time
        )
        self.access = StoreAccess(store, lambda: None, PATIENCE)
        others = partial(_addresses, nodes, node)
        self.leads = StoreLeadership(engine.replicated.leadership, self.access, way, others)
        self.reader = ColdReader(store, cache_bytes=world.cache_bytes)
        self.flusher = Flusher(engine.groups, store, turn(FLUSH), CLUSTER)
        self.writer = Writer(
            engine.groups,
            engine.groups.propose_nowait,
            store,
            turn(DISKLESS),
            CLUSTER,
            in_flight=self.flusher.in_flight,
            keep=self.reader.keep,
        )
        settings = turn(EvictSettings(after_ms=world.evict_after_ms, block_streams=2, few=1))
        self.merger = Merger(
            engine.groups, store, turn(MERGE), CLUSTER, self.flusher.in_flight, eviction=settings
        )
        self.decider = Decider(
            engine.groups, Steps(engine.groups, store, asyncio.sleep), self.merger, sleep=_soon
        )
        self._decides = world.decides
        self.compactor = (
            None if world.compaction is None else self._new_compactor(world, turn(MERGE))
        )
        self.states = StateReader(store, cache_bytes=world.states_bytes)
        self.evictor = Evictor(
            engine.groups, store, settings, CLUSTER, in_flight=self.flusher.in_flight
        )
        self.collector = Collector(
            engine.groups,
            store,
            turn(COLLECT),
            packs_prefix=f"{CLUSTER}/packs/",
            in_flight=self.flusher.in_flight,
            owns_root=_owned,
            sweep_deletes=True,
        )
        whole = CompleteMark(CLUSTER, world.history, engine.service.groups)
        seconds = world.delta_seconds
        self.copier = StateCopyWorker(engine, store, whole, _owned, diskless_seconds=seconds)
        self.deltas = CopyDeltaWorker(engine, store, whole, seconds)
        StoreChecks(engine.service, self)  # type: ignore[arg-type]  # of a tier it uses the collector
        engine.local.reads.cold = self.reader
        engine.local.rehydration.states = self.states
        engine.local.profiles.flush_soon = self._flush_soon
        engine.service.proposals.take_diskless(self.writer)
        self._flushes: set[asyncio.Task[None]] = set()

    def _new_compactor(self, world: World, settings: MergeSettings) -> Compactor:
        groups, in_hand = self._engine.groups, self.merger.in_hand
        return Compactor(
            Steps(groups, self.store, asyncio.sleep),
            settings,
            CLUSTER,
            in_hand,
            policies=world.compaction_policies,
            worker=HereWorker(),
        )

    def ended(self) -> list[asyncio.Task[None]]:
        """Return the tasks to cancel when the node crashes."""
        return [*self.writer._running(), *self._flushes]

    def _flush_soon(self, name: str) -> None:
        task = asyncio.ensure_future(self._flush(name))
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _flush(self, name: str) -> None:
        with suppress(PolynyaError):
            await self.flusher.flush_now(name)

    def tasks(self) -> list[asyncio.Task[None]]:
        work = [
            self.flusher.run(),
            self.merger.run(),
            self.evictor.run(),
            self.collector.run(),
            self.copier.run(),
            self.deltas.run(),
            self._snapshots(),
        ]
        if self._decides:
            work.append(self.decider.run())
        if self.compactor is not None:
            work.append(self.compactor.run())
        work += [self.access.run(), self.leads.run(), self.leads.answer()]
        return [asyncio.ensure_future(each) for each in work]

    async def _snapshots(self) -> None:
        """Write snapshots as a core does: releases of packs wait for them."""
        snapshotter = self._engine.snapshotter
        while True:
            await asyncio.sleep(0.5)
            if snapshotter.due() and not snapshotter.lock.locked():
                try:
                    await snapshotter.run(self._engine.service.now_ms(), self._pace)
                except PolynyaError:
                    continue
                except OSError as error:
                    assert self._engine.replicated is not None
                    self._engine.replicated.fail(error)
                    return


@contextmanager
def chance_of(seed: int) -> Iterator[None]:
    """Seed the parts' random draws and clocks with the seed and virtual time; bring work of once a
    minute into an episode."""
    random, more, aside = (
        Random(f"tier {seed}"),
        Random(f"beside {seed}"),
        Random(f"backups beside {seed}"),
    )

    def now() -> float:
        return asyncio.get_running_loop().time()

    def hexed(count: int) -> str:
        return more.randbytes(count).hex()

    drawn = SimpleNamespace(token_hex=hexed, token_bytes=more.randbytes)
    clock = SimpleNamespace(monotonic=now, time=now, sleep=lambda seconds: None)
    every = Random(f"copies {seed}").choice((1.0, 3.0, 10.0))
    patience_ms = Random(f"pins {seed}").choice((2000, 10_000))
    with ExitStack() as stack:
        for module in (flusher, merger, evictor, pager):
            stack.enter_context(mock.patch.object(module, "token_bytes", random.randbytes))
        for module in (forks, keys, operations, wakes):
            stack.enter_context(mock.patch.object(module, "secrets", drawn))
        stack.enter_context(mock.patch.object(writer, "token_bytes", aside.randbytes))
        stack.enter_context(
            mock.patch.object(
                backup_routes, "token_hex", lambda count: aside.randbytes(count).hex()
            )
        )
        stack.enter_context(mock.patch.object(source, "time", clock))
        stack.enter_context(mock.patch.object(pruning, "UNDER_WAY_MS", 15_000))
        for module in (flusher, steps, keys, retention_job):
            stack.enter_context(mock.patch.object(module, "time", clock))
        stack.enter_context(mock.patch.object(merger, "monotonic", now))
        stack.enter_context(mock.patch.object(collector, "token_hex", hexed))
        stack.enter_context(mock.patch.object(steps, "WRITE_MS_MAX", WRITE_MS_MAX))
        stack.enter_context(
            mock.patch.multiple(commits, WRITE_MS_MAX=WRITE_MS_MAX, WRITER_IDLE_MS=2 * WRITE_MS_MAX)
        )
        for module in (pager, paging):
            stack.enter_context(mock.patch.object(module, "LATE_MS", LATE_MS))
        stack.enter_context(mock.patch.object(diskless_commit, "WRITE_MS_MAX", WRITE_MS_MAX))
        packs = Random(f"diskless {seed}")
        stack.enter_context(mock.patch.object(diskless_writer, "token_bytes", packs.randbytes))
        stack.enter_context(mock.patch.object(wakes, "random", more))
        stack.enter_context(
            mock.patch.multiple(state_copies, EVERY_SECONDS=every, SOON_SECONDS=every / 2)
        )
        stack.enter_context(
            mock.patch.multiple(
                outbox_sender,
                PIN_PATIENCE_MS=patience_ms,
                PIN_PATIENCE_AFTER_START_MS=patience_ms // 2,
            )
        )
        yield
