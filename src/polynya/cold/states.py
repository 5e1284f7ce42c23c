"""Read the states of evicted streams: one fetch for concurrent readers, a checksum check, and a
bounded cache."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.limits import STATE_CACHE_BYTES
from polynya.cold.fetches import Fetches, gone
from polynya.objectstore.api import NotFound, ObjectStore, StoreUnavailable
from polynya.stream.parts import ColdSlice

LOAD_SECONDS = 10.0  # then waiting readers get Unavailable


class LoadCounters(msgspec.Struct):
    """Counters for metrics; they only grow."""

    loads: int = 0  # requests to the store
    failures: int = 0
    seconds: float = 0.0  # total time of the loads


class StateReader:
    """The state reader of one core."""

    def __init__(self, store: ObjectStore, cache_bytes: int = STATE_CACHE_BYTES) -> None:
        self.counters = LoadCounters()
        self._store = store
        self._states: Fetches[bytes] = Fetches(cache_bytes, len)

    async def state(self, where: ColdSlice) -> bytes:
        """Return the state stored at `where`. Raises PackGone, CorruptData, or Unavailable if the
        store is unavailable."""
        location = (where.pack, where.offset)
        found = self._states.kept(location)
        return (
            await self._states.fetch(location, partial(self._fetch, where))
            if found is None
            else found
        )

    async def close(self) -> None:
        """Cancel fetches in flight."""
        await self._states.close()

    async def _fetch(self, where: ColdSlice) -> bytes:
        self.counters.loads += 1
        began = time.perf_counter()
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                data = await self._store.get_range(where.pack, where.offset, where.stored)
        except NotFound:
            raise gone(where.pack) from None
        except (StoreUnavailable, TimeoutError) as fault:
            self.counters.failures += 1
            raise Unavailable(
                "the state of the stream is in the object store, which cannot be read: "
                f"{fault or 'no answer'}; retry"
            ) from fault
        except ValueError as fault:
            raise CorruptData(f"a block of states is too short: {fault}") from None
        finally:
            self.counters.seconds += time.perf_counter() - began
        if crc32c(data) != where.crc:
            self.counters.failures += 1
            raise CorruptData(f"the state at {where.offset} of {where.pack} fails its checksum")
        return data
