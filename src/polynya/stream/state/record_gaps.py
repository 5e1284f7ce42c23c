"""Gaps in record numbers. No record has these numbers.

A position inside a gap means the next record after it. A restored history skips a wide range of
numbers (`JUMP`): no index entry and no page spans it, and the bytes on both sides are adjacent.
Smaller gaps are ordinary: pages go across them, and the entry before one covers its numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from polynya.stream.state import index
from polynya.stream.state.model import HotBatch, Stream

JUMP = 1 << 40
Offset = tuple[int, int]  # record, byte

_RECORD = attrgetter("record")
_RECORDS = attrgetter("records")


def behind(stream: Stream, cold: index.Entries | None, at: Offset, tail: Offset) -> Offset:
    """Return the position, or the next record's position if `at` lies in a gap. `cold` is the
    stream's index; `tail` is its end for this caller."""
    record = at[0]
    if record >= tail[0] or (stream.fork is not None and record < stream.fork.record):
        return at
    hot = stream.hot
    if hot and record >= hot[0].record:
        number = bisect_right(hot, record, key=_RECORD)
        if record < hot[number - 1].record + hot[number - 1].records:
            return at
        return min((hot[number].record, hot[number].byte), tail) if number < len(hot) else tail
    number = index.holding(cold, record)
    if cold is not None and number >= 0 and record < index.end_of(cold, number)[0]:
        return at
    if cold is not None and number + 1 < index.count(cold):
        return min(index.begin_of(cold, number + 1), tail)
    return min((hot[0].record, hot[0].byte), tail) if hot else tail


def history_end(stream: Stream, cold: index.Entries | None, restores: int) -> int:
    """Return where the records end that the stream had before the last so many restores. Each
    restore skips `JUMP` numbers, so the high bits of a number count them."""
    first = (stream.next_record // JUMP - restores + 1) * JUMP  # no older record has this number
    if restores <= 0 or first <= 0:
        return stream.next_record
    hot = stream.hot
    if hot and hot[0].record < first:
        last = hot[bisect_right(hot, first - 1, key=_RECORD) - 1]
        return last.record + last.records
    number = index.holding(cold, first - 1)
    if cold is None or number < 0:
        return stream.first_record
    return index.end_of(cold, number)[0]


def joined_until(batches: Sequence[HotBatch], begin: int) -> int:
    """Return the end of the run of batches from `begin` on without a gap, however small."""
    end, last = len(batches), batches[-1]
    records = sum(map(_RECORDS, batches[begin:] if begin else batches))
    if last.record + last.records - batches[begin].record == records:
        return end
    return next(
        at
        for at in range(begin + 1, end)
        if batches[at].record != batches[at - 1].record + batches[at - 1].records
    )


def run_end(batches: Sequence[HotBatch], begin: int, end: int) -> int:
    """Return the end (at most `end`) of the run of batches from `begin` on without a wide gap."""
    if end < len(batches):
        last, behind_last = end, batches[end].record
    else:
        last, behind_last = len(batches), batches[-1].record + batches[-1].records
    if behind_last - batches[begin].record < JUMP:
        return end
    for at in range(begin + 1, last + 1):
        if (
            at == len(batches)
            or batches[at].record - batches[at - 1].record - batches[at - 1].records >= JUMP
        ):
            return min(at, end)
    return end


def entries_behind(cold: index.Entries) -> list[int]:
    """Return the entries of an index that do not begin where the one before ends: a gap between
    them is in no span."""
    return [
        at
        for at in range(1, index.count(cold))
        if index.begin_of(cold, at) != index.end_of(cold, at - 1)
    ]


def between(record: int, end: int) -> int:
    """Return the count of record numbers in the range, without those that a restore skipped."""
    return max(0, end - record) % JUMP


def missing(stream: Stream, begin: int, end: int = 0) -> int:
    """Return the count of numbers from `begin` to `end` (0: the end) that no record has."""
    if 0 < end < stream.next_record:
        return max(0, missing(stream, begin) - missing(stream, end))
    cold, hot = stream.cold, stream.hot
    first = index.entries_before(cold, begin)
    entries = index.count(cold)
    present = 0
    if cold is not None and first < entries:
        at = index.begin_of(cold, first)[0]
        present = index.records_in(cold, first) - max(0, begin - at)
        # what was trimmed is not missing
        present += between(begin, min(at, stream.first_record)) if not first else 0
    elif hot:
        first = max(0, bisect_right(hot, begin, key=_RECORD) - 1)
        hot, at = hot[first:], hot[first].record
        if not first and not entries:
            present = between(begin, min(at, stream.first_record))
        present -= max(0, min(begin - at, hot[0].records))
    if hot:
        present += sum(map(_RECORDS, hot))
    return max(0, stream.next_record - begin - present)
