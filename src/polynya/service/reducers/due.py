"""The streams whose snapshot of a reducer is old: their records behind it pass a threshold.

A page of names is asked of the leader of each group. An evicted stream is due if it has records
and no snapshot: reading it brings it back.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from polynya.base.limits import REDUCER_SECONDS_MIN
from polynya.base.names import DEFAULT_BUCKET
from polynya.local.api import StreamInfo
from polynya.reducers.builtins import LATEST
from polynya.service.api import Service
from polynya.service.reducers.registry import Bound, Fault
from polynya.stream.features.marks.held import of_origin
from polynya.stream.features.subscriptions.globs import first_segment
from polynya.stream.parts import Mark

_PAGE = 1000  # names in one question to the leaders
_PAGES_MAX = 10  # of one request; the next one goes on
DUE_MAX = 1000  # streams in one answer


class Due(msgspec.Struct, frozen=True):
    """A stream that is due for a reducer, by its canonical name."""

    reducer: str
    stream: str
    record: int  # of the newest snapshot of the reducer
    records: int  # behind it
    bytes: int


class DuePage(msgspec.Struct, frozen=True):
    """Streams that are due. `after`: the name to go on behind; "": there are no more."""

    due: list[Due]
    after: str
    unfit: list[tuple[str, str]] = []  # reducers and streams, see `is_unfit`


async def find_due(
    service: Service, reducers: Iterable[Bound], after: str, *, everything: bool
) -> DuePage:
    """Return the streams that are due behind a canonical name. `everything`: also those whose
    records behind the snapshot pass no threshold yet."""
    working = [each for each in reducers if not each.binding.stopped]
    found: list[Due] = []
    unfit: list[tuple[str, str]] = []
    for prefix in _prefixes(working):
        if after > prefix and not after.startswith(prefix):
            continue
        for _ in range(_PAGES_MAX):
            infos = await service.list_streams(prefix, after, _PAGE, attributes=True)
            for info in infos:
                unfit += [
                    (each.name, info.name)
                    for each in working
                    if info.rewrites and each.fits(info.name) and is_unfit(each, info)
                ]
                found += _of_stream(service, working, info, everything=everything)
                after = info.name
                if len(found) >= DUE_MAX:
                    return DuePage(found, after, unfit)
            if len(infos) < _PAGE:
                break
        else:
            return DuePage(found, after, unfit)
    return DuePage(found, "", unfit)


def is_unfit(reducer: Bound, info: StreamInfo) -> bool:
    """Report whether a stream has lost records by key compaction that the reducer may need: what is
    computed again would be another state. `latest` by the keys of records needs none of them."""
    binding = reducer.binding
    return info.rewrites > 0 and (binding.builtin != LATEST or bool(binding.key))


def _prefixes(reducers: Iterable[Bound]) -> list[str]:
    """Return the prefixes of canonical names that the patterns may have, in order; none within
    another."""
    found: set[str] = set()
    for each in reducers:
        first = first_segment(each.binding.pattern)
        found |= {f"{first}/", f"{DEFAULT_BUCKET}/{first}"} if first else {""}
    return [
        each
        for each in sorted(found)
        if not any(each != other and each.startswith(other) for other in found)
    ]


def _of_stream(
    service: Service, reducers: Iterable[Bound], info: StreamInfo, *, everything: bool
) -> list[Due]:
    faults, now_ms = service.reducers.faults, service.now_ms()
    return [
        due
        for each in reducers
        if each.fits(info.name) and not is_unfit(each, info)
        if not _waits(faults.get((each.name, info.name)), each, now_ms)
        if (due := _judge(each, info, now_ms, everything=everything)) is not None
    ]


def _waits(fault: Fault | None, reducer: Bound, now_ms: int) -> bool:
    """Report whether a fault of this revision is not to be tried again yet."""
    return (
        fault is not None and fault.revision == reducer.binding.revision and now_ms < fault.again_ms
    )


def _judge(reducer: Bound, info: StreamInfo, now_ms: int, *, everything: bool) -> Due | None:
    binding = reducer.binding
    mark = newest_mark(reducer, info)
    at = (0, 0) if mark is None else (mark.record, mark.byte)
    records, size = info.record - at[0], info.byte - at[1]
    if records <= 0:
        return None
    due = Due(reducer.name, info.name, at[0], records, size)
    if everything:
        return due
    age_seconds = (now_ms - (info.created_ms if mark is None else mark.created_ms)) / 1000
    if mark is not None and age_seconds < REDUCER_SECONDS_MIN:
        return None
    passed = (
        records >= binding.every_records
        or size >= binding.every_bytes
        or age_seconds >= binding.every_seconds
    )
    return due if passed else None


def newest_mark(reducer: Bound, info: StreamInfo) -> Mark | None:
    """Return the newest snapshot of this revision of a reducer, behind the trim or not."""
    origin = reducer.binding.origin(reducer.name)
    own = [mark for mark in of_origin(info.marks or (), reducer.name) if mark.origin == origin]
    return max(own, key=lambda mark: mark.record, default=None)
