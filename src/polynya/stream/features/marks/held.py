"""The marks of a stream: which of them are kept, which one a reader gets, and what they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import structs

from polynya.base.limits import SNAPSHOT_GRACE_MS
from polynya.base.names import companion_of
from polynya.stream.features.retention.rules import cut_of
from polynya.stream.features.retention.trimming import extras_of, tidy
from polynya.stream.parts import Mark, Retention
from polynya.stream.state.model import Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_ORDER = attrgetter("record", "created_ms")
_BODIES = Retention(age_seconds=SNAPSHOT_GRACE_MS // 1000)  # of bodies that no mark names


def marks_of(stream: Stream) -> Sequence[Mark]:
    """Return the marks of a stream, in the order of their records."""
    return (stream.extras.marks if stream.extras is not None else None) or ()


def source_of(origin: str) -> str:
    """Return the origin without its revision: the rules go by it."""
    return origin.partition("@")[0]


def of_origin(marks: Iterable[Mark], origin: str) -> list[Mark]:
    """Return the marks of an origin, whatever its revision."""
    source = source_of(origin)
    return [mark for mark in marks if source_of(mark.origin) == source]


def is_readable(mark: Mark, now_ms: int) -> bool:
    """Report whether the mark is kept, or superseded for less than the grace."""
    return not mark.dropped_ms or now_ms < mark.dropped_ms + SNAPSHOT_GRACE_MS


def newest(marks: Iterable[Mark], first_record: int, origin: str | None = None) -> Mark | None:
    """Return the mark that a reader gets: the newest one of the clients that is not behind the
    trim, else the newest such mark. `origin`: of that one alone."""
    usable = [mark for mark in marks if mark.record >= first_record and not mark.dropped_ms]
    of_clients = of_origin(usable, origin or "")
    found = of_clients if of_clients or origin is not None else usable
    return max(found, key=_ORDER, default=None)


def superseded(marks: Sequence[Mark], origin: str, kept: int, now_ms: int) -> list[Mark]:
    """Return the marks after the older ones of an origin than the newest `kept` are superseded."""
    own = [mark for mark in of_origin(marks, origin) if not mark.dropped_ms]
    old = {id(mark) for mark in sorted(own, key=_ORDER)[:-kept]}
    return [structs.replace(mark, dropped_ms=now_ms) if id(mark) in old else mark for mark in marks]


def keep(machine: Machine, stream: Stream, marks: Sequence[Mark]) -> None:
    """Set the marks of a stream."""
    machine.changes.streams.add(stream.uid)
    if marks:
        extras_of(stream).marks = sorted(marks, key=_ORDER)
        machine.directory.marked[stream.uid] = stream
    elif stream.extras is not None:
        stream.extras.marks = None
        machine.directory.marked.pop(stream.uid, None)
        tidy(stream)


def companion(machine: Machine, stream: Stream) -> Stream | None:
    """Return the stream with the bodies of a stream's snapshots."""
    return machine.directory.streams.get(companion_of(stream.name))


def covers(marks: Iterable[Mark], first_record: int) -> bool:
    """Report whether one of the marks that are kept lets readers begin at the trim."""
    return any(mark.record >= first_record and not mark.dropped_ms for mark in marks)


def marks_at(
    marks: Iterable[Mark], at: tuple[int, int], now_ms: int, origin: str | None = None
) -> Mark | None:
    """Return the mark at an offset, or (record below 0) at a byte, that can be read. Without an
    origin that of the clients comes first."""
    found = [
        mark
        for mark in (marks if origin is None else of_origin(marks, origin))
        if (mark.record, mark.byte) == at or (at[0] < 0 and mark.byte == at[1])
        if is_readable(mark, now_ms)
    ]
    return min(found, key=lambda mark: (mark.origin != "", -mark.created_ms), default=None)


def repeated(marks: Iterable[Mark], at: tuple[int, int], sha256: bytes, origin: str) -> bool:
    """Report whether an origin has published this body at this position."""
    return any(
        (mark.record, mark.byte) == at and mark.sha256 == sha256 and mark.origin == origin
        for mark in marks
    )


def is_overdue(stream: Stream, own: Stream, now_ms: int) -> bool:
    """Report whether a stream has marks whose grace is over, or its companion has bodies that
    nothing names any more."""
    marks = marks_of(stream)
    if any(not is_readable(mark, now_ms) for mark in marks):
        return True
    unneeded = unneeded_of(own, marks, now_ms)
    return unneeded is not None and unneeded[0] > own.first_record


def unneeded_of(own: Stream, marks: Iterable[Mark], now_ms: int) -> tuple[int, int] | None:
    """Return where the bodies of a companion begin that marks name, or that are younger than the
    grace: a publisher may be about to name them."""
    young = cut_of(own, _BODIES, now_ms).boundary
    if young is None:
        return None
    return min([young, *(part[:2] for mark in marks for part in mark.parts)])
