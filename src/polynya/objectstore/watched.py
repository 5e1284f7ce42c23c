"""A store that remembers whether it does what it is asked: since when it has not, and why."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from polynya.objectstore.api import ObjectInfo, ObjectStore, StoreError, StoreUnavailable

FULL_SECONDS = 5.0
T = TypeVar("T")


class Record:
    """Of one kind of calls. `failures`: in a row, and the first of them began at `since`; `reason`: of the last one.
    `on_recovery` is called when one works after others failed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.failures = 0
        self.since = 0.0
        self.reason = ""
        self.on_recovery: Callable[[], None] = lambda: None
        self._full = False
        self._full_at = float("-inf")
        self.worked_at = float("-inf")  # when one that did ended
        self.ended_at = float("-inf")  # when any did
        self._now = now
        self._under_way = 0

    @property
    def full(self) -> bool:
        """Whether the store has no room: the last one failed by that, or one did just now, and something small still found some."""
        return (self.failures > 0 and self._full) or self._now() - self._full_at < FULL_SECONDS

    def idle(self) -> float:
        """Seconds since the last one; 0 while one is under way."""
        return 0.0 if self._under_way else self._now() - self.ended_at

    def failing(self) -> float:
        """Seconds since the first that failed after the last that worked."""
        return self._now() - self.since if self.failures else 0.0

    async def of(self, work: Awaitable[T]) -> T:
        """Await it. A no of the store is an answer as good as any."""
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
            self.on_recovery()


class WatchedStore:
    """An `ObjectStore` before another. `now`: seconds of a clock that never goes back."""

    def __init__(self, store: ObjectStore, now: Callable[[], float]) -> None:
        self._store = store
        self.writes, self.reads = Record(now), Record(now)

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> str:
        return await self.writes.of(self._store.put(key, parts))

    async def get(self, key: str) -> bytes:
        return await self.reads.of(self._store.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self.reads.of(self._store.get_range(key, start, length))

    async def head(self, key: str) -> ObjectInfo:
        return await self.reads.of(self._store.head(key))

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix, after)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete(keys)

    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        return await self.writes.of(self._store.compare_and_swap(key, data, expected))

    async def close(self) -> None:
        await self._store.close()
