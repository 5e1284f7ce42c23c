"""Trimmed, deleted or expired data leaves memory, journal and object store. Data that forks need
stays.

Whole cores with a journal on a fake disk, an object store in memory, and time that the test
moves."""

from __future__ import annotations

import asyncio

import pytest
from stories.service import node_story, story, story_on_one_and_two_cores
from worlds.service import Code, Node, World, name_in

from polynya.local.api import Page, Position, ReadQuery, Refusal, StreamInfo, Trimmed, TrimQuery
from polynya.local.lifetimes import retention
from polynya.local.lifetimes.retention import TrimCounters
from polynya.objectstore import MemoryStore
from polynya.service.retention_job import RetentionJob
from polynya.stream.features.lifetimes.commands import Delete
from polynya.stream.features.retention.commands import SetRetention
from polynya.stream.features.tables.commands import TableCommit
from polynya.stream.machine import Machine
from polynya.stream.parts import Retention
from polynya.stream.state import index

A, B, SOURCE, CHILD = "test/a", "test/b", name_in(1), name_in(2)
SECOND, HOUR, DAY = 1000, 3_600_000, 24 * 3_600_000
BODY = b"x" * 1000


class Held:
    """Payload of the streams that a world holds."""

    def __init__(self, world: World) -> None:
        assert isinstance(world.store, MemoryStore)
        machines = world.local.machines.values()
        packs = {key: data for key, (data, *_) in world.store.objects.items() if "/packs/" in key}
        self.hot = sum(machine.directory.hot_bytes for machine in machines)
        self.index = sum(
            len(stream.cold or b"")
            for machine in machines
            for stream in machine.directory.streams.values()
        )
        self.packs = len(packs)
        self.objects = sum(map(len, packs.values()))
        self.journal = sum(size for _, size in world.engine.core.journal.segments.sizes())
        self.messages = sum(len(machine.outbox.messages) for machine in machines)
        self.known = sum(len(machine.packs.owned) + len(machine.packs.held) for machine in machines)

    def __repr__(self) -> str:
        return str(vars(self))


async def quiet_minutes(world: World) -> None:
    """Let minutes pass after a release: snapshots include it, then the collector runs, then
    journal segments are dropped."""
    for _ in range(3):
        await world.settle()
        world.clock.ms += 120_000
        await world.snapshot()
        await world.collector.collect()
    await world.settle()
    await world.snapshot()


async def fill(
    world: World, name: str, appends: int, *, flush_every: int, step_ms: int = SECOND
) -> None:
    await world.create(name)
    for number in range(appends):
        await world.append(name, BODY)
        world.clock.ms += step_ms
        if (number + 1) % flush_every == 0:
            await world.service.flush(name)


async def trim(world: World, name: str, record: int, byte: int = 0, **more: int) -> Trimmed:
    found = await world.service.trim(TrimQuery(name, record, byte, **more))
    assert isinstance(found, Trimmed), found
    return found


async def set_retention(
    world: World, name: str, age: int | None = None, size: int | None = None
) -> None:
    assert (
        await world.send(SetRetention(name, Retention(age, size), world.clock.ms))
    ).code == Code.OK


async def first_kept(world: World, name: str) -> int:
    info = await world.info(name)
    assert isinstance(info, StreamInfo)
    return info.first_record


async def position_of(world: World, name: str, time_ms: int) -> int:
    page = await world.service.read(
        ReadQuery(name, Position.AT_TIME, time_ms, bytes_max=1, whole_records=True)
    )
    assert isinstance(page, Page)
    return page.begin_record


class Renewed:
    """The service of a world, in which the stream is deleted and created again before the first
    read."""

    def __init__(self, world: World, trimmed: int) -> None:
        self.world, self.trimmed = world, trimmed
        self.info, self.call, self.now_ms = (
            world.service.info,
            world.service.call,
            world.service.now_ms,
        )

    async def read(self, query: ReadQuery) -> Page | Refusal:
        world = self.world
        await world.send(Delete(query.name, world.clock.ms))
        await world.create(query.name)
        for _ in range(3):
            await world.append(query.name, BODY)
        if self.trimmed:
            await trim(world, query.name, self.trimmed)
        return await world.service.read(query)


