"""The packed index against a list of slices."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.base.errors import CorruptData
from polynya.stream.parts import ColdSlice
from polynya.stream.state import chunked, index
from polynya.stream.state import entries as form

KEYS = {number: f"pack{number}" for number in range(5)}
U32 = st.integers(0, (1 << 32) - 1)
TIME = st.integers(-(1 << 62), 1 << 62)
# the fields of version 2; () is an entry of version 1
REST = st.one_of(
    st.just(()),
    st.tuples(
        st.integers(0, 2), TIME, st.integers(0, 1), st.integers(0, 1), st.integers(0, 7), U32, U32
    ),
)


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
                *draw(REST),
            )
        )
        record, byte = record + records, byte + length
    return found


HOW = st.integers(0, 4)


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "CHUNK", 3)
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
    assert len(data) == 80 * len(slices)
    assert index.joined(data) == pack(slices)
    assert index.joined(data, None, pack(slices)) == 2 * index.joined(pack(slices))
    assert index.lengths(data) == [cold.length - cold.missing_bytes for cold in slices]
    for at in range(len(slices)):
        assert index.records_in(data, at) == sum(
            cold.records - cold.missing_records for cold in slices[at:]
        )
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
    """Search an index of such steps. Each step: ms from the last slice's largest append time to
    this one's first, and from there to its largest."""
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


@given(runs(), HOW)
def test_it_is_read_as_it_was_written(slices: list[ColdSlice], how: int) -> None:
    data = pack(slices, how)
    written = index.written(data)
    assert written == index.written(pack(slices)), "whatever its chunks in memory are"
    if written is None:
        assert not slices
        return
    assert list(index.Index(index.loaded(written), KEYS)) == slices
    if all(cold.encoding < 0 for cold in slices):
        assert len(written) == 52 * len(slices)
        assert written == b"".join(
            struct.pack(
                "<QQQIIIIIII", *(cold.record, cold.byte, cold.time_ms, cold.records, cold.length),
                int(cold.pack[4:]), *(cold.offset, cold.stored, cold.crc, 0),
            )
            for cold in slices
        )  # fmt: skip
        return
    assert len(written) == 24 + 80 * len(slices)
    times = [cold.record_time_ms_max if cold.encoding >= 0 else 2**63 - 1 for cold in slices]
    count, version, flags, size, mark, _, largest = struct.unpack_from("<IBBBBQq", written)
    assert (count, version, size, mark, largest) == (len(slices), 2, 80, 255, max(times))
    assert flags == reduce(or_, (cold.flags for cold in slices))


@given(runs(), HOW, TIME, st.integers(0, 12))
def test_the_first_entry_with_a_record_time_is_found(
    slices: list[ColdSlice], how: int, asked: int, begin: int
) -> None:
    """Exact where times decrease; an entry of version 1 may have any."""
    data = pack(slices, how)
    begin = min(begin, len(slices))
    wanted = next(
        (
            at
            for at in range(begin, len(slices))
            if slices[at].encoding < 0 or slices[at].record_time_ms_max >= asked
        ),
        len(slices),
    )
    assert index.first_dated(data, begin, asked) == wanted


GOLDEN = (
    "02000000020350fff005000000000000ffffffffffffff7f03000000000000002800000000000000"
    "fc0300000000000005000000640000000100000008000000a40000000700000014000000ffffffff"
    "ffffff7f00000000000000000000000000000000ff00000008000000000000008c00000000000000"
    "f005000000000000060000005a0000000200000010000000aa0000000900000014000000a4060000"
    "00000000020000000a000000040000000500000002030000"
)


def test_bytes_of_a_chunk_are_golden() -> None:
    slices = [
        ColdSlice(3, 40, 5, 100, KEYS[1], 8, 164, 7, 1000),
        ColdSlice(8, 140, 6, 90, KEYS[2], 16, 170, 9, 1500, 2, 1700, 2, 10, 3, 4, 5),
    ]
    data = b"".join(
        index.packed(cold, number, cold.time_ms + 20) for number, cold in enumerate(slices, 1)
    )
    assert form.written(data).hex() == GOLDEN
    assert index.written(data[:80]) == bytes.fromhex(GOLDEN)[24:76], "an entry of version 1 alone"
    assert list(index.Index(index.loaded(bytes.fromhex(GOLDEN)), KEYS)) == slices


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda data: data[:4] + bytes([4]) + data[5:], "version 4 with entries of 80 bytes"),
        (lambda data: data[:6] + bytes([96]) + data[7:], "version 2 with entries of 96 bytes"),
        (lambda data: data[:-1], "chunk of 2 entries has 183 bytes"),
        (lambda data: data[:12], "chunk has 12 bytes"),
        (lambda data: data[24:-1], "has 159 bytes; expected a multiple of 52"),
    ],
)
def test_other_bytes_are_refused(change: Callable[[bytes], bytes], fault: str) -> None:
    with pytest.raises(CorruptData, match=fault):
        index.loaded(change(bytes.fromhex(GOLDEN)))


def test_entries_of_the_first_release_are_widened() -> None:
    old = b"".join(
        struct.pack("<QQQIIIIII", number, number * 10, time_ms, 1, 10, 3, 5, 6, 7)
        for number, time_ms in enumerate((100, 100, 250))
    )
    data = form.from_first_release(old, 900)
    assert [(cold.record, cold.byte, cold.time_ms) for cold in index.Index(data, KEYS)] == [
        (0, 0, 100),
        (1, 10, 100),
        (2, 20, 250),
    ]
    assert [index.time_ms_max(data, at) for at in range(3)] == [100, 250, 900]
    assert index.Index(data, KEYS)[2] == ColdSlice(2, 20, 1, 10, "pack3", 5, 6, 7, 250)
