"""The end of a transaction on a stream: committed readers go on behind its records, or do not see
them."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from polynya.stream.features.subscriptions.links import note_append
from polynya.stream.parts import ABORTED, CONTROL, TRANSACTIONAL, UNDECIDED
from polynya.stream.state import index
from polynya.stream.state.aborted import ROW, without_settled
from polynya.stream.state.effects import TailMoved
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import is_stable, stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_KAFKA = 1  # the kind of its producers
_RECORD = attrgetter("record")


def end_transaction(
    machine: Machine, stream: Stream, producer: int, *, commit: bool = True, marked: bool = False
) -> None:
    """Close a producer's open transaction, whose marker is the newest batch; `marked`: it has none,
    and its batches have their marks. If the last stable end moves, subscriptions and live readers are
    told, as after an append."""
    assert stream.kafka is not None
    before = stable_of(stream)
    opened = stream.kafka.open.pop(producer)
    if not stream.kafka.open:
        machine.directory.undecided.pop(stream.uid, None)
    if not commit and not marked:
        _abort(stream, producer, opened.record)
    machine.changes.streams.add(stream.uid)
    after = stable_of(stream)
    if after == before:  # an older transaction is open
        return
    if stream.links is not None:
        note_append(machine.subscriptions, stream)
    if stream.uid in machine.tails.watched:
        closed = stream.closed and is_stable(stream)
        first = stream.first_record
        machine.tails.effects.append(
            TailMoved(stream.uid, *before, *after, closed=closed, first_record=first)
        )


def forget_aborted(stream: Stream, begin: int, end: int) -> None:
    """Drop the rows of aborted transactions with records from `begin` to before `end` that no reader
    needs any more: no batch of them is in memory, or in a slice that was built too early to have its
    mark. Call this when the index has changed there."""
    kafka = stream.kafka
    if kafka is None or not kafka.aborted:
        return
    hot = stream.hot[0].record if stream.hot else stream.next_record
    past = None if stream.extras is None else stream.extras.past

    def is_needed(first: int, marker: int) -> bool:
        return marker >= hot or bool(
            (
                index.flags_between(stream.cold, first, marker + 1)
                | index.flags_between(past, first, marker + 1)
            )
            & UNDECIDED
        )

    kafka.aborted = without_settled(kafka.aborted, (begin, end), is_needed)


def _abort(stream: Stream, producer: int, first: int) -> None:
    """Mark the batches of an aborted transaction that are in memory. The others have a row, and so
    have these while a slice may be built of them that has no marks."""
    assert stream.kafka is not None
    origin = (str(producer), _KAFKA)
    hot = stream.hot or []
    for batch in hot[bisect_left(hot, first, key=_RECORD) :]:
        of = batch.producer
        if batch.flags & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL and (
            of is not None and (of[0], of[-1]) == origin
        ):
            batch.flags |= ABORTED
    marker = stream.next_record - 1
    stream.kafka.aborted += ROW.pack(producer, first, marker, stable_of(stream)[0])
