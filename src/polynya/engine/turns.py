"""The parts that both turn loops of a core share: the thread that writes, the end of a turn,
counters, and copies of hot batches."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from polynya.base.errors import Unavailable
from polynya.base.futures import settle
from polynya.base.histogram import Histogram
from polynya.base.spans import Span, active
from polynya.replica.log import encode_command
from polynya.stream.features.appends.commands import Append
from polynya.stream.parts import Batch
from polynya.stream.replies import Done as ReplyDone
from polynya.stream.replies import Reply
from polynya.stream.state.model import HotBatch
from polynya.system.disk_pace import DiskPace
from polynya.wal import Journal, WriteBatch

MARK_SECONDS = 0.05  # delay after the last write until a mark frame records that it was synced
KIND_COPY = (
    2  # a hot batch copied forward, as an Append command: read by its position, never replayed
)
Moves = list[tuple[HotBatch, int]]  # hot batches and their new positions
Done = Callable[[BaseException | None], None]
WriteJob = tuple[WriteBatch, Done]


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


class TracedCommits:
    """The commits of traced requests on a core: those that wait for a write, and those whose write
    is in flight. Both are empty without a trace."""

    __slots__ = ("trace_id", "waiting", "writing")

    def __init__(self) -> None:
        self.waiting: list[Span] = []
        self.writing: list[Span] = []
        self.trace_id = ""  # of the last one that ended, for an exemplar

    def begin(self, group: int, done: ReplyDone) -> ReplyDone:
        """Begin the span of a commit, which ends before `done` is called."""
        above = active()
        if above is None:
            return done
        last = self.waiting[-1] if self.waiting else None
        if last is not None and (last.parent, last.attributes["polynya.group"]) == (
            above.id,
            group,
        ):
            return done  # they are committed together
        span = above.child("commit", {"polynya.group": group})
        self.waiting.append(span)
        return partial(self._end, span, done)

    def write(self) -> None:
        """Note that the next durable write has what waits."""
        self.writing += [span for span in self.waiting if not span.ended]
        self.waiting.clear()

    def written(self, pace: DiskPace) -> None:
        """Add the write that was in flight to its commits."""
        began, ended = pace.last_write
        for span in self.writing:
            span.note("fsync", int(began * 1e9), int(ended * 1e9))
        if self.writing and ended > began:
            pace.writes.remember(ended - began, "trace_id", self.writing[-1].trace_id)
        self.writing.clear()

    def take_trace(self) -> str:
        """Return the trace of a commit that ended since the last call; "" if none did."""
        found, self.trace_id = self.trace_id, ""
        return found

    def _end(self, span: Span, done: ReplyDone, reply: Reply | BaseException) -> None:
        if isinstance(reply, BaseException):
            span.end(type(reply).__name__)
        else:
            span.end()
            self.trace_id = span.trace_id
        done(reply)


class CoreCounters:
    """Counters of a core, read at scrape time, and its traced commits."""

    __slots__ = (
        *("commits", "copied", "disk_full", "entries", "overloaded", "pace", "traced", "turns"),
    )

    def __init__(self) -> None:
        self.turns = self.entries = self.disk_full = self.overloaded = self.copied = 0
        self.pace = DiskPace()
        self.commits = Histogram()  # of turns, from the oldest proposal to the answers
        self.traced = TracedCommits()

    @property
    def write_seconds(self) -> float:
        return self.pace.seconds


class WriteExecutor(Protocol):
    """Writes batches in call order, and then calls their `Done` on the loop with the error or
    None."""

    @property
    def write(self) -> Callable[[WriteJob], None]: ...

    def close(self) -> None: ...


class WriterThread:
    """A thread that writes and syncs one batch after the other."""

    def __init__(self, journal: Journal, pace: DiskPace) -> None:
        self._journal, self._pace = journal, pace
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[WriteJob | None] = queue.SimpleQueue()
        self.write: Callable[[WriteJob], None] = self._queue.put
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

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
    """Return the encoding that `read_payload` expects at the batch's new position."""
    return encode_command(
        Append("", hot.time_ms, "", Batch(hot.encoding, hot.records, hot.payload, hot.crc))
    )
