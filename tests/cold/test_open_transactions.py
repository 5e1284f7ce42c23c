"""The workers of the object tier beside planted transactions: what is undecided stays in memory, is in
slices of its own, and is neither merged nor paged out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs
from stories.service import story
from worlds.service import CLUSTER, World
from worlds.transactions import Planter

from polynya.base import limits
from polynya.cold.rewriting.merger import Merger
from polynya.cold.settings import MergeSettings
from polynya.cold.verifier import UNMARKED, PackVerifier
from polynya.local.api import TrimQuery
from polynya.stream.command import Command
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import PackWritten
from polynya.stream.features.pages.rules import summed
from polynya.stream.parts import TRANSACTIONAL, UNDECIDED, ColdSlice, Encoding
from polynya.stream.replies import Reply
from polynya.stream.state import index
from polynya.stream.state.entries import packed
from polynya.stream.state.model import Stream

NAME = "kafka/t/0"
AGE_MS = limits.FLUSH_MAX_AGE_MS


def stream_of(world: World) -> Stream:
    return world.local.machines[world.service.group_of(NAME)].directory.streams[NAME]


def entries_of(world: World) -> list[ColdSlice]:
    machine = world.local.machines[world.service.group_of(NAME)]
    return list(machine.packs.index_of(machine.directory.streams[NAME]))


async def planter(world: World) -> Planter:
    await world.send(Create(NAME, world.clock.ms, "", Encoding.KAFKA))
    made = Planter(NAME, lambda: stream_of(world), world.send)
    made.now_ms = world.clock.ms
    return made


def hot(world: World) -> list[int]:
    return [batch.record for batch in stream_of(world).hot or ()]


@story
async def test_a_flush_ends_before_an_open_transaction_until_that_is_old(world: World) -> None:
    made = await planter(world)
    await made.write(b"0")
    made.now_ms = world.clock.ms = world.clock.ms + AGE_MS
    await made.write(b"1", producer=7)
    await made.write(b"2")
    assert await world.flusher.flush_due() == 1
    assert hot(world) == [1, 2]
    world.clock.ms += AGE_MS - 1
    assert await world.flusher.flush_due() == 0
    world.clock.ms += AGE_MS
    assert await world.flusher.flush_due() == 1
    assert hot(world) == []
    flags = [(each.record, each.flags) for each in entries_of(world)]
    assert flags == [(0, 0), (1, TRANSACTIONAL | UNDECIDED)]


@story
async def test_a_flush_does_not_end_before_an_open_transaction_when_memory_is_scarce(
    world: World,
) -> None:
    made = await planter(world)
    await made.write(b"0", producer=7)
    await made.write(b"1" * 100)
    settings = world.flusher._settings
    world.flusher._settings = structs.replace(settings, from_bytes=1, hot_bytes_max=10_000)
    assert await world.flusher.flush_due() == 0
    assert hot(world) == [0, 1]
    world.flusher._settings = structs.replace(settings, from_bytes=1, hot_bytes_max=400)
    assert await world.flusher.flush_due() == 1
    assert hot(world) == []


@story
async def test_a_flush_on_demand_ends_before_an_open_transaction(world: World) -> None:
    made = await planter(world)
    await made.write(b"0")
    await made.write(b"1", producer=7)
    await world.flusher.flush_now()
    assert hot(world) == [1]
    await made.end(7)
    await world.flusher.flush_now()
    assert [each.flags for each in entries_of(world)] == [0, 3]


def merger_of(world: World, groups: Any = None) -> Merger:
    settings = MergeSettings(interval_ms=0)
    in_flight: set[str] = set()
    return Merger(groups or world.engine.groups, world.store, settings, CLUSTER, in_flight)


class Moving:
    """The groups of a core that leads none from the intent of a pack until its slices are proposed."""

    def __init__(self, groups: Any) -> None:
        self._groups, self._away = groups, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._groups, name)

    def machines(self) -> Any:
        return {} if self._away else self._groups.machines()

    async def propose(self, group: int, command: Command) -> Reply:
        self._away = type(command) is PackWritten
        reply: Reply = await self._groups.propose(group, command)
        return reply


async def slices(world: World, made: Planter, count: int, producer: int = -1) -> None:
    """Write so many slices of a batch each."""
    for number in range(count):
        await made.write(b"%d" % number, producer=producer)
        await world.flusher.flush_now(whole=True)


@story
async def test_the_merger_ends_before_an_open_transaction_and_marks_aborted_ones(
    world: World,
) -> None:
    made, merger = await planter(world), merger_of(world)
    await slices(world, made, 20)
    await slices(world, made, 20, producer=108)
    assert await merger.merge_due() == 1
    assert [each.records for each in entries_of(world)] == [20] + [1] * 20
    await made.end(108)
    await made.write(b"seen")
    await world.flusher.flush_now()
    assert await merger.merge_due() == 1
    entries = [(each.record, each.records, each.flags) for each in entries_of(world)]
    assert entries == [(0, 20, 0), (20, 22, 7)]
    page = await world.page(NAME)
    assert [(span.record, span.records) for span in page.spans] == [(0, 20), (41, 1)]
    stream = stream_of(world)
    assert stream.kafka is not None and stream.kafka.aborted == b"", "the slice has the marks"


@story
async def test_entries_keep_their_flags_when_the_merger_leads_no_more(world: World) -> None:
    made, merger = await planter(world), merger_of(world, Moving(world.engine.groups))
    await slices(world, made, 20, producer=108)
    await made.end(108)
    await made.write(b"seen")
    await world.flusher.flush_now()
    assert await merger.merge_due() == 1
    page = await world.page(NAME)
    assert [(span.record, span.records) for span in page.spans] == [(21, 1)]
    assert [(each.records, each.flags) for each in entries_of(world)] == [(22, 7)]


@story
async def test_entries_keep_their_flags_when_the_flusher_leads_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await planter(world)
    monkeypatch.setattr(world.flusher, "_groups", Moving(world.engine.groups))
    monkeypatch.setattr(world.flusher._steps, "groups", world.flusher._groups)
    await slices(world, made, 1, producer=108)
    await made.end(108)
    await made.write(b"seen")
    assert [each.flags for each in entries_of(world)] == [TRANSACTIONAL | UNDECIDED]
    page = await world.page(NAME)
    assert [(span.record, span.records) for span in page.spans] == [(2, 1)]


@story
async def test_the_verifier_names_entries_that_have_lost_their_flags(world: World) -> None:
    """An older release published such entries: readers get the records of aborted transactions."""
    made = await planter(world)
    await made.write(b"plain")
    await slices(world, made, 2, producer=108)
    await made.end(108)
    await made.write(b"seen")
    await world.flusher.flush_now()
    groups = world.engine.groups
    verifier = PackVerifier(groups, world.store)
    assert (await verifier.verify("", groups.machines())).faults == []
    stream, machine = stream_of(world), world.local.machines[world.service.group_of(NAME)]
    lost = [structs.replace(each, flags=0) for each in entries_of(world)]
    entries = [packed(each, machine.packs.held[each.pack].number) for each in lost]
    assert stream.cold is not None
    stream.cold = index.replaced(stream.cold, 0, len(lost), b"".join(entries))
    faults = (await verifier.verify("", groups.machines())).faults
    marked = {each.pack for each in lost if each.record > 0}
    assert {(each.pack, each.kind) for each in faults} == {(key, UNMARKED) for key in marked}
    assert {name for each in faults for name in each.streams} == {NAME}


@story
async def test_entries_with_undecided_batches_are_in_no_page(world: World) -> None:
    made = await planter(world)
    await slices(world, made, 2)
    stream = stream_of(world)
    assert stream.cold is not None
    assert summed(index.joined(stream.cold), "page", 1, 1) is not None
    await slices(world, made, 1, producer=7)
    assert stream.cold is not None
    assert summed(index.joined(stream.cold), "page", 1, 1) is None


@story
async def test_a_row_goes_when_a_trim_drops_its_batches(world: World) -> None:
    made = await planter(world)
    await slices(world, made, 1, producer=108)
    await made.end(108)
    await made.write(b"seen")
    await world.flusher.flush_now()
    stream = stream_of(world)
    assert stream.kafka is not None and len(stream.kafka.aborted) == 32
    await world.fork("kafka/t/1", NAME)
    await world.service.trim(TrimQuery(NAME, 2))
    assert len(stream.kafka.aborted) == 32, "a fork reads the batches"
    assert (await world.page("kafka/t/1")).spans[0].record == 2
    await world.delete("kafka/t/1")
    await world.settle()
    await asyncio.sleep(0)
    assert stream.kafka.aborted == b""
