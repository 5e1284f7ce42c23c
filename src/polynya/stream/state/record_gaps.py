"""Gaps in record numbers: a restored history skips a range of them. No record has these numbers;
the bytes on both sides are adjacent.

A position inside a gap means the next record after it. A slice, a flushed run and a page never span
a gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from polynya.stream.state import index
from polynya.stream.state.model import HotBatch, Stream

JUMP = 1 << 40
Place = tuple[int, int]  # record, byte

_RECORD = attrgetter("record")


def behind(stream: Stream, cold: index.Entries | None, at: Place, tail: Place) -> Place:
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


def run_end(batches: Sequence[HotBatch], begin: int, end: int) -> int:
    """Return the end (at most `end`) of the gap-free run of batches that starts at `begin`."""
    if end < len(batches):
        last, behind_last = end, batches[end].record
    else:
        last, behind_last = len(batches), batches[-1].record + batches[-1].records
    if behind_last - batches[begin].record < JUMP:
        return end
    for at in range(begin + 1, last + 1):
        if (
            at == len(batches)
            or batches[at].record != batches[at - 1].record + batches[at - 1].records
        ):
            return min(at, end)
    return end


def entries_behind(cold: index.Entries) -> list[int]:
    """Return the entries of an index that begin right after a gap."""
    count = index.count(cold)
    if not count or index.span(cold, 0, count)[1] - index.begin_of(cold, 0)[0] < JUMP:
        return []
    return [
        at
        for at in range(1, count)
        if index.begin_of(cold, at)[0] - index.end_of(cold, at - 1)[0] >= JUMP
    ]


def between(record: int, end: int) -> int:
    """Return the count of record numbers in the range, without skipped ones."""
    return max(0, end - record) % JUMP


def missing(stream: Stream, begin: int) -> int:
    """Return the count of numbers from `begin` on that no record has."""
    if stream.next_record - begin < JUMP:
        return 0
    found, at = 0, begin
    for number in range(index.count(stream.cold)):
        assert stream.cold is not None
        first, end = index.begin_of(stream.cold, number)[0], index.end_of(stream.cold, number)[0]
        if end > at:
            found, at = found + max(0, first - at), end
    for batch in stream.hot or ():
        end = batch.record + batch.records
        if end > at:
            found, at = found + max(0, batch.record - at), end
    return found + max(0, stream.next_record - at)
