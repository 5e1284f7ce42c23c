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

from polynya.base.errors import InvalidMessage, NotLeader, OutcomeUnknown, Unavailable
from polynya.base.futures import settle
from polynya.base.limits import INFLIGHT_BYTES_PER_CORE
from polynya.engine.applying import apply_committed
from polynya.engine.commit_timeout import CommitTimeouts
from polynya.engine.deadlines import Deadlines
from polynya.engine.entry_validation import EntryValidator
from polynya.engine.journal_writer import JournalWriter, WriteExecutor, WriterThread
from polynya.engine.leadership import LeaderPlacement
from polynya.engine.membership import ClusterSettings
from polynya.engine.outbox import Outbox
from polynya.engine.peer_reports import PeerReports
from polynya.engine.replica_readiness import ReplicaReadiness
from polynya.engine.standalone import CoreCounters
from polynya.engine.storage import Storage
from polynya.engine.turn_ends import TurnEnds, journal_failed
from polynya.raft import (
    Effects,
    Entry,
    EntryKind,
    HardState,
    Identity,
    Message,
    ProposalRefused,
    Raft,
    RestoredMember,
    Role,
    Settings,
    Snapshot,
    SnapshotChunk,
    Status,
    decode_message,
)
from polynya.replica import Group
from polynya.replica.log import ENTRY_BYTES_MAX, encode_command, encode_proposal
from polynya.replica.member import Member, Proposal, bundled, parts_of
from polynya.stream.commands import (
    Append,
    Bundle,
    Command,
    Encoding,
    PublishSlices,
    ReplaceSlices,
)
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.state.feature_level import level_for, level_of
from polynya.stream.state.model import HotBatch

