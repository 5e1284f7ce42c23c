"""Objects are copied some at a time, and what a store does not take at once is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from polynya.base.errors import PolynyaError
from polynya.objectstore import StoreUnavailable

COPIES = 4  # objects at the same time
PAUSES = (0.3, 1.5, 5.0)  # seconds before each further try of a write
T = TypeVar("T")


async def at_once(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """As many workers as copies are made at the same time, until each has found nothing more to do. Raises what the first raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(COPIES):
                tasks.create_task(work())
    except ExceptionGroup as failed:
        raise first_of(failed, PolynyaError) from None


def first_of(failed: ExceptionGroup[Exception], kind: type[Exception]) -> Exception:
    """The first exception of that kind; the group itself when it has none. (Before 3.11.4 Python wraps what is raised in `except*` in a group.)"""
    known = failed.subgroup(kind)
    return failed if known is None else known.exceptions[0]


async def patiently(write: Callable[[], Awaitable[T]]) -> T:
    """Of thousands of writes one or another is answered 503: that is not the end of all. `write` may be done more than once. Raises what it raises."""
    for pause in PAUSES:
        try:
            return await write()
        except StoreUnavailable:
            await asyncio.sleep(pause)
    return await write()
