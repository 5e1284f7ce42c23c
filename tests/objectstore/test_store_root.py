"""Ownership of a root: a start claims it, until another start does or the owner reports its stop."""

from __future__ import annotations

import asyncio

import pytest

from polynya.base.errors import ConfigError
from polynya.objectstore import (
    MARKER_KEY,
    MemoryStore,
    claim_root,
    owns_root,
    read_root,
    release_root,
)


def test_a_root_is_claimed_released_and_claimed_again() -> None:
    async def story() -> None:
        store = MemoryStore()
        assert await read_root(store) is None
        first = await claim_root(store, "c1", 1, "start-1")
        assert await owns_root(store, first)
        await release_root(store, first)
        marker = await read_root(store)
        assert marker is not None and marker.start_id == "" and marker.cluster_id == "c1"
        assert not await owns_root(store, first)
        await release_root(store, first)
        with pytest.raises(ConfigError, match="another cluster"):
            await claim_root(store, "c2", 1, "start-2")
        second = await claim_root(store, "c1", 1, "start-2")
        await release_root(store, first)  # late: it is the other's by now
        assert await owns_root(store, second)

    asyncio.run(story())


@pytest.mark.parametrize("data", [b"{}", b"", b'{"cluster_id":"\xff"}'])
def test_what_is_no_marker_is_no_root(data: bytes) -> None:
    async def story() -> None:
        store = MemoryStore()
        await store.put(MARKER_KEY, data)
        with pytest.raises(ConfigError, match="not a root marker"):
            await read_root(store)

    asyncio.run(story())
