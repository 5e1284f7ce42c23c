"""The turn loop of a core whose groups have replicas on other nodes (docs/decisions/0010).

A turn steps all groups through Raft. It batches their output into one message per peer and one
write with one fsync. Peer messages are processed at once. Proposals wait for the write in flight
and leave with the next one. Under load a group thus has few, large entries (bundles). An entry is
applied once it is committed *and* durable here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from polynya.base.errors import (
    InvalidMessage,
    NotLeader,
    OutcomeUnknown,
    Unavailable,
    UpgradePending,
)
from polynya.base.futures import settle
from polynya.base.limits import INFLIGHT_BYTES_PER_CORE
from polynya.base.spans import ACTIVE
from polynya.engine.applying import apply_committed
from polynya.engine.commit_timeout import CommitTimeouts
from polynya.engine.deadlines import Deadlines
from polynya.engine.entry_validation import EntryValidator
from polynya.engine.journal_writer import JournalWriter
from polynya.engine.leadership import LeaderPlacement
from polynya.engine.membership import ClusterSettings
from polynya.engine.outbox import Outbox
from polynya.engine.peer_reports import PeerReports
from polynya.engine.replicas.journal_keeper import JournalKeeper
from polynya.engine.replicas.linearizable_reads import LinearizableReads, settle_all
from polynya.engine.replicas.proposal_answers import ProposalAnswers
from polynya.engine.replicas.replica_set import ReplicaSet
from polynya.engine.storage import Storage
from polynya.engine.turns import CoreCounters, TurnEnds, WriteExecutor, WriterThread, journal_failed
from polynya.raft import (
    Effects,
    EntryKind,
    Message,
    ProposalRefused,
    Raft,
    SnapshotChunk,
    decode_message,
)
from polynya.replica.log import ENTRY_BYTES_MAX, encode_command, encode_proposal
from polynya.replica.member import Member, Proposal, bundled, parts_of
from polynya.stream.command import Command, level_for, level_of
from polynya.stream.features.appends.commands import Append, Bundle
from polynya.stream.features.compaction.commands import NoteCompaction
from polynya.stream.features.packs.commands import PublishSlices, ReplaceSlices
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code, Done, Reply

DRAIN_SECONDS = 2.0  # timeout for requests in flight at a stop

# jobs that only the leader of their term may complete
_PLANNED = PublishSlices | ReplaceSlices | NoteCompaction
_BUNDLE_LEVEL = level_of(Bundle)


class ReplicatedEngine:
    """The turn loop of a core with peers, with the interface of
    `polynya.engine.standalone.StandaloneEngine`.

    All methods are called on the loop. Invariants: at most one write is in flight. An entry is
    applied only when it is committed and durable here. A proposal is answered once."""

    def __init__(
        self,
        cluster: ClusterSettings,
        storage: Storage,
        *,
        fatal: Callable[[BaseException], None],
        writer: WriteExecutor | None = None,
    ) -> None:
        self.core_replicas = storage.core_replicas
        self.journal = journal = storage.journal
        self.counters = CoreCounters()
        self.on_applied: Callable[[int, Command, Reply], None] = lambda group, command, reply: None
        self.watched: Collection[
            int
        ] = ()  # uids with live readers: without one, `on_applied` does not hear of appends
        self.after_turn: list[Callable[[], None]] = []  # called after a turn that applied entries
        self.on_snapshot_effects: Callable[[Member, Effects], None] = lambda member, effects: None
        self.on_chunk: Callable[[Member, SnapshotChunk], None] = self.step
        self.on_leadership: list[Callable[[int], None]] = []
        # lower bound of log time: local reads judge expiry by it, and touches count from it
        self.floor_ms = 0
        self.node = cluster.membership.node
        self.now_ms = self._now_ms = cluster.now_ms  # boot clock, not log time
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._queued: list[Member] = []
        self._outbox = Outbox(cluster.links)
        self.payload = self._outbox.payload  # bytes of appends in Raft messages, by node
        self._kicked = self._applied = False
        self._ends = TurnEnds()
        self._writes = JournalWriter(
            journal,
            WriterThread(journal, self.counters.pace) if writer is None else writer,
            self,
            self.counters,
        )
        self._deadlines = Deadlines(self._now_ms, self._due)
        self.answers = ProposalAnswers()
        self.replicas = ReplicaSet(cluster, storage, self._writes, self.answers, self.kick)
        self.members, self.led = self.replicas.members, self.replicas.led
        self._ready = self.replicas.ready
        self.reads = LinearizableReads(self.replicas, self._now_ms, self.kick)
        self.keeper = JournalKeeper(journal, self.replicas, self._writes, self._now_ms, self.kick)
        self.peers = PeerReports(self.members, self._now_ms, self.kick)
        self._validator = EntryValidator()
        self._writes.begin(self.members.values())
        self.leadership = LeaderPlacement(self, self._writes, self.replicas)
        self._commit_timeouts = CommitTimeouts(self.replicas, self.answers.give_up)
        self.kick()

    # --- proposals --------------------------------------------------------------------------------

    def propose(self, group: int, command: Command, done: Done) -> None:
        """Propose a command. `done` is called once, on the loop, perhaps before this returns. It
        gets the reply, NotLeader or Unavailable (never applied), or OutcomeUnknown. An encoding
        error is raised, and then nothing is proposed."""
        member = self.members.get(group)
        if member is None:
            done(NotLeader(0))
            return
        refusal = self._refusal(member, command)
        if refusal is not None:
            done(refusal)
            return
        payload = encode_command(command) if type(command) is Append else encode_proposal(command)
        if len(payload) > ENTRY_BYTES_MAX:
            done(Unavailable("the entry is too large for a message between nodes"))
            return
        if ACTIVE.get() is not None:
            done = self.counters.traced.begin(group, done)
        if not member.queue:
            self._queued.append(member)
            member.since = self._loop.time()
        member.queue.append(Proposal(payload, EntryKind.COMMAND, 0, 0, group, 0, command, done))
        self.answers.inflight_bytes += len(payload)
        self.kick()

    async def call(self, group: int, command: Command) -> Reply:
        """Propose a command and wait for the reply."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.propose(group, command, partial(settle, future))
        return await future

    @property
    def inflight_bytes(self) -> int:
        """Return the bytes of the commands that were proposed here and not answered."""
        return self.answers.inflight_bytes

    def inflight_bytes_of(self, group: int) -> int:
        member = self.members.get(group)
        return (
            0
            if member is None
            else sum(len(entry.payload) for entry in (*member.queue, *member.proposals))
        )

    def _refusal(self, member: Member, command: Command) -> Reply | BaseException | None:
        if self._ends.dead is not None:
            return journal_failed()
        if not member.leading:
            return NotLeader(self.replicas.leader_of(member.group.number))
        if self.answers.inflight_bytes > INFLIGHT_BYTES_PER_CORE:
            self.counters.overloaded += 1
            return Unavailable("the log is behind: too many bytes are in flight; retry")
        if self._writes.full:
            return Reply(Code.DISK_FULL)
        is_common = type(command) is Append and (
            command.batch is None or command.batch.encoding != Encoding.KAFKA
        )
        # older nodes cannot decode it
        if not is_common and level_for(command) > member.group.machine.counters.level:
            # earlier releases do not know `UpgradePending`, and send nothing of level 4
            kind = UpgradePending if level_for(command) > 3 else Unavailable
            return kind(
                "this command needs a newer feature level; some nodes run an older release. "
                "Finish the upgrade"
            )
        # planned in an older term
        if isinstance(command, _PLANNED) and command.term != member.raft.term:
            return Unavailable("this job was planned in an older term; it will be planned again")
        return (
            self._commit_timeouts.refusal(member.group.number)
            if self._commit_timeouts.stuck
            else None
        )

    # --- what peers say ---------------------------------------------------------------------------

    def received(self, messages: Sequence[bytes], sender: int = 0) -> None:
        """Process messages from a peer; those for unknown groups are dropped. Raises InvalidMessage
        at the end; an invalid message has no effect."""
        if self._ends.dead is not None:
            return
        now_ms, senseless = self._now_ms(), None
        for data in messages:
            try:
                message = decode_message(data)
                if sender and message.sender != sender:
                    raise InvalidMessage(
                        f"a message of node {message.sender} came from node {sender}"
                    )
                member = self.members.get(message.group)
                if member is None or not self._validator.accept(message, now_ms):
                    continue
                if type(message) is SnapshotChunk:
                    self.on_chunk(member, message)
                else:
                    member.raft.step(message, now_ms)
            except InvalidMessage as fault:
                senseless = fault
            except BaseException as fault:  # a group invariant is broken: send nothing more for it
                self._die(fault)
                return
        self.kick()
        if senseless is not None:
            raise senseless

    def step(self, member: Member, message: Message) -> None:
        """Process a message that was deferred."""
        if self._ends.dead is not None:
            return
        try:
            member.raft.step(message, self._now_ms())
        except InvalidMessage as fault:
            self._validator.dropped(message.sender, fault, self._now_ms())
        except BaseException as fault:
            self._die(fault)
        self.kick()

    def transfer(self, group: int, node: int) -> ProposalRefused | None:
        """Transfer the leadership of a group to another node."""
        if group not in self.members:
            return ProposalRefused.NOT_LEADER
        refusal = self.members[group].raft.transfer(node, self._now_ms())
        self.kick()
        return refusal

    # --- ends --------------------------------------------------------------------------------------

    async def wait_applied(self) -> None:
        """Wait until all earlier local proposals are applied or lost. Raises Unavailable when the
        journal fails."""
        pending = [
            part
            for member in self.members.values()
            for entry in (*member.proposals, *member.queue)
            for part in parts_of(entry)
        ]
        while any(part.token is not None for part in pending):
            await self._ends.wait()

    async def drain(self) -> None:
        """Wait for requests in flight, for at most DRAIN_SECONDS, before a clean stop."""
        deadline = self._loop.time() + DRAIN_SECONDS
        while (
            self._ends.dead is None
            and (self._writes.busy or self.answers.inflight_bytes)
            and self._loop.time() < deadline
        ):
            await asyncio.sleep(0.005)
        for member in self.members.values():
            self.answers.give_up(
                member,
                OutcomeUnknown("this node is stopping; the append may or may not be applied"),
            )

    def close(self) -> None:
        """Stop the loop, and the writer thread after its queued writes."""
        self._ends.dead = self._ends.dead or RuntimeError("closed")
        self.reads.stop()
        self.leadership.close()
        self._commit_timeouts.close()
        self._deadlines.close()
        self._writes.close()

    def kick(self) -> None:
        """Schedule a turn: a member received input outside of one, or the disk may have room."""
        if not self._kicked and self._ends.dead is None:
            self._kicked = True
            self._loop.call_soon(self._kick)

    def fail(self, error: BaseException) -> None:
        """Stop the core because a part of it has failed."""
        if self._ends.dead is None:
            self._die(error)

    # --- what the writes tell ---------------------------------------------------------------------

    def gather(self) -> None:
        """Stage the proposals that arrived during the write."""
        if self._ends.dead is None and self._queued:
            self._turn()

    def synced(self, tickets: list[tuple[Raft, int]]) -> None:
        if self._ends.dead is None:
            now_ms = self._now_ms()
            for raft, ticket in tickets:
                raft.persisted(ticket, now_ms)
            self._turn()

    def refused(self, rafts: Iterable[Raft]) -> None:
        """Handle a full disk: Raft stages its unwritten state again when there is room. Until then
        proposals are rejected, and leaderships move to nodes that have room."""
        if self._ends.dead is None:
            now_ms = self._now_ms()
            for raft in rafts:
                gone = raft.unwritten(now_ms)
                # a group of one: no other replica has the entries
                if gone and raft.group in self.members:
                    self.answers.answer_all(
                        self.members[raft.group].cut(gone), Reply(Code.DISK_FULL)
                    )
            self.leadership.hand_over_all()
            self._turn()

    # --- turns ------------------------------------------------------------------------------------

    def _kick(self) -> None:
        self._kicked = False
        if self._ends.dead is None:
            try:
                self._turn()
            except (
                BaseException
            ) as fault:  # the turn is incomplete: sent messages may refer to unwritten state
                self._die(fault)

    def _due(self, groups: list[int]) -> None:
        if self._ends.dead is None:
            now_ms = self._now_ms()
            try:
                for group in groups:
                    if group in self.members:
                        self.members[group].raft.tick(now_ms)
            except BaseException as fault:
                self._die(fault)
            self.kick()

    def _turn(self) -> None:
        now_ms = self._now_ms()
        if not self._writes.busy:
            self._hand_in(now_ms)
        ready = self._ready
        while ready:
            rafts = ready[:]
            del ready[:]
            for raft in rafts:
                member = self.members.get(raft.group)
                if member is not None and member.raft is raft:  # else the replica was removed
                    self._carry_out(member, raft.take())
        self._outbox.send()
        self._writes.flush()
        self._deadlines.arm()
        if self._applied:
            self._applied = False
            self.counters.turns += 1
            for look in self.after_turn:
                look()
        self._ends.tell()

    def _hand_in(self, now_ms: int) -> None:
        queued, self._queued = self._queued, []
        for member in queued:
            entries, member.queue = member.queue, []
            if not entries:
                continue
            if len(entries) > 1 and member.group.machine.counters.level >= _BUNDLE_LEVEL:
                entries = bundled(entries)
            refusal = member.raft.propose(entries, now_ms)
            if refusal is None:
                member.proposals.extend(entries)  # type: ignore[arg-type]
                member.timed.append((entries[-1].index, member.since))
            elif refusal is ProposalRefused.OVERLOADED:
                self.answers.answer_all(
                    entries,
                    Unavailable("the group is behind: too many bytes are uncommitted; retry"),
                )
            else:
                leader = member.raft.leader
                self.answers.answer_all(entries, NotLeader(0 if leader == self.node else leader))

    def _carry_out(self, member: Member, effects: Effects) -> None:
        member.reading = None
        if effects.ticket:
            self._writes.stage(member, effects)
        if effects.messages:
            self._outbox.post(effects.messages)
        if effects.committed:
            member.committed.extend(effects.committed)
        if member.committed and member.committed[0].index <= member.raft.durable:
            self._apply(member)
        if effects.changed or member.leading != member.can_lead():
            self._lead(member)
        for futures in effects.reads:
            settle_all(futures, None)
        for futures in effects.reads_failed:
            settle_all(
                futures,
                Unavailable("no leader is reachable; retry, or read with consistency=local"),
            )
        if effects.install or effects.chunks_wanted or effects.chunks_arrived or effects.load:
            self.on_snapshot_effects(member, effects)
        self._deadlines.put(effects.group, member.raft.deadline_ms)

    # --- applying ---------------------------------------------------------------------------------

    def _apply(self, member: Member) -> None:
        """Apply the entries that are committed and durable here."""
        self.counters.entries += apply_committed(
            member, self.on_applied, self.answers.answer, self.watched
        )
        applied, timed = member.group.applied_index, member.timed
        while timed and timed[0][0] <= applied:
            seconds, counters = self._loop.time() - timed.popleft()[1], self.counters
            counters.commits.observe(seconds)
            if counters.traced.trace_id:
                counters.commits.remember(seconds, "trace_id", counters.traced.take_trace())
        member.raft.applied_to(applied)
        self.floor_ms = max(self.floor_ms, member.group.machine.counters.log_ms)
        self._applied = True

    def _lead(self, member: Member) -> None:
        """Handle a change of role, term or leader."""
        number, leading = member.group.number, member.can_lead()
        if leading != member.leading:
            member.leading = leading
            if leading:
                self.led[number] = member.group.machine
            else:
                del self.led[number]
                member.timed.clear()
                queued, member.queue = member.queue, []  # proposals that waited for the disk
                self.answers.answer_all(queued, NotLeader(self.replicas.leader_of(number)))
        lost = member.lost()
        if lost:
            self.answers.answer_all(
                lost,
                OutcomeUnknown(
                    "this node is no longer the group's leader; the append may or may not be "
                    "applied"
                ),
            )
        for look in self.on_leadership:
            look(number)

    # --- failures ---------------------------------------------------------------------------------

    def _die(self, error: BaseException) -> None:
        self._ends.dead = error
        self._deadlines.close()
        self.reads.stop()
        for member in self.members.values():
            member.leading = False
            self.answers.empty(
                member,
                journal_failed(),
                OutcomeUnknown(
                    "the journal could not be synced; the append may or may not be durable"
                ),
            )
        self.led.clear()
        self._ends.tell()
        self._fatal(error)
