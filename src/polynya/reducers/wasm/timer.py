"""The CPU time of calls: a thread ends one that takes too long, and the process when its parent has
exited."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TICK_SECONDS = 0.05


class CallTimer:
    """Calls `interrupt` once the current call has used its CPU seconds.

    CPU time, since a busy machine must not make a fault."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._deadline: float | None = None

    def start(self) -> None:
        threading.Thread(target=self._watch, args=(os.getppid(),), daemon=True).start()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        with self._lock:
            self._deadline = time.process_time() + seconds
        try:
            yield
        finally:
            with self._lock:
                self._deadline = None

    def tick(self) -> None:
        """Interrupt the call if its time is over. Under the lock, so that it never meets the next
        call."""
        with self._lock:
            if self._deadline is not None and time.process_time() > self._deadline:
                self._deadline = None
                self._interrupt()

    def _watch(self, parent: int) -> None:
        while True:
            time.sleep(TICK_SECONDS)
            if os.getppid() != parent:
                os._exit(0)
            self.tick()
