"""The readers: Kafka's client with read_committed, readers of rows, forks and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transaction_model.state import ABORT, Batch, Entry, Row, Stream
from transaction_model.storage import is_aborted

Span = tuple[list[Batch], bool]  # batches, and whether they are aborted
Record = tuple[int, str]
Aborted = tuple[int, int]  # a producer, and its first aborted batch in the answer


def spans(entry: Entry, rows: Sequence[Row]) -> list[Span]:
    """Join batches of equal flags; those of transactions only of one producer. A span is judged
    once."""
    found: list[Span] = []
    for batch in entry.batches:
        if found and is_joined(found[-1][0][-1], batch):
            found[-1][0].append(batch)
        else:
            found.append(([batch], is_aborted(batch, entry, rows)))
    return found


def is_joined(one: Batch, other: Batch) -> bool:
    alike = (one.transactional, one.control, one.aborted) == (
        other.transactional,
        other.control,
        other.aborted,
    )
    return alike and (not one.transactional or one.pid == other.pid)


def raw(stream: Stream, begin: int, end: int) -> list[Span]:
    """Return what is in the log from `begin` to before `end`, batches whole."""
    found = []
    for entry in stream.entries:
        if entry.end > begin and entry.begin < end:
            for batches, aborted in spans(entry, stream.rows):
                inside = [batch for batch in batches if batch.last >= begin and batch.base < end]
                if inside:
                    found.append((inside, aborted))
    return found


def fetched(stream: Stream, begin: int, batches_max: int) -> tuple[list[Batch], list[Aborted], int]:
    """Return the batches of a Fetch with read_committed, their aborted list, and the next offset."""
    answer: list[tuple[Batch, bool]] = []
    for batches, aborted in raw(stream, begin, stream.stable_end):
        answer += [(batch, aborted) for batch in batches]
    answer = answer[:batches_max]
    end = answer[-1][0].last + 1 if len(answer) == batches_max else stream.stable_end
    return [batch for batch, _ in answer], aborted_list(answer), max(end, begin)


def reached(stream: Stream) -> int:
    """Return how far a consumer comes: its position is behind the last batch that it got. Where a
    restore or an eviction left a gap at the end, a Fetch closes it with an empty batch."""
    batches, _, _ = fetched(stream, 0, 10**9)
    return batches[-1].last + 1 if batches else 0


def aborted_list(answer: Iterable[tuple[Batch, bool]]) -> list[Aborted]:
    """List an entry for each aborted transaction of which a batch is in the answer."""
    found, running = [], set()
    for batch, aborted in answer:
        if batch.control:
            running.discard(batch.pid)
        elif aborted and batch.pid not in running:
            found.append((batch.pid, batch.base))
            running.add(batch.pid)
    return found


def client_filter(batches: Iterable[Batch], aborted: Sequence[Aborted]) -> list[Record]:
    """Filter as Kafka's Java client: a producer in the list is dropped until its abort marker."""
    waiting, dropped, kept = sorted(aborted, key=lambda pair: pair[1]), set(), []
    for batch in batches:
        while waiting and waiting[0][1] <= batch.last:
            dropped.add(waiting.pop(0)[0])
        if batch.control:
            if batch.control == ABORT:
                dropped.discard(batch.pid)
        elif not (batch.transactional and batch.pid in dropped):
            kept += [(offset, value) for offset, _, value in batch.records]
    return kept


def rows(stream: Stream, begin: int, end: int) -> list[Record]:
    """Return the committed records of a page: neither control nor aborted batches."""
    kept: list[Record] = []
    for entry in stream.entries:
        if entry.end > begin and entry.begin < end:
            read = hot_rows if entry.hot else pack_rows
            kept += read(entry, stream.rows)
    return [pair for pair in kept if begin <= pair[0] < end]


def hot_rows(entry: Entry, aborted: Sequence[Row]) -> list[Record]:
    return unfiltered(span for span in spans(entry, aborted) if not span[1])


def pack_rows(entry: Entry, aborted: Sequence[Row]) -> list[Record]:
    return unfiltered(span for span in spans(entry, aborted) if not span[1])


def inherited_rows(stream: Stream, point: int) -> list[Record]:
    """Return what a fork inherits: filtered by the source's rows."""
    kept: list[Record] = []
    for entry in stream.entries:
        if entry.begin < point:
            found = spans(entry, stream.rows)
            kept += unfiltered(span for span in found if not span[1])
    return [pair for pair in kept if pair[0] < point]


def unfiltered(found: Iterable[Span]) -> list[Record]:
    return [
        (offset, value)
        for batches, _ in found
        for batch in batches
        if not batch.control
        for offset, _, value in batch.records
    ]


@dataclass(slots=True, frozen=True)
class Claim:
    """A range of a table's job. The plan has the rows, as entries of it may be undecided."""

    begin: int
    end: int
    entries: tuple[Entry, ...]
    rows: tuple[Row, ...]


def claim(stream: Stream, begin: int) -> Claim:
    """Claim packs from `begin` on, up to the first that the stable end is in."""
    end, entries = begin, []
    for entry in stream.entries:
        if entry.end <= begin:
            continue
        if entry.hot or entry.end > stream.stable_end:
            break
        entries.append(entry)
        end = entry.end
    return Claim(begin, end, tuple(entries), tuple(stream.rows))


def table_rows(claimed: Claim) -> list[Record]:
    kept: list[Record] = []
    for entry in claimed.entries:
        kept += unfiltered(span for span in spans(entry, claimed.rows) if not span[1])
    return [pair for pair in kept if claimed.begin <= pair[0]]
