"""How the disk of a journal does: how long its writes take, and whether the last one found no room."""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable

from polynya.wal import DiskFull, Journal, WriteBatch

log = logging.getLogger("polynya.core")
SLOW_SECONDS = 0.1  # in the middle of the last writes: each append waits for one
LAST_WRITES = 16
RECENT_SECONDS = 60.0  # what was slow before that is not told any more
HANGS_SECONDS = 2.5


class DiskPace:
    """Of one core. `write` is called in the journal's thread, the rest anywhere. `seconds`: of all durable writes; `full`: the last one found
    no room."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0
        self.full = False
        self._clock = clock
        self._began: float | None = None
        self._ended = 0.0
        self._last: deque[float] = deque(maxlen=LAST_WRITES)

    def write(self, journal: Journal, batch: WriteBatch) -> None:
        """Raises what `Journal.write` raises."""
        self._began = began = self._clock()
        try:
            journal.write(batch)
        except DiskFull as fault:
            if not self.full:
                log.warning("the disk is full", extra={"error": str(fault)})
            self.full = True
            raise
        finally:
            self._ended, self._began = self._clock(), None
        if batch.durable:
            if self.full:
                log.info("the disk has room again")
            self.full = False
            self.seconds += self._ended - began
            self._last.append(self._ended - began)

    def trouble(self) -> str:
        """That the disk is slow, or takes nothing at all; empty when it does well."""
        began, now = self._began, self._clock()
        if began is not None and now - began > HANGS_SECONDS:
            return f"the disk has not taken a write for {now - began:.0f} s"
        last = list(self._last)
        middle = statistics.median(last) if len(last) == LAST_WRITES and now - self._ended < RECENT_SECONDS else 0.0
        return f"the disk is slow: a write takes {middle:.1f} s" if middle > SLOW_SECONDS else ""
