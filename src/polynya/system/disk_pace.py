"""The write latency of a journal's disk, and its full state."""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable

from polynya.base.histogram import Histogram
from polynya.wal import DiskFull, Journal, WriteBatch

log = logging.getLogger("polynya.core")
SLOW_SECONDS = 0.1  # median of the last writes; each append waits for one write
LAST_WRITES = 16
RECENT_SECONDS = 60.0  # older measurements are not reported
HANGS_SECONDS = 2.5


class DiskPace:
    """The disk latency of one core. `write` is called in the journal's thread, the rest in any.
    `seconds`: total of durable writes; `writes`: the histogram of these;
    `full`: the last write found no room."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0
        self.writes = Histogram()
        self.full = False
        self._clock = clock
        self._began: float | None = None
        self._ended = 0.0
        self.last_write = 0.0, 0.0  # when the last one began and ended
        self._last: deque[float] = deque(maxlen=LAST_WRITES)

    def write(self, journal: Journal, batch: WriteBatch) -> None:
        """Write and measure. Raises what `Journal.write` raises."""
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
            self.last_write = began, self._ended
        if batch.durable:
            if self.full:
                log.info("the disk has room again")
            self.full = False
            taken = self._ended - began
            self.seconds += taken
            self.writes.observe(taken)
            self._last.append(taken)

    def trouble(self) -> str:
        """Return a message if the disk is slow or hangs; else ""."""
        began, now = self._began, self._clock()
        if began is not None and now - began > HANGS_SECONDS:
            return f"a disk write has been in flight for {now - began:.0f} s"
        last = list(self._last)
        middle = (
            statistics.median(last)
            if len(last) == LAST_WRITES and now - self._ended < RECENT_SECONDS
            else 0.0
        )
        return (
            f"the disk is slow: the median write takes {middle:.1f} s"
            if middle > SLOW_SECONDS
            else ""
        )
