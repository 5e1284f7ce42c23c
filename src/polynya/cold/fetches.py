"""Shared fetches of object ranges: concurrent readers share one fetch, and results are cached
within a byte limit."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from polynya.base.errors import Unavailable

Value = TypeVar("Value")
Location = tuple[str, int]  # (object key, offset)


class PackGone(Unavailable):
    """The object was deleted because the index has changed since the caller read it. Plan again."""


def gone(key: str) -> PackGone:
    """Return the error to raise. Clients see it if it occurs again after a new plan."""
    return PackGone(
        f"the object {key} is missing from the object store; 'polynya store verify' lists missing "
        "objects and the streams that need them"
    )


class Fetches(Generic[Value]):
    """Fetches shared by concurrent callers, and a cache of their results.

    A fetch goes on if the caller that started it is cancelled. `cost` returns the memory of a value
    in bytes; cached values take at most `bytes_max`.
    """

    def __init__(self, bytes_max: int, cost: Callable[[Value], int]) -> None:
        self.kept_bytes = 0
        self._bytes_max = bytes_max
        self._cost = cost
        self._kept: OrderedDict[Location, Value] = OrderedDict()  # least recently used first
        self._fetching: dict[Location, asyncio.Task[Value]] = {}

    def kept(self, location: Location) -> Value | None:
        """Return the cached value, or None."""
        found = self._kept.get(location)
        if found is not None:
            self._kept.move_to_end(location)
        return found

    async def fetch(
        self, location: Location, begin: Callable[[], Coroutine[Any, Any, Value]]
    ) -> Value:
        """Return the result of `begin`, which is called only if no fetch of the location is in
        flight. Raises as `begin`."""
        return await asyncio.shield(self._fetching.get(location) or self.begin(location, begin))

    def keep(self, location: Location, value: Value) -> None:
        """Cache a value, unless the location has one or the value is larger than the cache."""
        size = self._cost(value)
        if size > self._bytes_max or location in self._kept:
            return
        self._kept[location] = value
        self.kept_bytes += size
        while self.kept_bytes > self._bytes_max:
            self.kept_bytes -= self._cost(self._kept.popitem(last=False)[1])

    def is_idle(self, location: Location, at_once: int) -> bool:
        """Report whether the location is neither cached nor fetched, and fewer fetches are in
        flight."""
        busy = len(self._fetching) >= at_once or location in self._fetching
        return not busy and location not in self._kept

    def begin(
        self, location: Location, begin: Callable[[], Coroutine[Any, Any, Value]]
    ) -> asyncio.Task[Value]:
        """Begin a fetch of a location that none is in flight of."""
        task = self._fetching[location] = asyncio.create_task(self._fetch(location, begin))
        task.add_done_callback(partial(self._fetched, location))
        return task

    async def close(self) -> None:
        """Cancel fetches in flight."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(
        self, location: Location, begin: Callable[[], Coroutine[Any, Any, Value]]
    ) -> Value:
        value = await begin()
        self.keep(location, value)
        return value

    def _fetched(self, location: Location, done: asyncio.Task[Value]) -> None:
        del self._fetching[location]
        if not done.cancelled():
            done.exception()  # waiting callers raise it; mark it retrieved in case none is left
