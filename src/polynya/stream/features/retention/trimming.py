"""Trimming the front of streams, and releasing the data before it.

A trim moves the first kept boundary to any record. A Kafka batch has no boundaries between its
records: a `Trim` keeps a batch whole, while a `TrimTo` may put the first kept record into one. The
first kept byte is then where the batch begins, and readers leave out the records before the first
kept one. Stored data goes in whole pieces, slices or hot
batches: a piece goes when all of it lies before the boundary and no fork inherits any of it. Cold
slices that a fork needs move to the stream's past, which only forks read. Hot batches that a fork
needs stay until they are flushed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polynya.stream.command import applies, level_of
from polynya.stream.features.appends.transactions import forget_aborted
from polynya.stream.features.forks.commands import Unpin
from polynya.stream.features.retention.commands import Trim, TrimTo
from polynya.stream.features.subscriptions.links import note_trim
from polynya.stream.read_plan import locate
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index, record_gaps
from polynya.stream.state.model import Stream, StreamExtras
from polynya.stream.state.tails import stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

Boundary = tuple[int, int]  # record, byte
Span = tuple[int, int]  # records, begin and (exclusive) end


@applies(Trim)
def apply_trim(machine: Machine, command: Trim, position: int) -> Reply:
    """Apply each cut independently; see `Trim` for the reply's detail."""
    if machine.directory.evicted and any(
        name in machine.directory.evicted for name in command.names
    ):
        return Reply(Code.EVICTED)
    return Reply(
        Code.OK,
        detail=[
            trim_one(machine, uid, (record, byte), command.now_ms)
            for uid, record, byte in command.cuts
        ],
    )


@applies(TrimTo)
def apply_trim_to(machine: Machine, command: TrimTo, position: int) -> Reply:
    """Apply the cut, which may lie inside a batch; the reply's detail is that of a `Trim`."""
    if command.name in machine.directory.evicted:
        return Reply(Code.EVICTED)
    machine.counters.raise_level(level_of(TrimTo))  # a standalone node gets no `SetLevel`
    cut = (command.record, command.byte)
    return Reply(Code.OK, detail=[trim_one(machine, command.uid, cut, command.now_ms, inside=True)])


def trim_one(
    machine: Machine, uid: int, cut: Boundary, now_ms: int, *, inside: bool = False
) -> tuple[int, int, int, int] | None:
    """Trim a stream. Return the detail of a `Trim` for one cut; `inside` as in `boundary`."""
    stream = machine.directory.by_uid.get(uid)
    if stream is None or stream.deleted:
        return None
    first, first_byte = stream.first_record, stream.first_byte
    if cut[0] > first:
        found = boundary(stream, cut, inside=inside)
        if found is None:
            return None
        stream.first_record, stream.first_byte = found
        machine.changes.streams.add(uid)
        if stream.links is not None:
            note_trim(machine.subscriptions, stream)
        release_trimmed(machine, stream, now_ms)
    return (
        stream.first_record,
        stream.first_byte,
        stream.first_record - first,
        stream.first_byte - first_byte,
    )


def boundary(stream: Stream, at: Boundary, *, inside: bool = False) -> Boundary | None:
    """Return the boundary of the record `at[0]`, or None if there is none. Inside a cold slice or
    an inherited range the state cannot tell; `at[1]` is then accepted if it is plausible. Records
    of open transactions stay.

    `inside`: a record inside an undivided batch is a boundary too, at the byte where the batch
    begins."""
    tail = stable_of(stream)
    record, byte = at = record_gaps.behind(stream, stream.cold, at, tail)
    if record >= tail[0]:
        return tail if record == tail[0] else None
    if stream.hot and record >= stream.hot[0].record:
        _, found, byte = locate(stream.hot, record, -1, whole_records=True)
        return (max(record, found) if inside else found), byte
    fork = stream.fork
    if fork is not None and record <= fork.record:
        low, high = (stream.first_record, stream.first_byte), (fork.record, fork.byte)
    else:
        number = index.holding(stream.cold, record)
        if stream.cold is None or number < 0:
            return None
        low, high = index.begin_of(stream.cold, number), index.end_of(stream.cold, number)
    for known in (low, high):
        if record == known[0]:
            return known
    if byte == high[1] and not inside:  # only missing numbers are between
        return high
    begin = max(low[1] if inside else low[1] + 1, stream.first_byte)
    return at if begin <= byte < high[1] else None