@pytest.mark.parametrize("trimmed", [0, 2])
@story
async def test_a_trim_does_not_mix_two_streams_of_one_name(world: World, trimmed: int) -> None:
    await fill(world, A, 3, flush_every=4)
    found = await retention.trim(Renewed(world, trimmed), TrimQuery(A, 1, len(BODY)))
    assert found == Refusal(Code.NOT_FOUND), "the stream to trim is gone"
    assert await first_kept(world, A) == trimmed, "the other one is as it was"


# --- everything shrinks ---------------------------------------------------------------------------


@story
async def test_memory_journal_and_objects_shrink_with_a_trim(world: World) -> None:
    await fill(world, A, 200, flush_every=40)
    await fill(world, B, 40, flush_every=20)
    for _ in range(30):
        await world.append(A, BODY)
    await quiet_minutes(world)
    full = Held(world)
    assert full.packs == 7 and full.objects > 240_000 and full.hot == 30_000
    assert (await trim(world, A, 130)).records == 130
    await quiet_minutes(world)
    less = Held(world)
    assert less.packs == 4, "two of stream a, one of them in part, and two of stream b"
    assert less.objects < full.objects - 115_000 and less.index < full.index
    assert less.hot == full.hot
    assert await world.read(A) == BODY * 100
    await trim(world, A, Position.NOW)
    await trim(world, B, Position.NOW)
    await quiet_minutes(world)
    empty = Held(world)
    assert (empty.hot, empty.index, empty.packs, empty.objects, empty.messages, empty.known) == (
        0,
        0,
        0,
        0,
        0,
        0,
    )
    assert empty.journal <= world.segment_bytes, "one segment, the one that is written"
    world.kill()
    assert (await world.page(A)).record == 230
    await world.append(A, b"on")
    assert await world.read(A) == b"on"


@pytest.mark.parametrize("end", ["delete", "ttl", "expires"])
def test_a_stream_that_ends_releases_everything(end: str) -> None:
    """Release hot and cold bytes, partly shared packs, its pins, its producers and its index."""

    async def run() -> None:
        world = World().start()
        more = {
            "ttl": {"ttl_seconds": 3600},
            "expires": {"expires_at_ms": world.clock.ms + HOUR},
        }.get(end, {})
        for name in (A, SOURCE):
            await world.create(name, **more)
        for number in range(60):
            for name in (A, SOURCE):
                await world.append(name, BODY)
            if number % 20 == 19:
                await world.service.flush("test/")
        assert (await world.fork(CHILD, SOURCE, **more)).code == Code.CREATED
        for name in (A, CHILD):
            await world.append(name, BODY)
        assert Held(world).packs == 3
        if end == "delete":
            for name in (A, SOURCE, CHILD):
                assert (await world.delete(name)).code == Code.OK
        else:
            world.clock.ms += 2 * HOUR
            for _ in range(5 * world.groups):
                world.local.sweep()
                await world.settle()
        await quiet_minutes(world)
        left = Held(world)
        assert (left.hot, left.index, left.packs, left.objects, left.messages, left.known) == (
            0,
            0,
            0,
            0,
            0,
            0,
        ), left
        assert left.journal <= world.segment_bytes
        assert not any(
            machine.directory.streams or machine.directory.by_uid or machine.directory.retaining
            for machine in world.local.machines.values()
        )
        await world.stop()

    asyncio.run(run())


