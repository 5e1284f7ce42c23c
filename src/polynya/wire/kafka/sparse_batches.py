"""Batches with fewer records than offsets: find the keys of a stored batch, and leave records out.

An offset never changes, so base offset, last offset delta and the fields of the producer stay. Pure
code. The batch is one that `record_checks` may not have decoded: see `records`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct

import google_crc32c
import msgspec

from polynya.base.errors import CorruptData
from polynya.base.limits import KAFKA_BATCH_RECORDS_MAX
from polynya.wire.kafka import codecs
from polynya.wire.kafka.batches import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    header_of,
)
from polynya.wire.kafka.primitives import Bytes, Malformed
from polynya.wire.kafka.records import UnreadableBatch

_HEAD = Struct(">qiibI")
_TAIL = Struct(">hiqqqhii")
_LENGTH_OVERHEAD = 49  # bytes of the header that the length counts
_LONG_BITS = 64

Row = tuple[int, int, bytes | None, bool, int, int]
"""Offset delta, time delta, key, whether the value is missing, and the record's begin and end."""


class KeyedBatch(msgspec.Struct, gc=False):
    """A decoded batch: its header, its records without their codec, and what each of them is."""

    header: BatchHeader
    body: Bytes
    rows: list[Row]


def keyed_batch(batch: Bytes) -> KeyedBatch:
    """Decode a stored batch, within bounds. Raises UnreadableBatch."""
    header = header_of(batch)
    if header.records > KAFKA_BATCH_RECORDS_MAX:
        raise UnreadableBatch(
            f"the batch has {header.records} records; at most {KAFKA_BATCH_RECORDS_MAX} are decoded"
        )
    try:
        body = codecs.decompressed(header.codec, bytes(memoryview(batch)[HEADER_BYTES:]))
        rows = list(_rows(body, header))
    except (Malformed, CorruptData) as fault:
        raise UnreadableBatch(str(fault)) from None
    except IndexError:
        raise UnreadableBatch("a record ends behind its batch") from None
    return KeyedBatch(header, body, rows)


def _rows(data: Bytes, header: BatchHeader) -> Iterator[Row]:
    at, before = 0, -1
    for _ in range(header.records):
        begin = at
        size, at = _varint(data, at)
        end = at + size
        time, at = _varint(data, at + 1)
        delta, at = _varint(data, at)
        length, at = _varint(data, at)
        key = None
        if length >= 0:
            key = bytes(data[at : at + length])
            at += length
        is_empty = _varint(data, at)[0] < 0
        if size < 0 or at >= end or end > len(data):
            raise Malformed("a record has another length than it says")
        if not before < delta <= header.last_offset_delta:
            raise Malformed(
                f"a record has offset delta {delta} behind {before}; the batch ends at "
                f"{header.last_offset_delta}"
            )
        yield delta, time, key, is_empty, begin, end
        at, before = end, delta
    if at != len(data):
        raise Malformed(f"the records leave {len(data) - at} bytes of their batch over")


def _varint(data: Bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits: mostly one or two bytes."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift >= _LONG_BITS:
            raise Malformed("a varint has more than 64 bits")


def without(batch: Bytes, found: KeyedBatch, is_kept: Callable[[Row], bool]) -> bytes | None:
    """Return the batch without the records that are not kept: the same batch if all are, None if
    none is."""
    kept = [row for row in found.rows if is_kept(row)]
    if len(kept) == len(found.rows):
        return bytes(batch)
    if not kept:
        return None
    header, view = found.header, memoryview(found.body)
    body = codecs.compressed(header.codec, b"".join(view[row[4] : row[5]] for row in kept))
    newest_ms = header.max_timestamp
    if not header.attributes & LOG_APPEND_TIME:
        newest_ms = header.base_timestamp + max(row[1] for row in kept)
    tail = _TAIL.pack(
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        newest_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        len(kept),
    )
    crc = google_crc32c.extend(google_crc32c.value(tail), body)
    head = _HEAD.pack(
        header.base_offset, _LENGTH_OVERHEAD + len(body), header.leader_epoch, header.magic, crc
    )
    return head + tail + body


def is_abort_marker(batch: Bytes) -> bool:
    """Report whether a control batch ends a transaction by an abort. Raises UnreadableBatch."""
    rows = keyed_batch(batch).rows
    return any(row[2] is not None and row[2][2:4] == b"\0\0" for row in rows)
