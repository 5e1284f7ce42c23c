"""The transport of one core: what the rooms above use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from polynya.transport.door import Door, Handler, StreamHandler
from polynya.transport.peer import Done, Peer, Subscription

CALL_SECONDS = 60.0  # a call without an answer for so long is given up: the peer hangs
TICK_SECONDS = 0.25


class Transport:
    """All connections of core `core` of `cores`. Register handlers, `start`, and `close` at the end. Not for threads."""

    def __init__(self, core: int, cores: int, directory: str, *, start_id: str = "", call_seconds: float = CALL_SECONDS) -> None:
        def path(number: int) -> str:
            return os.path.join(directory, f"core-{number}.sock")

        self.core = core
        self._door = Door(path(core), start_id)
        self._peers = {
            other: Peer(core, other, path(other), start_id=start_id, call_seconds=call_seconds) for other in range(cores) if other != core
        }
        self._door.on_arrival = self._arrived
        self._tasks: list[asyncio.Task[None]] = []
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def others(self) -> list[int]:
        return list(self._peers)

    def on(self, kind: int, handler: Handler) -> None:
        """`handler(body, reply, core)` answers calls and messages of this kind (0 … 65535), by `reply(bytes or error)`, now or later
        and at most once. What it raises is the answer too: errors of `polynya.base.errors` as they are, others as OutcomeUnknown."""
        assert kind not in self._door.handlers, f"kind {kind} has a handler"
        self._door.handlers[kind] = handler

    def on_stream(self, kind: int, handler: StreamHandler) -> None:
        """`handler(body, push, core)` serves subscriptions of this kind through `push`."""
        assert kind not in self._door.stream_handlers, f"kind {kind} has a handler"
        self._door.stream_handlers[kind] = handler

    async def start(self) -> None:
        """Listen, and connect in the background to whoever is there."""
        loop = asyncio.get_running_loop()
        await self._door.open()
        self._tick()
        self._tasks = [loop.create_task(peer.keep(), name=f"transport to core {core}") for core, peer in self._peers.items()]

    async def close(self) -> None:
        """Drop all connections; every open call and subscription is told."""
        if self._ticker is not None:
            self._ticker.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._door.close()

    async def wait_connected(self) -> None:
        """Until every other core was reached."""
        for peer in self._peers.values():
            await peer.wait_connected()

    async def wait_met(self) -> None:
        """Until every other core was reached and has reached this one: from then on neither finds the other missing."""
        await self.wait_connected()
        await self._door.wait_for(self._peers.keys())

    def strangers(self) -> list[int]:
        """Cores that have not reached this one, which they will soon: until then what they ask of it waits, or fails."""
        return sorted(self._peers.keys() - self._door.present)

    def call_nowait(self, core: int, kind: int, body: bytes, done: Done) -> None:
        """Ask another core. `done` is called once with the answer, Unavailable (not applied; perhaps before this returns) or
        OutcomeUnknown."""
        self._peers[core].call_nowait(kind, body, done)

    async def call(self, core: int, kind: int, body: bytes) -> bytes:
        """`call_nowait` for those who may wait; raises the error."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def done(answer: bytes | BaseException) -> None:
            if future.cancelled():
                return
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self._peers[core].call_nowait(kind, body, done)
        return await future

    def send(self, core: int, kind: int, body: bytes) -> bool:
        """A message without an answer, at most once; False when it was refused."""
        return self._peers[core].send(kind, body)

    def subscribe(
        self,
        core: int,
        kind: int,
        body: bytes,
        on_item: Callable[[bytes], None],
        on_end: Callable[[BaseException | None], None],
    ) -> Subscription:
        """Messages from another core until it ends them (`on_end(None)`), the connection breaks or this side lags (`on_end(error)`;
        perhaps before this returns), or `cancel` of what is returned."""
        return self._peers[core].subscribe(kind, body, on_item, on_end)

    def counters(self) -> dict[str, int]:
        """For metrics: connected peers, calls without an answer yet, calls refused and failed so far."""
        peers = self._peers.values()
        return {
            "connected": sum(peer.connected for peer in peers),
            "outstanding": sum(peer.outstanding for peer in peers),
            "refused": sum(peer.refused for peer in peers),
            "failed": sum(peer.failed for peer in peers),
        }

    def _arrived(self, core: int) -> None:
        """It is there, so it can be reached."""
        if core in self._peers:
            self._peers[core].hurry()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for peer in self._peers.values():
            peer.tick(now)
        self._ticker = loop.call_later(TICK_SECONDS, self._tick)
