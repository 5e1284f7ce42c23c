"""Reading back the states of evicted streams: fetched once for all who ask, checked, and kept for a while."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from functools import partial

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.limits import STATE_CACHE_BYTES
from polynya.cold.reader import PackGone
from polynya.objectstore.api import NotFound, ObjectStore, StoreUnavailable
from polynya.stream.commands import ColdSlice

LOAD_SECONDS = 10.0  # then whoever waits is told to come again
Place = tuple[str, int]  # object key, offset


class LoadCounters(msgspec.Struct):
    """What metrics show; only growing."""

    loads: int = 0  # from the store
    hits: int = 0
    failures: int = 0
    seconds: float = 0.0  # spent on loads


class StateReader:
    """One per core."""

    def __init__(self, store: ObjectStore, cache_bytes: int = STATE_CACHE_BYTES) -> None:
        self.counters = LoadCounters()
        self._store = store
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._states: OrderedDict[Place, bytes] = OrderedDict()  # least recently used first
        self._fetching: dict[Place, asyncio.Task[bytes]] = {}

    async def state(self, where: ColdSlice) -> bytes:
        """The bytes at that place. Raises PackGone, Unavailable (the store is), CorruptData."""
        place = (where.pack, where.offset)
        found = self._states.get(place)
        if found is not None:
            self._states.move_to_end(place)
            self.counters.hits += 1
            return found
        fetch = self._fetching.get(place)
        if fetch is None:
            fetch = self._fetching[place] = asyncio.create_task(self._fetch(place, where))
            fetch.add_done_callback(partial(self._fetched, place))
        return await asyncio.shield(fetch)

    async def close(self) -> None:
        """End the fetches under way."""
        fetches = list(self._fetching.values())
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    async def _fetch(self, place: Place, where: ColdSlice) -> bytes:
        self.counters.loads += 1
        began = time.perf_counter()
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                data = await self._store.get_range(where.pack, where.offset, where.stored)
        except NotFound:
            raise PackGone(where.pack) from None
        except (StoreUnavailable, TimeoutError) as fault:
            self.counters.failures += 1
            raise Unavailable(
                f"the state of the stream is in the object store, which cannot be read: {fault or 'no answer'}; retry"
            ) from fault
        except ValueError as fault:
            raise CorruptData(f"a block of states is shorter than it should be: {fault}") from None
        finally:
            self.counters.seconds += time.perf_counter() - began
        if crc32c(data) != where.crc:
            self.counters.failures += 1
            raise CorruptData(f"a state at {where.offset} of {where.pack} has another checksum than it should")
        self._keep(place, data)
        return data

    def _fetched(self, place: Place, done: asyncio.Task[bytes]) -> None:
        del self._fetching[place]
        if not done.cancelled():
            done.exception()  # whoever still waits raises it; nobody may be left

    def _keep(self, place: Place, data: bytes) -> None:
        if len(data) > self._cache_bytes:
            return
        self._states[place] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > self._cache_bytes:
            self._cached_bytes -= len(self._states.popitem(last=False)[1])
