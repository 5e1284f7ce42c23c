"""Choose the entries of a long index that become a page. Pure: entries and bounds in, ranges out.

Entries of a page are never merged again, so only closed lines are chosen (`merge_planner`). The packs of
a page are to be its own: so no pack is shared between it and the entry behind it."""

from __future__ import annotations

from collections.abc import Container

from polynya.cold.merge_planner import LINE_ENTRIES_MIN, plan_runs
from polynya.stream.parts import PAGED
from polynya.stream.state import entries as form
from polynya.stream.state import index
from polynya.stream.state.entries import ENTRY, ENTRY_BYTES, SPAN_MS_MAX

FULL_SHARE = 16  # a page that nothing more fits into has at least this part of the entries
_U32_MAX = 2**32 - 1

Range = tuple[int, int]  # entry numbers: first, end (exclusive)


def next_page(
    entries: bytes, bounds: Container[int], *, slice_bytes_max: int, count_max: int
) -> tuple[Range | None, int]:
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
    while chosen > begin and chosen < len(rows) and rows[chosen - 1][5] == rows[chosen][5]:
        chosen -= 1
    spare = max(count_max // FULL_SHARE, LINE_ENTRIES_MIN)
    least = max(2, count_max // FULL_SHARE, 3 * (end - begin) // 4) if full else count_max - spare
    if chosen - begin < max(2, least):
        return None, resume
    return (begin, chosen), chosen


def _fits(row: tuple[int, ...]) -> bool:
    return row[-2] not in (PAGED, form.UNKNOWN)


def _follows(before: tuple[int, ...], row: tuple[int, ...], bounds: Container[int]) -> bool:
    """Report whether an entry may be in one page with the one before it."""
    touches = (before[0] + before[3], before[1] + before[4]) == (row[0], row[1])
    return touches and row[0] not in bounds
