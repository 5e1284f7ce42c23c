"""Reconnection with exponential backoff and jitter."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from polynya.transport.link import FrameLink

SECONDS = 0.01
SECONDS_MAX = 0.5
Connect = Callable[[], Awaitable[FrameLink]]
"""Returns a new connection after the handshake; raises OSError (TimeoutError included)."""


class Backoff:
    """The backoff of one connection. It is reset after a connection that lasted `SECONDS_MAX`."""

    def __init__(self) -> None:
        self._pause = SECONDS
        self._connected = 0.0
        self._hurry = asyncio.Event()

    def connected(self) -> None:
        self._connected = asyncio.get_running_loop().time()

    async def wait(self) -> None:
        """Wait after a failed attempt or a lost connection."""
        if self._connected and asyncio.get_running_loop().time() - self._connected > SECONDS_MAX:
            self._pause = SECONDS
        self._connected = 0.0
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause * random.uniform(0.5, 1.0)):  # noqa: S311  # only spreads attempts
                await self._hurry.wait()
        self._pause = min(self._pause * 2, SECONDS_MAX)

    def hurry(self) -> None:
        """End the current wait: the next attempt is likely to succeed."""
        self._hurry.set()


async def keep_connected(
    connect: Connect, begin: Callable[[FrameLink], bool], lost: asyncio.Event, backoff: Backoff
) -> None:
    """Keep a connection until cancelled. `begin` takes a new connection and returns whether it is
    still up. The owner sets `lost` when it ends."""
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
