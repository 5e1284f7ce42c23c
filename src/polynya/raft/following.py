"""Message handling of followers, learners and readers (thesis 3.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.errors import InvalidMessage
from polynya.raft import disk_loss, election, membership, quiescence
from polynya.raft.effects import Role
from polynya.raft.messages import Append, AppendAnswer, Entry, Heartbeat, HeartbeatAnswer

if TYPE_CHECKING:
    from polynya.raft.state import RaftState


def heard(raft: RaftState, leader: int) -> None:
    """Record a message from the leader of this term."""
    if raft.role is Role.LEADER:
        raise InvalidMessage(
            f"node {leader} claims to be leader of group {raft.group} in term {raft.term}, but "
            "this node is"
        )
    if raft.role is not Role.FOLLOWER or raft.leader != leader:
        election.become_follower(raft, raft.term, leader)
    raft.heard_ms = raft.timer_ms = raft.now_ms
    raft.withheld = None
    # every later leader's log holds the committed entries (leader completeness)
    raft.verified = max(raft.verified, raft.commit)


def arriving(raft: RaftState, peer: int) -> None:
    """Extend the election timeout while bytes from the leader arrive. A promise longer than the
    leader assumes is safe."""
    if raft.role is Role.FOLLOWER and raft.leader == peer:
        raft.heard_ms = raft.timer_ms = raft.now_ms


def on_append(raft: RaftState, message: Append) -> None:
    heard(raft, message.sender)
    raft.quiescent = False
    if raft.learning:
        raft.loss.heard_commit = max(raft.loss.heard_commit, message.commit)
    if raft.transfers.installing is not None:
        return
    prev_index, entries, log = message.prev_index, message.entries, raft.log
    if prev_index < raft.commit:
        raft.ack_due = True
    elif log.term(prev_index) != message.prev_term:
        _reject(raft, message)
    else:
        if entries:
            _extend(raft, entries)
        raft.verified = max(raft.verified, prev_index + len(entries))
        raft.ack_due = True
        learn_commit(raft, message.commit)


def on_heartbeat(raft: RaftState, message: Heartbeat) -> None:
    heard(raft, message.sender)
    learn_commit(raft, message.commit)
    raft.quiescent = message.quiesce and quiescence.may_quiesce(raft)
    if message.context:
        # answer it: an acknowledgement may be lost, the last one of a window included
        raft.ack_due = raft.ack_due or raft.learning
        held, match = raft.verified, 0 if raft.learning else min(raft.verified, raft.durable)
        raft.send(
            HeartbeatAnswer(
                message.sender,
                raft.node,
                raft.group,
                raft.term,
                message.context,
                held,
                match,
                raft.quiescent,
            )
        )


def learn_commit(raft: RaftState, commit: int) -> None:
    """Advance the commit index. Only entries that match this leader's log can be known to be
    committed."""
    if raft.transfers.installing is None:
        raft.commit = max(raft.commit, min(commit, raft.verified))


def flush(raft: RaftState) -> None:
    """Acknowledge everything that became durable, once a turn."""
    if raft.amnesiac:
        disk_loss.try_end_amnesia(raft)
    elif raft.learning:
        disk_loss.try_learn(raft)
    if raft.leader == 0 or raft.transfers.installing is not None:
        return
    match = min(raft.verified, raft.durable)
    answered = raft.verified <= raft.durable
    if (raft.ack_due and answered) or match > raft.acked:
        raft.ack_due = raft.ack_due and not answered
        raft.acked = match
        raft.send(AppendAnswer(raft.leader, raft.node, raft.group, raft.term, match))


def _extend(raft: RaftState, entries: list[Entry]) -> None:
    log = raft.log
    if entries[0].index <= log.last:
        new = next(
            (
                position
                for position, entry in enumerate(entries)
                if log.term(entry.index) != entry.term
            ),
            len(entries),
        )
        entries = entries[new:]
        if entries and entries[0].index <= log.last:
            raft.cut(entries[0].index)
    log.append(entries)
    membership.note(raft, entries)


def _reject(raft: RaftState, message: Append) -> None:
    """Reject an append with a hint where to search next; the hint skips whole terms."""
    log = raft.log
    hint = log.last_not_after(message.prev_index, message.prev_term)
    term = log.term(hint) or 0
    raft.send(
        AppendAnswer(
            message.sender, raft.node, raft.group, raft.term, 0, message.prev_index, hint, term
        )
    )
