"""The clocks of a simulated node: a monotonic one with a variable rate, and the wall clock, which
jumps."""

from __future__ import annotations

import asyncio
from bisect import bisect_right

WALL_MS = 1_700_000_000_000


class Clock:
    """A monotonic clock. `offset_ms`: its lead over the loop's time. It runs on while its node is
    paused or down."""

    def __init__(self, offset_ms: int) -> None:
        self.offset_ms = offset_ms
        self.wall_ms = 0  # by which the wall's is wrong
        self._since: list[float] = [0.0]  # the loop's times at which the rate changed
        self._legs: list[tuple[float, float]] = [(0.0, 1.0)]  # since then: (ms, rate)
        self._strobe = (0.0, 1.0, 0)  # until when, for how long each, by how many ms

    def set_rate(self, rate: float, *, now: float = 0.0) -> None:
        """Set the rate from now on; `now` may not be before the last one."""
        ms = self._ms(now)
        if now == self._since[-1]:
            self._legs[-1] = (ms, rate)
        else:
            self._since.append(now)
            self._legs.append((ms, rate))

    def ms_of(self, seconds: float) -> int:
        """Return the loop's time by this clock, now or in the past."""
        return int(self._ms(seconds)) + self.offset_ms

    def _ms(self, seconds: float) -> float:
        leg = bisect_right(self._since, seconds) - 1
        ms, rate = self._legs[leg]
        return ms + (seconds - self._since[leg]) * 1000 * rate

    def now_ms(self) -> int:
        return self.ms_of(asyncio.get_running_loop().time())

    def strobe(self, until: float, seconds: float, ms: int) -> None:
        """Jump the wall clock forth by `ms` and back, for that many seconds each."""
        self._strobe = (until, seconds, ms)

    def log_wall_ms(self) -> float:
        now = asyncio.get_running_loop().time()
        until, seconds, ms = self._strobe
        strobed = ms * (int(now / seconds) % 2) if now < until else 0
        return WALL_MS + self.ms_of(now) - 1_000_000 + self.wall_ms + strobed
