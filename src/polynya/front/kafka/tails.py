"""The ends of partitions as one core follows them, and the fetches that wait there for records.

A partition is followed by a tail watch, which stays attached between the fetches of its consumers:
a fetch that finds nothing new costs no subscription of its own.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from polynya.local.api import LiveEvent, Refusal, Sink
from polynya.routing.handle import StreamHandle

UNUSED_SECONDS = 60  # a partition that no fetch has named for this time is followed no more


class TailService(Protocol):
    """The part of the service that follows no longer."""

    def detach(self, uid: int, sink: Sink) -> None: ...


class ParkedFetch:
    """A fetch that waits until its partitions have grown by so many bytes."""

    __slots__ = ("_missing", "_woken", "is_touched")

    def __init__(self, missing: int) -> None:
        self._missing = missing
        self.is_touched = False  # a partition has changed, enough to end the wait or not
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def grown(self, size: int) -> None:
        self.is_touched = True
        self._missing -= size
        if self._missing <= 0:
            self.wake()

    def renew(self) -> None:
        """Wait once more: nothing has changed."""
        if self._woken.done() and not self.is_touched:
            self._woken = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """End the wait now."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait_until(self, when: float) -> None:
        """Wait until the partitions have grown, or until this time of the loop."""
        timer = asyncio.get_running_loop().call_at(when, self.wake)
        try:
            await self._woken
        finally:
            timer.cancel()


class Tail:
    """The end of one partition, and the fetches that wait for more; a sink of its stream."""

    uncommitted = True
    __slots__ = ("high", "is_live", "parked", "stable", "uid", "used")

    def __init__(self, tick: int) -> None:
        self.uid = 0
        self.high = 0  # the next record, as the last event gave it
        self.stable = 0  # the next record before all open transactions
        self.is_live = True  # False: the stream is gone, or events were missed
        self.parked: dict[ParkedFetch, None] = {}
        self.used = tick  # the tick of the last fetch

    def live(self, event: LiveEvent) -> None:
        if event.gone or event.cut:
            self.is_live = False
            for fetch in tuple(self.parked):
                fetch.is_touched = True
                fetch.wake()
            return
        self.high = max(self.high, event.record)
        if not event.unstable:
            self.stable = max(self.stable, event.record)
        size = event.byte - event.begin_byte
        for fetch in tuple(self.parked):
            fetch.grown(size)


class Tails:
    """The followed partitions of one core, by the names of their streams."""

    def __init__(self, service: TailService) -> None:
        self._service = service
        self._tails: dict[str, Tail] = {}
        self._tick = 0

    def __len__(self) -> int:
        return len(self._tails)

    def known(self, name: str) -> Tail | None:
        """Return the tail of a partition that is followed."""
        tail = self._tails.get(name)
        if tail is None or not tail.is_live:
            return None
        tail.used = self._tick
        return tail

    async def follow(self, stream: StreamHandle) -> Tail | None:
        """Follow a partition; None: its stream is not there. Raises Unavailable."""
        tail = Tail(self._tick)
        info = await stream.attach(tail, numbers=True)
        if isinstance(info, Refusal):
            return None
        tail.uid, tail.high = info.uid, max(tail.high, info.high_watermark)
        tail.stable = max(tail.stable, info.record)
        known = self.known(stream.name)
        if known is not None:  # another fetch was faster
            self._service.detach(tail.uid, tail)
            return known
        self._tails[stream.name] = tail
        return tail

    def sweep(self, tick: int) -> None:
        """Follow no longer what no fetch has named for a while."""
        self._tick = tick
        for name, tail in tuple(self._tails.items()):
            if not tail.parked and tick - tail.used > UNUSED_SECONDS:
                del self._tails[name]
                if tail.is_live:
                    self._service.detach(tail.uid, tail)
                    tail.is_live = False
