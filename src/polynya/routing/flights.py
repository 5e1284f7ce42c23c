"""The attempts of one core that are in flight, by group, and when another may join them."""

from __future__ import annotations

from collections.abc import Callable

# A refusal comes at once: a target that has not answered for this long has accepted what it got.
SILENCE_SECONDS = 0.1


class Flights:
    """The attempts in flight of each group. To keep their order, all of a group go to one target.

    A target that was just elected refuses what comes before it has applied the earlier terms, and
    accepts what comes a moment later. So only one attempt at a time goes to a target that has
    accepted none since it became the leader or refused one: else it could refuse the first of two
    and accept the second. `now` returns the loop's time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.counts: dict[int, int] = {}  # by group; a bundle is one attempt
        self._targets: dict[int, int] = {}  # of those in flight
        self._since: dict[int, float] = {}  # when the first of those in flight set out
        self._accepting: dict[int, int] = {}  # the targets that have accepted an attempt
        self._now = now

    def begin(self, group: int, target: int) -> None:
        """Count an attempt that sets out."""
        count = self.counts.get(group, 0)
        if not count:
            self._targets[group], self._since[group] = target, self._now()
        self.counts[group] = count + 1

    def end(self, group: int) -> None:
        """Count an attempt that was answered."""
        self.counts[group] -= 1

    def accept(self, group: int, target: int) -> bool:
        """Record that the target accepted an attempt. Return True if more may join it now."""
        is_first = self._accepting.get(group) != target
        if is_first:
            self._accepting[group] = target
        return is_first

    def doubt(self, group: int) -> None:
        """Record a refusal, or another leader or epoch."""
        self._accepting.pop(group, None)

    def may_join(self, group: int, target: int, *, is_local: bool) -> bool:
        """Return True if another attempt for the leader `target` keeps its place behind those in
        flight. A core judges its own in their order."""
        return self._targets[group] == target and (
            is_local
            or self._accepting.get(group) == target
            or self._now() - self._since[group] >= SILENCE_SECONDS
        )