def release_trimmed(machine: Machine, stream: Stream, now_ms: int) -> None:
    """Release all data before the first kept record that no fork needs. Call this when that record
    or the pins have changed."""
    needed = _needed(stream)
    _release_cold(machine, stream, needed, now_ms)
    _release_hot(machine, stream, needed)
    forget_aborted(stream, 0, stream.first_record)
    fork = stream.fork
    if (
        fork is None
        or stream.first_record < fork.record
        or (stream.extras is not None and stream.extras.detached)
    ):
        return
    if not needed or needed[0][0] >= fork.record:
        extras_of(stream).detached = True
        machine.outbox.send(fork.source_uid >> 48, Unpin(fork.source_uid, fork.attempt, now_ms))


def release_past(machine: Machine, stream: Stream, now_ms: int) -> None:
    """Release the slices kept for forks alone, because the stream is being removed."""
    if stream.extras is not None and stream.extras.past is not None:
        past, stream.extras.past = stream.extras.past, None
        for number in index.pack_numbers(past):
            machine.packs.drop_slice(number, now_ms)


def past_of(stream: Stream) -> bytes:
    """Return the slices before the first kept record that forks need."""
    return (stream.extras.past if stream.extras is not None else None) or b""


def extras_of(stream: Stream) -> StreamExtras:
    """Return the stream's `StreamExtras`, created on demand."""
    if stream.extras is None:
        stream.extras = StreamExtras()
    return stream.extras


def tidy(stream: Stream) -> None:
    """Drop an empty `StreamExtras`."""
    if stream.extras is not None and stream.extras == StreamExtras():
        stream.extras = None


def _needed(stream: Stream) -> list[Span]:
    """Return the records that forks inherit, as disjoint spans in order."""
    ends: dict[
        int, int
    ] = {}  # keyed by first record: nearly all of very many forks begin with the same one
    for pin in (stream.pins or {}).values():
        begin, end = pin.first_record, pin.record + (pin.prefix > 0)
        if end > ends.get(begin, begin):
            ends[begin] = end
    spans: list[Span] = []
    for begin, end in sorted(ends.items()):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans


def _release_cold(machine: Machine, stream: Stream, needed: Sequence[Span], now_ms: int) -> None:
    gone = index.entries_before(stream.cold, stream.first_record)
    old = past_of(stream)
    if not gone and not old:
        return
    past = old
    if gone and stream.cold is not None:
        past += index.cut(stream.cold, 0, gone)
        stream.cold = index.behind(stream.cold, gone) or None
    kept: list[bytes] = []
    dropped: list[int] = []
    numbers = index.pack_numbers(past)
    for at, number in enumerate(numbers):
        if _overlaps(needed, index.begin_of(past, at)[0], index.end_of(past, at)[0]):
            kept.append(past[at * index.ENTRY_BYTES : (at + 1) * index.ENTRY_BYTES])
        else:
            dropped.append(number)
    if kept or old:
        extras_of(stream).past = b"".join(kept) or None
        tidy(stream)
    for number in dropped:
        machine.packs.drop_slice(number, now_ms)


def _overlaps(spans: Sequence[Span], begin: int, end: int) -> bool:
    at = bisect_right(spans, begin, key=lambda span: span[1])
    return at < len(spans) and spans[at][0] < end


def _release_hot(machine: Machine, stream: Stream, needed: Sequence[Span]) -> None:
    hot = stream.hot
    if (
        not hot
        or hot[0].record >= stream.first_record
        or (needed and needed[-1][1] > hot[0].record)
    ):
        return
    gone = bisect_right(hot, stream.first_record, key=lambda batch: batch.record + batch.records)
    if gone == len(hot):
        machine.directory.hot_bytes -= stream.next_byte - hot[0].byte
        stream.hot = None
        del machine.directory.hot[stream.uid]
    elif gone:
        machine.directory.hot_bytes -= hot[gone].byte - hot[0].byte
        stream.hot = hot[gone:]
