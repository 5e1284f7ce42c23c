"""The loop of a background job, and the faults that it retries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from math import inf
from types import TracebackType
from typing import NewType, Protocol

BACKOFF_SECONDS = 0.25  # first pause after a failure; doubles up to BACKOFF_SECONDS_MAX
BACKOFF_SECONDS_MAX = 30.0

Rest = NewType("Rest", float)
"""Seconds until the next run of a job. A type of its own, so that no other number is taken for it."""


class FailureCounters(Protocol):
    """Counters for metrics with a count of failures."""

    failures: int


class Failures:
    """The faults of a job since it last worked. As a context it keeps the given kinds, logs each
    text once, and forgets them when its body succeeds."""

    def __init__(
        self,
        log: logging.Logger,
        message: str,
        *kinds: type[Exception],
        level: int = logging.WARNING,
        counters: FailureCounters | None = None,
    ) -> None:
        self.in_a_row = 0
        self.reason = ""  # the text of the last fault
        self._log, self._message, self._kinds = log, message, kinds
        self._level, self._counters = level, counters

    def __enter__(self) -> None:
        """Begin a try."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if fault is None:
            self.in_a_row, self.reason = 0, ""
        if not isinstance(fault, self._kinds):
            return False
        self.note(fault)
        return True

    def note(self, fault: Exception) -> None:
        """Record a fault."""
        self.in_a_row += 1
        if self._counters is not None:
            self._counters.failures += 1
        # the name of a temporary file in the text differs each time
        reason = (isinstance(fault, OSError) and fault.strerror) or str(fault)
        if reason != self.reason or self.in_a_row == 1:
            self.reason = reason
            self._log.log(self._level, self._message, extra={"error": str(fault)})


async def repeat(
    work: Callable[[], Awaitable[Rest | None]],
    seconds: float,
    failures: Failures | None = None,
    *,
    wake: asyncio.Event | None = None,
    at_once: bool = True,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Run the work until cancelled, first `at_once` or after a rest.

    The work returns how many seconds to rest, or None for `seconds`, as after a failure; 0 if it
    waited for something itself. `wake` ends a rest; set during the work, it ends the next one.
    `sleep` is the rest without it."""
    rest: float | None = 0.0 if at_once else None
    while True:
        if rest != 0:
            rest = seconds if rest is None else rest
            await (wait_for(wake, rest) if wake is not None and rest > 0 else sleep(rest))
        if wake is not None:
            wake.clear()
        rest = None
        with failures or nullcontext():
            rest = await work()


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if seconds == inf else seconds):
            await event.wait()


def pause_after(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row."""
    return min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** min(failures, 16))
