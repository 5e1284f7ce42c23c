"""The asyncio worker: it yields jobs one by one, and a task renews the lease while a job is
handled."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from polynya.client.aio.driver import AsyncDriver
from polynya.client.handles import Membership
from polynya.client.leases import Job
from polynya.client.live.feeds import AsyncFeed
from polynya.client.workers import Worker

if TYPE_CHECKING:
    from polynya.client.aio.wire import AsyncWire


class AsyncWork(Membership, AsyncIterator[Job]):
    """Iterate over it for jobs. `async with` creates the group before the block starts, and
    releases the lease at its end;
    an exception in the block gives the job in hand back."""

    def __init__(self, wire: AsyncWire, worker: Worker, *, wait: bool) -> None:
        super().__init__(worker)
        self._wire = wire
        self._feed = AsyncFeed(wire, worker.work(wait=wait))
        self._beater: asyncio.Task[None] | None = None
        self._is_over = False

    async def __aenter__(self) -> AsyncWork:
        await AsyncDriver(self._wire).run(self._worker.join())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._close(error)

    async def __anext__(self) -> Job:
        if self._beater is None and not self._is_over:
            self._beater = asyncio.get_running_loop().create_task(
                self._beat(self._worker.beat_seconds), name="lease"
            )
        try:
            return await anext(self._feed)
        except asyncio.CancelledError:
            raise  # the next call resumes
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Acknowledge the handled records and release the lease at once."""
        await self._close(None)

    async def _close(self, error: BaseException | None) -> None:
        """Close. After an error in the block the job in hand is given back."""
        self._is_over = True
        await self._feed.close()
        if self._beater is not None:
            self._beater.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beater
        if (closing_request := self._worker.closing_request(error)) is not None:
            await self._wire.send(closing_request)  # best effort: the lease expires otherwise
        if self._beater is not None and (leave := self._worker.leave()) is not None:
            self._beater = None
            await self._wire.send(leave)

    async def _beat(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            for request, take in self._worker.beats(time.monotonic()):
                take(await self._wire.send(request))
