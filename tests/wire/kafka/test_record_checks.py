"""The checks of a producer's records: what clients send passes, and no reader meets what fails."""

from __future__ import annotations

import contextlib
from random import Random

import cramjam
import google_crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as TheirBuilder
from hypothesis import given
from hypothesis import strategies as st
from worlds.kafka import made

from polynya.base.limits import KAFKA_BATCH_RECORDS_MAX
from polynya.wire.kafka import batches, record_checks
from polynya.wire.kafka.batches import HEADER_BYTES, InvalidBatch, Record, build_batch, header_of
from polynya.wire.kafka.codecs import NAMES, SNAPPY
from polynya.wire.kafka.record_checks import (
    SMALL_BYTES,
    check_decoded,
    check_records,
    uncompressed_bytes_max,
)
from polynya.wire.kafka.records import UnreadableBatch, decoded_records

CODECS = (1, 2, 3, 4)
OPTIONAL = st.none() | st.binary(max_size=200)
RECORD = st.builds(
    Record,
    OPTIONAL,
    OPTIONAL,
    st.integers(0, 2**42),
    st.lists(st.tuples(st.text(max_size=9), OPTIONAL), max_size=3).map(tuple),
)
SENT = [Record(b"k%d" % n, b"value %d " % n * 40, 1000 + n % 9, (("h", b"x"),)) for n in range(300)]


def theirs(sent: list[Record], codec: int = 0) -> bytes:
    builder = TheirBuilder(2, codec, False, -1, -1, -1, 1 << 24)
    for delta, each in enumerate(sent):
        headers = list(each.headers)
        builder.append(
            delta, timestamp=each.timestamp, key=each.key, value=each.value, headers=headers
        )
    return bytes(builder.build())


def quick(batch: bytes) -> int:
    header = batches.check_batch(batch, google_crc32c.value(batch))
    return check_records(batch, header)


def full(batch: bytes) -> int:
    return check_decoded(batch, batches.check_batch(batch, google_crc32c.value(batch)))


@given(st.lists(RECORD, min_size=1, max_size=8))
def test_sound_records_pass_with_their_newest_time(records: list[Record]) -> None:
    newest = max(each.timestamp for each in records)
    for batch in (build_batch(records), theirs(records)):
        assert quick(batch) == full(batch) == newest


def judged(batch: bytes) -> int | str:
    try:
        return quick(batch)
    except InvalidBatch as fault:
        return str(fault)


