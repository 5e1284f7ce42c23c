"""The connections of a core to the other cores of its node, and over these to other nodes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from polynya.node.shutdown_barrier import ShutdownBarrier
from polynya.transport import Transport

MEET_SECONDS = 10.0  # for a core that does not start


class NoLinks:
    """The links of the only core of a standalone node: none."""

    async def start(self) -> None:
        """Have nothing to listen for."""

    async def meet(self) -> None:
        """Have no core to wait for."""

    def unreached(self) -> str | None:
        """Return None: no core can be missing."""
        return None

    async def closed_listeners(self) -> None:
        """Have no core to wait for."""

    async def close(self) -> None:
        """Have nothing to close."""


class CoreLinks:
    """The links of one core of several, or of a cluster's node."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._barrier = ShutdownBarrier(transport)

    async def start(self) -> None:
        """Listen. Other cores send requests from here on: everything they need must exist."""
        await self._transport.start()

    async def meet(self) -> None:
        """Wait until all other cores are connected, or MEET_SECONDS have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MEET_SECONDS):
                await self._transport.wait_met()

    def unreached(self) -> str | None:
        """Return a message if a core has not connected. Running cores report their own health; here
        they only need to connect."""
        missing = ", ".join(map(str, self._transport.missing_cores()))
        return f"core {missing} has not connected to this core" if missing else None

    async def closed_listeners(self) -> None:
        """Report that this core's listeners are closed, and wait for those of the other cores."""
        await self._barrier.say()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()


def links_of(transport: Transport | None) -> NoLinks | CoreLinks:
    """Return the links over this transport; None is the only core of a standalone node."""
    return NoLinks() if transport is None else CoreLinks(transport)
