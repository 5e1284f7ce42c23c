"""A stream's index as packed bytes: 52 per slice, in stream order.

Each flush adds a slice to its stream's index, and a group may hold millions. As objects they would take five times the memory. The bytes
are never changed in place, so a reader may keep them. Entries hold pack numbers; the machine maps these to keys.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import overload

from polynya.stream.commands import ColdSlice

# record, byte, largest append time, records, length, number of the pack, offset, stored, crc, ms from the first append time to the largest
_ENTRY = Struct("<QQQIIIIIII")
_ENTRY_48 = Struct("<QQQIIIIII")  # until 0.1: the first append time, and no time span
_PLACE = Struct("<QQ")
_TIME = Struct("<16xQ")
_RECORDS = Struct("<Q16xI")
_LENGTH = Struct("<28xI20x")
_PACK = Struct("<I")
_PACK_AT = 32
_SPAN_MS_MAX = 2**32 - 1
ENTRY_BYTES = _ENTRY.size


def packed(cold: ColdSlice, pack: int, time_ms_max: int = 0) -> bytes:
    """Encode a slice as an entry for the pack of this number. `cold.time_ms` is its first append time, `time_ms_max` its largest."""
    largest = max(cold.time_ms, time_ms_max)
    span_ms = min(largest - cold.time_ms, _SPAN_MS_MAX)
    return _ENTRY.pack(
        cold.record, cold.byte, largest, cold.records, cold.length, pack, cold.offset, cold.stored, cold.crc, span_ms
    )  # fmt: skip


def widened(data: bytes, end_ms: int) -> bytes:
    """Convert 48-byte entries, as in snapshots until 0.1, to the present format. A slice's largest append time becomes the first time of
    the next slice, which is never earlier. `end_ms` is that time for the last slice."""
    old = list(_ENTRY_48.iter_unpack(data))
    ends = [entry[2] for entry in old[1:]] + [end_ms]
    parts = []
    for (record, byte, time_ms, *rest), following_ms in zip(old, ends, strict=True):
        largest = max(time_ms, following_ms)
        parts.append(_ENTRY.pack(record, byte, largest, *rest, min(largest - time_ms, _SPAN_MS_MAX)))
    return b"".join(parts)


def count(data: bytes | None) -> int:
    """Return the number of entries."""
    return len(data) // ENTRY_BYTES if data else 0


def replaced(data: bytes, begin: int, end: int, entries: bytes) -> bytes:
    """Return the index with `entries` in place of the range `begin` to before `end`."""
    return data[: begin * ENTRY_BYTES] + entries + data[end * ENTRY_BYTES :]


def pack_numbers(data: bytes | None, begin: int = 0, end: int | None = None) -> list[int]:
    """Return the pack numbers of the entries from `begin` to before `end`, in order."""
    if not data:
        return []
    return [_PACK.unpack_from(data, at * ENTRY_BYTES + _PACK_AT)[0] for at in range(count(data))[begin:end]]


def lengths(data: bytes) -> list[int]:
    """Return the payload bytes of each entry."""
    return [length for (length,) in _LENGTH.iter_unpack(data)]


def span(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """Return the first record of the entries from `begin` to before `end`, and the record after the last."""
    last, records = _RECORDS.unpack_from(data, (end - 1) * ENTRY_BYTES)
    return begin_of(data, begin)[0], last + records


def first_from(data: bytes | None, record: int) -> int:
    """Return the number of the first entry that begins at `record` or later, or the count."""
    if not data:
        return 0
    return bisect_left(range(count(data)), record, key=lambda at: begin_of(data, at)[0])


def holding(data: bytes | None, record: int) -> int:
    """Return the number of the last entry that begins at `record` or before, or -1."""
    if not data:
        return -1
    return bisect_right(range(count(data)), record, key=lambda at: begin_of(data, at)[0]) - 1


def holding_byte(data: bytes | None, byte: int) -> int:
    """Return the number of the last entry that begins at stream position `byte` or before, or -1."""
    if not data:
        return -1
    return bisect_right(range(count(data)), byte, key=lambda at: begin_of(data, at)[1]) - 1


def first_reaching(data: bytes | None, time_ms: int) -> int:
    """Return the number of the first entry whose largest append time is `time_ms` or later, or the count."""
    if not data:
        return 0
    return bisect_left(range(count(data)), time_ms, key=lambda at: time_ms_max(data, at))


def time_ms_max(data: bytes, at: int) -> int:
    """Return the largest append time of an entry. It never decreases along an index."""
    found: int = _TIME.unpack_from(data, range(count(data))[at] * ENTRY_BYTES)[0]
    return found


def time_ms_first(data: bytes, at: int) -> int:
    """Return the append time of an entry's first batch."""
    entry = _ENTRY.unpack_from(data, range(count(data))[at] * ENTRY_BYTES)
    return int(entry[2] - entry[-1])


def begin_of(data: bytes, at: int) -> tuple[int, int]:
    """Return the (record, byte) at which an entry begins."""
    return _PLACE.unpack_from(data, at * ENTRY_BYTES)


def end_of(data: bytes, at: int) -> tuple[int, int]:
    """Return the (record, byte) after an entry."""
    record, byte, _, records, length, *_ = _ENTRY.unpack_from(data, range(count(data))[at] * ENTRY_BYTES)
    return record + records, byte + length


def entries_before(data: bytes | None, record: int) -> int:
    """Return the number of entries that lie wholly before `record`."""
    at = holding(data, record)
    if data is None or at < 0:
        return 0
    return at + (end_of(data, at)[0] <= record)


def byte_of(data: bytes | None, record: int) -> int | None:
    """Return the stream position of the entry that begins at `record`, or None."""
    at = holding(data, record)
    if data is None or at < 0:
        return None
    begin, byte = begin_of(data, at)
    return byte if begin == record else None


def record_of(data: bytes | None, byte: int) -> int | None:
    """Return the first record of the entry that begins at stream position `byte`, or None."""
    at = holding_byte(data, byte)
    if data is None or at < 0:
        return None
    record, begin = begin_of(data, at)
    return record if begin == byte else None


class Index(Sequence[ColdSlice]):
    """A sequence view of the entries that decodes each `ColdSlice` on access. `keys` maps pack numbers to pack keys."""

    __slots__ = ("_keys", "data")

    def __init__(self, data: bytes | None, keys: Mapping[int, str]) -> None:
        self.data = data or b""
        self._keys = keys

    def __len__(self) -> int:
        return len(self.data) // ENTRY_BYTES

    def __iter__(self) -> Iterator[ColdSlice]:
        return self.starting(0)

    def starting(self, begin: int) -> Iterator[ColdSlice]:
        """Iterate from entry `begin` without decoding the earlier ones."""
        return map(self._slice, _ENTRY.iter_unpack(memoryview(self.data)[begin * ENTRY_BYTES :]))

    @overload
    def __getitem__(self, at: int) -> ColdSlice: ...
    @overload
    def __getitem__(self, at: slice) -> list[ColdSlice]: ...
    def __getitem__(self, at: int | slice) -> ColdSlice | list[ColdSlice]:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        return self._slice(_ENTRY.unpack_from(self.data, range(len(self))[at] * ENTRY_BYTES))

    def _slice(self, entry: tuple[int, ...]) -> ColdSlice:
        record, byte, largest_ms, records, length, pack, offset, stored, crc, span_ms = entry
        return ColdSlice(record, byte, records, length, self._keys[pack], offset, stored, crc, largest_ms - span_ms)
