"""Places in objects that many ask for: each is fetched once for all of them, and what was found is kept while there is room for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from polynya.base.errors import Unavailable

Value = TypeVar("Value")
Place = tuple[str, int]  # object key, offset


class PackGone(Unavailable):
    """The object is deleted: the index has changed since the caller looked. Plan again."""


def gone(key: str) -> PackGone:
    """To be raised; said to clients when it is so again."""
    return PackGone(f"the object {key} is not in the object store; 'polynya store verify' lists what is missing, and for which streams")


class Fetches(Generic[Value]):
    """Whoever asks for a place that is being fetched waits for that fetch; it goes on if the one who began it leaves. `cost`: bytes of memory that a
    value takes, of which all that are kept take at most `bytes_max`."""

    def __init__(self, bytes_max: int, cost: Callable[[Value], int]) -> None:
        self.kept_bytes = 0
        self._bytes_max = bytes_max
        self._cost = cost
        self._kept: OrderedDict[Place, Value] = OrderedDict()  # least recently used first
        self._fetching: dict[Place, asyncio.Task[Value]] = {}

    def kept(self, place: Place) -> Value | None:
        """What was fetched before, if it still is here."""
        found = self._kept.get(place)
        if found is not None:
            self._kept.move_to_end(place)
        return found

    async def fetch(self, place: Place, begin: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """What `begin` gives, which is called only if nobody fetches the place now. Raises as it."""
        task = self._fetching.get(place)
        if task is None:
            task = self._fetching[place] = asyncio.create_task(self._fetch(place, begin))
            task.add_done_callback(partial(self._fetched, place))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End the fetches under way."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, place: Place, begin: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        value = await begin()
        self._keep(place, value)
        return value

    def _fetched(self, place: Place, done: asyncio.Task[Value]) -> None:
        del self._fetching[place]
        if not done.cancelled():
            done.exception()  # whoever still waits raises it; nobody may be left

    def _keep(self, place: Place, value: Value) -> None:
        size = self._cost(value)
        if size > self._bytes_max:
            return
        self._kept[place] = value
        self.kept_bytes += size
        while self.kept_bytes > self._bytes_max:
            self.kept_bytes -= self._cost(self._kept.popitem(last=False)[1])
