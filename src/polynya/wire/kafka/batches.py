"""Kafka record batches (magic 2): their headers, their checks, and the numbers that a fetch sets.

The CRC covers what follows it, so base offset and leader epoch change without a new CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct

import google_crc32c
import msgspec

from polynya.base import crc32c
from polynya.wire.kafka.primitives import Bytes, Malformed

HEADER_BYTES = 61
MAGIC = 2
NO_PRODUCER = -1
_HEADER = Struct(">qiibIhiqqqhii")
_BASE = Struct(">qii")  # base offset, length, leader epoch: all that a fetch replaces
_EXTENT = Struct(">8xi11xi")  # length, last offset delta
_LENGTH_AT, _CRC_FROM = 8, 21
_ATTRIBUTES_AT, _MAX_TIME_AT = 21, 35
_PRODUCER_AT = 43
_PRODUCER = Struct(">qhi")  # id, epoch, first sequence
_NO_PRODUCER = (NO_PRODUCER, -1, -1)
_JOINED_BYTES = 64 * 1024  # from here on a pass over a copy costs more than to join CRCs
_OVERHEAD = 12  # bytes before those that the length counts
_CODECS = 0x07
_CONTROL = 0x20
TRANSACTIONAL = 0x10
LOG_APPEND_TIME = 0x08
CODEC_MAX = 4  # none, gzip, snappy, lz4, zstd


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a record batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def codec(self) -> int:
        """The compression of the records: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _CODECS

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def is_log_append_time(self) -> bool:
        """Report whether all records have the time of the header."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap after 2^31 - 1."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF


class InvalidBatch(ValueError):
    """A client's record batch breaks a rule of the format."""


class CorruptBatch(InvalidBatch):
    """The CRC or the length of a record batch does not match its bytes."""


class OldFormat(InvalidBatch):
    """The records have a magic number before 2: a format of before Kafka 0.11."""


def header_of(batch: Bytes) -> BatchHeader:
    """Decode the header of a batch that has at least `HEADER_BYTES`."""
    return BatchHeader(*_HEADER.unpack_from(batch))


def check_batch(batch: bytes, whole_crc: int) -> BatchHeader:
    """Return the header of the one batch that a producer sent. Raises InvalidBatch.

    `whole_crc`: the CRC-32C of all its bytes, from which the batch's own is known."""
    if not batch:
        raise InvalidBatch("a partition of the request has no record batch; expected one")
    if len(batch) > 16 and batch[16] < MAGIC:
        raise OldFormat(f"the records have magic {batch[16]}; only magic 2 is stored")
    if len(batch) < HEADER_BYTES:
        raise CorruptBatch(
            f"a record batch has at least {HEADER_BYTES} bytes, this one {len(batch)}"
        )
    header = BatchHeader(*_HEADER.unpack_from(batch))
    if header.magic != MAGIC:
        raise InvalidBatch(f"the records have magic {header.magic}; only magic 2 is stored")
    size = header.length + _OVERHEAD
    if HEADER_BYTES <= size < len(batch):
        raise InvalidBatch(
            f"a batch of {size} bytes, and {len(batch) - size} bytes behind it; send one batch for "
            "a partition in a request"
        )
    if size != len(batch):
        raise CorruptBatch(f"the batch says {size} bytes and has {len(batch)}")
    if len(batch) < _JOINED_BYTES:
        has_crc = google_crc32c.value(batch[_CRC_FROM:]) == header.crc
    else:
        has_crc = _has_crc(batch, header.crc, whole_crc)
    if not has_crc:
        raise CorruptBatch("the CRC-32C of the record batch does not match its bytes")
    if header.records < 1 or header.last_offset_delta != header.records - 1:
        raise InvalidBatch(
            f"{header.records} records with last offset delta {header.last_offset_delta}: "
            "the delta is one less than the records, and there is at least one"
        )
    if header.attributes & _CODECS > CODEC_MAX or header.attributes & _CONTROL:
        raise InvalidBatch("a producer sends no control batch, and codecs 0 to 4 alone")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidBatch("an idempotent batch has an epoch and a sequence from 0 on")
    return header


