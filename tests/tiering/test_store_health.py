"""Reports on a failing object store: only lasting failures, with the reason, until it works again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from sim.loop import run_simulated

from polynya.objectstore import MemoryStore, NotFound, StoreUnavailable, WatchedStore
from polynya.tiering.store_health import StoreAccess

Story = Callable[["Faulty", StoreAccess], Coroutine[Any, Any, None]]


class Faulty(MemoryStore):
    """Refuses writes, or reads, while told to."""

    no_writes = no_reads = False

    async def put(self, key: str, parts: Any) -> None:
        self._refuse(self.no_writes)
        await super().put(key, parts)

    async def get(self, key: str) -> bytes:
        self._refuse(self.no_reads)
        return await super().get(key)

    def _refuse(self, refuses: bool) -> None:
        if refuses:
            raise StoreUnavailable(
                "s3://secret-bucket/: PUT http://secret/key: 403 Forbidden: AccessDenied",
                "403 Forbidden: AccessDenied",
            )


def run_story(story: Story) -> None:
    async def main() -> None:
        store = Faulty()
        access = StoreAccess(WatchedStore(store, asyncio.get_running_loop().time), lambda: None)
        task = asyncio.ensure_future(access.run())
        await story(store, access)
        task.cancel()

    run_simulated(main())


def test_writes_that_fail_for_long_are_told_until_one_works() -> None:
    async def story(store: Faulty, access: StoreAccess) -> None:
        store.no_writes = True
        with pytest.raises(StoreUnavailable):
            await access.store.put("k", b"")
        await asyncio.sleep(10)
        assert access.trouble() is None and access.failing() == 0.0, "it may be over soon"
        await asyncio.sleep(30)  # no writes: it retries on its own
        assert (
            access.trouble()
            == "nothing could be written to it for 40 s: 403 Forbidden: AccessDenied"
        )
        assert access.samples() == {"polynya_object_store_failing_seconds": pytest.approx(40.0)}
        assert not await access.can_write()
        store.no_writes = False
        await asyncio.sleep(7)
        assert access.trouble() is None and access.failing() == 0.0
        assert await access.can_write()
        assert not store.objects, "what it tries it removes"

    run_story(story)


def test_a_no_of_the_store_is_an_answer() -> None:
    async def story(store: Faulty, access: StoreAccess) -> None:
        for _ in range(50):
            with pytest.raises(NotFound):
                await access.store.get("k")
            await asyncio.sleep(1)
        assert access.trouble() is None

    run_story(story)


def test_reads_that_failed_are_told_while_that_is_of_now() -> None:
    async def story(store: Faulty, access: StoreAccess) -> None:
        store.no_reads = True
        for _ in range(30):
            with suppress(StoreUnavailable):
                await access.store.get("k")
            await asyncio.sleep(1)
        assert (access.trouble() or "").startswith("nothing could be read from it for 30 s")
        assert access.failing() == 0.0, "others can do nothing about that"
        await asyncio.sleep(60)
        assert access.trouble() is None

    run_story(story)


def test_who_is_asked_tries_it_and_says_what_is_now() -> None:
    async def story(store: Faulty, access: StoreAccess) -> None:
        assert await access.can_write()
        store.no_writes = True
        await asyncio.sleep(10)  # of the write that worked nothing follows any more
        assert not await access.can_write()

    run_story(story)


def test_a_store_that_is_not_claimed_is_none() -> None:
    async def main() -> None:
        access = StoreAccess(
            WatchedStore(MemoryStore(), asyncio.get_running_loop().time),
            lambda: "it does not answer",
        )
        assert access.trouble() == "it does not answer"
        assert not await access.can_write()
        assert access.failing() == 0.0
        await asyncio.sleep(21)
        assert access.failing() == pytest.approx(21.0)

    run_simulated(main())


def test_a_try_that_gets_no_answer_does_not_hold_up_the_end() -> None:
    class Silent(MemoryStore):
        async def put(self, key: str, parts: Any) -> None:
            await asyncio.Event().wait()

        async def delete(self, keys: Any) -> None:
            await asyncio.Event().wait()

    async def main() -> float:
        loop = asyncio.get_running_loop()
        access = StoreAccess(WatchedStore(Silent(), loop.time), lambda: None)
        trying = asyncio.ensure_future(access.can_write())
        await asyncio.sleep(1)
        began = loop.time()
        trying.cancel()
        await asyncio.wait([trying])
        return loop.time() - began

    assert run_simulated(main()) < 5.0
