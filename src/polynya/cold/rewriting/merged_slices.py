"""Build the merged slices of a pack from the slices that it replaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Mapping,
    Sequence,
)

import msgspec

from polynya.base.errors import CorruptData
from polynya.cold.fetches import Location
from polynya.cold.rewriting.merge_planner import (
    MergeRun,
)
from polynya.cold.steps import let_the_loop_run
from polynya.stream.parts import UNDECIDED, ColdSlice
from polynya.wire.inline_markers import slice_of
from polynya.wire.pack import PackBuilder, pressed
from polynya.wire.slice_batches import decided_flags
from polynya.wire.slice_building import gap, merge_slices
from polynya.wire.slice_format import RECORDS_MAX
from polynya.wire.slices import Slice, parse_slice


class MergeSource(msgspec.Struct, gc=False):
    """A run as read just before the merge."""

    run: MergeRun
    entries: list[ColdSlice]
    path: str  # "" except for the first slice of a stream
    content_type: str
    aborted: bytes = b""  # transactions whose batches the slices may not mark
    bounds: list[
        int
    ] = []  # set by `build_merged`: first records of entries that join no earlier one


def build_merged(
    sources: Sequence[MergeSource],
    data: dict[Location, memoryview],
    key: str,
    now_ms: int,
    levels: Mapping[int, int],
) -> tuple[list[bytes], list[ColdSlice | None]]:
    """Return the object's parts, and for each source its index entry. `levels` of zstd are by
    group.

    The entry is None if a slice is missing or damaged, or if the run has `bounds`. Runs in a
    thread. Removes the data that it has read from `data`.
    """
    builder = PackBuilder()
    made: list[ColdSlice | None] = []
    uses = Counter(_location_of(cold) for source in sources for cold in source.entries)
    for source in sources:
        run, head = source.run, source.entries[0]
        try:
            parsed = _parsed(source.entries, data)
        except (KeyError, CorruptData):
            made.append(None)
            continue
        finally:
            _drop(source.entries, data, uses)
        source.bounds = bounds_in(source.entries, parsed)
        for cold, each in zip(source.entries, parsed, strict=True):
            if cold.flags & UNDECIDED:  # what a run has is decided: it ends before the open ones
                each.batch_flags = decided_flags(each, cold.record, source.aborted)
        try:
            merged = (
                None
                if source.bounds
                else merge_slices(head.record, head.byte, _with_gaps(source.entries, parsed))
            )
        except CorruptData:
            merged = None
        if merged is None:
            made.append(None)
            continue
        entry = builder.add(
            run.uid,
            run.group,
            pressed(merged, levels.get(run.group, 0)),
            path=source.path,
            content_type=source.content_type,
        )
        behind = _missing_behind(source.entries[-1], parsed[-1])
        made.append(
            entry.at(
                key,
                head.record,
                head.byte,
                missing_records=behind[0],
                missing_bytes=behind[1],
            )
        )
        let_the_loop_run()
    parts, _ = builder.finish(owner_group=sources[0].run.group, created_ms=now_ms)
    return parts, made


def _parsed(entries: Sequence[ColdSlice], data: Mapping[Location, memoryview]) -> list[Slice]:
    """Return the slices of these entries, or the parts of slices that they name. Raises KeyError,
    CorruptData."""
    slices: dict[Location, Slice] = {}
    for cold in entries:
        location = _location_of(cold)
        if location not in slices and not cold.is_inline:
            slices[location] = parse_slice(bytes(data[location]), cold.crc)
    return [
        slice_of(cold) if cold.is_inline else slices[_location_of(cold)].run(cold)
        for cold in entries
    ]


def _drop(
    entries: Sequence[ColdSlice], data: dict[Location, memoryview], uses: Counter[Location]
) -> None:
    """Remove the data that no later entry needs. Parts of one slice may be in several runs."""
    for cold in entries:
        location = _location_of(cold)
        uses[location] -= 1
        if not uses[location]:
            data.pop(location, None)


def _location_of(cold: ColdSlice) -> Location:
    return cold.pack, cold.offset


def _with_gaps(entries: Sequence[ColdSlice], parsed: Sequence[Slice]) -> list[Slice]:
    """Return the slices with gaps for what is missing between them."""
    found: list[Slice] = []
    for cold, each in zip(entries, parsed, strict=True):
        found.append(each)
        missing = _missing_behind(cold, each)
        if any(missing) and cold is not entries[-1]:
            found.append(gap(each.encoding, each.append_times_ms[-1], *missing))
    return found


def _missing_behind(cold: ColdSlice, found: Slice) -> tuple[int, int]:
    """Return the numbers and positions of an entry's span that lie behind its slice."""
    records, length = found.span
    return cold.records - records, cold.length - length


def bounds_in(entries: Sequence[ColdSlice], parsed: Sequence[Slice]) -> list[int]:
    """Return the first records of the entries that cannot be in one slice with those before."""
    bounds: list[int] = []
    begin = entries[0].record
    for at in range(1, len(entries)):
        cold = entries[at]
        if (
            parsed[at].encoding != parsed[at - 1].encoding
            or cold.record + cold.records - begin > RECORDS_MAX
            or cold.record != entries[at - 1].record + entries[at - 1].records
            or cold.byte != entries[at - 1].byte + entries[at - 1].length
        ):
            bounds.append(cold.record)
            begin = cold.record
    return bounds
