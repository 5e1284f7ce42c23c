"""The parts that both turn loops of a core share: the thread that writes, the end of a turn, counters,
and copies of hot batches."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from polynya.base.errors import Unavailable
from polynya.base.futures import settle
from polynya.base.histogram import Histogram
from polynya.replica.log import encode_command
from polynya.stream.features.appends.commands import Append
from polynya.stream.parts import Batch
from polynya.stream.state.model import HotBatch
from polynya.system.disk_pace import DiskPace
from polynya.wal import Journal, WriteBatch

MARK_SECONDS = 0.05  # delay after the last write until a mark frame records that it was synced
KIND_COPY = 2  # a hot batch copied forward, as an Append command: read by its place, never replayed
Moves = list[tuple[HotBatch, int]]  # hot batches and their new places
Done = Callable[[BaseException | None], None]


def journal_failed() -> Unavailable:
    """Return the error for requests to a core whose journal has failed."""
    return Unavailable("the journal has failed; this core is shutting down")


class TurnEnds:
    """The turns of a core, and the waiters for their ends; `len` counts them. `dead` is why the
    core has stopped."""

    def __init__(self) -> None:
        self.dead: BaseException | None = None
        self.begun = self.ended = 0  # turns with a durable write
        # by the loop: the oldest proposal that waits for a turn, and that of the turn in flight
        self.waiting_since = self.writing_since = 0.0
        self.waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self.waiting)

    async def wait(self) -> None:
        """Wait for the end of the next turn. Raises Unavailable if the core is dead."""
        if self.dead is not None:
            raise journal_failed()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        await waiter

    def tell(self) -> None:
        """Wake all waiters: a turn has ended, or the core is dead."""
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            settle(waiter, None)


class CoreCounters:
    """Counters of a core, read at scrape time."""

    __slots__ = ("commits", "copied", "disk_full", "entries", "overloaded", "pace", "turns")

    def __init__(self) -> None:
        self.turns = self.entries = self.disk_full = self.overloaded = self.copied = 0
        self.pace = DiskPace()
        self.commits = Histogram()  # of turns, from the oldest proposal to the answers

    @property
    def write_seconds(self) -> float:
        return self.pace.seconds


class WriteExecutor(Protocol):
    """Writes batches in call order. `done` is called on the loop with the error or None."""

    def write(self, batch: WriteBatch, done: Done) -> None: ...

    def close(self) -> None: ...


class WriterThread:
    """A thread that writes and syncs one batch after the other."""

    def __init__(self, journal: Journal, pace: DiskPace) -> None:
        self._journal, self._pace = journal, pace
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[WriteBatch, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def write(self, batch: WriteBatch, done: Done) -> None:
        self._queue.put((batch, done))

    def close(self) -> None:
        """Stop the thread after the queued writes."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            batch, done = job
            error: BaseException | None = None
            try:
                self._pace.write(self._journal, batch)
            except BaseException as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(done, error)
            except RuntimeError:  # the loop is closed
                return


def copy_of(hot: HotBatch) -> bytes:
    """Return the encoding that `read_payload` expects at the batch's new place."""
    return encode_command(
        Append("", hot.time_ms, "", Batch(hot.encoding, hot.records, hot.payload, hot.crc))
    )
