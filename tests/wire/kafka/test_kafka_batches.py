"""Record batches: against kafka-python's and aiokafka's, the checks, and the numbers of a fetch."""

from __future__ import annotations

import contextlib
import struct

import google_crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as TheirBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as TheirBuilder
from hypothesis import given
from hypothesis import strategies as st

from polynya.wire.kafka import batches
from polynya.wire.kafka.batches import CorruptBatch, InvalidBatch, OldFormat, Record
from polynya.wire.kafka.primitives import Malformed

OPTIONAL = st.none() | st.binary(max_size=200)
RECORD = st.builds(
    Record,
    OPTIONAL,
    OPTIONAL,
    st.integers(0, 2**42),
    st.lists(st.tuples(st.text(max_size=9), OPTIONAL), max_size=3).map(tuple),
)


def theirs(
    records: list[Record], *, producer: tuple[int, int, int] = (-1, -1, -1), codec: int = 0
) -> bytes:
    builder = TheirBuilder(2, codec, False, *producer, 1 << 20)
    for delta, each in enumerate(records):
        builder.append(
            delta,
            timestamp=each.timestamp,
            key=each.key,
            value=each.value,
            headers=list(each.headers),
        )
    return bytes(builder.build())


def checked(batch: bytes) -> batches.BatchHeader:
    return batches.check_batch(batch, google_crc32c.value(batch))


def changed(batch: bytes, at: int, shape: str, *values: int, crc: bool = True) -> bytes:
    """Return the batch with other bytes, and with a right CRC unless it is the matter."""
    made = bytearray(batch)
    struct.pack_into(shape, made, at, *values)
    if crc:
        struct.pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
    return bytes(made)


@given(st.lists(RECORD, min_size=1, max_size=8))
def test_our_batches_read_as_theirs_and_theirs_as_ours(records: list[Record]) -> None:
    built = batches.build_batch(records)
    found = TheirBatch(built)
    assert found.validate_crc()
    seen = [Record(r.key, r.value, r.timestamp, tuple(r.headers), r.offset) for r in found]
    assert seen == list(batches.records_of(built)) == list(batches.records_of(theirs(records)))
    assert [each.value for each in seen] == [each.value for each in records]
    assert checked(built).max_timestamp == max(each.timestamp for each in records)


def test_a_producers_batch_has_its_numbers() -> None:
    header = checked(theirs([Record(b"k", b"v", 5)] * 3, producer=(9, 2, 2**31 - 2), codec=3))
    assert (header.records, header.codec, header.producer_id, header.producer_epoch) == (3, 3, 9, 2)
    assert header.base_sequence == 2**31 - 2
    assert header.last_sequence == 0  # sequences wrap


def test_numbers_are_patched_without_another_crc() -> None:
    stored = theirs([Record(None, b"v", 5)] * 2) + theirs([Record(None, b"w", 5)] * 3)
    pieces: list[batches.Bytes] = []
    assert batches.place_all(stored, 1 << 40, 7, pieces.append) == len(stored)
    assert [each.obj is stored for each in pieces[1::2] if isinstance(each, memoryview)] == [
        True,
        True,
    ], "all but the heads are views"
    first, second = batches.batches_of(b"".join(pieces))
    for one, offsets in ((first, range(2)), (second, range(2, 5))):
        assert checked(bytes(one)).leader_epoch == 7
        assert [each.offset - (1 << 40) for each in TheirBatch(bytes(one))] == list(offsets)
    with pytest.raises(Malformed):
        batches.place_all(stored[:-1], 0, 0, pieces.append)


@pytest.mark.parametrize("size", [0, 1, 30, 1000])
def test_a_time_of_append_is_stamped_with_a_valid_crc(size: int) -> None:
    batch = theirs([Record(None, b"v" * size, 5), Record(None, b"w", 9)])
    made = batches.stamped(batch, 1 << 40)
    assert checked(made).max_timestamp == 1 << 40
    assert [each.timestamp for each in TheirBatch(made)] == [1 << 40] * 2
    assert [each.value for each in TheirBatch(made)] == [b"v" * size, b"w"]
    assert made[batches.HEADER_BYTES :] == batch[batches.HEADER_BYTES :]


def test_the_time_of_a_header_is_repaired_with_a_valid_crc() -> None:
    batch = theirs([Record(None, b"v", 5), Record(None, b"w", 9)])
    for newest in (-1, 0, 1 << 40):
        made = batches.dated(batch, newest)
        assert checked(made).max_timestamp == newest
        assert [each.timestamp for each in TheirBatch(made)] == [5, 9]


def test_broken_batches_are_refused() -> None:
    batch = theirs([Record(None, b"v", 5)] * 2, producer=(9, 0, 0))
    large = batches.build_batch([Record(None, b"v" * 100_000, 5)])
    assert checked(b"\7" * 8 + large[8:]).base_offset, "what is before the CRC does not count"
    refused: list[tuple[bytes, type[InvalidBatch]]] = [
        (b"", InvalidBatch),
        (batch[:60], CorruptBatch),
        (batch[:-1], CorruptBatch),
        (batch + batch, InvalidBatch),
        (changed(batch, 8, ">i", 3), CorruptBatch),
        (changed(batch, 8, ">i", 1 << 20), CorruptBatch),
        (batch[:-1] + b"!", CorruptBatch),
        (large[:-1] + b"!", CorruptBatch),
        (b"!" + large[1:-1] + b"!", CorruptBatch),
        (changed(batch, 17, ">I", 1, crc=False), CorruptBatch),
        (changed(batch, 16, ">b", 1), OldFormat),
        (changed(batch, 16, ">b", 3), InvalidBatch),
        (changed(batch, 23, ">i", 0), InvalidBatch),
        (changed(batch, 57, ">i", 0), InvalidBatch),
        (changed(batch, 21, ">h", 0x20), InvalidBatch),
        (changed(batch, 21, ">h", 5), InvalidBatch),
        (changed(batch, 51, ">h", -1), InvalidBatch),
        (changed(batch, 53, ">i", -1), InvalidBatch),
    ]
    for bad, kind in refused:
        with pytest.raises(InvalidBatch) as raised:
            checked(bad)
        assert raised.type is kind
    assert checked(batch).records == 2


@given(st.integers(61, 90), st.integers(0, 255))
def test_damaged_records_are_malformed(at: int, byte: int) -> None:
    """A broker does not look into compressed records, so a reader of them meets whatever a client
    sent."""
    batch = bytearray(theirs([Record(b"key", b"value", 5, (("h", b"x"),))] * 2))
    batch[min(at, len(batch) - 1)] = byte
    with contextlib.suppress(Malformed):
        assert len(list(batches.records_of(bytes(batch)))) == 2


def test_batches_lie_one_after_the_other() -> None:
    first, second = theirs([Record(None, b"a", 1)]), theirs([Record(None, b"bb", 1)])
    assert [bytes(each) for each in batches.batches_of(first + second)] == [first, second]
    for bad in (
        first + second[:-1],
        first + changed(second, 8, ">i", -1),
        first + changed(second, 8, ">i", 10),
    ):
        with pytest.raises(Malformed):
            list(batches.batches_of(bad))
