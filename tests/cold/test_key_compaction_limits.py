"""The limits of key compaction: forks, tables, transactions, damage, memory, and workers beside
it."""

from __future__ import annotations

from struct import pack_into

import google_crc32c
import pytest
from msgspec import structs
from test_evictor import bring_all, evicted, evictor_of
from worlds.cold import GROUPS, play
from worlds.compaction import NAME, KeyedTier
from worlds.stream import kafka_batch
from worlds.transactions import marker_batch

from polynya.base.errors import CorruptData
from polynya.base.names import group_of
from polynya.cold.compaction import compactor as module
from polynya.cold.compaction.planner import CompactionPolicy
from polynya.cold.compaction.work import _fit
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.compaction.commands import NoteCompaction, SetCompaction
from polynya.stream.features.compaction.progress import compaction_of
from polynya.stream.features.packs.commands import ReplaceSlices
from polynya.stream.features.pages.eviction import is_evictable, mark_of
from polynya.stream.features.retention.commands import Trim
from polynya.stream.features.tables.state import Watch
from polynya.stream.parts import ABORTED, CONTROL, TRANSACTIONAL
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import machine_from, snapshot_of
from polynya.stream.state.model import Pin, TableClaim
from polynya.wire.kafka.batches import Record, build_batch

GROUP = group_of(NAME, GROUPS)
DAY_MS = 86_400_000


async def write(tier: KeyedTier, *values: bytes, key: bytes = b"a") -> None:
    """Write batches of one record with a key, each a slice."""
    for value in values:
        tier.produce((key, value))
        await tier.flush()


def pin(tier: KeyedTier, record: int) -> None:
    stream = tier.stream()
    stream.pins = {"1": Pin("kafka/f/0", record, 0, tier.world.now, confirmed=True)}


def test_a_pin_keeps_its_records_and_all_tombstones_behind_them() -> None:
    async def story() -> None:
        tier = KeyedTier(policy=CompactionPolicy(delete_retention_ms=0))
        await write(tier, b"1", b"2", b"3", b"4")
        pin(tier, 2)
        tier.produce((b"a", None))
        tier.produce((b"b", b"last"))
        await tier.flush()
        for _ in range(3):
            done = await tier.compact()
            tier.world.now += 2 * module.DAMAGE_REST_MS
        assert done is not None
        assert sorted(await tier.check_keys()) == [0, 1, 4, 5]
        assert compaction_of(tier.stream()).cleaned == 0
        assert tier.compactor.counters.held_passes == 3
        tier.stream().pins = None
        for _ in range(3):
            await tier.compact()
            tier.world.now += 1
        assert sorted(await tier.check_keys(gone=[b"a"])) == [5]

    play(story)


@pytest.mark.parametrize("what", ["pin", "claim"])
def test_a_slice_that_is_needed_after_the_plan_is_refused(what: str) -> None:
    async def story() -> None:
        tier = KeyedTier()
        await write(tier, b"1", b"2", b"3")

        def plant(number: int, command: object) -> str:
            if isinstance(command, ReplaceSlices):
                if what == "pin":
                    pin(tier, 2)
                else:
                    tier.stream().tables = {1: TableClaim(0, 3, 1)}
            return ""

        tier.world.fail = plant
        await tier.compactor.compact_due()
        assert len(await tier.check_keys()) == 3
        assert (tier.compactor.counters.refused, tier.compactor.counters.passes) == (1, 0)
        assert compaction_of(tier.stream()).generation == 0
        assert await tier.compactor.compact_due() == 0, "it rests"

    play(story)


def test_cleaned_is_refused_with_a_pin_another_generation_or_beyond_the_packs() -> None:
    async def story() -> None:
        tier = KeyedTier()
        await write(tier, b"1", b"2")
        uid = tier.stream().uid
        note = NoteCompaction(uid, 2, 9, 0, 1, 1, tier.world.now)
        for wrong in (
            structs.replace(note, generation=1),
            structs.replace(note, cleaned=3),
            structs.replace(note, tombstones=3),
        ):
            assert tier.world.apply(GROUP, wrong).code == Code.NOT_YET
        pin(tier, 1)
        assert tier.world.apply(GROUP, note).code == Code.NOT_YET
        pin(tier, 0)
        assert tier.world.apply(GROUP, note).code == Code.OK
        assert tier.world.apply(GROUP, note).code == Code.NOT_YET, "a repeat"
        assert tier.world.apply(GROUP, structs.replace(note, uid=uid + 9)).code == Code.NOT_FOUND

    play(story)


