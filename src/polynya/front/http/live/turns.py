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
    end. `drained` is called when no member waits or has a turn."""

    __slots__ = ("_again", "_busy", "_drained", "_give", "_queue", "_spawn", "_tasks", "_wait")

    def __init__(
        self,
        spawn: Spawn,
        wait: Callable[[], Awaitable[bool]],
        give: Callable[[Member], Awaitable[float | None]],
        drained: Callable[[], None],
    ) -> None:
        self._spawn, self._wait, self._give, self._drained = spawn, wait, give, drained
        self._queue: dict[Member, None] = {}
        self._busy: set[Member] = set()
        self._again: set[Member] = set()  # have a turn, and need another one
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, member: Member) -> None:
        """Give a member a turn, after those that wait."""
        if member in self._busy:
            self._again.add(member)
        else:
            self._queue[member] = None
            self.start()

    def start(self) -> None:
        """Start tasks for those who wait."""
        while len(self._tasks) < min(LIVE_READS_MAX, len(self._queue)):
            task = self._spawn(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def clear(self) -> None:
        """Give no more turns. Those who have one end it."""
        self._queue.clear()
        self._again.clear()

    async def _run(self) -> None:
        while self._queue and await self._wait():
            if self._queue:
                await self._turn(next(iter(self._queue)))
            await asyncio.sleep(0)  # a client that reads fast leaves the loop to others
        if not self._queue and not self._busy:
            self._drained()

    async def _turn(self, member: Member) -> None:
        del self._queue[member]
        self._busy.add(member)
        try:
            seconds = await self._give(member)
        finally:
            self._busy.discard(member)
        if member in self._again:
            self._again.discard(member)
            seconds = seconds or 0.0
        if seconds == 0.0:
            self.add(member)
        elif seconds is not None:
            asyncio.get_running_loop().call_later(seconds, self.add, member)
