"""A long index against a list, through any sequence of changes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from random import Random

import pytest
from msgspec import structs
from stories.stream import run

from polynya.base.errors import CorruptData
from polynya.stream.parts import ColdSlice
from polynya.stream.state import chunked, closed_chunks, index
from polynya.stream.state.entries import ENTRY_BYTES

KEYS = {number: f"pack{number}" for number in range(100)}
SEEDS = range(10)
STEPS = 100


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "CHUNK", 5)


def slice_behind(random: Random, last: ColdSlice | None) -> ColdSlice:
    """A slice that follows another one, now and then behind a gap, as a restore leaves it."""
    record, byte, time_ms = 0, 0, 1_700_000_000_000
    if last is not None:
        record, byte = last.record + last.records, last.byte + last.length
        time_ms = last.time_ms + random.randrange(5000)
    if random.random() < 0.05:
        record += 1 << 40
    records, length = random.randrange(1, 90_000), random.randrange(1, 1 << 22)
    where = KEYS[random.randrange(100)], random.getrandbits(32), length + 64, random.getrandbits(32)
    if random.random() < 0.2:  # an entry of version 1
        return ColdSlice(record, byte, records, length, *where, time_ms)
    missing = (
        (random.randrange(records), random.randrange(length)) if random.random() < 0.2 else (0, 0)
    )
    dated_ms = time_ms + random.randrange(-(10**13), 10**4)
    flags = random.choice([0, 0, 1, 3])
    return ColdSlice(
        record, byte, records, length, *where, time_ms, random.randrange(3), dated_ms, *missing, flags, 3, 7
    )  # fmt: skip


def entry_of(cold: ColdSlice) -> bytes:
    return index.packed(cold, int(cold.pack[4:]), cold.time_ms + 7)


def merged(some: list[ColdSlice]) -> ColdSlice:
    """One slice in place of neighbours."""
    return structs.replace(some[0], pack="pack9", crc=some[-1].crc)


def same_as(data: index.Entries | None, slices: list[ColdSlice], random: Random) -> None:
    view = index.Index(data, KEYS)
    assert list(view) == slices and len(view) == len(slices)
    assert index.pack_numbers(data) == [int(cold.pack[4:]) for cold in slices]
    if not slices or data is None:
        return
    begin, end = sorted((random.randrange(len(slices) + 1), random.randrange(len(slices) + 1)))
    assert index.cut(data, begin, end) == b"".join(map(entry_of, slices[begin:end]))
    assert list(view.starting(begin)) == slices[begin:]
    assert index.records_in(data, begin) == sum(
        cold.records - cold.missing_records for cold in slices[begin:]
    )
    records, positions = [cold.record for cold in slices], [cold.byte for cold in slices]
    near = random.choice(slices)
    for step in (-1, 0, 1):
        record, byte, time_ms = near.record + step, near.byte + step, near.time_ms + 7 + step
        assert index.first_from(data, record) == bisect_left(records, record)
        assert index.holding(data, record) == bisect_right(records, record) - 1
        assert index.holding_byte(data, byte) == bisect_right(positions, byte) - 1
        assert index.first_reaching(data, time_ms) == sum(
            cold.time_ms + 7 < time_ms for cold in slices
        )
    wanted_ms = near.record_time_ms_max + random.randrange(2)
    assert index.first_dated(data, begin, wanted_ms) == next(
        (
            at
            for at in range(begin, len(slices))
            if slices[at].encoding < 0 or slices[at].record_time_ms_max >= wanted_ms
        ),
        len(slices),
    )
    assert index.written(data) == index.written(b"".join(map(entry_of, slices)))
    again = index.loaded(index.stored(data))
    assert index.joined(again) == index.joined(data) and index.stored(again) == index.stored(data)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_changes_are_those_of_a_list(seed: int) -> None:
    random = Random(seed)
    data: index.Entries | None = None
    slices: list[ColdSlice] = []
    kept: list[tuple[index.Entries | None, list[ColdSlice]]] = []
    twin: index.Entries | None = None
    last: ColdSlice | None = None
    for _ in range(STEPS):
        step = random.random()
        if data is None or step < 0.5:
            for _ in range(random.randrange(1, 9)):
                last = slice_behind(random, last)
                data, slices = index.appended(data, entry_of(last)), [*slices, last]
                twin = index.appended(twin, entry_of(last))
        elif step < 0.8:
            begin = random.randrange(len(slices))
            end = min(len(slices), begin + random.randrange(1, 20))
            one = merged(slices[begin:end])
            data = index.replaced(data, begin, end, entry_of(one))
            twin = index.replaced(twin or b"", begin, end, entry_of(one))
            slices = [*slices[:begin], one, *slices[end:]]
        elif step < 0.9:
            gone = random.randrange(min(12, len(slices)))
            data, slices = index.behind(data, gone), slices[gone:]
            twin = index.behind(twin or b"", gone)
        elif step < 0.92:
            end = random.randrange(1, len(slices) + 1)
            data, slices = index.before(data, end), slices[:end]
            twin, last = index.before(twin or b"", end), slices[-1]
        elif step < 0.95:
            before = slices[: random.randrange(4)]
            both = index.preceded(data, b"".join(map(entry_of, before)))
            assert list(index.Index(both, KEYS)) == before + slices
        else:
            data = index.loaded(index.stored(data))
        assert index.stored(twin) == index.stored(data), "a restore changes nothing that is written"
        same_as(data, slices, random)
        if random.random() < 0.1:
            kept.append((data, slices))
    for known, wanted in kept:
        same_as(known, wanted, random)


def test_a_deleted_source_is_the_same_after_a_restore() -> None:
    """Each command is also applied to a machine that was restored before it."""
    flushes = [
        f"append doc/a {number}\nwritten p{number} 1\nflush p{number} doc/a 1\npublish p{number}\n"
        for number in range(9)
    ]
    trace = run(
        "at 1000\ncreate doc/a\n" + "".join(flushes[:8]) + "pin doc/a attempt=a\n"
        "create @2 doc/b fork=doc/a source=1.1 attempt=a at=8_8\nconfirm source=1.1 attempt=a\n"
        + flushes[8]
        + "delete doc/a\nshow\ncreate doc/c\n"
    )
    assert "doc/a uid=1.1 tail=8_8 deleted hot=0 cold=8 pin a@8_8" in trace
    assert trace.endswith("CREATED uid=1.2 tail=0_0\n")


def test_merging_leaves_no_small_chunks() -> None:
    random, data = Random(1), None
    last: ColdSlice | None = None
    for _ in range(600):
        last = slice_behind(random, last)
        data = index.appended(data, entry_of(last))
    assert data is not None
    for at in range(150):
        data = index.replaced(
            data, at, at + 3, entry_of(merged(list(index.Index(data, KEYS)[at : at + 3])))
        )
    assert isinstance(data, chunked.Chunked)
    sizes = [closed_chunks.count_of(chunk) for chunk in data._chunks.data]
    assert sum(sizes) >= 295 and min(sizes[:-1]) >= 2 and max(sizes) <= 5
    assert len(sizes) < 2 * 300 / 5


def test_a_closed_chunk_takes_a_third_of_its_entries() -> None:
    """Merged slices of a stream that was written without a pause."""
    random, entries, last = Random(1), b"", None
    while len(entries) < 128 * ENTRY_BYTES:
        cold = slice_behind(random, last)
        if (
            cold.encoding >= 0
            and not cold.missing_records
            and (last is None or cold.record < 1 << 40)
        ):
            last = ColdSlice(
                cold.record, cold.byte, cold.records, cold.length, cold.pack, cold.offset, cold.stored, cold.crc,
                cold.time_ms, 0, cold.time_ms + 7, 0, 0, 0, 0, 900,
            )  # fmt: skip
            entries += entry_of(last)
    chunk = closed_chunks.compact(entries)
    assert closed_chunks.expanded(chunk) == entries
    assert len(chunk) < len(entries) / 3


def stored_index() -> bytes:
    """Six entries, in a closed chunk and an open one."""
    data: index.Entries | None = None
    for number in range(6):
        cold = ColdSlice(
            number * 7, number * 100, 7, 100, KEYS[1], 8, 164, number, 1000, 0, 1007, 0, 0, 0, 0, 2
        )
        data = index.appended(data, entry_of(cold))
    assert isinstance(data, chunked.Chunked)
    stored = index.stored(data)
    assert stored is not None
    return stored


GOLDEN = (
    "06000000030050ffef03000000000000ef03000000000000"  # the head of all
    "8f000000"  # the bytes of the closed chunk
    "05000000020050ffef03000000000000ef03000000000000"  # its head
    "000000000000000000000000000000002300000000000000"  # first record and byte, records
    "00000000001000000000"  # the columns that are kept: the first of the CRC
    "00000000000000000000000000000000ef0300000000000007000000640000000100000008000000a4000000"
    "0000000007000000ef030000000000000000000000000000000000000200000000000000"  # the row
    "0001020304"  # that column
    "00000000"  # no further closed chunk
    "2300000000000000f401000000000000ef0300000000000007000000640000000100000008000000a4000000"
    "0500000007000000ef030000000000000000000000000000000000000200000000000000"
)  # fmt: skip


def test_bytes_of_a_long_index_are_golden() -> None:
    assert stored_index().hex() == GOLDEN


@pytest.mark.parametrize("cut", [24, 26, 28, 60, 120, 130, 240, -1])
def test_a_long_index_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(CorruptData):
        index.loaded(stored_index()[:cut])


def test_a_damaged_length_is_refused() -> None:
    stored = bytearray(stored_index())
    stored[28] += 1  # entries of the chunk
    with pytest.raises(CorruptData, match="has not the"):
        index.loaded(bytes(stored))
