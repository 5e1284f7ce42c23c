"""The queues of linearizable reads of a member."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec


class Waiting(msgspec.Struct, gc=False):
    token: Any
    since_ms: int
    origin: int = 0  # the requesting member; 0: this one
    context: int = 0  # its number at the origin, or in the request


class Reads:
    """Queues of reads. The leader queues in `new` until a round begins, then in `rounds`. Other
    members queue in `fresh` until requested, then in `asked`. `applying` holds reads that wait for
    an apply."""

    __slots__ = ("applying", "asked", "context", "failed", "fresh", "new", "ready", "rounds")

    def __init__(self, context: int) -> None:
        """Create empty queues. `context` is a random number so large that no other incarnation of
        this member comes near it."""
        self.context = context
        self.ready: list[Any] = []
        self.failed: list[Any] = []
        self.new: list[Waiting] = []
        # (context, commit when it began, reads)
        self.rounds: deque[tuple[int, int, list[Waiting]]] = deque()
        self.fresh: list[Waiting] = []
        self.asked: list[Waiting] = []
        self.applying: deque[tuple[int, Any]] = deque()

    @property
    def waiting(self) -> int:
        return (
            len(self.new)
            + sum(len(reads) for _, _, reads in self.rounds)
            + len(self.fresh)
            + len(self.asked)
            + len(self.applying)
        )

    def tokens(self) -> list[Any]:
        """Return the tokens of all local reads, for a member that is removed."""
        reads = [
            *self.new,
            *self.fresh,
            *self.asked,
            *(each for _, _, some in self.rounds for each in some),
        ]
        return [
            *self.ready,
            *self.failed,
            *(each.token for each in reads if not each.origin),
            *(token for _, token in self.applying),
        ]
