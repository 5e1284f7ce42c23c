"""Parts of slices: each gives the batches of its index entry, and no other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from msgspec import structs
from worlds.slices import Choice, StoredRuns, choices, encodings, without_producer

from polynya.base.errors import CorruptData
from polynya.stream.parts import Encoding
from polynya.wire.slice_building import build_slice, merge_slices
from polynya.wire.slices import built_slice, parse_run, parse_slice

TAKEN: list[Choice] = [(True, 2), (False, 1), (True, 1), (True, 3), (False, 2), (True, 1)]


@given(slices=st.lists(choices, min_size=1, max_size=3), encoding=encodings)
@settings(max_examples=examples(150), deadline=None)
def test_entries_that_are_parts_give_the_accepted_batches(
    slices: list[list[Choice]], encoding: Encoding
) -> None:
    runs = StoredRuns(slices, encoding, at=(70, 9000))
    found, producers = [], []
    for cold in runs.entries:
        part = parse_run(runs.stored(cold), cold)
        assert (part.base_record, part.base_byte) == (-1, -1)
        found += part.hot_batches(record=cold.record, byte=cold.byte)
        producers += [part.producers.get(number) for number in range(part.batches)]
    assert found == without_producer(runs.batches)
    assert producers == [batch.producer for batch in runs.batches]


@given(slices=st.lists(choices, min_size=1, max_size=3), encoding=encodings)
@settings(max_examples=examples(150), deadline=None)
def test_merged_parts_are_the_slice_of_the_accepted_batches(
    slices: list[list[Choice]], encoding: Encoding
) -> None:
    runs = StoredRuns(slices, encoding, at=(70, 9000))
    parts = [parse_run(runs.stored(cold), cold) for cold in runs.entries]
    assert merge_slices(70, 9000, parts) == merge_of(runs, encoding)


def merge_of(runs: StoredRuns, encoding: int) -> object:
    meta, parts = build_slice(encoding, 70, 9000, runs.batches)
    return meta, [parts[0], b"".join(parts[1:])]


@given(choice=choices, encoding=encodings, data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_part_has_the_columns_of_its_batches(
    choice: list[Choice], encoding: Encoding, data: st.DataObject
) -> None:
    taken = [(True, records) for _, records in choice]
    runs = StoredRuns([taken], encoding)
    begin = data.draw(st.integers(0, len(taken) - 1))
    end = data.draw(st.integers(begin + 1, len(taken)))
    whole = parse_slice(runs.stored(runs.entries[0]), runs.entries[0].crc)
    part, expected = whole.part(begin, end - begin), runs.batches[begin:end]
    assert part.batches == len(expected)
    assert part.records == sum(batch.records for batch in expected)
    assert bytes(part.payload) == b"".join(batch.payload for batch in expected)
    assert list(part.batch_crcs) == [batch.crc for batch in expected]
    assert list(part.append_times_ms) == [batch.time_ms for batch in expected]
    assert part.part(0, end - begin).size == part.size
    if encoding != Encoding.KAFKA:
        assert part.positions[-1] == len(part.payload)


def test_a_part_of_a_slice_with_a_base_knows_its_own() -> None:
    runs = StoredRuns([[(True, 2), (True, 1)]], Encoding.BYTES)
    meta, parts = build_slice(Encoding.BYTES, 7, 100, runs.batches)
    part = parse_slice(b"".join(parts), meta.crc).part(1, 1)
    assert (part.base_record, part.base_byte) == (9, 100 + len(runs.batches[0].payload))


def test_a_part_shares_the_memory_of_its_slice_and_is_kept() -> None:
    runs = StoredRuns([TAKEN], Encoding.JSON)
    whole = parse_slice(runs.stored(runs.entries[0]), runs.entries[0].crc)
    part = whole.part(2, 2)
    assert part.payload.obj is whole.payload.obj
    assert whole.part(2, 2) is part
    assert whole.part(2, 1) is not part


@pytest.mark.parametrize("change", [(2, 5), (6, 1), (1, 0), (0, 7)])
def test_a_part_behind_the_slice_is_damage(change: tuple[int, int]) -> None:
    runs = StoredRuns([TAKEN], Encoding.BYTES)
    first, count = change
    cold = structs.replace(runs.entries[0], first_batch=first, batches=count)
    with pytest.raises(CorruptData, match="a slice of 6 batches does not contain"):
        parse_run(runs.stored(cold), cold)


def test_a_part_that_begins_a_batch_late_does_not_match_its_entry() -> None:
    runs = StoredRuns([TAKEN], Encoding.BYTES)
    late = structs.replace(runs.entries[1], first_batch=runs.entries[1].first_batch + 1)
    with pytest.raises(CorruptData, match="does not match its index entry"):
        parse_run(runs.stored(late), late)


def test_a_slice_that_was_just_built_is_the_one_that_is_read() -> None:
    runs = StoredRuns([TAKEN], Encoding.JSON)
    meta, parts = build_slice(Encoding.JSON, -1, -1, runs.batches)
    built, read = built_slice(parts), parse_slice(b"".join(parts), meta.crc)
    assert list(built.hot_batches(record=0, byte=0)) == list(read.hot_batches(record=0, byte=0))
    assert built.producers == read.producers
