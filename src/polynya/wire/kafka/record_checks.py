"""Checks of the records inside a producer's batch: of all bytes, or, of a large compressed one, of
the frame of its codec alone.

A batch passed `check_batch` before. Consumers cannot pass a batch that they cannot decode, so it is
refused when it is produced. The rules are those of Kafka's `DefaultRecord` and `LogValidator`.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack

from polynya.base.errors import CorruptData
from polynya.base.limits import KAFKA_BATCH_RECORDS_MAX, KIB
from polynya.wire.kafka import codecs
from polynya.wire.kafka.batches import HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, InvalidBatch
from polynya.wire.kafka.primitives import Bytes, Malformed

# a record without key, value and headers: its length, and six fields of a byte each
RECORD_BYTES_MIN = 7
# a batch of so many compressed and uncompressed bytes is decoded always: 25 to 800 us
SMALL_BYTES = 64 * KIB
_CODEC_AT = 22  # the low byte of the attributes
_INT_BITS, _LONG_BITS = 32, 64
_RUN, _RUN_MIN = 128, 8  # records that are looked at together, and the fewest for which it pays
# the bytes of varints: of even numbers in one byte, and of any in two, the low byte first
_EVEN = bytes(range(0, 0x80, 2))
_EVEN_LOW = bytes(range(0x80, 0x100, 2))
# the offset deltas in one byte, and the low and high bytes of those in two
_SHORT_OFFSETS, _LONG_OFFSETS = 0x40, 0x2000
_LOW_OFFSETS = _EVEN_LOW * (_LONG_OFFSETS // _SHORT_OFFSETS)
_HIGH_OFFSETS = bytes(2 * each >> 7 for each in range(_LONG_OFFSETS))
_GZIP_HEAD, _GZIP_BYTES_MIN = b"\x1f\x8b\x08", 18
_GZIP_RESERVED = 0xE0  # of the flags (RFC 1952)
_LZ4_HEAD, _LZ4_BYTES_MIN = b"\x04\x22\x4d\x18", 11
_LZ4_VERSION, _LZ4_VERSION_MASK = 0x40, 0xC0
_LZ4_END, _LZ4_CHECKSUM, _LZ4_CHECKSUM_BYTES = bytes(4), 0x04, 4
_ZSTD_HEAD, _ZSTD_BYTES_MIN = b"\x28\xb5\x2f\xfd", 9
_ZSTD_RESERVED = 0x08  # of the frame's descriptor (RFC 8878)
_SNAPPY_COPY = 0x03  # the type of an element; a block begins with a literal, which has type 0
_XERIAL_BYTES_MIN = codecs.XERIAL_BYTES + 4
# the most bytes that one compressed byte can become, by the format of the codec
_EXPANSION_MAX = {codecs.GZIP: 1032, codecs.SNAPPY: 22, codecs.LZ4: 255, codecs.ZSTD: 1 << 16}


def check_records(batch: bytes, header: BatchHeader) -> int:
    """Check the records of a batch as far as that is cheap, and return their newest time.

    Uncompressed and small compressed records are checked completely. Of large compressed ones the
    frame is checked, and whether it can hold so many records. Raises InvalidBatch."""
    if not header.attributes & codecs.MASK:
        return _newest(batch, HEADER_BYTES, header)
    body = memoryview(batch)[HEADER_BYTES:]
    _FRAMES[header.codec](body)
    most = len(body) * _EXPANSION_MAX[header.codec] // RECORD_BYTES_MIN
    if header.records > most:
        raise InvalidBatch(
            f"{header.records} records in {len(body)} bytes of {codecs.NAMES[header.codec]}, which "
            f"hold at most {most}"
        )
    if len(body) > SMALL_BYTES:
        return header.max_timestamp
    try:
        return _newest(_decompressed(bytes(body), header, SMALL_BYTES), 0, header)
    except codecs.TooLarge:
        return header.max_timestamp


def check_decoded(batch: bytes, header: BatchHeader) -> int:
    """Decompress the records of a batch, check all of them, and return their newest time.

    Raises InvalidBatch, also for a batch that this node would not decode for its readers."""
    if header.records > KAFKA_BATCH_RECORDS_MAX:
        raise InvalidBatch(
            f"{header.records} records; a topic with records.check=full takes at most "
            f"{KAFKA_BATCH_RECORDS_MAX} in a batch"
        )
    if header.codec == codecs.NONE:
        return _newest(batch, HEADER_BYTES, header)
    return _newest(_decompressed(batch[HEADER_BYTES:], header), 0, header)


def oldest_of(batch: bytes, header: BatchHeader) -> int:
    """Return the oldest time of a batch whose records are checked; -1: no record has a time."""
    if header.attributes & LOG_APPEND_TIME:
        return header.max_timestamp
    data: Bytes = batch
    at = HEADER_BYTES
    if header.codec != codecs.NONE:
        data, at = codecs.decompressed(header.codec, batch[HEADER_BYTES:]), 0
    oldest = -1
    for _ in range(header.records):
        size, at = _varint(data, at)
        delta = _varint(data, at + 1, _LONG_BITS)[0]
        time_ms = header.base_timestamp + ((delta >> 1) ^ -(delta & 1))
        if time_ms >= 0 and (oldest < 0 or time_ms < oldest):
            oldest = time_ms
        at += size >> 1
    return oldest


def keyless_of(batch: bytes, header: BatchHeader) -> int:
    """Return the offset delta of the first record without a key, in a batch whose records are
    checked; -1: all have one."""
    data: Bytes = batch
    at = HEADER_BYTES
    if header.codec != codecs.NONE:
        data, at = codecs.decompressed(header.codec, batch[HEADER_BYTES:]), 0
    for number in range(header.records):
        size, at = _varint(data, at)
        _, time_end = _varint(data, at + 1, _LONG_BITS)
        _, delta_end = _varint(data, time_end)
        if data[delta_end] & 1:  # a negative length
            return number
        at += size >> 1
    return -1


def uncompressed_bytes_max(data: Bytes) -> int:
    """Return the most bytes that `check_records` looks at in a batch, which may be damaged."""
    codec = data[_CODEC_AT] & codecs.MASK if len(data) >= HEADER_BYTES else codecs.NONE
    if codec == codecs.NONE:
        return len(data)
    if len(data) > HEADER_BYTES + SMALL_BYTES:
        return 0
    return min(SMALL_BYTES, len(data) * _EXPANSION_MAX.get(codec, 0))


def is_compressed(data: Bytes) -> bool:
    """Report whether a batch, which may be damaged, has compressed records."""
    return len(data) >= HEADER_BYTES and bool(data[_CODEC_AT] & codecs.MASK)


def _decompressed(body: bytes, header: BatchHeader, most: int = 0) -> bytes:
    try:
        return bytes(codecs.decompressed(header.codec, body, most))
    except codecs.TooLarge:
        raise
    except CorruptData as fault:
        raise InvalidBatch(f"the records cannot be decompressed: {fault}") from None


def _newest(data: bytes, at: int, header: BatchHeader) -> int:
    """Check uncompressed records from a position on, and return their newest time."""
    left, records = len(data) - at, header.records
    if records * RECORD_BYTES_MIN > left:
        raise InvalidBatch(
            f"{records} records in {left} bytes: a record has at least {RECORD_BYTES_MIN}"
        )
    try:
        if records < _RUN_MIN:
            at, latest = _walk(data, at, 0, records)
        else:
            at, latest = _checked(data, at, records)
    except IndexError:
        raise InvalidBatch(f"the {header.records} records end behind their batch") from None
    except Malformed as fault:
        raise InvalidBatch(str(fault)) from None
    if at != len(data):
        raise InvalidBatch(
            f"{header.records} records leave {len(data) - at} bytes of their batch over"
        )
    if latest < 0 or header.attributes & LOG_APPEND_TIME:
        return header.max_timestamp
    return header.base_timestamp + (latest >> 1)


def _checked(data: bytes, at: int, records: int) -> tuple[int, int]:
    """Check records as `_walk` does, those that differ in no length together."""
    latest, first = -1, 0
    while first < records:
        last = min(records, _SHORT_OFFSETS if not first else first - first % _RUN + _RUN)
        found = None
        if last - first >= _RUN_MIN and last <= _LONG_OFFSETS:
            try:
                found = _run(data, at, first, last)
            except (IndexError, Malformed):
                found = None  # the first record is false, or not what it is taken for
        at, newest = found or _walk(data, at, first, last)
        latest, first = max(latest, newest), last
    return at, latest


def _run(data: bytes, at: int, first: int, last: int) -> tuple[int, int] | None:
    """Do as `_walk` for records that differ in no length; None: they differ, or have headers, a key
    of 64 bytes, or another number of more than two bytes.

    To compare the bytes at one position of all records costs less than to read each record."""
    count = last - first
    size, begin = _varint(data, at)
    stride = begin - at + (size >> 1)
    end = at + stride * count
    if end > len(data):
        return None
    offset_at = begin + (2 if data[begin + 1] < 0x80 else 3)
    key_at = offset_at + (1 if first < _SHORT_OFFSETS else 2)
    key = data[key_at]
    value_at = key_at + 1 + (0 if key & 1 else key >> 1)
    value, value_begin = _varint(data, value_at)
    headers_at = value_begin + (0 if value & 1 else value >> 1)
    if (
        headers_at != at + stride - 1
        or data[headers_at] | key & 0x80 | size & 1
        or max(begin - at, value_begin - value_at) > 2
    ):
        return None
    for position in (at, begin - 1, key_at, value_at, value_begin - 1, headers_at):
        column = data[position:end:stride]
        if column.count(column[0]) != count:
            return None
    offsets = data[offset_at:end:stride]
    if first < _SHORT_OFFSETS:
        if offsets != _EVEN[first:last]:
            return None
    elif (
        offsets != _LOW_OFFSETS[first:last]
        or data[offset_at + 1 : end : stride] != _HIGH_OFFSETS[first:last]
    ):
        return None
    high = data[begin + 2 : end : stride] if offset_at - begin == 3 else b""
    latest = _latest(data[begin + 1 : end : stride], high)
    return None if latest is None else (end, latest)


def _latest(low: bytes, high: bytes) -> int | None:
    """Return the latest of some time deltas that have a byte each, or two; None: one is negative,
    or has another size."""
    if not high:
        return None if low.translate(None, _EVEN) else max(low)
    if low.translate(None, _EVEN_LOW) or not high.isascii():
        return None
    pairs = bytearray(2 * len(low))
    pairs[::2], pairs[1::2] = low, high
    latest: int = max(unpack(f"<{len(low)}H", pairs))
    return (latest >> 8 << 7) + (latest & 0x7F)


def _walk(data: bytes, at: int, first: int, last: int) -> tuple[int, int]:  # noqa: C901
    """Check records, and return the position after them and the latest of their time deltas, in
    zigzag form, or -1 if all are negative.

    One pass without a call for a usual record: 0.5 to 0.7 us for each, half of what calls for
    its varints of two bytes would cost."""
    latest = -1  # zigzag, as all numbers here: 2n for n, odd for a negative one
    for delta in range(2 * first, 2 * last, 2):
        size = data[at]
        at += 1
        if size > 0x7F:
            second = data[at]
            at += 1
            size += (second << 7) - 0x80
            if second > 0x7F:
                size, at = _varint(data, at - 2)
        end = at + (size >> 1)
        time = data[at + 1]  # after the attributes, which have no meaning yet
        at += 2
        if time > 0x7F:
            second = data[at]
            at += 1
            time += (second << 7) - 0x80
            if second > 0x7F:
                time, at = _varint(data, at - 2, _LONG_BITS)
        if time > latest and not time & 1:
            latest = time
        offset = data[at]
        at += 1
        if offset > 0x7F:
            second = data[at]
            at += 1
            offset += (second << 7) - 0x80
            if second > 0x7F:
                offset, at = _varint(data, at - 2)
        if offset != delta:
            raise Malformed(f"record {delta >> 1} has another offset delta than its position")
        key = data[at]
        at += 1
        if key > 0x7F:
            key, at = _varint(data, at - 1)
        if not key & 1:  # else it is null
            at += key >> 1
        value = data[at]
        at += 1
        if value > 0x7F:
            second = data[at]
            at += 1
            value += (second << 7) - 0x80
            if second > 0x7F:
                value, at = _varint(data, at - 2)
        if not value & 1:
            at += value >> 1
        if data[at]:
            at = _headers_end(data, at)
        else:
            at += 1
        if at != end or size & 1:
            raise Malformed(f"record {delta >> 1} has another length than it says")
    return at, latest


def _headers_end(data: Bytes, at: int) -> int:
    """Return the position after the headers of a record."""
    count, at = _varint(data, at)
    if count & 1:
        raise Malformed("a record has a negative number of headers")
    for _ in range(count >> 1):
        name, at = _varint(data, at)
        if name & 1:
            raise Malformed("a record has a header without a name")
        value, at = _varint(data, at + (name >> 1))
        at += 0 if value & 1 else value >> 1
    return at


def _varint(data: Bytes, at: int, bits: int = _INT_BITS) -> tuple[int, int]:
    """Read a varint, without undoing its zigzag form."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    second = data[at + 1]
    if second < 0x80:
        return value + (second << 7) - 0x80, at + 2
    value, shift, at = value + (second << 7) - 0x4080, 14, at + 2
    while shift < bits:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80 and not value >> bits:
            return value, at
        if byte < 0x80:
            break
    raise Malformed(f"a varint of a record has more than {bits} bits")


