"""Wing and Gong's search, with Lowe's cache: whether operations that overlap in time can have
happened one at a time, each between its call and its answer. For small histories: the search is
exponential where much overlaps."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

State = TypeVar("State", bound=Hashable)
FOREVER = float("inf")


class Operation(msgspec.Struct, frozen=True):
    """A request with its time span. `ended` is `FOREVER` without a response: it took effect once,
    at any time after `began`, or never."""

    began: float
    ended: float
    what: object


class Undecided(Exception):
    """The search was given up: that is no yes."""


Step = Callable[[State, object], Iterable[State]]
"""The states in which an operation, answered as it was, can leave a state; none: it cannot have
happened there."""


class Search(Generic[State]):
    """`step` is asked again and again; `states_max` bounds the search."""

    def __init__(
        self,
        operations: Sequence[Operation],
        initial: State,
        step: Step[State],
        states_max: int = 200_000,
    ) -> None:
        self._operations = sorted(operations, key=lambda each: each.began)
        self._initial, self._step, self._states_max = initial, step, states_max
        # how many were placed, the state, and what could be next there
        self.furthest: tuple[int, State, list[object]] = (
            -1,
            initial,
            [],
        )

    def run(self) -> bool:
        """Report whether a linear order exists. Raises Undecided."""
        operations = self._operations
        certain = sum(
            1 << number for number, each in enumerate(operations) if each.ended != FOREVER
        )
        seen: set[tuple[int, State]] = set()
        stack = [(0, self._initial)]
        while stack:
            placed, state = stack.pop()
            if placed & certain == certain:
                return True
            if (placed, state) in seen:
                continue
            seen.add((placed, state))
            if len(seen) > self._states_max:
                raise Undecided(f"after {self._states_max} states")
            able = self._able(placed)
            if (count := placed.bit_count()) > self.furthest[0]:
                self.furthest = (count, state, [operations[number].what for number in able])
            for number in reversed(able):  # the last that is put there is tried first
                stack += [
                    (placed | 1 << number, after)
                    for after in self._step(state, operations[number].what)
                    # what need not have happened, and changes nothing, is left out
                    if after != state or certain >> number & 1
                ]
        return False

    def _able(self, placed: int) -> list[int]:
        """Return the operations that may come next: they began before any other remaining one
        ended. Ordered by end; unfinished ones last."""
        operations, found = self._operations, list[tuple[float, int]]()
        bound = FOREVER
        number = (~placed & placed + 1).bit_length() - 1  # the first that is left
        for at in range(number, len(operations)):
            if operations[at].began > bound:
                break
            if not placed >> at & 1:
                bound = min(bound, operations[at].ended)
                heapq.heappush(found, (operations[at].ended, at))
        return [
            at
            for _, at in (heapq.heappop(found) for _ in range(len(found)))
            if operations[at].began <= bound
        ]
