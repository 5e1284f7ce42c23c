"""Transactions on diskless streams: their markers are entries of the index, until a merge makes
batches of them, and every reader gets what it gets of a replicated stream."""

from __future__ import annotations

import asyncio
from random import Random
from unittest import mock

import pytest
from stories.service import story
from worlds.packed_appends import PackedAppends
from worlds.paged import page_out
from worlds.service import CLUSTER, World
from worlds.transactions import DECIDED_MS, Planter, marker_batch

from polynya.backup.streams import BackupStreams
from polynya.cold import PackVerifier
from polynya.cold.rewriting.merger import Merger
from polynya.cold.settings import MergeSettings
from polynya.cold.steps import Steps
from polynya.local.api import Page, TrimQuery
from polynya.stream.command import Command
from polynya.stream.command_validation import fault_of
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.markers.commands import DecideEntries
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.features.pages.rules import LATE_MS
from polynya.stream.features.profiles.commands import Profile, SetProfile
from polynya.stream.machine import Machine
from polynya.stream.parts import UNDECIDED, ColdSlice, Encoding
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Stream, TableClaim
from polynya.tiering import decider as decider_module
from polynya.tiering.decider import Decider
from polynya.wire.kafka.records import decoded_records

NAME, FORK = "kafka/t/0", "kafka/t/1"
SEEN = [b"a", b"b", b"c", b"d", b"e"]  # by those that read rows
FLAGS = {0: 0, 1: 5, 3: 1, 4: 5, 5: 1, 6: 3, 7: 5, 8: 1, 9: 3, 10: 3, 11: 0}


def machine_of(world: World) -> Machine:
    return world.local.machines[world.service.group_of(NAME)]


def stream_of(world: World) -> Stream:
    return machine_of(world).directory.streams[NAME]


def entries_of(world: World) -> list[ColdSlice]:
    return list(machine_of(world).packs.index_of(stream_of(world)))


def inline_of(world: World) -> list[int]:
    return [each.record for each in entries_of(world) if each.is_inline]


async def write_transactions(world: World) -> Planter:
    """Records 0 to 13, as in test_transactions.py: two aborted transactions of one producer, a
    committed one between them, and an open one."""
    create = Create(NAME, world.clock.ms, "", Encoding.KAFKA, profile=Profile.DISKLESS)
    await world.send(create)
    packed = PackedAppends(world.service, world.store)

    async def send(command: Command, name: str) -> Reply:
        if isinstance(command, Produce):
            return await packed.send(command)
        return await world.send(command, name)

    made = Planter(NAME, lambda: stream_of(world), send)
    made.now_ms = world.clock.ms
    await made.write(b"a")
    await made.write(b"x0", b"x1", producer=108)
    await made.write(b"b", producer=7)
    await made.write(b"x2", producer=108)
    await made.write(b"c", producer=7)
    await made.end(108)
    await made.write(b"y", producer=108)
    await made.write(b"d", producer=7)
    await made.end(7)
    await made.end(108)
    await made.write(b"e")
    await made.write(b"open", producer=9)
    await made.write(b"behind")
    return made


async def values_of(world: World, name: str = NAME, **more: object) -> list[bytes]:
    found: list[bytes] = []
    page = await world.page(name, **more)  # type: ignore[arg-type]
    while True:
        for span in page.spans:
            found += [each.value or b"" for each in decoded_records(span.payload, span.record)]
        if page.up_to_date:
            return found
        page = await world.page(name, page.record, page.byte, **more)  # type: ignore[arg-type]


async def flags_of(world: World) -> dict[int, int]:
    """Return the flags of the batches that a raw reader gets one by one."""
    flags, at = dict[int, int](), 0
    while at < 12:
        page = await world.page(NAME, at, 0, bytes_max=1, raw=True)
        flags |= {span.record: span.flags for span in page.spans}
        at = page.record
    return flags


