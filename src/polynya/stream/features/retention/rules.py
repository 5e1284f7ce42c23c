"""Retention: which records a stream keeps automatically, and the resulting first boundary. Pure;
the retention job proposes the trims."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import msgspec

from polynya.base.levels import SNAPSHOTS_LEVEL
from polynya.base.limits import KIB
from polynya.stream.command import applies
from polynya.stream.features.lifetimes.rules import is_surely_expired, tail_reply
from polynya.stream.features.pages.eviction import where_of
from polynya.stream.features.retention.commands import BucketRetention, SetRetention
from polynya.stream.features.retention.trimming import Boundary, boundary, extras_of, tidy
from polynya.stream.parts import Retention
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.entries import UNKNOWN_MS
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_SLACK_BYTES_MIN = 64 * KIB
ENTRIES_MAX = 4096  # index entries to trim at once: releasing them blocks the event loop


class RetentionCut(msgspec.Struct, frozen=True, gc=False):
    """The result of applying a retention policy to a stream. `boundary` is the new first boundary,
    found without reads (None: unchanged). `entries` is the number of index entries trimmed with it.
    `inside_ms` and `inside_byte` ask for a cut inside a piece, which must be read. The cut drops
    records older than `inside_ms`, or before the one that holds `inside_byte`; 0: no cut."""

    boundary: Boundary | None = None
    entries: int = 0
    inside_ms: int = 0
    inside_byte: int = 0


_NOTHING = RetentionCut()


@applies(SetRetention)
def apply_set_retention(machine: Machine, command: SetRetention, position: int) -> Reply:
    """Set or clear a stream's own retention. Refusals: NOT_FOUND, GONE, INCARNATION, EVICTED."""
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    if is_surely_expired(stream, command.now_ms):
        return Reply(Code.NOT_FOUND)
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if command.uid and command.uid != stream.uid:
        return tail_reply(Code.INCARNATION, stream)
    set_retention(machine, stream, command.retention)
    machine.changes.streams.add(stream.uid)
    return tail_reply(Code.OK, stream)


@applies(BucketRetention)
def apply_bucket_retention(machine: Machine, command: BucketRetention, position: int) -> Reply:
    """Set or clear a bucket's default retention."""
    if command.retention is None:
        machine.meta.buckets.pop(command.bucket, None)
    else:
        _raise_level(machine, command.retention)
        machine.meta.buckets[command.bucket] = command.retention
    return Reply(Code.OK)


def set_retention(machine: Machine, stream: Stream, retention: Retention | None) -> None:
    """Set or (None) clear the stream's own retention."""
    if retention is not None:
        _raise_level(machine, retention)
        extras_of(stream).retention = retention
        machine.directory.retaining[stream.uid] = stream
    elif stream.extras is not None:
        stream.extras.retention = None
        machine.directory.retaining.pop(stream.uid, None)
        tidy(stream)


def _raise_level(machine: Machine, retention: Retention) -> None:
    if retention.snapshots is not None:  # a standalone node gets no `SetLevel`
        machine.counters.raise_level(SNAPSHOTS_LEVEL)


def retention_of(stream: Stream) -> Retention | None:
    """Return the stream's own retention, or None."""
    return stream.extras.retention if stream.extras is not None else None


def cut_of(stream: Stream, retention: Retention, now_ms: int) -> RetentionCut:
    """Return which whole slices and hot batches may go now, and which cut needs a read."""
    found = (stream.first_record, stream.first_byte)
    stable = stable_of(stream)
    inside_ms = inside_byte = 0
    if retention.bytes is not None and stream.next_byte - stream.first_byte > retention.bytes:
        found = max(found, _last_boundary_before_byte(stream, stream.next_byte - retention.bytes))
        over = stream.next_byte - retention.bytes - found[1]
        inside_byte = (
            found[1] + over
            if over > slack_bytes(retention.bytes) and _records_at(stream, found) > 1
            else 0
        )
    before_ms = 0 if retention.age_seconds is None else now_ms - retention.age_seconds * 1000
    if before_ms > 0 and retention.by_record_time:
        found = max(found, _first_boundary_dated(stream, before_ms))
    elif before_ms > 0 and not _is_young(stream, before_ms):
        found = max(found, _first_boundary_reaching(stream, before_ms))
        first_ms = _first_time(stream, found)
        inside_ms = (
            before_ms if first_ms is not None and first_ms < before_ms - slack_ms(retention) else 0
        )
    found = min(found, max(stable, (stream.first_record, stream.first_byte)))
    if found[0] == stream.first_record and not (inside_ms or inside_byte):
        return _NOTHING
    entries = index.entries_before(stream.cold, found[0])
    if entries > ENTRIES_MAX:
        assert stream.cold is not None
        entries, found = ENTRIES_MAX, index.begin_of(stream.cold, ENTRIES_MAX)
    return RetentionCut(
        found if found[0] > stream.first_record else None, entries, inside_ms, inside_byte
    )


