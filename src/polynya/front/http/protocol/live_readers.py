"""The live readers of one front: event streams and long-polls, and the confirmation of their tails.

Later events may already be acknowledged elsewhere when a follower publishes one, so its control
event omits `upToDate`. Shortly afterwards the front gets the tail from the leader, once per stream
for all its readers. Readers that are at the leader's tail then get the confirmation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from polynya.access import Principal
from polynya.base.errors import PolynyaError
from polynya.local.api import Refusal, StreamInfo
from polynya.routing.handle import StreamHandle
from polynya.service.live import LiveStreams

Spawn = Callable[[Coroutine[Any, Any, None]], object]

ASK_SECONDS = 0.1  # interval for a stream with continuous writes
AGAIN_SECONDS = 1.0  # retry interval without a leader


class Unconfirmed(Protocol):
    """A follower of one stream that wants its tail confirmed."""

    @property
    def stream(self) -> StreamHandle: ...

    def confirm(self, info: StreamInfo | Refusal) -> None:
        """Handle facts that include every acknowledged record."""
        ...


class LiveReader(Protocol):
    """The reader of an event stream, of one stream or of many."""

    @property
    def principal(self) -> Principal | None: ...

    def sweep(self, tick: int) -> None:
        """Send keep-alives, and end the response after its lifetime."""
        ...

    def charge(self) -> None:
        """Charge the caller for the bytes sent, and pause if it is over its limit."""
        ...

    def finish(self) -> None:
        """End the response; the client resumes."""
        ...


class Waiter(Protocol):
    """A long-poll."""

    def expire(self) -> None:
        """Respond now."""
        ...


class TailConfirmation:
    """The tail confirmation of one front."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._unconfirmed: dict[Unconfirmed, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def request(self, reader: Unconfirmed) -> None:
        """Register a reader whose last event may not be the tail."""
        self._unconfirmed[reader] = None
        self._ask_in(ASK_SECONDS)

    def forget(self, reader: Unconfirmed) -> None:
        self._unconfirmed.pop(reader, None)

    def close(self) -> None:
        self._unconfirmed.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _ask_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                seconds, lambda: self._spawn(self._ask_all())
            )

    async def _ask_all(self) -> None:
        readers, self._unconfirmed = self._unconfirmed, {}
        by_name: dict[str, list[Unconfirmed]] = {}
        for reader in readers:
            by_name.setdefault(reader.stream.name, []).append(reader)
        try:
            await asyncio.gather(*map(self._ask, by_name.values()))
        finally:
            self._timer = None
        if self._unconfirmed:
            self._ask_in(
                AGAIN_SECONDS if not self._unconfirmed.keys().isdisjoint(readers) else ASK_SECONDS
            )

    async def _ask(self, waiting: list[Unconfirmed]) -> None:
        try:
            info = await waiting[0].stream.info()
        except PolynyaError:
            self._unconfirmed.update(dict.fromkeys(waiting))
            return
        for reader in waiting:
            reader.confirm(info)


class LiveReaders:
    """The live readers of one front."""

    def __init__(self, spawn: Spawn) -> None:
        self.live: dict[LiveReader, None] = {}  # event streams …
        self.metered: dict[LiveReader, None] = {}  # … whose callers have a byte rate limit
        self.waiters: set[Waiter] = set()  # long-polls
        self.many: LiveStreams | None = None  # for readers of many streams
        self.tail_confirmation = TailConfirmation(spawn)

    def add(self, reader: LiveReader, *, is_metered: bool) -> None:
        """Add an event stream. `is_metered`: its caller has a byte rate limit."""
        self.live[reader] = None
        if is_metered:
            self.metered[reader] = None

    def discard(self, reader: LiveReader) -> None:
        """Remove an event stream that has ended."""
        self.live.pop(reader, None)
        self.metered.pop(reader, None)

    def sweep(self, tick: int) -> None:
        """Sweep the event streams, and release readers whose clients do not poll again."""
        for reader in tuple(self.live):
            reader.sweep(tick)
        if self.many is not None:
            self.many.parked.sweep(tick)

    def charge(self) -> None:
        """Charge live readers for the bytes sent, and pause those over their limit. Runs
        periodically, not per event."""
        for reader in tuple(self.metered):
            reader.charge()

    def let_go(self) -> None:
        """End the event streams of revoked principals, and all long-polls."""
        for reader in tuple(self.live):
            if reader.principal is not None and not reader.principal.alive:
                reader.finish()
        self._expire()

    def stop(self) -> None:
        """End all event streams and long-polls."""
        self._expire()
        for reader in tuple(self.live):
            reader.finish()
        if self.many is not None:
            self.many.parked.clear()

    def _expire(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.expire()
