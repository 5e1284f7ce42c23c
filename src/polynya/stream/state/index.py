"""A stream's index as packed bytes: at most 80 per slice, in stream order.

Each flush adds a slice to its stream's index, and a group may hold millions. As objects they would
take five times the memory. The bytes are never changed in place, so a reader may keep them. Entries
hold pack numbers; the machine maps these to keys.

A short index is one `bytes`. A long one is `Chunked`: an append copies one chunk at most, and
closed chunks are compact. Snapshots have the chunks; `written` gives the same bytes for both.

The records and bytes of an entry are spans of numbers and positions. Some of them may be missing:
so entries that follow each other touch, whatever was removed from them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias, overload

from polynya.stream.parts import PAGED, ColdSlice
from polynya.stream.state import chunked
from polynya.stream.state import entries as form
from polynya.stream.state.chunked import Chunked
from polynya.stream.state.entries import ENTRY_BYTES, packed

__all__ = ["ENTRY_BYTES", "Chunked", "Entries", "Index", "packed"]

_OFFSET = Struct("<QQ")
_TIME = Struct("<16xQ")
_RECORDS = Struct("<Q16xI")
_END = Struct("<QQ8xII")
_SIZES = Struct("<24xII28xII12x")  # records, length, missing records, missing bytes
_PACK = Struct("<32xI44x")
_RECORD_TIME = Struct("<q")
_RECORD_TIME_AT = 52
_SPAN = Struct("<I")
_SPAN_AT = 48

if TYPE_CHECKING:
    Entries: TypeAlias = bytes | Chunked
else:
    Entries = bytes  # as an index is stored: msgspec decodes fields of this type


def count(data: Entries | None) -> int:
    """Return the number of entries."""
    return len(data) // ENTRY_BYTES if data else 0


def appended(data: Entries | None, entry: bytes) -> Entries:
    """Return the index with one more entry. The cost does not depend on its length."""
    if data is None:
        return entry
    if isinstance(data, bytes):
        if len(data) < chunked.CHUNK * ENTRY_BYTES:
            return data + entry
        data = Chunked.of(data)
    return data.appended(entry)


def joined(*indexes: Entries | None) -> bytes:
    """Return the entries of all indexes in one `bytes`."""
    parts = (each.parts() if isinstance(each, Chunked) else (each,) for each in indexes if each)
    return b"".join(chain.from_iterable(parts))


def cut(data: Entries, begin: int, end: int) -> bytes:
    """Return the entries from `begin` to before `end`."""
    if isinstance(data, bytes):
        return data[begin * ENTRY_BYTES : end * ENTRY_BYTES]
    return b"".join(data.parts(begin, end)) if begin < end else b""


def before(data: Entries, end: int) -> Entries:
    """Return the index of the entries before `end`: in chunks if these are many, as after a
    restore."""
    return _in_chunks(cut(data, 0, end))


def behind(data: Entries, begin: int) -> Entries:
    """Return the index without the entries before `begin`."""
    return data[begin * ENTRY_BYTES :] if isinstance(data, bytes) else data.behind(begin)


def loaded(data: bytes | None) -> Entries | None:
    """Return a written index in the form that appends want. Raises CorruptData."""
    if not data:
        return None
    if form.is_chunked(data):
        return Chunked.loaded(data)
    return _in_chunks(form.entries_of(data))


def written(data: Entries | None) -> bytes | None:
    """Return the bytes of an index, the same ones whatever its chunks are."""
    if not data:
        return None
    return form.written(joined(data), () if isinstance(data, bytes) else data.bounds())


def stored(data: Entries | None) -> bytes | None:
    """Return an index as snapshots have it: a long one in its chunks."""
    in_chunks = None if not data or isinstance(data, bytes) else data.written()
    return written(data) if in_chunks is None else in_chunks


def preceded(data: Entries | None, entries: bytes) -> Entries:
    """Return the index with other entries before it."""
    if not data:
        return entries
    return entries + data if isinstance(data, bytes) else data.preceded(entries)


def replaced(data: Entries, begin: int, end: int, entries: bytes) -> Entries:
    """Return the index with `entries` in place of the range `begin` to before `end`."""
    if isinstance(data, bytes):
        return data[: begin * ENTRY_BYTES] + entries + data[end * ENTRY_BYTES :]
    return data.replaced(begin, end, entries)


def pack_numbers(data: Entries | None, begin: int = 0, end: int | None = None) -> list[int]:
    """Return the pack numbers of the entries from `begin` to before `end`, in order."""
    if not data:
        return []
    some = cut(data, begin, count(data) if end is None else end)
    return [number for (number,) in _PACK.iter_unpack(some)]


def pages(data: Entries) -> list[tuple[int, int]]:
    """Return the entries that are pages, each as a range of one."""
    found, encodings = [], joined(data)[form.ENCODING_AT :: ENTRY_BYTES]
    at = encodings.find(PAGED)
    while at >= 0:
        found.append((at, at + 1))
        at = encodings.find(PAGED, at + 1)
    return found


def lengths(data: Entries) -> list[int]:
    """Return the payload bytes of each entry."""
    return [length - missing for _, length, _, missing in _SIZES.iter_unpack(joined(data))]


def records_in(data: Entries, begin: int) -> int:
    """Return the records of the entries from `begin` on, without missing numbers."""
    if not isinstance(data, bytes):
        return data.records_in(begin)
    sizes = _SIZES.iter_unpack(data[begin * ENTRY_BYTES :])
    return sum(records - missing for records, _, missing, _ in sizes)


def span(data: Entries, begin: int, end: int) -> tuple[int, int]:
    """Return the first record of the entries from `begin` to before `end`, and the record after
    the last."""
    last, records = _RECORDS.unpack_from(*_locate(data, end - 1))
    return begin_of(data, begin)[0], last + records


def first_from(data: Entries | None, record: int) -> int:
    """Return the number of the first entry that begins at `record` or later, or the count."""
    if not data:
        return 0
    low, high = _range(data, record, right=False)
    return bisect_left(range(high), record, low, key=lambda at: begin_of(data, at)[0])


def holding(data: Entries | None, record: int) -> int:
    """Return the number of the last entry that begins at `record` or before, or -1."""
    if not data:
        return -1
    low, high = _range(data, record)
    return bisect_right(range(high), record, low, key=lambda at: begin_of(data, at)[0]) - 1


def holding_byte(data: Entries | None, byte: int) -> int:
    """Return the number of the last entry that begins at stream position `byte` or before, or
    -1."""
    if not data:
        return -1
    low, high = _range(data, byte, by_byte=True)
    return bisect_right(range(high), byte, low, key=lambda at: begin_of(data, at)[1]) - 1


def first_reaching(data: Entries | None, time_ms: int) -> int:
    """Return the number of the first entry whose largest append time is `time_ms` or later, or the
    count."""
    if not data:
        return 0
    low, high = (0, count(data)) if isinstance(data, bytes) else data.range_at(time_ms)
    return bisect_left(range(high), time_ms, low, key=lambda at: time_ms_max(data, at))


def first_dated(data: Entries | None, begin: int, time_ms: int) -> int:
    """Return the number of the first entry from `begin` on that may have a record of time
    `time_ms` or later, or the count. Record times may decrease, so nothing is bisected: whole
    chunks are passed by their largest time."""
    if not data:
        return 0
    if not isinstance(data, bytes):
        return data.first_dated(begin, time_ms)
    found = chunked.first_dated(data[begin * ENTRY_BYTES :], time_ms)
    return len(data) // ENTRY_BYTES if found is None else begin + found


def record_time_ms_max(data: Entries, at: int) -> int:
    """Return the largest record time of an entry; `UNKNOWN_MS` if it does not say."""
    chunk, position = _locate(data, range(count(data))[at])
    found: int = _RECORD_TIME.unpack_from(chunk, position + _RECORD_TIME_AT)[0]
    return found


def time_ms_max(data: Entries, at: int) -> int:
    """Return the largest append time of an entry. It never decreases along an index."""
    found: int = _TIME.unpack_from(*_locate(data, range(count(data))[at]))[0]
    return found


def time_ms_first(data: Entries, at: int) -> int:
    """Return the append time of an entry's first batch."""
    chunk, position = _locate(data, range(count(data))[at])
    return int(
        _TIME.unpack_from(chunk, position)[0] - _SPAN.unpack_from(chunk, position + _SPAN_AT)[0]
    )


