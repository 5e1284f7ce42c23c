"""The entries of a long index: closed chunks, which are compact, then an open one."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from struct import Struct

from polynya.base.errors import CorruptData
from polynya.stream.state import closed_chunks as closed
from polynya.stream.state import entries as form
from polynya.stream.state.entries import ENTRY_BYTES

CHUNK = 128  # entries of a closed chunk, unless a part of it was replaced

_ALL = 1 << 62  # behind any entry
_LENGTH = Struct("<I")
_TIME = Struct("<16xQ")
_RECORD_TIME = Struct("<52xq20x")
_PRESENT = Struct("<24xI32xI16x")  # records, missing records


class Chunks:
    """Closed chunks, with what look-ups compare. They only grow, and values share them."""

    __slots__ = ("begins", "data", "end", "positions", "records")

    def __init__(self, begin: int, data: Iterable[bytes] = ()) -> None:
        """`begin`: the number of the first entry."""
        self.data: list[bytes] = []
        self.begins = array("q")  # number of each chunk's first entry, …
        self.records = array("Q")  # its record …
        self.positions = array("Q")  # and byte
        self.end = begin
        self.extend(data)

    def extend(self, data: Iterable[bytes]) -> None:
        for chunk in data:
            self.append(chunk)

    def append(self, chunk: bytes) -> None:
        record, position = closed.position_of(chunk)
        self.data.append(chunk)
        self.begins.append(self.end)
        self.records.append(record)
        self.positions.append(position)
        self.end += closed.count_of(chunk)

    def part(self, first: int, last: int) -> Chunks:
        """Return the chunks from `first` to before `last`."""
        found = Chunks(0)
        found.data = self.data[first:last]
        found.begins = self.begins[first:last]
        found.records = self.records[first:last]
        found.positions = self.positions[first:last]
        found.end = self.begins[last] if last < len(self.data) else self.end
        return found

    def add(self, others: Chunks) -> None:
        """Add chunks behind these; their entries get new numbers."""
        moved = self.end - (others.begins[0] if others.begins else others.end)
        self.data += others.data
        self.begins.extend([begin + moved for begin in others.begins])
        self.records += others.records
        self.positions += others.positions
        self.end = others.end + moved


class Chunked:
    """The entries of a long index. Entries have numbers, which begin at `first`.

    A value never changes: an append gives a new one. The two share the closed chunks, which only
    grow behind the end of each. The first chunk may have entries before the first of the index."""

    __slots__ = ("_chunks", "_count", "_end", "_first", "_open")

    def __init__(self, chunks: Chunks, rest: bytes, first: int) -> None:
        self._chunks = chunks
        self._count = len(chunks.data)  # the chunks of this value
        self._end = chunks.end  # the number of the first entry of the open chunk
        self._open = rest
        self._first = first

    @classmethod
    def of(cls, data: bytes) -> Chunked:
        """Cut an index into chunks."""
        whole = len(data) // _chunk_bytes() * _chunk_bytes()
        return cls(Chunks(0, _cut(data[:whole])), data[whole:], 0)

    @classmethod
    def loaded(cls, data: bytes) -> Chunked:
        """Return an index that was written in its chunks. Raises CorruptData."""
        chunks, at = Chunks(0), form.HEAD_BYTES
        (count,) = _LENGTH.unpack_from(data)
        while True:
            (size,) = _LENGTH.unpack(data[at : at + _LENGTH.size].ljust(_LENGTH.size, b"\xff"))
            at += _LENGTH.size
            if not size:
                break
            chunk = data[at : at + size]
            if len(chunk) != size or not closed.is_whole(chunk):
                raise CorruptData(f"a chunk of an index has not the {size} bytes of its head")
            chunks.append(chunk)
            at += size
        found = cls(chunks, data[at:], 0)
        if len(found) != count * ENTRY_BYTES:
            raise CorruptData(f"an index of {count} entries has {len(found)} bytes of them")
        return found

    def written(self) -> bytes | None:
        """Return this index written in its chunks; None if no entry has what version 1 lacks."""
        chunks = self._from_first()
        encodings = self._open[form.ENCODING_AT :: ENTRY_BYTES]
        if encodings.count(form.UNKNOWN) == len(encodings) and not any(
            map(closed.has_second_version, chunks.data)
        ):
            return None
        last, at = self.locate(len(self) // ENTRY_BYTES - 1)
        head = form.head_of_chunks(
            self.bounds(), len(self) // ENTRY_BYTES, _TIME.unpack_from(last, at)[0]
        )
        sized = ((_LENGTH.pack(len(chunk)), chunk) for chunk in chunks.data)
        return b"".join((head, *chain.from_iterable(sized), _LENGTH.pack(0), self._open))

    def __len__(self) -> int:
        """Return the bytes of all entries, as of an index that is one `bytes`."""
        return (self._end - self._first) * ENTRY_BYTES + len(self._open)

    def appended(self, entry: bytes) -> Chunked:
        """Return this index with one more entry."""
        rest = self._open + entry
        if len(rest) < _chunk_bytes():
            return self._with_open(rest)
        chunks = self._own()
        chunks.append(closed.compact(rest))
        return Chunked(chunks, b"", self._first)

    def locate(self, at: int) -> tuple[bytes, int]:
        """Return the bytes that hold the entry of this number, and where it begins there."""
        number = at + self._first
        if number >= self._end:
            return self._open, (number - self._end) * ENTRY_BYTES
        chunk, begin = self._chunk_at(number)
        return closed.entries_of(self._chunks.data[chunk]), (number - begin) * ENTRY_BYTES

    def behind(self, count: int) -> Chunked | bytes:
        """Return this index without its first entries."""
        first = count + self._first
        if first >= self._end:
            return self._open[(first - self._end) * ENTRY_BYTES :]
        chunks = self._chunks.part(self._chunk_at(first)[0], self._count)
        return Chunked(chunks, self._open, first)

    def preceded(self, entries: bytes) -> Chunked:
        """Return this index with other entries before it."""
        count = len(entries) // ENTRY_BYTES
        chunks = Chunks(self._first - count, _cut(entries))
        chunks.add(self._from_first())
        return Chunked(chunks, self._open, self._first - count)

    def replaced(self, begin: int, end: int, entries: bytes) -> Chunked:
        """Return this index with other entries in a range; the other closed chunks are shared."""
        first, last = begin + self._first, end + self._first
        if first >= self._end:
            before, chunk, at = self._open[: (first - self._end) * ENTRY_BYTES], self._count, 0
        else:
            chunk, at = self._chunk_at(first)
            if chunk and first - at < CHUNK // 2:  # so that chunks do not become ever smaller
                chunk -= 1
            at = max(self._chunks.begins[chunk], self._first)
            before = self._between(at, first)
        chunks = self._chunks.part(0, chunk)
        chunks.end = at if chunk < self._count else self._end
        behind = self._chunk_at(last - 1)[0] + 1
        if last <= self._end and chunk < behind < self._count:
            rest = self._between(last, self._chunks.begins[behind])
            chunks.extend(_cut_evenly(before + entries + rest))
            chunks.add(self._chunks.part(behind, self._count))
            return Chunked(chunks, self._open, self._first)
        middle = before + entries + self._between(last, _ALL)
        whole = len(middle) // _chunk_bytes() * _chunk_bytes()
        chunks.extend(_cut_evenly(middle[:whole]))
        return Chunked(chunks, middle[whole:], self._first)

    def parts(self, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the entries from number `begin` to before `end`, as bytes in order."""
        yield from self._parts(begin + self._first, _ALL if end is None else end + self._first)

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Yield the largest record time and the flags of each chunk."""
        for chunk in self._heads():
            yield form.bounds_of(chunk)

    def records_in(self, begin: int) -> int:
        """Return the records of the entries from `begin` on, without missing numbers."""
        first, found = begin + self._first, 0
        chunk = self._chunk_at(first)[0] if first < self._end else self._count
        if chunk < self._count and self._chunks.begins[chunk] < first:
            found += _records_in(self._parts(first, self._chunk_end(chunk)))
            chunk += 1
        found += sum(map(closed.records_of, self._chunks.data[chunk : self._count]))
        return found + _records_in((self._open[max(0, first - self._end) * ENTRY_BYTES :],))

    def range_of(self, record: int, *, by_byte: bool, right: bool) -> tuple[int, int]:
        """Return the range of entries in which a bisection by record or byte ends."""
        known = self._chunks.positions if by_byte else self._chunks.records
        found = (bisect_right if right else bisect_left)(known, record, 0, self._count)
        return self._range(found - 1)

    def range_at(self, time_ms: int) -> tuple[int, int]:
        """Return the range of entries in which the first with this append time, or later, is."""
        found = bisect_left(
            range(self._count), time_ms, key=lambda at: form.append_ms_of(self._chunks.data[at])
        )
        return self._range(found)

    def first_dated(self, begin: int, time_ms: int) -> int:
        """Return the number of the first entry from `begin` on whose largest record time is
        `time_ms` or later, or the count."""
        first = begin + self._first
        chunk = self._chunk_at(first)[0] if first < self._end else self._count
        for at in range(chunk, self._count):
            if form.bounds_of(self._chunks.data[at])[0] >= time_ms:
                number = max(first, self._chunks.begins[at])
                found = first_dated(b"".join(self._parts(number, self._chunk_end(at))), time_ms)
                if found is not None:
                    return number + found - self._first
        skipped = max(0, first - self._end)
        found = first_dated(self._open[skipped * ENTRY_BYTES :], time_ms)
        rest = len(self._open) // ENTRY_BYTES if found is None else skipped + found
        return self._end + rest - self._first

    # --- chunks ---

    def _own(self) -> Chunks:
        """Return the closed chunks, to add to: a copy if another value has added some."""
        if len(self._chunks.data) == self._count:
            return self._chunks
        return self._chunks.part(0, self._count)

    def _with_open(self, rest: bytes) -> Chunked:
        """Return this index with another open chunk."""
        found = Chunked.__new__(Chunked)
        found._chunks, found._count, found._end = self._chunks, self._count, self._end
        found._open, found._first = rest, self._first
        return found

    def _from_first(self) -> Chunks:
        """Return the closed chunks without entries before the first of the index."""
        head = self._chunks.begins[0] if self._count else self._first
        if head == self._first:
            return self._chunks.part(0, self._count)
        rest = b"".join(self._parts(self._first, self._chunk_end(0)))
        chunks = Chunks(self._first, _cut(rest))
        chunks.add(self._chunks.part(1, self._count))
        return chunks

    def _heads(self) -> Iterator[bytes]:
        """Yield the closed chunks as far as they are in the index, and a head of the open one."""
        yield from self._from_first().data
        if self._open:
            yield form.head_of(self._open)

    def _chunk_at(self, number: int) -> tuple[int, int]:
        """Return the closed chunk that holds an entry, and the number of its first one."""
        begins = self._chunks.begins
        chunk = max(0, bisect_right(begins, number, 0, self._count) - 1)
        return chunk, begins[chunk] if self._count else 0

    def _chunk_end(self, chunk: int) -> int:
        return self._chunks.begins[chunk + 1] if chunk + 1 < self._count else self._end

    def _range(self, chunk: int) -> tuple[int, int]:
        """Return the range of entries from a chunk's first to the next one's, or to the end."""
        begins, size = self._chunks.begins, len(self) // ENTRY_BYTES
        low = max(0, begins[chunk] - self._first) if 0 <= chunk < self._count else 0
        if chunk >= self._count:
            low = self._end - self._first
        high = begins[chunk + 1] - self._first if chunk + 1 < self._count else size
        return low, max(low, high)

    def _between(self, first: int, last: int) -> bytes:
        return b"".join(self._parts(first, last))

    def _parts(self, first: int, last: int) -> Iterator[bytes]:
        """Yield the entries from one number to before another."""
        chunk = self._chunk_at(first)[0]
        while chunk < self._count and first < min(last, self._end):
            begin, data = self._chunks.begins[chunk], self._chunks.data[chunk]
            end = min(last, self._chunk_end(chunk))
            yield closed.expanded(data)[(first - begin) * ENTRY_BYTES : (end - begin) * ENTRY_BYTES]
            first, chunk = end, chunk + 1
        if last > self._end:
            begin = max(0, first - self._end)
            yield self._open[begin * ENTRY_BYTES : (last - self._end) * ENTRY_BYTES]


def _chunk_bytes() -> int:
    return CHUNK * ENTRY_BYTES


def _cut(entries: bytes) -> Iterator[bytes]:
    """Yield entries as closed chunks: all but the last are full."""
    size = _chunk_bytes()
    for at in range(0, len(entries), size):
        yield closed.compact(entries[at : at + size])


def _cut_evenly(entries: bytes) -> Iterator[bytes]:
    """Yield entries as closed chunks of the same size, as far as possible."""
    count = len(entries) // ENTRY_BYTES
    chunks = -(-count // CHUNK)
    for at in range(chunks):
        begin, end = count * at // chunks, count * (at + 1) // chunks
        yield closed.compact(entries[begin * ENTRY_BYTES : end * ENTRY_BYTES])


def _records_in(parts: Iterable[bytes]) -> int:
    return sum(
        records - missing for part in parts for records, missing in _PRESENT.iter_unpack(part)
    )


def first_dated(entries: bytes, time_ms: int) -> int | None:
    """Return the number of the first entry whose largest record time is `time_ms` or later."""
    for number, (found,) in enumerate(_RECORD_TIME.iter_unpack(entries)):
        if found >= time_ms:
            return number
    return None
