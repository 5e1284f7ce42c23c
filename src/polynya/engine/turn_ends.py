"""Waiting for the end of a core's turn, for both turn loops."""

from __future__ import annotations

import asyncio

from polynya.base.errors import Unavailable
from polynya.base.futures import settle


def journal_failed() -> Unavailable:
    """Return the error for requests to a core whose journal has failed."""
    return Unavailable("the journal has failed; this core is shutting down")


class TurnEnds:
    """The waiters for the end of a core's turn; `len` counts them."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self.waiting)

    async def wait(self, dead: BaseException | None) -> None:
        """Wait for the end of the next turn. Raises Unavailable if the core is `dead`."""
        if dead is not None:
            raise journal_failed()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        await waiter

    def tell(self) -> None:
        """Wake all waiters: a turn has ended, or the core is dead."""
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            settle(waiter, None)
