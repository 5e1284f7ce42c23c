"""Stop the cores of a node together: no core exits while another still serves requests that need
it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from polynya.transport import Reply, Transport

KIND_FAREWELL = 1003  # other kinds: health, access
PATIENCE_SECONDS = 3.0  # timeout for a core that is hung or gone


class ShutdownBarrier:
    """The shutdown barrier of one core. Each core asks the others to answer when their listeners
    are closed."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._closed = False
        self._asking: dict[int, Reply] = {}  # by core
        transport.on(KIND_FAREWELL, self._hear)

    async def say(self) -> None:
        """Report that this core's listeners are closed. Return when those of all other cores are,
        or after the timeout."""
        self._closed = True
        for reply in self._asking.values():
            reply(b"")
        asked = [self._transport.call(core, KIND_FAREWELL, b"") for core in self._transport.others]
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                # an error: that core has already exited
                await asyncio.gather(*asked, return_exceptions=True)

    def _hear(self, _: bytes, reply: Reply, core: int) -> None:
        if self._closed:
            reply(b"")
        else:
            self._asking[core] = reply