def begin_of(data: Entries, at: int) -> tuple[int, int]:
    """Return the (record, byte) at which an entry begins."""
    if isinstance(data, bytes):
        return _OFFSET.unpack_from(data, at * ENTRY_BYTES)
    return _OFFSET.unpack_from(*data.locate(at))


def end_of(data: Entries, at: int) -> tuple[int, int]:
    """Return the (record, byte) after an entry."""
    record, byte, records, length = _END.unpack_from(*_locate(data, range(count(data))[at]))
    return record + records, byte + length


def flags_between(data: Entries | None, begin: int, end: int) -> int:
    """Return the flags of all entries that have records from `begin` to before `end`."""
    if not data:
        return 0
    first = max(0, holding(data, begin))
    found = 0
    for flags in set(cut(data, first, first_from(data, end))[form.ENCODING_AT + 1 :: ENTRY_BYTES]):
        found |= flags
    return found


def entries_before(data: Entries | None, record: int) -> int:
    """Return the number of entries that lie wholly before `record`."""
    at = holding(data, record)
    if data is None or at < 0:
        return 0
    return at + (end_of(data, at)[0] <= record)


def byte_of(data: Entries | None, record: int) -> int | None:
    """Return the stream position of the entry that begins at `record`, or None."""
    at = holding(data, record)
    if data is None or at < 0:
        return None
    begin, byte = begin_of(data, at)
    return byte if begin == record else None


