"""Record numbers that a new history jumped over (F4): no record has them, and the bytes on both sides are neighbours.

So a position among them means the records behind them. A slice, a run that is flushed and a page lie on one side.
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


def behind(stream: Stream, cold: bytes | None, at: Place, tail: Place) -> Place:
    """The position, or where the next records begin if there is none of that number. `cold` is the stream's index, `tail` where it ends,
    for who asks."""
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
    """Where the run of batches without a hole that starts at `begin` is over: `end` at most."""
    if end < len(batches):
        last, behind_last = end, batches[end].record
    else:
        last, behind_last = len(batches), batches[-1].record + batches[-1].records
    if behind_last - batches[begin].record < JUMP:
        return end
    for at in range(begin + 1, last + 1):
        if at == len(batches) or batches[at].record != batches[at - 1].record + batches[at - 1].records:
            return min(at, end)
    return end


def entries_behind(cold: bytes) -> list[int]:
    """The entries of an index that begin behind a hole."""
    count = index.count(cold)
    if not count or index.span(cold, 0, count)[1] - index.begin_of(cold, 0)[0] < JUMP:
        return []
    return [at for at in range(1, count) if index.begin_of(cold, at)[0] - index.end_of(cold, at - 1)[0] >= JUMP]


def between(record: int, end: int) -> int:
    """How many numbers lie between that were not jumped over."""
    return max(0, end - record) % JUMP


def missing(stream: Stream, begin: int) -> int:
    """How many numbers from `begin` on no record has."""
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
