"""Elections: timeouts, pre-votes, votes, and the promise that leases rely on (thesis 3.4, 6.4,
9.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.raft import leading, membership, quiescence
from polynya.raft.effects import Role
from polynya.raft.messages import (
    Append,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from polynya.raft.settings import NEVER, PRIORITY_TOP

if TYPE_CHECKING:
    from polynya.raft.state import RaftState

_OF_LEADERS = (Append, Heartbeat, SnapshotChunk)


def takes_term(raft: RaftState, message: Message) -> bool:
    """Change the state for a message of another term. Return whether to handle the message."""
    if message.term < raft.term:
        _answer_old(raft, message)
        return False
    if isinstance(message, _OF_LEADERS):
        become_follower(raft, message.term, message.sender)
    elif type(message) is not Vote and not (
        type(message) is VoteAnswer and message.pre and message.granted
    ):
        become_follower(raft, message.term, 0)
    return True


def become_follower(raft: RaftState, term: int, leader: int) -> None:
    if raft.role is Role.LEADER:
        leading.retire(raft)
    if term > raft.term:
        raft.set_hard_state(term, 0)
        raft.verified = raft.acked = 0
        raft.ack_due = False
    raft.role, raft.leader = Role.FOLLOWER, leader
    raft.quiescent = False
    raft.votes = {}
    restart_timer(raft)


def draw_timeout(raft: RaftState) -> None:
    election_ms = raft.settings.election_ms
    steps = PRIORITY_TOP - max(raft.settings.priority, 1)
    raft.timeout_ms = election_ms + steps * election_ms // 2 + raft.random(election_ms)


def restart_timer(raft: RaftState) -> None:
    raft.timer_ms = raft.now_ms
    draw_timeout(raft)


def leader_lost(raft: RaftState, heard_ms: int) -> None:
    """Schedule an election for a quiescent or doubting follower whose leader has been silent since
    `heard_ms`. If a pre-vote was withheld shortly before, grant it, so that no other member
    competes with that candidate."""
    raft.quiescent = False
    raft.heard_ms = max(raft.heard_ms, min(heard_ms, raft.now_ms))
    settings, withheld = raft.settings, raft.withheld
    raft.withheld = None
    if (
        withheld is not None
        and raft.now_ms - withheld[0] < settings.election_ms
        and not promised(raft, withheld[1].sender)
    ):
        restart_timer(raft)
        on_vote(raft, withheld[1])
        return
    steps = PRIORITY_TOP - max(settings.priority, 1)
    raft.timer_ms = raft.heard_ms
    raft.timeout_ms = (
        max(settings.election_ms, raft.now_ms - raft.heard_ms)
        + steps * settings.spread_ms
        + raft.random(settings.spread_ms)
    )


def may_campaign(raft: RaftState) -> bool:
    """Return whether this member may campaign. A voter that a change removes may campaign until the
    removal is known to be committed, because only it may hold certain entries (4.2.2)."""
    known = raft.configurations
    if raft.amnesiac or raft.learning or raft.loss.undiscovered:
        return False
    if len(known) == 1:  # the common case, checked at every turn
        return raft.transfers.installing is None and known[0][1].votes(raft.node)
    return raft.transfers.installing is None and any(
        possible.votes(raft.node) for possible in membership.possible(raft)
    )


def deadline_ms(raft: RaftState) -> int:
    if (
        raft.quiescent
        or not may_campaign(raft)
        or (raft.settings.priority == 0 and not raft.configuration.alone(raft.node))
    ):
        return NEVER
    return raft.timer_ms + raft.timeout_ms


def tick(raft: RaftState) -> None:
    if raft.now_ms >= deadline_ms(raft):
        hurry(raft)


def hurry(raft: RaftState) -> None:
    """Campaign by pre-vote."""
    if raft.role is not Role.LEADER and may_campaign(raft):
        raft.quiescent = False
        raft.role, raft.leader = Role.PRECANDIDATE, 0
        restart_timer(raft)
        raft.votes = {}
        _ask(raft, pre=True, forced=False)
        count(raft, raft.node, granted=True)


def promised(raft: RaftState, candidate: int) -> bool:
    """Return whether a leader relies on our promise to elect no other leader. A leader that
    requests votes itself has given up leadership."""
    if raft.role is Role.LEADER:
        return True
    return candidate != raft.leader and (
        raft.quiescent or raft.now_ms - raft.heard_ms < raft.settings.election_ms
    )


def on_vote(raft: RaftState, message: Vote) -> None:
    if raft.learning or (raft.amnesiac and not covers_lost_disk(raft, message)):
        return
    if not message.forced and promised(raft, message.sender):
        if raft.role is Role.LEADER:
            leading.assert_itself(raft, message.sender)
        elif raft.quiescent and message.pre:
            quiescence.doubt(raft, message)
        return
    fresh = (message.last_term, message.last_index) >= (raft.log.last_term, raft.log.last)
    if message.pre:
        granted = fresh and message.term > raft.term
        raft.send(
            VoteAnswer(
                message.sender,
                raft.node,
                raft.group,
                message.term if granted else raft.term,
                pre=True,
                granted=granted,
            )
        )
        return
    if message.term > raft.term:
        become_follower(raft, message.term, 0)
    granted = fresh and raft.leader == 0 and raft.vote in {0, message.sender}
    if granted:
        raft.role = Role.FOLLOWER  # a vote ends our own candidacy
        raft.set_hard_state(raft.term, message.sender)
        restart_timer(raft)
    raft.send(
        VoteAnswer(message.sender, raft.node, raft.group, raft.term, pre=False, granted=granted)
    )


def covers_lost_disk(raft: RaftState, asked: Vote) -> bool:
    """Return whether a amnesiac member that has all answers may vote for this candidate. The
    candidate may be the only other member: a majority of two is both, so it holds every committed
    entry. Otherwise its log must have an entry of a term above all reported ones
    (docs/decisions/0019). The leader of that term was elected without the lost votes."""
    return raft.loss.queried == {asked.sender} or asked.last_term > raft.loss.reported_term


def on_vote_answer(raft: RaftState, message: VoteAnswer) -> None:
    if message.pre:
        awaited = raft.role is Role.PRECANDIDATE and (
            not message.granted or message.term == raft.term + 1
        )
    else:
        awaited = raft.role is Role.CANDIDATE
    if awaited:
        count(raft, message.sender, granted=message.granted)
        if not (message.pre or message.granted) and raft.role is not Role.LEADER:
            _ask_again_soon(raft)


def _ask_again_soon(raft: RaftState) -> None:
    """Retry soon after a refused vote. The refusing member most likely campaigned at the same
    moment, and neither wins. Both retry earlier than after a leader's silence, at random times. The
    retry is a pre-vote, which does no harm if a leader was elected or our log is stale.
    """
    spread_ms = raft.settings.spread_ms
    raft.timer_ms = raft.now_ms
    raft.timeout_ms = min(raft.timeout_ms, spread_ms + raft.random(2 * spread_ms))


def count(raft: RaftState, voter: int, *, granted: bool) -> None:
    raft.votes.setdefault(voter, granted)
    won = raft.configuration.won(raft.votes)
    if won and raft.role is Role.PRECANDIDATE:
        _campaign(raft, forced=False)
    elif won:
        leading.become_leader(raft)
    elif won is False:
        raft.role = Role.FOLLOWER


def on_timeout_now(raft: RaftState, message: TimeoutNow) -> None:
    """Campaign at once: the leader gave up its lease in favor of this member."""
    if raft.role is Role.FOLLOWER and may_campaign(raft):
        raft.quiescent = False
        _campaign(raft, forced=True)


def _campaign(raft: RaftState, *, forced: bool) -> None:
    """Start an election. Our own vote counts, and the requests leave, once the new term is
    durable."""
    raft.set_hard_state(raft.term + 1, raft.node)
    raft.role, raft.leader = Role.CANDIDATE, 0
    raft.verified = raft.acked = 0
    raft.ack_due = False
    raft.votes = {}
    restart_timer(raft)
    _ask(raft, pre=False, forced=forced)


def _ask(raft: RaftState, *, pre: bool, forced: bool) -> None:
    log, configuration = raft.log, raft.configuration
    for peer in sorted({*configuration.voters, *configuration.outgoing} - {raft.node}):
        raft.send(
            Vote(peer, raft.node, raft.group, raft.term + pre, log.last, log.last_term, pre, forced)
        )


def _answer_old(raft: RaftState, message: Message) -> None:
    """Notify the leader of an older term of the new term, even if this member may not campaign
    (etcd/raft, `stepFollower` with check-quorum)."""
    if isinstance(message, _OF_LEADERS):
        raft.send(HeartbeatAnswer(message.sender, raft.node, raft.group, raft.term))
    elif type(message) is Vote:
        raft.send(
            VoteAnswer(
                message.sender, raft.node, raft.group, raft.term, pre=message.pre, granted=False
            )
        )
