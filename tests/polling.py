"""Waiting with a deadline, the only place in the tests that sleeps: for another process, or for
what this process does on a real loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Found = TypeVar("Found")
PAUSES = (0.05, 0.25)  # seconds between two looks, at first and at last


def wait_until(
    look: Callable[[], Found | None], *, what: str, seconds: float = 60.0, pause: float = 0.0
) -> Found:
    """Return the first truthy answer of `look`; raise an AssertionError naming `what` after
    `seconds`. Without a `pause`, looks grow rare: a look may be a command, and what it waits for
    needs the CPU."""
    began = time.monotonic()
    while True:
        if found := look():
            return found
        waited = time.monotonic() - began
        assert waited < seconds, f"waited {seconds:g} s in vain for: {what}"
        least, most = PAUSES
        time.sleep(pause or min(most, max(least, waited / 20)))


async def wait_for(
    look: Callable[[], Any], *, what: str = "", seconds: float = 60.0, pause: float = 0.001
) -> Any:
    """`wait_until` on a loop, by its clock. `look` may be a coroutine function."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while True:
        found = look()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert clock() < deadline, f"waited {seconds:g} s in vain for: {what or _source(look)}"
        await asyncio.sleep(pause)


async def turns(count: int = 100) -> None:
    """Let the loop pass that many times, for work in this process and on loopback that must have
    no effect. It depends on no time that a slow machine could exceed."""
    for _ in range(count):
        await asyncio.sleep(0)


def _source(look: Callable[[], Any]) -> str:
    """Return the lines of a condition that has no name."""
    try:
        return inspect.getsource(look).strip()
    except OSError:
        return repr(look)
