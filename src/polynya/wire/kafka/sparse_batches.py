"""Batches with fewer records than offsets: find the keys of a stored batch, and leave records out.

An offset never changes, so base offset, last offset delta and the fields of the producer stay. Pure
code. The batch is one that `record_checks` may not have decoded: see `records`.
"""

from __future__ import annotations

from collections.abc import Callable
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
_LONG_BITS, _ONE_BYTE = 64, 0x7F

Row = tuple[int, int, bytes | None, bool, int, int]
"""Offset delta, time delta, key, whether the value is missing, and the record's begin and end."""


class KeyedBatch(msgspec.Struct, gc=False):
    """A decoded batch: its header, its records without their codec, and what each of them is."""

    header: BatchHeader
    body: bytes
    rows: list[Row]


def keyed_batch(batch: Bytes) -> KeyedBatch:
    """Decode a stored batch, within bounds. Raises UnreadableBatch."""
    header = header_of(batch)
    if header.records > KAFKA_BATCH_RECORDS_MAX:
        raise UnreadableBatch(
            f"the batch has {header.records} records; at most {KAFKA_BATCH_RECORDS_MAX} are decoded"
        )
    try:
        body = bytes(codecs.decompressed(header.codec, bytes(memoryview(batch)[HEADER_BYTES:])))
        rows = _rows(body, header)
    except (Malformed, CorruptData) as fault:
        raise UnreadableBatch(str(fault)) from None
    except IndexError:
        raise UnreadableBatch("a record ends behind its batch") from None
    return KeyedBatch(header, body, rows)


def _rows(data: bytes, header: BatchHeader) -> list[Row]:
    """Return what each record is. Numbers of one byte, which most are, cost no call."""
    rows: list[Row] = []
    at, before, last = 0, -1, header.last_offset_delta
    for _ in range(header.records):
        begin = at
        size = data[at]
        at += 1
        if size > _ONE_BYTE:
            size, at = _varint(data, begin)
        end = at + (size >> 1)
        time = data[at + 1]  # after the attributes, which have no meaning yet
        at += 2
        if time > _ONE_BYTE:
            time, at = _varint(data, at - 1)
        delta = data[at]
        at += 1
        if delta > _ONE_BYTE:
            delta, at = _varint(data, at - 1)
        delta >>= 1
        length = data[at]
        at += 1
        if length > _ONE_BYTE:
            length, at = _varint(data, at - 1)
        key = None
        if not length & 1:  # else it is negative
            key_end = at + (length >> 1)
            key = data[at:key_end]
            at = key_end
        if size & 1 or at >= end or end > len(data):
            raise Malformed("a record has another length than it says")
        if not before < delta <= last:
            raise Malformed(
                f"a record has offset delta {delta} behind {before}; the batch ends at {last}"
            )
        rows.append((delta, (time >> 1) ^ -(time & 1), key, bool(data[at] & 1), begin, end))
        at, before = end, delta
    if at != len(data):
        raise Malformed(f"the records leave {len(data) - at} bytes of their batch over")
    return rows


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint of at most 64 bits, without undoing its zigzag form."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & _ONE_BYTE) << shift
        if byte <= _ONE_BYTE:
            return value, at
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
