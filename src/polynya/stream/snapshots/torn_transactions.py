"""The transactions that copies of the groups' states may have torn: the copies are of different
times, and commits were not held meanwhile.

A commit that one copy knows may be missing in each copy that is older than the decision. A copy does
not say whether its group took part.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from polynya.stream.snapshots.encode import Image


class TornTransaction(msgspec.Struct, frozen=True):
    """A transaction that may be torn. `id`: "" if no copy knows it. `groups`: those whose copies are
    older than the decision."""

    id: str
    producer: int
    number: int
    decided_ms: int
    groups: list[int]


class CommitSurvey:
    """The commits that the copies know."""

    def __init__(self) -> None:
        self._copied_ms: dict[int, int] = {}  # group -> time of its copy
        self._decided_ms: dict[tuple[int, int], int] = {}  # by producer and number
        self._aborted: set[tuple[int, int]] = set()
        self._ids: dict[int, str] = {}  # by producer

    def add(self, image: Image, log_ms: int) -> None:
        """Add the copy of a group that was taken at this time."""
        self._copied_ms[image.group] = max(log_ms, image.log_ms)
        for transaction in image.transactions:
            self._ids[transaction.producer] = transaction.id
            for outcome in transaction.outcomes:
                key = (outcome.producer, outcome.number)
                self._ids[outcome.producer] = transaction.id
                self._decided_ms[key] = outcome.decided_ms
                if not outcome.commit:
                    self._aborted.add(key)
        for stream in image.streams:
            if stream.kafka is not None:
                for producer, (number, decided_ms, _) in stream.kafka.ended.items():
                    self._decided_ms[producer, number] = decided_ms

    def torn(self) -> Iterator[TornTransaction]:
        """Yield what may be torn, the last decision first."""
        copied = {group: at for group, at in self._copied_ms.items() if group}
        oldest_ms = min(copied.values(), default=0)
        for key, decided_ms in sorted(self._decided_ms.items(), key=lambda item: -item[1]):
            if decided_ms <= oldest_ms:
                return
            if key not in self._aborted:
                older = sorted(group for group, at in copied.items() if at < decided_ms)
                yield TornTransaction(self._ids.get(key[0], ""), *key, decided_ms, older)
