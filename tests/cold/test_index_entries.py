"""The entries that flushing and merging give the index: what version 2 has, and gaps in numbers."""

from __future__ import annotations

from pathlib import Path

from test_mixed_encodings import NAME, batches_of, produce, stream_of
from worlds.backup import BackedUp, FakeSource, opened, restored, taken
from worlds.cold import CLUSTER, GROUPS, Tier, no_sleep, play

from polynya.base.names import group_of
from polynya.cold import Evictor, EvictSettings, StateReader
from polynya.front.http.api.table_views import range_of
from polynya.objectstore import MemoryStore
from polynya.stream.features.pages.commands import Return
from polynya.stream.features.pages.eviction import evicted_views, slice_of
from polynya.stream.features.tables.rules import ClaimedRange
from polynya.stream.parts import ColdSlice, Encoding
from polynya.stream.state.entries import UNKNOWN_MS
from polynya.stream.state.index import record_time_ms_max
from polynya.wire.pack import read_footer


def test_an_entry_says_what_its_slice_holds() -> None:
    async def story() -> None:
        tier = Tier()
        tier.append(NAME, b"one")
        tier.world.now += 5
        tier.append(NAME, b"two")
        await tier.flusher.flush_now()
        (cold,) = tier.indexes()[NAME]
        assert (cold.encoding, cold.batches, cold.first_batch, cold.flags) == (0, 2, 0, 0)
        assert cold.record_time_ms_max == tier.world.now
        assert tier.world.machines()[group_of(NAME, GROUPS)].counters.level == 3
        (key,) = tier.store.objects
        (entry,) = read_footer(tier.store.objects[key][0]).entries
        assert entry.at(key, 0, 0, time_ms=cold.time_ms) == cold

    play(story)


def test_below_level_3_entries_are_of_version_1() -> None:
    async def story() -> None:
        tier = Tier()
        tier.world.may_log = lambda machine, level: machine.counters.level >= 3
        for number in range(40):
            tier.append(NAME, b"%d" % number)
            await tier.flusher.flush_now()
        await tier.merger.merge_due()
        assert tier.merger.counters.slices
        stream, machine = stream_of(tier), tier.world.machines()[group_of(NAME, GROUPS)]
        assert machine.counters.level == 1
        assert {cold.encoding for cold in tier.indexes()[NAME]} == {-1}
        assert stream.cold is not None and record_time_ms_max(stream.cold, 0) == UNKNOWN_MS
        machine.counters.level = 3
        tier.append(NAME, b"more")
        await tier.flusher.flush_now()
        assert [cold.encoding for cold in tier.indexes()[NAME]][-1] == Encoding.BYTES
        await tier.check()

    play(story)


def each_batch(runs: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Divide runs into batches of two records and two bytes."""
    return [
        (record + at, byte + at, payload[at : at + 2])
        for record, byte, payload in runs
        for at in range(0, len(payload), 2)
    ]


async def with_gaps(tier: Tier, batches: int) -> list[tuple[int, int, bytes]]:
    """Build a stream of batches of two records, with small gaps, in packs; return its content."""
    expected = []
    for number in range(batches):
        stream = stream_of(tier) if number else None
        at = (stream.next_record, stream.next_byte) if stream is not None else (0, 0)
        produce(tier, 2, b"%02d" % number)
        expected.append((*at, b"%02d" % number))
        if number % 20 == 9:
            stream_of(tier).next_record += 7  # as if records were removed
        if number % 20 != 9:  # a flush finds what lies on both sides of a gap
            await tier.flusher.flush_now()
    return expected


def test_small_gaps_outlive_an_eviction_and_a_restore(tmp_path: Path) -> None:
    async def story() -> None:
        tier = BackedUp()
        expected = await with_gaps(tier, 31)
        tier.world.now += 10_000
        evictor = Evictor(
            tier.world,
            tier.store,
            EvictSettings(after_ms=1000, few=1),
            CLUSTER,
            in_flight=tier.flusher.in_flight,
            sleep=no_sleep,
        )
        assert await evictor.evict_due() == 1
        machine = tier.world.machines()[group_of(NAME, GROUPS)]
        assert NAME in machine.directory.evicted
        (view,) = evicted_views(machine)
        state = await StateReader(tier.store).state(slice_of(machine, view))
        tier.world.apply(group_of(NAME, GROUPS), Return([(NAME, view.uid, state)], tier.world.now))
        assert each_batch(await batches_of(tier)) == expected
        repository, store = MemoryStore(), MemoryStore()
        manifest, _ = await taken(FakeSource(tier), repository)
        await restored(tmp_path, repository, manifest, store)
        machines, storages = opened(tmp_path)
        tier.store.objects = store.objects
        for number, machine in machines.items():
            tier.world.machines()[number] = machine
        tier.reader = tier.new_reader()
        assert each_batch(await batches_of(tier)) == expected
        for storage in storages:
            storage.journal.close()

    play(story)


def test_small_gaps_are_flushed_merged_and_read() -> None:
    async def story() -> None:
        tier = Tier()
        expected = await with_gaps(tier, 60)
        spans = [(cold.record, cold.records, cold.missing_records) for cold in tier.indexes()[NAME]]
        assert [missing for _, _, missing in spans if missing] == [7, 7, 7]
        ends = [record + records for record, records, _ in spans]
        assert ends[:-1] == [record for record, *_ in spans][1:], "entries touch"
        assert each_batch(await batches_of(tier)) == expected
        for _ in range(4):
            await tier.merger.merge_due()
        assert not tier.merger.counters.failures and tier.merger.counters.slices == 60
        merged = tier.indexes()[NAME]
        assert len(merged) < len(spans) and sum(cold.missing_records for cold in merged) == 21
        assert each_batch(await batches_of(tier)) == expected

    play(story)


def test_a_claim_counts_what_a_slice_holds() -> None:
    """A driver reads by records and bytes of the object, not by spans."""
    cold = ColdSlice(10, 100, 9, 50, "p", 8, 99, 7, 1, 0, 5, missing_records=4, missing_bytes=3)
    shown = range_of(ClaimedRange(7, "docs/a", "text/plain", 0, [cold]), 0)
    assert (shown["record"], shown["records"], shown["length"]) == (10, 5, 47)
    assert "take" not in shown
    part = range_of(ClaimedRange(7, "docs/a", "text/plain", 0, [cold], 12, 17), 0)
    assert (part["skip"], part["take"], part["numbers"]) == (2, 5, 9)
