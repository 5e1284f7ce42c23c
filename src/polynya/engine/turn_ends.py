"""Whoever waits for the end of a turn of a core, whichever its log is."""

from __future__ import annotations

import asyncio

from polynya.base.errors import Unavailable
from polynya.base.futures import settle


def journal_failed() -> Unavailable:
    """What a core says to whoever comes when its journal is broken."""
    return Unavailable("the journal has failed; this core is going down")


class TurnEnds:
    """Of one core; its length is the number of those who wait."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, dead: BaseException | None) -> None:
        """For the next one. Raises Unavailable when there will be none, because the core is `dead`."""
        if dead is not None:
            raise journal_failed()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def tell(self) -> None:
        """A turn has ended, or the core is dead."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            settle(waiter, None)
