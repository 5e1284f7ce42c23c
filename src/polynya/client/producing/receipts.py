"""The outcome of a producer's records: the completed batches, the counts and the failure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from polynya.client.errors import ClientError, Outcome, ProducerFailed
from polynya.client.producing.batches import Batch
from polynya.client.values import Appended


class Settled(msgspec.Struct, frozen=True):
    """A completed batch: its receipt, and the result or error for it."""

    receipt: object
    result: Appended | ProducerFailed


class Receipts:
    """`settled` collects completed batches until the client takes them. `applied`, `refused` and
    `unknown` count records; `offset` is after the last applied batch."""

    def __init__(self) -> None:
        self.settled: list[Settled] = []
        self.failure: ProducerFailed | None = None
        self.applied = 0
        self.refused = 0
        self.unknown = 0
        self.offset = ""

    def take(self) -> list[Settled]:
        """Return the batches completed since the last call."""
        settled, self.settled = self.settled, []
        return settled

    def apply(self, batches: Sequence[Batch], receipt: Appended) -> None:
        """Complete batches that are stored."""
        self.offset = max(self.offset, receipt.offset)
        for batch in batches:
            self.applied += len(batch.records)
            self.settled.append(Settled(batch.receipt, receipt))

    def fail(self, batches: Sequence[Batch], cause: ClientError) -> None:
        """Complete all remaining batches with errors.

        The first ones are unknown if an attempt may have been applied. None is applied after one
        that certainly was not."""
        unknown = tuple(itertools.takewhile(lambda batch: batch.perhaps, batches))
        self.unknown += sum(len(batch.records) for batch in unknown)
        self.refused += sum(len(batch.records) for batch in batches[len(unknown) :])
        self.failure = self.error(cause, Outcome.UNKNOWN if unknown else Outcome.REFUSED)
        for batch in batches:
            outcome = Outcome.UNKNOWN if batch in unknown else Outcome.REFUSED
            self.settled.append(Settled(batch.receipt, self.error(cause, outcome)))

    def error(self, cause: ClientError, outcome: Outcome) -> ProducerFailed:
        """Return the error of a failed producer, with the counts so far."""
        error = ProducerFailed(
            cause, applied=self.applied, refused=self.refused, unknown=self.unknown
        )
        error.outcome = outcome
        return error
