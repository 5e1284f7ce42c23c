"""Confirm to live readers of a follower that they are at the tail, once the leader agrees.

Later events may already be acknowledged elsewhere when a follower publishes one, so its control
event omits `upToDate`. Shortly afterwards the front gets the tail from the leader, once per stream
for all its readers. Readers that are at the leader's tail then get the confirmation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from polynya.base.errors import PolynyaError
from polynya.local.api import Refusal, StreamInfo

ASK_SECONDS = 0.1  # interval for a stream with continuous writes
AGAIN_SECONDS = 1.0  # retry interval without a leader


class TailConfirmer(Protocol):
    @property
    def name(self) -> str: ...

    def confirm(self, info: StreamInfo | Refusal) -> None:
        """Handle facts that include every acknowledged record."""
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
        self._doubters: dict[TailConfirmer, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def doubt(self, doubter: TailConfirmer) -> None:
        """Register a reader whose last event may not be the tail."""
        self._doubters[doubter] = None
        self._ask_in(ASK_SECONDS)

    def forget(self, doubter: TailConfirmer) -> None:
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
        by_name: dict[str, list[TailConfirmer]] = {}
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

    async def _ask(self, name: str, waiting: list[TailConfirmer]) -> None:
        try:
            info = await self._facts(name)
        except PolynyaError:
            self._doubters.update(dict.fromkeys(waiting))
            return
        for doubter in waiting:
            doubter.confirm(info)
