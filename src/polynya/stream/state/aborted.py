"""The aborted transactions of a stream whose batches may lie in packs without flag 4: packed rows,
in the order of their markers.

An abort sets flag 4 on the batches that are in memory. A slice that was built before it has none, so
its entry has flag 8, and a reader looks the batches up here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Protocol

from polynya.stream.parts import ABORTED, CONTROL, PRODUCER_ID, TRANSACTIONAL, Encoding
from polynya.stream.state.model import Stream

# producer id, its first record, record of the marker, last stable end when that was written
ROW = Struct("<4q")


class Batch(Protocol):
    """A batch, or a run of joined ones of one transaction, as a reader gets it."""

    record: int
    payload: bytes
    encoding: int
    flags: int


def aborted_of(stream: Stream) -> bytes:
    """Return the rows of a stream."""
    return b"" if stream.kafka is None else stream.kafka.aborted


def overlapping(rows: bytes, begin: int, end: int) -> bytes:
    """Return the rows of the transactions that have records between `begin` and before `end`."""
    if not rows:
        return b""
    found: list[bytes] = []
    view = memoryview(rows)
    for at in range(ROW.size * _first_from(rows, begin), len(rows), ROW.size):
        _, first, _, stable = ROW.unpack_from(rows, at)
        if first < end:
            found.append(bytes(view[at : at + ROW.size]))
        if stable >= end:  # those behind it began later
            break
    return b"".join(found)


def without_settled(
    rows: bytes, span: tuple[int, int], is_needed: Callable[[int, int], bool]
) -> bytes:
    """Return the rows without those of the transactions in this span of records that are not
    needed. `is_needed` is asked for the first record of a transaction, and for that of its
    marker."""
    begin, end = span
    kept: list[bytes] = []
    at = ROW.size * _first_from(rows, begin)
    kept.append(rows[:at])
    while at < len(rows):
        _, first, marker, stable = ROW.unpack_from(rows, at)
        if first >= end or is_needed(first, marker):
            kept.append(rows[at : at + ROW.size])
        at += ROW.size
        if stable >= end:
            break
    return b"".join((*kept, rows[at:]))


def _first_from(rows: bytes, record: int) -> int:
    """Return the number of the first row whose marker is this record or a later one."""
    return bisect_left(
        range(len(rows) // ROW.size),
        record,
        key=lambda number: ROW.unpack_from(rows, number * ROW.size)[2],
    )


def mark(batches: Iterable[Batch], rows: bytes) -> None:
    """Set flag 4 on the batches that are of aborted transactions."""
    spans: dict[bytes, list[tuple[int, int]]] = {}
    for producer, first, marker, _ in ROW.iter_unpack(rows):
        spans.setdefault(producer.to_bytes(8, signed=True), []).append((first, marker))
    for each in batches:
        if each.flags & (TRANSACTIONAL | CONTROL) != TRANSACTIONAL or (
            each.encoding != Encoding.KAFKA
        ):
            continue
        own = spans.get(bytes(each.payload[PRODUCER_ID]), ())
        if any(first <= each.record < marker for first, marker in own):
            each.flags |= ABORTED
