"""The end of a transaction on a stream: committed readers go on behind its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.stream.features.subscriptions.links import note_append
from polynya.stream.state.effects import TailMoved
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import is_stable, stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


def end_transaction(machine: Machine, stream: Stream, producer: int) -> None:
    """Close a producer's open transaction. If the last stable end moves, subscriptions and live
    readers are told, as after an append."""
    assert stream.kafka is not None
    before = stable_of(stream)
    del stream.kafka.open[producer]
    machine.changes.streams.add(stream.uid)
    after = stable_of(stream)
    if after == before:  # an older transaction is open
        return
    if stream.links is not None:
        note_append(machine.subscriptions, stream)
    if stream.uid in machine.tails.watched:
        closed = stream.closed and is_stable(stream)
        machine.tails.effects.append(TailMoved(stream.uid, *before, *after, closed=closed))
