"""A core without a journal: real machines, a log that may fail, and the requests of the cold
tier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from google_crc32c import value as crc32c

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.names import group_of
from polynya.cold import (
    ColdReader,
    Collector,
    CollectorSettings,
    EvictSettings,
    FaultedStreams,
    Flusher,
    FlushSettings,
    Merger,
    MergeSettings,
)
from polynya.cold.compaction.planner import CompactionPolicy
from polynya.objectstore import MemoryStore, ObjectInfo, StoreUnavailable
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import Acknowledge
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch, ColdSlice, Encoding
from polynya.stream.read_plan import ColdPiece, HotPiece, ReadPlan, cold_pieces, cut
from polynya.stream.replies import Done, Reply
from polynya.stream.state.model import HotBatch
from polynya.wire.page import read_page
from polynya.wire.slice_building import is_intact

GROUPS = 3


class CoreWorld:
    """Implements `polynya.cold.Groups`. Time stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self.covered: int | None = None  # None: all that was logged
        self.snapshots_wanted = 0
        self.recent: dict[int, int] = {}
        self.log_turns = 1  # of the loop, until a proposal is applied
        self.proposed: list[tuple[int, Command]] = []
        # "", "before", "after" or "lost"
        self.fail: Callable[[int, Command], str] = lambda number, command: ""
        self._machines = {group: Machine(group, GROUPS) for group in range(1, GROUPS + 1)}
        self.faulted = FaultedStreams(self._machines)
        self.kept: dict[
            tuple[int, int], bytes
        ] = {}  # payload by uid and record, as `repair` finds it again
        self._position = 0

    # What the cold tier sees.

    def machines(self) -> dict[int, Machine]:
        return self._machines

    def turns(self) -> int:
        return self._position

    def term(self, group: int) -> int:
        return 1

    def propose_nowait(self, group: int, command: Command, done: Done) -> None:
        """Propose; `done` gets the outcome."""
        proposing = asyncio.ensure_future(self.propose(group, command))
        proposing.add_done_callback(lambda ended: done(ended.exception() or ended.result()))

    async def propose(self, group: int, command: Command) -> Reply:
        for _ in range(self.log_turns):
            await asyncio.sleep(0)
        self.proposed.append((group, command))
        how = self.fail(len(self.proposed), command)
        if how == "before":
            raise Unavailable("no")
        if how == "lost":
            raise OutcomeUnknown("who knows")
        reply = self.apply(group, command)
        if how == "after":
            raise OutcomeUnknown("who knows")
        return reply

    def may_log(self, machine: Machine, level: int) -> bool:
        return True

    async def bring(self, group: int, names: list[str]) -> None:
        raise AssertionError("no stream of this world is evicted")

    async def repair(self, group: int, uid: int, batches: Sequence[HotBatch]) -> bool:
        damaged = [batch for batch in batches if not is_intact(batch)]
        for batch in damaged:
            batch.payload = self.kept.get((uid, batch.record), batch.payload)
        return bool(damaged) and all(map(is_intact, damaged))

    def now_ms(self) -> int:
        return self.now

    def covered_ms(self) -> int:
        return self.now if self.covered is None else self.covered

    def want_snapshots(self) -> None:
        self.snapshots_wanted += 1

    async def compaction_policies(self) -> dict[str, CompactionPolicy]:
        return {}

    # What the tests do.

    def apply(self, group: int, command: Command) -> Reply:
        self._position += 1
        return self._machines[group].apply(command, self._position)

    def create(self, name: str) -> None:
        self.apply(group_of(name, GROUPS), Create(name, self.now, "text/plain", Encoding.BYTES))

    def append(self, name: str, payload: bytes) -> None:
        batch = Batch(Encoding.BYTES, 1, payload, crc32c(payload))
        assert (
            self.apply(group_of(name, GROUPS), Append(name, self.now, "text/plain", batch)).code
            == 0
        )

    def delete(self, name: str) -> None:
        self.apply(group_of(name, GROUPS), Delete(name, self.now))

    def deliver(self) -> None:
        """Send all outbox messages, as the shell would."""
        for group, machine in self._machines.items():
            for number, (target, command) in list(machine.outbox.messages.items()):
                self.apply(target, command)
                self.apply(group, Acknowledge(number))

    def hot_bytes(self) -> int:
        return sum(machine.directory.hot_bytes for machine in self._machines.values())

    async def read(self, name: str, reader: ColdReader) -> bytes:
        """Read the whole stream, wherever its bytes are."""
        machine = self._machines[group_of(name, GROUPS)]
        stream = machine.directory.streams[name]
        pages = []
        record, byte = 0, 0
        while (record, byte) != (stream.next_record, stream.next_byte):
            plan = machine.plan_read(stream, record, byte, bytes_max=1 << 20, whole_records=True)
            assert isinstance(plan, ReadPlan)
            for piece in [
                each for planned in plan.pieces for each in await opened(planned, reader)
            ]:
                if isinstance(piece, HotPiece):
                    pages.append(bytes(piece.payload))
                    continue
                part = cut(await reader.batches(piece.slice), piece.want)  # type: ignore[union-attr]
                pages += [bytes(hot.payload) for hot in part.pieces]  # type: ignore[union-attr]
            record, byte = plan.record, plan.byte
        return b"".join(pages)


async def opened(piece: Any, reader: ColdReader) -> list[Any]:
    """Return the pieces in a page of an index, or the piece itself."""
    if isinstance(piece, ColdPiece) and piece.slice.is_page:
        return [*cold_pieces(await reader.page(piece.slice), piece.want, moves=False)]
    return [piece]


