"""The packed index against a list of slices."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.stream.commands import ColdSlice
from polynya.stream.state import index

KEYS = {number: f"pack{number}" for number in range(5)}
U32 = st.integers(0, (1 << 32) - 1)


@st.composite
def runs(draw: st.DrawFn, begin: tuple[int, int] = (0, 0)) -> list[ColdSlice]:
    record, byte = begin
    found = []
    for records in draw(st.lists(st.integers(1, 9), max_size=12)):
        length = records * draw(st.integers(1, 1 << 20))
        pack = KEYS[draw(st.integers(0, 4))]
        found.append(
            ColdSlice(
                record,
                byte,
                records,
                length,
                pack,
                draw(U32),
                draw(U32),
                draw(U32),
                draw(st.integers(0, 1 << 63)),
            )
        )
        record, byte = record + records, byte + length
    return found


HOW = st.integers(0, 4)


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "CHUNK", 3)
        yield


def pack(slices: list[ColdSlice], how: int = 0) -> index.Entries:
    """One `bytes`; or in chunks, of which the first `how` - 1 entries were cut off."""
    entries = [index.packed(cold, int(cold.pack[4:])) for cold in slices]
    if how == 0:
        return b"".join(entries)
    data: index.Entries | None = None
    for entry in [*entries[:1] * (how - 1), *entries]:
        data = index.appended(data, entry)
    return b"" if data is None else index.behind(data, how - 1)


@given(runs((1 << 40, 1 << 50)), HOW)
def test_it_is_the_list(slices: list[ColdSlice], how: int) -> None:
    data = pack(slices, how)
    view = index.Index(data, KEYS)
    assert list(view) == slices
    assert len(view) == index.count(data) == len(slices)
    assert len(data) == 52 * len(slices)
    assert index.joined(data) == pack(slices)
    assert index.joined(data, None, pack(slices)) == 2 * index.joined(pack(slices))
    assert index.lengths(data) == [cold.length for cold in slices]
    for begin in range(len(slices) + 1):
        assert list(view.starting(begin)) == slices[begin:]
        for end in range(begin + 1, len(slices) + 1):
            assert index.span(data, begin, end) == (
                slices[begin].record,
                slices[end - 1].record + slices[end - 1].records,
            )
        assert list(index.Index(index.behind(data, begin), KEYS)) == slices[begin:]
        for end in range(begin, len(slices) + 1):
            assert view[begin:end] == slices[begin:end]
            assert list(index.Index(index.cut(data, begin, end), KEYS)) == slices[begin:end]
            assert [KEYS[number] for number in index.pack_numbers(data, begin, end)] == [
                cold.pack for cold in slices[begin:end]
            ]
    assert [view[at] for at in range(-len(slices), len(slices))] == slices + slices
    with pytest.raises(IndexError):
        view[len(slices)]


@given(runs(), HOW)
def test_it_is_searched_like_the_list(slices: list[ColdSlice], how: int) -> None:
    packed = pack(slices, how)
    records = sorted(
        {each for cold in slices for each in (cold.record - 1, cold.record, cold.record + 1)} | {0}
    )
    for record in records:
        assert index.first_from(packed, record) == sum(cold.record < record for cold in slices)
        assert index.holding(packed, record) == sum(cold.record <= record for cold in slices) - 1
        assert index.byte_of(packed, record) == next(
            (cold.byte for cold in slices if cold.record == record), None
        )
    for byte in {each for cold in slices for each in (cold.byte - 1, cold.byte, cold.byte + 1)} | {
        0
    }:
        assert index.holding_byte(packed, byte) == sum(cold.byte <= byte for cold in slices) - 1
        assert index.record_of(packed, byte) == next(
            (cold.record for cold in slices if cold.byte == byte), None
        )


@given(runs(), runs(), HOW, st.data())
def test_a_range_is_replaced_like_the_lists(
    slices: list[ColdSlice], others: list[ColdSlice], how: int, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(slices)))
    end = data.draw(st.integers(begin, len(slices)))
    before = pack(slices, how)
    after = index.replaced(before, begin, end, index.joined(pack(others)))
    assert list(index.Index(after, KEYS)) == slices[:begin] + others + slices[end:]
    assert list(index.Index(before, KEYS)) == slices


def test_nothing_is_an_index_too() -> None:
    assert list(index.Index(None, KEYS)) == []
    assert (
        index.count(None),
        index.first_from(None, 3),
        index.holding(None, 3),
        index.holding_byte(None, 3),
    ) == (0, 0, -1, -1)
    assert index.byte_of(None, 0) is None
    assert index.record_of(None, 0) is None
    assert index.pack_numbers(None) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=9), st.integers(0, 60))
def test_it_is_searched_by_time(steps: list[tuple[int, int]], asked: int) -> None:
    """Each step: ms from the last slice's largest append time to this one's first, and from there
    to its largest."""
    data: index.Entries = b""
    times, now = [], 0
    for number, (gap, span) in enumerate(steps):
        cold = ColdSlice(number, number * 10, 1, 10, KEYS[0], 0, 0, 0, now + gap)
        now += gap + span
        times.append((cold.time_ms, now))
        data = index.appended(data, index.packed(cold, 0, now))
    assert index.first_reaching(data, asked) == sum(largest < asked for _, largest in times)
    for at, (first, largest) in enumerate(times):
        assert (index.time_ms_first(data, at), index.time_ms_max(data, at)) == (first, largest)
        assert index.Index(data, KEYS)[at].time_ms == first
        assert (index.begin_of(data, at), index.end_of(data, at)) == (
            (at, at * 10),
            (at + 1, at * 10 + 10),
        )


@given(runs(), HOW)
def test_so_many_lie_before_a_record(slices: list[ColdSlice], how: int) -> None:
    data = pack(slices, how)
    for record in range(slices[-1].record + slices[-1].records + 2 if slices else 2):
        assert index.entries_before(data, record) == sum(
            cold.record + cold.records <= record for cold in slices
        )


@given(runs(), st.lists(st.integers(0, 20), max_size=8), HOW)
def test_a_reader_keeps_what_it_has_while_the_index_grows_and_is_cut(
    slices: list[ColdSlice], steps: list[int], how: int
) -> None:
    data, expected = pack(slices, how), slices
    kept = [(data, expected)]
    for number, step in enumerate(steps):
        if step % 4 == 3:
            at = min(step, len(expected))
            data, expected = index.behind(data, at), expected[at:]
        else:
            more = [ColdSlice(number, number, 1, 1, KEYS[0], 0, 0, 0, 0)] * step
            for cold in more:
                data = index.appended(data or None, index.packed(cold, 0))
            expected = expected + more
        kept.append((data, expected))
    for known, wanted in kept:
        assert list(index.Index(known, KEYS)) == wanted
    earlier, wanted = kept[0]
    branch = index.appended(
        earlier or None, index.packed(ColdSlice(9, 9, 9, 9, KEYS[1], 9, 9, 9, 9), 1)
    )
    assert len(index.Index(branch, KEYS)) == len(wanted) + 1
    assert [list(index.Index(known, KEYS)) for known, _ in kept] == [each for _, each in kept]


def test_entries_of_the_first_release_are_widened() -> None:
    old = b"".join(
        struct.pack("<QQQIIIIII", number, number * 10, time_ms, 1, 10, 3, 5, 6, 7)
        for number, time_ms in enumerate((100, 100, 250))
    )
    data = index.widened(old, 900)
    assert [(cold.record, cold.byte, cold.time_ms) for cold in index.Index(data, KEYS)] == [
        (0, 0, 100),
        (1, 10, 100),
        (2, 20, 250),
    ]
    assert [index.time_ms_max(data, at) for at in range(3)] == [100, 250, 900]
    assert index.Index(data, KEYS)[2] == ColdSlice(2, 20, 1, 10, "pack3", 5, 6, 7, 250)
