"""The pack format: round trips in columns and in batches, and detection of damage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import google_crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from polynya.base.errors import CorruptData
from polynya.stream.parts import Encoding
from polynya.stream.read_plan import Want, cut
from polynya.stream.state.model import HotBatch
from polynya.wire.pack import (
    FOOTER_GUESS_BYTES,
    PackBuilder,
    ShortTail,
    _footer_crc,
    owner_group_of,
    pack_key,
    read_footer,
)
from polynya.wire.slice_building import build_slice, merge_slices
from polynya.wire.slices import parse_slice

GOLDEN = (
    "504c594e50414b31504c53310101000002000000030000000a00000000000000030000000000000012000000000000000700000000000000"
    "64000000000000009800000000000000e803000000000000e90300000000000000000000000000007b000000000000000200000001000000"
    "0a000000080000005189d83d74197eb500000000010000000800000002000000080000009291a17091940000010900007b2261223a317d2c"
    "322c22736576656e222c940103cf0000018bcfe5680091dc0012cf000100000000000203031208ccaacd03e9cd03e8ce287dd770010764a9"
    "64656661756c742f78b06170706c69636174696f6e2f6a736f6e010200004c000000042b75821601000000000000504c594e50414b31"
)

BEFORE_GAPS = (  # of a footer without what is missing
    "504c594e50414b31504c53310101000002000000030000000a000000000000000300000000000000120000000000000007000000000000006400"
    "0000000000009800000000000000e803000000000000e90300000000000000000000000000007b0000000000000002000000010000000a000000"
    "080000005189d83d74197eb500000000010000000800000002000000080000009291a17091940000010900007b2261223a317d2c322c22736576"
    "656e222c940103cf0000018bcfe5680091dc0010cf000100000000000203031208ccaacd03e9cd03e8ce287dd770010764a964656661756c742f"
    "78b06170706c69636174696f6e2f6a736f6e01024a00000056d02b8c1401000000000000504c594e50414b31"
)

BEFORE_FLAGS = (  # of a footer without flags and batches
    "504c594e50414b31504c53310101000002000000030000000a0000000000000003000000000000001200000000000000070000000000000064000000"
    "000000009800000000000000e803000000000000e90300000000000000000000000000007b0000000000000002000000010000000a00000008000000"
    "5189d83d74197eb500000000010000000800000002000000080000009291a17091940000010900007b2261223a317d2c322c22736576656e222c9401"
    "03cf0000018bcfe56800919ecf000100000000000203031208ccaacd03e9cd03e8ce287dd770010764a964656661756c742f78b06170706c69636174"
    "696f6e2f6a736f6e4600000070feb3b31001000000000000504c594e50414b31"
)

GOLDEN_KAFKA = (
    "504c53310202000003000000000000002000000000000000ec030000000000000700000000000000070000000000000064000000000000"
    "00c000000000000000e803000000000000e903000000000000ea0300000000000000000000000000000100000000000000020000000000"
    "00000300000001000000e8030000040000000200000001000000dd336d9794370560176aa5830000000000000000000000009291a13793"
    "96000000ce7ffffffe0001960100000101019602000002cd03e90130303030313132"
)


def hot(
    records: list[bytes],
    *,
    record: int = 0,
    byte: int = 0,
    time_ms: int = 1000,
    producer=None,
    encoding=Encoding.BYTES,
) -> HotBatch:  # type: ignore[no-untyped-def]
    payload = b"".join(records)
    lengths = b"" if len(records) == 1 else struct.pack(f"<{len(records)}I", *map(len, records))
    return HotBatch(
        record,
        byte,
        len(records),
        payload,
        lengths,
        google_crc32c.value(payload),
        time_ms,
        0,
        encoding,
        5,
        producer,
    )


def run_of(batches: list[list[bytes]], *, record: int = 0, byte: int = 0) -> list[HotBatch]:
    found = []
    for records in batches:
        found.append(hot(records, record=record, byte=byte))
        record += len(records)
        byte += sum(map(len, records))
    return found


def test_golden_bytes() -> None:
    two = hot(
        [b'{"a":1},', b"2,"], record=7, byte=100, producer=("p", 1, 9), encoding=Encoding.JSON
    )
    one = hot([b'"seven",'], record=9, byte=110, time_ms=1001, encoding=Encoding.JSON)
    one.record_time_ms_max = 123
    one.flags = 1
    builder = PackBuilder()
    entry = builder.add(
        0x0001_0000_0000_0002,
        3,
        build_slice(Encoding.JSON, 7, 100, [two, one]),
        path="default/x",
        content_type="application/json",
    )
    parts, entries = builder.finish(owner_group=3, created_ms=1_700_000_000_000)
    data = b"".join(parts)
    assert data.hex() == GOLDEN
    assert entries == [entry] == read_footer(data).entries
    assert (entry.flags, entry.batches) == (1, 2)
    before = bytes.fromhex(BEFORE_GAPS)
    assert read_footer(before).entries == [entry]
    before = bytes.fromhex(BEFORE_FLAGS)
    assert read_footer(before).entries == [msgspec.structs.replace(entry, flags=0, batches=0)]
    assert before[: entry.offset + entry.stored] == data[: entry.offset + entry.stored]


def test_a_slice_gives_its_batches_back() -> None:
    batches = run_of([[b"one"], [b"two", b"", b"three"], [b"4" * 1000]], record=50, byte=9000)
    batches[1].producer = ("producer", 2, 40)
    batches[2].producer = ("producer", 2, 41)
    batches[1].flags = 2
    batches[0].record_time_ms_max = 77
    meta, parts = build_slice(Encoding.BYTES, 50, 9000, batches)
    found = parse_slice(b"".join(parts), meta.crc)
    assert (found.base_record, found.base_byte, found.records, found.batches) == (50, 9000, 5, 3)
    assert list(found.record_lengths or ()) == [3, 3, 0, 5, 1000]
    assert list(found.batch_records) == [1, 3, 1]
    assert list(found.append_times_ms) == [1000] * 3
    assert list(found.record_times_ms) == [77, 0, 0]
    assert found.producers == {1: ("producer", 2, 40), 2: ("producer", 2, 41)}
    for batch in batches:
        batch.position = 0
        batch.producer = None
    again = found.hot_batches(record=50, byte=9000)
    assert list(again) == batches
    assert again[1:2] == batches[1:2]
    assert again[-1] == batches[2]
    with pytest.raises(IndexError):
        again[3]


def test_single_records_need_no_lengths() -> None:
    meta, parts = build_slice(Encoding.BYTES, 0, 0, run_of([[b"a"], [b"bc"], [b""], [b"def"]]))
    found = parse_slice(b"".join(parts), meta.crc)
    assert found.record_lengths is None
    assert list(found.positions) == [0, 1, 3, 3, 6]
    assert [bytes(found.cut(n, n + 1)) for n in range(4)] == [b"a", b"bc", b"", b"def"]
    with pytest.raises(ValueError):
        found.cut(0, 5)


def test_columns_are_aligned_and_little_endian() -> None:
    meta, parts = build_slice(Encoding.BYTES, 0, 0, run_of([[b"ab", b"c"], [b"d"], [b"e"]]))
    data = b"".join(parts)
    begin = struct.unpack_from("<Q", data, 56)[0]
    assert begin % 8 == 0
    assert data[begin:] == b"abcde"
    assert struct.unpack_from("<3q", data, 64) == (1000,) * 3
    assert struct.unpack_from("<3I", data, 64 + 48) == (2, 1, 1)
    assert struct.unpack_from("<4I", data, 64 + 32 * 3) == (2, 1, 1, 1)
    assert meta.stored == len(data)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=6), min_size=1, max_size=6),
        min_size=0,
        max_size=6,
    ),
    st.data(),
)
def test_packs_round_trip(streams: list[list[list[bytes]]], data: st.DataObject) -> None:
    builder = PackBuilder()
    for uid, batches in enumerate(streams):
        builder.add(
            uid,
            uid % 3 + 1,
            build_slice(Encoding.BYTES, uid, uid * 10, run_of(batches, record=uid, byte=uid * 10)),
            path=f"default/{uid}",
        )
    parts, _ = builder.finish(owner_group=1, created_ms=0)
    whole = b"".join(parts)
    footer = read_footer(whole)
    assert [entry.uid for entry in footer.entries] == list(range(len(streams)))
    for entry, batches in zip(footer.entries, streams, strict=True):
        records = [record for batch in batches for record in batch]
        found = parse_slice(whole[entry.offset : entry.offset + entry.stored], entry.crc)
        assert entry.offset % 8 == 0
        assert (entry.records, entry.length) == (len(records), len(b"".join(records)))
        begin = data.draw(st.integers(0, len(records)))
        end = data.draw(st.integers(begin, len(records)))
        assert bytes(found.cut(begin, end)) == b"".join(records[begin:end])
        expected = run_of(batches, record=entry.base_record, byte=entry.base_byte)
        for batch in expected:
            batch.position = 0
        assert list(found.hot_batches(record=entry.base_record, byte=entry.base_byte)) == expected
        check_runs(
            found.hot_batches(record=entry.base_record, byte=entry.base_byte, run_bytes=30),
            expected,
            records,
        )


def check_runs(runs: Sequence[HotBatch], batches: list[HotBatch], records: list[bytes]) -> None:
    """Runs are the same records at the same positions in larger pieces."""
    record, byte = batches[0].record, batches[0].byte
    found = []
    for run in runs:
        assert (run.record, run.byte) == (record, byte)
        assert len(run.payload) <= 30 or (run.record, run.records) in [
            (batch.record, batch.records) for batch in batches
        ]
        lengths = (
            struct.unpack(f"<{len(run.lengths) // 4}I", run.lengths)
            if run.lengths
            else (len(run.payload),)
        )
        assert len(lengths) == run.records
        at = 0
        for length in lengths:
            found.append(bytes(run.payload[at : at + length]))
            at += length
        record += run.records
        byte += len(run.payload)
    assert found == records


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4), min_size=1, max_size=8
    ),
    st.data(),
)
def test_pages_cut_from_runs_are_those_cut_from_batches(
    streams: list[list[bytes]], data: st.DataObject
) -> None:
    """Compare pages of non-empty records: no protocol accepts empty ones, at which a page might
    end on either side."""
    batches = run_of(streams, record=5, byte=50)
    meta, parts = build_slice(Encoding.BYTES, 5, 50, batches)
    runs = parse_slice(b"".join(parts), meta.crc).hot_batches(
        record=5, byte=50, run_bytes=data.draw(st.integers(1, 40))
    )
    until = (5 + meta.records, 50 + meta.length)
    want = Want(
        data.draw(st.integers(5, until[0] - 1)),
        0,
        data.draw(st.integers(1, 60)),
        data.draw(st.booleans()),
        until,
    )
    exact, merged = cut(batches, want), cut(runs, want)
    assert (exact.begin_record, exact.begin_byte, exact.record, exact.byte) == (
        merged.begin_record,
        merged.begin_byte,
        merged.record,
        merged.byte,
    )
    assert b"".join(bytes(piece.payload) for piece in exact.pieces) == b"".join(
        bytes(piece.payload) for piece in merged.pieces
    )


@pytest.fixture(scope="module")
def small_pack() -> bytes:
    builder = PackBuilder()
    for uid in range(2):
        batch = hot([b"hello", b"there"], producer=("p", 0, 1))
        builder.add(
            uid,
            1,
            build_slice(Encoding.BYTES, 0, 0, [batch]),
            path="default/x",
            content_type="text/plain",
        )
    return b"".join(builder.finish(owner_group=1, created_ms=5)[0])


def test_every_bit_flip_is_noticed(small_pack: bytes) -> None:
    """Flip each bit: slices, footer and tail have CRCs. Only the padding and the leading magic are
    unchecked."""
    entries = read_footer(small_pack).entries
    covered = [range(entry.offset, entry.offset + entry.stored) for entry in entries]
    for at in range(len(small_pack)):
        for bit in (0, 7):
            broken = bytearray(small_pack)
            broken[at] ^= 1 << bit
            owner = next(
                (entry for entry, position in zip(entries, covered, strict=True) if at in position),
                None,
            )
            if owner is not None:
                with pytest.raises(CorruptData):
                    parse_slice(
                        bytes(broken[owner.offset : owner.offset + owner.stored]), owner.crc
                    )
            elif at > covered[-1].stop:
                with pytest.raises((CorruptData, ShortTail)):
                    read_footer(bytes(broken))


def test_a_cut_pack_is_noticed(small_pack: bytes) -> None:
    for length in range(len(small_pack)):
        with pytest.raises((CorruptData, ShortTail)):
            read_footer(small_pack[:length])


@given(st.binary(min_size=64, max_size=300))
def test_a_slice_of_noise_is_refused(noise: bytes) -> None:
    """Even when its CRC fits."""
    for data in (noise, b"PLS1\x01\0\0\0" + noise):
        with pytest.raises(CorruptData):
            parse_slice(data, google_crc32c.value(data))


def test_a_long_footer_asks_for_more() -> None:
    builder = PackBuilder()
    for uid in range(2000):
        builder.add(
            uid,
            1,
            build_slice(Encoding.BYTES, 0, 0, [hot([b"x"])]),
            path=f"default/some-longer-name-{uid}",
        )
    whole = b"".join(builder.finish(owner_group=1, created_ms=0)[0])
    with pytest.raises(ShortTail) as short:
        read_footer(whole[-FOOTER_GUESS_BYTES:])
    assert len(read_footer(whole[-short.value.wanted :]).entries) == 2000


def test_a_payload_that_changed_in_memory_is_not_packed() -> None:
    batch = hot([b"good"])
    batch.payload = b"goof"
    with pytest.raises(CorruptData, match="record 0"):
        build_slice(Encoding.BYTES, 0, 0, [batch])


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_slice(Encoding.BYTES, 0, 0, [])
    with pytest.raises(ValueError, match="one encoding"):
        build_slice(Encoding.JSON, 0, 0, [hot([b"x"])])
    wrong = hot([b"x", b"y"])
    wrong.lengths = b""
    with pytest.raises(ValueError, match="lengths"):
        build_slice(Encoding.BYTES, 0, 0, [wrong])


def test_a_later_version_is_refused(small_pack: bytes) -> None:
    footer = msgspec.msgpack.encode([2, 1, 0, []])
    tail = struct.pack(
        "<IIQ8s",
        len(footer),
        _footer_crc(footer, 8 + len(footer) + 24),
        8 + len(footer) + 24,
        b"PLYNPAK1",
    )
    with pytest.raises(CorruptData, match="version 2"):
        read_footer(b"PLYNPAK1" + footer + tail)
    changed = (
        small_pack[8:16].replace(b"PLS1\x01", b"PLS1\x04")
        + small_pack[16 : read_footer(small_pack).entries[0].stored + 8]
    )
    with pytest.raises(CorruptData, match="version 4"):
        parse_slice(changed, google_crc32c.value(changed))


def test_keys_name_their_home_group_and_hour() -> None:
    key = pack_key("c1", owner_group=12, now_ms=1_700_000_000_000, random=bytes(range(16)))
    assert key == "c1/packs/20231114-22/12-000102030405060708090a0b0c0d0e0f"
    assert owner_group_of(key) == 12
    assert owner_group_of("c1/other/x") is None
    with pytest.raises(ValueError):
        pack_key("c1", owner_group=1, now_ms=0, random=b"short")


def test_slices_never_overlap() -> None:
    builder = PackBuilder()
    entries = [
        builder.add(n, 1, build_slice(Encoding.BYTES, 0, 0, [hot([b"x" * n])])) for n in range(20)
    ]
    assert all(before.offset + before.stored <= after.offset for before, after in pairwise(entries))
    footer = read_footer(b"".join(builder.finish(owner_group=1, created_ms=0)[0]))
    swapped = [1, 1, 0, [msgspec.structs.astuple(entry) for entry in reversed(footer.entries)]]
    encoded = msgspec.msgpack.encode(swapped)
    tail = struct.pack(
        "<IIQ8s",
        len(encoded),
        _footer_crc(encoded, builder.size + len(encoded) + 24),
        builder.size + len(encoded) + 24,
        b"PLYNPAK1",
    )
    with pytest.raises(CorruptData, match="outside"):
        read_footer(encoded + tail)


BATCHES = st.lists(
    st.tuples(
        st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=3),
        st.one_of(
            st.none(),
            st.tuples(st.sampled_from(["p", "q", "r"]), st.integers(0, 9), st.integers(0, 1 << 50)),
        ),
        st.integers(0, 1 << 40),
        st.sampled_from([0, 5]),
    ),
    min_size=1,
    max_size=12,
)


@given(BATCHES, st.data())
def test_a_merged_slice_is_the_one_that_was_never_cut(
    kinds: list[tuple[list[bytes], object, int, int]], data: st.DataObject
) -> None:
    batches: list[HotBatch] = []
    record = byte = 0
    for records, producer, time_ms, own_ms in kinds:
        batch = hot(records, record=record, byte=byte, time_ms=time_ms, producer=producer)
        batch.record_time_ms_max, batch.flags = own_ms, own_ms & 1
        batches.append(batch)
        record, byte = record + len(records), byte + len(batch.payload)
    bounds = sorted({0, len(batches)} | data.draw(st.sets(st.integers(0, len(batches)))))
    slices = []
    for begin, end in pairwise(bounds):
        meta, parts = build_slice(Encoding.BYTES, 7, 8, batches[begin:end])
        slices.append(parse_slice(b"".join(parts), meta.crc))
    assert merge_slices(70, 80, slices) == build_slice(Encoding.BYTES, 70, 80, batches)


def kafka_run(counts: list[int], *, record: int = 0, byte: int = 0) -> list[HotBatch]:
    """Return batches of that many records each: opaque, without lengths, of a producer."""
    found, sequence = [], 2**31 - 2
    for number, records in enumerate(counts):
        payload = b"%d" % number * (records % 50 + 1)
        last = (sequence + records - 1) % 2**31
        producer = ("7", 0, sequence, last, 1)
        crc = google_crc32c.value(payload)
        found.append(
            HotBatch(
                record,
                byte,
                records,
                payload,
                b"",
                crc,
                1000 + number,
                number,
                Encoding.KAFKA,
                5,
                producer,
            )
        )
        record, byte, sequence = record + records, byte + len(payload), (last + 1) % 2**31
    return found


def test_golden_bytes_of_a_slice_of_kafka_batches() -> None:
    meta, parts = build_slice(Encoding.KAFKA, 7, 100, kafka_run([3, 1, 1000], record=7, byte=100))
    assert b"".join(parts).hex() == GOLDEN_KAFKA
    assert (meta.records, meta.length, meta.record_time_ms_max) == (1004, 7, 1000)


@given(st.lists(st.integers(1, 2**28), min_size=1, max_size=12), st.data())
def test_kafka_batches_come_back_as_they_were_merged_or_not(
    counts: list[int], data: st.DataObject
) -> None:
    batches = kafka_run(counts, record=50, byte=9000)
    bounds = sorted({0, len(batches)} | data.draw(st.sets(st.integers(0, len(batches)))))
    slices = []
    for begin, end in pairwise(bounds):
        meta, parts = build_slice(Encoding.KAFKA, 50, 9000, batches[begin:end])
        slices.append(parse_slice(b"".join(parts), meta.crc))
    meta, parts = merge_slices(50, 9000, slices)
    assert (meta, parts) == build_slice(Encoding.KAFKA, 50, 9000, batches)
    found = parse_slice(b"".join(parts), meta.crc)
    assert found.producers == {number: batch.producer for number, batch in enumerate(batches)}
    for run_bytes in (0, 1 << 16):
        again = found.hot_batches(record=50, byte=9000, run_bytes=run_bytes)
        assert [
            msgspec.structs.replace(each, payload=bytes(each.payload), position=5, producer=None)
            for each in again
        ] == [msgspec.structs.replace(each, producer=None) for each in batches], (
            "small neighbours are not joined"
        )
    page = cut(
        again, Want(batches[-1].record, -1, 1 << 20, True, (50 + sum(counts), 9000 + meta.length))
    )
    assert [bytes(piece.payload) for piece in page.pieces] == [batches[-1].payload]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="undivided"):
        found.cut(0, 1)


def test_a_slice_has_no_more_records_than_an_index_entry_says() -> None:
    assert build_slice(Encoding.KAFKA, 0, 0, kafka_run([2**31, 2**31 - 1]))[0].records == 2**32 - 1
    with pytest.raises(ValueError, match="at most"):
        build_slice(Encoding.KAFKA, 0, 0, kafka_run([2**31, 2**31]))
    divided = kafka_run([2])
    divided[0].lengths = bytes(8)
    with pytest.raises(ValueError, match="record lengths"):
        build_slice(Encoding.KAFKA, 0, 0, divided)


def test_slices_of_two_encodings_are_not_merged() -> None:
    slices = []
    for encoding in (Encoding.BYTES, Encoding.JSON):
        meta, parts = build_slice(encoding, 0, 0, [hot([b"1,"], encoding=encoding)])
        slices.append(parse_slice(b"".join(parts), meta.crc))
    with pytest.raises(ValueError, match="one encoding"):
        merge_slices(0, 0, slices)


def test_large_payloads_go_into_a_slice_without_a_copy() -> None:
    large = [bytes([number]) * 70_000 for number in range(3)]
    batches = run_of([[payload] for payload in large], record=7, byte=100)
    meta, parts = build_slice(Encoding.BYTES, 7, 100, batches)
    assert [any(part is payload for part in parts) for payload in large] == [True] * 3
    found = parse_slice(b"".join(parts), meta.crc)
    assert found.payload == b"".join(large) and meta.length == 210_000
    assert meta.stored == sum(map(len, parts))
    small = run_of([[b"x" * 100]] * 50)
    assert len(build_slice(Encoding.BYTES, 0, 0, small)[1]) == 2  # a part each would cost more
    merged, pieces = merge_slices(7, 100, [found])
    assert (merged, b"".join(pieces)) == (meta, b"".join(parts))
