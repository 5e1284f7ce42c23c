"""Whole cores in one process, without HTTP: journal on a fake disk, object store in memory, time
that a test moves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from google_crc32c import value as crc32c
from polling import wait_for
from worlds.fake_disk import FakeDisk
from worlds.in_process import fold_here

from polynya.base.limits import HOT_BYTES_PER_GROUP
from polynya.cold import (
    ColdReader,
    Collector,
    CollectorSettings,
    Evictor,
    EvictSettings,
    Flusher,
    FlushSettings,
    StateReader,
)
from polynya.diskless import DisklessSettings, Writer
from polynya.engine.storage import open_storage
from polynya.local.api import LiveEvent, Page, ReadQuery, Refusal, StreamInfo
from polynya.objectstore import MemoryStore, ObjectStore
from polynya.service.assembly import CoreRuntime, Shape
from polynya.service.table_jobs import TableJobs
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.parts import Batch, Encoding, Producer
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import snapshot_of
from polynya.transport import Transport

CLUSTER = "5e" * 16
SEGMENT_BYTES = 1 << 16
IDLE_MS = 3_600_000


FLUSH = FlushSettings(interval_ms=0)
DISKLESS = DisklessSettings(interval=0.01)


class Clock:
    """Log time, which stands still unless a test moves it."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


