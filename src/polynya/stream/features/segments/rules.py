"""The segments of a leased stream: ranges of its records, each with one writer under an epoch.

A segment begins and ends in the group's log: at a `Rollover`, or at the `Create`. The epochs of a
stream grow by one, so each is opened once. A rollover moves no data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from polynya.base.limits import SEGMENTS_KEPT_MAX
from polynya.stream.command import applies, level_of
from polynya.stream.features.lifetimes.rules import tail_reply
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.features.retention.trimming import extras_of
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.parts import SegmentLimits
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import SealedSegment, Segments, Stream
from polynya.stream.state.profile_epochs import profile_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


def segments_of(stream: Stream) -> Segments | None:
    """Return the segments of a leased stream, or None."""
    return None if stream.extras is None else stream.extras.segments


def open_segments(machine: Machine) -> Iterator[tuple[Stream, Segments]]:
    """Yield each leased stream that takes appends, with its segments: the last one is open."""
    for stream in machine.directory.leased.values():
        segments = segments_of(stream)
        if segments is not None and not stream.closed and not stream.deleted:
            yield stream, segments


def open_first(machine: Machine, stream: Stream, limits: SegmentLimits) -> None:
    """Make a new stream a leased one, whose first segment begins at its tail."""
    extras_of(stream).segments = Segments(
        limits.records,
        limits.bytes,
        1,
        limits.writer,
        stream.next_record,
        stream.next_byte,
        stream.created_ms,
    )
    machine.directory.leased[stream.uid] = stream
    machine.counters.raise_level(level_of(Rollover))  # a standalone node gets no `SetLevel`


@applies(Rollover)
def apply_rollover(machine: Machine, command: Rollover, position: int) -> Reply:
    """Close the open segment and open the next one, unless another epoch is open."""
    stream = machine.directory.streams.get(command.name)
    if stream is None or stream.uid != command.uid:
        return Reply(Code.NOT_FOUND)
    segments = segments_of(stream)
    if stream.deleted or stream.closed or segments is None:
        return tail_reply(Code.REFUSED, stream)
    if segments.epoch == command.epoch:
        _roll(stream, segments, command)
        machine.changes.streams.add(stream.uid)
        reply = tail_reply(Code.OK, stream)
    else:
        reply = tail_reply(Code.FENCED, stream)
    reply.detail = (segments.epoch, segments.writer)
    return reply


def _roll(stream: Stream, segments: Segments, command: Rollover) -> None:
    """Close the open segment, and drop the oldest from the list: trimmed ones, and those beyond
    the limit."""
    closed = SealedSegment(
        segments.epoch, segments.writer, segments.record, segments.byte, segments.opened_ms
    )
    sealed = [*segments.sealed, closed][-SEGMENTS_KEPT_MAX:]
    ends = [each.record for each in sealed[1:]] + [stream.next_record]
    segments.sealed = [
        each
        for each, end in zip(sealed, ends, strict=True)
        if end > stream.first_record or each is closed
    ]
    segments.epoch += 1
    segments.writer = command.writer
    segments.record, segments.byte = stream.next_record, stream.next_byte
    segments.opened_ms = command.now_ms


def segment_differences(
    stream: Stream, wanted: SegmentLimits | None
) -> list[tuple[str, str | int | None]]:
    """Return the settings in which a repeated create differs; what the request leaves open is
    taken as it is."""
    if wanted is None:
        return []
    known = segments_of(stream)
    if known is None:
        return [("profile", Profile.NAMES[profile_of(stream)])]
    found: list[tuple[str, str | int | None]] = []
    if wanted.records and known.records_max != wanted.records:
        found.append(("segment_records", known.records_max))
    if wanted.bytes and known.bytes_max != wanted.bytes:
        found.append(("segment_bytes", known.bytes_max))
    return found