def _check_gzip(body: memoryview) -> None:
    if body[:3] != _GZIP_HEAD or len(body) < _GZIP_BYTES_MIN or body[3] & _GZIP_RESERVED:
        raise _not_framed(codecs.GZIP, body)
    size, most = int.from_bytes(body[-4:], "little"), len(body) * _EXPANSION_MAX[codecs.GZIP]
    if size > most:  # bytes from the middle of a member, most likely
        raise InvalidBatch(
            f"the gzip member of the records ends early: its last bytes say a size of {size}, and "
            f"{len(body)} bytes hold at most {most}"
        )


def _check_snappy(body: memoryview) -> None:
    if body[: len(codecs.XERIAL)] == codecs.XERIAL:
        size = int.from_bytes(body[codecs.XERIAL_BYTES : _XERIAL_BYTES_MIN])
        body = body[_XERIAL_BYTES_MIN:]
        if not 0 < size <= len(body):
            raise _not_framed(codecs.SNAPPY, body)
        body = body[:size]
    try:
        size, at = _varint(body, 0)
        most = len(body) * _EXPANSION_MAX[codecs.SNAPPY]
        if body[at] & _SNAPPY_COPY or not 0 < size <= most:
            raise _not_framed(codecs.SNAPPY, body)
    except (IndexError, Malformed):
        raise _not_framed(codecs.SNAPPY, body) from None