class World:
    """The incarnations of one core: `start`, `kill`, `start` again on the content of the disk."""

    def __init__(
        self,
        disk: FakeDisk | None = None,
        store: ObjectStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.disk = disk or FakeDisk()
        self.store: ObjectStore = store or MemoryStore()
        self.clock = clock or Clock()
        self.groups = 4
        self.core_number, self.cores = 0, 1
        self.segment_bytes = SEGMENT_BYTES
        self.hot_bytes_max = HOT_BYTES_PER_GROUP
        self.transport: Transport | None = None
        self.faults: list[BaseException] = []
        self.engine: CoreRuntime

    # --- lives

    def start(self) -> World:
        core, cores, groups = self.core_number, self.cores, self.groups
        storage = open_storage(
            Path(f"/core-{core}"),
            core=core,
            cores=cores,
            groups=groups,
            files=self.disk,
            segment_bytes=self.segment_bytes,
        )
        shape = Shape(
            core=core, cores=cores, groups=groups, history=1, hot_bytes_max=self.hot_bytes_max
        )
        self.clock.ms = max(self.clock.ms, storage.log_ms)
        self.faults = []
        try:
            self.engine = CoreRuntime(
                storage,
                shape,
                now_ms=self.clock.now_ms,
                transport=self.transport,
                fatal=self.faults.append,
            )
        except BaseException:
            storage.journal.close()
            raise
        self.engine.snapshotter.fold = fold_here
        self.engine.snapshotter._small_streams = -1  # what a group of few streams would never show
        self.local, self.service = self.engine.local, self.engine.service
        self.reader = ColdReader(self.store)
        self.local.reads.cold = self.reader
        self.local.rehydration.states = self.states = StateReader(self.store)
        self.flusher = Flusher(self.engine.groups, self.store, FLUSH, CLUSTER, sleep=_at_once)
        settings = EvictSettings(after_ms=IDLE_MS, few=1, block_streams=3)
        self.evictor = Evictor(
            self.engine.groups,
            self.store,
            settings,
            CLUSTER,
            in_flight=self.flusher.in_flight,
            sleep=_at_once,
        )
        self.collector = Collector(
            self.engine.groups,
            self.store,
            CollectorSettings(),
            packs_prefix=f"{CLUSTER}/packs/",
            in_flight=self.flusher.in_flight,
            owns_root=_yes,
            sweep_deletes=True,
        )
        self.service.flush_here = self.flusher.flush_now
        self.writer = Writer(
            self.engine.groups,
            self.engine.groups.propose_nowait,
            self.store,
            DISKLESS,
            CLUSTER,
            in_flight=self.flusher.in_flight,
            keep=self.reader.keep,
        )
        self.service.proposals.take_diskless(self.writer)
        self.local.profiles.flush_soon = self._flush_soon
        self.jobs = TableJobs(self.service, self.service.flush)
        self.tables = self.jobs.tables
        return self

    def _flush_soon(self, name: str) -> None:
        self.flushing = asyncio.ensure_future(self.flusher.flush_now(name, whole=True))

    def die(self) -> None:
        """Kill the process at once, in the middle of whatever it did."""
        # what its thread still reports finds a dead core
        self.engine.core._ends.dead = RuntimeError("killed")
        self.engine.core.close()
        self.disk.kill()

    def kill(self) -> World:
        """Die, and live again on what the page cache has."""
        self.die()
        return self.start()

    def power_cut(self, some: float = 0.0) -> World:
        """Cut the machine's power: a share of unsynced data survives."""
        self.die()
        self.disk.power_cut(some)
        return self.start()

    async def stop(self) -> None:
        await self.writer.close()
        await self.engine.core.drain()
        await self.reader.close()
        await self.states.close()
        self.engine.close()

    # --- what fronts do

    def send(self, command: Command, name: str = "") -> asyncio.Future[Reply]:
        """Propose a command now; the future gets its reply in a later turn."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def done(reply: Reply | BaseException) -> None:
            if isinstance(reply, BaseException):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.service.propose(name or command.name, command, done)  # type: ignore[attr-defined]
        return future

    def create_of(self, name: str, **more: Any) -> Create:
        json = more.pop("json", False)
        kind = ("application/json", Encoding.JSON) if json else ("text/plain", Encoding.BYTES)
        return Create(name, self.clock.ms, *kind, **more)

    def append_of(self, name: str, *records: bytes, **more: Any) -> Append:
        json = more.pop("json", False)
        batch = (json_batch(*records) if json else raw_batch(*records)) if records else None
        kind = ("application/json" if json else "text/plain") if records else ""
        return Append(name, self.clock.ms, kind, batch, **more)

    async def create(self, name: str, **more: Any) -> Reply:
        return await self.send(self.create_of(name, **more))

    async def append(self, name: str, *records: bytes, **more: Any) -> Reply:
        return await self.send(self.append_of(name, *records, **more))

    async def delete(self, name: str) -> Reply:
        return await self.send(Delete(name, self.clock.ms))

    async def fork(
        self, name: str, source: str, at: tuple[int, int] = (-1, 0), sub: int = 0, **more: Any
    ) -> Reply:
        create = Create(name, self.clock.ms, more.pop("content_type", ""), 0, **more)
        return await self.service.fork(create, source, *at, sub)

    async def info(self, name: str) -> StreamInfo | Refusal:
        return await self.service.info(name)

    async def page(self, name: str, record: int = -1, byte: int = 0, **more: Any) -> Page:
        page = await self.service.read(ReadQuery(name, record, byte, **more))
        assert isinstance(page, Page), page
        return page

    async def read(self, name: str, bytes_max: int = 1 << 20, **more: Any) -> bytes:
        """Read the whole stream page by page; every page must continue the one before."""
        parts: list[bytes] = []
        page = await self.page(name, bytes_max=bytes_max, **more)
        while True:
            at = (page.begin_record, page.begin_byte)
            for span in page.spans:
                assert span.byte == at[1], (span, at)
                parts.append(bytes(span.payload))
                at = (span.record, span.byte + len(span.payload))
            assert at[1] == page.byte
            if page.up_to_date:
                return b"".join(parts)
            assert page.spans, "a page that is not the last has something"
            page = await self.page(name, page.record, page.byte, bytes_max=bytes_max, **more)

    async def code_of(self, name: str) -> int:
        """Return 0 when the stream is there, else the refusal's code."""
        found = await self.info(name)
        return found.code if isinstance(found, Refusal) else 0

    async def settle(self) -> None:
        """Wait until nothing is in flight in the log and the outboxes."""
        while True:
            await self.engine.core.drain()
            if not any(machine.outbox.messages for machine in self.local.machines.values()):
                return
            await self.engine.outbox_sender.sweep()
            await asyncio.sleep(0)

    async def evict(self) -> int:
        """Pass the idle time and return the number of evicted streams."""
        await self.flusher.flush_now()
        self.clock.ms += IDLE_MS
        return await self.evictor.evict_due()

    @property
    def evicted(self) -> set[str]:
        return {
            name for machine in self.local.machines.values() for name in machine.directory.evicted
        }

    async def snapshot(self) -> None:
        await self.engine.snapshotter.run(self.clock.ms, 0)

    @property
    def hot_bytes(self) -> int:
        return sum(machine.directory.hot_bytes for machine in self.local.machines.values())

    def state(self) -> dict[int, bytes]:
        """Return the state of all machines."""
        return {number: snapshot_of(machine) for number, machine in self.local.machines.items()}


class Node:
    """Two cores in one loop, over the real transport."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        disk, store, clock = FakeDisk(), MemoryStore(), Clock()
        self.worlds = [World(disk, store, clock), World(disk, store, clock)]
        for number, world in enumerate(self.worlds):
            world.core_number, world.cores = number, 2

    async def start(self) -> Node:
        for number in range(2):
            await self.start_core(number)
        await self.wait_connected()
        return self

    async def start_core(self, number: int) -> World:
        world = self.worlds[number]
        world.transport = Transport(number, 2, self.directory, start_id="start")
        world.start()
        await world.transport.start()
        return world

    async def wait_connected(self) -> None:
        for world in self.worlds:
            assert world.transport is not None
            await world.transport.wait_connected()

    async def restart_core(self, number: int) -> World:
        """Kill and restart a core's process."""
        await self.kill_core(number)
        world = await self.start_core(number)
        await self.wait_connected()
        return world

    async def kill_core(self, number: int) -> None:
        world = self.worlds[number]
        assert world.transport is not None
        locks = {
            fd: path for fd, path in world.disk.locks.items() if f"core-{number}" not in str(path)
        }
        world.engine.core._ends.dead = RuntimeError("killed")
        world.engine.core.close()
        await world.transport.close()
        world.disk.locks = locks

    async def settle(self) -> None:
        """Wait until all outboxes are empty."""

        async def are_empty() -> bool:
            for world in self.worlds:
                await world.engine.core.drain()
                await world.engine.outbox_sender.sweep()
            return not any(
                machine.outbox.messages
                for world in self.worlds
                for machine in world.local.machines.values()
            )

        await wait_for(are_empty, what="empty outboxes")

    async def stop(self) -> None:
        for world in self.worlds:
            assert world.transport is not None
            await world.engine.core.drain()
            await world.transport.close()
            await world.stop()


class Listener:
    """A live reader that keeps all it hears."""

    def __init__(self) -> None:
        self.events: list[LiveEvent] = []

    def live(self, event: LiveEvent) -> None:
        self.events.append(event)

    @property
    def payload(self) -> bytes:
        return b"".join(bytes(event.payload) for event in self.events)

    def check_gap_free(self, record: int, byte: int) -> None:
        """Check that each event begins at the end of the one before, from this boundary on."""
        for event in self.events:
            assert (event.begin_record, event.begin_byte) == (record, byte)
            record, byte = event.record, event.byte


def raw_batch(*payloads: bytes) -> Batch:
    assert len(payloads) == 1
    return Batch(Encoding.BYTES, 1, payloads[0], crc32c(payloads[0]))


def json_batch(*records: bytes) -> Batch:
    parts = [record + b"," for record in records]
    lengths = b"".join(len(part).to_bytes(4, "little") for part in parts) if len(parts) > 1 else b""
    payload = b"".join(parts)
    return Batch(Encoding.JSON, len(parts), payload, crc32c(payload), lengths)


def name_in(group: int, groups: int = 4, hint: str = "s") -> str:
    """Return a canonical name of that group."""
    from polynya.base.names import group_of

    return next(
        name
        for number in range(10_000)
        if group_of(name := f"test/{hint}{number}", groups) == group
    )


async def _at_once(seconds: float) -> None:
    await asyncio.sleep(0)


async def _yes() -> bool:
    return True


__all__ = [
    "Clock",
    "Code",
    "Listener",
    "Node",
    "Producer",
    "World",
    "json_batch",
    "name_in",
    "raw_batch",
]
