"""Index entries that are parts of slices, as diskless writers leave them: read, merged, verified,
backed up and put into tables as a list of the accepted batches."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from msgspec import structs
from worlds.cold import GROUPS, CoreWorld, FaultyStore
from worlds.gaps import GappedRuns, Run
from worlds.gaps import runs as gapped
from worlds.slices import PACK, Choice, StoredRuns, choices, encodings, without_producer

from polynya.backup.repository import RepositoryReader
from polynya.backup.streams import BackupStreams
from polynya.base.errors import CorruptData
from polynya.base.names import group_of
from polynya.cold import ColdReader
from polynya.cold.rewriting.merge_planner import MergeRun
from polynya.cold.rewriting.merged_slices import MergeSource, build_merged
from polynya.cold.verifier import PackVerifier
from polynya.stream.machine import Machine
from polynya.stream.parts import ColdSlice, Encoding
from polynya.stream.read_plan import Want, cut
from polynya.stream.state import index
from polynya.stream.state.model import HotBatch, Stream
from polynya.wire.pack import PackBuilder
from polynya.wire.slice_building import build_slice
from polynya.wire.slices import built_slice, parse_run

NAME = "default/x"
TAKEN: list[Choice] = [(True, 2), (False, 1), (True, 1), (True, 3), (False, 2), (True, 1)]


def world_of(runs: StoredRuns) -> tuple[CoreWorld, Machine, Stream]:
    """Return a core with a stream whose index has these entries."""
    world = CoreWorld()
    world.create(NAME)
    machine = world.machines()[group_of(NAME, GROUPS)]
    stream = machine.directory.streams[NAME]
    for cold in runs.entries:
        number = machine.packs.hold_slice(PACK, 1)
        stream.cold = index.appended(stream.cold, index.packed(cold, number, cold.time_ms))
    stream.next_record, stream.next_byte = runs.end
    return world, machine, stream


async def stored(runs: StoredRuns) -> FaultyStore:
    store = FaultyStore()
    await store.put(PACK, [runs.data])
    return store


@given(slices=st.lists(choices, min_size=1, max_size=3), encoding=encodings)
@settings(max_examples=examples(60), deadline=None)
def test_pages_of_parts_are_those_of_a_list(slices: list[list[Choice]], encoding: Encoding) -> None:
    async def story() -> None:
        runs = StoredRuns(slices, encoding, at=(5, 50))
        reader = ColdReader(await stored(runs))
        payload, record, byte = b"", 5, 50
        for cold in runs.entries:
            end = (cold.record + cold.records, cold.byte + cold.length)
            while (record, byte) != end:
                want = Want(record, byte, 40, whole_records=True, until=end)
                plan = cut(await reader.batches(cold), want)
                payload += b"".join(piece.payload for piece in plan.pieces)  # type: ignore[union-attr]
                record, byte = plan.record, plan.byte
        assert payload == runs.payload
        assert (record, byte) == runs.end

    asyncio.run(story())


def test_parts_of_a_slice_share_one_fetch_and_each_has_its_own_batches() -> None:
    async def story() -> None:
        runs = StoredRuns([TAKEN], Encoding.BYTES)
        store = await stored(runs)
        reader = ColdReader(store)
        calls = store.calls
        found: list[HotBatch] = []
        for cold in runs.entries:
            part = await reader.slice(cold)
            found += part.hot_batches(record=cold.record, byte=cold.byte)
        assert found == without_producer(runs.batches)
        assert store.calls == calls + 1
        assert (reader.counters.misses, reader.counters.hits) == (1, len(runs.entries) - 1)

    asyncio.run(story())


def test_times_are_looked_up_in_the_part_alone() -> None:
    async def story() -> None:
        runs = StoredRuns([TAKEN], Encoding.BYTES)
        reader = ColdReader(await stored(runs))
        cold = runs.entries[1]  # the batches 2 and 3, appended at 1002 and 1003
        assert await reader.position_at(cold, 1000) == (cold.record, cold.byte)
        behind = runs.batches[2]
        assert await reader.position_at(cold, 1003) == (behind.record, behind.byte)
        assert await reader.position_at(cold, 1005) == (cold.record + 4, cold.byte + cold.length)
        assert await reader.newest_record_time(cold, 0) == 1997
        dated = await reader.position_of_record_time(cold, 1500, 0)
        assert dated == (behind.record, behind.byte)

    asyncio.run(story())


def test_neighbours_that_readers_want_at_once_are_one_request() -> None:
    async def story() -> None:
        runs = StoredRuns([TAKEN, TAKEN, TAKEN], Encoding.BYTES)
        store = await stored(runs)
        reader = ColdReader(store)
        calls = store.calls
        found = await asyncio.gather(*map(reader.slice, runs.entries))
        assert store.calls == calls + 1
        assert b"".join(bytes(part.payload) for part in found) == runs.payload
        last = runs.entries[-1]
        most = last.offset + last.stored - runs.entries[0].offset
        assert reader.counters.fetched_bytes == most

    asyncio.run(story())


def test_a_slice_behind_the_objects_end_does_not_fail_its_neighbours() -> None:
    async def story() -> None:
        runs = StoredRuns([TAKEN, TAKEN], Encoding.BYTES)
        store = FaultyStore()
        whole, beyond = runs.entries[0], runs.entries[-1]
        await store.put(PACK, [runs.data[: beyond.offset + 10]])
        reader = ColdReader(store)
        found = await asyncio.gather(
            reader.slice(whole), reader.slice(beyond), return_exceptions=True
        )
        assert cast("Any", found[0]).records == whole.records
        assert isinstance(found[1], CorruptData)

    asyncio.run(story())


def test_far_slices_are_fetched_by_requests_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polynya.cold.requests.REQUEST_BYTES_MAX", 1)

    async def story() -> None:
        runs = StoredRuns([TAKEN, TAKEN], Encoding.BYTES)
        store = await stored(runs)
        reader, calls = ColdReader(store), store.calls
        await asyncio.gather(*map(reader.slice, runs.entries))
        assert store.calls == calls + 2

    asyncio.run(story())


def test_what_the_core_has_stored_itself_is_read_without_a_request() -> None:
    async def story() -> None:
        runs = StoredRuns([TAKEN], Encoding.JSON)
        store = await stored(runs)
        reader, calls = ColdReader(store), store.calls
        cold = runs.entries[0]
        found = built_slice([runs.stored(cold)])
        reader.keep(PACK, cold.offset, found)
        size = reader.cached_bytes
        reader.keep(PACK, cold.offset, found)
        assert reader.cached_bytes == size
        parts = [await reader.slice(each) for each in runs.entries]
        assert b"".join(bytes(part.payload) for part in parts) == runs.payload
        assert store.calls == calls
        small = ColdReader(store, cache_bytes=size + 10)
        small.keep(PACK, cold.offset, found)
        small.keep("another", 8, found)
        assert small.cached_bytes == size

    asyncio.run(story())


@given(slices=st.lists(choices, min_size=2, max_size=4), encoding=encodings, data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_merges_of_parts_give_a_whole_slice(
    slices: list[list[Choice]], encoding: Encoding, data: st.DataObject
) -> None:
    runs = StoredRuns(slices, encoding)
    middle = data.draw(st.integers(0, len(runs.entries)))  # two runs may share a slice
    sources = [source(some) for some in (runs.entries[:middle], runs.entries[middle:]) if some]
    stored_bytes = {
        (cold.pack, cold.offset): memoryview(runs.stored(cold)) for cold in runs.entries
    }
    parts, made = build_merged(sources, stored_bytes, "merged", 0, {})
    assert not stored_bytes
    pack = b"".join(parts)
    found: list[HotBatch] = []
    for cold in made:
        assert cold is not None
        assert cold.first_batch == 0
        merged = parse_run(pack[cold.offset : cold.offset + cold.stored], cold)
        assert (merged.base_record, merged.base_byte) == (cold.record, cold.byte)
        assert merged.batches == cold.batches
        found += merged.hot_batches(record=cold.record, byte=cold.byte)
    assert found == without_producer(runs.batches)


def source(entries: list[ColdSlice]) -> MergeSource:
    first, last = entries[0], entries[-1]
    size = sum(cold.length for cold in entries)
    run = MergeRun(1, 1, first.record, last.record + last.records, len(entries), size)
    return MergeSource(run, entries, "", "")


def test_a_part_merges_with_a_whole_slice() -> None:
    runs = StoredRuns([TAKEN], Encoding.BYTES)
    last = runs.entries[-1]
    more = [
        structs.replace(runs.batches[0], record=runs.end[0], byte=runs.end[1], records=2),
    ]
    whole = StoredRuns([[(True, 2)]], Encoding.BYTES, at=runs.end)
    entry = structs.replace(whole.entries[0], pack="other")
    data = {
        (last.pack, last.offset): memoryview(runs.stored(last)),
        (entry.pack, entry.offset): memoryview(whole.stored(entry)),
    }
    parts, (cold,) = build_merged([source([last, entry])], data, "merged", 0, {})
    assert cold is not None
    merged = parse_run(b"".join(parts)[cold.offset : cold.offset + cold.stored], cold)
    expected = build_slice(
        Encoding.BYTES, last.record, last.byte, [runs.batches[-1], *whole.batches]
    )
    assert bytes(merged.payload) == b"".join(expected[1])[-len(merged.payload) :]
    assert merged.records == last.records + more[0].records


@pytest.mark.parametrize("damaged", [False, True])
def test_parts_of_one_slice_are_verified_once(damaged: bool) -> None:
    runs = StoredRuns([TAKEN], Encoding.BYTES)
    world = world_of(runs)[0]

    async def story() -> None:
        store = FaultyStore()
        data = bytearray(runs.data)
        data[runs.entries[0].offset + 70] ^= damaged
        await store.put(PACK, [bytes(data)])
        part = await PackVerifier(world, store).verify("", world.machines())
        assert (part.packs, part.slices, part.bytes) == (1, 1, runs.entries[0].stored)
        assert [fault.kind for fault in part.faults] == ["damaged"] * damaged

    asyncio.run(story())


@given(slices=st.lists(choices, min_size=1, max_size=3), encoding=encodings)
@settings(max_examples=examples(30), deadline=None)
def test_a_backup_gives_the_records_of_parts(
    slices: list[list[Choice]], encoding: Encoding
) -> None:
    runs = StoredRuns(slices, encoding)

    class StubRepository:
        async def get_range(self, key: str, begin: int, size: int) -> bytes:
            assert key == f"objects/{PACK}"
            return runs.data[begin : begin + size]

    async def story() -> None:
        _, machine, stream = world_of(runs)
        backup = BackupStreams(cast("RepositoryReader", StubRepository()), cast("Any", None))
        found = [each async for each in backup.pieces(machine, stream)]
        assert [(each.record, each.byte, each.records, each.payload) for each in found] == [
            (each.record, each.byte, each.records, each.payload) for each in runs.batches
        ]

    asyncio.run(story())


@given(some=gapped, encoding=encodings)
@settings(max_examples=examples(40), deadline=None)
def test_a_merge_over_gaps_is_read_and_backed_up(some: list[Run], encoding: Encoding) -> None:
    made = GappedRuns(some, encoding)
    data = {(cold.pack, cold.offset): memoryview(made.stored(cold)) for cold in made.entries}
    parts, (cold,) = build_merged([source(made.entries)], data, PACK, 0, {})
    assert cold is not None
    assert (cold.record + cold.records, cold.byte + cold.length) == made.end
    assert cold.records - cold.missing_records == sum(batch.records for batch in made.batches)

    async def story() -> None:
        store = FaultyStore()
        await store.put(PACK, parts)
        reader = ColdReader(store)
        found = (await reader.slice(cold)).hot_batches(record=0, byte=0)
        assert list(found) == without_producer(made.batches)
        times = [batch.record_time_ms_max or batch.time_ms for batch in made.batches]
        assert await reader.newest_record_time(cold, 0) == max(times)
        for time_ms in (*times, 0):
            first = next(
                batch
                for batch, own_ms in zip(made.batches, times, strict=True)
                if own_ms >= time_ms
            )
            position = await reader.position_of_record_time(cold, time_ms, 0)
            assert position == (first.record, first.byte)
        _, machine, stream = world_of(cast("Any", made))
        number = machine.packs.hold_slice(PACK, 1)
        stream.cold = index.packed(cold, number, cold.time_ms)

        class StubRepository:
            async def get_range(self, key: str, begin: int, size: int) -> bytes:
                return b"".join(parts)[begin : begin + size]

        backup = BackupStreams(cast("RepositoryReader", StubRepository()), cast("Any", None))
        pieces = [each async for each in backup.pieces(machine, stream)]
        assert [(each.record, each.byte, each.payload) for each in pieces] == [
            (each.record, each.byte, each.payload) for each in made.batches
        ]

    asyncio.run(story())


def test_a_slice_of_a_wider_span_than_its_entry_is_damage() -> None:
    made = GappedRuns([([(True, 1)], (5, 0)), ([(True, 1)], (0, 0))], Encoding.BYTES)
    data = {(cold.pack, cold.offset): memoryview(made.stored(cold)) for cold in made.entries}
    parts, (cold,) = build_merged([source(made.entries)], data, PACK, 0, {})
    assert cold is not None
    stored_bytes = b"".join(parts)[cold.offset : cold.offset + cold.stored]
    assert parse_run(stored_bytes, cold).span == (7, cold.length)
    narrow = structs.replace(cold, records=6, missing_records=4)
    with pytest.raises(CorruptData, match="does not match its index entry"):
        parse_run(stored_bytes, narrow)


def test_times_that_are_not_in_order_miss_no_record() -> None:
    async def story() -> None:
        runs = StoredRuns([[(True, 1)] * 4], Encoding.BYTES)
        for batch, time_ms in zip(runs.batches, (110, 120, 100, 105), strict=True):
            batch.time_ms = time_ms
        builder = PackBuilder()
        entry = builder.add(1, 1, build_slice(Encoding.BYTES, -1, -1, runs.batches))
        store = FaultyStore()
        await store.put(PACK, builder.finish(owner_group=1, created_ms=0)[0])
        reader, cold = ColdReader(store), entry.at(PACK, 0, 0)
        for time_ms, expected in ((0, 0), (111, 1), (120, 1), (121, 4)):
            assert (await reader.position_at(cold, time_ms))[0] == expected

    asyncio.run(story())
