"""Stage what the turns of a replicated core write to the journal. Data staged during a write goes
to disk with the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from polynya.engine.turns import (
    KIND_COPY,
    MARK_SECONDS,
    CoreCounters,
    Moves,
    WriteExecutor,
    copy_of,
)
from polynya.raft import Effects, EntryKind, HardState, Raft, Snapshot, encode_configuration
from polynya.replica.member import Member
from polynya.stream.state.model import HotBatch
from polynya.wal import DiskFull, Journal, WriteBatch

FULL_SECONDS = 0.5  # retry interval on a full disk
FORGETFUL = b"f"  # hard state payload: the member lost its disk and does not know its earlier votes
LEARNING = b"l"  # … the member is new and catching up
UNBORN = b"u"  # … the member found that its group is new, and has seen no term since
_NO_BYTES = b""


class Turns(Protocol):
    """The callbacks of `JournalWriter`."""

    def gather(self) -> None:
        """Stage the proposals that waited for the write; a write has ended."""
        ...

    def synced(self, tickets: list[tuple[Raft, int]]) -> None:
        """Mark these tickets as durable; the next write is already in flight."""
        ...

    def refused(self, rafts: Iterable[Raft]) -> None:
        """Handle a full disk: the non-durable output of these groups was not written and must be
        staged again."""
        ...

    def kick(self) -> None:
        """Take a turn: the disk may have room again."""
        ...

    def fail(self, error: BaseException) -> None:
        """Stop the core: the journal has failed permanently."""
        ...


class PendingWrite(msgspec.Struct):
    """The completions of one write."""

    tickets: list[tuple[Raft, int]]
    moves: Moves
    waiters: list[asyncio.Future[bool]]


class JournalWriter:
    """Stages and writes journal batches; at most one write is in flight."""

    def __init__(
        self, journal: Journal, writer: WriteExecutor, turns: Turns, counters: CoreCounters
    ) -> None:
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
        """Return how long the write in flight has taken so far."""
        return 0.0 if self._flying is None else self._loop.time() - self._given_at

    def stage(self, member: Member, effects: Effects) -> None:
        """Stage a group's effects for the next write, and record their ticket."""
        journal, number, entries = self._journal, effects.group, effects.entries
        if effects.reset is not None:
            journal.stage(
                number, effects.reset.term, effects.reset.index, EntryKind.RESET, _NO_BYTES
            )
        if effects.hard_state is not None:
            state = effects.hard_state
            # the recovered membership now replaces the configured one
            if member.raft.loss.members_learned:
                self._belongs(member.raft)
            journal.stage(number, state.term, state.vote, EntryKind.HARD_STATE, _flag(state))
        if entries:
            if all(entry.kind == EntryKind.COMMAND for entry in entries):
                journal.stage_all(entries, EntryKind.COMMAND)
            else:
                for entry in entries:
                    entry.position = journal.stage(
                        number, entry.term, entry.index, entry.kind, entry.payload
                    )
            member.staged(entries)
        self._gathered.tickets.append((member.raft, effects.ticket))

    def copy(self, group: int, batches: list[HotBatch]) -> asyncio.Future[bool]:
        """Write hot batches again; their positions move when that is durable. The result is False,
        and nothing moves, if the disk was full."""
        self._gathered.moves += [
            (batch, self._journal.stage(group, 0, 0, KIND_COPY, copy_of(batch)))
            for batch in batches
        ]
        return self._waiter()

    def renew(
        self, members: Iterable[Member], departed: Mapping[int, HardState]
    ) -> asyncio.Future[bool]:
        """Write the membership and hard state of all members again, and the hard state of dropped
        replicas."""
        for member in members:
            self._begin(member)
        for group, state in departed.items():
            self._departed(group, state)
        return self._waiter()

    def begin(self, members: Iterable[Member]) -> asyncio.Future[bool]:
        """Write the membership and hard state of the members that exist at start."""
        return self.renew(members, {})

    def configured(self, group: int, snapshot: Snapshot) -> asyncio.Future[bool]:
        """Write the configuration at a snapshot; call it before the snapshot is written."""
        self._journal.stage(
            group,
            snapshot.term,
            snapshot.index,
            EntryKind.CONFIGURED,
            encode_configuration(snapshot.configuration),
        )
        return self._waiter()

    def drop(self, group: int, state: HardState) -> asyncio.Future[bool]:
        """Void all journal entries of the group; only the member's hard state is kept."""
        self._departed(group, state)
        return self._waiter()

    def _belongs(self, raft: Raft) -> None:
        snapshot = raft.snapshot
        self._journal.stage(
            raft.group,
            snapshot.term,
            snapshot.index,
            EntryKind.CONFIGURED,
            encode_configuration(snapshot.configuration),
        )

    def _begin(self, member: Member) -> None:
        raft = member.raft
        self._belongs(raft)
        self._journal.stage(raft.group, raft.term, raft.vote, EntryKind.HARD_STATE, _flag(raft))

    def _departed(self, group: int, state: HardState) -> None:
        self._journal.stage(group, state.term, state.vote, EntryKind.DROPPED, _flag(state))

    def flush(self) -> None:
        """Start a write, if none is in flight."""
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
        """Stop the thread after the writes already given to it; their results are ignored."""
        self._closed = True
        self._writer.close()

    def _waiter(self) -> asyncio.Future[bool]:
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._gathered.waiters.append(waiter)
        return waiter

    def _give(self, batch: WriteBatch, write: PendingWrite) -> None:
        self._flying, self._given_at = (batch, write), self._loop.time()
        if batch.durable and self._counters.traced.waiting:
            self._counters.traced.write()
        self._writer.write((batch, self._written))

    def _written(self, error: BaseException | None) -> None:
        if self._closed:
            return
        assert self._flying is not None
        batch, write = self._flying
        self._flying = None
        if self._counters.traced.writing:
            self._counters.traced.written(self._counters.pace)
        try:
            if error is None:
                self._synced(batch, write)
            elif isinstance(error, DiskFull):
                self._refused(batch, write)
            else:
                self._turns.fail(error)
        except (
            BaseException
        ) as fault:  # the state is half updated: later answers would diverge from the log
            self._turns.fail(fault)

    def _synced(self, batch: WriteBatch, write: PendingWrite) -> None:
        self._journal.synced(batch)
        self._turns.gather()
        self.flush()  # the disk works meanwhile
        for hot, position in write.moves:
            hot.position = position
        self._counters.copied += len(write.moves)
        _wake(write, durable=True)
        self._turns.synced(write.tickets)
        if self._flying is None and batch.durable and not self._mark_due:
            self._mark_due = True
            self._loop.call_later(MARK_SECONDS, self._write_mark)

    def _write_mark(self) -> None:
        """Mark the last write as synced."""
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
        self._turns.refused(
            {id(raft): raft for raft, _ in (*write.tickets, *gathered.tickets)}.values()
        )

    def _try_again(self) -> None:
        self.full = False
        if not self._closed:
            self._turns.kick()


def hard_state_of(term: int, vote: int, payload: bytes) -> HardState:
    """Decode the hard state in a journal frame."""
    return HardState(term, vote, payload == FORGETFUL, payload == LEARNING, payload == UNBORN)


def _flag(state: HardState | Raft) -> bytes:
    if state.amnesiac:
        return FORGETFUL
    return LEARNING if state.learning else UNBORN if state.group_is_new else _NO_BYTES


def _wake(write: PendingWrite, *, durable: bool) -> None:
    for waiter in write.waiters:
        if not waiter.done():
            waiter.set_result(durable)
