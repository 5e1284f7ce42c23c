"""One member of one group: its state, its inputs and its effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from polynya.base.errors import InvalidMessage
from polynya.raft import (
    disk_loss,
    election,
    following,
    leading,
    membership,
    quiescence,
    reading,
    snapshots,
)
from polynya.raft.configuration import Configuration
from polynya.raft.effects import (
    ChunkArrived,
    ChunkWanted,
    Effects,
    EntryLoad,
    PeerStatus,
    ProposalRefused,
    Role,
    Status,
)
from polynya.raft.log import Log
from polynya.raft.messages import (
    TERM_STEP_MAX,
    Append,
    AppendAnswer,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    ReadAnswer,
    ReadRequest,
    Snapshot,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from polynya.raft.progress import Progress
from polynya.raft.recovery import RestoredMember
from polynya.raft.settings import NEVER, Settings

_MASK = 2**64 - 1


class Identity(msgspec.Struct, frozen=True):
    """The identity of a member. `seed` holds 64 random bits, unique to this incarnation; timeouts
    and read contexts derive from it."""

    group: int
    node: int
    seed: int


class InFlightWrite(msgspec.Struct, gc=False):
    """A write that was handed out and is not yet durable."""

    ticket: int
    last: int  # its last index that is still in the log as written
    hard_state: HardState
    reset: Snapshot | None


class Raft:
    """One member of one group. All inputs return at once; `take` returns their effects. After an
    input, `ready` lists this member once as one that may have effects. After `take`, `deadline_ms`
    is the time when `tick` is due. Times are in ms, of a monotonic clock that includes suspension.

    Invariants: applied <= handed <= commit <= log.last; durable and verified <= log.last; no
      message leaves before the hard state that it
    depends on is durable.
    """

    __slots__ = (
        "ack_due",  # an append awaits its answer
        "acked",  # the last index acknowledged to this term's leader
        "all_blank",  # all members that answered are blank
        "amnesiac",
        "applied",
        "asked_ms",  # when reads were last forwarded
        "awaiting_term",  # amnesiac: members that have not reported their term
        "chunks_arrived",
        "chunks_wanted",
        "commit",
        "configurations",  # (index, configuration), oldest first; the last is in effect
        "confirmed",  # the newest context that a majority answered
        "context",  # the last heartbeat that required an answer
        "departed",  # leader: removed members and when they were removed
        "durable",
        # amnesiac, all answers received: wait this long for a newer leader
        "election_holdoff_until_ms",
        "group",
        "group_is_new",  # the group was found to be new, and no term has begun
        "handed",  # committed entries up to here were handed out
        "hard_due",
        "hard_durable",
        "heard_commit",  # while learning: the highest commit index that leaders reported
        "heard_ms",  # the last message of a leader; promises count from here
        "held",  # messages that wait for the hard state
        "incoming",  # (snapshot, received bytes) of a transfer to this member
        "informed",  # … members with data that answered
        "install",
        "installing",
        "known_since",  # … from the last one that is known to be committed
        "known_voters",  # … the voting members by index of their configuration …
        "last_active_ms",
        "last_notified",  # (role, term, leader) last reported to the caller
        "leader",
        "learning",
        "lease_begin_ms",
        "load",
        "loading",
        "log",
        "members_learned",  # amnesiac: a member with data reported the first configuration
        "messages",
        "next_beat_ms",
        "node",
        "now_ms",
        "own_term_index",  # the no-op of the leader's term
        "peers",
        "queried",  # members whose answer is required
        "query_ms",
        "queued",
        "quiescent",
        "random_state",
        "reads",
        "ready",
        "recount",
        "reported_term",
        "reset",
        "role",
        "rounds",  # (context, sent_ms), not yet confirmed
        "settings",
        "snapshot",
        "term",
        "ticket",
        "timeout_ms",
        "timer_ms",
        "transfer_ms",
        "transfer_sent",  # this term has no lease any more
        "transferee",
        "undiscovered",  # in a new group: members that may not know yet that it is new
        "unknown_leaders",  # unknown members that act as leaders
        "unstaged",  # the first index not yet handed out for writing
        "verified",  # up to here the log matches that of this term's leader
        "vote",
        "votes",
        "withheld",  # (time, pre-vote received while quiescent), until the leader is heard
        "writes",
    )

    def __init__(
        self,
        identity: Identity,
        restored: RestoredMember,
        settings: Settings,
        *,
        now_ms: int,
        ready: list[Raft],
    ) -> None:
        self.group, self.node = identity.group, identity.node
        self.random_state = identity.seed & _MASK
        self.settings = settings
        self.ready = ready
        self.now_ms = self.heard_ms = self.timer_ms = self.last_active_ms = now_ms
        self.withheld: tuple[int, Vote] | None = None
        self._restore(restored)
        self._start()
        self.wake()

    def _restore(self, restored: RestoredMember) -> None:
        snapshot, entries = restored.snapshot, restored.entries
        self.snapshot = snapshot
        self.term, self.vote = restored.hard_state.term, restored.hard_state.vote
        self.amnesiac, self.learning = restored.hard_state.amnesiac, restored.hard_state.learning
        self.group_is_new = restored.hard_state.group_is_new
        if entries and entries[0].index <= snapshot.index:
            self.log = Log(entries[0].index, entries[0].term)
            self.log.append(entries[1:])
        else:
            self.log = Log(snapshot.index, snapshot.term)
            self.log.append(entries)
        self.applied = self.handed = self.commit = snapshot.index
        self.durable = self.log.last
        self.configurations: list[tuple[int, Configuration]] = [
            (snapshot.index, snapshot.configuration)
        ]
        membership.note(self, [entry for entry in entries if entry.index > snapshot.index])
        self.reset: Snapshot | None = snapshot if restored.reset else None

    def _start(self) -> None:
        self.role, self.leader = Role.FOLLOWER, 0
        self.peers: dict[int, Progress] = {}
        self.votes: dict[int, bool] = {}
        self.ticket, self.unstaged = 0, self.log.last + 1
        self.writes: deque[InFlightWrite] = deque()
        self.hard_durable, self.hard_due = True, False
        self.held: dict[tuple[type[Message], int], Message] = {}
        self.messages: list[Message] = []
        self.verified = self.acked = 0
        self.ack_due = self.recount = self.queued = self.quiescent = False
        self.reads = reading.Reads(self.random(2**63))
        self.asked_ms = 0
        self.context = self.confirmed = 0
        self.rounds: deque[tuple[int, int]] = deque()
        self.lease_begin_ms = -NEVER
        self.own_term_index = self.next_beat_ms = 0
        self.transferee = self.transfer_ms = 0
        self.transfer_sent = False
        self.departed: dict[int, int] = {}
        self.incoming: tuple[Snapshot, int] | None = None
        self.install: Snapshot | None = None
        self.installing: Snapshot | None = None
        self.chunks_wanted: list[ChunkWanted] = []
        self.chunks_arrived: list[ChunkArrived] = []
        self.load: EntryLoad | None = None
        self.loading = 0
        self.last_notified = (Role.FOLLOWER, self.term, 0)
        election.draw_timeout(self)
        self.heard_commit = 0
        self.awaiting_term: set[int] = set()
        self.undiscovered: set[int] = set()
        self.unknown_leaders: set[int] = set()
        self.queried: set[int] = set()
        self.known_voters: dict[int, set[int]] = {}
        self.known_since = 0
        self.members_learned = False
        self.informed: set[int] = set()
        self.reported_term = self.query_ms = self.election_holdoff_until_ms = 0
        self.all_blank = False
        disk_loss.start(self)
        if membership.is_alone(self):
            self.timeout_ms = 0  # no other member could be the leader, or hold a promise of ours

    # --- inputs -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Run the timers that are due. May be called at any time; required only at
        `deadline_ms`."""
        self._at(now_ms)
        if now_ms >= self.deadline_ms:
            if self.role is Role.LEADER:
                leading.beat(self)
            else:
                election.tick(self)
                reading.tick(self)
                disk_loss.tick(self)

    def step(self, message: Message, now_ms: int) -> None:
        """Handle a message. Raises InvalidMessage, without effect, if it is for another member or
        group, or if no member could have sent it."""
        if message.to != self.node or message.group != self.group:
            raise InvalidMessage(
                f"a message for member {message.to} of group {message.group} reached member "
                f"{self.node} of group {self.group}"
            )
        if message.term > self.term + TERM_STEP_MAX:
            raise InvalidMessage(
                f"group {self.group} is in term {self.term}, but the term {message.term} of a "
                "message is impossible"
            )
        self._at(now_ms)
        if disk_loss.concerns(message):
            disk_loss.on_message(self, message)
            return
        if self.amnesiac and disk_loss.keeps_out(self, message):
            return
        peer = self.peers.get(message.sender)
        if peer is not None:
            peer.lost = False
        if message.term != self.term and not election.takes_term(self, message):
            return
        _HANDLERS[type(message)](self, message)

    def propose(self, entries: list[Entry], now_ms: int) -> ProposalRefused | None:
        """Append entries to the log and set their terms and indexes. They are returned as
        committed, or removed by another leader."""
        self._at(now_ms)
        return leading.propose(self, entries)

    def persisted(self, ticket: int, now_ms: int) -> None:
        """Record that the write of this ticket, and all before it, are durable."""
        self._at(now_ms)
        writes = self.writes
        while writes and writes[0].ticket <= ticket:
            write = writes.popleft()
            self.durable = max(self.durable, write.last)
            self.hard_durable = not self.hard_due and write.hard_state == self._hard_state
        self.recount = True
        if self.hard_durable:
            self._release()

    def unwritten(self, now_ms: int) -> int:
        """Handle a full disk: no pending write was written, so all are handed out again. A group of
        one drops its entries instead, unless they were handed out as committed. Return the first
        dropped index, or 0."""
        self._at(now_ms)
        resets = (self.reset, *(write.reset for write in reversed(self.writes)))
        # the newest installation supersedes the others
        self.reset = next((reset for reset in resets if reset is not None), None)
        self.writes.clear()
        self.hard_due = not self.hard_durable
        self.unstaged = min(self.unstaged, max(self.durable + 1, self.log.first))
        first = max(self.durable, self.commit) + 1
        if (
            self.role is not Role.LEADER
            or not membership.is_alone(self)
            or first > self.log.last
            or self.own_term_index >= first
        ):
            return 0
        self.cut(first)
        return first

    def applied_to(self, index: int) -> None:
        """Record that committed entries are applied up to `index`. This completes the reads that
        waited for it."""
        assert self.applied <= index <= self.handed, "what is applied was given out as committed"
        self.applied = index
        if self.reads.applying:
            reading.release_applied(self)
            self.wake()
        if self.transferee:
            leading.hand_over(self)
            self.wake()
        self.log.evict(min(index, self.durable), self.settings.log_bytes_max)

    def read(self, token: Any, now_ms: int) -> ProposalRefused | None:
        """Start a linearizable read on any member. The token is returned once the applied state is
        recent enough. One token may stand for all reads of a turn."""
        self._at(now_ms)
        return reading.read(self, token)

    def readable(self, now_ms: int) -> bool:
        """Return whether the applied state may serve a linearizable read now: the lease holds, and
        all known commits are applied."""
        self.now_ms = max(self.now_ms, now_ms)
        return self.applied >= self.commit and reading.has_lease(self)

    def transfer(self, target: int, now_ms: int) -> ProposalRefused | None:
        """Transfer leadership to a voter. The transfer is abandoned after an election time."""
        self._at(now_ms)
        return leading.transfer(self, target)

    def change(self, configuration: Configuration, now_ms: int) -> ProposalRefused | None:
        """Change the voters, learners and readers (`outgoing` is ignored), by joint consensus if
        the voters differ. New voters must be learners that are close to the end of the log."""
        self._at(now_ms)
        return membership.change(self, configuration)

    def campaign(self, now_ms: int) -> None:
        """Start an election by pre-vote, for tests and operators."""
        self._at(now_ms)
        election.hurry(self)

    def unreachable(self, peer: int, now_ms: int) -> None:
        """Handle a broken connection: recent messages to this member may be lost."""
        self._at(now_ms)
        leading.unreachable(self, peer)

    def peer_lost(self, peer: int, heard_ms: int, now_ms: int) -> None:
        """Record that the node has been silent since `heard_ms`, or has restarted."""
        self._at(now_ms)
        quiescence.peer_lost(self, peer, heard_ms)

    def peer_found(self, peer: int, now_ms: int) -> None:
        """Record that the node is up again."""
        self._at(now_ms)
        quiescence.peer_found(self, peer)

    def peer_sends(self, peer: int, now_ms: int) -> None:
        """Count a leader's node as up: its bytes are arriving ahead of its heartbeats."""
        self._at(now_ms)
        following.arriving(self, peer)

    def peer_takes(self, peer: int, now_ms: int) -> None:
        """Count a node as up while bytes ahead of the heartbeats leave for it. This extends no
        lease."""
        self._at(now_ms)
        leading.leaving(self, peer)

    def loaded(self, begin: int, entries: list[Entry], now_ms: int) -> None:
        """Complete an `EntryLoad`. Empty entries mean that they cannot be read; the members then
        get the snapshot."""
        self._at(now_ms)
        leading.loaded(self, begin, entries)

    def snapshotted(self, snapshot: Snapshot, first: int, now_ms: int) -> None:
        """Record a durable snapshot of applied state (see `snapshot_of`). Entries before `first`
        are dropped; `first` is at most the snapshot's index + 1."""
        self._at(now_ms)
        snapshots.taken(self, snapshot, first)

    def chunk(self, wanted: ChunkWanted, data: bytes, now_ms: int) -> None:
        """Complete a `ChunkWanted`."""
        self._at(now_ms)
        snapshots.chunk_read(self, wanted, data)

    def chunk_missing(self, wanted: ChunkWanted, now_ms: int) -> None:
        """Handle an unreadable snapshot: the newest one is sent instead."""
        self._at(now_ms)
        snapshots.chunk_missing(self, wanted)

    def forget_incoming(self) -> None:
        """Drop an incoming snapshot that could not be stored. Its next chunk is answered with 0,
        which restarts the transfer."""
        self.incoming = None

    def installed(self, identity: int, now_ms: int) -> None:
        """Record that the snapshot of `Effects.install` is durable and is the applied state."""
        self._at(now_ms)
        snapshots.installed(self, identity)

    def install_failed(self, identity: int, now_ms: int) -> None:
        """Record that the snapshot is unusable, for example damaged. The leader sends it again."""
        self._at(now_ms)
        snapshots.install_failed(self, identity)

    # --- effects ----------------------------------------------------------------------------------

    def take(self) -> Effects:
        """Return the effects at the end of a turn. The caller owns the lists in it; only appends to
        several members share their entries."""
        self.queued = False
        if self.role is Role.LEADER:
            leading.flush(self)
        else:
            following.flush(self)
            reading.forward(self)
        effects = Effects(
            self.group,
            messages=self.messages,
            reads=self.reads.ready,
            reads_failed=self.reads.failed,
        )
        self.messages, self.reads.ready, self.reads.failed = [], [], []
        self._give_writes(effects)
        if self.handed < self.commit:
            effects.committed = self.log.entries(self.handed + 1, self.commit + 1)
            self.handed = self.commit
        now = (self.role, self.term, self.leader)
        if now != self.last_notified:
            self.last_notified, effects.changed = now, True
        if (
            self.install is not None
            or self.chunks_wanted
            or self.chunks_arrived
            or self.load is not None
        ):
            effects.install, effects.chunks_wanted, effects.chunks_arrived = (
                self.install,
                self.chunks_wanted,
                self.chunks_arrived,
            )
            effects.load = self.load
            self.install, self.chunks_wanted, self.chunks_arrived, self.load = None, [], [], None
        return effects

    @property
    def deadline_ms(self) -> int:
        """Return the time when `tick` is due; NEVER while the group sleeps."""
        if self.role is Role.LEADER:
            return NEVER if self.quiescent else self.next_beat_ms
        return min(
            election.deadline_ms(self), reading.deadline_ms(self), disk_loss.deadline_ms(self)
        )

    @property
    def configuration(self) -> Configuration:
        """Return the configuration in effect: the last one in the log."""
        return self.configurations[-1][1]

    def snapshot_of(self, index: int, size: int, identity: int) -> Snapshot:
        """Return the descriptor of a snapshot of the state at an applied index."""
        term = self.log.term(index)
        assert term is not None and index <= self.applied, "the state of an index that is applied"
        return Snapshot(index, term, membership.configuration_at(self, index), size, identity)

    def status(self) -> Status:
        peers = {
            node: PeerStatus(peer.match, peer.mode.name.lower(), peer.heard_ms, peer.lost)
            for node, peer in self.peers.items()
        }
        return Status(
            self.group,
            self.role,
            self.term,
            self.leader,
            self.commit,
            self.applied,
            self.durable,
            self.log.last,
            self.quiescent,
            peers,
            self.configuration,
            not self.configuration.joint and self.configurations[-1][0] <= self.commit,
            tuple(sorted(self.awaiting_term | self.undiscovered))
            if self.amnesiac or self.undiscovered
            else None,
        )

    # --- for the other modules of this package ----------------------------------------------------

    def wake(self) -> None:
        """Queue this member, because it may have effects."""
        if not self.queued:
            self.queued = True
            self.ready.append(self)

    def random(self, below: int) -> int:
        """Return the next number of a deterministic sequence (splitmix64) from the seed."""
        self.random_state = state = (self.random_state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        return (state ^ (state >> 31)) % below

    def send(self, message: Message) -> None:
        """Send now, or once the term and the vote it depends on are durable. Of held messages, only
        the last of each type and member is kept."""
        if self.hard_durable:
            self.messages.append(message)
        else:
            self.held[type(message), message.to] = message

    def set_hard_state(self, term: int, vote: int) -> None:
        assert term > self.term or (term == self.term and self.vote in {0, vote}), (
            "terms only grow, and there is one vote in each"
        )
        if (term, vote) != (self.term, self.vote):
            self.term, self.vote = term, vote
            self.group_is_new = False
            self.undiscovered.clear()
            self.hard_due, self.hard_durable = True, False
            self.wake()

    def end_amnesia(self) -> None:
        """Clear the amnesiac and learning states: the lost promises no longer matter."""
        self.amnesiac = self.learning = False
        self.hard_due, self.hard_durable = True, False
        self.wake()

    @property
    def _hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.amnesiac, self.learning, self.group_is_new)

    def cut(self, index: int) -> None:
        """Remove the entries from `index` on, because the leader lacks them or they are
        withdrawn."""
        assert index > self.commit, "what is committed stays"
        self.log.truncate(index)
        self.durable = min(self.durable, index - 1)
        self.unstaged = min(self.unstaged, index)
        for write in self.writes:
            write.last = min(write.last, index - 1)
        while self.configurations[-1][0] >= index:
            self.configurations.pop()

    def _at(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)
        self.wake()

    def _release(self) -> None:
        held, self.held = self.held, {}
        self.messages += [message for message in held.values() if message.term >= self.term]
        if self.role is Role.CANDIDATE and self.node not in self.votes:
            election.count(self, self.node, granted=True)

    def _give_writes(self, effects: Effects) -> None:
        if not self.hard_due and self.unstaged > self.log.last and self.reset is None:
            return
        self.ticket += 1
        effects.ticket = self.ticket
        hard_state = self._hard_state
        if self.hard_due:
            effects.hard_state, self.hard_due = hard_state, False
        effects.entries = self.log.entries(self.unstaged, self.log.last + 1)
        self.unstaged = self.log.last + 1
        self.writes.append(InFlightWrite(self.ticket, self.log.last, hard_state, self.reset))
        effects.reset, self.reset = self.reset, None


_HANDLERS: dict[type[Message], Callable[[Raft, Any], None]] = {
    Append: following.on_append,
    AppendAnswer: leading.on_append_answer,
    Heartbeat: following.on_heartbeat,
    HeartbeatAnswer: leading.on_heartbeat_answer,
    Vote: election.on_vote,
    VoteAnswer: election.on_vote_answer,
    TimeoutNow: election.on_timeout_now,
    ReadRequest: reading.on_request,
    ReadAnswer: reading.on_answer,
    SnapshotChunk: snapshots.on_chunk,
    SnapshotAnswer: snapshots.on_answer,
}
