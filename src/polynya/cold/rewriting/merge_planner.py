"""Choose the neighbours in an index that become one slice, or one page. Pure: lengths and bounds in, runs out.

An index is cut from its beginning into lines. A line holds as many neighbours as one slice can. A
line that the next slice does not fit into is closed: it becomes one slice, once. Only the last line
still grows. Its newest slices are merged when there are at least `FAN_IN` of them and the result is
at least `GROWTH` times the largest. So a byte is rewritten at most once per factor of `GROWTH`, and
once more when its line is closed. Slices of 16 KiB grow to 4 MiB in at most three rewrites, usually
two. The bounds of tables' claims cut an index into segments with lines of their own. When a bound
disappears, the lines after it may shift and are rewritten once more.

The result has at most `OPEN_ENTRIES_MAX` entries in the last line of each segment, and fewer than
`LINE_ENTRIES_MIN` in every other line.

The entries of a long index become pages. Those of a page are never merged again, so only closed lines
are chosen. The packs of a page are to be its own: so no pack is shared between it and the entry
behind it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

import msgspec

from polynya.cold.planner import SLICES_MAX
from polynya.cold.settings import MergeSettings
from polynya.stream.parts import PAGED, UNDECIDED
from polynya.stream.state import entries as form
from polynya.stream.state import index
from polynya.stream.state.entries import ENTRY, ENTRY_BYTES, SPAN_MS_MAX

FAN_IN = 16  # entries that make a merge worth a request and a place in a pack
GROWTH = 8
OPEN_ENTRIES_MAX = 48  # regardless of size; a longer line is merged as a whole
LINE_ENTRIES_MIN = 4  # of a closed line; merging slices that are nearly full saves too little
SOURCES_MAX = 4096  # maximum number of slices read for one pack
PAGE_FULL_SHARE = 16  # a page that nothing more fits into has at least this part of the entries
_U32_MAX = 2**32 - 1

Segment = tuple[int, int]  # entry numbers: first, end (exclusive)


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


def next_page(
    entries: bytes, bounds: Container[int], *, slice_bytes_max: int, count_max: int
) -> tuple[Segment | None, int]:
    """Return the first range of these entries that may become a page, or None; and the number of
    the entry at which to look for the next one. `bounds`: records that must stay the first of an
    entry."""
    rows = list(ENTRY.iter_unpack(entries))
    begin = 0
    while begin < len(rows) and not _fits(rows[begin]):
        begin += 1
    records = length = end = resume = 0
    first_ms, last_ms, full = 2**63, 0, False
    for end in range(begin, len(rows)):
        row = rows[end]
        records, length = records + row[3], length + row[4]
        first_ms, last_ms = min(first_ms, row[2] - row[9]), max(last_ms, row[2])
        if records > _U32_MAX or length > _U32_MAX or last_ms - first_ms > SPAN_MS_MAX:
            full = True
            break
        joins = end == begin or _follows(rows[end - 1], row, bounds)
        if end == begin + count_max or not _fits(row) or not joins:
            break
    else:
        end = len(rows)
        resume = begin  # more of the run may be behind these entries
    resume = resume or max(end, begin + 1)
    behind = end + (full or end == begin + count_max)  # whether the last line is closed
    lengths = index.lengths(entries[begin * ENTRY_BYTES : behind * ENTRY_BYTES])
    _, settled = plan_runs(lengths, [(0, len(lengths))], slice_bytes_max)
    chosen = min(begin + settled, end)
    while chosen > begin and chosen < len(rows) and 0 < rows[chosen - 1][5] == rows[chosen][5]:
        chosen -= 1
    spare = max(count_max // PAGE_FULL_SHARE, LINE_ENTRIES_MIN)
    least = (
        max(2, count_max // PAGE_FULL_SHARE, 3 * (end - begin) // 4) if full else count_max - spare
    )
    if chosen - begin < max(2, least):
        return None, resume
    return (begin, chosen), chosen


def _fits(row: tuple[int, ...]) -> bool:
    """Report whether an entry may be in a page: readers do not look for rows of its batches."""
    return row[-2] not in (PAGED, form.UNKNOWN) and not row[-1] & UNDECIDED


def _follows(before: tuple[int, ...], row: tuple[int, ...], bounds: Container[int]) -> bool:
    """Report whether an entry may be in one page with the one before it."""
    touches = (before[0] + before[3], before[1] + before[4]) == (row[0], row[1])
    return touches and row[0] not in bounds
