"""The thread that writes a core's journal, and what a turn must be told when that is done."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from polynya.wal import Journal, WriteBatch

Done = Callable[[BaseException | None], None]


class Writer(Protocol):
    """`done` is called on the loop, in the order of the calls, with the error that there was."""

    def write(self, batch: WriteBatch, done: Done) -> None: ...

    def close(self) -> None: ...


class WriterThread:
    """Writes and syncs one batch after the other."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[WriteBatch, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def write(self, batch: WriteBatch, done: Done) -> None:
        self._queue.put((batch, done))

    def close(self) -> None:
        """After what it was given."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            batch, done = job
            error: BaseException | None = None
            try:
                self._journal.write(batch)
            except BaseException as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(done, error)
            except RuntimeError:  # the loop is closed: nobody waits for an answer any more
                return
