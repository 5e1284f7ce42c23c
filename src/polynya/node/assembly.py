"""The parts of one core, in the order in which they start, and the reverse in which they stop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any

from polynya.base.errors import CorruptData, PolynyaError
from polynya.node import sources
from polynya.node.clock import LogClock
from polynya.node.core import Core
from polynya.node.doors import Doors
from polynya.node.groups import CoreGroups
from polynya.node.health import Health
from polynya.node.snapshots import Snapshotter
from polynya.node.start import EXIT_CORRUPT, EXIT_STORAGE, CoreStart
from polynya.node.storage import Storage
from polynya.node.tier import Tier, open_tier
from polynya.service.local import LocalGroups
from polynya.service.node import NodeService
from polynya.service.settle import Settler
from polynya.service.tables import Tables
from polynya.transport import Transport
from polynya.wal import JournalFailed

EXIT_FAULT = 1  # a bug: a restart may help
HOUSEKEEPING_SECONDS = 0.2
SETTLE_EVERY = 25  # housekeeping rounds
SNAPSHOT_BYTES = 64 << 20  # of journal since the last round of snapshots
log = logging.getLogger("polynya.core")


class Assembly:
    """Everything in one core process. `start` returns when it serves."""

    def __init__(self, start: CoreStart, storage: Storage) -> None:
        self._start = start
        self._storage = storage
        self._core = Core(storage.shard, storage.journal, fatal=_fail_stop)
        clock = LogClock(storage.log_ms)
        machines = {number: group.machine for number, group in storage.shard.groups.items()}
        self._local = LocalGroups(
            machines,
            self._core,
            clock.now_ms,
            hot_bytes_max=start.config.cold.max_hot_bytes_per_group,
            history=start.birth.history,
        )
        self._core.on_applied = self._local.applied
        cores = start.cores
        self._transport = Transport(start.core, cores, start.run_directory, start_id=start.start_id) if cores > 1 else None
        self.service = NodeService(self._local, groups=start.groups, core=start.core, cores=cores, transport=self._transport)
        self._settler = Settler(self.service)
        self._core.on_turn = self._settler.pump
        self._snapshotter = Snapshotter(self._core, storage.snapshots, every_bytes=SNAPSHOT_BYTES, floors=storage.floors)
        self._health = Health(start, self._transport)
        self._tier: Tier | None = None
        self._doors: Doors | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        if self._transport is not None:
            await self._transport.start()
        self._tier = await open_tier(self._start, CoreGroups(self._storage.shard, self.service, self._snapshotter))
        if self._tier is not None:
            self._local.cold = self._tier.reader
            self.service.flush_here = self._tier.flusher.flush_now
            for task in self._tier.tasks():
                self._spawn(task)
        self._register_samples()
        self._spawn(self._keep_house())
        self._doors = Doors(self._start, self.service, Tables(self.service, self.service.flush), self._health)
        await self._doors.open()

    async def stop(self) -> None:
        """Answer what is in flight, then close the files. Nothing acknowledged depends on it."""
        if self._doors is not None:
            await self._doors.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._core.drain()
        if self._tier is not None:
            await self._tier.close()
        if self._transport is not None:
            await self._transport.close()
        self._core.close()
        self._storage.journal.close()

    def _register_samples(self) -> None:
        registry = self._health.registry
        registry.add(sources.of_core(self._core))
        registry.add(sources.of_groups(self._local))
        if self._tier is not None:
            registry.add(sources.counted(self._tier.flusher.counters, sources.FLUSHER))
            registry.add(sources.counted(self._tier.collector.counters, sources.COLLECTOR))
            registry.add(sources.counted(self._tier.reader.counters, sources.CACHE))

    async def _keep_house(self) -> None:
        """What is done now and then: settling across groups, snapshots."""
        rounds = 0
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            rounds += 1
            try:
                if rounds % SETTLE_EVERY == 0:
                    await self._settler.sweep()
                if self._snapshotter.due():
                    await self._snapshotter.run(self.service.now_ms())
            except PolynyaError as fault:
                log.warning("housekeeping is tried again", extra={"error": str(fault)})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_ended)
        self._tasks.append(task)


def _ended(task: asyncio.Task[None]) -> None:
    """A task that runs for ever ended by itself: something is broken that going on would hide."""
    if not task.cancelled() and task.exception() is not None:
        _fail_stop(task.exception() or RuntimeError("a task ended"))


def _fail_stop(error: BaseException) -> None:
    """Only a restart reads the disk again; only some ends can be mended by one."""
    log.critical("this core goes down", exc_info=error)
    code = EXIT_STORAGE if isinstance(error, OSError | JournalFailed) else EXIT_CORRUPT if isinstance(error, CorruptData) else EXIT_FAULT
    os._exit(code)
