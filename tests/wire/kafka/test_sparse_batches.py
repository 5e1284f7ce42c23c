"""Batches of which compaction keeps some records: against a plain decoder, and with damaged bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds.compaction import with_codec

from polynya.wire.kafka.batches import HEADER_BYTES, Record, build_batch, header_of
from polynya.wire.kafka.record_checks import keyless_of
from polynya.wire.kafka.records import UnreadableBatch, decoded_records
from polynya.wire.kafka.sparse_batches import keyed_batch, without

BYTES = st.none() | st.binary(max_size=300)
TIMES = st.integers(0, 2**42)
RECORDS = st.lists(
    st.builds(Record, BYTES, BYTES, TIMES, st.just((("h", b"1"), ("n", None)))),
    min_size=1,
    max_size=200,
)


@given(RECORDS, st.integers(0, 4), st.randoms(use_true_random=False))
def test_what_stays_is_what_a_decoder_reads(
    records: list[Record], codec: int, random: object
) -> None:
    batch = with_codec(build_batch(records), codec)
    found = keyed_batch(batch)
    assert [(row[2], row[3]) for row in found.rows] == [
        (each.key, each.value is None) for each in records
    ]
    kept = {at for at in range(len(records)) if random.random() < 0.5}  # type: ignore[attr-defined]
    made = without(batch, found, lambda row: row[0] in kept)
    before = {each.offset: each for each in decoded_records(batch, 100)}
    if made is None:
        assert not kept
        return
    after = list(decoded_records(made, 100))
    assert after == [before[100 + at] for at in sorted(kept)]
    head = header_of(made)
    assert head.last_offset_delta == len(records) - 1
    assert head.max_timestamp == max(each.timestamp for each in after)
    if len(kept) == len(records):
        assert made == batch
    again = keyed_batch(made)
    assert without(made, again, lambda row: True) == made
    first = next((at for at, each in enumerate(records) if each.key is None), -1)
    assert keyless_of(batch, header_of(batch)) == first


@given(RECORDS, st.integers(0, 4), st.integers(0), st.integers(0, 255))
def test_damaged_records_are_unreadable_or_read(
    records: list[Record], codec: int, at: int, byte: int
) -> None:
    damaged = bytearray(with_codec(build_batch(records), codec))
    damaged[HEADER_BYTES + at % (len(damaged) - HEADER_BYTES)] = byte
    try:
        rows = keyed_batch(bytes(damaged)).rows
    except UnreadableBatch:
        return
    assert len(rows) == len(records)


def test_a_batch_with_too_many_records_is_unreadable() -> None:
    batch = bytearray(build_batch([Record(b"k", b"v")]))
    batch[57:61] = (2**31 - 1).to_bytes(4)
    with pytest.raises(UnreadableBatch, match="at most"):
        keyed_batch(bytes(batch))