def record_of(data: Entries | None, byte: int) -> int | None:
    """Return the first record of the entry that begins at stream position `byte`, or None."""
    at = holding_byte(data, byte)
    if data is None or at < 0:
        return None
    record, begin = begin_of(data, at)
    return record if begin == byte else None


def _in_chunks(entries: bytes) -> Entries:
    """Return entries in the form that appends want."""
    return Chunked.of(entries) if len(entries) > chunked.CHUNK * ENTRY_BYTES else entries


def _range(
    data: Entries, value: int, *, by_byte: bool = False, right: bool = True
) -> tuple[int, int]:
    """Return the range of entries in which a bisection by record or byte ends."""
    if isinstance(data, bytes):
        return 0, count(data)
    return data.range_of(value, by_byte=by_byte, right=right)


def _locate(data: Entries, at: int) -> tuple[bytes, int]:
    return (data, at * ENTRY_BYTES) if isinstance(data, bytes) else data.locate(at)


class Index(Sequence[ColdSlice]):
    """A sequence view of the entries that decodes each `ColdSlice` on access. `keys` maps pack
    numbers to pack keys."""

    __slots__ = ("_keys", "data")

    def __init__(self, data: Entries | None, keys: Mapping[int, str]) -> None:
        self.data = data or b""
        self._keys = keys

    def __len__(self) -> int:
        return len(self.data) // ENTRY_BYTES

    def __iter__(self) -> Iterator[ColdSlice]:
        return self.starting(0)

    def starting(self, begin: int) -> Iterator[ColdSlice]:
        """Iterate from entry `begin` without decoding the earlier ones."""
        data = self.data
        if isinstance(data, bytes):
            return map(self._slice, form.ENTRY.iter_unpack(memoryview(data)[begin * ENTRY_BYTES :]))
        return map(self._slice, chain.from_iterable(map(form.ENTRY.iter_unpack, data.parts(begin))))

    @overload
    def __getitem__(self, at: int) -> ColdSlice: ...
    @overload
    def __getitem__(self, at: slice) -> list[ColdSlice]: ...
    def __getitem__(self, at: int | slice) -> ColdSlice | list[ColdSlice]:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        return self._slice(form.ENTRY.unpack_from(*_locate(self.data, range(len(self))[at])))

    def _slice(self, entry: tuple[int, ...]) -> ColdSlice:
        return form.unpacked(entry, self._keys[entry[5]])
