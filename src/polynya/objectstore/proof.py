"""The startup self-test of the store's conditional writes, which exclusivity relies on. Several
S3-compatible servers ignore them."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

from polynya.base.errors import ConfigError
from polynya.objectstore.api import (
    AlreadyExists,
    Conflict,
    NotFound,
    ObjectStore,
    StoreUnavailable,
    put_again,
)

PARTING_SECONDS = 2.0  # time limit for the cleanup when the test is cancelled
_FOLDER = "self-test"


async def prove_conditional_writes(store: ObjectStore) -> None:
    """Try put-if-absent, compare-and-swap and a range read on a key of its own, then delete it.

    Raises ConfigError naming the failure, or StoreUnavailable if the store cannot be reached.
    """
    key = f"{_FOLDER}/{secrets.token_hex(16)}"
    try:
        await _prove(store, key)
    except asyncio.CancelledError:
        await remove_in_passing(store, key)
        raise
    except BaseException:
        await store.delete([key])
        raise
    await store.delete([key])


async def time_of(store: ObjectStore, name: str) -> int:
    """Return the time of the store's own clock in ms since 1970, from a temporary object.

    `name` belongs to one caller; a leftover of its earlier call is deleted first. Raises
    StoreUnavailable.
    """
    key = f"{_FOLDER}/{name}"
    try:
        await store.delete([key])
        await put_again(store, key, b"")
        modified_ms = (await store.head(key)).modified_ms
        await store.delete([key])
    except asyncio.CancelledError:
        await remove_in_passing(store, key)
        raise
    except (NotFound, AlreadyExists):
        raise StoreUnavailable(
            f"{key}: the object just stored is missing or has other content"
        ) from None
    return modified_ms


async def remove_in_passing(store: ObjectStore, key: str) -> None:
    """Delete a key during cancellation. The process is stopping, so the attempt is bounded in
    time."""
    with suppress(StoreUnavailable, TimeoutError):
        async with asyncio.timeout(PARTING_SECONDS):
            await store.delete([key])


async def _prove(store: ObjectStore, key: str) -> None:
    try:
        await _prove_create(store, key)
        await _prove_swap(store, key)
        if await store.get_range(key, 1, 3) != b"hir":
            raise _broken("does not honour ranges", key)
    except NotFound:
        raise _broken("loses an object that it has just stored", key) from None


async def _prove_create(store: ObjectStore, key: str) -> None:
    await store.put(key, b"first")
    try:
        await store.put(key, b"second")
    except AlreadyExists:
        if await store.get(key) == b"first":
            return
    raise _broken(
        "overwrites an object although told to create it only if absent (If-None-Match: *)", key
    )


async def _prove_swap(store: ObjectStore, key: str) -> None:
    first = (await store.head(key)).etag
    try:
        second = await store.compare_and_swap(key, b"second", first)
    except Conflict:
        raise _broken(
            "refuses a compare-and-swap that names the current ETag (If-Match)", key
        ) from None
    for stale in (first, None):
        try:
            await store.compare_and_swap(key, b"stale", stale)
        except Conflict:
            continue
        raise _broken("accepts a compare-and-swap that names a stale ETag (If-Match)", key)
    await store.compare_and_swap(key, b"third", second)
    if await store.get(key) != b"third":
        raise _broken("does not return the bytes of the last compare-and-swap", key)


def _broken(what: str, key: str) -> ConfigError:
    return ConfigError(
        f"the object store {what} (tested on {key!r}). Two nodes could overwrite each other's "
        "data on it, so it cannot be used: "
        "choose a store with conditional writes (AWS S3, SeaweedFS, recent MinIO, Ceph) or the "
        "backend 'local'."
    )
