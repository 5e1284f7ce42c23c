"""Choose the neighbours in an index that become one slice. Pure: lengths and bounds in, runs out.

An index is cut from its beginning into lines. A line holds as many neighbours as one slice can. A
line that the next slice does not fit into is closed: it becomes one slice, once. Only the last line
still grows. Its newest slices are merged when there are at least `FAN_IN` of them and the result is
at least `GROWTH` times the largest. So a byte is rewritten at most once per factor of `GROWTH`, and
once more when its line is closed. Slices of 16 KiB grow to 4 MiB in at most three rewrites, usually
two. The bounds of tables' claims cut an index into segments with lines of their own. When a bound
disappears, the lines after it may shift and are rewritten once more.

The result has at most `OPEN_ENTRIES_MAX` entries in the last line of each segment, and fewer than
`LINE_ENTRIES_MIN` in every other line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

import msgspec

from polynya.base import limits
from polynya.cold.planner import SLICES_MAX
from polynya.cold.sparse_packs import PACKS_SPARE

FAN_IN = 16  # entries that make a merge worth a request and a place in a pack
GROWTH = 8
OPEN_ENTRIES_MAX = 48  # regardless of size; a longer line is merged as a whole
LINE_ENTRIES_MIN = 4  # of a closed line; merging slices that are nearly full saves too little
SOURCES_MAX = 4096  # maximum number of slices read for one pack

Segment = tuple[int, int]  # entry numbers: first, end (exclusive)


class MergeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for how a core merges."""

    slice_bytes_max: int = limits.SLICE_BYTES_MAX  # payload of a merged slice
    # payload of a pack of merged slices, which is held in memory
    pack_bytes_max: int = limits.FLUSH_BYTES
    bytes_per_second: int = limits.MERGE_BYTES_PER_SECOND
    interval_ms: int = limits.MERGE_INTERVAL_MS  # between two scans of the indexes; 0: never
    # packs beyond those that the bytes fill, before small ones are emptied into larger ones
    packs_spare: int = PACKS_SPARE
    page_entries: int = limits.PAGE_ENTRIES  # of an index in one page; 0: no pages are written
    # slices given to the driver of a table's job stay unmerged for this time
    claim_rest_ms: int = 3_600_000


class MergeRun(msgspec.Struct, frozen=True, gc=False):
    """Neighbouring slices of one stream that are to become one slice."""

    group: int
    uid: int
    record: int  # first record
    end: int  # record after the last
    entries: int
    size: int  # bytes of payload

    @property
    def worth(self) -> float:
        """Entries saved per byte written."""
        return (self.entries - 1) / self.size


def plan_runs(
    lengths: Sequence[int], segments: Iterable[Segment], bytes_max: int
) -> tuple[list[Segment], int]:
    """Return the runs of entries to merge now, and the number of leading entries that need no
    further scan.

    Those entries lie in closed lines. `segments` are the segments that may be merged, in order.
    """
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
    """Return the start of the longest run at the end of the open line that is worth merging."""
    if end - begin < FAN_IN:
        return None
    backwards = lengths[begin:end][::-1]
    sums, largest = list(accumulate(backwards)), list(accumulate(backwards, max))
    for count in range(end - begin, FAN_IN - 1, -1):
        if sums[count - 1] >= GROWTH * largest[count - 1]:
            return end - count
    return begin if end - begin > OPEN_ENTRIES_MAX else None


def cut_segments(
    count: int, bounds: Iterable[int], resting: Sequence[Segment] = ()
) -> list[Segment]:
    """Return the segments of `count` entries.

    `bounds` are entries that must stay the first of a slice. Segments inside `resting` are left
    out. Numbers may lie outside the range.
    """
    every = sorted(
        {0, count} | {bound for bound in (*bounds, *chain(*resting)) if 0 < bound < count}
    )
    return [
        (begin, end)
        for begin, end in pairwise(every)
        if not any(rest_begin <= begin and end <= rest_end for rest_begin, rest_end in resting)
    ]


def plan_packs(runs: Iterable[MergeRun], settings: MergeSettings) -> list[list[MergeRun]]:
    """Group runs into packs. Neighbours share a pack, so few groups hold it and few requests read
    its sources."""
    packs: list[list[MergeRun]] = []
    size = entries = 0
    for run in sorted(runs, key=lambda run: (run.group, run.uid, run.record)):
        size, entries = size + run.size, entries + run.entries
        if (
            not packs
            or size > settings.pack_bytes_max
            or entries > SOURCES_MAX
            or len(packs[-1]) == SLICES_MAX
        ):
            packs.append([])
            size, entries = run.size, run.entries
        packs[-1].append(run)
    return packs
