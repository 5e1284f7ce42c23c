"""Read slices back: one fetch for concurrent readers, a checksum check, and a bounded cache."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from struct import pack

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.limits import CACHE_BYTES
from polynya.base.spans import step
from polynya.cold.faults import DamagedObjects
from polynya.cold.fetches import Fetches, gone
from polynya.cold.pages import PageReader
from polynya.cold.requests import ReadCounters, SliceRequests
from polynya.objectstore.api import NotFound, ObjectStore, StoreUnavailable
from polynya.stream.state import index
from polynya.stream.state.index import Index
from polynya.stream.state.model import ColdSlice, HotBatch
from polynya.wire.inline_markers import slice_of
from polynya.wire.slices import Slice, parse_slice, unpacked_bytes

RUN_BYTES = 64 * 1024  # neighbouring small batches are joined up to this size
AHEAD_AT_ONCE = 16  # fetches ahead of their readers are skipped while so many are in flight
AHEAD_BYTES_MAX = CACHE_BYTES // 8  # of a slice: a larger one would drive out those of others
THREAD_FROM_BYTES = 128 * 1024  # of a compressed payload: a smaller one takes 0.2 ms of the loop
POSITION_BYTES = 8  # memory of a parsed slice per record, besides its stored bytes


class ColdReader:
    """The slice reader of one core."""

    def __init__(self, store: ObjectStore, cache_bytes: int = CACHE_BYTES) -> None:
        self.counters = ReadCounters()
        self._requests = SliceRequests(store, self.counters)
        self._slices: Fetches[Slice] = Fetches(cache_bytes, _cost)
        self.damage = DamagedObjects()
        self._pages = PageReader(store, self.damage)

    @property
    def cached_bytes(self) -> int:
        return self._slices.kept_bytes

    def keep(self, pack: str, offset: int, found: Slice) -> None:
        """Cache a slice that this core has just stored, so that its readers need no request."""
        self._slices.keep((pack, offset), found)

    def begin(self, cold: ColdSlice) -> None:
        """Begin to fetch a slice that is read soon, unless it is there or there is much to
        fetch."""
        if cold.is_page:
            self._pages.begin(cold)
            return
        if cold.is_inline:
            return
        location = (cold.pack, cold.offset)
        if cold.read_bytes <= AHEAD_BYTES_MAX and self._slices.is_idle(location, AHEAD_AT_ONCE):
            self._slices.begin(location, partial(self._fetch, cold))

    def kept_page(self, cold: ColdSlice) -> Index | None:
        """Return the entries of a page if they are in the cache."""
        found = self._pages.kept(cold)
        return None if found is None else found.index

    async def page(self, cold: ColdSlice) -> Index:
        """Return the entries of a page that an index names. Raises as `slice`."""
        return (await self._pages.page(cold)).index

    async def spread(self, slices: Sequence[ColdSlice], begin: int, end: int) -> list[ColdSlice]:
        """Return the slices with those of pages, from record `begin` to before `end`, in place of
        the pages. Raises as `slice`."""
        return await self._pages.spread(slices, begin, end)

    async def batches(self, cold: ColdSlice) -> Sequence[HotBatch]:
        """Return the slice's batches at their stream positions, built lazily, small neighbours
        joined. Raises as `slice`."""
        return (await self.slice(cold)).hot_batches(
            record=cold.record, byte=cold.byte, run_bytes=RUN_BYTES
        )

    async def payload(self, cold: ColdSlice, begin: int, end: int) -> memoryview:
        """Return the stored payload of records `begin` to `end` (exclusive), all inside the slice.
        Raises as `slice`, ValueError."""
        found = await self.slice(cold)
        return found.cut(begin - cold.record, min(end - cold.record, found.records))

    async def append_times(self, cold: ColdSlice, begin: int, end: int) -> bytes:
        """Return the append times of records `begin` to `end` (exclusive), all inside the slice:
        packed pairs of a record and the time of it and those behind it. Raises as `slice`."""
        found = await self.slice(cold)
        records, times_ms = found.batch_begins[0], found.append_times_ms
        first = bisect_right(records, begin - cold.record) - 1
        pairs = [begin, times_ms[first]]
        for number in range(first + 1, bisect_left(records, end - cold.record)):
            if times_ms[number] != pairs[-1]:
                pairs.extend((cold.record + records[number], times_ms[number]))
        return pack(f"<{len(pairs)}q", *pairs)

    async def position_at(self, cold: ColdSlice, time_ms: int) -> tuple[int, int]:
        """Return the (record, byte) of the slice's first batch appended at `time_ms` or later, else
        the slice's end. Raises as `slice`."""
        if cold.is_page:
            return await self._place_in_page(cold, time_ms)
        found = await self.slice(cold)
        # times of several writers are not in order
        times = enumerate(found.append_times_ms)
        number = next((at for at, own_ms in times if own_ms >= time_ms), found.batches)
        records, ends = found.batch_begins
        return cold.record + records[number], cold.byte + ends[number]

    async def position_of_record_time(
        self, cold: ColdSlice, time_ms: int, begin: int
    ) -> tuple[int, int] | None:
        """Return the (record, byte) of the slice's first batch with a record of `time_ms` or later,
        of those that end behind record `begin`. Raises as `slice`."""
        if cold.is_page:
            return await self._place_in_dated(cold, time_ms, begin)
        found = await self.slice(cold)
        records, ends = found.batch_begins
        for number in found.kept:
            own_ms = found.record_times_ms[number]
            dated = (own_ms or found.append_times_ms[number]) >= time_ms
            if dated and cold.record + records[number + 1] > begin:
                return cold.record + records[number], cold.byte + ends[number]
        return None

    async def newest_record_time(self, cold: ColdSlice, begin: int) -> int | None:
        """Return the largest record time of the slice's batches that end behind record `begin`.
        Raises as `slice`."""
        if cold.is_page:
            return await self._newest_in_page(cold, begin)
        found = await self.slice(cold)
        records = found.batch_begins[0]
        times = (
            found.record_times_ms[number] or found.append_times_ms[number]
            for number in found.kept
            if cold.record + records[number + 1] > begin
        )
        return max(times, default=None)

    async def slice(self, cold: ColdSlice) -> Slice:
        """Return the parsed slice, or the part of it that the entry names. Raises PackGone,
        CorruptData, or Unavailable if the store is unavailable.

        The cache has whole slices: entries that are parts of one slice share a fetch."""
        if cold.is_inline:
            return slice_of(cold)
        location = (cold.pack, cold.offset)
        found = self._slices.kept(location)
        if found is None:
            self.counters.misses += 1
            with step("cold read", {"polynya.object": cold.pack, "polynya.bytes": cold.read_bytes}):
                found = await self._slices.fetch(location, partial(self._fetch, cold))
        else:
            self.counters.hits += 1
        return found.run(cold)

    async def close(self) -> None:
        """Cancel fetches in flight."""
        await self._pages.close()
        await self._slices.close()
        await self._requests.close()

    async def _place_in_page(self, cold: ColdSlice, time_ms: int) -> tuple[int, int]:
        page = await self.page(cold)
        number = index.first_reaching(page.data, time_ms)
        if number == len(page):
            return index.end_of(page.data, -1)
        found = page[number]
        if found.time_ms >= time_ms:
            return found.record, found.byte
        return await self.position_at(found, time_ms)

    async def _place_in_dated(
        self, cold: ColdSlice, time_ms: int, begin: int
    ) -> tuple[int, int] | None:
        page = await self.page(cold)
        number = index.entries_before(page.data, begin)
        while (number := index.first_dated(page.data, number, time_ms)) < len(page):
            found = await self.position_of_record_time(page[number], time_ms, begin)
            if found is not None:
                return found
            number += 1
        return None

    async def _newest_in_page(self, cold: ColdSlice, begin: int) -> int | None:
        page = await self.page(cold)
        numbers = range(index.entries_before(page.data, begin), len(page))
        newest: int | None = None
        for each in sorted(
            (page[at] for at in numbers), key=lambda one: one.record_time_ms_max, reverse=True
        ):
            if newest is not None and each.record_time_ms_max <= newest:
                break
            found = await self.newest_record_time(each, begin)
            newest = newest if found is None else max(found, newest or found)
        return newest

    async def _fetch(self, cold: ColdSlice) -> Slice:
        try:
            data = await self._requests.fetch(cold)
        except NotFound:
            self.damage.gone(cold.pack)
            raise gone(cold.pack) from None
        except StoreUnavailable as fault:
            raise Unavailable(f"the object store cannot be read: {fault}") from fault
        except ValueError as fault:
            short = CorruptData(f"a pack is shorter than its index says: {fault}")
            self.damage.note(cold, short)
            raise short from None
        try:
            if unpacked_bytes(data) < THREAD_FROM_BYTES:
                found = parse_slice(data, cold.crc)
            else:
                found = await asyncio.to_thread(parse_slice, data, cold.crc)
        except CorruptData as fault:
            self.damage.note(cold, fault)
            raise
        self.damage.clear(cold)
        return found


def _cost(found: Slice) -> int:
    records = 0 if found.undivided else found.records
    per_batch = 4 if found.has_gaps else 2
    return found.size + POSITION_BYTES * (records + per_batch * found.batches)
