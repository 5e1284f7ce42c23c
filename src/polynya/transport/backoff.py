"""Connecting again and again: how long to wait before the next attempt, longer each time, and not all at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from polynya.transport.link import FrameLink

SECONDS = 0.01
SECONDS_MAX = 0.5
Connect = Callable[[], Awaitable[FrameLink]]
"""A new connection, greeted and ready; raises OSError (which TimeoutError is)."""


class Backoff:
    """Of one connection. A connection that lasted for `SECONDS_MAX` begins anew."""

    def __init__(self) -> None:
        self._pause = SECONDS
        self._connected = 0.0
        self._hurry = asyncio.Event()

    def connected(self) -> None:
        self._connected = asyncio.get_running_loop().time()

    async def wait(self) -> None:
        """After a failure, or after a connection was lost."""
        if self._connected and asyncio.get_running_loop().time() - self._connected > SECONDS_MAX:
            self._pause = SECONDS
        self._connected = 0.0
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause * random.uniform(0.5, 1.0)):  # noqa: S311  # only spreads attempts
                await self._hurry.wait()
        self._pause = min(self._pause * 2, SECONDS_MAX)

    def hurry(self) -> None:
        """Whoever waits need not: the next attempt is likely to succeed."""
        self._hurry.set()


async def keep_connected(connect: Connect, begin: Callable[[FrameLink], bool], lost: asyncio.Event, backoff: Backoff) -> None:
    """Until cancelled. `begin` takes a new connection and says whether it is still up; the owner sets `lost` when that is over."""
    while True:
        lost.clear()
        try:
            link = await connect()
        except OSError:
            await backoff.wait()
            continue
        if begin(link):
            backoff.connected()
            await lost.wait()
        await backoff.wait()
