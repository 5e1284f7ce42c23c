"""The committed batches of a Fetch response, against Kafka's own rule for aborted transactions."""

from __future__ import annotations

import struct

import google_crc32c
import pytest

from polynya.cli.mirror.committed import OldBatch, committed_in
from polynya.wire.kafka.batches import (
    Record,
    build_batch,
    check_mirrored,
    header_of,
    records_of,
)

ABORT, COMMIT = 0, 1
TRANSACTIONAL, CONTROL = 0x10, 0x20


def at(
    offset: int, *values: bytes, producer: int = -1, attributes: int = 0, last: int = -1
) -> bytes:
    made = bytearray(build_batch(Record(b"k", value, 1000) for value in values))
    struct.pack_into(">q", made, 0, offset)
    struct.pack_into(">h", made, 21, attributes)
    if last >= 0:
        struct.pack_into(">i", made, 23, last)
    if producer >= 0:
        struct.pack_into(">qhi", made, 43, producer, 3, 17)
    return signed(made)


def signed(made: bytearray) -> bytes:
    struct.pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
    return bytes(made)


def of(offset: int, producer: int, *values: bytes) -> bytes:
    return at(offset, *values, producer=producer, attributes=TRANSACTIONAL)


def marker(offset: int, producer: int, kind: int) -> bytes:
    key = struct.pack(">hh", 0, kind)
    made = bytearray(build_batch([Record(key, bytes(6), 1000)]))
    struct.pack_into(">q", made, 0, offset)
    struct.pack_into(">h", made, 21, TRANSACTIONAL | CONTROL)
    struct.pack_into(">qhi", made, 43, producer, 3, -1)
    return signed(made)


def kept(
    data: bytes, position: int = 0, *aborted: tuple[int, int]
) -> tuple[list[tuple[int, bytes]], int]:
    found = committed_in(data, position, aborted)
    values = []
    for batch in found.batches:
        check_mirrored(batch)  # what the server demands
        values += [(record.offset, record.value or b"") for record in records_of(batch)]
    return values, found.end


def test_batches_have_no_producer_and_keep_all_else() -> None:
    sent = of(7, 4, b"a", b"b")
    found = committed_in(sent, 7, ())
    before, after = header_of(sent), header_of(found.batches[0])
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (-1, -1, -1)
    assert after.attributes == 0
    for field in ("base_offset", "last_offset_delta", "base_timestamp", "max_timestamp", "records"):
        assert getattr(after, field) == getattr(before, field)
    assert found.batches[0][61:] == sent[61:]
    plain = at(0, b"x")
    assert committed_in(plain, 0, ()).batches == [plain], "it is sent as it came"


def test_aborted_transactions_and_markers_are_left_out() -> None:
    data = b"".join(
        (
            of(0, 4, b"aborted"), of(1, 5, b"good"), of(2, 4, b"aborted"), marker(3, 4, ABORT),
            of(4, 4, b"next"), marker(5, 5, COMMIT), at(6, b"plain"), marker(7, 4, COMMIT),
            of(8, 4, b"aborted again"), marker(9, 4, ABORT),
        )
    )  # fmt: skip
    values = [(1, b"good"), (4, b"next"), (6, b"plain")]
    assert kept(data, 0, (4, 8), (4, 0)) == (values, 10)


def test_an_aborted_producer_writes_without_a_transaction() -> None:
    data = of(0, 4, b"aborted") + at(1, b"own", producer=4) + marker(2, 4, ABORT)
    assert kept(data, 0, (4, 0)) == ([(1, b"own")], 3)


def test_a_response_may_begin_in_the_middle_and_end_early() -> None:
    data = at(3, b"a", b"b", b"c") + at(6, b"d")
    assert kept(data, 5) == ([(3, b"a"), (4, b"b"), (5, b"c"), (6, b"d")], 7)
    assert kept(data, 6) == ([(6, b"d")], 7)
    assert kept(data[:-1], 3)[1] == 6
    assert kept(data[:70], 3) == ([], 3)
    assert kept(b"", 9) == ([], 9)
    assert committed_in(data, 5, ()).first == 3
    assert committed_in(b"", 5, ()).first == -1


def test_gaps_and_empty_batches_are_gaps() -> None:
    empty = bytearray(at(5, b"x", last=4))
    struct.pack_into(">i", empty, 57, 0)
    struct.pack_into(">i", empty, 8, 49)
    data = at(0, b"a", last=3) + signed(empty[:61]) + at(20, b"b")
    assert kept(data) == ([(0, b"a"), (20, b"b")], 21)


def test_a_batch_of_an_old_format_is_named() -> None:
    old = bytearray(at(9, b"x"))
    old[16] = 1
    with pytest.raises(OldBatch, match="9"):
        committed_in(at(8, b"a") + bytes(old), 0, ())