def walked(batch: bytes) -> int | str:
    """Judge a batch record by record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_checks, "_RUN_MIN", 1 << 31)
        return judged(batch)


@given(st.data())
def test_records_that_are_looked_at_together_are_judged_as_each_by_itself(
    data: st.DataObject,
) -> None:
    """Judge records of one size together, with some that differ and some with changed bytes."""
    count = data.draw(st.integers(1, 300))
    key, value = (
        data.draw(st.none() | st.binary(max_size=70)),
        bytes(data.draw(st.integers(0, 130))),
    )
    step = data.draw(st.sampled_from((0, 0, 1, 3, 70, 9000)))
    sent = [Record(key, value, 10**6 + step * position) for position in range(count)]
    for position, each in data.draw(
        st.dictionaries(st.integers(0, count - 1), RECORD, max_size=2)
    ).items():
        sent[position] = each
    sound = build_batch(sent)
    assert judged(sound) == walked(sound) == max(each.timestamp for each in sent)
    body = bytearray(sound[HEADER_BYTES:])
    record = len(body) // count
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, 12)) + record * data.draw(st.integers(0, count - 1))
        body[min(position, len(body) - 1)] ^= data.draw(st.integers(1, 255))
    del body[len(body) - data.draw(st.sampled_from((0, 0, 0, 1, 9))) :]
    changed = made(bytes(body), records=count + data.draw(st.sampled_from((0, 0, 0, -1, 1))) or 1)
    assert judged(changed) == walked(changed)


@given(st.binary(max_size=12), st.binary(max_size=40), st.integers(1, 20))
def test_any_bytes_are_judged_alike_together_and_each_by_itself(
    head: bytes, tail: bytes, records: int
) -> None:
    sizes = bytes((2 * (len(head) + 2),))
    for body in (head + tail, (head or b"x") * records, sizes + head, head * 9 + tail):
        batch = made(body, records=records)
        assert judged(batch) == walked(batch)
    offsets = b"".join(
        bytes((2 * (len(head) + 6), 0, position % 7 * 2, position * 2, 1, 2 * len(head)))
        + head
        + b"\0"
        for position in range(records)
    )
    batch = made(offsets, records=records)
    assert judged(batch) == walked(batch) == 1000 + min(records - 1, 6)


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("size", [5, 61, 90])
@pytest.mark.parametrize("step", [0, 1, 100])
def test_one_changed_byte_is_found_in_records_of_one_size(
    key: bytes | None, size: int, step: int
) -> None:
    sent = [Record(key, bytes(size), 1000 + step * position) for position in range(80)]
    body = build_batch(sent)[HEADER_BYTES:]
    ends = [
        len(build_batch(sent[:position])) - HEADER_BYTES for position in (1, 30, 31, 70, 71, 79, 80)
    ]
    for end, after in ((0, ends[0]), ends[1:3], ends[3:5], ends[5:]):
        heads = range(end, after - size - 1)
        for position in (*heads, after - 1):
            for change in (1, 2, 3, 0x40, 0x7F, 0x80, 0x81, 0xFF):
                changed = bytearray(body)
                changed[position] ^= change
                batch = made(bytes(changed), records=80)
                assert judged(batch) == walked(batch)


def test_many_records_of_one_size_are_not_looked_at_one_by_one() -> None:
    sent = [Record(b"key", b"value", 1000 + position % 50) for position in range(8192)]
    batch, seen = build_batch(sent), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_checks, "_walk", lambda *given: seen.append(given))
        assert quick(batch) == 1049
    assert not seen


@pytest.mark.parametrize("codec", CODECS)
def test_the_frames_of_a_clients_library_pass(codec: int) -> None:
    for sent in (SENT, SENT[:1], [Record(None, None, 5)], [Record(None, bytes(1 << 20), 5)]):
        batch = theirs(sent, codec)
        assert quick(batch) == max(each.timestamp for each in sent)
    assert full(theirs(SENT, codec)) == 1008


def test_raw_snappy_passes() -> None:
    body = bytes(cramjam.snappy.compress_raw(build_batch(SENT)[HEADER_BYTES:]))
    assert quick(made(body, records=300, codec=2)) == 1000
    assert full(made(body, records=300, codec=2)) == 1008


def test_records_of_many_bytes_and_many_headers_pass() -> None:
    headers = tuple((f"header {n}", b"v" * n if n % 3 else None) for n in range(300))
    sent = [Record(b"k" * 300, b"v" * (1 << 21), 2**40 + n * 2**20, headers) for n in range(3)]
    assert quick(build_batch(sent)) == 2**40 + 2**21
    many = [Record(None, None, 7)] * 20_000
    assert quick(build_batch(many)) == 7, "offset deltas of three bytes"


def test_times_below_the_first_and_unknown_ones_pass() -> None:
    for times, newest in (((9, 5, 7), 9), ((5, 2**41, 4), 2**41), ((-1, -1), -1)):
        assert quick(build_batch(Record(None, b"v", each) for each in times)) == newest


RECORD_OK = bytes((12, 0, 0, 0, 1, 1, 0))  # its length 6, and null key and value


@pytest.mark.parametrize(
    ("body", "records", "said"),
    [
        (RECORD_OK, 2**31 - 1, "2147483647 records in 7 bytes"),
        (RECORD_OK, 2, "2 records in 7 bytes"),
        (RECORD_OK * 2, 1, "leave 7 bytes of their batch over"),
        (RECORD_OK + b"!", 1, "leave 1 bytes"),
        (RECORD_OK * 2, 2, "record 1 has another offset delta"),
        (bytes((12, 0, 0, 2, 1, 1, 0)), 1, "record 0 has another offset delta"),
        (bytes((14, 0, 0, 0, 1, 1, 0)), 1, "another length"),
        (bytes((10, 0, 0, 0, 1, 1, 0)), 1, "another length"),
        (bytes((13, 0, 0, 0, 1, 1, 0)), 1, "another length"),
        (bytes((12, 0, 0, 0, 40, 1, 0)), 1, "end behind their batch"),
        (bytes((12, 0, 0, 0, 1, 40, 0)), 1, "end behind their batch"),
        (bytes((12, 0, 0, 0, 1, 1, 2)), 1, "end behind their batch"),
        (bytes((12, 0, 0, 0, 1, 1, 1)), 1, "negative number of headers"),
        (bytes((16, 0, 0, 0, 1, 1, 2, 1, 1)), 1, "header without a name"),
        (b"\xff" * 4 + bytes(9), 1, "another length"),
        (b"\xff" * 12, 1, "more than 32 bits"),
        (b"\x0c\0" + b"\xff" * 12, 1, "more than 64 bits"),
    ],
)
def test_false_records_are_refused(body: bytes, records: int, said: str) -> None:
    batch = made(body, records=records)
    for check in (quick, full):
        with pytest.raises(InvalidBatch) as raised:
            check(batch)
        if check is quick or records <= KAFKA_BATCH_RECORDS_MAX:
            assert said in str(raised.value)
    if records < 10:
        assert quick(made(RECORD_OK)) == 1000


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "body", [b"", b"x", b"not compressed at all " * 9, bytes(64), b"\xff" * 64]
)
def test_a_body_that_is_not_of_its_codec_is_refused(codec: int, body: bytes) -> None:
    with pytest.raises(InvalidBatch, match=NAMES[codec]):
        quick(made(body, codec=codec))


@pytest.mark.parametrize("codec", CODECS)
def test_the_body_of_another_codec_is_refused(codec: int) -> None:
    for other in {*CODECS} - {codec}:
        with pytest.raises(InvalidBatch):
            quick(made(theirs(SENT, other)[HEADER_BYTES:], records=300, codec=codec))


@pytest.mark.parametrize("codec", CODECS)
def test_more_records_than_the_codec_can_hold_are_refused(codec: int) -> None:
    body = theirs(SENT[:1], codec)[HEADER_BYTES:]
    with pytest.raises(InvalidBatch, match="which hold at most"):
        quick(made(body, records=2**31 - 1, codec=codec))


def test_a_gzip_member_that_ends_early_is_refused() -> None:
    whole = theirs(SENT, 1)[HEADER_BYTES:]
    for size in range(len(whole) - 1, len(whole) - 200, -20):
        with pytest.raises(InvalidBatch, match=r"gzip member of the records ends early"):
            quick(made(whole[:size], records=len(SENT), codec=1))


def test_an_lz4_frame_that_ends_early_is_refused() -> None:
    body = theirs(SENT, 3)[HEADER_BYTES:]
    with pytest.raises(InvalidBatch, match="end mark"):
        quick(made(body[:-9], records=300, codec=3))


@pytest.mark.parametrize("codec", CODECS)
def test_small_compressed_records_are_checked_completely(codec: int) -> None:
    """Java, librdkafka and others would stand still at each of these."""
    body = theirs(SENT[:100], codec)[HEADER_BYTES:]
    damaged = bytearray(body)
    damaged[len(body) // 2 : len(body) // 2 + 16] = b"\xff" * 16
    for bad, records in (
        (bytes(damaged), 100),
        (body, 99),
        (body, 101),
        (theirs(SENT[:1] * 2, codec)[HEADER_BYTES:], 1),
        (body[:24] + b"junk" * 20 + body[-24:], 100),
        (body + b"behind", 100),
    ):
        with pytest.raises(InvalidBatch):
            quick(made(bad, records=records, codec=codec))


@pytest.mark.parametrize("codec", CODECS)
def test_of_large_compressed_records_the_frame_is_checked(codec: int) -> None:
    for records, is_checked in ((100, True), (300, False)):
        batch = theirs(SENT[:records], codec)
        wrong = made(batch[HEADER_BYTES:], records=records - 1, codec=codec)
        assert uncompressed_bytes_max(batch) == SMALL_BYTES
        if is_checked:
            with pytest.raises(InvalidBatch):
                quick(wrong)
        else:
            assert quick(wrong) == 1000, "the time of the header, as it came"
        with pytest.raises(InvalidBatch):
            full(wrong)
    noise = Random(1).randbytes(2 * SMALL_BYTES)
    batch = theirs([Record(None, noise, 5)], codec)
    assert uncompressed_bytes_max(batch) == 0
    assert quick(made(batch[HEADER_BYTES:], records=2, codec=codec)) == 1000


@pytest.mark.parametrize("codec", CODECS)
def test_a_full_check_finds_what_the_frame_does_not_show(codec: int) -> None:
    body = theirs(SENT, codec)[HEADER_BYTES:]
    damaged = bytearray(body)
    damaged[len(body) // 2 : len(body) // 2 + 16] = b"\xff" * 16
    for bad in (
        made(bytes(damaged), records=300, codec=codec),
        made(body, records=299, codec=codec),
        made(body, records=301, codec=codec),
        made(body, records=KAFKA_BATCH_RECORDS_MAX + 1, codec=codec),
    ):
        with pytest.raises(InvalidBatch):
            full(bad)
    if codec == SNAPPY:  # does not compress so far
        return
    with pytest.raises(InvalidBatch, match="more than"):
        full(theirs([Record(None, bytes(1 << 24), 5)], codec))


@given(st.integers(0, 60), st.integers(0, 255), st.booleans())
def test_no_reader_meets_a_record_that_fails(at: int, byte: int, cut: bool) -> None:
    """Decode what passes with the readers here: both follow the same rules."""
    good = build_batch([Record(b"key", b"value", 5, (("h", b"x"),)), Record(None, None, 2**40)])
    body = bytearray(good[HEADER_BYTES:])
    body[min(at, len(body) - 1)] = byte
    batch = made(bytes(body[:-1] if cut else body), records=2, base_ms=5)
    with contextlib.suppress(InvalidBatch):
        quick(batch)
        assert [each.offset for each in decoded_records(batch, 0)] == [0, 1]
        return
    with contextlib.suppress(UnreadableBatch):
        list(decoded_records(batch, 0))


def test_a_header_says_the_time_of_all_records_if_the_server_set_it() -> None:
    batch = batches.stamped(build_batch([Record(None, b"v", 5)]), 77)
    assert header_of(batch).is_log_append_time
    assert quick(batch) == 77
