"""The records of stored batches: every codec of a client's library, the bounds, damaged batches."""

from __future__ import annotations

import cramjam
import google_crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as TheirBuilder

from polynya.base.limits import KAFKA_BATCH_RECORDS_MAX, MIB
from polynya.wire.kafka import records
from polynya.wire.kafka.batches import HEADER_BYTES, Record, build_batch
from polynya.wire.kafka.records import UnreadableBatch, decoded_records, placed_batches

CODECS = range(5)
SENT = [
    Record(None if n % 3 else b"k%d" % n, b"value %d " % n * 40, 1000 + n, (("h", b"x"),), n)
    for n in range(300)
]


def theirs(sent: list[Record], codec: int) -> bytes:
    builder = TheirBuilder(2, codec, False, -1, -1, -1, 1 << 24)
    for delta, each in enumerate(sent):
        headers = list(each.headers)
        builder.append(
            delta, timestamp=each.timestamp, key=each.key, value=each.value, headers=headers
        )
    return bytes(builder.build())


def with_body(batch: bytes, body: bytes, *, codec: int, control: bool = False) -> bytes:
    """Return the batch with another body of a codec."""
    made = bytearray(batch[:HEADER_BYTES] + body)
    made[8:12] = (len(made) - 12).to_bytes(4)
    made[21:23] = (codec | (0x20 if control else 0)).to_bytes(2)
    made[17:21] = google_crc32c.value(bytes(made[21:])).to_bytes(4)
    return bytes(made)


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_decodes_to_what_was_sent_at_its_offsets(codec: int) -> None:
    found = list(decoded_records(memoryview(theirs(SENT, codec)), 70))
    assert [each.offset for each in found] == list(range(70, 370))
    assert [(r.key, r.value, r.timestamp, r.headers) for r in found] == [
        (r.key, r.value, r.timestamp, r.headers) for r in SENT
    ]


def test_raw_snappy_decodes_too() -> None:
    plain = build_batch(SENT)
    raw = bytes(cramjam.snappy.compress_raw(plain[HEADER_BYTES:]))
    found = list(decoded_records(with_body(plain, raw, codec=2), 0))
    assert [each.value for each in found] == [each.value for each in SENT]


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_body_is_an_unreadable_batch(codec: int) -> None:
    good = theirs(SENT, codec)
    for body in (good[HEADER_BYTES:-9], b"not compressed at all", b"", bytes(64)):
        with pytest.raises(UnreadableBatch, match="the batch at offset 70"):
            list(decoded_records(with_body(good, body, codec=codec), 70))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_expands_too_far_is_not_decoded(codec: int) -> None:
    """A mebibyte is always decoded, so that many equal records read; eight of zeros are not."""
    compress = {
        1: cramjam.gzip.compress,
        2: cramjam.snappy.compress_raw,
        3: cramjam.lz4.compress,
        4: cramjam.zstd.compress,
    }[codec]
    plain = build_batch([Record(None, bytes(MIB - 100))])
    fits = with_body(plain, bytes(compress(plain[HEADER_BYTES:])), codec=codec)
    assert len(next(decoded_records(fits, 0)).value or b"") == MIB - 100
    large = build_batch([Record(None, bytes(8 * MIB))])
    bomb = bytes(compress(large[HEADER_BYTES:]))
    if codec == 2:  # snappy alone cannot compress 64 times; its size is a claim
        bomb = b"\xff\xff\xff\x7f" + bomb[4:]
    with pytest.raises(UnreadableBatch, match="the batch at offset 5"):
        list(decoded_records(with_body(large, bomb, codec=codec), 5))


def test_snappy_blocks_share_one_limit() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(MIB)))
    body = b"\x82SNAPPY\0" + bytes(8) + (len(block).to_bytes(4) + block) * 200
    with pytest.raises(UnreadableBatch, match="become more than"):
        list(decoded_records(with_body(build_batch(SENT), body, codec=2), 0))


def test_a_control_batch_has_no_records_and_keeps_its_place() -> None:
    plain = build_batch(SENT[:2])
    control = with_body(plain, plain[HEADER_BYTES:], codec=0, control=True)
    placed = list(placed_batches(control + plain, 40))
    assert [(header.is_control, record) for _, header, record in placed] == [
        (True, 40),
        (False, 42),
    ]
    assert [each.offset for batch, _, at in placed for each in decoded_records(batch, at)] == [
        42,
        43,
    ]


def test_a_torn_span_is_an_unreadable_batch() -> None:
    plain = build_batch(SENT)
    with pytest.raises(UnreadableBatch, match="from offset 9"):
        list(placed_batches(plain[:-1], 9))


def test_the_records_of_a_batch_are_limited() -> None:
    count = KAFKA_BATCH_RECORDS_MAX + 1
    plain = bytearray(build_batch(SENT[:1]))
    plain[57:61] = count.to_bytes(4)
    with pytest.raises(UnreadableBatch, match=f"{count} records"):
        list(records.decoded_records(plain, 0))
