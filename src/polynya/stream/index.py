"""A stream's index as packed bytes: 48 a slice, in the order of the stream (F18).

An index grows by a slice with every flush of its stream, and there may be millions of them: as objects they would cost five times as
much. The bytes are never changed in place, so whoever holds them may read on. Packs are numbers here; the machine knows their keys.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import overload

from polynya.stream.commands import ColdSlice

_ENTRY = Struct("<QQQIIIIII")  # record, byte, time_ms, records, length, number of the pack, offset, stored, crc
_PLACE = Struct("<QQ")
_RECORDS = Struct("<Q16xI")
_LENGTH = Struct("<28xI16x")
_PACK = Struct("<I")
_PACK_AT = 32
ENTRY_BYTES = _ENTRY.size


def packed(cold: ColdSlice, pack: int) -> bytes:
    """The entry of a slice in the pack of this number."""
    return _ENTRY.pack(cold.record, cold.byte, cold.time_ms, cold.records, cold.length, pack, cold.offset, cold.stored, cold.crc)


def count(data: bytes | None) -> int:
    """How many entries."""
    return len(data) // ENTRY_BYTES if data else 0


def replaced(data: bytes, begin: int, end: int, entries: bytes) -> bytes:
    """With these entries in the place of those from `begin` to before `end`."""
    return data[: begin * ENTRY_BYTES] + entries + data[end * ENTRY_BYTES :]


def pack_numbers(data: bytes | None, begin: int = 0, end: int | None = None) -> list[int]:
    """Of the entries from `begin` to before `end`, in order."""
    if not data:
        return []
    return [_PACK.unpack_from(data, at * ENTRY_BYTES + _PACK_AT)[0] for at in range(count(data))[begin:end]]


def lengths(data: bytes) -> list[int]:
    """Bytes of payload of each entry."""
    return [length for (length,) in _LENGTH.iter_unpack(data)]


def span(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """The first record of the entries from `begin` to before `end`, and the record behind the last."""
    last, records = _RECORDS.unpack_from(data, (end - 1) * ENTRY_BYTES)
    return _place(data, begin)[0], last + records


def first_from(data: bytes | None, record: int) -> int:
    """The number of the first entry that begins at `record` or later; the count when there is none."""
    if not data:
        return 0
    return bisect_left(range(count(data)), record, key=lambda at: _place(data, at)[0])


def holding(data: bytes | None, record: int) -> int:
    """The number of the last entry that begins at `record` or before; -1 when there is none."""
    if not data:
        return -1
    return bisect_right(range(count(data)), record, key=lambda at: _place(data, at)[0]) - 1


def holding_byte(data: bytes | None, byte: int) -> int:
    """As `holding`, by stream position."""
    if not data:
        return -1
    return bisect_right(range(count(data)), byte, key=lambda at: _place(data, at)[1]) - 1


def byte_of(data: bytes | None, record: int) -> int | None:
    """The stream position of an entry that begins at `record`, if one does."""
    at = holding(data, record)
    if data is None or at < 0:
        return None
    begin, byte = _place(data, at)
    return byte if begin == record else None


def record_of(data: bytes | None, byte: int) -> int | None:
    """The first record of an entry that begins at the stream position, if one does."""
    at = holding_byte(data, byte)
    if data is None or at < 0:
        return None
    record, begin = _place(data, at)
    return record if begin == byte else None


def _place(data: bytes, at: int) -> tuple[int, int]:
    return _PLACE.unpack_from(data, at * ENTRY_BYTES)


class Index(Sequence[ColdSlice]):
    """The entries as slices, each made when it is asked for. `keys`: of packs, by their numbers."""

    __slots__ = ("_keys", "data")

    def __init__(self, data: bytes | None, keys: Mapping[int, str]) -> None:
        self.data = data or b""
        self._keys = keys

    def __len__(self) -> int:
        return len(self.data) // ENTRY_BYTES

    def __iter__(self) -> Iterator[ColdSlice]:
        return self.starting(0)

    def starting(self, begin: int) -> Iterator[ColdSlice]:
        """From the entry `begin` on, without making the others."""
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
        record, byte, time_ms, records, length, pack, offset, stored, crc = entry
        return ColdSlice(record, byte, records, length, self._keys[pack], offset, stored, crc, time_ms)
