"""The Raft deadlines of a core's groups: one heap and one timer for all groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from polynya.raft import NEVER


class Deadlines:
    """The next deadline of each group, in ms of the `now_ms` clock. Postponing a deadline is free
    until the old one expires."""

    __slots__ = ("_at", "_due", "_heap", "_loop", "_now_ms", "_timer", "_timer_ms")

    def __init__(self, now_ms: Callable[[], int], due: Callable[[list[int]], None]) -> None:
        """`due` gets the groups whose deadline may have passed."""
        self._now_ms, self._due = now_ms, due
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[int, int]] = []
        self._at: dict[int, int] = {}  # group -> its valid deadline in the heap
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER

    def put(self, group: int, deadline_ms: int) -> None:
        """Schedule a check of the group at this time or earlier."""
        if deadline_ms < self._at.get(group, NEVER):
            self._at[group] = deadline_ms
            heappush(self._heap, (deadline_ms, group))

    def arm(self) -> None:
        """Start the timer; call it after `put`."""
        heap = self._heap
        if heap and heap[0][0] < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = heap[0][0]
            self._timer = self._loop.call_later(
                max(0, self._timer_ms - self._now_ms()) / 1000, self._ring
            )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._heap.clear()

    def _ring(self) -> None:
        self._timer, self._timer_ms = None, NEVER
        now_ms, heap, at = self._now_ms(), self._heap, self._at
        groups = []
        while heap and heap[0][0] <= now_ms:
            deadline_ms, group = heappop(heap)
            if at.get(group) == deadline_ms:
                del at[group]
                groups.append(group)
        if groups:
            self._due(groups)
        self.arm()