READ_SECONDS = 2.5  # timeout of a linearizable read
DRAIN_SECONDS = 2.0  # timeout for requests in flight at a stop

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
        self.shard = storage.shard
        self.journal = journal = storage.journal
        self.counters = CoreCounters()
        self.on_applied: Callable[[int, Command, Reply], None] = lambda group, command, reply: None
        self.watched: Collection[
            int
        ] = ()  # uids with live readers: without one, `on_applied` does not hear of appends
        self.on_turn: Callable[[], None] = lambda: None
        self.on_snapshot_effects: Callable[[Member, Effects], None] = lambda member, effects: None
        self.on_chunk: Callable[[Member, SnapshotChunk], None] = self.step
        self.on_leadership: list[Callable[[int], None]] = []
        self.on_made: list[Callable[[int], None]] = []
        self.on_dropped: list[Callable[[int], None]] = []
        self.led: dict[int, Machine] = {}  # groups that accept proposals here
        # lower bound of log time: local reads judge expiry by it, and touches count from it
        self.floor_ms = 0
        self.inflight_bytes = 0  # commands proposed here and not answered
        self.node = cluster.membership.node
        self._cluster = cluster
        self.now_ms = self._now_ms = cluster.now_ms  # boot clock, not log time
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._ready: list[Raft] = []
        self._queued: list[Member] = []
        self._outbox = Outbox(cluster.links)
        # hard states of dropped replicas, which bind later replicas of the same group
        self.departed = storage.departed
        self.first_of = cluster.membership.first_of  # the preferred leader of a group
        self._kicked = self._applied = False
        self._dead: BaseException | None = None
        self._ends = TurnEnds()
        self._writes = JournalWriter(
            journal,
            WriterThread(journal, self.counters.pace) if writer is None else writer,
            self,
            self.counters,
        )
        self._deadlines = Deadlines(self._now_ms, self._due)
        self.members: dict[int, Member] = {}
        self.peers = PeerReports(self.members, self._now_ms, self._kick_soon)
        self._readiness, self._validator = ReplicaReadiness(self.node), EntryValidator()
        for number, restored in storage.restored.items():
            self._join(number, restored)
        self._writes.begin(self.members.values())
        self.leadership = LeaderPlacement(self, self._writes)
        self._commit_timeouts = CommitTimeouts(self)
        self._kick_soon()

    # --- replicas that come and go ----------------------------------------------------------------

    def has(self, group: int) -> bool:
        """Return True if this core has a replica of the group."""
        return group in self.members

    def add(self, group: int, restored: RestoredMember) -> None:
        """Add a replica that is already recorded on disk."""
        self.departed.pop(group, None)
        self.shard.groups[group] = Group(group, Machine(group, self._cluster.groups))
        self._join(group, restored)
        for hear in self.on_made:
            hear(group)
        self._kick_soon()

    def remove(self, group: int) -> asyncio.Future[bool]:
        """Stop the replica. The result is True once its log is void on disk, False if the disk was
        full."""
        member = self.members.pop(group, None)
        if member is not None:
            raft = member.raft
            self.departed[group] = HardState(raft.term, raft.vote, raft.amnesiac)
            self.led.pop(group, None)
            member.leading = False
            queued, proposals = member.emptied()
            self._answer_all(queued, NotLeader(0))
            self._answer_all(
                proposals,
                OutcomeUnknown(
                    "this node is no longer the group's leader; the append may or may not be "
                    "applied"
                ),
            )
            for futures in raft.reads.tokens():
                _settle(futures, Unavailable("the group has moved to other nodes; retry"))
            del self.shard.groups[group]
            for hear in self.on_dropped:
                hear(group)
        waiter = self._writes.drop(group, self.departed[group])
        self._kick_soon()
        return waiter

    async def configured(self, group: int, snapshot: Snapshot) -> bool:
        """Persist the configuration at a snapshot before the snapshot is written. Return False if
        the disk is full."""
        waiter = self._writes.configured(group, snapshot)
        self._kick_soon()
        return await waiter

    def settings_of(self, number: int) -> Settings:
        """Return Raft settings; they depend on the preferred leader and on the number of groups."""
        return self._cluster.settings(
            number, self.first_of(number) == self.node, len(self.shard.groups)
        )

    def _join(self, number: int, restored: RestoredMember) -> None:
        identity = Identity(number, self.node, self._cluster.seed())
        raft = Raft(
            identity, restored, self.settings_of(number), now_ms=self._now_ms(), ready=self._ready
        )
        self._readiness.begins(number, restored)
        self.members[number] = Member(self.shard.groups[number], raft, restored.entries)

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
        if not member.queue:
            self._queued.append(member)
        member.queue.append(Proposal(payload, EntryKind.COMMAND, 0, 0, group, 0, command, done))
        self.inflight_bytes += len(payload)
        self._kick_soon()

    async def call(self, group: int, command: Command) -> Reply:
        """Propose a command and wait for the reply."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.propose(group, command, partial(settle, future))
        return await future

    def inflight_bytes_of(self, group: int) -> int:
        member = self.members.get(group)
        return (
            0
            if member is None
            else sum(len(entry.payload) for entry in (*member.queue, *member.proposals))
        )

    def _refusal(self, member: Member, command: Command) -> Reply | BaseException | None:
        if self._dead is not None:
            return journal_failed()
        if not member.leading:
            return NotLeader(self.leader_of(member.group.number))
        if self.inflight_bytes > INFLIGHT_BYTES_PER_CORE:
            self.counters.overloaded += 1
            return Unavailable("the log is behind: too many bytes are in flight; retry")
        if self._writes.full:
            return Reply(Code.DISK_FULL)
        is_common = type(command) is Append and (
            command.batch is None or command.batch.encoding != Encoding.KAFKA
        )
        if (
            not is_common and level_for(command) > member.group.machine.level
        ):  # older nodes cannot decode it
            return Unavailable(
                "this command needs a newer feature level; some nodes run an older release. "
                "Finish the upgrade"
            )
        if (
            isinstance(command, PublishSlices | ReplaceSlices) and command.term != member.raft.term
        ):  # planned in an older term
            return Unavailable("this job was planned in an older term; it will be planned again")
        return (
            self._commit_timeouts.refusal(member.group.number)
            if self._commit_timeouts.stuck
            else None
        )

    # --- reads ------------------------------------------------------------------------------------

    def readable(self, group: int) -> bool:
        """Return True if the local state can serve a linearizable read now."""
        member = self.members.get(group)
        return member is not None and self._dead is None and member.raft.readable(self._now_ms())

    def fit(self, group: int) -> bool:
        """Return True if the local replica may serve reads: it is a member and has caught up."""
        return group in self.members and self._readiness.of(self.members[group])

    async def linearize(self, group: int) -> None:
        """Wait until the local state includes all writes acknowledged anywhere before this call.
        Raises Unavailable when no leader responds, or when the local replica is missing or still
        catching up."""
        if self._dead is not None:
            raise journal_failed()
        if not self.fit(group):
            raise Unavailable(
                "this node has no replica of the group to read from; retry, or ask another node"
            )
        member, now_ms = self.members[group], self._now_ms()
        if member.raft.readable(now_ms):
            return
        future: asyncio.Future[None] = self._loop.create_future()
        if member.reading is None:
            waiting: list[asyncio.Future[None]] = [future]
            refusal = member.raft.read(waiting, now_ms)
            if refusal is not None:
                raise Unavailable("too many reads are waiting for this group; retry")
            if member.raft.role is not Role.LEADER:
                # one read index request per turn; a leader's lease may expire before the next read
                member.reading = waiting
            self._kick_soon()
        else:
            member.reading.append(future)
        try:
            async with asyncio.timeout(READ_SECONDS):
                await future
        except TimeoutError:
            raise Unavailable(
                "this node has not caught up with acknowledged writes; retry, or ask another node"
            ) from None

    # --- what peers say ---------------------------------------------------------------------------

    def received(self, messages: Sequence[bytes], sender: int = 0) -> None:
        """Process messages from a peer; those for unknown groups are dropped. Raises InvalidMessage
        at the end; an invalid message has no effect."""
        if self._dead is not None:
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
        self._kick_soon()
        if senseless is not None:
            raise senseless

    def step(self, member: Member, message: Message) -> None:
        """Process a message that was deferred."""
        if self._dead is not None:
            return
        try:
            member.raft.step(message, self._now_ms())
        except InvalidMessage as fault:
            self._validator.dropped(message.sender, fault, self._now_ms())
        except BaseException as fault:
            self._die(fault)
        self._kick_soon()

    # --- leadership -------------------------------------------------------------------------------

    def is_leader(self, group: int) -> bool:
        return group in self.led

    def leader_of(self, group: int) -> int:
        """Return the leader's node: 0 when it is unknown, or when this node was elected and is not
        ready yet."""
        member = self.members.get(group)
        leader = 0 if member is None else member.raft.leader
        return 0 if leader == self.node and group not in self.led else leader

    def term(self, group: int) -> int:
        """Return the group's term, 0 without a replica here."""
        return self.members[group].raft.term if group in self.members else 0

    def transfer(self, group: int, node: int) -> ProposalRefused | None:
        """Transfer the leadership of a group to another node."""
        if group not in self.members:
            return ProposalRefused.NOT_LEADER
        refusal = self.members[group].raft.transfer(node, self._now_ms())
        self._kick_soon()
        return refusal

    def statuses(self) -> dict[int, Status]:
        return {number: member.raft.status() for number, member in self.members.items()}

    # --- the journal ------------------------------------------------------------------------------

    async def copy_forward(self, group: int, batches: list[HotBatch]) -> bool:
        """Write the batches again at the journal's end and move their places there. Return False,
        and move nothing, if the disk is full."""
        waiter = self._writes.copy(group, batches)
        self._kick_soon()
        return await waiter

    async def renew_states(self) -> None:
        """Write terms and votes again, so that the segments that hold them can be released. Raises
        Unavailable when the disk is full."""
        waiter = self._writes.renew(self.members.values(), self.departed)
        self._kick_soon()
        if not await waiter:
            raise Unavailable("the disk has no room for terms and votes; retrying later")

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
            await self._ends.wait(self._dead)

    async def drain(self) -> None:
        """Wait for requests in flight, for at most DRAIN_SECONDS, before a clean stop."""
        deadline = self._loop.time() + DRAIN_SECONDS
        while (
            self._dead is None
            and (self._writes.busy or self.inflight_bytes)
            and self._loop.time() < deadline
        ):
            await asyncio.sleep(0.005)
        for member in self.members.values():
            self.give_up(
                member,
                OutcomeUnknown("this node is stopping; the append may or may not be applied"),
            )

    def give_up(self, member: Member, outcome: OutcomeUnknown) -> None:
        """Answer all proposals that are in the log with this outcome. Their entries are still
        applied if they commit."""
        lost = list(member.proposals)
        member.proposals.clear()
        self._answer_all(lost, outcome)

    def close(self) -> None:
        """Stop the loop, and the writer thread after its queued writes."""
        self._dead = self._dead or RuntimeError("closed")
        self.leadership.close()
        self._commit_timeouts.close()
        self._deadlines.close()
        self._writes.close()

    def snapshotted(
        self, number: int, index: int, size_and_identity: tuple[int, int], *, keep_from: int
    ) -> None:
        """Compact the log after a snapshot at `index` is on disk. Entries from the place
        `keep_from` on stay for followers that lag."""
        member = self.members[number]
        snapshot = member.raft.snapshot_of(index, *size_and_identity)
        member.raft.snapshotted(
            snapshot, min(member.first_from(keep_from), index + 1), self._now_ms()
        )
        member.release(member.raft.log.first)
        self._kick_soon()

    def compact(self, number: int, *, keep_from: int) -> None:
        """Compact the log again while the last snapshot is still current."""
        raft = self.members[number].raft
        if raft.snapshot.index:
            self.snapshotted(
                number,
                raft.snapshot.index,
                (raft.snapshot.size, raft.snapshot.identity),
                keep_from=keep_from,
            )

    def floor_of(self, number: int, *, unapplied: bool = False) -> int:
        """Return the lowest journal place that the group's log uses or will use. With `unapplied`,
        only unapplied entries count; they may be old if no quorum has them yet."""
        member, settled = self.members[number], self.journal.settled
        place = member.place_of(member.group.applied_index + 1 if unapplied else member.first)
        return settled if place is None else min(place, settled)

    def install(self, member: Member, snapshot: Snapshot, machine: Machine) -> None:
        """Replace a group's state by a snapshot of another node; both are durable here."""
        group = member.group
        group.machine, group.applied_index, group.term = machine, snapshot.index, snapshot.term
        member.installed(snapshot.index)
        member.raft.installed(snapshot.identity, self._now_ms())
        self._kick_soon()

    def kick(self) -> None:
        """Schedule a turn after a member received input outside of one."""
        self._kick_soon()

    def fail(self, error: BaseException) -> None:
        """Stop the core because a part of it has failed."""
        if self._dead is None:
            self._die(error)

    # --- what the writes tell ---------------------------------------------------------------------

    def gather(self) -> None:
        """Stage the proposals that arrived during the write."""
        if self._dead is None and self._queued:
            self._turn()

    def synced(self, tickets: list[tuple[Raft, int]]) -> None:
        if self._dead is None:
            now_ms = self._now_ms()
            for raft, ticket in tickets:
                raft.persisted(ticket, now_ms)
            self._turn()

    def refused(self, rafts: Iterable[Raft]) -> None:
        """Handle a full disk: Raft stages its unwritten state again when there is room. Until then
        proposals are rejected, and leaderships move to nodes that have room."""
        if self._dead is None:
            now_ms = self._now_ms()
            for raft in rafts:
                gone = raft.unwritten(now_ms)
                if (
                    gone and raft.group in self.members
                ):  # a group of one: no other replica has the entries
                    self._answer_all(self.members[raft.group].cut(gone), Reply(Code.DISK_FULL))
            self.leadership.hand_over_all()
            self._turn()

    def room(self) -> None:
        self._kick_soon()

    # --- turns ------------------------------------------------------------------------------------

    def _kick_soon(self) -> None:
        if not self._kicked and self._dead is None:
            self._kicked = True
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        self._kicked = False
        if self._dead is None:
            try:
                self._turn()
            except (
                BaseException
            ) as fault:  # the turn is incomplete: sent messages may refer to unwritten state
                self._die(fault)

    def _due(self, groups: list[int]) -> None:
        if self._dead is None:
            now_ms = self._now_ms()
            try:
                for group in groups:
                    if group in self.members:
                        self.members[group].raft.tick(now_ms)
            except BaseException as fault:
                self._die(fault)
            self._kick_soon()

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
            self.on_turn()
        self._ends.tell()

    def _hand_in(self, now_ms: int) -> None:
        queued, self._queued = self._queued, []
        for member in queued:
            entries, member.queue = member.queue, []
            if not entries:
                continue
            if len(entries) > 1 and member.group.machine.level >= _BUNDLE_LEVEL:
                entries = bundled(entries)
            refusal = member.raft.propose(entries, now_ms)
            if refusal is None:
                member.proposals.extend(entries)  # type: ignore[arg-type]
            elif refusal is ProposalRefused.OVERLOADED:
                self._answer_all(
                    entries,
                    Unavailable("the group is behind: too many bytes are uncommitted; retry"),
                )
            else:
                leader = member.raft.leader
                self._answer_all(entries, NotLeader(0 if leader == self.node else leader))

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
            _settle(futures, None)
        for futures in effects.reads_failed:
            _settle(
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
            member, self.on_applied, self._answer, self.watched
        )
        member.raft.applied_to(member.group.applied_index)
        self.floor_ms = max(self.floor_ms, member.group.machine.log_ms)
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
                queued, member.queue = member.queue, []  # proposals that waited for the disk
                self._answer_all(queued, NotLeader(self.leader_of(number)))
        lost = member.lost()
        if lost:
            self._answer_all(
                lost,
                OutcomeUnknown(
                    "this node is no longer the group's leader; the append may or may not be "
                    "applied"
                ),
            )
        for look in self.on_leadership:
            look(number)

    def _answer_all(self, entries: Sequence[Entry], reply: Reply | BaseException) -> None:
        for entry in entries:
            for part in parts_of(entry):
                self._answer(part, reply)

    def _answer(self, proposal: Proposal, reply: Reply | BaseException) -> None:
        token, proposal.token = proposal.token, None
        self.inflight_bytes -= len(proposal.payload)
        try:
            token(reply)
        except Exception as fault:
            self._report("an answer could not be given", fault)

    def _report(self, message: str, fault: Exception) -> None:
        """Report the error without raising it: one client or peer must not fail the others."""
        self._loop.call_exception_handler({"message": message, "exception": fault})

    # --- failures ---------------------------------------------------------------------------------

    def _die(self, error: BaseException) -> None:
        self._dead = error
        self._deadlines.close()
        for member in self.members.values():
            member.leading = False
            queued, proposals = member.emptied()
            self._answer_all(queued, journal_failed())
            self._answer_all(
                proposals,
                OutcomeUnknown(
                    "the journal could not be synced; the append may or may not be durable"
                ),
            )
        self.led.clear()
        self._ends.tell()
        self._fatal(error)


def _settle(futures: list[asyncio.Future[None]], fault: BaseException | None) -> None:
    for future in futures:
        settle(future, fault)