def _has_crc(batch: bytes, crc: int, whole_crc: int) -> bool:
    """Report whether this is the CRC of what follows it, from that of the whole batch."""
    head_crc = google_crc32c.value(batch[:_CRC_FROM])
    return crc32c.joined(head_crc, crc, len(batch) - _CRC_FROM) == whole_crc


def stamped(batch: bytes, time_ms: int) -> bytes:
    """Return a valid batch whose records all have this time, the time of their append."""
    return _with_time(batch, time_ms, LOG_APPEND_TIME)


def dated(batch: bytes, newest_ms: int) -> bytes:
    """Return a valid batch whose header has the time of its newest record."""
    return _with_time(batch, newest_ms, 0)


def _with_time(batch: bytes, time_ms: int, attribute: int) -> bytes:
    """Set the time and an attribute."""
    made = bytearray(batch[:HEADER_BYTES])
    attributes = int.from_bytes(made[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2]) | attribute
    made[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2] = attributes.to_bytes(2)
    made[_MAX_TIME_AT : _MAX_TIME_AT + 8] = time_ms.to_bytes(8, signed=True)
    return _with_head(batch, made)


def _with_head(batch: Bytes, made: bytearray) -> bytes:
    """Return a batch with another header, and its CRC. A change of the first bytes changes the CRC
    by what remains of the difference."""
    before, after = (
        google_crc32c.value(bytes(each[_CRC_FROM:HEADER_BYTES])) for each in (batch, made)
    )
    crc = header_of(batch).crc ^ crc32c.shifted(before ^ after, len(batch) - HEADER_BYTES)
    made[_CRC_FROM - 4 : _CRC_FROM] = crc.to_bytes(4)
    return b"".join((made, memoryview(batch)[HEADER_BYTES:]))


def place_all(
    data: Bytes, base_offset: int, leader_epoch: int, put: Callable[[Bytes], None]
) -> int:
    """Give out the whole stored batches that lie one after the other, from an offset on, as pieces
    of which all but the heads are views. Return their bytes. Raises Malformed."""
    view, at, size = memoryview(data), 0, len(data)
    while at + HEADER_BYTES <= size:
        length, last_offset_delta = _EXTENT.unpack_from(view, at)
        end = at + _OVERHEAD + length
        if end < at + HEADER_BYTES or end > size:
            raise Malformed(f"a record batch ends at byte {end} of {size}")
        put(_BASE.pack(base_offset, length, leader_epoch))
        put(view[at + _BASE.size : end])
        base_offset += last_offset_delta + 1
        at = end
    return at


def batches_of(data: Bytes) -> Iterator[memoryview]:
    """Iterate over the whole batches that lie one after the other."""
    view, at = memoryview(data), 0
    while at + HEADER_BYTES <= len(view):
        end = at + _OVERHEAD + int.from_bytes(view[at + _LENGTH_AT : at + _LENGTH_AT + 4])
        if end < at + HEADER_BYTES or end > len(view):
            raise Malformed(f"a record batch ends at byte {end} of {len(view)}")
        yield view[at:end]
        at = end


def empty_batch(offset: int, leader_epoch: int) -> bytes:
    """Return a batch that has one offset and no record, as Kafka's compaction leaves some."""
    tail = _EMPTY_TAIL
    head = Struct(">qiibI").pack(offset, len(tail) + 9, leader_epoch, MAGIC, _EMPTY_CRC)
    return head + tail


_EMPTY_TAIL = Struct(">hiqqqhii").pack(0, 0, -1, -1, NO_PRODUCER, -1, -1, 0)
_EMPTY_CRC = google_crc32c.value(_EMPTY_TAIL)


