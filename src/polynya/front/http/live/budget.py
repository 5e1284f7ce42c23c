"""The byte rate limit of a connection with many streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polynya.access.rate_limits import Meter

_PACE_SECONDS = 0.5  # between looks at a limit that other connections of the caller share


class Budget:
    """The bytes that may be sent. Without a meter that is any number of them."""

    __slots__ = ("_meter", "_now", "is_used_up", "sent")

    def __init__(self, meter: Meter | None, now: Callable[[], float]) -> None:
        self._meter = meter if meter is not None and meter.limits_bytes else None
        self._now = now
        self.sent = 0  # bytes since the last charge
        self.is_used_up = False

    @property
    def is_metered(self) -> bool:
        return self._meter is not None

    @property
    def bytes_per_second(self) -> int | None:
        """The limit; None without one."""
        return None if self._meter is None else int(self._meter.rates[1])

    def charge(self) -> None:
        """Charge for the bytes sent, and judge what is left."""
        sent, self.sent = self.sent, 0
        if self._meter is not None:
            self._meter.charge(sent)
            self.is_used_up = bool(self._meter.owed(self._now()))

    async def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until something may be sent, or the connection is over."""
        if self._meter is None:
            return
        self.charge()
        while not is_over() and (seconds := self._meter.owed(self._now())):
            await asyncio.sleep(min(seconds, _PACE_SECONDS))
        self.is_used_up = False