@story_on_one_and_two_cores
async def test_a_fork_keeps_what_it_inherits_whatever_becomes_of_its_source(world: World) -> None:
    await world.create(SOURCE)
    for number in range(10):
        await world.append(SOURCE, b"s%d;" % number)
        if number in (3, 6):
            await world.service.flush(SOURCE)
    assert (await world.fork(CHILD, SOURCE, (5, 15))).code == Code.CREATED
    await world.append(CHILD, b"c;")
    await trim(world, SOURCE, Position.NOW)
    assert await world.read(SOURCE) == b""
    assert await world.read(CHILD, bytes_max=4) == b"s0;s1;s2;s3;s4;c;"
    late = await world.fork(name_in(3), SOURCE, (5, 15))
    assert (late.code, late.record) == (Code.TRIMMED, 10)
    await world.delete(SOURCE)
    assert await world.read(CHILD) == b"s0;s1;s2;s3;s4;c;"
    assert (await trim(world, CHILD, 2, 999)).bytes == 6, (
        "inside what it inherits: the boundary is read"
    )
    assert await world.read(CHILD) == b"s2;s3;s4;c;"
    refused = await world.service.read(ReadQuery(CHILD, 1, 3))
    assert refused == Refusal(Code.TRIMMED, 2, 6)
    assert (await world.fork(name_in(3), CHILD, (4, 12))).code == Code.CREATED
    assert await world.read(name_in(3)) == b"s2;s3;"


@story
async def test_a_fork_that_outlives_its_past_lets_the_source_go(world: World) -> None:
    await fill(world, SOURCE, 40, flush_every=20)
    assert (await world.fork(CHILD, SOURCE)).code == Code.CREATED
    await world.append(CHILD, b"own")
    await world.delete(SOURCE)
    await quiet_minutes(world)
    assert Held(world).packs == 2
    await trim(world, CHILD, 40)
    await quiet_minutes(world)
    assert Held(world).packs == 0
    assert (await world.create(SOURCE)).code == Code.CREATED, "the name is free"
    assert await world.read(CHILD) == b"own"


# --- retention ------------------------------------------------------------------------------------


async def rounds(retainer: RetentionJob) -> None:
    for _ in range(10):
        await retainer.run_once()


def vars_of(counters: TrimCounters) -> tuple[int, int, int]:
    return counters.trims, counters.records, counters.bytes


@story
async def test_retention_by_age_keeps_what_is_young(world: World) -> None:
    await fill(world, A, 100, flush_every=40, step_ms=60 * SECOND)
    began = world.clock.ms - 100 * 60 * SECOND
    await set_retention(world, A, age=3600)
    await rounds(world.engine.retainer)
    assert await first_kept(world, A) == 40
    world.clock.ms += 5 * 60 * SECOND
    await rounds(world.engine.retainer)
    assert await first_kept(world, A) == 40, (
        "the slice is still young in part, and hardly over its age"
    )
    world.clock.ms = began + (40 + 16 + 60) * 60 * SECOND
    await rounds(world.engine.retainer)
    assert await first_kept(world, A) == 56, (
        "a quarter of the age behind: it was read, and cut inside"
    )
    world.clock.ms += 10 * DAY
    await rounds(world.engine.retainer)
    assert await first_kept(world, A) == 100
    assert not world.engine.retainer.counters.failures
    assert vars_of(world.local.trims) == (3, 100, 100_000)


@story
async def test_retention_by_bytes_keeps_at_least_so_many(world: World) -> None:
    await fill(world, A, 100, flush_every=10)
    await set_retention(world, A, size=25_000)
    for _ in range(30):
        await world.append(A, BODY)
        await rounds(world.engine.retainer)
        info = await world.info(A)
        assert isinstance(info, StreamInfo)
        assert 25_000 <= info.byte - info.first_byte <= 35_000
        assert await world.read(A) == BODY * (info.record - info.first_record)
    await quiet_minutes(world)
    assert Held(world).packs == 0 and Held(world).hot == 25_000


