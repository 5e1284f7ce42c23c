"""Appends of a transaction over several groups that are not decided yet: batches of streams that are
no partitions of Kafka. Such a batch lies in memory at the record at which its transaction opened. It
is marked there when the transaction ends, so no slice may have it before.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from polynya.stream.features.appends import producers
from polynya.stream.features.appends.transactions import end_transaction
from polynya.stream.parts import ABORTED, TRANSACTIONAL, Encoding, Producer
from polynya.stream.state.model import HotBatch, OpenTransaction, Stream
from polynya.stream.state.tails import Boundary, high_watermark

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_RECORD = attrgetter("record")


def undecided_batch(stream: Stream, opened: OpenTransaction) -> HotBatch | None:
    """Return the batch of an open transaction, or None: it has batches of Kafka, or none yet."""
    hot = stream.hot or []
    at = bisect_left(hot, opened.record, key=_RECORD)
    if at == len(hot):
        return None
    batch = hot[at]
    is_it = (
        batch.record == opened.record
        and batch.encoding != Encoding.KAFKA
        and batch.flags & TRANSACTIONAL
    )
    return batch if is_it else None


def decided_end(stream: Stream) -> Boundary:
    """Return the end of the records that slices may have: also an adopted partition has such
    batches, beside those of Kafka."""
    for opened in () if stream.kafka is None else stream.kafka.open.values():
        if undecided_batch(stream, opened) is not None:
            return opened.record, opened.byte
    return high_watermark(stream)


def is_awaited(stream: Stream, producer: Producer) -> bool:
    """Report whether an append of this producer is not decided yet. Its next one waits: it may be
    a repeat, or have to follow it."""
    kafka = stream.kafka
    if kafka is None or not kafka.open or producer.kind:
        return False
    batches = (undecided_batch(stream, opened) for opened in kafka.open.values())
    return any(
        batch is not None and batch.producer is not None and batch.producer[0] == producer.id
        for batch in batches
    )


def end_append(machine: Machine, stream: Stream, producer: int, *, commit: bool) -> bool:
    """End a transaction that has a batch of this kind, and report whether it had one. There is no
    marker in the stream. Aborted records keep their numbers, and no reader gets them; the append's
    own producer may send its sequence again."""
    assert stream.kafka is not None
    batch = undecided_batch(stream, stream.kafka.open[producer])
    if batch is None:
        return False
    batch.flags = 0 if commit else ABORTED
    if not commit:
        _forget_sequence(stream, batch)
    end_transaction(machine, stream, producer, marked=True)
    return True


def _forget_sequence(stream: Stream, batch: HotBatch) -> None:
    """Take an aborted append from the state of its producer, which stays fenced by its epoch."""
    if batch.producer is None or stream.producers is None:
        return
    key = batch.producer[0]
    state = stream.producers.get(key)
    if state is not None:
        stream.producers[key] = producers.without_newest(state, batch.record)
