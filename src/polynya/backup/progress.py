"""Run copies concurrently, and retry writes that the store refuses temporarily."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from polynya.base.errors import PolynyaError
from polynya.objectstore import StoreUnavailable

COPIES = 4  # objects copied concurrently
PAUSES = (0.3, 1.5, 5.0)  # seconds before each retry of a write
T = TypeVar("T")


async def at_once(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run COPIES workers until each finds no more work. Raises the first worker's error."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(COPIES):
                tasks.create_task(work())
    except ExceptionGroup as failed:
        raise first_of(failed, PolynyaError) from None


def first_of(failed: ExceptionGroup[Exception], kind: type[Exception]) -> Exception:
    """Return the first exception of that kind, or the group itself if it has none.

    (Before 3.11.4 Python wraps exceptions raised in `except*` in a group.)
    """
    known = failed.subgroup(kind)
    return failed if known is None else known.exceptions[0]


async def patiently(write: Callable[[], Awaitable[T]]) -> T:
    """Run `write` with retries, because among thousands of writes some get 503. `write` must be
    idempotent. Raises what it raises."""
    for pause in PAUSES:
        try:
            return await write()
        except StoreUnavailable:
            await asyncio.sleep(pause)
    return await write()
