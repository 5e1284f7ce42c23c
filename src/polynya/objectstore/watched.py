"""A store wrapper that records how long calls have failed, and why, and counts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from copy import copy
from typing import TypeVar

from polynya.base.spans import CLIENT, step
from polynya.objectstore.api import ObjectInfo, ObjectStore, StoreError, StoreUnavailable
from polynya.objectstore.usage import DOWN, PAGE, StoreUsage

FULL_SECONDS = 5.0
T = TypeVar("T")


class Record:
    """The record of one kind of calls.

    `failures` counts consecutive failures, and `since` is when the first of them began. `reason` is
    that of the last failure. `on_recovery` has what is called when a call succeeds after failures.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.failures = 0
        self.since = 0.0
        self.reason = ""
        self.on_recovery: list[Callable[[], None]] = []
        self._full = False
        self._full_at = float("-inf")
        self.worked_at = float("-inf")  # end of the last successful call
        self.ended_at = float("-inf")  # end of the last call
        self._now = now
        self._under_way = 0

    @property
    def full(self) -> bool:
        """True if the store has no space.

        The last call failed for that reason, or one did in the last FULL_SECONDS while small writes
        still succeeded.
        """
        return (self.failures > 0 and self._full) or self._now() - self._full_at < FULL_SECONDS

    def idle(self) -> float:
        """Return the seconds since the last call ended; 0 while one is in flight."""
        return 0.0 if self._under_way else self._now() - self.ended_at

    def failing(self) -> float:
        """Return the seconds since the first failure after the last success; 0 if the last call
        succeeded."""
        return self._now() - self.since if self.failures else 0.0

    async def of(self, work: Awaitable[T]) -> T:
        """Await a call and record its result. A refusal by the store counts as success."""
        began = self._now()
        self._under_way += 1
        try:
            result = await work
        except StoreUnavailable as fault:
            self._failed(began, fault)
            raise
        except StoreError:
            self._worked()
            raise
        finally:
            self._under_way -= 1
        self._worked()
        return result

    def _failed(self, began: float, fault: StoreUnavailable) -> None:
        self.ended_at = self._now()
        if not self.failures:
            self.since = max(began, self.worked_at)
        self.failures += 1
        self.reason, self._full = fault.reason, fault.full
        if fault.full:
            self._full_at = self.ended_at

    def _worked(self) -> None:
        self.worked_at = self.ended_at = self._now()
        failed, self.failures = self.failures, 0
        if failed:
            for notify in self.on_recovery:
                notify()


class WatchedStore:
    """An `ObjectStore` wrapper, which also counts the requests under a kind of work, at first
    `other`. `now` returns the seconds of a monotonic clock."""

    def __init__(self, store: ObjectStore, now: Callable[[], float]) -> None:
        self._store = store
        self.writes, self.reads = Record(now), Record(now)
        self._now = now
        self.usage = StoreUsage()
        self._calls = self.usage.of("other")

    def of(self, work: str) -> WatchedStore:
        """Return the same store, which counts under this kind of work (one of `WORKS`)."""
        other = copy(self)
        other._calls = self.usage.of(work)
        return other

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        size = len(parts) if isinstance(parts, bytes) else sum(map(len, parts))
        await self.writes.of(self._counted("put", self._store.put(key, parts), up=size))

    async def get(self, key: str) -> bytes:
        data = await self.reads.of(self._counted("get", self._store.get(key)))
        self._calls.counts[DOWN] += len(data)
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        work = self._store.get_range(key, start, length)
        data = await self.reads.of(self._counted("get", work) if length else work)
        self._calls.counts[DOWN] += len(data)
        return data

    async def head(self, key: str) -> ObjectInfo:
        return await self.reads.of(self._counted("head", self._store.head(key)))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        found = counted = 0
        began, seconds = self._now(), self.usage.seconds["list"]
        try:
            async for info in self._store.list(prefix, after):
                if not found:
                    seconds.observe(self._now() - began)
                found += 1
                counted = self._count_pages(found, counted)
                yield info
        except asyncio.CancelledError:
            self._count_pages(found + 1, counted)
            raise
        if not found:
            seconds.observe(self._now() - began)
        self._count_pages(max(found, 1), counted)

    async def delete(self, keys: Sequence[str]) -> None:
        pages = -(-len(keys) // PAGE)
        await self._counted("delete", self._store.delete(keys), requests=pages)

    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        swap = self._store.compare_and_swap(key, data, expected)
        return await self.writes.of(self._counted("put", swap, up=len(data)))

    async def close(self) -> None:
        await self._store.close()

    def _count_pages(self, keys: int, counted: int) -> int:
        """Count the pages of a listing of so many keys, of which some are counted. Return their
        number."""
        pages = -(-keys // PAGE)
        self._calls.add("list", requests=pages - counted)
        return pages

    async def _counted(
        self, request: str, work: Awaitable[T], *, requests: int = 1, up: int = 0
    ) -> T:
        """Await a call and count its requests, unless the store gave no answer. A cancelled one is
        counted: it has probably left."""
        began = self._now()
        try:
            with step(f"store {request}", kind=CLIENT) as span:
                result = await work
        except (StoreError, asyncio.CancelledError) as error:
            if not isinstance(error, StoreUnavailable):
                self._calls.add(request, requests=requests, up=up)
            raise
        seconds, histogram = self._now() - began, self.usage.seconds[request]
        histogram.observe(seconds)
        if span is not None:
            histogram.remember(seconds, "trace_id", span.trace_id)
        self._calls.add(request, requests=requests, up=up)
        return result
