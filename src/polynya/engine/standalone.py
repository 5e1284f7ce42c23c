"""The turn loop of one core: batch proposals, write and fsync them in a thread, then apply and
answer them.

Batching needs no timer: the next turn collects input while a write is in flight. An fsync error is
fatal: the on-disk state is unknown until a restart reads it again. A full disk is not fatal: the
turn is undone and rejected.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Collection
from functools import partial
from typing import cast

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.futures import settle
from polynya.base.histogram import BOUNDS
from polynya.base.limits import INFLIGHT_BYTES_PER_CORE
from polynya.base.spans import ACTIVE
from polynya.engine.turns import (
    KIND_COPY,
    MARK_SECONDS,
    CoreCounters,
    Moves,
    TurnEnds,
    WriterThread,
    copy_of,
    journal_failed,
)
from polynya.replica import AppendRun, CoreReplicas, PendingEntry
from polynya.replica.log import encode_command, encode_proposal
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import (
    BUNDLE_BYTES,
    BUNDLE_COMMANDS_MAX,
    KAFKA_APPENDS,
    PRODUCE_BUNDLE_BYTES,
    Append,
    AppendIf,
    Produce,
)
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.state.model import HotBatch
from polynya.wal import DiskFull, FrameKind, Journal, WriteBatch


class StandaloneEngine:
    """The turn loop of a core without peers, which owns the shard and the journal.

    All methods are called on the loop; one thread writes the journal. Invariant: at most one turn
    is being written, and nothing is staged behind it."""

    def __init__(
        self,
        core_replicas: CoreReplicas,
        journal: Journal,
        *,
        fatal: Callable[[BaseException], None],
    ) -> None:
        self.core_replicas = core_replicas
        self.journal = journal
        self.counters = CoreCounters()
        self.on_applied: Callable[[int, Command, Reply], None] = lambda group, command, reply: None
        self.watched: Collection[
            int
        ] = ()  # uids with live readers: without one, `on_applied` does not hear of appends
        self.after_turn: list[Callable[[], None]] = []  # called after a turn that applied entries
        self.applied_position = journal.position  # every earlier entry is applied
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._proposals: list[PendingEntry] = []
        self._runs: dict[
            int, AppendRun
        ] = {}  # by group, the last run of appends, which the next append may join
        self._writing: list[PendingEntry] = []  # entries of the turn that is being written
        self._copies: list[tuple[int, HotBatch]] = []
        self.inflight_bytes = 0  # commands proposed and not yet applied
        self._writing_bytes = 0  # those in `_writing`
        self._busy = False
        self._kicked = False
        self._mark_due = False
        self._ends = TurnEnds()
        self._writer = WriterThread(journal, self.counters.pace)

    def inflight_bytes_of(self, group: int) -> int:
        """Return the bytes of one group in flight. It scans every proposal, so call it rarely."""
        entries = (*self._proposals, *self._writing)
        return sum(
            entry.size if type(entry) is AppendRun else len(entry.payload)
            for entry in entries
            if entry.group == group
        )

    def propose(self, group: int, command: Command, done: Done) -> None:
        """Propose a command. `done` is called once, on the loop, perhaps before this returns.

        It gets the reply, or Unavailable (never applied), or OutcomeUnknown. An encoding error is
        raised, and then nothing is proposed."""
        if self._ends.dead is not None:
            done(journal_failed())
            return
        if self.inflight_bytes > INFLIGHT_BYTES_PER_CORE:
            self.counters.overloaded += 1
            done(Unavailable("the journal is behind: too many bytes are in flight; retry"))
            return
        payload = encode_command(command) if type(command) is Append else encode_proposal(command)
        if ACTIVE.get() is not None:
            done = self.counters.traced.begin(group, done)
        size = len(payload)
        self.inflight_bytes += size
        run = self._runs.get(group)
        kind = type(command)
        is_small = kind is Append or kind is AppendIf
        room = BUNDLE_BYTES if is_small else PRODUCE_BUNDLE_BYTES if kind in KAFKA_APPENDS else 0
        if run is not None and run.size + size <= room and len(run.tokens) < BUNDLE_COMMANDS_MAX:
            run.commands.append(cast("Append | Produce", command))
            run.payloads.append(payload)
            run.tokens.append(done)
            run.size += size
        else:
            entry: PendingEntry
            if room:  # an append, which later ones may join
                one = cast("Append | Produce", command)
                entry = self._runs[group] = AppendRun(
                    group,
                    one,
                    payload,
                    None,
                    commands=[one],
                    payloads=[payload],
                    tokens=[done],
                    size=size,
                )
            else:
                entry = PendingEntry(group, command, payload, done)
                self._runs.pop(group, None)
            if not self._proposals:
                self._ends.waiting_since = self._loop.time()
            self._proposals.append(entry)
        if not self._busy and not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick)

    async def call(self, group: int, command: Command) -> Reply:
        """Propose a command and wait for the reply."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.propose(group, command, partial(settle, future))
        return await future

    async def copy_forward(self, group: int, batches: list[HotBatch]) -> None:
        """Write the batches again at the journal's end and move their positions there, so that old
        segments can be released.

        When the disk is full they stay where they are."""
        self._copies += [(group, batch) for batch in batches]
        if not self._busy and not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick)
        await self.wait_applied()

    async def wait_applied(self) -> None:
        """Wait until all earlier proposals are applied or rejected. Raises Unavailable when the
        journal fails."""
        goal = self._ends.begun + bool(self._proposals or self._copies)
        while self._ends.ended < goal:
            await self._ends.wait()

    async def drain(self) -> None:
        """Wait until nothing is in flight, before a clean stop."""
        while self._busy or self._kicked or self._proposals:
            await self._ends.wait()

    def close(self) -> None:
        """Stop the thread after its queued writes."""
        self._writer.close()

    # --- turns ------------------------------------------------------------------------------------

    def _kick(self) -> None:
        self._kicked = False
        if not self._busy and self._ends.dead is None and (self._proposals or self._copies):
            try:
                self._start_turn()
            except (
                BaseException
            ) as fault:  # the turn is half staged: its indexes and positions are assigned
                self._die(fault, [])

    def _start_turn(self) -> None:
        entries, self._proposals = self._proposals, []
        self._runs.clear()
        copies, self._copies = self._copies, []
        self._writing, self._writing_bytes = entries, self.inflight_bytes
        self._busy = True
        self._ends.begun += 1
        self._ends.writing_since = self._ends.waiting_since
        for entry in entries:
            if type(entry) is AppendRun and len(entry.commands) > 1:
                entry.join()
        self.core_replicas.number(entries)
        self.journal.stage_all(entries, FrameKind.COMMAND)
        moves = [
            (batch, self.journal.stage(group, 0, 0, KIND_COPY, copy_of(batch)))
            for group, batch in copies
        ]
        written = self.journal.take()
        assert written is not None, "a turn has something to write"
        traced = self.counters.traced
        if traced.waiting:
            traced.write()
        self._writer.write((written, partial(self._written, written, entries, moves)))

    def _written(
        self,
        batch: WriteBatch,
        entries: list[PendingEntry],
        moves: Moves,
        error: BaseException | None,
    ) -> None:
        if self._ends.dead is not None:
            return
        counters = self.counters
        if counters.traced.writing:
            counters.traced.written(counters.pace)
        try:
            if error is None:
                self.journal.synced(batch)
                since = self._ends.writing_since
                self._writing = []
                self.inflight_bytes -= self._writing_bytes
                self._writing_bytes = 0
                if self._proposals or self._copies:
                    self._start_turn()  # the disk works meanwhile
                else:
                    self._busy = False
                for hot, position in moves:
                    hot.position = position
                if entries:
                    self._apply(entries)
                    # `observe`, without a call
                    seconds, commits = self._loop.time() - since, counters.commits
                    commits.counts[bisect_left(BOUNDS, seconds)] += 1
                    commits.total += seconds
                    if counters.traced.trace_id:
                        commits.remember(seconds, "trace_id", counters.traced.take_trace())
                    for look in self.after_turn:
                        look()
                counters.copied += len(moves)
                self._end_turn(batch)
            elif isinstance(error, DiskFull):
                self._refused(batch, entries)
            else:
                self._die(error, entries)
        except BaseException as fault:  # a durable entry could not be applied: later answers would diverge from the log
            self._die(fault, [])

    def _apply(self, entries: list[PendingEntry]) -> None:
        commit, on_applied, watched = self.core_replicas.commit, self.on_applied, self.watched
        count = 0
        for entry in entries:
            reply = commit(entry)
            group = entry.group
            if type(entry) is not AppendRun:
                count += 1
                on_applied(group, entry.command, reply)
                self._answer(entry.token, reply)
                continue
            replies = reply.detail if len(entry.tokens) > 1 else [reply]
            count += len(replies)
            for command, token, answer in zip(entry.commands, entry.tokens, replies, strict=True):
                if watched:
                    on_applied(group, command, answer)
                try:
                    token(answer)
                except Exception as fault:
                    self._report(fault)
        self.counters.turns += 1
        self.counters.entries += count
        self.applied_position = entries[-1].position

    def _answer_all(self, entries: list[PendingEntry], reply: Reply | BaseException) -> None:
        for entry in entries:
            for token in entry.tokens if type(entry) is AppendRun else (entry.token,):
                self._answer(token, reply)

    def _answer(self, token: Done, reply: Reply | BaseException) -> None:
        try:
            token(reply)
        except Exception as fault:
            self._report(fault)

    def _report(self, fault: Exception) -> None:
        """Report the error without raising it: one client's callback must not fail the others."""
        self._loop.call_exception_handler(
            {"message": "an answer could not be given", "exception": fault}
        )

    def _end_turn(self, batch: WriteBatch) -> None:
        self._ends.ended += batch.durable
        if not self._busy:
            if self._proposals or self._copies:
                if not self._kicked:
                    self._kicked = True
                    self._loop.call_soon(self._kick)
            elif not self._mark_due and batch.durable:
                self._mark_due = True
                self._loop.call_later(MARK_SECONDS, self._write_mark)
        if self._ends.waiting:
            self._ends.tell()

    def _write_mark(self) -> None:
        self._mark_due = False
        if self._busy or self._proposals or self._ends.dead is not None:
            return
        mark = self.journal.take_mark()
        if mark is not None:
            self._busy = True
            self._writer.write((mark, partial(self._written, mark, [], [])))

    # --- failures ---------------------------------------------------------------------------------

    def _refused(self, batch: WriteBatch, entries: list[PendingEntry]) -> None:
        """Undo the turn: the disk is full and the write was rolled back."""
        self.counters.disk_full += 1
        self.journal.discard(batch)
        self.core_replicas.retract(entries)
        self._writing = []
        self.inflight_bytes -= self._writing_bytes
        self._writing_bytes = 0
        self._busy = False
        self._answer_all(entries, Reply(Code.DISK_FULL))
        self._end_turn(batch)

    def _die(self, error: BaseException, entries: list[PendingEntry]) -> None:
        self._ends.dead = error
        self._busy = False
        self._writing, self._writing_bytes, self.inflight_bytes = [], 0, 0
        waiting, self._proposals = self._proposals, []
        self._runs.clear()
        self._answer_all(
            entries,
            OutcomeUnknown("the journal could not be synced; the append may or may not be durable"),
        )
        self._answer_all(waiting, journal_failed())
        self._ends.tell()
        self._fatal(error)
