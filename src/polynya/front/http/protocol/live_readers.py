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

ASK_SECONDS = 0.1  # interval for a stream with continuous writes
AGAIN_SECONDS = 1.0  # retry interval without a leader


class LiveReader(Protocol):
    """The reader of an event stream."""

    @property
    def name(self) -> str: ...

    @property
    def principal(self) -> Principal | None: ...

    def confirm(self, info: StreamInfo | Refusal) -> None:
        """Handle facts that include every acknowledged record."""
        ...

    def sweep(self, tick: int) -> None:
        """Send keep-alives, and end the response after its lifetime."""
        ...

    def settle(self) -> None:
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

    def __init__(
        self,
        info: Callable[[str], Coroutine[Any, Any, StreamInfo | Refusal]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._facts = info
        self._spawn = spawn
        self._doubters: dict[LiveReader, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def doubt(self, doubter: LiveReader) -> None:
        """Register a reader whose last event may not be the tail."""
        self._doubters[doubter] = None
        self._ask_in(ASK_SECONDS)

    def forget(self, doubter: LiveReader) -> None:
        self._doubters.pop(doubter, None)

    def close(self) -> None:
        self._doubters.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _ask_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                seconds, lambda: self._spawn(self._ask_all())
            )

    async def _ask_all(self) -> None:
        doubters, self._doubters = self._doubters, {}
        by_name: dict[str, list[LiveReader]] = {}
        for doubter in doubters:
            by_name.setdefault(doubter.name, []).append(doubter)
        try:
            await asyncio.gather(*(self._ask(name, waiting) for name, waiting in by_name.items()))
        finally:
            self._timer = None
        if self._doubters:
            self._ask_in(
                AGAIN_SECONDS if not self._doubters.keys().isdisjoint(doubters) else ASK_SECONDS
            )

    async def _ask(self, name: str, waiting: list[LiveReader]) -> None:
        try:
            info = await self._facts(name)
        except PolynyaError:
            self._doubters.update(dict.fromkeys(waiting))
            return
        for doubter in waiting:
            doubter.confirm(info)


class LiveReaders:
    """The live readers of one front."""

    def __init__(
        self,
        info: Callable[[str], Coroutine[Any, Any, StreamInfo | Refusal]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.live: dict[LiveReader, None] = {}  # event streams …
        self.metered: dict[LiveReader, None] = {}  # … whose callers have a byte rate limit
        self.waiters: set[Waiter] = set()  # long-polls
        self.tail_confirmation = TailConfirmation(info, spawn)

    def add(self, reader: LiveReader, *, is_metered: bool) -> None:
        """Add an event stream. `is_metered`: its caller has a byte rate limit."""
        self.live[reader] = None
        if is_metered:
            self.metered[reader] = None

    def discard(self, reader: LiveReader) -> None:
        """Remove an event stream that has ended."""
        self.live.pop(reader, None)
        self.metered.pop(reader, None)
        self.tail_confirmation.forget(reader)

    def sweep(self, tick: int) -> None:
        """Sweep the event streams."""
        for reader in tuple(self.live):
            reader.sweep(tick)

    def settle(self) -> None:
        """Charge live readers for the bytes sent, and pause those over their limit. Runs
        periodically, not per event."""
        for reader in tuple(self.metered):
            reader.settle()

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

    def _expire(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.expire()
