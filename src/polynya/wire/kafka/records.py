"""The records of stored Kafka batches: decompression with bounds, and iteration. Pure code.

A stored batch passed the checks of `record_checks`, which by default do not decompress. So a batch
that a client compressed wrongly, or too far, is found here: `UnreadableBatch`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from polynya.base.errors import CorruptData
from polynya.base.limits import KAFKA_BATCH_RECORDS_MAX
from polynya.wire.kafka.batches import (
    HEADER_BYTES,
    BatchHeader,
    Record,
    batches_of,
    header_of,
    records_of,
)
from polynya.wire.kafka.codecs import decompressed
from polynya.wire.kafka.primitives import Bytes, Malformed


class UnreadableBatch(ValueError):
    """A stored batch cannot be decoded: its compression or its records are damaged or too large."""


def placed_batches(data: Bytes, record: int) -> Iterator[tuple[memoryview, BatchHeader, int]]:
    """Iterate over the batches of a span, each with its header and its first offset.

    `record`: the offset of the span. Control batches are included. Raises UnreadableBatch.
    """
    try:
        for batch in batches_of(data):
            header = header_of(batch)
            yield batch, header, record
            record += header.last_offset_delta + 1
    except Malformed as fault:
        raise UnreadableBatch(f"from offset {record}: {fault}") from None


def decoded_records(batch: Bytes, base_offset: int) -> Iterator[Record]:
    """Iterate over the records of one batch, at their offsets. A control batch has none.

    Raises UnreadableBatch, also after some records.
    """
    header = header_of(batch)
    if header.is_control:
        return
    if header.records > KAFKA_BATCH_RECORDS_MAX:
        raise UnreadableBatch(
            f"the batch at offset {base_offset} has {header.records} records; at most "
            f"{KAFKA_BATCH_RECORDS_MAX} are decoded"
        )
    try:
        body = decompressed(header.codec, bytes(memoryview(batch)[HEADER_BYTES:]))
        if header.records <= header.last_offset_delta:  # compaction has removed some
            yield from _sparse_records(batch, body, header, base_offset)
            return
        for delta, record in enumerate(records_of(batch, body)):
            yield structs.replace(record, offset=base_offset + delta)
    except (Malformed, CorruptData) as fault:
        raise UnreadableBatch(f"the batch at offset {base_offset}: {fault}") from None


def _sparse_records(
    batch: Bytes, body: Bytes, header: BatchHeader, base_offset: int
) -> Iterator[Record]:
    """Iterate over the records of a batch that has fewer than offsets. Raises Malformed."""
    before = -1
    for record in records_of(batch, body):
        delta = record.offset - header.base_offset
        if not before < delta <= header.last_offset_delta:
            raise Malformed(
                f"a record has offset delta {delta} behind {before}; the batch ends at "
                f"{header.last_offset_delta}"
            )
        before = delta
        yield structs.replace(record, offset=base_offset + delta)
