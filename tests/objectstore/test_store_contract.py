"""The contract of every store: one set of stories for memory, the local folder and a real S3
server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from polynya.base.errors import ConfigError
from polynya.objectstore import (
    AlreadyExists,
    Conflict,
    NotFound,
    ObjectStore,
    claim_root,
    owns_root,
    prove_conditional_writes,
    put_again,
)
from polynya.objectstore.s3 import S3Store

Run = Callable[[Callable[[ObjectStore], Coroutine[Any, Any, None]]], None]


async def keys(store: ObjectStore, prefix: str, after: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix, after)]


def test_what_was_put_is_read_whole_and_in_ranges(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("a/b/c", [b"0123", b"", b"456789"])
        assert await store.get("a/b/c") == b"0123456789"
        assert await store.get_range("a/b/c", 3, 4) == b"3456"
        assert await store.get_range("a/b/c", 9, 1) == b"9"
        assert await store.get_range("a/b/c", 4, 0) == b""
        for start, length in ((8, 3), (10, 1), (-1, 2)):
            with pytest.raises(ValueError):
                await store.get_range("a/b/c", start, length)
        info = await store.head("a/b/c")
        assert (info.key, info.size) == ("a/b/c", 10)
        assert info.modified_ms > 1_700_000_000_000

    run(story)


def test_empty_and_megabyte_objects(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        big = bytes(range(256)) * (9 << 12)
        await store.put("empty", b"")
        await store.put("big", [big, big[:-1]])
        assert await store.get("empty") == b""
        assert await store.get("big") == big + big[:-1]
        assert await store.get_range("big", len(big) - 2, 4) == big[-2:] + big[:2]

    run(story)


def test_absent_objects_are_not_found(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("folder/x", b"x")
        for key in ("nothing", "folder", "folder/x/y"):
            with pytest.raises(NotFound):
                await store.get(key)
            with pytest.raises(NotFound):
                await store.get_range(key, 0, 1)
            with pytest.raises(NotFound):
                await store.head(key)
        await store.delete(["nothing", "folder/y"])
        await store.delete([])

    run(story)


def test_nothing_is_overwritten(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("k", b"first")
        with pytest.raises(AlreadyExists):
            await store.put("k", b"second")
        await put_again(store, "k", [b"fir", b"st"])
        with pytest.raises(AlreadyExists):
            await put_again(store, "k", b"second")
        assert await store.get("k") == b"first"

    run(story)


def test_of_racing_creators_one_wins(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        bodies = [bytes([65 + n]) * 10_000 for n in range(8)]
        outcomes = await asyncio.gather(
            *(store.put("race", body) for body in bodies), return_exceptions=True
        )
        winners = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome is None]
        assert len(winners) == 1
        assert all(outcome is None or isinstance(outcome, AlreadyExists) for outcome in outcomes)
        assert await store.get("race") == winners[0]

    run(story)


def test_compare_and_swap_follows_the_etag(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        with pytest.raises(Conflict):
            await store.compare_and_swap(
                "k", b"1", (await store.compare_and_swap("other", b"0", None))
            )
        first = await store.compare_and_swap("k", b"1", None)
        with pytest.raises(Conflict):
            await store.compare_and_swap("k", b"2", None)
        assert (await store.head("k")).etag == first
        second = await store.compare_and_swap("k", b"2", first)
        with pytest.raises(Conflict):
            await store.compare_and_swap("k", b"3", first)
        assert await store.get("k") == b"2"
        await store.compare_and_swap("k", b"3", second)
        assert await store.get("k") == b"3"

    run(story)


def test_racing_swaps_lose_no_increment(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await store.put("n", b"0")

        async def increment() -> None:
            while True:
                etag = (await store.head("n")).etag
                data = await store.get("n")
                try:
                    await store.compare_and_swap("n", b"%d" % (int(data) + 1), etag)
                    return
                except Conflict:
                    continue

        await asyncio.gather(*(increment() for _ in range(8)))
        assert await store.get("n") == b"8"

    run(story)


def test_lists_have_an_order_and_resume(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        names = ["p/a/1", "p/a/2", "p/a-b", "p/a.c", "p/b/x/y", "p/c", "q/1", "pp/1"]
        for name in names:
            await store.put(name, b"x")
        below = await keys(store, "p/")
        assert sorted(below) == sorted(name for name in names if name.startswith("p/"))
        assert isinstance(store, S3Store) or below == sorted(below)
        assert sorted(await keys(store, "")) == sorted(names)
        assert await keys(store, "p/a/") == ["p/a/1", "p/a/2"]
        assert await keys(store, "nowhere/") == []
        for position, after in enumerate(below):
            assert await keys(store, "p/", after) == below[position + 1 :]
        await store.delete(["p/a/1", "p/c", "p/never"])
        assert await keys(store, "p/") == [name for name in below if name not in ("p/a/1", "p/c")]
        with pytest.raises(ValueError):
            await keys(store, "p")

    run(story)


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "a/../b", ".tmp/x", "a/.b", "a\0", "a\nb", "x" * 1025]
)
def test_illegal_keys_are_refused(run: Run, key: str) -> None:
    async def story(store: ObjectStore) -> None:
        for call in (
            store.put(key, b""),
            store.get(key),
            store.head(key),
            store.delete([key]),
            store.compare_and_swap(key, b"", None),
        ):
            with pytest.raises(ValueError):
                await call

    run(story)


def test_the_proof_passes_and_leaves_nothing(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        await prove_conditional_writes(store)
        assert await keys(store, "") == []

    run(story)


def test_a_root_belongs_to_one_cluster_and_its_last_start(run: Run) -> None:
    async def story(store: ObjectStore) -> None:
        first = await claim_root(store, "cluster-a", 1, "start-1")
        assert first.previous is None
        assert await owns_root(store, first)
        assert (await claim_root(store, "cluster-a", 1, "start-1")).marker == first.marker
        second = await claim_root(store, "cluster-a", 2, "start-2")
        assert second.previous == first.marker
        assert await owns_root(store, second)
        assert not await owns_root(store, first)
        with pytest.raises(ConfigError, match="another cluster"):
            await claim_root(store, "cluster-b", 9, "start-3")
        with pytest.raises(ConfigError, match="stale copy"):
            await claim_root(store, "cluster-a", 1, "start-4")
        assert await owns_root(store, second)

    run(story)
