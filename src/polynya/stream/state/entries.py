"""The bytes of an index: its entries, and the chunk in which they are written.

In memory all entries have the present form, version 2. An index in which every entry came from
version 1 is written as version 1, so that a release below level 3 can read it
(docs/formats/group-state.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from operator import itemgetter
from struct import Struct

from polynya.base.errors import CorruptData
from polynya.stream.parts import ColdSlice

# record, byte, largest append time, records, length, number of the pack, offset, stored, crc,
# ms from the first append time to the largest; then what version 1 has not: largest record time,
# missing records, missing bytes, first batch, batches, encoding, flags
ENTRY = Struct("<QQQIIIIIIIqIIIIBBxx")
ENTRY_BYTES = ENTRY.size
V1_BYTES = 52  # an entry of version 1 is the begin of one of version 2
_V1_REST = Struct("<qIIIIBBxx")
_V1_ENTRY = Struct("<QQQIIIIIII")
_V0_ENTRY = Struct("<QQQIIIIII")  # of 0.1: the first append time, and no time span
ENCODING_AT = ENTRY_BYTES - 4
UNKNOWN = 255  # the encoding of an entry that came from version 1
UNKNOWN_MS = 2**63 - 1  # its record time: any record may be as late
_FROM_V1 = _V1_REST.pack(UNKNOWN_MS, 0, 0, 0, 0, UNKNOWN, 0)
SPAN_MS_MAX = 2**32 - 1
RECORD_MS_MIN = -(2**63)

# entries, version, flags, bytes of an entry, mark, largest append time, largest record time
_HEAD = Struct("<IBBBBQq")
HEAD_BYTES = _HEAD.size
_VERSION = 2
CHUNKED_VERSION = 3  # of an index that is written in its chunks
_MARK = 0xFF  # in this place version 1 has the highest byte of a record number, at most 0x7f
_MARK_AT = 7
_RECORD_TIME = Struct("<52xq20x")
_TIME = Struct("<16xQ")
_FIRST = itemgetter(0)
_AT_ONCE_MAX = 64  # entries whose times are unpacked in one call


def packed(cold: ColdSlice, pack: int, time_ms_max: int = 0) -> bytes:
    """Encode a slice as an entry for the pack of this number. `cold.time_ms` is its first append
    time, `time_ms_max` its largest."""
    largest = max(cold.time_ms, time_ms_max)
    span_ms = min(largest - cold.time_ms, SPAN_MS_MAX)
    if cold.encoding < 0:
        entry = _V1_ENTRY.pack(
            cold.record, cold.byte, largest, cold.records, cold.length, pack, cold.offset, cold.stored, cold.crc,
            span_ms,
        )  # fmt: skip
        return entry + _FROM_V1
    return ENTRY.pack(
        cold.record, cold.byte, largest, cold.records, cold.length, pack, cold.offset, cold.stored, cold.crc, span_ms,
        cold.record_time_ms_max, cold.missing_records, cold.missing_bytes, cold.first_batch, cold.batches,
        cold.encoding, cold.flags,
    )  # fmt: skip


def unpacked(entry: tuple[int, ...], key: str) -> ColdSlice:
    """Return the slice of a decoded entry. `key` is that of its pack."""
    record, byte, largest_ms, records, length, _, offset, stored, crc, span_ms, *rest = entry
    cold = (record, byte, records, length, key, offset, stored, crc, largest_ms - span_ms)
    record_ms, missing_records, missing_bytes, first_batch, batches, encoding, flags = rest
    if encoding == UNKNOWN:
        return ColdSlice(*cold)
    return ColdSlice(
        *cold, encoding, record_ms, missing_records, missing_bytes, flags, first_batch, batches
    )


def as_v1(cold: ColdSlice) -> ColdSlice:
    """Return the slice as an entry of version 1 has it: without the numbers behind its last
    record that the span covers."""
    records, length = cold.records - cold.missing_records, cold.length - cold.missing_bytes
    return ColdSlice(
        cold.record, cold.byte, records, length, cold.pack, cold.offset, cold.stored, cold.crc, cold.time_ms
    )  # fmt: skip


def chunk_of(entries: bytes) -> bytes:
    """Return these entries as a chunk: a head with their maxima, then the entries."""
    return head_of(entries) + entries


def head_of(entries: bytes, *, bounds: Iterable[tuple[int, int]] = ()) -> bytes:
    """Return the head of a chunk. `bounds` are the (record time, flags) of chunks that the entries
    consist of, if they are known."""
    count = len(entries) // ENTRY_BYTES
    largest_ms, flags = RECORD_MS_MIN, 0
    for record_ms, some in bounds or ((max(_record_times(entries)), _flags_of(entries)),):
        largest_ms, flags = max(largest_ms, record_ms), flags | some
    append_ms = _TIME.unpack_from(entries, (count - 1) * ENTRY_BYTES)[0]
    return _HEAD.pack(count, _VERSION, flags, ENTRY_BYTES, _MARK, append_ms, largest_ms)


def head_of_chunks(bounds: Iterable[tuple[int, int]], count: int, append_ms: int) -> bytes:
    """Return the head of an index that is written in its chunks; `bounds` are those of `bounds_of`."""
    largest_ms, flags = RECORD_MS_MIN, 0
    for record_ms, some in bounds:
        largest_ms, flags = max(largest_ms, record_ms), flags | some
    return _HEAD.pack(count, CHUNKED_VERSION, flags, ENTRY_BYTES, _MARK, append_ms, largest_ms)


def is_chunked(data: bytes) -> bool:
    """Report whether a written index is written in its chunks."""
    if len(data) < HEAD_BYTES or data[_MARK_AT] != _MARK:
        return False
    _, version, _, size, *_ = _HEAD.unpack_from(data)
    return (version, size) == (CHUNKED_VERSION, ENTRY_BYTES)


def _record_times(entries: bytes) -> Iterable[int]:
    count = len(entries) // ENTRY_BYTES
    if count > _AT_ONCE_MAX:
        return map(_FIRST, _RECORD_TIME.iter_unpack(entries))
    return _record_times_of(count).unpack(entries)


@cache
def _record_times_of(count: int) -> Struct:
    return Struct("<" + "52xq20x" * count)


def _flags_of(entries: bytes) -> int:
    found = 0
    for flags in set(entries[ENCODING_AT + 1 :: ENTRY_BYTES]):
        found |= flags
    return found


def bounds_of(chunk: bytes) -> tuple[int, int]:
    """Return the largest record time and the flags of a chunk's entries."""
    _, _, flags, _, _, _, record_ms = _HEAD.unpack_from(chunk)
    return record_ms, flags


