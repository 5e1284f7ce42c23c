"""Read pages of long indexes: one fetch for concurrent readers, a checksum check, and a bounded
cache (docs/formats/pages.md)."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from heapq import merge

from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.limits import PAGE_CACHE_BYTES
from polynya.cold.faults import DamagedObjects
from polynya.cold.fetches import Fetches, gone
from polynya.objectstore.api import NotFound, ObjectStore, StoreUnavailable
from polynya.stream.state.model import ColdSlice
from polynya.wire.page import Page, read_page, spread

AHEAD_AT_ONCE = 4  # fetches ahead of their readers are skipped while so many are in flight
KEY_BYTES = 250  # memory of a pack's key in a parsed page


class PageReader:
    """The pages that one core reads."""

    def __init__(
        self, store: ObjectStore, damage: DamagedObjects, cache_bytes: int = PAGE_CACHE_BYTES
    ) -> None:
        self._store = store
        self._damage = damage
        self._pages: Fetches[Page] = Fetches(cache_bytes, _cost)

    def kept(self, cold: ColdSlice) -> Page | None:
        """Return the page if it is in the cache."""
        return self._pages.kept((cold.pack, cold.offset))

    def begin(self, cold: ColdSlice) -> None:
        """Begin to fetch a page that is read soon."""
        location = (cold.pack, cold.offset)
        if self._pages.is_idle(location, AHEAD_AT_ONCE):
            self._pages.begin(location, partial(self._fetch, cold))

    async def page(self, cold: ColdSlice) -> Page:
        """Return the page that an index entry stands for. Raises PackGone, CorruptData,
        Unavailable."""
        found = self.kept(cold)
        if found is not None:
            return found
        return await self._pages.fetch((cold.pack, cold.offset), partial(self._fetch, cold))

    async def spread(self, slices: Sequence[ColdSlice], begin: int, end: int) -> list[ColdSlice]:
        """Return the slices with those of pages in place of the pages; see `wire.page.spread`.
        Raises as `page`."""
        found: list[ColdSlice] = []
        for cold in slices:
            if cold.is_page:
                found += spread([cold], {cold.pack: await self.page(cold)}, begin, end)
            else:
                found.append(cold)
        return found

    async def close(self) -> None:
        """Cancel fetches in flight."""
        await self._pages.close()

    async def _fetch(self, cold: ColdSlice) -> Page:
        data = await load(self._store, cold.pack)
        if len(data) != cold.stored or crc32c(data) != cold.crc:
            fault = CorruptData(f"the page {cold.pack} is not the one that the index names")
            self._damage.note(cold, fault)
            raise fault
        self._damage.clear(cold)
        return read_page(cold.pack, data)


async def load(store: ObjectStore, key: str) -> bytes:
    """Return the bytes of a page. Raises PackGone, Unavailable."""
    try:
        return await store.get(key)
    except NotFound:
        raise gone(key) from None
    except StoreUnavailable as fault:
        raise Unavailable(f"the object store cannot be read: {fault}") from fault


def _cost(page: Page) -> int:
    return page.size + KEY_BYTES * len(page.packs)


class NamedPacks:
    """The packs that pages of some groups name, by half of the random bits of their keys: another
    pack with these bits counts as named."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        """`prefix`: the folder of all pages."""
        self.pages: set[str] = set()  # that are in the store
        self._store = store
        self._prefix = prefix
        self._bits = array("Q")

    def __contains__(self, key: str) -> bool:
        bits = _bits_of(key)
        at = bisect_left(self._bits, bits)
        return at < len(self._bits) and self._bits[at] == bits

    async def refresh(self, wanted: Callable[[str], bool]) -> None:
        """Read the pages that are not known yet. `wanted` selects them by their keys. Raises
        StoreUnavailable, CorruptData."""
        found = array("Q")
        async for info in self._store.list(self._prefix):
            if info.key in self.pages or not wanted(info.key):
                continue
            try:
                page = read_page(info.key, await self._store.get(info.key))
            except NotFound:
                continue  # it was released, and its packs with it
            self.pages.add(info.key)
            found.extend(_bits_of(key) for key, _ in page.packs)
        if found:
            self._bits = await asyncio.to_thread(_joined, self._bits, found)


def _joined(known: array[int], found: array[int]) -> array[int]:
    """Return sorted numbers and others as sorted numbers."""
    return array("Q", merge(known, sorted(found)))


def _bits_of(key: str) -> int:
    """Return a number for a pack's key; equal keys have the same."""
    random = key[-32:-16]
    try:
        return int(random, 16)
    except ValueError:
        return int(crc32c(key.encode()))
