"""Live readers of a replica that does not lead are told that they have everything once the leader has said so.

An event that such a replica hears of may already be followed by others that were acknowledged elsewhere, so its control event does not say
`upToDate`. A moment later the leader is asked, once for a stream however many its readers, and those that are at the tail are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from polynya.base.errors import PolynyaError
from polynya.service.api import Facts, Refusal

ASK_SECONDS = 0.1  # a stream that is written all the time is asked for no more often
AGAIN_SECONDS = 1.0  # when there was no leader to ask


class TailConfirmer(Protocol):
    @property
    def name(self) -> str: ...

    def assure(self, facts: Facts | Refusal) -> None:
        """All that was acknowledged is in these facts."""
        ...


class TailConfirmation:
    """Of one front."""

    def __init__(
        self, facts: Callable[[str], Coroutine[Any, Any, Facts | Refusal]], spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._facts = facts
        self._spawn = spawn
        self._doubters: dict[TailConfirmer, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def doubt(self, doubter: TailConfirmer) -> None:
        """It was told something that may not be the last."""
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
            self._timer = asyncio.get_running_loop().call_later(seconds, lambda: self._spawn(self._ask_all()))

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
            self._ask_in(AGAIN_SECONDS if not self._doubters.keys().isdisjoint(doubters) else ASK_SECONDS)

    async def _ask(self, name: str, waiting: list[TailConfirmer]) -> None:
        try:
            facts = await self._facts(name)
        except PolynyaError:
            self._doubters.update(dict.fromkeys(waiting))
            return
        for doubter in waiting:
            doubter.assure(facts)
