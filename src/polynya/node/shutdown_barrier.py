"""The cores of a node stop together: none goes away while another still answers requests that need it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from polynya.transport import Reply, Transport

KIND_FAREWELL = 1003  # beside those of health (below) and access
PATIENCE_SECONDS = 3.0  # with a core that does not stop, or is gone


class ShutdownBarrier:
    """Of one core. Each asks the others whether their doors are closed, and is answered once they are."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._closed = False
        self._asking: dict[int, Reply] = {}  # by core
        transport.on(KIND_FAREWELL, self._hear)

    async def say(self) -> None:
        """This core's doors are closed: returns when those of all others are, or patience is over."""
        self._closed = True
        for reply in self._asking.values():
            reply(b"")
        asked = [self._transport.call(core, KIND_FAREWELL, b"") for core in self._transport.others]
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*asked, return_exceptions=True)  # an error: that core is gone already

    def _hear(self, _: bytes, reply: Reply, core: int) -> None:
        if self._closed:
            reply(b"")
        else:
            self._asking[core] = reply
