"""The storage of batches: packs, merges, decisions, pages, evictions. Each has a plan, made from
the state of some time, and a command that comes later and is judged by the state of then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from random import Random

from transaction_model.participant import drop_rows, mark_of
from transaction_model.state import (
    ABORTED,
    UNDECIDED,
    Batch,
    Code,
    Entry,
    Evict,
    GroupState,
    ReplaceSlices,
    Reply,
    Row,
    Stream,
)


def is_row_over(batch: Batch, rows: Iterable[Row]) -> bool:
    return any(row.pid == batch.pid and row.first <= batch.base < row.marker for row in rows)


def is_aborted(batch: Batch, entry: Entry, rows: Iterable[Row]) -> bool:
    """Report whether the batch is aborted: rows count for undecided entries alone."""
    if batch.control or not batch.transactional:
        return False
    return batch.aborted or (bool(entry.flags & UNDECIDED) and is_row_over(batch, rows))


def decided(entry: Entry, rows: Sequence[Row]) -> tuple[Batch, ...]:
    """Return the batches of an entry below the stable end, each with its flag."""
    return tuple(
        replace(batch, aborted=True) if is_aborted(batch, entry, rows) else batch
        for batch in entry.batches
    )


def flags_of(batches: Iterable[Batch]) -> int:
    return ABORTED if any(batch.aborted for batch in batches) else 0


def flush_plan(stream: Stream, beyond: bool) -> ReplaceSlices | None:
    """Build a slice of the hot batches: up to the stable end, or beyond it when they must go."""
    stable = stream.stable_end
    hot = []
    for entry in stream.entries:
        if entry.hot and (beyond or entry.end <= stable):
            hot.append(entry)
        elif hot:
            break
    if not hot:
        return None
    batches = tuple(batch for entry in hot for batch in entry.batches)
    undecided = any(batch.transactional and batch.last >= stable for batch in batches)
    flags = flags_of(batches) | (UNDECIDED if undecided else 0)
    new = Entry(0, batches, flags=flags)
    return ReplaceSlices(stream.uid, tuple(entry.id for entry in hot), (new,))


def merge_plan(stream: Stream, random: Random) -> ReplaceSlices | None:
    """Merge neighbours below the stable end: all is decided there. Markers become batches."""
    bound = merge_bound(stream)
    runs: list[list[Entry]] = [[]]
    for entry in stream.entries:
        if not entry.hot and entry.end <= bound and len(runs[-1]) < 6:
            runs[-1].append(entry)
        else:
            runs.append([])
    runs = [run for run in runs if len(run) > 1]
    if not runs:
        return None
    run = random.choice(runs)
    kept = [entry for entry in run if is_merged(entry)]
    batches = tuple(batch for entry in kept for batch in decided(entry, stream.rows))
    new = (Entry(0, batches, flags=flags_of(batches)),) if batches else ()
    return ReplaceSlices(stream.uid, tuple(entry.id for entry in run), new)


def merge_bound(stream: Stream) -> int:
    return stream.stable_end


def is_merged(entry: Entry) -> bool:
    return True


def decide_plan(stream: Stream) -> ReplaceSlices | None:
    """Take flag 8 off the first undecided entry: as it is if all is committed, else rewritten."""
    for entry in stream.entries:
        if entry.flags & UNDECIDED and entry.end <= stream.stable_end:
            batches = decided(entry, stream.rows)
            new = replace(entry, batches=batches, flags=flags_of(batches))
            return ReplaceSlices(stream.uid, (entry.id,), (new,))
    return None


def page_plan(stream: Stream) -> ReplaceSlices | None:
    """Move decided entries from the index into a page."""
    old = [entry for entry in stream.entries if is_pageable(entry)][:4]
    if not old or any(
        b.id != a.id and stream.entries.index(b) != stream.entries.index(a) + 1
        for a, b in pairwise(old)
    ):
        return None
    new = tuple(paged(entry) for entry in old if is_in_page(entry))
    return ReplaceSlices(stream.uid, tuple(entry.id for entry in old), new)


def is_pageable(entry: Entry) -> bool:
    return not (entry.hot or entry.paged or entry.flags & UNDECIDED)


def is_in_page(entry: Entry) -> bool:
    return True


def paged(entry: Entry) -> Entry:
    return replace(entry, paged=True)


def apply_replace(state: GroupState, command: ReplaceSlices, now_ms: int) -> Reply:
    """Put the new entries in the place of the old ones, if these are all there."""
    stream = state.streams.get(command.uid)
    if stream is None:
        return Reply(Code.INCARNATION)
    ids = [entry.id for entry in stream.entries]
    old = command.old
    if command.shortened and is_pinned(stream, old[0]):
        return Reply(Code.CHANGED)
    if not old or old[0] not in ids or ids[(at := ids.index(old[0])) :][: len(old)] != [*old]:
        return Reply(Code.CHANGED)
    new = []
    for entry in command.new:
        new.append(replace(entry, id=state.next_entry))
        state.next_entry += 1
    stream.entries[at : at + len(old)] = new
    drop_rows(stream)
    return Reply(Code.OK)


def is_pinned(stream: Stream, entry: int) -> bool:
    pinned = max(stream.pins, default=0)
    return any(each.id == entry and each.begin < pinned for each in stream.entries)


def evict_plan(stream: Stream) -> Evict | None:
    """Copy an idle stream to the store. The command is refused if its state has changed."""
    if stream.open or any(entry.hot for entry in stream.entries):
        return None
    return Evict(stream.uid, mark_of(stream), copied(stream))


def copied(stream: Stream) -> Stream:
    made = copy(stream)
    made.entries, made.rows = [*stream.entries], [*stream.rows]
    made.producers, made.open = dict(stream.producers), dict(stream.open)
    made.ended = dict(stream.ended)
    return made
