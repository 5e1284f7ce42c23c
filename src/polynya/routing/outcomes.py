"""The outcomes of commands that are proposed together and answered at once."""

from __future__ import annotations

from typing import cast

from polynya.local.api import DoneAll
from polynya.stream.replies import Reply


class Outcomes:
    """Gathers the outcomes of some commands; `done_all` gets them when the last is known."""

    __slots__ = ("_done_all", "_found", "_left")

    def __init__(self, count: int, done_all: DoneAll) -> None:
        self._found: list[Reply | BaseException | None] = [None] * count
        self._left = count
        self._done_all = done_all
        if not count:
            done_all([])

    def done(self, number: int, outcome: Reply | BaseException) -> None:
        """Keep the outcome of the command of this number."""
        self._found[number] = outcome
        self._left -= 1
        if not self._left:
            self._done_all(cast("list[Reply | BaseException]", self._found))