@pytest.mark.parametrize("hold", [False, True])
def test_records_that_a_table_has_not_read_stay(hold: bool) -> None:
    async def story() -> None:
        tier = KeyedTier()
        await write(tier, b"1", b"2", b"3", b"4")
        tier.machine().claims.watches[7] = Watch(7, ["kafka/t/"], hold)
        assert await tier.compact() is None, "no claim yet"
        tier.stream().tables = {7: TableClaim(2, 2, 1)}
        await tier.compact()
        assert sorted(await tier.check_keys()) == [1, 2, 3]
        tier.world.now += DAY_MS + 1
        await tier.compact()
        assert len(await tier.check_keys()) == (3 if hold else 1)

    play(story)


def test_a_pass_is_planned_as_its_stream_is_then() -> None:
    """A trim while another stream is compacted moves the numbers of the entries."""

    async def story() -> None:
        tier = KeyedTier()
        await write(tier, b"1", b"2", b"3", b"4")
        other = "kafka/t/3"
        tier.policies = {other: CompactionPolicy(), NAME: CompactionPolicy()}
        for value in (b"1", b"2", b"3"):
            tier.produce((b"x", value), name=other)
            await tier.flush()
        tier.machine().claims.watches[7] = Watch(7, [NAME], hold=True)
        tier.stream().tables = {7: TableClaim(3, 3, 1)}

        def trim(number: int, command: object) -> str:
            if (
                isinstance(command, ReplaceSlices)
                and command.replacements[0][0] != tier.stream().uid
            ):
                uid, cut = tier.stream().uid, tier.machine().packs.index_of(tier.stream())[1]
                tier.world.apply(GROUP, Trim([(uid, cut.record, cut.byte)], tier.world.now))
            return ""

        tier.world.fail = trim
        assert await tier.compactor.compact_due() == 2
        assert tier.stream().first_record == 1
        assert sorted(await tier.read_pairs(record=1)) == [2, 3], "the table has not read the last"

    play(story)


def test_a_pass_that_is_asked_for_during_another_one_follows_it() -> None:
    async def story() -> None:
        tier = KeyedTier()
        await write(tier, b"1", b"2")

        def ask(number: int, command: object) -> str:
            if isinstance(command, NoteCompaction):
                tier.compactor.force(NAME)
            return ""

        tier.world.fail = ask
        assert await tier.compactor.compact_due() == 1
        tier.world.fail = lambda number, command: "before"
        assert await tier.compactor.compact_due() == 0, "the log fails"
        assert tier.compactor.is_waiting(NAME)
        tier.world.fail = lambda number, command: ""
        assert await tier.compactor.compact_due() == 1
        assert not tier.compactor.is_waiting(NAME)

    play(story)


def test_young_records_stay() -> None:
    async def story() -> None:
        tier = KeyedTier(policy=CompactionPolicy(min_lag_ms=1000))
        await write(tier, b"1", b"2")
        tier.world.now += 600
        await write(tier, b"3", b"4")
        tier.world.now += 600
        await tier.compact()
        assert sorted(await tier.check_keys()) == [1, 2, 3]

    play(story)


def test_an_old_record_is_compacted_below_the_ratio() -> None:
    async def story() -> None:
        tier = KeyedTier(policy=CompactionPolicy(dirty_ratio=1.0, max_lag_ms=1000))
        await write(tier, b"1" * 500)
        await tier.compact()
        await write(tier, b"2")
        assert await tier.compactor.compact_due() == 0
        tier.world.now += 1000
        assert await tier.compactor.compact_due() == 1
        assert sorted(await tier.check_keys()) == [1]

    play(story)


def transactional(tier: KeyedTier, key: bytes, value: bytes, *, aborted: bool) -> None:
    """Append a batch of a transaction that is decided already."""
    made = bytearray(build_batch([Record(key, value, tier.world.now)]))
    pack_into(">h", made, 21, 0x10)
    pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
    flags = TRANSACTIONAL | (ABORTED if aborted else 0)
    _append(tier, bytes(made), flags)
    if not aborted:
        tier.records[NAME][tier.stream().next_record - 1] = (key, value)


