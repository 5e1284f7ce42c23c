"""Reads of the meta group's settings that a core repeats at most once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from polynya.base.errors import PolynyaError

FRESH_SECONDS = 1.0  # a change is effective on all nodes after it
READ_SECONDS = 2.0  # the longest wait for a meta group without a leader


class FreshReads:
    """The reads of one copy of settings. `read` replaces the copy and returns the number of its last
    change; it raises Unavailable."""

    def __init__(self, read: Callable[[], Awaitable[int]]) -> None:
        self._read = read
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    @property
    def is_fresh(self) -> bool:
        """Report whether the copy is of the last second."""
        return _now() - self._read_at < FRESH_SECONDS

    async def now(self) -> int:
        """Read, and return the number of the last change. Raises Unavailable."""
        version = await self._read()
        self._read_at = _now()
        return version

    async def refresh(self) -> None:
        """Read unless the copy is of the last second. While the meta group does not answer, the last
        one stays in use."""
        async with self._reading:
            if self.is_fresh:
                return
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await self.now()
            except (PolynyaError, TimeoutError):
                self._read_at = _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