async def check(world: World) -> None:
    """Check what readers of rows, raw readers and forks get."""
    for bytes_max in (1, 1 << 20):
        assert await values_of(world, bytes_max=bytes_max) == SEEN
    assert await flags_of(world) == FLAGS


def merger_of(world: World) -> Merger:
    settings = MergeSettings(interval_ms=0)
    return Merger(world.engine.groups, world.store, settings, CLUSTER, set())


@story
async def test_markers_are_entries_of_the_index_with_the_same_bytes(world: World) -> None:
    await write_transactions(world)
    stream = stream_of(world)
    assert stream.hot is None
    assert inline_of(world) == [6, 9, 10]
    entry = next(each for each in entries_of(world) if each.record == 9)
    assert (entry.pack, entry.records, entry.length, entry.read_bytes) == ("", 1, 78, 78)
    assert entry.record_time_ms_max == DECIDED_MS
    page = await world.page(NAME, 9, 0, raw=True, bytes_max=1)
    assert bytes(page.spans[0].payload) == marker_batch(7, commit=True)
    page = await world.page(NAME, 10, 0, raw=True, bytes_max=1)
    assert bytes(page.spans[0].payload) == marker_batch(108, commit=False)
    await check(world)


@story
async def test_a_producer_of_any_id_has_its_markers(world: World) -> None:
    made = await write_transactions(world)
    for producer in ((1 << 47) + 5, (7 << 47) | (1 << 32) | 9):
        await made.write(b"z", producer=producer)
        await made.end(producer, commit=True)
        page = await world.page(
            NAME, stream_of(world).next_record - 1, 0, raw=True, uncommitted=True
        )
        assert bytes(page.spans[0].payload) == marker_batch(producer, commit=True)


@story
async def test_a_merge_makes_batches_of_the_markers(world: World) -> None:
    made = await write_transactions(world)
    await made.end(9)
    for number in range(20):
        await made.write(b"%d" % number)
    merger = merger_of(world)
    assert await merger.merge_due() == 1
    assert merger.counters.failures == 0
    assert inline_of(world) == []
    stream = stream_of(world)
    assert stream.kafka is not None and stream.kafka.aborted == b"", "the slice has the marks"
    rest = [b"open", b"behind", *(b"%d" % number for number in range(20))]
    assert await values_of(world, bytes_max=1) == SEEN + rest
    assert {at: flag for at, flag in (await flags_of(world)).items() if at < 12} == FLAGS


@story
async def test_markers_survive_a_crash_and_an_eviction(world: World) -> None:
    made = await write_transactions(world)
    world.kill()
    await check(world)
    await world.snapshot()
    world.kill()
    await check(world)
    made._send = world.send
    await made.end(9)
    assert await world.evict() == 1
    assert await values_of(world) == [*SEEN, b"open", b"behind"]
    await world.snapshot()
    world.kill()
    assert await values_of(world) == [*SEEN, b"open", b"behind"]


def decider_of(world: World) -> Decider:
    groups = world.engine.groups
    return Decider(groups, Steps(groups, world.store, asyncio.sleep), merger_of(world))


def undecided(world: World) -> list[int]:
    return [each.record for each in entries_of(world) if each.flags & UNDECIDED]


@story
async def test_slices_are_decided_where_nothing_is_merged(world: World) -> None:
    made = await write_transactions(world)
    decider = decider_of(world)
    assert undecided(world) == [1, 3, 4, 5, 7, 8, 12]
    assert await decider.decide_due() == 1, "they lie in aborted transactions, and become a pack"
    assert decider.counters.most == 7, "what the pass began with"
    assert undecided(world) == [12], "this one is open"
    assert [each.flags for each in entries_of(world) if each.record in (1, 3, 4, 7)] == [5, 1, 5, 5]
    assert machine_of(world).directory.streams[NAME].kafka.aborted == b""  # type: ignore[union-attr]
    await check(world)
    await made.end(9)
    assert await decider.decide_due() == 1, "nothing is rewritten"
    assert (decider.counters.decided, decider.counters.rewritten) == (1, 1)
    assert decider.counters.most == 1
    assert undecided(world) == []
    assert await decider.decide_due() == 0
    assert decider.counters.most == 0
    world.kill()
    assert await values_of(world) == [*SEEN, b"open", b"behind"]