def marker(tier: KeyedTier, *, commit: bool) -> None:
    _append(tier, marker_batch(1, commit=commit), TRANSACTIONAL | CONTROL)


def _append(tier: KeyedTier, payload: bytes, flags: int) -> None:
    batch = structs.replace(kafka_batch(1, payload), flags=flags)
    assert tier.world.apply(GROUP, Produce(NAME, tier.world.now, batch)).code == Code.OK


def present(tier: KeyedTier) -> int:
    """The records of the index, those of control batches included."""
    entries = tier.machine().packs.index_of(tier.stream())
    return sum(each.records - each.missing_records for each in entries)


def test_aborted_records_win_no_key_and_abort_markers_go_after_them() -> None:
    async def story() -> None:
        tier = KeyedTier()
        await write(tier, b"1")
        transactional(tier, b"a", b"committed", aborted=False)
        marker(tier, commit=True)
        transactional(tier, b"a", b"aborted", aborted=True)
        marker(tier, commit=False)
        await write(tier, b"x", key=b"b")
        await tier.compact()
        assert present(tier) == 3, "the last value of both keys, and the marker of the abort"
        assert sorted(await tier.check_keys()) == [1, 5]
        await tier.compact()
        assert present(tier) == 2
        await tier.check_keys()

    play(story)


def test_markers_have_no_keys() -> None:
    """All markers have the same key: as records of it, only the last one would stay."""

    async def story() -> None:
        tier = KeyedTier()
        await write(tier, b"1")
        for number in range(3):
            transactional(tier, b"k%d" % number, b"no", aborted=True)
            marker(tier, commit=False)
        await write(tier, b"2")
        await tier.compact()
        assert present(tier) == 4, "three markers"

    play(story)


def test_a_marker_at_the_end_stays() -> None:
    async def story() -> None:
        tier = KeyedTier()
        await write(tier, b"1")
        transactional(tier, b"a", b"2", aborted=False)
        marker(tier, commit=True)
        await tier.flush()
        for _ in range(3):
            await tier.compact()
        assert present(tier) == 2
        assert sorted(await tier.check_keys()) == [1]

    play(story)


def test_a_merge_that_was_read_before_a_pass_does_not_bring_values_back() -> None:
    async def story() -> None:
        tier = KeyedTier()
        for number in range(20):
            await write(tier, b"%d" % number)
        source = tier.merger._look
        merged = []

        async def look() -> object:
            found = await source()
            assert found
            tier.merger.in_hand.uids.add(tier.stream().uid)
            return found

        tier.merger._look = look  # type: ignore[method-assign, assignment]
        merged.append(await tier.merger.merge_due())
        assert merged == [0], "a pass has the stream"
        assert await tier.compactor.compact_due() == 0, "a merge has it"
        tier.merger.in_hand.uids.clear()
        tier.merger._look = source  # type: ignore[method-assign]
        assert await tier.compactor.compact_due() == 1
        assert len(await tier.check_keys()) == 1

    play(story)


def test_a_batch_that_cannot_be_decoded_stays_and_the_pass_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        tier = KeyedTier(policy=CompactionPolicy(delete_retention_ms=0))
        await write(tier, b"1", b"2")
        broken = bytearray(build_batch([Record(b"a", b"broken", tier.world.now)]))
        pack_into(">h", broken, 21, 4)  # no zstd
        pack_into(">I", broken, 17, google_crc32c.value(bytes(broken[21:])))
        _append(tier, bytes(broken), 0)
        await tier.flush()
        await write(tier, b"4")
        tier.produce((b"a", None))
        tier.produce((b"b", b"last"))
        await tier.flush()
        await tier.compactor.compact_due()
        assert "the batch at record 2 cannot be decoded" in caplog.text
        assert present(tier) == 3, "the broken one, the tombstone and the last"
        assert (tier.compactor.counters.passes, tier.compactor.counters.held_passes) == (0, 1)
        assert tier.compactor.last[tier.stream().uid].damage
        assert await tier.compactor.compact_due() == 0, "it rests"
        tier.world.now += module.DAMAGE_REST_MS
        await tier.compactor.compact_due()
        assert present(tier) == 3, "the tombstone hides what cannot be decoded"

    play(story)


