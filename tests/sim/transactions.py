"""A recorder of the history of transactional clients, for the model and the simulation. Its checker
is that of real clusters, `chaos.transaction_history`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from chaos.history import OK  # noqa: E402  (not a part of the package)
from chaos.transaction_history import (  # noqa: E402
    End,
    Ends,
    Held,
    Init,
    Offsets,
    Poll,
    Position,
    Produce,
    Transaction,
    TransactionHistory,
)

Operation = Init | Produce | Offsets | End


class Recorder:
    """Operations begin when they are recorded; `ended` tells their outcome. `clock` is in
    seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.history = clock, TransactionHistory()

    def init(self, name: str, instance: str, *, again: bool = False) -> Init:
        made = Init(name, instance, self._clock(), again=again)
        self.history.inits.append(made)
        return made

    def begin(self, name: str, of: str, instance: str, timeout: float) -> Transaction:
        made = Transaction(name, of, instance, self._clock(), timeout)
        self.history.transactions.append(made)
        return made

    def produce(
        self,
        transaction: Transaction | None,
        stream: str,
        values: Sequence[str],
        keys: Sequence[str] = (),
        sources: Sequence[str] = (),
    ) -> Produce:
        made = Produce(stream, [*values], self._clock(), keys=[*keys], sources=[*sources])
        to = self.history.plain if transaction is None else transaction.produces
        to.append(made)
        return made

    def offsets(
        self, transaction: Transaction | None, group: str, positions: dict[str, int]
    ) -> Offsets:
        made = Offsets(group, positions, self._clock())
        to = self.history.commits if transaction is None else transaction.offsets
        to.append(made)
        return made

    def end(self, transaction: Transaction, kind: str) -> End:
        transaction.end = End(kind, self._clock())
        return transaction.end

    def ended(self, operation: Operation, outcome: str = OK, error: str = "") -> None:
        operation.ended, operation.outcome = self._clock(), outcome
        operation.error = error

    def force(self, name: str) -> None:
        """Note that an operator asks to abort the open transactions of this id."""
        for each in self.history.transactions:
            if each.id == name and (each.end is None or each.end.ended > self._clock()):
                each.forced = min(each.forced, self._clock())

    def poll(
        self, kind: str, reader: str, stream: str, begin: int, end: int, records: Sequence[Any]
    ) -> None:
        now = self._clock()
        self.history.polls.append(Poll(kind, reader, stream, now, now, begin, end, [*records]))

    def whole_poll(self, kind: str, stream: str, end: int, records: Sequence[Any]) -> None:
        """Record one answer from 0 to the stable end."""
        self.poll(kind, "whole", stream, 0, end, records)
        self.history.polls[-1].whole = True

    def ends(self, stream: str, stable: int, high: int) -> None:
        self.history.ends.append(Ends(stream, self._clock(), self._clock(), stable, high))

    def position(self, group: str, stream: str, offset: int, began: float) -> None:
        self.history.positions.append(Position(group, stream, offset, began, self._clock()))

    def hold(self, where: str, count: int) -> None:
        self.history.held.append(Held(where, self._clock(), count))