@story
async def test_a_stream_with_too_many_undecided_slices_is_told_once(world: World) -> None:
    made, decider, warning = await write_transactions(world), decider_of(world), mock.Mock()
    with (
        mock.patch.object(decider_module, "UNDECIDED_MAX", 2),
        mock.patch.object(decider_module.log, "warning", warning),
    ):
        await decider.decide_due()
        await decider.decide_due()
        assert [call.args[2] for call in warning.call_args_list] == [7]
        await made.end(9)
        await decider.decide_due()
        assert len(warning.call_args_list) == 1


@story
async def test_a_slice_that_a_job_may_read_is_decided_but_not_rewritten(world: World) -> None:
    made = await write_transactions(world)
    await made.end(9)
    stream = stream_of(world)
    stream.tables = {1: TableClaim(0, 12, 1)}
    decider = decider_of(world)
    assert await decider.decide_due() == 1
    assert undecided(world) == [1, 3, 4, 5, 7, 8]
    stream.tables = {1: TableClaim(12, 12, 1)}
    assert await decider.decide_due() == 1
    assert undecided(world) == []
    assert await values_of(world) == [*SEEN, b"open", b"behind"]


@story
async def test_what_is_open_or_aborted_is_not_decided_by_a_command(world: World) -> None:
    await write_transactions(world)
    stream = stream_of(world)
    wrong = [(stream.uid, 0, 1 << 40), (stream.uid, 12, 13), (stream.uid, 2, 3), (99, 0, 9)]
    reply = await world.send(DecideEntries(wrong, world.clock.ms), NAME)
    assert (reply.code, reply.detail) == (Code.OK, [])
    assert undecided(world) == [1, 3, 4, 5, 7, 8, 12]
    assert fault_of(DecideEntries([], 1)) and fault_of(DecideEntries([(1, -1, 3)], 1))


@story
async def test_a_repeat_of_a_publish_is_known_after_the_decision(world: World) -> None:
    create = Create(NAME, world.clock.ms, "", Encoding.KAFKA)
    await world.send(create)
    made = Planter(NAME, lambda: stream_of(world), world.send)
    made.now_ms = world.clock.ms
    await made.write(b"a", producer=7)
    await world.flusher.flush_now(whole=True)
    (cold,) = entries_of(world)
    await made.end(7)
    decide = DecideEntries([(stream_of(world).uid, 0, 1)], world.clock.ms)
    assert (await world.send(decide, NAME)).detail == [0]
    term = world.engine.groups.term(machine_of(world).group)
    publish = PublishSlices(
        cold.pack, machine_of(world).group, term, [(stream_of(world).uid, cold)]
    )
    assert (await world.send(publish, NAME)).detail == [0]
    assert undecided(world) == []


@story
async def test_a_marker_brings_an_evicted_stream_back(world: World) -> None:
    """The marker keeps its number, so no late batch begins a transaction that has no end."""
    made = await write_transactions(world)
    await made.end(9)
    uid = made.uid
    assert await world.evict() == 1
    assert NAME in world.evicted
    markers = made.marker(200, commit=True, uid=uid)
    assert (await world.send(markers, NAME)).code == Code.OK
    assert world.evicted == set()
    kafka = stream_of(world).kafka
    assert kafka is not None and kafka.ended[200][0] == 1