def test_a_full_map_ends_a_pass_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polynya.cold.compaction.key_map.SLOTS_MIN", 1)
    monkeypatch.setattr(module, "MAP_BYTES", 24 * 8)

    async def story() -> None:
        tier = KeyedTier(policy=CompactionPolicy(dirty_ratio=0.0))
        for number in range(60):
            await write(tier, b"%d" % number, key=b"k%d" % (number % 20))
        passes = 0
        while await tier.compactor.compact_due():
            passes += 1
            await tier.check_keys()
        assert passes > 4, "a map has room for six keys"
        assert len(await tier.check_keys()) == 20

    play(story)


def test_a_slice_with_more_keys_than_the_map_holds_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("polynya.cold.compaction.key_map.SLOTS_MIN", 1)
    monkeypatch.setattr(module, "MAP_BYTES", 24 * 8)

    async def story() -> None:
        tier = KeyedTier()
        tier.produce(*[(b"k%d" % number, b"") for number in range(50)])
        await tier.flush()
        assert await tier.compactor.compact_due() == 1
        assert "more keys than the map has room for" in caplog.text
        assert await tier.compactor.compact_due() == 0
        assert len(await tier.check_keys()) == 50

    play(story)


def test_a_compacted_stream_is_evicted_and_known_by_its_horizon() -> None:
    async def story() -> None:
        tier = KeyedTier(policy=CompactionPolicy(delete_retention_ms=DAY_MS))
        await write(tier, b"1", b"2")
        tier.produce((b"b", None))
        tier.produce((b"c", b"last"))
        await tier.flush()
        before = mark_of(tier.stream())
        await tier.compact()
        stream = tier.stream()
        assert is_evictable(stream) and mark_of(stream) != before
        wanted = SetCompaction(NAME, True, tier.world.now)
        assert tier.world.apply(GROUP, wanted).code == Code.OK
        assert not is_evictable(stream), "its own policy is looked at each time"
        assert tier.machine().directory.compacted == {stream.uid: stream}
        assert tier.world.apply(GROUP, structs.replace(wanted, is_wanted=False)).code == Code.OK
        assert tier.machine().directory.compacted == {}
        assert compaction_of(stream).generation == 1, "its progress stays"

    play(story)


def test_an_evicted_stream_returns_when_its_tombstones_may_go() -> None:
    async def story() -> None:
        tier = KeyedTier(policy=CompactionPolicy(delete_retention_ms=DAY_MS))
        await write(tier, b"1", b"2")
        tier.produce((b"a", None))
        tier.produce((b"c", b"last"))
        await tier.flush()
        await tier.compact()
        tier.world.now += 1000
        await evictor_of(tier).evict_due()
        assert evicted(tier) == {NAME}
        twin = machine_from(snapshot_of(tier.machine()), lambda position, uid: b"")
        assert snapshot_of(twin) == snapshot_of(tier.machine())
        tier.world.machines()[GROUP] = twin

        async def bring(group: int, names: list[str]) -> None:
            assert (group, names) == (GROUP, [NAME])
            await bring_all(tier)
            tier.world.machines().pop(GROUP % GROUPS + 1, None)  # its leader is another node now

        tier.world.bring = bring  # type: ignore[method-assign]
        assert await tier.compactor.compact_due() == 0
        assert evicted(tier) == {NAME}
        tier.world.now += DAY_MS
        await tier.compactor.compact_due()
        assert await tier.compactor.compact_due() == 1
        await tier.check_keys(gone=[b"a"])

    play(story)


def test_batches_that_grow_get_positions_of_their_neighbours() -> None:
    def rows(*sizes: tuple[int, int]) -> list[list[int]]:
        return [[0, 0, 1, length, 0, 0, 1, span] for length, span in sizes]

    for before, after in (
        ([(5, 9), (12, 10), (1, 4)], [9, 12, 2]),
        ([(5, 9), (12, 10)], [7, 12]),
        ([(5, 6), (12, 10), (1, 2)], [5, 12, 1]),
    ):
        made = rows(*before)
        _fit(made)
        assert [row[7] for row in made] == after
    with pytest.raises(CorruptData):
        _fit(rows((5, 5), (12, 11)))