def _check_lz4(body: memoryview) -> None:
    if (
        body[:4] != _LZ4_HEAD
        or len(body) < _LZ4_BYTES_MIN
        or body[4] & _LZ4_VERSION_MASK != _LZ4_VERSION
    ):
        raise _not_framed(codecs.LZ4, body)
    end = len(body) - (_LZ4_CHECKSUM_BYTES if body[4] & _LZ4_CHECKSUM else 0)
    if body[end - len(_LZ4_END) : end] != _LZ4_END:
        raise InvalidBatch("the lz4 frame of the records has no end mark where it ends")


def _check_zstd(body: memoryview) -> None:
    if body[:4] != _ZSTD_HEAD or len(body) < _ZSTD_BYTES_MIN or body[4] & _ZSTD_RESERVED:
        raise _not_framed(codecs.ZSTD, body)


def _not_framed(codec: int, body: memoryview) -> InvalidBatch:
    return InvalidBatch(
        f"the attributes say {codecs.NAMES[codec]}, and the {len(body)} bytes of records do not "
        f"begin as such: {bytes(body[:8]).hex()}"
    )


_FRAMES: dict[int, Callable[[memoryview], None]] = {
    codecs.GZIP: _check_gzip,
    codecs.SNAPPY: _check_snappy,
    codecs.LZ4: _check_lz4,
    codecs.ZSTD: _check_zstd,
}