@story
async def test_retention_by_bytes_trims_inside_a_slice_and_a_batch_too(world: World) -> None:
    """Trim one piece of 400 kB with a limit of 100 kB: a quarter more stays."""
    await world.create(A, json=True)
    for _ in range(4):
        await world.append(A, *[b'"%s"' % (b"x" * 997)] * 100, json=True)
    await world.service.flush(A)
    await set_retention(world, A, size=100_000)
    await rounds(world.engine.retainer)
    info = await world.info(A)
    assert isinstance(info, StreamInfo)
    assert (info.record, info.first_record, info.first_byte) == (400, 300, 300_000), "to the record"
    for _ in range(2):
        world.clock.ms += 2000  # a piece is read once a second at most
        await world.append(A, *[b'"%s"' % (b"y" * 997)] * 40, json=True)
        await rounds(world.engine.retainer)
    assert await first_kept(world, A) == 380
    world.clock.ms += 2000
    await world.append(A, *[b'"%s"' % (b"z" * 997)] * 300, json=True)
    await rounds(world.engine.retainer)
    assert await first_kept(world, A) == 680, "inside a batch in memory"
    page = await world.service.read(ReadQuery(A, Position.START))
    assert isinstance(page, Page) and page.begin_record == 680
    await quiet_minutes(world)
    assert Held(world).packs == 0 and not world.engine.retainer.counters.failures


@story
async def test_a_record_that_is_larger_than_what_is_kept_is_read_in_vain_once_a_minute(
    world: World,
) -> None:
    await world.create(A)
    for size in (900_000, 1000):
        await world.append(A, b"x" * size)
    await world.service.flush(A)
    await set_retention(world, A, size=100_000)
    reads: list[str] = []
    position = world.engine.retainer._position

    async def counted(group: int, name: str, wanted: object) -> object:
        reads.append(name)
        return await position(group, name, wanted)  # type: ignore[arg-type]

    world.engine.retainer._position = counted  # type: ignore[assignment,method-assign]
    await rounds(world.engine.retainer)
    await rounds(world.engine.retainer)
    assert (await first_kept(world, A), len(reads)) == (0, 1)
    world.clock.ms += 61_000
    await rounds(world.engine.retainer)
    assert len(reads) == 2
    await world.append(A, b"x" * 100_000)
    await rounds(world.engine.retainer)
    assert (await first_kept(world, A), len(reads)) == (2, 2), "the next piece begins where it may"


@story
async def test_a_streams_own_retention_wins_over_its_buckets(world: World) -> None:
    names = ["test/own", "test/all", "test/bare", "else/where"]
    for name in names:
        await fill(world, name, 10, flush_every=5)
    await set_retention(world, "test/own", size=3000)
    await set_retention(world, "test/all")
    await world.service.set_bucket("test", Retention(None, 1000))
    await rounds(world.engine.retainer)
    assert [await first_kept(world, name) for name in names] == [5, 0, 5, 0], "whole slices go"
    await world.service.flush("")
    await world.service.set_bucket("test", None)
    assert (await world.send(SetRetention("test/own", None, world.clock.ms))).code == Code.OK
    for name in names:
        await fill(world, name, 10, flush_every=10)
    await rounds(world.engine.retainer)
    assert [await first_kept(world, name) for name in names] == [5, 0, 5, 0]


@node_story
async def test_a_bucket_holds_on_every_core(node: Node) -> None:
    names = [name_in(group) for group in (1, 2, 3, 4)]
    for name in names:
        await fill(node.worlds[0], name, 4, flush_every=2)
    await node.worlds[1].service.set_bucket("test", Retention(None, 0))
    assert await node.worlds[0].service.buckets() == {"test": Retention(None, 0)}
    for world in node.worlds:
        await rounds(world.engine.retainer)
    assert [await first_kept(node.worlds[0], name) for name in names] == [4] * 4


@story
async def test_retention_survives_a_restart_and_is_bounded_in_a_pass(world: World) -> None:
    names = [f"test/s{number}" for number in range(40)]
    for name in names:
        await world.create(name, retention=Retention(None, 0))
        await world.append(name, b"1")
    await world.snapshot()
    world.kill()
    looked: list[int] = []
    retainer = world.engine.retainer
    look = retainer._look
    retainer._look = lambda part, *rest: looked.append(len(part)) or look(part, *rest)  # type: ignore[func-returns-value,method-assign]
    await rounds(retainer)
    assert [await first_kept(world, name) for name in names] == [1] * 40
    assert looked and max(looked) <= 256
    assert sum(len(machine.directory.retaining) for machine in world.local.machines.values()) == 40
    await world.delete(names[0])
    assert sum(len(machine.directory.retaining) for machine in world.local.machines.values()) == 39


