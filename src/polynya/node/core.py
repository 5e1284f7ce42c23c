"""The turn loop of one core: gather proposals, write and fsync them together in a thread, apply and answer them together.

No timer batches anything: while one write is on its way to the disk the next turn gathers. An fsync error is the end of this process
(fail-stop): what is on the disk is then unknown, and only a restart reads it again.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.limits import INFLIGHT_BYTES_PER_CORE
from polynya.replica import Entry, Shard
from polynya.replica.shard import KIND_COMMAND
from polynya.stream.commands import Command
from polynya.stream.replies import Code, Reply
from polynya.wal import DiskFull, Journal

MARK_SECONDS = 0.05  # so long after the last write a bare mark says that it was synced (F11)
Done = Callable[[Reply | BaseException], None]


class CoreCounters:
    """Plain numbers, read at scrape time."""

    __slots__ = ("disk_full", "entries", "overloaded", "turns")

    def __init__(self) -> None:
        self.turns = self.entries = self.disk_full = self.overloaded = 0


class Core:
    """Owns the shard and the journal. All methods are called on the loop; the journal's writes happen in one thread."""

    def __init__(self, shard: Shard, journal: Journal, *, fatal: Callable[[BaseException], None]) -> None:
        self.shard = shard
        self.journal = journal
        self.counters = CoreCounters()
        self.on_applied: Callable[[int, Command, Reply], None] = lambda group, command, reply: None
        self.on_turn: Callable[[], None] = lambda: None
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._proposals: list[tuple[int, Command, Done]] = []
        self.applied_place = journal.position  # every entry before it is applied
        self._proposed_bytes = 0
        self._writing_bytes = 0
        self._busy = False
        self._kicked = False
        self._mark_due = False
        self._dead: BaseException | None = None
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_loop, name="journal", daemon=True)
        self._thread.start()

    @property
    def inflight_bytes(self) -> int:
        """Payload bytes proposed and not yet applied."""
        return self._proposed_bytes + self._writing_bytes

    def propose(self, group: int, command: Command, done: Done, size: int = 0) -> None:
        """`done` is called once, on the loop: with the reply, or with Unavailable (nothing was applied) or OutcomeUnknown."""
        if self._dead is not None or self._proposed_bytes + self._writing_bytes > INFLIGHT_BYTES_PER_CORE:
            self.counters.overloaded += 1
            done(Unavailable("the journal is behind: more than the bound is in flight; retry"))
            return
        self._proposals.append((group, command, done))
        self._proposed_bytes += size
        if not self._busy and not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick)

    async def call(self, group: int, command: Command) -> Reply:
        """`propose` for those who may wait."""
        future: asyncio.Future[Reply] = self._loop.create_future()

        def done(reply: Reply | BaseException) -> None:
            if future.cancelled():
                return
            if isinstance(reply, BaseException):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.propose(group, command, done)
        return await future

    async def drain(self) -> None:
        """Until nothing is in flight; for a clean stop."""
        while self._busy or self._proposals:
            waiter = self._loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _kick(self) -> None:
        self._kicked = False
        if not self._busy and self._proposals:
            self._start_turn()

    def _start_turn(self) -> None:
        proposals, self._proposals = self._proposals, []
        self._writing_bytes, self._proposed_bytes = self._proposed_bytes, 0
        self._busy = True
        shard, stage = self.shard, self.journal.stage
        entries = []
        for group, command, done in proposals:
            entry = shard.propose(group, command, done)
            entry.place = stage(group, entry.term, entry.index, KIND_COMMAND, entry.payload)
            entries.append(entry)
        self._queue.put((self.journal.take(), entries))

    def _write_loop(self) -> None:
        while (job := self._queue.get()) is not None:
            batch, entries = job
            error: BaseException | None = None
            try:
                self.journal.write(batch)
            except BaseException as caught:
                error = caught
            self._loop.call_soon_threadsafe(self._written, batch, entries, error)

    def _written(self, batch: Any, entries: list[Entry], error: BaseException | None) -> None:
        if error is not None:
            self._failed(batch, entries, error)
            return
        self.journal.synced(batch)
        if not entries:  # a bare mark
            self._busy = False
            self._went_idle()
            return
        self.counters.turns += 1
        self.counters.entries += len(entries)
        self._writing_bytes = 0
        if self._proposals:
            self._start_turn()  # the disk works while we apply and answer
        else:
            self._busy = False
        commit, on_applied = self.shard.commit, self.on_applied
        for entry in entries:
            reply = commit(entry)
            on_applied(entry.group, entry.command, reply)
            entry.token(reply)
        self.applied_place = entries[-1].place
        self.on_turn()
        if not self._busy:
            self._went_idle()

    def _went_idle(self) -> None:
        if self._proposals:
            self._start_turn()
            return
        if not self._mark_due:
            self._mark_due = True
            self._loop.call_later(MARK_SECONDS, self._write_mark)
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _write_mark(self) -> None:
        self._mark_due = False
        if self._busy or self._proposals or self._dead is not None:
            return
        mark = self.journal.take_mark()
        if mark is not None:
            self._busy = True
            self._queue.put((mark, []))

    def _failed(self, batch: Any, entries: list[Entry], error: BaseException) -> None:
        self._writing_bytes = 0
        self._busy = False
        if isinstance(error, DiskFull):
            self.counters.disk_full += 1
            self.journal.discard(batch)
            self.shard.retract(entries)
            for entry in entries:
                entry.token(Reply(Code.DISK_FULL))
            self._went_idle()
            return
        self._dead = error
        for entry in entries:
            entry.token(OutcomeUnknown("the journal could not be synced; the append may or may not be durable"))
        for _, _, done in self._proposals:
            done(Unavailable("the journal has failed; this core is going down"))
        self._proposals = []
        self._fatal(error)
