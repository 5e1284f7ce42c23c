"""Positions by the times that clients give their records, which may decrease: against a list."""

from __future__ import annotations

import random

import pytest
from msgspec import structs
from stories.service import story
from worlds.service import World, name_in
from worlds.stream import raw_batch

from polynya.service.api import Page, Position, ReadQuery, TrimQuery
from polynya.stream.commands import Append

SOURCE, CHILD = name_in(1), name_in(2)


async def append(world: World, name: str, time_ms: int) -> None:
    """One record of this time; 0: it has none, and its append time counts."""
    batch = structs.replace(raw_batch(b"%05d" % (time_ms % 99_999)), record_time_ms_max=time_ms)
    command = Append(name, world.clock.ms, "text/plain", batch)
    assert (await world.send(command)).code == 0


async def place_of(world: World, name: str, time_ms: int, kind: int) -> int:
    query = ReadQuery(name, kind, time_ms, bytes_max=1, whole_records=True)
    page = await world.service.read(query)
    assert isinstance(page, Page)
    return page.begin_record


async def check(world: World, name: str, times: list[int], first: int) -> None:
    """Each time that matters finds the first kept record of it or later."""
    for asked in sorted({*times, *(time + 1 for time in times), 0}):
        wanted = next((at for at in range(first, len(times)) if times[at] >= asked), len(times))
        assert await place_of(world, name, asked, Position.AT_RECORD_TIME) == wanted, asked
    newest = max(times[first:])
    found = await place_of(world, name, 0, Position.NEWEST)
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
        assert await place_of(world, CHILD, asked, Position.AT_RECORD_TIME) == wanted
    stream = world.local.machines[world.service.group_of(SOURCE)].streams[SOURCE]
    cut = dice.randrange(1, 50)
    await world.service.trim(TrimQuery(SOURCE, cut, 5 * cut))
    assert stream.first_record == cut
    await check(world, SOURCE, times, cut)
