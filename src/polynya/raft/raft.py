"""One member of one group: its state, its inputs, and the effects that it gives out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from polynya.base.errors import InvalidMessage
from polynya.raft import disk_loss, election, following, leading, membership, quiescence, reading, snapshots
from polynya.raft.configuration import Configuration
from polynya.raft.effects import ChunkArrived, ChunkWanted, Effects, EntryLoad, PeerStatus, ProposalRefused, Role, Status
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
    """`seed`: 64 random bits that no other life of this member has had: timeouts and the contexts of reads come from it."""

    group: int
    node: int
    seed: int


class InFlightWrite(msgspec.Struct, gc=False):
    """Given out and not yet known to be durable."""

    ticket: int
    last: int  # its last index that is still in the log as it was written
    hard_state: HardState
    reset: Snapshot | None


class Raft:
    """All inputs return at once; what they lead to comes out of `take`. After an input the member is in `ready`, the list of those that may
    have effects, once. `deadline_ms` says when `tick` has something to do, after `take`. Time is in ms, by a clock that counts suspension and
    never goes back.

    Invariants: applied <= handed <= commit <= log.last; durable, verified <= log.last; with `held` empty or not, no message leaves before
    the hard state that it speaks for is durable.
    """

    __slots__ = (
        "ack_due",  # an append came that is not answered
        "acked",  # what this term's leader was told
        "all_blank",  # all who were heard know nothing either
        "applied",
        "asked_ms",  # when reads were last forwarded
        "chunks_arrived",
        "chunks_wanted",
        "commit",
        "configurations",  # (index, configuration), oldest first; the last is in effect
        "confirmed",  # the newest context that a majority answered
        "context",  # of the last heartbeat that wanted an answer
        "departed",  # a leader: members that it has put out, and when
        "durable",
        "forgetful",
        "group",
        "handed",  # committed entries up to here have been given out
        "hard_due",
        "hard_durable",
        "heard_commit",  # while it is learning: how far leaders have said that there is something to know
        "heard_ms",  # the last time that a leader was heard: what a promise counts from
        "held",  # messages that wait for the hard state
        "incoming",  # (snapshot, received) on its way here
        "install",
        "installing",
        "last_active_ms",
        "leader",
        "learning",
        "lease_begin_ms",
        "load",
        "loading",
        "log",
        "messages",
        "next_beat_ms",
        "node",
        "now_ms",
        "own_term_index",  # the no-op of the leader's term
        "patient_ms",  # a forgetful member that has heard all: so long it waits for a leader of a newer term
        "peers",
        "queued",
        "random_state",
        "reads",
        "ready",
        "recall_based",  # a forgetful member: it has been told who belongs to the group by one that has data
        "recall_known",  # … and who has a voice, by the index where a configuration begins …
        "recall_ms",
        "recall_since",  # … from the last one on that somebody knows to be committed
        "recall_told",  # … by these
        "recalled",  # all whose word is needed
        "recalled_term",
        "recount",
        "reset",
        "role",
        "rounds",  # (context, sent_ms) not yet confirmed
        "settings",
        "sleeping",
        "snapshot",
        "strangers",  # … who speaks as a leader, and is not known to have a voice
        "term",
        "ticket",
        "timeout_ms",
        "timer_ms",
        "told",  # (role, term, leader) that the outside knows
        "transfer_ms",
        "transfer_sent",  # in this term: there is no lease any more
        "transferee",
        "unborn",  # it has found that the group is new, and no term has begun
        "unheard",  # a forgetful member: who has not told its term
        "unmet",  # a member of a new group: who may not have found yet that it is new
        "unstaged",  # first index not given out for writing
        "verified",  # up to here the log is known to be that of this term's leader
        "vote",
        "votes",
        "withheld",  # (when, a pre-vote that came while this member slept), until the leader is heard
        "writes",
    )

    def __init__(self, identity: Identity, restored: RestoredMember, settings: Settings, *, now_ms: int, ready: list[Raft]) -> None:
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
        self.forgetful, self.learning = restored.hard_state.forgetful, restored.hard_state.learning
        self.unborn = restored.hard_state.unborn
        if entries and entries[0].index <= snapshot.index:
            self.log = Log(entries[0].index, entries[0].term)
            self.log.append(entries[1:])
        else:
            self.log = Log(snapshot.index, snapshot.term)
            self.log.append(entries)
        self.applied = self.handed = self.commit = snapshot.index
        self.durable = self.log.last
        self.configurations: list[tuple[int, Configuration]] = [(snapshot.index, snapshot.configuration)]
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
        self.ack_due = self.recount = self.queued = self.sleeping = False
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
        self.told = (Role.FOLLOWER, self.term, 0)
        election.draw_timeout(self)
        self.heard_commit = 0
        self.unheard: set[int] = set()
        self.unmet: set[int] = set()
        self.strangers: set[int] = set()
        self.recalled: set[int] = set()
        self.recall_known: dict[int, set[int]] = {}
        self.recall_since = 0
        self.recall_based = False
        self.recall_told: set[int] = set()
        self.recalled_term = self.recall_ms = self.patient_ms = 0
        self.all_blank = False
        disk_loss.start(self)
        if membership.is_alone(self):
            self.timeout_ms = 0  # there is nobody else who could lead, and whom we could have promised anything

    # --- inputs ----------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Does what is due. May be called at any time; need be only at `deadline_ms`."""
        self._at(now_ms)
        if now_ms >= self.deadline_ms:
            if self.role is Role.LEADER:
                leading.beat(self)
            else:
                election.tick(self)
                reading.tick(self)
                disk_loss.tick(self)

    def step(self, message: Message, now_ms: int) -> None:
        """A message has come. Raises Senseless, and has done nothing, when it is for another member or group, or no member could say it."""
        if message.to != self.node or message.group != self.group:
            raise InvalidMessage(
                f"a message for member {message.to} of group {message.group} came to member {self.node} of group {self.group}"
            )
        if message.term > self.term + TERM_STEP_MAX:
            raise InvalidMessage(f"group {self.group} is in term {self.term}: {message.term} is none that it could have reached")
        self._at(now_ms)
        if disk_loss.concerns(message):
            disk_loss.on_message(self, message)
            return
        if self.forgetful and disk_loss.keeps_out(self, message):
            return
        peer = self.peers.get(message.sender)
        if peer is not None:
            peer.lost = False
        if message.term != self.term and not election.takes_term(self, message):
            return
        _HANDLERS[type(message)](self, message)

    def propose(self, entries: list[Entry], now_ms: int) -> ProposalRefused | None:
        """Entries get their terms and indexes and become part of the log; they come back committed, or are cut off by another leader."""
        self._at(now_ms)
        return leading.propose(self, entries)

    def persisted(self, ticket: int, now_ms: int) -> None:
        """The write of this ticket, and all before it, is durable."""
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
        """Nothing that is not yet durable was written, for want of room: it comes again. A group of one drops it, unless it was given out as
        committed; returns the first index that is gone, or 0."""
        self._at(now_ms)
        resets = (self.reset, *(write.reset for write in reversed(self.writes)))
        self.reset = next((reset for reset in resets if reset is not None), None)  # of the newest installation: the others are void
        self.writes.clear()
        self.hard_due = not self.hard_durable
        self.unstaged = min(self.unstaged, max(self.durable + 1, self.log.first))
        first = max(self.durable, self.commit) + 1
        if self.role is not Role.LEADER or not membership.is_alone(self) or first > self.log.last or self.own_term_index >= first:
            return 0
        self.cut(first)
        return first

    def applied_to(self, index: int) -> None:
        """Committed entries are applied up to `index`. Nothing comes of it but reads that waited for this."""
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
        """A linearizable read, on any member: the token comes back when what is applied is new enough for it. One token may stand for all
        reads of a turn."""
        self._at(now_ms)
        return reading.read(self, token)

    def readable(self, now_ms: int) -> bool:
        """Whether what is applied here may answer a linearizable read at this very moment: a lease, and nothing known that is not applied."""
        self.now_ms = max(self.now_ms, now_ms)
        return self.applied >= self.commit and reading.has_lease(self)

    def transfer(self, target: int, now_ms: int) -> ProposalRefused | None:
        """Hand leadership to a voter. Given up after an election time, when it is not heard to have worked."""
        self._at(now_ms)
        return leading.transfer(self, target)

    def change(self, configuration: Configuration, now_ms: int) -> ProposalRefused | None:
        """Towards these voters, learners and readers (`outgoing` is not looked at), by joint consensus when voters differ. New voters must be
        learners that are close to the end."""
        self._at(now_ms)
        return membership.change(self, configuration)

    def campaign(self, now_ms: int) -> None:
        """Try to be elected now, by pre-vote: for tests and for operators."""
        self._at(now_ms)
        election.hurry(self)

    def unreachable(self, peer: int, now_ms: int) -> None:
        """What was sent to this member lately may be lost: the connection broke."""
        self._at(now_ms)
        leading.unreachable(self, peer)

    def peer_lost(self, peer: int, heard_ms: int, now_ms: int) -> None:
        """The node has not been heard since `heard_ms`, or lives a new life."""
        self._at(now_ms)
        quiescence.peer_lost(self, peer, heard_ms)

    def peer_found(self, peer: int, now_ms: int) -> None:
        """The node is heard again."""
        self._at(now_ms)
        quiescence.peer_found(self, peer)

    def peer_sends(self, peer: int, now_ms: int) -> None:
        """Bytes of the node are arriving that its heartbeats are behind: it counts as heard, where it leads."""
        self._at(now_ms)
        following.arriving(self, peer)

    def peer_takes(self, peer: int, now_ms: int) -> None:
        """Bytes are leaving for the node that heartbeats are behind: it need not answer those yet. No lease comes of it."""
        self._at(now_ms)
        leading.leaving(self, peer)

    def loaded(self, begin: int, entries: list[Entry], now_ms: int) -> None:
        """Answers a `EntryLoad`. Empty: they cannot be read, the members that need them get the snapshot."""
        self._at(now_ms)
        leading.loaded(self, begin, entries)

    def snapshotted(self, snapshot: Snapshot, first: int, now_ms: int) -> None:
        """A snapshot of what was applied (see `snapshot_of`) is durable; entries before `first` (at most the one after it) are let go."""
        self._at(now_ms)
        snapshots.taken(self, snapshot, first)

    def chunk(self, wanted: ChunkWanted, data: bytes, now_ms: int) -> None:
        """Answers a `ChunkWanted`."""
        self._at(now_ms)
        snapshots.chunk_read(self, wanted, data)

    def chunk_missing(self, wanted: ChunkWanted, now_ms: int) -> None:
        """That snapshot cannot be read any more: the newest one is sent instead."""
        self._at(now_ms)
        snapshots.chunk_missing(self, wanted)

    def forget_incoming(self) -> None:
        """What has arrived of a snapshot could not be kept: its next chunk is answered with 0, and it is sent from the start."""
        self.incoming = None

    def installed(self, identity: int, now_ms: int) -> None:
        """The snapshot of `Effects.install` is durable, and is what is applied."""
        self._at(now_ms)
        snapshots.installed(self, identity)

    def install_failed(self, identity: int, now_ms: int) -> None:
        """It cannot be used (damaged, say): it will be sent again."""
        self._at(now_ms)
        snapshots.install_failed(self, identity)

    # --- effects ---------------------------------------------------------------------------------------------------------------

    def take(self) -> Effects:
        """At the end of a turn. The lists in it are the taker's, except that appends of several members share their entries."""
        self.queued = False
        if self.role is Role.LEADER:
            leading.flush(self)
        else:
            following.flush(self)
            reading.forward(self)
        effects = Effects(self.group, messages=self.messages, reads=self.reads.ready, reads_failed=self.reads.failed)
        self.messages, self.reads.ready, self.reads.failed = [], [], []
        self._give_writes(effects)
        if self.handed < self.commit:
            effects.committed = self.log.entries(self.handed + 1, self.commit + 1)
            self.handed = self.commit
        now = (self.role, self.term, self.leader)
        if now != self.told:
            self.told, effects.changed = now, True
        if self.install is not None or self.chunks_wanted or self.chunks_arrived or self.load is not None:
            effects.install, effects.chunks_wanted, effects.chunks_arrived = self.install, self.chunks_wanted, self.chunks_arrived
            effects.load = self.load
            self.install, self.chunks_wanted, self.chunks_arrived, self.load = None, [], [], None
        return effects

    @property
    def deadline_ms(self) -> int:
        """When `tick` is wanted; NEVER for a sleeper."""
        if self.role is Role.LEADER:
            return NEVER if self.sleeping else self.next_beat_ms
        return min(election.deadline_ms(self), reading.deadline_ms(self), disk_loss.deadline_ms(self))

    @property
    def configuration(self) -> Configuration:
        """The one in effect: the last in the log."""
        return self.configurations[-1][1]

    def snapshot_of(self, index: int, size: int, identity: int) -> Snapshot:
        """What to call a snapshot of the state at an applied index."""
        term = self.log.term(index)
        assert term is not None and index <= self.applied, "the state of an index that is applied"
        return Snapshot(index, term, membership.configuration_at(self, index), size, identity)

    def status(self) -> Status:
        peers = {node: PeerStatus(peer.match, peer.mode.name.lower(), peer.heard_ms, peer.lost) for node, peer in self.peers.items()}
        return Status(
            self.group, self.role, self.term, self.leader, self.commit, self.applied, self.durable, self.log.last, self.sleeping, peers,
            self.configuration, not self.configuration.joint and self.configurations[-1][0] <= self.commit,
            tuple(sorted(self.unheard | self.unmet)) if self.forgetful or self.unmet else None,
        )  # fmt: skip

    # --- for the other files of this room --------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to take."""
        if not self.queued:
            self.queued = True
            self.ready.append(self)

    def random(self, below: int) -> int:
        """The next of a fixed sequence of numbers (splitmix64) that the seed begins."""
        self.random_state = state = (self.random_state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        return (state ^ (state >> 31)) % below

    def send(self, message: Message) -> None:
        """Now, or when the term and the vote that it speaks for are durable; then only the last of a type to a member."""
        if self.hard_durable:
            self.messages.append(message)
        else:
            self.held[type(message), message.to] = message

    def set_hard_state(self, term: int, vote: int) -> None:
        assert term > self.term or (term == self.term and self.vote in {0, vote}), "terms only grow, and there is one vote in each"
        if (term, vote) != (self.term, self.vote):
            self.term, self.vote = term, vote
            self.unborn = False
            self.unmet.clear()
            self.hard_due, self.hard_durable = True, False
            self.wake()

    def remember(self) -> None:
        """Nothing that was forgotten matters any more."""
        self.forgetful = self.learning = False
        self.hard_due, self.hard_durable = True, False
        self.wake()

    @property
    def _hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.forgetful, self.learning, self.unborn)

    def cut(self, index: int) -> None:
        """Entries from `index` on are not the leader's, or are taken back."""
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
