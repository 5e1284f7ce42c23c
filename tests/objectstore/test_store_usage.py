"""The counters of requests, by kind of work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest

from polynya.objectstore import (
    AlreadyExists,
    Conflict,
    MemoryStore,
    NotFound,
    ObjectInfo,
    StoreUnavailable,
    WatchedStore,
)


class Silent(MemoryStore):
    """A store that answers nothing."""

    async def get(self, key: str) -> bytes:
        raise StoreUnavailable("connection refused")


def counts(store: WatchedStore) -> dict[tuple[str, str], int]:
    return {key: count for key, count in store.usage.counts().items() if count}


def test_each_kind_of_work_has_its_counts() -> None:
    async def run() -> None:
        store = WatchedStore(MemoryStore(), lambda: 0.0)
        flush, read = store.of("flush"), store.of("read")
        await flush.put("a/1", [b"12345", b"678"])
        await flush.put("a/2", b"90")
        assert await read.get("a/1") == b"12345678"
        assert await read.get_range("a/1", 2, 3) == b"345"
        assert await read.get_range("a/1", 2, 0) == b""
        await read.head("a/1")
        etag = await store.compare_and_swap("root", b"xyz", None)
        await store.compare_and_swap("root", b"x", etag)
        assert counts(store) == {
            ("flush", "put"): 2,
            ("flush", "up"): 10,
            ("read", "get"): 2,
            ("read", "head"): 1,
            ("read", "down"): 11,
            ("other", "put"): 2,
            ("other", "up"): 4,
        }

    asyncio.run(run())


def test_a_refusal_counts_and_silence_does_not() -> None:
    async def run() -> None:
        store = WatchedStore(Silent(), lambda: 0.0)
        await store.put("a", b"1")
        with pytest.raises(AlreadyExists):
            await store.put("a", b"22")
        with pytest.raises(Conflict):
            await store.compare_and_swap("a", b"333", "another")
        with pytest.raises(NotFound):
            await store.head("b")
        with suppress(StoreUnavailable):
            await store.get("a")
        assert counts(store) == {("other", "put"): 3, ("other", "up"): 6, ("other", "head"): 1}

    asyncio.run(run())


@pytest.mark.parametrize(("keys", "pages"), [(0, 1), (1, 1), (1000, 1), (1001, 2)])
def test_lists_and_deletions_count_their_pages(keys: int, pages: int) -> None:
    async def run() -> None:
        store = WatchedStore(MemoryStore(), lambda: 0.0)
        names = [f"a/{number}" for number in range(keys)]
        for name in names:
            await store.of("flush").put(name, b"")
        assert len([info async for info in store.list("a/")]) == keys
        await store.delete(names)
        found = counts(store)
        assert found[("other", "list")] == pages
        assert found.get(("other", "delete"), 0) == (pages if keys else 0)

    asyncio.run(run())


class Hanging(MemoryStore):
    """A store that does not answer yet."""

    async def head(self, key: str) -> ObjectInfo:
        await asyncio.Event().wait()
        raise AssertionError

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        yield await self.head(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.head(keys[0])


def test_a_cancelled_request_counts_as_it_has_left() -> None:
    async def run() -> None:
        store = WatchedStore(Hanging(), lambda: 0.0)

        async def listed() -> None:
            _ = [info async for info in store.list("a/")]

        for work in (store.head("a"), listed(), store.delete(["a"] * 1001)):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await work
        assert counts(store) == {
            ("other", "head"): 1,
            ("other", "list"): 1,
            ("other", "delete"): 2,
        }

    asyncio.run(run())


def test_answered_requests_are_timed_by_their_verb() -> None:
    async def run() -> None:
        now = iter(range(1000))
        store = WatchedStore(Silent(), lambda: float(next(now)))
        await store.of("flush").put("a/1", b"1")
        await store.put("a/2", b"2")
        await store.head("a/1")
        assert [info.key async for info in store.list("a/")] == ["a/1", "a/2"]
        assert [info.key async for info in store.list("b/")] == []
        with suppress(StoreUnavailable):
            await store.get("a/1")
        times = store.usage.seconds
        assert {request: sum(each.counts) for request, each in times.items()} == {
            "put": 2,
            "get": 0,
            "head": 1,
            "list": 2,
            "delete": 0,
        }
        assert times["put"].total > 0

    asyncio.run(run())
