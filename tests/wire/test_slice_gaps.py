"""Slices of version 3: numbers and positions are missing between their batches and inside them."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from worlds.gaps import GappedRuns, Run, runs, spread
from worlds.slices import encodings, without_producer

from polynya.base.errors import CorruptData
from polynya.stream.parts import Encoding
from polynya.stream.read_plan import AT_BYTE, HotPart, ReadPlan, Want, cut
from polynya.stream.state.model import HotBatch
from polynya.wire.pack import PackBuilder, read_footer
from polynya.wire.slice_building import gap, merge_slices
from polynya.wire.slice_format import GAP_VERSION
from polynya.wire.slices import parse_slice

THREE: list[Run] = [([(True, 2)], (3, 0)), ([(True, 1), (True, 1)], (0, 7)), ([(True, 2)], (4, 4))]

GOLDEN = (
    "504c53310300000006000000060000000b0000000000000006000000000000003100000000000000070000000000"
    "000064000000000000005801000000000000e803000000000000e803000000000000e803000000000000e9030000"
    "00000000e903000000000000e803000000000000000000000000000000000000000000000000000000000000cf07"
    "00000000000000000000000000000000000000000000020000000000000001000000010000000000000002000000"
    "0e00000000000000070000000e000000000000000e0000000e3f3f280000000007331eea00faa971000000000e3f"
    "3f280000000000000000000000000100000000000000000000000200000003000000010000000100000000000000"
    "020000000e00000000000000070000000e000000070000000e0000000700000007000000070000000e0000000700"
    "0000070000009291a27031919403000101000000000022302e302e302222302e302e312222302e302e302222302e"
    "312e302222302e312e302222302e302e302222302e302e3122"
)

GOLDEN_KAFKA = (
    "504c53310302000006000000000000000b0000000000000006000000000000003100000000000000070000000000"
    "000064000000000000004001000000000000e803000000000000e803000000000000e803000000000000e9030000"
    "00000000e903000000000000e803000000000000000000000000000000000000000000000000000000000000cf07"
    "00000000000000000000000000000000000000000000020000000000000001000000010000000000000002000000"
    "0e00000000000000070000000e000000000000000e0000000e3f3f280000000007331eea00faa971000000000e3f"
    "3f280000000000000000000000000100000000000000000000000200000003000000010000000100000000000000"
    "020000000e00000000000000070000000e000000070000000e0000009291a2703191940300010100000000002230"
    "2e302e302222302e302e312222302e302e302222302e312e302222302e312e302222302e302e302222302e302e31"
    "22"
)


@pytest.mark.parametrize(
    ("encoding", "golden"), [(Encoding.BYTES, GOLDEN), (Encoding.KAFKA, GOLDEN_KAFKA)]
)
def test_golden_bytes_of_version_3(encoding: Encoding, golden: str) -> None:
    meta, data = GappedRuns(THREE, encoding, at=(7, 100)).merged()
    assert data[4] == GAP_VERSION
    assert data.hex() == golden
    assert (meta.records, meta.batches, meta.missing_records, meta.missing_bytes) == (6, 6, 3, 7)


def test_nothing_missing_is_an_older_version() -> None:
    made = [([(True, 2)], (0, 0)), ([(True, 1)], (5, 5))]
    assert GappedRuns(made, Encoding.BYTES).merged()[1][4] == 1
    assert GappedRuns(made, Encoding.KAFKA).merged()[1][4] == 2


@given(some=runs, encoding=encodings)
@settings(max_examples=examples(150), deadline=None)
def test_a_merge_over_gaps_gives_the_batches_back(some: list[Run], encoding: Encoding) -> None:
    made = GappedRuns(some, encoding, at=(70, 9000))
    meta, data = made.merged()
    found = parse_slice(data, meta.crc)
    assert list(found.hot_batches(record=70, byte=9000)) == without_producer(made.batches)
    last = made.entries[-1]
    end = last.record + last.records - last.missing_records
    assert (found.span[0] + 70, found.records + meta.missing_records) == (end, found.span[0])
    assert found.span[1] == len(found.payload) + meta.missing_bytes
    kept = [found.producers.get(number) for number in found.kept]
    assert kept == [batch.producer for batch in made.batches]
    assert meta.record_time_ms_max == max(
        batch.record_time_ms_max or batch.time_ms for batch in made.batches
    )


@given(some=runs, encoding=encodings, data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_merging_in_steps_gives_the_same_batches(
    some: list[Run], encoding: Encoding, data: st.DataObject
) -> None:
    made = GappedRuns(some, encoding)
    middle = data.draw(st.integers(1, len(some)))
    meta, first = made.merged(0, middle)
    parts = [parse_slice(first, meta.crc)]
    if middle < len(some):
        behind = made.entries[middle - 1]
        parts.append(gap(encoding, 1, behind.missing_records, behind.missing_bytes))
        meta, rest = made.merged(middle)
        parts.append(parse_slice(rest, meta.crc))
    meta, pieces = merge_slices(0, 0, parts)
    found = parse_slice(b"".join(pieces), meta.crc)
    assert list(found.hot_batches(record=0, byte=0)) == without_producer(made.batches)


@given(some=runs, encoding=encodings, data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_part_over_gaps_has_its_batches(
    some: list[Run], encoding: Encoding, data: st.DataObject
) -> None:
    made = GappedRuns(some, encoding, at=(70, 9000))
    meta, stored = made.merged()
    whole = parse_slice(stored, meta.crc)
    begin = data.draw(st.integers(0, whole.batches - 1))
    part = whole.part(begin, data.draw(st.integers(1, whole.batches - begin)))
    records, positions = whole.batch_begins
    at = (70 + records[begin], 9000 + positions[begin])
    until = at[0] + part.span[0]
    expected = [batch for batch in made.batches if at[0] <= batch.record < until]
    assert list(part.hot_batches(record=at[0], byte=at[1])) == without_producer(expected)
    assert (part.base_record, part.base_byte) == at
    again = merge_slices(*at, [part])
    if part.records:
        read = parse_slice(b"".join(again[1]), again[0].crc)
        assert list(read.hot_batches(record=at[0], byte=at[1])) == without_producer(expected)


def page(plan: ReadPlan) -> tuple[object, ...]:
    payload = b"".join(each.payload for each in plan.pieces)  # type: ignore[union-attr]
    return payload, plan.record, plan.up_to_date


@given(some=runs, encoding=encodings, data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_pages_over_gaps_have_each_record_once(
    some: list[Run], encoding: Encoding, data: st.DataObject
) -> None:
    made = GappedRuns(some, encoding, at=(70, 9000))
    meta, stored = made.merged()
    batches = parse_slice(stored, meta.crc).hot_batches(record=70, byte=9000)
    record = data.draw(st.integers(70, made.end[0] - 1))
    most = data.draw(st.sampled_from([1, 9, 30, 1000]))
    payload, at = b"", (record, 9000)
    while at[0] < made.end[0]:
        plan = cut(batches, Want(*at, most, whole_records=True, until=made.end))
        for piece in plan.pieces:
            assert isinstance(piece, HotBatch | HotPart)
            assert piece.payload
            payload += piece.payload
        assert plan.record > at[0]
        at = (plan.record, plan.byte)
    assert at == made.end
    assert payload == expected_from(made, record)


def expected_from(made: GappedRuns, record: int) -> bytes:
    """Return the bytes of all records from this number on; an undivided batch is whole."""
    payload = b""
    for batch in made.batches:
        if record <= batch.record or (
            made.encoding == Encoding.KAFKA and record < batch.record + batch.records
        ):
            payload += batch.payload
        elif record < batch.record + batch.records:
            sizes = struct.unpack(f"<{batch.records}I", batch.lengths)
            payload += batch.payload[sum(sizes[: record - batch.record]) :]
    return payload


@given(some=runs, data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_byte_in_a_gap_means_the_next_record(some: list[Run], data: st.DataObject) -> None:
    made = GappedRuns(some, Encoding.JSON, at=(70, 9000))
    meta, stored = made.merged()
    batches = parse_slice(stored, meta.crc).hot_batches(record=70, byte=9000)
    byte = data.draw(st.integers(9000, made.end[1] - 1))
    plan = cut(batches, Want(AT_BYTE, byte, 10_000, whole_records=True, until=made.end))
    behind = [batch for batch in made.batches if byte < batch.byte + len(batch.payload)]
    whole = b"".join(batch.payload for batch in behind)
    found = b"".join(piece.payload for piece in plan.pieces)  # type: ignore[union-attr]
    assert whole.endswith(found)
    assert (plan.record, plan.byte) == made.end
    if behind and byte <= behind[0].byte:
        assert found == whole


def test_pages_end_before_a_gap_that_ends_them() -> None:
    made = GappedRuns(THREE, Encoding.BYTES)
    meta, stored = made.merged()
    batches = parse_slice(stored, meta.crc).hot_batches(record=0, byte=0)
    first = made.batches[0]
    for until in ((2, len(first.payload)), (4, len(first.payload))):
        plan = cut(batches, Want(0, 0, 1000, until=until))
        assert page(plan) == (first.payload, until[0], True)


def batch_of(records: int, payload: bytes, lengths: bytes = b"") -> HotBatch:
    crc = google_crc32c.value(payload)
    encoding = Encoding.BYTES if lengths else Encoding.KAFKA
    return HotBatch(0, 0, records, payload, lengths, crc, 1000, 0, encoding, 0)


def test_numbers_are_missing_inside_batches() -> None:
    kafka = [batch_of(2, b"kafka"), batch_of(1, b"batch")]
    meta, parts = merge_slices(10, 100, [spread(kafka, [(7, 20), (1, 5)])])
    one, two = parse_slice(b"".join(parts), meta.crc).hot_batches(record=10, byte=100)
    assert (one.record, one.byte, one.records, bytes(one.payload)) == (10, 100, 7, b"kafka")
    assert (two.record, two.byte, two.records) == (17, 120, 1)
    assert (meta.missing_records, meta.missing_bytes) == (5, 15)
    plain = [batch_of(2, b"onetwo", struct.pack("<2I", 3, 3))] * 2
    meta, parts = merge_slices(10, 100, [spread(plain, [(7, 20), (2, 6)])])
    one, two = parse_slice(b"".join(parts), meta.crc).hot_batches(record=10, byte=100)
    assert (one.record, one.records, one.lengths) == (10, 2, struct.pack("<2I", 3, 3))
    assert (two.record, two.byte, two.records) == (17, 120, 2)


def changed(data: bytes, at: int, value: int) -> tuple[bytes, int]:
    data = data[:at] + value.to_bytes(4, "little") + data[at + 4 :]
    return data, google_crc32c.value(data)


@pytest.mark.parametrize("encoding", [Encoding.BYTES, Encoding.KAFKA])
def test_spans_that_do_not_fit_are_damage(encoding: Encoding) -> None:
    meta, data = GappedRuns(THREE, encoding).merged()
    spans = 64 + 32 * meta.batches
    parse_slice(*changed(data, spans, 2))
    for at, value in ((spans, 1), (spans + 4 * meta.batches, 1), (spans, 2**32 - 1)):
        with pytest.raises(CorruptData, match="do not add up"):
            parse_slice(*changed(data, at, value))
    lengths = 64 + 20 * meta.batches
    size = int.from_bytes(data[lengths : lengths + 4], "little")
    moved, crc = changed(changed(data, lengths + 16, 1)[0], lengths, size - 1)
    with pytest.raises(CorruptData, match="do not add up"):
        parse_slice(moved, crc)


def test_a_footer_says_what_is_missing() -> None:
    made = GappedRuns(THREE, Encoding.BYTES, at=(7, 100))
    meta, stored = made.merged()
    builder = PackBuilder()
    builder.add(1, 1, (meta, [stored]))
    (entry,) = read_footer(b"".join(builder.finish(owner_group=1, created_ms=0)[0])).entries
    assert (entry.missing_records, entry.missing_bytes) == (3, 7)
    cold = entry.at("pack", 7, 100, missing_records=4, missing_bytes=4)
    assert (cold.record + cold.records, cold.byte + cold.length) == made.end
    assert (cold.missing_records, cold.missing_bytes) == (7, 11)
