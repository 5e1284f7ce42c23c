"""Planted transactions in the slices that tables, SQL and Spark read: their rows are those of the
committed ones, whether the slices were built before the ends of the transactions or after."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from stories.service import story
from worlds.service import World
from worlds.transactions import Planter

from polynya.front.http.api.ranges import _stream as as_ranges
from polynya.front.http.api.tables import _range as as_range
from polynya.lakehouse.jobs.plan import Range
from polynya.lakehouse.reading.slices import read_rows
from polynya.service.stream_slices import SliceFinder
from polynya.spark.server import StreamRanges
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.tables.commands import ClaimRanges
from polynya.stream.parts import Encoding
from polynya.stream.state.model import Stream

NAME = "kafka/t/0"
SEEN = [0, 3, 6, 9]


def stream_of(world: World) -> Stream:
    return world.local.machines[world.service.group_of(NAME)].directory.streams[NAME]


async def told(world: World, *, early: bool) -> Planter:
    """The records 0 (plain), 1 and 2 (aborted), 3 (committed), 4 (marker), 5 (aborted), 6 (committed),
    7 and 8 (markers), 9 (plain), and an open transaction behind them."""
    await world.send(Create(NAME, world.clock.ms, "", Encoding.KAFKA))
    made = Planter(NAME, lambda: stream_of(world), world.send)
    made.now_ms = world.clock.ms
    await made.write(b"0")
    await made.write(b"1", b"2", producer=107)
    await made.write(b"3", producer=5)
    if early:
        await world.flusher.flush_now(whole=True)
    await made.end(107)
    await made.write(b"5", producer=107)
    await made.write(b"6", producer=5)
    await made.end(5)
    await made.end(107)
    await made.write(b"9")
    await made.write(b"10", producer=5)
    await world.flusher.flush_now(whole=early)
    return made


async def offsets(world: World, ranges: list[dict[str, Any]]) -> list[int]:
    """The record numbers of the rows of ranges, as they are sent to a driver."""
    found: list[int] = []
    for each in ranges:
        part = _decoded(each)
        stored = await world.store.get_range(part.pack, part.offset, part.stored)
        for rows in read_rows(part, stored):
            found += rows.offsets.tolist()
    return found


def _decoded(sent: dict[str, Any]) -> Range:
    return msgspec.json.decode(json.dumps(sent), type=Range)


@pytest.mark.parametrize("early", [False, True])
@story
async def test_a_tables_job_gets_rows(world: World, early: bool) -> None:
    made = await told(world, early=early)
    claim = ClaimRanges(7, 1, 0, "kafka/", [], 1 << 20, True)
    (part,) = (await world.send(claim, NAME)).detail
    ranges = [as_range(part, number) for number in range(len(part.slices))]
    assert await offsets(world, ranges) == SEEN
    assert any("aborted" in each for each in ranges) == early
    await made.end(5)
    await made.write(b"12")
    await world.flusher.flush_now()
    again = ClaimRanges(7, 2, 1, "kafka/", [], 1 << 20, True)
    (part,) = (await world.send(again, NAME)).detail
    ranges = [as_range(part, number) for number in range(len(part.slices))]
    assert await offsets(world, ranges) == [10, 12]


@pytest.mark.parametrize("early", [False, True])
@story
async def test_readers_of_slices_get_rows(world: World, early: bool) -> None:
    await told(world, early=early)
    found = await SliceFinder(world.service).find(NAME, 0, -1)
    assert found is not None
    sent = as_ranges(NAME, found)
    assert await offsets(world, sent["ranges"]) == SEEN
    assert (sent["next"], sent["end"]) == (10, 10)
    spark = msgspec.json.decode(json.dumps(sent), type=StreamRanges)
    assert any(part.aborted for part in spark.ranges) == early
