"""The aborted transactions of an answer to a consumer that reads committed records.

A client drops the batches of a producer from the first record that is named here to the control
batch that ends the transaction. So the list has an entry for each transaction with a batch in the
answer, and only for these: a later transaction of the producer may be committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from polynya.stream.parts import ABORTED, CONTROL, PRODUCER_ID
from polynya.wire.kafka.generated.fetch import AbortedTransaction


class Span(Protocol):
    """One batch of an answer, or joined ones of one transaction."""

    record: int
    payload: bytes
    flags: int


def aborted_in(spans: Iterable[Span]) -> list[AbortedTransaction] | None:
    """Return the aborted transactions of the spans, in the order of their first batches there; None
    if there are none."""
    found: list[AbortedTransaction] = []
    open_: set[int] = set()
    for span in spans:
        if span.flags & (ABORTED | CONTROL):
            producer = int.from_bytes(span.payload[PRODUCER_ID], signed=True)
            if span.flags & CONTROL:
                open_.discard(producer)
            elif producer not in open_:
                open_.add(producer)
                found.append(AbortedTransaction(producer, span.record))
    return found or None
