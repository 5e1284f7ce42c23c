"""Log time: what commands are stamped with (F14). Follows the boot clock, which counts suspension, slewed towards the wall; never back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STEP_MS = 1000.0  # when the wall is ahead by more, log time steps forward
SLEW = 0.0005  # at most half a millisecond a second otherwise


def boot_ms() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


def wall_ms() -> float:
    return time.time() * 1000


class LogClock:
    """Milliseconds since the epoch, monotone also over restarts (`floor_ms` is the largest stamp found in the log)."""

    __slots__ = ("_boot", "_boot_ms", "_log_ms", "_wall")

    def __init__(self, floor_ms: int = 0, *, boot: Callable[[], float] = boot_ms, wall: Callable[[], float] = wall_ms) -> None:
        self._boot, self._wall = boot, wall
        self._boot_ms = boot()
        self._log_ms = max(float(floor_ms), wall())

    def reach(self, log_ms: int) -> None:
        """Another node has logged this: from here it goes on, as time does, also if the wall's clock is far behind."""
        self._log_ms = max(self._log_ms, float(log_ms))

    def now_ms(self) -> int:
        boot = self._boot()
        elapsed = boot - self._boot_ms
        if elapsed > 0:
            self._boot_ms = boot
            ahead = self._wall() - (self._log_ms + elapsed)
            if ahead > STEP_MS:
                self._log_ms += elapsed + ahead
            else:
                slew = elapsed * SLEW
                self._log_ms += elapsed + max(-slew, min(slew, ahead))
        return int(self._log_ms)


def once_per_pass(now_ms: Callable[[], int], loop: asyncio.AbstractEventLoop) -> Callable[[], int]:
    """The same clock, read at most once in each pass of the loop: many appends are stamped in one."""
    known = 0

    def forget() -> None:
        nonlocal known
        known = 0

    def now() -> int:
        nonlocal known
        if not known:
            known = now_ms()
            loop.call_soon(forget)
        return known

    return now
