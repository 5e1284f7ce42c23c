"""What the turns of a core with replicas have for its journal: gathered while the write before is under way, then written together."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from polynya.engine.standalone import KIND_COPY, MARK_SECONDS, CoreCounters, Moves, copy_of
from polynya.raft import Effects, EntryKind, HardState, Raft, Snapshot, encode_configuration
from polynya.replica.member import Member
from polynya.stream.state.model import HotBatch
from polynya.system.disk_pace import DiskPace
from polynya.wal import DiskFull, Journal, WriteBatch

FULL_SECONDS = 0.5  # a full disk is asked again after this long
FORGETFUL = b"f"  # the payload of a hard state whose member does not know what it did before
LEARNING = b"l"  # … or was made anew
UNBORN = b"u"  # … or has found that its group is new, and has heard of no term since
_NO_BYTES = b""
Done = Callable[[BaseException | None], None]


class WriteExecutor(Protocol):
    """`done` is called on the loop, in the order of the calls, with the error that there was."""

    def write(self, batch: WriteBatch, done: Done) -> None: ...

    def close(self) -> None: ...


class Turns(Protocol):
    """What is told of writes."""

    def gather(self) -> None:
        """A write has ended: what waited for that may go with the next one."""
        ...

    def synced(self, tickets: list[tuple[Raft, int]]) -> None:
        """These are durable; the next write is on its way."""
        ...

    def refused(self, rafts: Iterable[Raft]) -> None:
        """The disk is full: nothing that these gave out and that is not durable was written, and it must come again."""
        ...

    def room(self) -> None:
        """Perhaps there is room again."""
        ...

    def fail(self, error: BaseException) -> None:
        """The journal has failed for good."""
        ...


class PendingWrite(msgspec.Struct):
    """What becomes durable with one write."""

    tickets: list[tuple[Raft, int]]
    moves: Moves
    waiters: list[asyncio.Future[bool]]


class JournalWriter:
    """At most one write is in flight; what is staged meanwhile is the next one."""

    def __init__(self, journal: Journal, writer: WriteExecutor, turns: Turns, counters: CoreCounters) -> None:
        self.full = False
        self._journal, self._writer, self._turns, self._counters = journal, writer, turns, counters
        self._loop = asyncio.get_running_loop()
        self._gathered = PendingWrite([], [], [])
        self._flying: tuple[WriteBatch, PendingWrite] | None = None
        self._given_at = 0.0
        self._mark_due = self._closed = False

    @property
    def busy(self) -> bool:
        return self._flying is not None

    @property
    def waiting_seconds(self) -> float:
        """For how long the write in flight has been under way."""
        return 0.0 if self._flying is None else self._loop.time() - self._given_at

    def stage(self, member: Member, effects: Effects) -> None:
        """What a group wants to be durable, and its ticket."""
        journal, number, entries = self._journal, effects.group, effects.entries
        if effects.reset is not None:
            journal.stage(number, effects.reset.term, effects.reset.index, EntryKind.RESET, _NO_BYTES)
        if effects.hard_state is not None:
            state = effects.hard_state
            if member.raft.recall_based:  # it was told whom its group began with, and must not believe its settings any more
                self._belongs(member.raft)
            journal.stage(number, state.term, state.vote, EntryKind.HARD_STATE, _flag(state))
        if entries:
            if all(entry.kind == EntryKind.COMMAND for entry in entries):
                journal.stage_all(entries, EntryKind.COMMAND)
            else:
                for entry in entries:
                    entry.place = journal.stage(number, entry.term, entry.index, entry.kind, entry.payload)
            member.staged(entries)
        self._gathered.tickets.append((member.raft, effects.ticket))

    def copy(self, group: int, batches: list[HotBatch]) -> asyncio.Future[bool]:
        """The batches again; their places move there when that is durable. False: the disk was full, and they stay where they are."""
        self._gathered.moves += [(batch, self._journal.stage(group, 0, 0, KIND_COPY, copy_of(batch))) for batch in batches]
        return self._waiter()

    def renew(self, members: Iterable[Member], departed: Mapping[int, HardState]) -> asyncio.Future[bool]:
        """What every member must not forget, again; and what those promised that are here no more."""
        for member in members:
            self._begin(member)
        for group, state in departed.items():
            self._departed(group, state)
        return self._waiter()

    def begin(self, members: Iterable[Member]) -> asyncio.Future[bool]:
        """They are here, with what they know of who belongs to their groups."""
        return self.renew(members, {})

    def configured(self, group: int, snapshot: Snapshot) -> asyncio.Future[bool]:
        """Who belonged to the group at a snapshot: before that is on the disk."""
        self._journal.stage(group, snapshot.term, snapshot.index, EntryKind.CONFIGURED, encode_configuration(snapshot.configuration))
        return self._waiter()

    def drop(self, group: int, state: HardState) -> asyncio.Future[bool]:
        """Whatever is in the journal of the group so far is void, but for what its member promised."""
        self._departed(group, state)
        return self._waiter()

    def _belongs(self, raft: Raft) -> None:
        snapshot = raft.snapshot
        self._journal.stage(raft.group, snapshot.term, snapshot.index, EntryKind.CONFIGURED, encode_configuration(snapshot.configuration))

    def _begin(self, member: Member) -> None:
        raft = member.raft
        self._belongs(raft)
        self._journal.stage(raft.group, raft.term, raft.vote, EntryKind.HARD_STATE, _flag(raft))

    def _departed(self, group: int, state: HardState) -> None:
        self._journal.stage(group, state.term, state.vote, EntryKind.DROPPED, _flag(state))

    def flush(self) -> None:
        """At the end of a turn."""
        if self._flying is not None or self.full:
            return
        batch = self._journal.take()
        if batch is not None:
            gathered, self._gathered = self._gathered, PendingWrite([], [], [])
            self._give(batch, gathered)
        elif self._gathered.waiters:
            nothing, self._gathered = self._gathered, PendingWrite([], [], [])
            _wake(nothing, durable=True)

    def close(self) -> None:
        """Ends the thread, after what it was given. What is reported then finds nobody."""
        self._closed = True
        self._writer.close()

    def _waiter(self) -> asyncio.Future[bool]:
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._gathered.waiters.append(waiter)
        return waiter

    def _give(self, batch: WriteBatch, write: PendingWrite) -> None:
        self._flying, self._given_at = (batch, write), self._loop.time()
        self._writer.write(batch, self._written)

    def _written(self, error: BaseException | None) -> None:
        if self._closed:
            return
        assert self._flying is not None
        batch, write = self._flying
        self._flying = None
        try:
            if error is None:
                self._synced(batch, write)
            elif isinstance(error, DiskFull):
                self._refused(batch, write)
            else:
                self._turns.fail(error)
        except BaseException as fault:  # half of it is done: going on would answer from a state of its own
            self._turns.fail(fault)

    def _synced(self, batch: WriteBatch, write: PendingWrite) -> None:
        self._journal.synced(batch)
        self._turns.gather()
        self.flush()  # what gathered meanwhile: the disk works while others apply and answer
        for hot, place in write.moves:
            hot.place = place
        self._counters.copied += len(write.moves)
        _wake(write, durable=True)
        self._turns.synced(write.tickets)
        if self._flying is None and batch.durable and not self._mark_due:
            self._mark_due = True
            self._loop.call_later(MARK_SECONDS, self._write_mark)

    def _write_mark(self) -> None:
        """F11."""
        self._mark_due = False
        if self._flying is None and not self._closed and not self.full:
            mark = self._journal.take_mark()
            if mark is not None:
                self._give(mark, PendingWrite([], [], []))

    def _refused(self, batch: WriteBatch, write: PendingWrite) -> None:
        self._counters.disk_full += 1
        self._journal.discard(batch)
        gathered, self._gathered = self._gathered, PendingWrite([], [], [])
        self.full = True
        self._loop.call_later(FULL_SECONDS, self._try_again)
        _wake(write, durable=False)
        _wake(gathered, durable=False)
        self._turns.refused({id(raft): raft for raft, _ in (*write.tickets, *gathered.tickets)}.values())

    def _try_again(self) -> None:
        self.full = False
        if not self._closed:
            self._turns.room()


class WriterThread:
    """Writes and syncs one batch after the other."""

    def __init__(self, journal: Journal, pace: DiskPace) -> None:
        self._journal, self._pace = journal, pace
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
                self._pace.write(self._journal, batch)
            except BaseException as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(done, error)
            except RuntimeError:  # the loop is closed: nobody waits for an answer any more
                return


def hard_state_of(term: int, vote: int, payload: bytes) -> HardState:
    """Of a frame's."""
    return HardState(term, vote, payload == FORGETFUL, payload == LEARNING, payload == UNBORN)


def _flag(state: HardState | Raft) -> bytes:
    if state.forgetful:
        return FORGETFUL
    return LEARNING if state.learning else UNBORN if state.unborn else _NO_BYTES


def _wake(write: PendingWrite, *, durable: bool) -> None:
    for waiter in write.waiters:
        if not waiter.done():
            waiter.set_result(durable)
