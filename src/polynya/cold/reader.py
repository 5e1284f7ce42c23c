"""Reading slices back: fetched once for all who ask, checked, and kept in a bounded cache."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.limits import CACHE_BYTES
from polynya.objectstore.api import NotFound, ObjectStore, StoreUnavailable
from polynya.stream.model import ColdSlice, HotBatch
from polynya.wire.pack import Slice, parse_slice

Place = tuple[str, int]  # object key, offset
RUN_BYTES = 64 * 1024  # of neighbouring small batches that a reader gets as one
POSITION_BYTES = 8  # what a parsed slice may come to hold besides, per record


class PackGone(Unavailable):
    """The object is deleted: the index has changed since the caller looked. Plan again."""


class ReadCounters(msgspec.Struct):
    """What metrics show; only growing."""

    hits: int = 0
    misses: int = 0  # fetches, and those who waited for one
    fetched_bytes: int = 0


class ColdReader:
    """One per core. Whoever asks for a slice that is being fetched waits for that fetch; it goes on if the one who began it leaves."""

    def __init__(self, store: ObjectStore, cache_bytes: int = CACHE_BYTES) -> None:
        self.counters = ReadCounters()
        self.cached_bytes = 0
        self._store = store
        self._cache_bytes = cache_bytes
        self._slices: OrderedDict[Place, Slice] = OrderedDict()  # least recently used first
        self._fetching: dict[Place, asyncio.Task[Slice]] = {}

    async def batches(self, cold: ColdSlice) -> Sequence[HotBatch]:
        """The slice's batches at their positions in the stream, small neighbours as one, made as they are asked for. Raises as `slice`."""
        return (await self.slice(cold)).hot_batches(record=cold.record, byte=cold.byte, run_bytes=RUN_BYTES)

    async def payload(self, cold: ColdSlice, begin: int, end: int) -> memoryview:
        """The stored payload of the stream's records `begin` to before `end`, all inside the slice. Raises as `slice`, ValueError."""
        return (await self.slice(cold)).cut(begin - cold.record, end - cold.record)

    async def place_at(self, cold: ColdSlice, time_ms: int) -> tuple[int, int]:
        """Where the slice's first batch begins that was appended at `time_ms` or later, or the slice's end. Raises as `slice`."""
        found = await self.slice(cold)
        number = bisect_left(found.append_times_ms, time_ms)
        records, ends = found.batch_begins
        return cold.record + records[number], cold.byte + ends[number]

    async def slice(self, cold: ColdSlice) -> Slice:
        """The parsed slice. Raises PackGone, Unavailable (the store is), CorruptData."""
        place = (cold.pack, cold.offset)
        found = self._slices.get(place)
        if found is not None:
            self._slices.move_to_end(place)
            self.counters.hits += 1
            return found
        self.counters.misses += 1
        fetch = self._fetching.get(place)
        if fetch is None:
            fetch = self._fetching[place] = asyncio.create_task(self._fetch(place, cold))
            fetch.add_done_callback(lambda done: self._fetched(place, done))
        return await asyncio.shield(fetch)

    async def close(self) -> None:
        """End the fetches under way."""
        fetches = list(self._fetching.values())
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    async def _fetch(self, place: Place, cold: ColdSlice) -> Slice:
        try:
            data = await self._store.get_range(cold.pack, cold.offset, cold.stored)
        except NotFound:
            raise PackGone(cold.pack) from None
        except StoreUnavailable as fault:
            raise Unavailable(f"the object store cannot be read: {fault}") from fault
        except ValueError as fault:
            raise CorruptData(f"a pack is shorter than its index says: {fault}") from None
        self.counters.fetched_bytes += len(data)
        found = parse_slice(data, cold.crc)
        if (found.records, len(found.payload)) != (cold.records, cold.length):
            raise CorruptData(f"the slice at {cold.offset} of {cold.pack} is not the one that the index names")
        self._keep(place, found)
        return found

    def _fetched(self, place: Place, done: asyncio.Task[Slice]) -> None:
        del self._fetching[place]
        if not done.cancelled():
            done.exception()  # whoever still waits raises it; nobody may be left

    def _keep(self, place: Place, found: Slice) -> None:
        size = _cost(found)
        if size > self._cache_bytes:
            return
        self._slices[place] = found
        self.cached_bytes += size
        while self.cached_bytes > self._cache_bytes:
            self.cached_bytes -= _cost(self._slices.popitem(last=False)[1])


def _cost(found: Slice) -> int:
    return found.stored + POSITION_BYTES * (found.records + 2 * found.batches)
