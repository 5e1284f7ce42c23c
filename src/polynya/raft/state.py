"""The state of a member, and the only operations that change its term, its log and what it sends.
The inputs are in `raft.py`, the reactions to messages and time in the other modules."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from polynya.raft.configuration import Configuration
from polynya.raft.effects import ChunkArrived, ChunkWanted, EntryLoad, Role
from polynya.raft.log import Log
from polynya.raft.messages import HardState, Message, Snapshot, Vote
from polynya.raft.progress import Progress
from polynya.raft.reads import Reads
from polynya.raft.settings import NEVER, Settings

if TYPE_CHECKING:
    from polynya.raft.recovery import RestoredMember

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


class LossState:
    """Knowledge of a member about the loss of disks, its own and those of others."""

    __slots__ = (
        "all_blank",  # all members that answered are blank
        "awaiting_term",  # amnesiac: members that have not reported their term
        # amnesiac, all answers received: wait this long for a newer leader
        "election_holdoff_until_ms",
        "heard_commit",  # while learning: the highest commit index that leaders reported
        "informed",  # members with data that answered
        "known_since",  # the first index of `known_voters`
        "known_voters",  # the voting members by index of their configuration
        "members_learned",  # amnesiac: a member with data reported the first configuration
        "queried",  # members whose answer is required
        "query_ms",
        "reported_term",
        "undiscovered",  # in a new group: members that may not know yet that it is new
        "unknown_leaders",  # unknown members that act as leaders
    )

    def __init__(self) -> None:
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


class LeaderState:
    """Heartbeats, lease, transfer and loads of a leader; `become_leader` resets them."""

    __slots__ = (
        "confirmed",  # the newest context that a majority answered
        "context",  # the last heartbeat that required an answer
        "departed",  # removed members and when they were removed
        "lease_begin_ms",
        "load",  # entries to read from the journal
        "loading",  # the first index of the load in progress
        "next_beat_ms",
        "own_term_index",  # the no-op of the leader's term
        "recount",  # more may be committed now
        "rounds",  # (context, sent_ms), not yet confirmed
        "transfer_ms",
        "transfer_sent",  # this term has no lease any more
        "transferee",
    )

    def __init__(self) -> None:
        self.recount = False
        self.context = self.confirmed = 0
        self.rounds: deque[tuple[int, int]] = deque()
        self.lease_begin_ms = -NEVER
        self.own_term_index = self.next_beat_ms = 0
        self.transferee = self.transfer_ms = 0
        self.transfer_sent = False
        self.departed: dict[int, int] = {}
        self.load: EntryLoad | None = None
        self.loading = 0


class Transfers:
    """Snapshots on their way to this member and from it."""

    __slots__ = ("chunks_arrived", "chunks_wanted", "incoming", "install", "installing")

    def __init__(self) -> None:
        self.incoming: tuple[Snapshot, int] | None = None  # (snapshot, received bytes)
        self.install: Snapshot | None = None  # to be handed out
        self.installing: Snapshot | None = None
        self.chunks_wanted: list[ChunkWanted] = []
        self.chunks_arrived: list[ChunkArrived] = []


class RaftState:
    """The state of one member of one group.

    Invariants: applied <= handed <= commit <= log.last; durable and verified <= log.last; no
    message leaves before the hard state that it depends on is durable.
    """

    __slots__ = (
        "ack_due",  # an append awaits its answer
        "acked",  # the last index acknowledged to this term's leader
        "amnesiac",
        "applied",
        "asked_ms",  # when reads were last forwarded
        "commit",
        "configurations",  # (index, configuration), oldest first; the last is in effect
        "durable",
        "group",
        "group_is_new",  # the group was found to be new, and no term has begun
        "handed",  # committed entries up to here were handed out
        "hard_due",
        "hard_durable",
        "heard_ms",  # the last message of a leader; promises count from here
        "held",  # messages that wait for the hard state
        "last_active_ms",
        "last_notified",  # (role, term, leader) last reported to the caller
        "lead",
        "leader",
        "learning",
        "log",
        "loss",
        "messages",
        "node",
        "now_ms",
        "peers",
        "queued",
        "quiescent",
        "random_state",
        "reads",
        "ready",
        "reset",
        "role",
        "settings",
        "snapshot",
        "term",
        "ticket",
        "timeout_ms",
        "timer_ms",
        "transfers",
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
        ready: list[Any],
    ) -> None:
        self.group, self.node = identity.group, identity.node
        self.random_state = identity.seed & _MASK
        self.settings = settings
        self.ready = ready
        self.now_ms = self.heard_ms = self.timer_ms = self.last_active_ms = now_ms
        self.withheld: tuple[int, Vote] | None = None
        self._restore(restored)
        self._start()

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
        self.ack_due = self.queued = self.quiescent = False
        self.loss, self.lead, self.transfers = LossState(), LeaderState(), Transfers()
        self.reads = Reads(self.random(2**63))
        self.asked_ms = self.timeout_ms = 0
        self.last_notified = (Role.FOLLOWER, self.term, 0)

    @property
    def configuration(self) -> Configuration:
        """Return the configuration in effect: the last one in the log."""
        return self.configurations[-1][1]

    def at(self, now_ms: int) -> None:
        """Begin an input."""
        self.now_ms = max(self.now_ms, now_ms)
        self.wake()

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
            self.loss.undiscovered.clear()
            self.hard_due, self.hard_durable = True, False
            self.wake()

    def end_amnesia(self) -> None:
        """Clear the amnesiac and learning states: the lost promises no longer matter."""
        self.amnesiac = self.learning = False
        self.hard_due, self.hard_durable = True, False
        self.wake()

    @property
    def hard_state(self) -> HardState:
        """Return what has to be durable besides the log."""
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
