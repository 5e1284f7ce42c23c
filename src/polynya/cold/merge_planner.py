"""Which neighbours in an index become one slice. Pure: lengths and bounds in, runs out.

An index is cut, from its beginning, into lines: as many neighbours as one slice can hold. A line that the next slice does not fit into
is closed: it becomes one slice, once and for all. Only the last line is still growing; there the newest slices are merged when there
are `FAN_IN` of them and the result is `GROWTH` times as large as the largest of them. So a byte is written again once for every
factor of `GROWTH` at most, and once more when its line is closed: slices of 16 KiB are on their way to 4 MiB at most three times,
twice as a rule. The bounds of tables' claims cut an index into segments with lines of their own; where a bound goes away, the lines
behind it may move, and are written once more.

What is left: at most `OPEN_ENTRIES_MAX` entries in the last line of each segment, and fewer than `LINE_ENTRIES_MIN` in every other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

import msgspec

from polynya.base import limits
from polynya.cold.planner import SLICES_MAX

FAN_IN = 16  # entries, from which on a merge is worth a request and a place in a pack
GROWTH = 8
OPEN_ENTRIES_MAX = 48  # whatever their sizes: beyond it a line is merged as a whole
LINE_ENTRIES_MIN = 4  # of a closed line: merging slices that are nearly full saves nothing worth writing them again
SOURCES_MAX = 4096  # slices read for one pack

Segment = tuple[int, int]  # numbers of entries: from, to before


class MergeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a core merges."""

    slice_bytes_max: int = limits.SLICE_BYTES_MAX  # payload of a merged slice
    pack_bytes_max: int = limits.FLUSH_BYTES  # payload of a pack of merged slices: what is held in memory
    bytes_per_second: int = limits.MERGE_BYTES_PER_SECOND
    interval_ms: int = limits.MERGE_INTERVAL_MS  # between two looks at the indexes; 0: never
    claim_rest_ms: int = 3_600_000  # the driver of a table's job reads the slices it was told of: so long they stay


class MergeRun(msgspec.Struct, frozen=True, gc=False):
    """Neighbours of one stream that are to become one slice."""

    group: int
    uid: int
    record: int  # the first
    end: int  # the record behind the last
    entries: int
    size: int  # bytes of payload

    @property
    def worth(self) -> float:
        """Entries saved for a byte that is written."""
        return (self.entries - 1) / self.size


def plan_runs(lengths: Sequence[int], segments: Iterable[Segment], bytes_max: int) -> tuple[list[Segment], int]:
    """The runs of entries to be merged now, and how many of the first entries need not be looked at again: they lie in closed lines.
    `segments` are those that may be touched, in order."""
    runs = []
    settled = 0
    for begin, end in segments:
        for first, behind in _lines(lengths, begin, end, bytes_max):
            if behind == end:
                found = _grown(lengths, first, behind)
            elif behind - first >= LINE_ENTRIES_MIN:
                found = first
            else:
                found = None
                settled = behind if settled == first else settled
            if found is not None:
                runs.append((found, behind))
    return runs, settled


def _lines(lengths: Sequence[int], begin: int, end: int, bytes_max: int) -> Iterator[Segment]:
    size = 0
    for at in range(begin, end):
        if size + lengths[at] > bytes_max and at > begin:
            yield begin, at
            begin, size = at, 0
        size += lengths[at]
    if begin < end:
        yield begin, end


def _grown(lengths: Sequence[int], begin: int, end: int) -> int | None:
    """Where the longest run begins that ends the open line and is worth it."""
    if end - begin < FAN_IN:
        return None
    backwards = lengths[begin:end][::-1]
    sums, largest = list(accumulate(backwards)), list(accumulate(backwards, max))
    for count in range(end - begin, FAN_IN - 1, -1):
        if sums[count - 1] >= GROWTH * largest[count - 1]:
            return end - count
    return begin if end - begin > OPEN_ENTRIES_MAX else None


def cut_segments(count: int, bounds: Iterable[int], resting: Sequence[Segment] = ()) -> list[Segment]:
    """The segments of so many entries: `bounds` are numbers of entries that must stay the first of a slice; what lies in a resting
    segment is left out. Numbers may lie outside."""
    every = sorted({0, count} | {bound for bound in (*bounds, *chain(*resting)) if 0 < bound < count})
    return [
        (begin, end)
        for begin, end in pairwise(every)
        if not any(rest_begin <= begin and end <= rest_end for rest_begin, rest_end in resting)
    ]


def plan_packs(runs: Iterable[MergeRun], settings: MergeSettings) -> list[list[MergeRun]]:
    """The runs of each pack. Neighbours come together: few groups then hold a pack, and few requests read what is merged."""
    packs: list[list[MergeRun]] = []
    size = entries = 0
    for run in sorted(runs, key=lambda run: (run.group, run.uid, run.record)):
        size, entries = size + run.size, entries + run.entries
        if not packs or size > settings.pack_bytes_max or entries > SOURCES_MAX or len(packs[-1]) == SLICES_MAX:
            packs.append([])
            size, entries = run.size, run.entries
        packs[-1].append(run)
    return packs
