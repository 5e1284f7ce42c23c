"""The turns of the streams of one connection: a queue, and a few tasks that end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from polynya.base.limits import LIVE_READS_MAX

Member = TypeVar("Member")
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Turns(Generic[Member]):
    """The members that wait for a turn. `give` is called with one at a time, and returns the
    seconds until its next turn, or None. `wait` returns when there may be a turn, and False at the
    end. `drained` is called when no member waits, pauses or has a turn, perhaps more than once.

    Turns of members that `is_slow` may take long: they have half of the tasks at most, so that the
    others need not wait for them."""

    __slots__ = (
        "_again",
        "_busy",
        "_drained",
        "_give",
        "_is_slow",
        "_later",
        "_queue",
        "_slow",
        "_slow_busy",
        "_spawn",
        "_tasks",
        "_wait",
    )

    def __init__(
        self,
        spawn: Spawn,
        wait: Callable[[], Awaitable[bool]],
        give: Callable[[Member], Awaitable[float | None]],
        drained: Callable[[], None],
        *,
        is_slow: Callable[[Member], bool],
    ) -> None:
        self._spawn, self._wait, self._give, self._drained = spawn, wait, give, drained
        self._is_slow = is_slow
        self._queue: dict[Member, None] = {}
        self._slow: dict[Member, None] = {}  # likewise, of the slow ones
        self._busy: set[Member] = set()
        self._slow_busy = 0
        self._later: set[Member] = set()  # have their next turn after a pause
        self._again: set[Member] = set()  # have a turn, and need another one
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, member: Member) -> None:
        """Give a member a turn, after those that wait."""
        if member in self._busy:
            self._again.add(member)
            return
        if member not in self._queue and member not in self._slow:
            (self._slow if self._is_slow(member) else self._queue)[member] = None
        self._start()

    @property
    def are_idle(self) -> bool:
        """Report whether no member waits, pauses or has a turn."""
        return not (self._queue or self._slow or self._busy or self._later)

    def _start(self) -> None:
        """Start a task for those who wait."""
        waiting = len(self._queue) + min(len(self._slow), LIVE_READS_MAX // 2)
        if len(self._tasks) < min(LIVE_READS_MAX, waiting):
            task = self._spawn(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def clear(self) -> None:
        """Give no more turns. Those who have one end it."""
        self._queue.clear()
        self._slow.clear()
        self._later.clear()
        self._again.clear()

    async def _run(self) -> None:
        while self._chosen() is not None and await self._wait():
            if (queue := self._chosen()) is not None:
                await self._turn(queue)
            await asyncio.sleep(0)  # a client that reads fast leaves the loop to others
        if self.are_idle:
            self._drained()

    def _chosen(self) -> dict[Member, None] | None:
        """Return the queue whose first member has the next turn."""
        if self._slow and self._slow_busy < LIVE_READS_MAX // 2:
            return self._slow
        return self._queue or None

    async def _turn(self, queue: dict[Member, None]) -> None:
        member = next(iter(queue))
        del queue[member]
        is_slow = queue is self._slow
        self._busy.add(member)
        self._slow_busy += is_slow
        try:
            seconds = await self._give(member)
        finally:
            self._busy.discard(member)
            self._slow_busy -= is_slow
        if member in self._again:
            self._again.discard(member)
            seconds = seconds or 0.0
        if seconds == 0.0:
            self.add(member)
        elif seconds is not None:
            self._later.add(member)
            asyncio.get_running_loop().call_later(seconds, self._resume, member)

    def _resume(self, member: Member) -> None:
        if member in self._later:
            self._later.discard(member)
            self.add(member)
