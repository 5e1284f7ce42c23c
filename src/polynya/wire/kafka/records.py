"""The records of stored Kafka batches: decompression with bounds, and iteration. Pure code.

A stored batch passed `check_batch`, which cannot see inside compressed records. So a batch that a
client compressed wrongly, or too far, is found here: `UnreadableBatch`.
"""

from __future__ import annotations

from collections.abc import Iterator

import cramjam
from msgspec import structs

from polynya.base.limits import (
    KAFKA_BATCH_EXPANSION_MAX,
    KAFKA_BATCH_RECORDS_MAX,
    KAFKA_DECODED_BYTES_MAX,
    KAFKA_DECODED_BYTES_SURE,
)
from polynya.wire.kafka.batches import (
    HEADER_BYTES,
    BatchHeader,
    Record,
    batches_of,
    header_of,
    records_of,
)
from polynya.wire.kafka.primitives import Bytes, Malformed

_XERIAL = b"\x82SNAPPY\0"  # the framing of Java clients: magic, two versions, sized blocks
_XERIAL_BYTES = 16
_CODECS = {
    1: cramjam.gzip.decompress_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
_SNAPPY = 2


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
            f"the batch at offset {base_offset} has {header.records} records; at most {KAFKA_BATCH_RECORDS_MAX} are decoded"
        )
    try:
        body = decompressed(batch)
        for delta, record in enumerate(records_of(batch, body)):
            yield structs.replace(record, offset=base_offset + delta)
    except (Malformed, cramjam.DecompressionError) as fault:
        raise UnreadableBatch(f"the batch at offset {base_offset}: {fault}") from None


def decompressed(batch: Bytes) -> Bytes:
    """Return the bytes of the records, decompressed up to the limits.

    Raises Malformed or `cramjam.DecompressionError`.
    """
    header, data = header_of(batch), memoryview(batch)[HEADER_BYTES:]
    if not header.codec:
        return data
    most = max(KAFKA_DECODED_BYTES_SURE, KAFKA_BATCH_EXPANSION_MAX * len(data))
    room = bytearray(min(most, KAFKA_DECODED_BYTES_MAX))
    if header.codec == _SNAPPY:
        return _snappy(data, len(room))
    into = _CODECS.get(header.codec)
    if into is None:
        raise Malformed(f"there is no codec {header.codec}; codecs are 0 to 4")
    size = into(data, room)
    return memoryview(room)[:size]


def _snappy(data: memoryview, most: int) -> bytes:
    if data[: len(_XERIAL)] != _XERIAL:
        return _snappy_block(data, most)
    parts: list[bytes] = []
    at = _XERIAL_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        at += 4
        if at + size > len(data):
            raise Malformed("a block of snappy ends behind its batch")
        parts.append(_snappy_block(data[at : at + size], most))
        most -= len(parts[-1])
        at += size
    return b"".join(parts)


def _snappy_block(data: memoryview, most: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > most:
        raise Malformed(f"{size} bytes of records where at most {most} are decoded")
    return bytes(cramjam.snappy.decompress_raw(data))
