"""The self-test must catch each way in which S3 look-alikes break their conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from polynya.base.errors import ConfigError
from polynya.objectstore import MemoryStore, NotFound, prove_conditional_writes


class OverwritesOnPut(MemoryStore):
    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> str:
        self.objects.pop(key, None)
        return await super().put(key, parts)


class IgnoresIfMatch(MemoryStore):
    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        return self._store(key, data)


class CreatesOnSwap(MemoryStore):
    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        return self._store(key, data) if expected is None else await super().compare_and_swap(key, data, expected)


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
        (AlwaysConflicts, "right ETag"),
        (IgnoresRange, "ranges"),
        (Forgets, "forgets"),
    ],
)
def test_a_broken_store_is_refused_with_the_reason(kind: type[MemoryStore], reason: str) -> None:
    store = kind()
    with pytest.raises(ConfigError, match=reason):
        asyncio.run(prove_conditional_writes(store))
    assert not store.objects
