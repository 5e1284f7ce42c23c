"""Tables over index entries that are parts of slices: the rows of the accepted batches, each
once."""

from __future__ import annotations

import struct
from pathlib import Path

import cramjam
import google_crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from worlds.gaps import GappedRuns, Run, spread
from worlds.gaps import runs as gapped
from worlds.lakehouse import Lake, quiet
from worlds.slices import PACK, Choice, StoredRuns, choices

from polynya.lakehouse.jobs import worker
from polynya.lakehouse.jobs.plan import Range, span_of
from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.reading.blobs import open_blobs
from polynya.lakehouse.reading.slices import Unreadable, fetch, read_rows
from polynya.objectstore import StoreSettings
from polynya.stream.parts import Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire.kafka.batches import HEADER_BYTES, Record, build_batch
from polynya.wire.pack import pressed
from polynya.wire.slice_building import build_slice, gap, merge_slices

TAKEN: list[Choice] = [(True, 2), (False, 1), (True, 1), (True, 3), (False, 2), (True, 1)]
UID = (1 << 48) + 7


def ranges_of(runs: StoredRuns, encoding: Encoding) -> list[Range]:
    """The ranges of a plan, as the server writes them."""
    return [
        Range("x", UID, 1, "application/json", encoding, cold.record, cold.byte, cold.records, cold.length,
              cold.pack, cold.offset, cold.stored, cold.crc, first_batch=cold.first_batch,
              batches=cold.batches)
        for cold in runs.entries
    ]  # fmt: skip


def rows_of(runs: StoredRuns) -> list[tuple[int, int, int, bytes]]:
    """The offset, batch, append time and stored bytes of each record."""
    rows = []
    for batch in runs.batches:
        size = len(batch.payload) // batch.records
        values = (
            [value + b"," for value in batch.payload.replace(b"],", b"]|").rstrip(b"|").split(b"|")]
            if batch.encoding == Encoding.JSON
            else [batch.payload[at : at + size] for at in range(0, len(batch.payload), size)]
        )
        rows += [
            (batch.record + at, batch.record, batch.time_ms, value)
            for at, value in enumerate(values)
        ]
    return rows


@given(
    slices=st.lists(choices, min_size=1, max_size=3),
    encoding=st.sampled_from([Encoding.BYTES, Encoding.JSON]),
    skip=st.integers(0, 2),
)
@settings(max_examples=examples(100), deadline=None)
def test_rows_of_parts_are_those_of_the_accepted_batches(
    slices: list[list[Choice]], encoding: Encoding, skip: int
) -> None:
    runs = StoredRuns(slices, encoding, at=(40, 400))
    found = []
    for part in ranges_of(runs, encoding):
        begin = min(skip, part.records - 1)
        cold = next(each for each in runs.entries if each.record == part.record)
        claimed = Range(*[getattr(part, name) for name in Range.__struct_fields__[:13]], begin, -1,
                        part.first_batch, part.batches)  # fmt: skip
        for rows in read_rows(claimed, runs.stored(cold)):
            data, start = bytes(rows.data), 0
            for at, end in enumerate(rows.ends):
                row = (rows.offsets[at], rows.batches[at], rows.append_times_ms[at])
                found.append((*map(int, row), data[start:end]))
                start = end
    kept = {
        record
        for cold in runs.entries
        for record in range(cold.record + min(skip, cold.records - 1), cold.record + cold.records)
    }
    assert found == [row for row in rows_of(runs) if row[0] in kept]


@given(some=gapped, encoding=st.sampled_from([Encoding.BYTES, Encoding.JSON]), data=st.data())
@settings(max_examples=examples(80), deadline=None)
def test_rows_over_gaps_have_their_numbers(
    some: list[Run], encoding: Encoding, data: st.DataObject
) -> None:
    made = GappedRuns(some, encoding, at=(40, 400))
    meta, stored = made.merged()
    last = made.entries[-1]
    numbers = made.end[0] - 40
    skip = data.draw(st.integers(0, numbers - 1))
    take = data.draw(st.one_of(st.just(-1), st.integers(1, numbers - skip)))
    part = Range("x", UID, 1, "application/json", encoding, 40, 400, meta.records, meta.length, "p", 0,
                 meta.stored, meta.crc, skip, take, numbers=numbers)  # fmt: skip
    assert last.record + last.records == 40 + span_of(part)
    found = [
        (int(offset), int(position))
        for rows in read_rows(part, stored)
        for offset, position in zip(rows.offsets, rows.byte_offsets, strict=True)
    ]
    end = 40 + skip + (numbers - skip if take < 0 else take)
    assert found == [each for each in positions_of(made) if 40 + skip <= each[0] < end]


def positions_of(made: GappedRuns) -> list[tuple[int, int]]:
    """The number and position of each record."""
    positions = []
    for batch in made.batches:
        sizes = [*memoryview(batch.lengths).cast("I")] if batch.lengths else [len(batch.payload)]
        positions += [
            (batch.record + at, batch.byte + sum(sizes[:at])) for at in range(batch.records)
        ]
    return positions


