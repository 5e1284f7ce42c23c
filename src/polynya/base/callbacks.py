"""Wait for the outcome of an operation that calls back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from polynya.base.futures import settle

Outcome = TypeVar("Outcome")


async def completion_of(
    begin: Callable[[Callable[[Outcome | BaseException], None]], object],
) -> Outcome:
    """Begin an operation with its callback, and return what that gets. Raises it, if it is an
    exception."""
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    begin(partial(settle, future))
    return await future
