"""Streams whose indexes are paged read as lists: by record, by byte, by time, in forks, in slices,
in tables, evicted or not."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from msgspec import structs
from stories.service import story
from worlds.paged import page_out
from worlds.service import CLUSTER, World, name_in
from worlds.stream import raw_batch

from polynya.base.limits import RAW_STEP_BYTES
from polynya.local.api import Page, Position, ReadQuery, TrimQuery
from polynya.service.stream_slices import SliceFinder
from polynya.service.table_jobs import TableJobs
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.pages.rules import LATE_MS
from polynya.stream.features.retention.rules import cut_of
from polynya.stream.parts import Retention
from polynya.stream.replies import Code
from polynya.stream.state.model import Stream

SOURCE, CHILD = name_in(1), name_in(2)


def stream_of(world: World, name: str) -> Stream:
    return world.local.machines[world.service.group_of(name)].directory.streams[name]


async def paged(world: World, name: str, dice: random.Random, most: int = 5) -> int:
    world.clock.ms += dice.choice([0, LATE_MS + 1])
    return await page_out(world.engine.groups, world.store, CLUSTER, name, dice, most)


async def check(world: World, name: str, records: list[bytes], first: int, *, raw: bool) -> None:
    """Read from each kept record, and from some bytes, in pages of several sizes."""
    ends = [*accumulate(map(len, records), initial=0)]
    for at in range(first, len(records) + 1):
        for bytes_max in (1, 40, 1 << 20):
            page = await world.page(name, at, ends[at], bytes_max=bytes_max, whole_records=True)
            assert (page.begin_record, page.begin_byte) == (at, ends[at])
            end = page.record
            assert b"".join(bytes(span.payload) for span in page.spans) == b"".join(records[at:end])
            assert page.up_to_date == (end == len(records))
            assert end > at or at == len(records), "it goes on"
            assert page.byte == ends[end]
            if bytes_max > 40:
                assert page.up_to_date
    for byte in range(ends[first], ends[-1], 7):
        page = await world.page(name, Position.AT_BYTE, byte, bytes_max=30)
        inside = max(at for at in range(len(records)) if ends[at] <= byte)
        begin = byte if raw else ends[inside]
        assert page.begin_byte == begin
        found = b"".join(bytes(span.payload) for span in page.spans)
        assert found and b"".join(records)[begin:].startswith(found)
    for bytes_max in (1, 64, 1 << 20):
        assert await world.read(name, bytes_max=bytes_max) == b"".join(records[first:])


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize("seed", range(4))
@story
async def test_a_paged_stream_reads_as_a_list(world: World, seed: int, json: bool) -> None:
    dice = random.Random(seed)
    await world.create(SOURCE, json=json)
    records: list[bytes] = []
    made = 0
    for number in range(50):
        some = [
            b"%d" % (number * 7 + each) * dice.randint(1, 4) for each in range(dice.randint(1, 3))
        ]
        some = some if json else some[:1]
        await world.append(SOURCE, *some, json=json)
        records += [each + b"," for each in some] if json else some
        if dice.random() < 0.5:
            await world.service.flush(SOURCE)
        if dice.random() < 0.1:
            made += await paged(world, SOURCE, dice)
    made += await paged(world, SOURCE, dice)
    assert made > 2
    await check(world, SOURCE, records, 0, raw=not json)
    ends = [*accumulate(map(len, records), initial=0)]
    point = dice.randrange(5, len(records) - 5)
    assert (await world.fork(CHILD, SOURCE, (point, ends[point]))).code == Code.CREATED
    forked = records[:point]
    for _ in range(3):
        await world.append(CHILD, b"77", json=json)
        forked.append(b"77," if json else b"77")
    await check(world, CHILD, forked, 0, raw=not json)
    cut = dice.randrange(2, len(records))
    await world.service.trim(TrimQuery(SOURCE, cut, ends[cut]))
    assert stream_of(world, SOURCE).first_record == cut
    await check(world, SOURCE, records, cut, raw=not json)
    await check(world, CHILD, forked, 0, raw=not json)
    await world.settle()
    for _ in range(3):
        world.clock.ms += 4_000_000
        await world.collector.collect()
        await world.settle()
    await check(world, SOURCE, records, cut, raw=not json)
    await check(world, CHILD, forked, 0, raw=not json)
    await world.snapshot()
    world.kill()
    await check(world, SOURCE, records, cut, raw=not json)
    assert await world.read(CHILD) == b"".join(forked)
    for name in (SOURCE, CHILD):
        await world.delete(name)
    for _ in range(4):
        await world.settle()
        await world.snapshot()
        world.clock.ms += 4_000_000
        await world.collector.collect()
    assert not [key for key in world.store.objects if "s/" in key], "all is released"  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(3))
@story
async def test_times_are_found_in_pages(world: World, seed: int) -> None:
    dice = random.Random(seed)
    await world.create(SOURCE)
    times: list[int] = []
    own_times: list[int] = []
    for _ in range(60):
        world.clock.ms += dice.choice([0, 1, 50])
        times.append(world.clock.ms)
        own_times.append(dice.choice([0, dice.randrange(1, 2000)]) or world.clock.ms)
        batch = structs.replace(
            raw_batch(b"12345"),
            record_time_ms_max=0 if own_times[-1] == world.clock.ms else own_times[-1],
        )
        assert (await world.send(Append(SOURCE, world.clock.ms, "text/plain", batch))).code == 0
        if dice.random() < 0.4:
            await world.service.flush(SOURCE)
    assert await paged(world, SOURCE, dice) > 1
    cut = 0
    for cut in (0, dice.randrange(1, 50)):
        if cut:
            await world.service.trim(TrimQuery(SOURCE, cut, 5 * cut))
        for asked in sorted({*times, *own_times, 0, times[-1] + 1}):
            for kind, known in (
                (Position.AT_TIME, times),
                (Position.AT_RECORD_TIME, own_times),
            ):
                query = ReadQuery(SOURCE, kind, asked, bytes_max=1, whole_records=True)
                page = await world.service.read(query)
                assert isinstance(page, Page)
                wanted = next((at for at in range(cut, 60) if known[at] >= asked), 60)
                assert page.begin_record == wanted, (kind, asked)
        page = await world.page(SOURCE, Position.NEWEST, bytes_max=1, whole_records=True)
        newest = max(own_times[cut:])
        assert own_times[page.begin_record] == newest
        assert newest not in own_times[cut : page.begin_record]


@story
async def test_retention_cuts_inside_a_page(world: World) -> None:
    await world.create(SOURCE)
    for _ in range(30):
        world.clock.ms += 1000
        await world.append(SOURCE, b"x" * 1000)
        await world.service.flush(SOURCE)
    assert await page_out(world.engine.groups, world.store, CLUSTER, SOURCE, random.Random(2), 30)
    stream = stream_of(world, SOURCE)
    first_ms = world.clock.ms - 29_000
    cut = cut_of(stream, Retention(age_seconds=10), world.clock.ms)
    assert cut.inside_ms == world.clock.ms - 10_000 > first_ms
    position = await world.local.reads.times.position_at(
        world.service.group_of(SOURCE), ReadQuery(SOURCE, Position.AT_TIME, cut.inside_ms)
    )
    assert position == (19, 19_000)


@story
async def test_slices_in_pages_are_told(world: World) -> None:
    await world.create(SOURCE)
    for _ in range(40):
        await world.append(SOURCE, b"x")
        await world.service.flush(SOURCE)
    finder, dice = SliceFinder(world.service), random.Random(5)
    before = await finder.find(SOURCE, 0, -1)
    assert await paged(world, SOURCE, dice) > 3
    assert await finder.find(SOURCE, 0, -1) == before
    assert before is not None
    for first, end in ((0, 7), (5, 6), (13, 38), (39, 40), (12, -1)):
        found = await finder.find(SOURCE, first, end)
        assert found is not None
        stop = 40 if end < 0 else end
        assert [each.record for each in found.slices] == list(range(first, stop))
        assert found.end >= stop


@story
async def test_long_answers_about_pages_are_cut(world: World) -> None:
    await world.create(SOURCE)
    for _ in range(40):
        await world.append(SOURCE, b"x")
        await world.service.flush(SOURCE)
    assert await paged(world, SOURCE, random.Random(5)) > 3
    finder, first, found = SliceFinder(world.service), 0, list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polynya.service.stream_slices.RANGES_PER_ANSWER_MAX", 3)
        while first < 40:
            answer = await finder.find(SOURCE, first, -1)
            assert answer is not None and 0 < len(answer.slices) <= 3
            found += [each.record for each in answer.slices]
            first = answer.end
    assert found == list(range(40))


@pytest.mark.parametrize("seed", range(3))
@story
async def test_tables_take_the_records_of_pages_once(world: World, seed: int) -> None:
    dice = random.Random(seed)
    world.jobs = TableJobs(world.service, world.service.flush)
    await world.create(SOURCE)

    async def grow() -> None:
        for _ in range(20):
            await world.append(SOURCE, b"x")
            await world.service.flush(SOURCE)

    await grow()
    assert await paged(world, SOURCE, dice) > 1
    cut = dice.randrange(1, 10)
    await world.service.trim(TrimQuery(SOURCE, cut, cut))
    await world.tables.create("t", SOURCE.rpartition("/")[0] + "/")
    rows: list[int] = []
    for _ in range(2):
        planned = await world.jobs.plan("t")
        assert planned is not None
        for part in planned.ranges:
            assert not any(cold.is_page for cold in part.slices)
            for cold in part.slices:
                rows += range(max(cold.record, part.first), cold.record + cold.records)
        await paged(world, SOURCE, dice)  # the plan is taken again
        again = await world.jobs.plan("t")
        assert again is not None and again.ranges == planned.ranges
        await world.jobs.commit(commit_of(world, planned))
        await paged(world, SOURCE, dice)
        await grow()
    assert rows == list(range(min(rows), 40))
    assert cut - 5 < min(rows) <= cut


def commit_of(world: World, planned: object) -> object:
    from polynya.stream.features.tables.commands import TableCommit

    table = planned.table  # type: ignore[attr-defined]
    main = f"main-{planned.attempt}"  # type: ignore[attr-defined]
    return TableCommit(
        table.uid,
        planned.job,  # type: ignore[attr-defined]
        planned.attempt,  # type: ignore[attr-defined]
        table.main,
        table.dlq,
        main,
        main,
        1,
        0,
        world.clock.ms,
    )


@story
async def test_an_evicted_stream_keeps_its_pages(world: World) -> None:
    await world.create(SOURCE)
    records = [b"%d" % number for number in range(30)]
    for each in records:
        await world.append(SOURCE, each)
        await world.service.flush(SOURCE)
    assert await paged(world, SOURCE, random.Random(3)) > 1
    assert await world.evict() == 1
    assert world.evicted == {SOURCE}
    for _ in range(2):
        world.clock.ms += 4_000_000
        await world.collector.collect()
        await world.settle()
    assert await world.read(SOURCE) == b"".join(records)
    assert world.evicted, "it was read where it is"
    await world.append(SOURCE, b"more")
    assert not world.evicted
    assert await world.read(SOURCE, bytes_max=9) == b"".join(records) + b"more"


@story
async def test_large_records_in_pages_are_read_in_steps(world: World) -> None:
    await world.create(SOURCE)
    record = bytes(range(256)) * (3 * RAW_STEP_BYTES // 256)
    for _ in range(6):
        await world.append(SOURCE, record)
        await world.service.flush(SOURCE)
    assert await page_out(world.engine.groups, world.store, CLUSTER, SOURCE, random.Random(1), 6)
    assert await world.read(SOURCE, bytes_max=RAW_STEP_BYTES) == record * 6
    assert await world.read(SOURCE, bytes_max=RAW_STEP_BYTES, sequential=True) == record * 6