def test_records_are_missing_inside_kafka_batches() -> None:
    """A batch of ten numbers keeps those with the deltas 1 and 4; five numbers follow it."""
    whole = bytes(build_batch(Record(None, b"%d" % number, 1) for number in range(10)))
    kept = without(whole, {0, 2, 3, 5, 6, 7, 8, 9})
    made = [HotBatch(0, 0, 2, kept, b"", google_crc32c.value(kept), 7, 0, Encoding.KAFKA, 0)]
    slices = [spread(made, [(10, len(whole))]), gap(Encoding.KAFKA, 7, 5, 0)]
    meta, parts = merge_slices(20, 100, slices)
    part = Range("x", UID, 1, "", Encoding.KAFKA, 20, 100, 2, len(kept), "p", 0, meta.stored,
                 meta.crc, numbers=15)  # fmt: skip
    (rows,) = read_rows(part, b"".join(parts))
    assert [int(offset) for offset in rows.offsets] == [21, 24]
    assert bytes(rows.data) == b"1,4,"
    wrong = without(whole, {0, 2, 3, 5, 6, 7, 8, 9}, delta=10)
    made = [HotBatch(0, 0, 2, wrong, b"", google_crc32c.value(wrong), 7, 0, Encoding.KAFKA, 0)]
    meta, parts = merge_slices(20, 100, [spread(made, [(10, len(whole))])])
    part = msgspec.structs.replace(part, stored=meta.stored, crc=meta.crc, length=len(wrong))
    with pytest.raises(Unreadable, match="offset delta 10"):
        list(read_rows(part, b"".join(parts)))


def without(batch: bytes, dropped: set[int], delta: int = 4) -> bytes:
    """The batch as a compaction leaves it: the header keeps the last offset delta."""
    head, body = bytearray(batch[:HEADER_BYTES]), batch[HEADER_BYTES:]
    size = len(body) // 10  # of each record of one digit
    kept = [bytearray(body[size * at : size * at + size]) for at in range(10) if at not in dropped]
    kept[-1][3] = 2 * delta  # a zigzag varint
    made = head + b"".join(kept)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">i", made, 57, len(kept))
    return bytes(made)


def test_a_part_that_begins_a_batch_late_is_unreadable() -> None:
    runs = StoredRuns([TAKEN], Encoding.JSON)
    part = ranges_of(runs, Encoding.JSON)[1]
    late = Range(*[getattr(part, name) for name in Range.__struct_fields__[:15]], 3, part.batches)
    with pytest.raises(Unreadable, match=r"does not match the plan|does not contain"):
        list(read_rows(late, runs.stored(runs.entries[1])))


def test_one_request_fetches_the_parts_of_a_slice(tmp_path: Path) -> None:
    runs = StoredRuns([TAKEN, TAKEN], Encoding.JSON)
    blobs = open_blobs(StoreSettings(backend="local", root=str(tmp_path)))
    blobs.put(PACK, runs.data)
    asked: list[int] = []
    get_range = blobs.get_range

    def counted(key: str, begin: int, size: int) -> bytes:
        asked.append(size)
        return get_range(key, begin, size)

    blobs.get_range = counted  # type: ignore[method-assign]
    found = list(fetch(blobs, ranges_of(runs, Encoding.JSON)))
    assert [data for _, data in found] == [runs.stored(cold) for cold in runs.entries]
    assert len(asked) == 1


def test_a_table_over_parts_has_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.0)
    lake = Lake(str(tmp_path / "store"))
    runs = StoredRuns([TAKEN, [(False, 1), (True, 2), (False, 3)]], Encoding.BYTES)
    lake.blobs.put(PACK, runs.data)
    lake.source.pending += ranges_of(runs, Encoding.BYTES)
    lake.source.records += [("x", UID, offset, value) for offset, _, _, value in rows_of(runs)]
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    lake.check_exactly_once()


@pytest.mark.parametrize("encoding", [Encoding.BYTES, Encoding.JSON, Encoding.KAFKA])
def test_rows_of_a_compressed_slice_are_those_of_a_raw_one(encoding: Encoding) -> None:
    values = [b'{"number":%d,"same":"words again and again"},' % number for number in range(200)]
    if encoding == Encoding.KAFKA:
        values = [bytes(build_batch([Record(b"key", value, 1)])) for value in values]
    batches, byte = [], 0
    for number, value in enumerate(values):
        crc = google_crc32c.value(value)
        batches.append(HotBatch(number, byte, 1, value, b"", crc, 7, 0, encoding, 0))
        byte += len(value)
    raw = build_slice(encoding, 0, 0, batches)
    small = pressed(raw, 3)
    assert 2 * small[0].stored < raw[0].stored
    found = []
    for meta, parts in (raw, small):
        part = Range("x", UID, 1, "application/json", encoding, 0, 0, meta.records, meta.length,
                     "p", 0, meta.stored, meta.crc, 7, 150)  # fmt: skip
        assert part.read_bytes >= meta.length
        rows = [*read_rows(part, b"".join(parts))]
        found.append(
            [(bytes(each.data), each.offsets.tolist(), each.ends.tolist()) for each in rows]
        )
    assert found[0] == found[1] and sum(len(offsets) for _, offsets, _ in found[0]) == 150


def test_a_bomb_is_an_unreadable_range() -> None:
    value = b"word " * 1000
    batch = HotBatch(0, 0, 1, value, b"", google_crc32c.value(value), 7, 0, Encoding.BYTES, 0)
    meta, (front, _) = pressed(build_slice(Encoding.BYTES, 0, 0, [batch]), 3)
    stored = front + bytes(cramjam.zstd.compress(bytes(50 << 20), level=1))
    crc = google_crc32c.value(stored)
    part = Range("x", UID, 1, "", Encoding.BYTES, 0, 0, 1, meta.length, "p", 0, len(stored), crc)
    with pytest.raises(Unreadable, match="zstd"):
        list(read_rows(part, stored))