def held_back(stream: Stream, cut: RetentionCut, held: int | None) -> RetentionCut:
    """Return the cut without the records from `held` on, which a table still needs (None: none).

    A cut inside a piece waits: where it would end is not known before the read.
    """
    if held is None or cut is _NOTHING:
        return cut
    if cut.boundary is not None and cut.boundary[0] <= held:
        return RetentionCut(cut.boundary, cut.entries)
    found = (
        None if cut.boundary is None or held <= stream.first_record else boundary(stream, (held, 0))
    )
    return (
        _NOTHING if found is None else RetentionCut(found, index.entries_before(stream.cold, held))
    )


def is_due(view: Stream, retention: Retention, now_ms: int) -> bool:
    """Report whether an evicted stream must be checked. Its excess bytes were trimmed before
    eviction; only a changed retention can find more."""
    where = where_of(view)
    if where is None or where.oldest_ms is None:
        return False
    if (
        retention.age_seconds is not None
        and where.oldest_ms < now_ms - retention.age_seconds * 1000
    ):
        return True
    return (
        retention.bytes is not None
        and view.next_byte - view.first_byte > retention.bytes + slack_bytes(retention.bytes)
    )


def _is_young(stream: Stream, before_ms: int) -> bool:
    """Report whether all stored records are young enough. This is the usual case, checked on every
    stream in turn."""
    if stream.fork is not None and stream.first_record < stream.fork.record:
        return False
    if stream.cold is not None:
        return index.time_ms_first(stream.cold, 0) >= before_ms
    return stream.hot is None or stream.hot[0].time_ms >= before_ms


def slack_ms(retention: Retention) -> int:
    """Return how far records may exceed their age when they share a slice with younger ones.
    Separating them needs a read."""
    return max(1000, (retention.age_seconds or 0) * 250)


def slack_bytes(kept: int) -> int:
    """Return how many excess bytes may remain in a piece that must be read to cut it."""
    return max(_SLACK_BYTES_MIN, kept // 4)


def _records_at(stream: Stream, at: Boundary) -> int:
    """Return the number of records in the piece from its record at `at` on."""
    hot = stream.hot
    if hot and at[0] >= hot[0].record:
        batch = hot[bisect_right(hot, at[0], key=lambda each: each.record) - 1]
        return batch.record + batch.records - at[0]
    number = index.holding(stream.cold, at[0])
    if stream.cold is not None and number >= 0:
        return index.end_of(stream.cold, number)[0] - at[0]
    return stream.fork.record - at[0] if stream.fork is not None else 0


def _last_boundary_before_byte(stream: Stream, byte: int) -> Boundary:
    """Return the last piece boundary at or before stream position `byte`: a hot batch, a slice, or
    the fork point."""
    if byte >= stream.next_byte:
        return stream.next_record, stream.next_byte
    hot = stream.hot
    if hot and hot[0].byte <= byte:
        batch = hot[bisect_right(hot, byte, key=lambda each: each.byte) - 1]
        return batch.record, batch.byte
    number = index.holding_byte(stream.cold, byte)
    if stream.cold is not None and number >= 0:
        return index.begin_of(stream.cold, number)
    fork = stream.fork
    return (fork.record, fork.byte) if fork is not None and fork.byte <= byte else (0, 0)


def _first_boundary_reaching(stream: Stream, time_ms: int) -> Boundary:
    """Return where the first piece with an append at `time_ms` or later begins; everything before
    it is older."""
    number = index.first_reaching(stream.cold, time_ms)
    if number == 0 and stream.fork is not None and stream.created_ms >= time_ms:
        return 0, 0  # some inherited records may be as young
    if stream.cold is not None and number < index.count(stream.cold):
        return index.begin_of(stream.cold, number)
    hot = stream.hot or []
    at = bisect_left(hot, time_ms, key=lambda each: each.time_ms)
    return (
        (hot[at].record, hot[at].byte) if at < len(hot) else (stream.next_record, stream.next_byte)
    )


def _first_boundary_dated(stream: Stream, time_ms: int) -> Boundary:
    """Return where the first piece with a record time of `time_ms` or later begins. An entry of
    version 1 does not say its record times: its append time counts."""
    fork, cold = stream.fork, stream.cold
    if fork is not None and stream.first_record < fork.record:
        return 0, 0  # only the source knows the times of inherited records
    entries, number = index.count(cold), index.first_dated(cold, 0, time_ms)
    while cold is not None and number < entries:
        known = index.record_time_ms_max(cold, number) != UNKNOWN_MS
        if known or index.time_ms_max(cold, number) >= time_ms:
            return index.begin_of(cold, number)
        number = index.first_dated(cold, number + 1, time_ms)
    for batch in stream.hot or ():
        if (batch.record_time_ms_max or batch.time_ms) >= time_ms:
            return batch.record, batch.byte
    return stream.next_record, stream.next_byte


def _first_time(stream: Stream, at: Boundary) -> int | None:
    """Return a lower bound of the append time of the record at this boundary. None: nothing lies
    behind it, or the record is in a hot batch."""
    record = at[0]
    if record >= stream.next_record or (stream.hot and record >= stream.hot[0].record):
        return None
    if stream.fork is not None and record < stream.fork.record:
        return 0  # only the source knows the time
    if stream.cold is None:
        return None
    return index.time_ms_first(stream.cold, max(0, index.holding(stream.cold, record)))
