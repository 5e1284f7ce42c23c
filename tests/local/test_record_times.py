"""Positions by the times that clients give their records, which may decrease: against a list."""

from __future__ import annotations

import random

import pytest
from msgspec import structs
from stories.service import story
from worlds.service import World, name_in
from worlds.stream import raw_batch

from polynya.local.api import Page, Position, ReadQuery, TrimQuery
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.retention.rules import cut_of
from polynya.stream.parts import Retention

SOURCE, CHILD = name_in(1), name_in(2)


async def append(world: World, name: str, time_ms: int) -> None:
    """One record of this time; 0: it has none, and its append time counts."""
    batch = structs.replace(raw_batch(b"%05d" % (time_ms % 99_999)), record_time_ms_max=time_ms)
    command = Append(name, world.clock.ms, "text/plain", batch)
    assert (await world.send(command)).code == 0


async def position_of(world: World, name: str, time_ms: int, kind: int) -> int:
    query = ReadQuery(name, kind, time_ms, bytes_max=1, whole_records=True)
    page = await world.service.read(query)
    assert isinstance(page, Page)
    return page.begin_record


async def check(world: World, name: str, times: list[int], first: int) -> None:
    """Each time that matters finds the first kept record of it or later."""
    for asked in sorted({*times, *(time + 1 for time in times), 0}):
        wanted = next((at for at in range(first, len(times)) if times[at] >= asked), len(times))
        assert await position_of(world, name, asked, Position.AT_RECORD_TIME) == wanted, asked
    newest = max(times[first:])
    found = await position_of(world, name, 0, Position.NEWEST)
    assert times[found] == newest and newest not in times[first:found]


@pytest.mark.parametrize("seed", range(3))
@story
async def test_a_record_time_is_found_wherever_it_is(world: World, seed: int) -> None:
    dice = random.Random(seed)
    await world.create(SOURCE)
    times: list[int] = []
    for number in range(60):
        own = dice.choice([0, dice.randrange(1, 2000), number * 30 + 1])
        times.append(own or world.clock.ms)
        await append(world, SOURCE, own)
        world.clock.ms += 1
        if dice.random() < 0.15:
            await world.service.flush(SOURCE)
    await check(world, SOURCE, times, 0)
    await world.fork(CHILD, SOURCE, (40, 200))
    forked = times[:40]
    for _ in range(6):
        forked.append(dice.randrange(1, 3000))
        await append(world, CHILD, forked[-1])
    for asked in {*forked, 0, 2999}:
        wanted = next((at for at, time in enumerate(forked) if time >= asked), len(forked))
        assert await position_of(world, CHILD, asked, Position.AT_RECORD_TIME) == wanted
    stream = world.local.machines[world.service.group_of(SOURCE)].directory.streams[SOURCE]
    cut = dice.randrange(1, 50)
    await world.service.trim(TrimQuery(SOURCE, cut, 5 * cut))
    assert stream.first_record == cut
    await check(world, SOURCE, times, cut)


@pytest.mark.parametrize("seed", range(3))
@story
async def test_retention_by_record_time_deletes_whole_old_pieces(world: World, seed: int) -> None:
    """Against a list of the pieces, slices and hot batches."""
    dice = random.Random(seed)
    await world.create(SOURCE)
    times: list[int] = []
    for _ in range(40):
        times.append(dice.randrange(1, 1000) + len(times) * 10)
        await append(world, SOURCE, times[-1])
        if dice.random() < 0.2 and len(times) < 30:
            await world.service.flush(SOURCE)
    machine = world.local.machines[world.service.group_of(SOURCE)]
    stream = machine.directory.streams[SOURCE]
    entries = machine.packs.index_of(stream)[:]
    pieces = [(cold.record, cold.record + cold.records) for cold in entries]
    pieces += [(batch.record, batch.record + 1) for batch in stream.hot or ()]
    assert len(entries) > 2 and len(pieces) > len(entries)
    retention = Retention(age_seconds=1, record_time=True)
    for before_ms in sorted({*times, *(time + 1 for time in times)}):
        wanted = next(
            (begin for begin, end in pieces if max(times[begin:end]) >= before_ms), len(times)
        )
        cut = cut_of(stream, retention, before_ms + 1000)
        assert (cut.inside_ms, cut.inside_byte) == (0, 0)
        assert (cut.boundary or (0, 0)) == (wanted, 5 * wanted)


@story
async def test_entries_of_version_1_are_looked_into(world: World) -> None:
    world.engine.groups.may_log = lambda machine, level: False
    await world.create(SOURCE)
    times = [5000, 1000, 9000, 2000]
    for time_ms in times:
        await append(world, SOURCE, time_ms)
        await world.service.flush(SOURCE)
    assert world.local.machines[world.service.group_of(SOURCE)].counters.level == 1
    await check(world, SOURCE, times, 0)
    stream = world.local.machines[world.service.group_of(SOURCE)].directory.streams[SOURCE]
    by_record_time = Retention(age_seconds=1, record_time=True)
    assert cut_of(stream, by_record_time, world.clock.ms).boundary is None, "by append times"
    assert cut_of(stream, by_record_time, world.clock.ms + 2000).boundary == (4, 20)