def check_mirrored(batch: Bytes) -> tuple[bytes, BatchHeader]:
    """Return a batch of another cluster as it is stored, at offset 0, and its header. Raises
    InvalidBatch.

    It may have fewer records than offsets, as its topic may have been compacted. It has no producer
    and is in no transaction: these are those of the other cluster."""
    header = header_of(batch)
    where = f"the batch at offset {header.base_offset}"
    if header.magic != MAGIC:
        raise OldFormat(f"{where} has magic {header.magic}; only magic 2 is stored")
    stored = b"".join((bytes(8), batch[8:12], bytes(4), batch[16:]))
    if google_crc32c.value(stored[_CRC_FROM:]) != header.crc:
        raise CorruptBatch(f"{where}: the CRC-32C does not match its bytes")
    if header.base_offset < 0 or not 1 <= header.records <= header.last_offset_delta + 1:
        raise InvalidBatch(
            f"{where} has {header.records} records with last offset delta "
            f"{header.last_offset_delta}: expected 1 record or more, and at most one for each offset"
        )
    if header.attributes & (TRANSACTIONAL | _CONTROL) or header.codec > CODEC_MAX:
        raise InvalidBatch(
            f"{where} has attributes {header.attributes:#x}: a mirror sends committed records "
            "alone, without the mark of a transaction, with codecs 0 to 4"
        )
    producer = header.producer_id, header.producer_epoch, header.base_sequence
    if producer != _NO_PRODUCER:
        raise InvalidBatch(f"{where} has producer {producer}; a mirror sends {_NO_PRODUCER}")
    return stored, header


def without_producer(batch: Bytes) -> bytes:
    """Return a valid batch with the same records and offsets that has no producer and is in no
    transaction."""
    made = bytearray(batch[:HEADER_BYTES])
    attributes = int.from_bytes(made[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2]) & ~TRANSACTIONAL
    made[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2] = attributes.to_bytes(2)
    made[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] = _PRODUCER.pack(*_NO_PRODUCER)
    return _with_head(batch, made)


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record of a batch."""

    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = 0


def build_batch(records: Iterable[Record], *, leader_epoch: int = 0) -> bytes:
    """Build an uncompressed batch of the records, which has base offset 0 and no producer."""
    listed = list(records)
    base = listed[0].timestamp
    body = b"".join(_record_bytes(each, delta, base) for delta, each in enumerate(listed))
    last = len(listed) - 1
    newest = max(each.timestamp for each in listed)
    tail = Struct(">hiqqqhii").pack(0, last, base, newest, NO_PRODUCER, -1, -1, len(listed)) + body
    crc = google_crc32c.value(tail)
    return Struct(">qiibI").pack(0, len(tail) + 9, leader_epoch, MAGIC, crc) + tail


def records_of(batch: Bytes, body: Bytes | None = None) -> Iterator[Record]:
    """Iterate over the records. `body`: the decompressed records of a compressed batch. Raises
    Malformed."""
    header = header_of(batch)
    data = memoryview(batch)[HEADER_BYTES:] if body is None else memoryview(body)
    fixed = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    at = 0
    try:
        for _ in range(header.records):
            size, at = _varint(data, at)
            record, end = _record(data, at, header, fixed)
            if size < 0 or end != at + size:
                raise Malformed("a record has another length than it says")
            at = end
            yield record
    except IndexError:
        raise Malformed("a record ends behind its batch") from None


def _record(
    data: memoryview, at: int, header: BatchHeader, fixed: int | None
) -> tuple[Record, int]:
    delta_ms, at = _varint(data, at + 1)
    delta, at = _varint(data, at)
    key, at = _bytes(data, at)
    value, at = _bytes(data, at)
    count, at = _varint(data, at)
    headers = []
    for _ in range(count):
        name, at = _bytes(data, at)
        content, at = _bytes(data, at)
        headers.append((str(name or b"", "utf-8", "backslashreplace"), content))
    timestamp = header.base_timestamp + delta_ms if fixed is None else fixed
    return Record(key, value, timestamp, tuple(headers), header.base_offset + delta), at


def _bytes(data: memoryview, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    if size < 0:
        return None, at
    if at + size > len(data):
        raise Malformed("a record's field ends behind its batch")
    return bytes(data[at : at + size]), at + size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise Malformed("a varint has more than 64 bits")


def _zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _sized(value: bytes | None) -> bytes:
    return _zigzag(-1) if value is None else _zigzag(len(value)) + value


def _record_bytes(record: Record, delta: int, base: int) -> bytes:
    parts = [b"\0", _zigzag(record.timestamp - base), _zigzag(delta)]
    parts += [_sized(record.key), _sized(record.value), _zigzag(len(record.headers))]
    for name, value in record.headers:
        parts += [_sized(name.encode()), _sized(value)]
    body = b"".join(parts)
    return _zigzag(len(body)) + body