def append_ms_of(chunk: bytes) -> int:
    """Return the largest append time of a chunk's entries."""
    return int(_HEAD.unpack_from(chunk)[5])


def written(entries: bytes, bounds: Iterable[tuple[int, int]] = ()) -> bytes:
    """Return an index as it is written: a chunk of all entries, or version 1 if none has more."""
    encodings = entries[ENCODING_AT::ENTRY_BYTES]
    if encodings.count(UNKNOWN) < len(encodings):
        return head_of(entries, bounds=bounds) + entries
    narrow = bytearray(len(encodings) * V1_BYTES)
    for at in range(V1_BYTES):
        narrow[at::V1_BYTES] = entries[at::ENTRY_BYTES]
    return bytes(narrow)


def entries_of(data: bytes) -> bytes:
    """Return the entries of an index written in version 1 or 2. Raises CorruptData."""
    if len(data) <= _MARK_AT or data[_MARK_AT] < 0x80:
        return _from_v1(data)
    if len(data) < HEAD_BYTES:
        raise CorruptData(f"an index chunk has {len(data)} bytes; expected at least {HEAD_BYTES}")
    count, version, _, size, mark, _, _ = _HEAD.unpack_from(data)
    if (version, size, mark) != (_VERSION, ENTRY_BYTES, _MARK):
        raise CorruptData(
            f"an index has version {version} with entries of {size} bytes; this release reads "
            f"versions {_VERSION} and {CHUNKED_VERSION} with {ENTRY_BYTES}: use the release that wrote it"
        )
    if len(data) != HEAD_BYTES + count * ENTRY_BYTES:
        raise CorruptData(f"an index chunk of {count} entries has {len(data)} bytes")
    return data[HEAD_BYTES:]


def _from_v1(data: bytes) -> bytes:
    count, rest = divmod(len(data), V1_BYTES)
    if rest:
        raise CorruptData(f"an index has {len(data)} bytes; expected a multiple of {V1_BYTES}")
    wide = bytearray((bytes(V1_BYTES) + _FROM_V1) * count)
    for at in range(V1_BYTES):
        wide[at::ENTRY_BYTES] = data[at::V1_BYTES]
    return bytes(wide)


def from_first_release(data: bytes, end_ms: int) -> bytes:
    """Return the entries of an index that 0.1 wrote, of 48 bytes each. A slice's largest append
    time becomes the first time of the next slice, which is never earlier. `end_ms` is that time
    for the last slice."""
    old = list(_V0_ENTRY.iter_unpack(data))
    ends = [entry[2] for entry in old[1:]] + [end_ms]
    parts = []
    for (record, byte, time_ms, *rest), following_ms in zip(old, ends, strict=True):
        largest = max(time_ms, following_ms)
        span_ms = min(largest - time_ms, SPAN_MS_MAX)
        parts.append(_V1_ENTRY.pack(record, byte, largest, *rest, span_ms))
    return _from_v1(b"".join(parts))
