"""One member of one group: its state, its inputs and its effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    Effects,
    PeerStatus,
    ProposalRefused,
    Role,
    Status,
)
from polynya.raft.messages import (
    TERM_STEP_MAX,
    Append,
    AppendAnswer,
    Entry,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    ReadAnswer,
    ReadRequest,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from polynya.raft.recovery import RestoredMember
from polynya.raft.settings import NEVER, Settings
from polynya.raft.state import Identity, InFlightWrite, RaftState


class Raft(RaftState):
    """One member of one group. All inputs return at once; `take` returns their effects. After an
    input, `ready` lists this member once as one that may have effects. After `take`, `deadline_ms`
    is the time when `tick` is due. Times are in ms, of a monotonic clock that includes suspension.
    """

    __slots__ = ("snapshots",)

    def __init__(
        self,
        identity: Identity,
        restored: RestoredMember,
        settings: Settings,
        *,
        now_ms: int,
        ready: list[Raft],
    ) -> None:
        super().__init__(identity, restored, settings, now_ms=now_ms, ready=ready)
        self.snapshots = snapshots.Snapshots(self)
        begin = restored.snapshot.index
        membership.note(self, [entry for entry in restored.entries if entry.index > begin])
        election.draw_timeout(self)
        disk_loss.start(self)
        if membership.is_alone(self):
            self.timeout_ms = 0  # no other member could be the leader, or hold a promise of ours
        self.wake()

    # --- inputs -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Run the timers that are due. May be called at any time; required only at
        `deadline_ms`."""
        self.at(now_ms)
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
        self.at(now_ms)
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
        self.at(now_ms)
        return leading.propose(self, entries)

    def persisted(self, ticket: int, now_ms: int) -> None:
        """Record that the write of this ticket, and all before it, are durable."""
        self.at(now_ms)
        writes = self.writes
        while writes and writes[0].ticket <= ticket:
            write = writes.popleft()
            self.durable = max(self.durable, write.last)
            self.hard_durable = not self.hard_due and write.hard_state == self.hard_state
        self.lead.recount = True
        if self.hard_durable:
            self._release()

    def unwritten(self, now_ms: int) -> int:
        """Handle a full disk: no pending write was written, so all are handed out again. A group of
        one drops its entries instead, unless they were handed out as committed. Return the first
        dropped index, or 0."""
        self.at(now_ms)
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
            or self.lead.own_term_index >= first
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
        if self.lead.transferee:
            leading.hand_over(self)
            self.wake()
        self.log.evict(min(index, self.durable), self.settings.log_bytes_max)

    def read(self, token: Any, now_ms: int) -> ProposalRefused | None:
        """Start a linearizable read on any member. The token is returned once the applied state is
        recent enough. One token may stand for all reads of a turn."""
        self.at(now_ms)
        return reading.read(self, token)

    def readable(self, now_ms: int) -> bool:
        """Return whether the applied state may serve a linearizable read now: the lease holds, and
        all known commits are applied."""
        self.now_ms = max(self.now_ms, now_ms)
        return self.applied >= self.commit and reading.has_lease(self)

    def transfer(self, target: int, now_ms: int) -> ProposalRefused | None:
        """Transfer leadership to a voter. The transfer is abandoned after an election time."""
        self.at(now_ms)
        return leading.transfer(self, target)

    def change(self, configuration: Configuration, now_ms: int) -> ProposalRefused | None:
        """Change the voters, learners and readers (`outgoing` is ignored), by joint consensus if
        the voters differ. New voters must be learners that are close to the end of the log."""
        self.at(now_ms)
        return membership.change(self, configuration)

    def campaign(self, now_ms: int) -> None:
        """Start an election by pre-vote, for tests and operators."""
        self.at(now_ms)
        election.hurry(self)

    def unreachable(self, peer: int, now_ms: int) -> None:
        """Handle a broken connection: recent messages to this member may be lost."""
        self.at(now_ms)
        leading.unreachable(self, peer)

    def peer_lost(self, peer: int, heard_ms: int, now_ms: int) -> None:
        """Record that the node has been silent since `heard_ms`, or has restarted."""
        self.at(now_ms)
        quiescence.peer_lost(self, peer, heard_ms)

    def peer_found(self, peer: int, now_ms: int) -> None:
        """Record that the node is up again."""
        self.at(now_ms)
        quiescence.peer_found(self, peer)

    def peer_sends(self, peer: int, now_ms: int) -> None:
        """Count a leader's node as up: its bytes are arriving ahead of its heartbeats."""
        self.at(now_ms)
        following.arriving(self, peer)

    def peer_takes(self, peer: int, now_ms: int) -> None:
        """Count a node as up while bytes ahead of the heartbeats leave for it. This extends no
        lease."""
        self.at(now_ms)
        leading.leaving(self, peer)

    def loaded(self, begin: int, entries: list[Entry], now_ms: int) -> None:
        """Complete an `EntryLoad`. Empty entries mean that they cannot be read; the members then
        get the snapshot."""
        self.at(now_ms)
        leading.loaded(self, begin, entries)

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
        transfers, lead = self.transfers, self.lead
        if (
            transfers.install is not None
            or transfers.chunks_wanted
            or transfers.chunks_arrived
            or lead.load is not None
        ):
            effects.install, transfers.install = transfers.install, None
            effects.chunks_wanted, transfers.chunks_wanted = transfers.chunks_wanted, []
            effects.chunks_arrived, transfers.chunks_arrived = transfers.chunks_arrived, []
            effects.load, lead.load = lead.load, None
        return effects

    @property
    def deadline_ms(self) -> int:
        """Return the time when `tick` is due; NEVER while the group sleeps."""
        if self.role is Role.LEADER:
            return NEVER if self.quiescent else self.lead.next_beat_ms
        return min(
            election.deadline_ms(self), reading.deadline_ms(self), disk_loss.deadline_ms(self)
        )

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
            tuple(sorted(self.loss.awaiting_term | self.loss.undiscovered))
            if self.amnesiac or self.loss.undiscovered
            else None,
        )

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
        hard_state = self.hard_state
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
