"""Closed chunks of an index, compact: a third of the bytes of their entries
(docs/formats/group-state.md).

Neighbouring entries have much in common. A chunk has the bytes of its first entry, and of the
others only the columns of bytes in which not all are equal. An entry begins where the one before
ends, and its record time is nearly its append time: so a chunk has only the differences."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import accumulate
from struct import Struct

from polynya.stream.state.entries import (
    ENCODING_AT,
    ENTRY_BYTES,
    HEAD_BYTES,
    UNKNOWN,
    head_of,
)

EXPANDED_MAX = 32  # chunks whose entries are kept for the next look-up

_U64 = (1 << 64) - 1
# behind the head: record and byte of the first entry, records without missing ones, columns
_MORE = Struct("<QQQ10s")
_MORE_BYTES = HEAD_BYTES + _MORE.size
_COUNT = Struct("<I")
_RECORD, _BYTE, _RECORDS, _LENGTH, _MISSING = 0, 8, 24, 28, 60  # where these fields are
_TIMES = tuple((16 + number, 52 + number) for number in range(8))  # append time, record time
_PLACE_COLUMNS = (1 << 16) - 1  # those of record and byte


def compact(entries: bytes) -> bytes:
    """Return entries as a closed chunk, with the head of a written one."""
    records, positions = _field(entries, _RECORD, "Q"), _field(entries, _BYTE, "Q")
    spans = _field(entries, _RECORDS, "I")
    present = sum(spans) - sum(_field(entries, _MISSING, "I"))
    rows = bytearray(entries)
    _set_field(rows, _RECORD, _behind_each(records, spans))
    _set_field(rows, _BYTE, _behind_each(positions, _field(entries, _LENGTH, "I")))
    columns = [bytes(rows[at::ENTRY_BYTES]) for at in range(ENTRY_BYTES)]
    for time, record_time in _TIMES:
        if not _is_even(columns[time]):
            columns[record_time] = _crossed(columns[time], columns[record_time])
    different, kept = 0, [bytes([column[0] for column in columns])]
    for at, column in enumerate(columns):
        if not _is_even(column):
            different |= 1 << at
            kept.append(column)
    head = head_of(entries) + _MORE.pack(
        records[0], positions[0], present, different.to_bytes(10, "little")
    )
    return b"".join((head, *kept))


def expanded(chunk: bytes) -> bytes:
    """Return the entries of a closed chunk."""
    (count,) = _COUNT.unpack_from(chunk)
    record, position, _, columns = _MORE.unpack_from(chunk, HEAD_BYTES)
    at = _MORE_BYTES + ENTRY_BYTES
    row = chunk[_MORE_BYTES:at]
    different = left = int.from_bytes(columns, "little")
    kept: dict[int, bytes] = {}
    while left:
        lowest = left & -left
        left ^= lowest
        kept[lowest.bit_length() - 1] = chunk[at : at + count]
        at += count
    for time, record_time in _TIMES:
        if time in kept:
            even = row[record_time : record_time + 1] * count
            kept[record_time] = _crossed(kept[time], kept.get(record_time, even))
    rows = bytearray(row * count)
    for number, column in kept.items():
        rows[number::ENTRY_BYTES] = column
    has_gaps = different & _PLACE_COLUMNS
    for field, first, span in ((_RECORD, record, _RECORDS), (_BYTE, position, _LENGTH)):
        gaps = _field(rows, field, "Q") if has_gaps else None
        begins = _summed(first, _field(rows, span, "I"), gaps)
        size = 8 if has_gaps else (begins[-1].bit_length() + 7) // 8  # the others are 0
        _set_field(rows, field, begins, size)
    return bytes(rows)


entries_of = lru_cache(maxsize=EXPANDED_MAX)(expanded)


def count_of(chunk: bytes) -> int:
    """Return the number of a chunk's entries."""
    return int(_COUNT.unpack_from(chunk)[0])


def position_of(chunk: bytes) -> tuple[int, int]:
    """Return the (record, byte) of a chunk's first entry."""
    record, position, _, _ = _MORE.unpack_from(chunk, HEAD_BYTES)
    return record, position


def has_second_version(chunk: bytes) -> bool:
    """Report whether an entry of a chunk has what version 1 lacks."""
    different = int.from_bytes(_MORE.unpack_from(chunk, HEAD_BYTES)[3], "little")
    return bool(different >> ENCODING_AT & 1) or chunk[_MORE_BYTES + ENCODING_AT] != UNKNOWN


def is_whole(chunk: bytes) -> bool:
    """Report whether a chunk has the bytes that its head names."""
    if len(chunk) < _MORE_BYTES or not count_of(chunk):
        return False
    different = int.from_bytes(_MORE.unpack_from(chunk, HEAD_BYTES)[3], "little")
    return len(chunk) == _MORE_BYTES + ENTRY_BYTES + count_of(chunk) * different.bit_count()


def records_of(chunk: bytes) -> int:
    """Return the records of a chunk, without missing numbers."""
    return int(_MORE.unpack_from(chunk, HEAD_BYTES)[2])


def _behind_each(begins: tuple[int, ...], spans: tuple[int, ...]) -> list[int]:
    """Return how far each entry begins behind the end of the one before."""
    pairs = zip(begins[1:], begins, spans, strict=False)
    return [0, *(begin - before - span & _U64 for begin, before, span in pairs)]


def _summed(first: int, spans: tuple[int, ...], gaps: tuple[int, ...] | None) -> list[int]:
    """Return where each entry begins."""
    if gaps is None:
        return [*accumulate(spans[:-1], initial=first)]
    steps = (span + gap for span, gap in zip(spans, gaps[1:], strict=False))
    return [begin & _U64 for begin in accumulate(steps, initial=first)]


def _field(rows: bytes | bytearray, at: int, kind: str) -> tuple[int, ...]:
    """Return a field of each entry: of eight bytes ("Q") or of four ("I")."""
    numbers = _numbers(len(rows) // ENTRY_BYTES, kind)
    size = 8 if kind == "Q" else 4
    data = bytearray(numbers.size)
    for number in range(size):
        data[number::size] = rows[at + number :: ENTRY_BYTES]
    return numbers.unpack(data)


def _set_field(rows: bytearray, at: int, values: list[int], size: int = 8) -> None:
    """Set a field of eight bytes in each entry, at least its first bytes."""
    data = _numbers(len(values), "Q").pack(*values)
    for number in range(size):
        rows[at + number :: ENTRY_BYTES] = data[number::8]


@cache
def _numbers(count: int, kind: str) -> Struct:
    return Struct(f"<{count}{kind}")


def _is_even(column: bytes) -> bool:
    """Report whether all bytes are equal."""
    return column.count(column[0]) == len(column)


def _crossed(one: bytes, other: bytes) -> bytes:
    """Return the exclusive or of two columns; with one of them it gives back the other."""
    value = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return value.to_bytes(len(one), "little")
