"""Objects are copied some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from polynya.base.errors import PolynyaError

COPIES = 4  # objects at the same time


async def at_once(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """As many workers as copies are made at the same time, until each has found nothing more to do. Raises what the first raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(COPIES):
                tasks.create_task(work())
    except* PolynyaError as failed:
        raise failed.exceptions[0] from None