@story
async def test_a_long_index_goes_in_parts(world: World) -> None:
    await fill(world, A, 60, flush_every=1)
    await set_retention(world, A, size=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polynya.stream.features.retention.rules.ENTRIES_MAX", 16)
        seen = []
        for _ in range(10):
            await world.engine.retainer.run_once()
            seen.append(await first_kept(world, A))
    assert sorted({*seen}) == [0, 16, 32, 48, 60]


@story
async def test_a_fork_with_an_age_gives_up_what_it_inherits_in_time(world: World) -> None:
    await fill(world, SOURCE, 10, flush_every=5, step_ms=HOUR)
    assert (await world.fork(CHILD, SOURCE, retention=Retention(5 * 3600))).code == Code.CREATED
    await rounds(world.engine.retainer)
    assert await first_kept(world, CHILD) == 5, "of what it inherits, too: the source was asked"
    world.clock.ms += 6 * HOUR
    await rounds(world.engine.retainer)
    assert await first_kept(world, CHILD) == 10
    await world.settle()
    assert not world.local.machines[1].directory.streams[SOURCE].pins


# --- trims as they are asked for ------------------------------------------------------------------


@story_on_one_and_two_cores
async def test_a_trim_says_what_it_did_and_refuses_what_cannot_be(world: World) -> None:
    await world.create(A, json=True)
    for number in range(6):
        await world.append(A, b"%d" % number, b"[%d]" % number, json=True)
        if number == 3:
            await world.service.flush(A)
    info = await world.info(A)
    assert isinstance(info, StreamInfo)
    assert await trim(world, A, 3, 1) == Trimmed(info.uid, 3, 8, 3, 8)
    assert await trim(world, A, 2, 0) == Trimmed(info.uid, 3, 8)
    assert await trim(world, A, Position.START) == Trimmed(info.uid, 3, 8)
    assert await trim(world, A, Position.AT_BYTE, 15) == Trimmed(info.uid, 5, 14, 2, 6), (
        "the record that holds the byte stays"
    )
    assert isinstance(await world.service.trim(TrimQuery(A, 99, 0)), Refusal)
    assert (await world.service.trim(TrimQuery(A, 12, 36, incarnation=7))) == Refusal(
        Code.INCARNATION, info.record, info.byte
    )
    assert (await world.service.trim(TrimQuery("test/none", 1))) == Refusal(Code.NOT_FOUND)
    kept = await trim(world, A, 0, keep_bytes=7)
    assert kept.byte <= info.byte - 7 and await world.read(A) == b"[4],5,[5],"
    assert await trim(world, A, 0, keep_bytes=99) == Trimmed(info.uid, kept.record, kept.byte)
    assert (await trim(world, A, Position.NOW)).record == 12
    assert await world.read(A) == b""
    await world.append(A, b"12", json=True)
    assert await world.read(A) == b"12,"


# --- reads by time --------------------------------------------------------------------------------


@story_on_one_and_two_cores
async def test_a_time_is_found_hot_and_cold_and_in_what_a_fork_inherits(world: World) -> None:
    began = world.clock.ms
    await world.create(SOURCE)
    for number in range(30):
        world.clock.ms = began + number * SECOND
        for _ in range(2):
            await world.append(SOURCE, b"%d;" % number)
        if number in (9, 10, 19):
            await world.service.flush(SOURCE)
    world.clock.ms += 500
    assert (await world.fork(CHILD, SOURCE, (50, 0))).code == Code.CREATED
    for number in range(30, 34):
        world.clock.ms = began + number * SECOND
        await world.append(CHILD, b"%d;" % number)
    await world.service.flush(CHILD)
    for ask_ms in range(-1500, 36 * SECOND, 500):
        first = min(max(0, -(-ask_ms // SECOND)), 30) * 2
        assert await position_of(world, SOURCE, began + ask_ms) == first, ask_ms
        of_child = first if first < 50 else 50 + min(max(0, -(-ask_ms // SECOND) - 30), 4)
        assert await position_of(world, CHILD, began + ask_ms) == of_child, ask_ms
    await trim(world, SOURCE, 13)
    await trim(world, CHILD, 7)
    assert await position_of(world, SOURCE, 0) == 13
    assert await position_of(world, CHILD, 0) == 7
    assert await position_of(world, CHILD, began + 5 * SECOND) == 10, (
        "its source has trimmed that, it has not"
    )
    assert await world.service.read(ReadQuery("test/none", Position.AT_TIME, 5)) == Refusal(
        Code.NOT_FOUND
    )


@story
async def test_a_time_costs_one_slice_however_long_the_stream_is(world: World) -> None:
    began = world.clock.ms
    await fill(world, A, 400, flush_every=4)
    machine: Machine = world.local.machines[1]
    assert index.count(machine.directory.streams[A].cold) == 100
    before = world.reader.counters.misses
    assert await position_of(world, A, began + 201 * SECOND) == 201
    assert world.reader.counters.misses - before <= 1


# --- tables ---------------------------------------------------------------------------------------


@story_on_one_and_two_cores
async def test_a_table_skips_what_was_trimmed_before_it_came_and_says_so(world: World) -> None:
    table, _ = await world.tables.create("t", "test/")
    await fill(world, A, 20, flush_every=5)
    await trim(world, A, 7)
    job = await world.jobs.plan("t")
    assert job is not None
    assert [(cold.record, cold.records) for part in job.ranges for cold in part.slices] == [
        (5, 5),
        (10, 5),
        (15, 5),
    ]
    assert [part.first for part in job.ranges] == [7], (
        "of a slice that is trimmed in part it takes the rest"
    )
    lag = await world.tables.lag(table)
    assert (lag.records, lag.skipped) == (20 - 7, 7)
    await trim(world, A, 12)
    again = await world.jobs.plan("t")
    assert again is not None and again.job == job.job
    assert [cold.record for part in again.ranges for cold in part.slices] == [10, 15], (
        "less what is trimmed meanwhile"
    )
    commit = TableCommit(table.uid, job.job, "a1", "", "", "m1", "d1", 10, 0, world.clock.ms)
    await world.jobs.commit(commit)
    await world.append(A, BODY)
    await trim(world, A, Position.NOW)
    assert await world.jobs.plan("t") is None
    found = await world.tables.lag(await world.tables.find("t"))
    assert (found.records, found.skipped) == (0, 8)


@story
async def test_retention_waits_for_a_table_that_holds(world: World) -> None:
    await world.tables.create("t", "test/", hold=True)
    await fill(world, A, 20, flush_every=5)
    await set_retention(world, A, age=6)
    world.clock.ms += HOUR
    await rounds(world.engine.retainer)
    assert await first_kept(world, A) == 0, "no record is in the table yet"
    job = await world.jobs.plan("t")
    assert job is not None
    await fill(world, A, 10, flush_every=5)
    world.clock.ms += HOUR
    await rounds(world.engine.retainer)
    assert await first_kept(world, A) == 0, "a claim is no commit"
    uid = job.table.uid
    await world.jobs.commit(
        TableCommit(uid, job.job, "a1", "", "", "m1", "d1", 20, 0, world.clock.ms)
    )
    await rounds(world.engine.retainer)
    assert await first_kept(world, A) == 20, "what is in the table goes, and nothing else"
    await trim(world, A, 22)
    assert await first_kept(world, A) == 22, "a trim on request waits for no table"
    lag = await world.tables.lag(await world.tables.find("t"))
    assert (lag.records, lag.skipped) == (8, 2)
