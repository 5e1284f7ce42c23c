"""Threads that sync tables side by side in one Spark session."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence


class TablePool:
    """A bounded number of threads that stay for all rounds: each has a connection to the JVM.

    They are daemons, so a stopped driver does not wait for them; every step of a job may end
    anywhere.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._rounds: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[str], None], names: Sequence[str]) -> None:
        """Call `work` with each name, side by side, and wait. After an exception no further name is
        begun; it is raised here once the others ended. One name is worked on in this thread."""
        if len(names) < 2 or self._count < 2:
            for name in names:
                work(name)
            return
        busy = min(self._count, len(names))
        whole = _Round(work, names, busy)
        while len(self._threads) < busy:
            self._threads.append(threading.Thread(target=self._live, name="table", daemon=True))
            self._threads[-1].start()
        for _ in range(busy):
            self._rounds.put(whole)
        try:
            whole.wait()
        finally:
            whole.stop()

    def close(self) -> None:
        """Let the threads end after their present work."""
        for _ in self._threads:
            self._rounds.put(None)
        self._threads.clear()

    def _live(self) -> None:
        while (whole := self._rounds.get()) is not None:
            whole.work_on()


class _Round:
    """One round over all names. Several threads work on it."""

    def __init__(self, work: Callable[[str], None], names: Sequence[str], busy: int) -> None:
        self._work = work
        self._left = deque(names)
        self._busy = busy
        self._fault: BaseException | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    def work_on(self) -> None:
        try:
            while (name := self._next()) is not None:
                self._work(name)
        except BaseException as fault:
            self._fault = self._fault or fault
            self.stop()
        with self._lock:
            self._busy -= 1
            if not self._busy:
                self._over.set()

    def _next(self) -> str | None:
        with self._lock:
            return self._left.popleft() if self._left else None

    def wait(self) -> None:
        """Wait for all threads. Raises the fault that ended the round."""
        self._over.wait()
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """Begin no further name."""
        with self._lock:
            self._left.clear()
