"""Publishing and dropping snapshots of streams, and the trims that follow them.

The rules go by origin: a publisher neither conflicts with the snapshots of another one nor removes
them. Times are those of the log, as the clocks of two leaders differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.limits import (
    SNAPSHOT_GRACE_MS,
    SNAPSHOT_ORIGINS_MAX,
    SNAPSHOTS_SUPERSEDED_MAX,
)
from polynya.stream.command import applies, level_of
from polynya.stream.features.lifetimes.rules import is_surely_expired, tail_reply
from polynya.stream.features.marks.commands import OVERDUE, DropSnapshot, PublishSnapshot
from polynya.stream.features.marks.held import (
    companion,
    covers,
    is_readable,
    keep,
    marks_of,
    of_origin,
    source_of,
    superseded,
    unneeded_of,
)
from polynya.stream.features.retention.rules import RetentionCut, held_back
from polynya.stream.features.retention.trimming import boundary, trim_one
from polynya.stream.features.tables.watches import held_from
from polynya.stream.parts import Mark
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


@applies(PublishSnapshot)
def apply_publish_snapshot(machine: Machine, command: PublishSnapshot, position: int) -> Reply:
    """Add a snapshot. OK: its origin has it already. Refusals: NOT_FOUND, GONE, INCARNATION,
    EVICTED, TRIMMED, OFFSET_BEYOND_TAIL, NOT_A_BOUNDARY, SNAPSHOT_OLDER, SNAPSHOT_CONFLICT,
    SNAPSHOT_ORIGINS, SNAPSHOT_TOO_SOON, PARTS_GONE. CREATED: it was added."""
    stream = _found(machine, command)
    if isinstance(stream, Reply):
        return stream
    now_ms = machine.counters.log_ms
    marks = [mark for mark in marks_of(stream) if is_readable(mark, now_ms)]
    refusal = _judge_position(stream, command) or _judge_marks(stream, marks, command, now_ms)
    if refusal is not None:
        return refusal
    own = companion(machine, stream)
    if command.parts and (
        own is None
        or own.uid != command.companion_uid
        or not all(
            (own.first_record, own.first_byte) <= (record, byte)
            and (record, byte + size) < (own.next_record, own.next_byte + 1)
            for record, byte, size in command.parts
        )
    ):
        return tail_reply(Code.PARTS_GONE, stream)
    marks = [
        *(mark for mark in marks if not _is_replaced(mark, command)),
        _mark_of(command, now_ms),
    ]
    _settle(machine, stream, superseded(marks, command.origin, command.kept, now_ms), command)
    return tail_reply(Code.CREATED, stream)


@applies(DropSnapshot)
def apply_drop_snapshot(machine: Machine, command: DropSnapshot, position: int) -> Reply:
    """Remove a snapshot. Refusals: NOT_FOUND, GONE, INCARNATION, EVICTED, NO_SNAPSHOT,
    SNAPSHOT_NEEDED."""
    stream = _found(machine, command)
    if isinstance(stream, Reply):
        return stream
    marks = [mark for mark in marks_of(stream) if is_readable(mark, machine.counters.log_ms)]
    if command.record != OVERDUE:
        gone = [mark for mark in of_origin(marks, command.origin) if mark.record == command.record]
        if not gone:
            return tail_reply(Code.NO_SNAPSHOT, stream)
        left = [mark for mark in marks if mark not in gone]
        first = stream.first_record
        if first and covers(gone, first) and not covers(of_origin(left, command.origin), first):
            return tail_reply(Code.SNAPSHOT_NEEDED, stream)
        marks = left
    _settle(machine, stream, marks, command)
    return tail_reply(Code.OK, stream)


def _found(machine: Machine, command: PublishSnapshot | DropSnapshot) -> Stream | Reply:
    """Return the stream of a command, or the refusal."""
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    machine.counters.raise_level(level_of(type(command)))  # a standalone node gets no `SetLevel`
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if is_surely_expired(stream, command.now_ms):
        return Reply(Code.NOT_FOUND)
    if command.uid and command.uid != stream.uid:
        return tail_reply(Code.INCARNATION, stream)
    return stream


def _judge_position(stream: Stream, command: PublishSnapshot) -> Reply | None:
    at = (command.record, command.byte)
    if command.record < stream.first_record:
        return Reply(Code.TRIMMED, stream.uid, stream.first_record, stream.first_byte)
    tail = tail_reply(Code.OFFSET_BEYOND_TAIL, stream)
    if command.record > tail.record:
        return tail
    first = (stream.first_record, stream.first_byte)
    if at != first and boundary(stream, at) != at:
        return tail_reply(Code.NOT_A_BOUNDARY, stream)
    return None


def _judge_marks(
    stream: Stream, marks: list[Mark], command: PublishSnapshot, now_ms: int
) -> Reply | None:
    own = of_origin(marks, command.origin)
    at = [mark for mark in own if mark.record == command.record]
    if any(mark.sha256 == command.sha256 and mark.origin == command.origin for mark in at):
        return tail_reply(Code.OK, stream)
    kept = [mark for mark in own if not mark.dropped_ms]
    if any(mark.origin == command.origin for mark in at):
        return _newest(Code.SNAPSHOT_CONFLICT, stream, kept or at)
    if kept and kept[-1].record > command.record:
        return _newest(Code.SNAPSHOT_OLDER, stream, kept)
    sources = {source_of(mark.origin) for mark in marks}
    if len(sources | {source_of(command.origin)}) > SNAPSHOT_ORIGINS_MAX:
        return tail_reply(Code.SNAPSHOT_ORIGINS, stream)
    old = [mark for mark in own if mark.dropped_ms]
    if len(old) >= SNAPSHOTS_SUPERSEDED_MAX and len(kept) >= command.kept:
        reply = tail_reply(Code.SNAPSHOT_TOO_SOON, stream)
        reply.detail = min(mark.dropped_ms for mark in old) + SNAPSHOT_GRACE_MS - now_ms
        return reply
    return None


def _newest(code: Code, stream: Stream, kept: list[Mark]) -> Reply:
    """Return the refusal that names the newest snapshot of an origin."""
    reply = tail_reply(code, stream)
    reply.detail = [kept[-1].record, kept[-1].byte]
    return reply


def _is_replaced(mark: Mark, command: PublishSnapshot) -> bool:
    """Report whether a mark is of an older revision of the same reducer, at the same record."""
    return mark.record == command.record and source_of(mark.origin) == source_of(command.origin)


def _mark_of(command: PublishSnapshot, now_ms: int) -> Mark:
    return Mark(
        command.record,
        command.byte,
        tuple(command.parts),
        command.size,
        command.sha256,
        command.content_type,
        now_ms,
        command.origin,
    )


# --- what follows ---------------------------------------------------------------------------------


def _settle(
    machine: Machine, stream: Stream, marks: list[Mark], command: PublishSnapshot | DropSnapshot
) -> None:
    """Set the marks, and trim what no reader of them needs."""
    keep(machine, stream, marks)
    own = companion(machine, stream)
    if own is not None:
        _trim_bodies(machine, own, marks)
    if command.bound is not None:
        _trim_to_marks(machine, stream, marks, command.bound)


def _trim_bodies(machine: Machine, own: Stream, marks: list[Mark]) -> None:
    """Trim the companion before the bodies that marks name, and those younger than the grace: a
    publisher may be about to name them."""
    now_ms = machine.counters.log_ms
    at = unneeded_of(own, marks, now_ms)
    if at is not None:
        trim_one(machine, own.uid, at, now_ms)


def _trim_to_marks(machine: Machine, stream: Stream, marks: list[Mark], bound: list[str]) -> None:
    """Trim the stream to the oldest mark of the origins that its retention goes by. One without a
    mark holds the records."""
    oldest: list[tuple[int, int]] = []
    for origin in bound:
        own = of_origin(marks, origin)
        if not own:
            return
        oldest.append((own[0].record, own[0].byte))
    at = min(oldest, default=(0, 0))
    if at[0] <= stream.first_record:
        return
    cut = held_back(stream, RetentionCut(at), held_from(machine, stream)).boundary
    if cut is not None:
        trim_one(machine, stream.uid, cut, machine.counters.log_ms)
