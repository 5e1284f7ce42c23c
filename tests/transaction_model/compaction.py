"""Compaction: a pass keeps the last committed record of each key. Each of its slices may be refused;
only a pass of which all were taken, and that no fork held up, raises `cleaned`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from transaction_model.state import (
    ABORT,
    ABORTED,
    COMMIT,
    UNDECIDED,
    Batch,
    Cleaned,
    Code,
    Entry,
    GroupState,
    ReplaceSlices,
    Reply,
    Stream,
)

DELETED = "~"  # a value with this end deletes its key


@dataclass(slots=True, frozen=True)
class Pass:
    """A plan: its slices, the end of what it compared, and `cleaned` when it began."""

    slices: tuple[ReplaceSlices, ...]
    end: int
    began: int
    pinned: int


def plan(stream: Stream) -> Pass | None:
    entries = []
    for entry in stream.entries:
        if entry.hot or entry.flags & UNDECIDED or entry.end > stream.stable_end:
            break
        entries.append(entry)
    if not entries:
        return None
    pinned = max(stream.pins, default=0)
    made = Pass((), entries[-1].end, stream.cleaned, pinned)
    newest = newest_of(entries, stream.cleaned)
    slices = []
    for entry in entries:
        if entry.begin >= pinned:
            kept = [
                rewritten
                for batch in entry.batches
                if (rewritten := shortened(batch, newest, made)) is not None
            ]
            if is_last(entry, entries) and (not kept or kept[-1].last != entry.end - 1):
                kept.append(entry.batches[-1])
            if tuple(kept) != entry.batches:
                flags = ABORTED if any(batch.aborted for batch in kept) else 0
                new = (replace(entry, batches=tuple(kept), flags=flags, inline=False),)
                slices.append(
                    ReplaceSlices(stream.uid, (entry.id,), new if kept else (), shortened=True)
                )
    return replace(made, slices=tuple(slices))


def is_last(entry: Entry, entries: list[Entry]) -> bool:
    """The last batch below the limit stays, so that a consumer reaches the end."""
    return entry is entries[-1]


def newest_of(entries: list[Entry], begin: int) -> dict[str, int]:
    """Map each key to its newest committed record from `begin` on."""
    return {
        key: offset
        for entry in entries
        for batch in entry.batches
        if is_mapped(batch)
        for offset, key, _ in batch.records
        if key and offset >= begin
    }


def is_mapped(batch: Batch) -> bool:
    return not batch.control and not batch.aborted


def shortened(batch: Batch, newest: dict[str, int], made: Pass) -> Batch | None:
    """Return what stays of a batch."""
    if batch.control:
        return None if is_marker_dropped(batch, made) else batch
    if batch.aborted:
        return None
    records = tuple(
        record
        for record in batch.records
        if newest.get(record[1], record[0]) <= record[0] and not is_dropped(record, made)
    )
    return replace(batch, records=records) if records else None


def is_marker_dropped(batch: Batch, made: Pass) -> bool:
    """An abort marker goes in a later pass than its data, and never above what a fork holds."""
    if batch.control == COMMIT:
        return True
    assert batch.control == ABORT
    return batch.base < made.began and not made.pinned


def is_dropped(record: tuple[int, str, str], made: Pass) -> bool:
    """A tombstone goes in a later pass than what it deletes, and never above what a fork holds."""
    return record[2].endswith(DELETED) and record[0] < made.began and not made.pinned


def apply_cleaned(state: GroupState, command: Cleaned, now_ms: int) -> Reply:
    stream = state.streams.get(command.uid)
    if stream is None or stream.cleaned != command.began or stream.pins:
        return Reply(Code.CHANGED)
    stream.cleaned = command.cleaned
    return Reply(Code.OK)


def is_complete(replies: list[Reply | None], made: Pass) -> bool:
    taken = all(reply is not None and reply.code is Code.OK for reply in replies)
    return taken and not made.pinned