@story
async def test_pages_have_markers(world: World) -> None:
    made = await write_transactions(world)
    for number in range(6):
        await made.write(b"%d" % number, producer=7)
        await made.end(7)
    await made.end(9)
    await merger_of(world).merge_due()
    for number in range(6):
        await made.write(b"%d" % number)
    stream = stream_of(world)
    for _ in range(3):
        await made.write(b"v")
        await made.end(7)
    world.clock.ms += LATE_MS + 1
    before = await values_of(world)
    groups, packs = world.engine.groups, dict(machine_of(world).packs.held.items())
    await page_out(groups, world.store, CLUSTER, NAME, Random(2))
    assert any(each.is_page for each in entries_of(world))
    assert await values_of(world) == before
    world.kill()
    assert await values_of(world) == before
    verified = await PackVerifier(world.engine.groups, world.store).verify(
        "", [machine_of(world).group]
    )
    assert verified.faults == [] and not verified.after
    assert stream.next_record and packs


@story
async def test_a_verification_finds_no_fault_in_markers(world: World) -> None:
    await write_transactions(world)
    verified = await PackVerifier(world.engine.groups, world.store).verify(
        "", [machine_of(world).group]
    )
    assert verified.faults == []
    assert verified.slices == len(entries_of(world)) - 3


@story
async def test_forks_inherit_markers_and_deletion_releases_nothing_twice(world: World) -> None:
    made = await write_transactions(world)
    assert (await world.fork(FORK, NAME)).code == Code.CREATED
    await world.settle()
    assert await values_of(world, FORK) == SEEN
    await made.end(9)
    await world.service.trim(TrimQuery(NAME, 11))
    assert [each.record for each in entries_of(world)][0] == 11
    assert await values_of(world, FORK) == SEEN, "of the past"
    await world.delete(NAME)
    assert await values_of(world, FORK) == SEEN
    await world.delete(FORK)
    await world.settle()
    assert not len(machine_of(world).packs.held)


@story
async def test_a_marker_waits_in_memory_while_the_profile_changes(world: World) -> None:
    made = await write_transactions(world)
    assert (await world.send(SetProfile(NAME, Profile.REPLICATED, world.clock.ms))).code == 0
    await made.end(9)
    stream = stream_of(world)
    assert stream.hot is not None and stream.hot[0].payload == marker_batch(9, commit=True)
    assert await values_of(world) == [*SEEN, b"open", b"behind"]
    assert (await world.send(SetProfile(NAME, Profile.DISKLESS, world.clock.ms))).code == 0
    assert (await world.send(made.marker(108, commit=False), NAME)).code == Code.OK
    assert stream.next_record == 15, "nothing is open: there is no marker"
    await world.flusher.flush_now()
    await world.settle()
    assert await values_of(world) == [*SEEN, b"open", b"behind"]


@story
async def test_live_readers_are_told_of_a_marker_in_the_index(world: World) -> None:
    made = await write_transactions(world)
    page = await world.page(NAME)
    assert (page.record, page.up_to_date) == (12, True)
    await made.end(9)
    page = await world.page(NAME, 12, 0)
    assert isinstance(page, Page)
    assert (page.record, page.up_to_date) == (15, True)


class Objects:
    """The objects of a world as a backup has them."""

    def __init__(self, world: World) -> None:
        self._store = world.store

    async def get_range(self, name: str, begin: int, length: int) -> bytes:
        assert name.startswith("objects/") and name != "objects/"
        return await self._store.get_range(name.removeprefix("objects/"), begin, length)


@pytest.mark.parametrize("merged", [False, True])
@story
async def test_a_reader_of_a_backup_gets_the_markers(world: World, merged: bool) -> None:
    made = await write_transactions(world)
    await made.end(9)
    if merged:
        for number in range(20):
            await made.write(b"%d" % number)
        await merger_of(world).merge_due()
    streams = BackupStreams.__new__(BackupStreams)
    streams._repository = Objects(world)  # type: ignore[assignment]
    found = [piece async for piece in streams.pieces(machine_of(world), stream_of(world))]
    payloads = [piece.payload for piece in found]
    assert marker_batch(9, commit=True) in payloads or merged
    assert sum(len(each) for each in payloads) == stream_of(world).next_byte