class FaultyStore(MemoryStore):
    """A store whose N-th call fails, before or after its effect."""

    def __init__(self, fail_at: int = 0, *, after: bool = False) -> None:
        super().__init__()
        self.calls = 0
        self.down = False
        self.fail_at = fail_at
        self.after = after

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        await self._maybe(super().put(key, parts))

    async def get(self, key: str) -> bytes:
        return await self._maybe(super().get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._maybe(super().get_range(key, start, length))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._maybe(asyncio.sleep(0))
        async for info in super().list(prefix, after):
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        await self._maybe(super().delete(keys))

    async def _maybe(self, call: Any) -> Any:
        self.calls += 1
        failing = self.down or self.calls == self.fail_at
        try:
            await asyncio.sleep(0)
            if failing and not self.after:
                raise StoreUnavailable("the store fails")
            result = await call
        finally:
            call.close()
        if failing:
            raise StoreUnavailable("the store fails afterwards")
        return result


CLUSTER = "c1"
SETTINGS = FlushSettings(
    from_bytes=4000,
    pack_bytes_max=4000,
    slice_bytes_max=500,
    age_ms_max=10_000,
    interval_ms=1000,
    concurrency=2,
)
MERGE_SETTINGS = MergeSettings(slice_bytes_max=4000, pack_bytes_max=8000)
EVICTION = EvictSettings()


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


async def is_owner() -> bool:
    return True


class Tier:
    """A world and its cold tier."""

    def __init__(
        self, store: FaultyStore | None = None, settings: FlushSettings = SETTINGS
    ) -> None:
        self.world = CoreWorld()
        self.store = store or FaultyStore()
        self.flusher = Flusher(self.world, self.store, settings, CLUSTER, sleep=no_sleep)
        self.merger = self.new_merger()
        self.reader = ColdReader(self.store)
        self.collector = self.new_collector()
        self.written: dict[str, bytes] = {}

    def new_merger(
        self,
        settings: MergeSettings = MERGE_SETTINGS,
        sleep: Callable[[float], Awaitable[None]] = no_sleep,
        eviction: EvictSettings = EVICTION,
    ) -> Merger:
        return Merger(
            self.world,
            self.store,
            settings,
            CLUSTER,
            self.flusher.in_flight,
            eviction=eviction,
            sleep=sleep,
        )

    def new_reader(self) -> ColdReader:
        return ColdReader(self.store)

    def new_collector(
        self,
        settings: CollectorSettings | None = None,
        *,
        owner: Callable[[], object] = is_owner,
        sweep_deletes: bool = True,
    ) -> Collector:
        return Collector(
            self.world, self.store, settings or CollectorSettings(), packs_prefix=f"{CLUSTER}/packs/", in_flight=self.flusher.in_flight,
            owns_root=owner, sweep_deletes=sweep_deletes,  # type: ignore[arg-type]
        )  # fmt: skip

    def append(self, name: str, payload: bytes) -> None:
        if name not in self.written:
            self.world.create(name)
            self.written[name] = b""
        self.world.append(name, payload)
        self.written[name] += payload

    def fill(self, streams: int = 7, appends: int = 9) -> None:
        for number in range(appends):
            for stream in range(streams):
                self.append(f"default/s{stream}", b"%d-%d;" % (stream, number) * 40)

    async def check(self) -> None:
        """Assert that every stream reads as written, that its index is contiguous, and that each
        pack in it is counted."""
        for name, payload in self.written.items():
            assert await self.world.read(name, self.reader) == payload
            machine = self.world.machines()[group_of(name, GROUPS)]
            stream = machine.directory.streams[name]
            at = 0
            for cold in machine.packs.index_of(stream):
                assert cold.record == at
                at += cold.records
            assert at == (stream.hot[0].record if stream.hot else stream.next_record)

    def indexes(self) -> dict[str, list[ColdSlice]]:
        """Return the slices of every stream by name."""
        return {
            name: list(machine.packs.index_of(s))
            for machine in self.world.machines().values()
            for name, s in machine.directory.streams.items()
        }

    def live(self) -> set[str]:
        """Return the packs that indexes name."""
        return {cold.pack for slices in self.indexes().values() for cold in slices}

    def of_pages(self) -> set[str]:
        """Return the packs that the pages of indexes name."""
        pages = [
            read_page(key, self.store.objects[key][0]) for key in self.live() if "/pages/" in key
        ]
        return {pack for page in pages for pack, _ in page.packs}

    async def check_merged(self) -> None:
        """Check that each stream has one slice, and that nothing older is left in the store and in
        the machines."""
        assert {len(slices) for slices in self.indexes().values()} == {1}
        self.world.deliver()
        await self.settle_all()
        await self.check()
        self.check_nothing_leaks()

    def check_nothing_leaks(self) -> None:
        """Assert that the store and the machines know the packs that indexes name, and no
        others."""
        assert set(self.store.objects) == self.live() | self.of_pages()
        assert {
            key for machine in self.world.machines().values() for key in machine.packs.owned
        } == self.live()

    async def settle_all(self) -> None:
        """Run the background work of a quiet hour."""
        self.flusher._failures = 0
        for _ in range(3):
            self.world.now += 4_000_000
            for key, (data, version, _) in self.store.objects.items():
                self.store.objects[key] = (data, version, self.world.now - 4_000_000)
            await self.collector.collect()
            self.world.deliver()


def play(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def play_each(story: Callable[[int], Awaitable[int]], *, over: int) -> None:
    """Play a story with its first call failing, then with its second, and so on. The story returns
    its number of calls, which must be `over` this."""
    number = 1
    while asyncio.run(story(number)) >= number:  # type: ignore[arg-type]
        number += 1
    assert number > over
