"""Planted transactions in the slices that tables, SQL and Spark read: their rows are those of the
committed ones, whether the slices were built before the ends of the transactions or after."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from stories.service import story
from worlds.packed_appends import PackedAppends
from worlds.service import World
from worlds.transactions import Planter

from polynya.front.http.api.ranges import _stream as as_ranges
from polynya.front.http.api.table_views import ranges_of
from polynya.lakehouse.jobs.plan import Range
from polynya.lakehouse.reading.slices import read_rows
from polynya.service.stream_slices import SliceFinder
from polynya.spark.server import StreamRanges
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.features.tables.commands import ClaimRanges
from polynya.stream.parts import Encoding
from polynya.stream.replies import Reply
from polynya.stream.state.model import Stream

NAME = "kafka/t/0"
SEEN = [0, 3, 6, 9]


def stream_of(world: World) -> Stream:
    return world.local.machines[world.service.group_of(NAME)].directory.streams[NAME]


KINDS = ["late", "early", "diskless"]


async def write_transactions(world: World, kind: str) -> Planter:
    """The records 0 (plain), 1 and 2 (aborted), 3 (committed), 4 (marker), 5 (aborted), 6 (committed),
    7 and 8 (markers), 9 (plain), and an open transaction behind them."""
    early, is_diskless = kind == "early", kind == "diskless"
    profile = Profile.DISKLESS if is_diskless else Profile.REPLICATED
    await world.send(Create(NAME, world.clock.ms, "", Encoding.KAFKA, profile=profile))
    packed = PackedAppends(world.service, world.store)

    async def send(command: Command, name: str) -> Reply:
        if is_diskless and isinstance(command, Produce):
            return await packed.send(command)
        return await world.send(command, name)

    made = Planter(NAME, lambda: stream_of(world), send)
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


@pytest.mark.parametrize("kind", KINDS)
@story
async def test_a_tables_job_gets_rows(world: World, kind: str) -> None:
    made = await write_transactions(world, kind)
    claim = ClaimRanges(7, 1, 0, "kafka/", [], 1 << 20, True)
    (part,) = (await world.send(claim, NAME)).detail
    ranges = ranges_of([part])
    assert await offsets(world, ranges) == SEEN
    assert any("aborted" in each for each in ranges) == (kind != "late")
    await made.end(5)
    await made.write(b"12")
    await world.flusher.flush_now()
    again = ClaimRanges(7, 2, 1, "kafka/", [], 1 << 20, True)
    (part,) = (await world.send(again, NAME)).detail
    ranges = ranges_of([part])
    assert await offsets(world, ranges) == [10, 12]


@pytest.mark.parametrize("kind", KINDS)
@story
async def test_readers_of_slices_get_rows(world: World, kind: str) -> None:
    await write_transactions(world, kind)
    found = await SliceFinder(world.service).find(NAME, 0, -1)
    assert found is not None
    sent = as_ranges(NAME, found)
    assert await offsets(world, sent["ranges"]) == SEEN
    assert (sent["next"], sent["end"]) == (10, 10)
    spark = msgspec.json.decode(json.dumps(sent), type=StreamRanges)
    assert any(part.aborted for part in spark.ranges) == (kind != "late")
