"""Log time, the timestamp of commands. It follows the boot clock, which counts suspension, is
slewed to wall time, and never goes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STEP_MS = 1000.0  # log time steps forward when wall time is ahead by more
SLEW = 0.0005  # maximum slew, 0.5 ms a second


def boot_ms() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


def wall_ms() -> float:
    return time.time() * 1000


class LogClock:
    """Milliseconds since the epoch, monotonic across restarts. `floor_ms` is the largest timestamp
    in the log. With a `loop` it is read once in a pass of it: all appends of a pass share a
    timestamp."""

    __slots__ = ("_boot", "_boot_ms", "_log_ms", "_loop", "_of_pass", "_wall")

    def __init__(
        self,
        floor_ms: int = 0,
        *,
        boot: Callable[[], float] | None = None,
        wall: Callable[[], float] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Begin at the wall clock or the floor. A simulation gives clocks of its own, in ms."""
        self._boot, self._wall = boot, wall
        self._loop = loop
        self._of_pass: list[int] = []  # the time that this pass of the loop has read
        self._boot_ms = boot_ms() if boot is None else boot()
        self._log_ms = max(float(floor_ms), wall_ms() if wall is None else wall())

    def reach(self, log_ms: int) -> None:
        """Advance to a log time that another node has logged, even if the local wall clock is far
        behind."""
        self._log_ms = max(self._log_ms, float(log_ms))

    def now_ms(self) -> int:
        if self._of_pass:
            return self._of_pass[0]
        # read in place: each is called once in a pass of the loop
        boot = (
            time.clock_gettime(time.CLOCK_BOOTTIME) * 1000 if self._boot is None else self._boot()
        )
        elapsed = boot - self._boot_ms
        if elapsed > 0:
            self._boot_ms = boot
            wall = time.time() * 1000 if self._wall is None else self._wall()
            ahead = wall - (self._log_ms + elapsed)
            if ahead > STEP_MS:
                self._log_ms += elapsed + ahead
            else:
                slew = elapsed * SLEW
                self._log_ms += elapsed + max(-slew, min(slew, ahead))
        now_ms = int(self._log_ms)
        if self._loop is not None:
            self._of_pass.append(now_ms)
            self._loop.call_soon(self._of_pass.clear)
        return now_ms
