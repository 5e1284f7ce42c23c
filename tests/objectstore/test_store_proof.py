"""The self-test must catch each way in which S3 look-alikes break their conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from sim.loop import run_simulated

from polynya.base.errors import ConfigError
from polynya.objectstore import MemoryStore, NotFound, prove_conditional_writes
from polynya.objectstore.proof import PARTING_SECONDS


class OverwritesOnPut(MemoryStore):
    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        self.objects.pop(key, None)
        await super().put(key, parts)


class IgnoresIfMatch(MemoryStore):
    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        return self._store(key, data)


class CreatesOnSwap(MemoryStore):
    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        return (
            self._store(key, data)
            if expected is None
            else await super().compare_and_swap(key, data, expected)
        )


class AlwaysConflicts(MemoryStore):
    async def head(self, key: str):  # type: ignore[no-untyped-def]
        info = await super().head(key)
        return type(info)(info.key, info.size, "other", info.modified_ms)


class IgnoresRange(MemoryStore):
    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self.get(key)


class Forgets(MemoryStore):
    async def head(self, key: str):  # type: ignore[no-untyped-def]
        raise NotFound(key)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (OverwritesOnPut, "If-None-Match"),
        (IgnoresIfMatch, "stale ETag"),
        (CreatesOnSwap, "stale ETag"),
        (AlwaysConflicts, "current ETag"),
        (IgnoresRange, "ranges"),
        (Forgets, "loses an object"),
    ],
)
def test_a_broken_store_is_refused_with_the_reason(kind: type[MemoryStore], reason: str) -> None:
    store = kind()
    with pytest.raises(ConfigError, match=reason):
        asyncio.run(prove_conditional_writes(store))
    assert not store.objects


class Silent(MemoryStore):
    """A server that accepts requests and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        self.asked.append("put")
        await asyncio.Event().wait()

    async def delete(self, keys: Sequence[str]) -> None:
        self.asked.append("delete")
        await asyncio.Event().wait()


def test_a_node_that_stops_does_not_wait_for_a_store_that_does_not_answer() -> None:
    store = Silent()

    async def story() -> float:
        loop = asyncio.get_running_loop()
        proving = asyncio.ensure_future(prove_conditional_writes(store))
        await asyncio.sleep(1)
        began = loop.time()
        proving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await proving
        return loop.time() - began

    assert run_simulated(story()) == pytest.approx(PARTING_SECONDS)
    assert store.asked == ["put", "delete"], "it was tried, if it had only been slow"
