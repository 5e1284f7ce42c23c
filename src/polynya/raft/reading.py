"""Linearizable reads without a log write: by the leader's lease, or by one round of heartbeats
(thesis 6.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polynya.raft import leading, quiescence
from polynya.raft.effects import ProposalRefused, Role
from polynya.raft.messages import ReadAnswer, ReadRequest
from polynya.raft.reads import Waiting
from polynya.raft.settings import NEVER

if TYPE_CHECKING:
    from polynya.raft.state import RaftState


def read(raft: RaftState, token: Any) -> ProposalRefused | None:
    if raft.reads.waiting >= raft.settings.reads_max:
        return ProposalRefused.OVERLOADED
    waiting = Waiting(token, raft.now_ms)
    if raft.role is Role.LEADER:
        _take(raft, waiting)
    else:
        raft.reads.fresh.append(waiting)
    return None


def has_lease(raft: RaftState) -> bool:
    """Return whether no other leader can exist now, and the commit index covers every
    acknowledgement of earlier leaders."""
    if (
        raft.role is not Role.LEADER
        or raft.lead.transfer_sent
        or raft.commit < raft.lead.own_term_index
    ):
        return False
    return (
        raft.configuration.alone(raft.node)
        or raft.now_ms < raft.lead.lease_begin_ms + raft.settings.lease_ms
    )


def release_applied(raft: RaftState) -> None:
    applying = raft.reads.applying
    while applying and applying[0][0] <= raft.applied:
        raft.reads.ready.append(applying.popleft()[1])


# --- the leader -----------------------------------------------------------------------------------


def become_leader(raft: RaftState) -> None:
    reads = raft.reads
    reads.new = reads.asked + reads.fresh
    reads.asked, reads.fresh = [], []


def retire(raft: RaftState) -> None:
    """Queue local reads for the next leader. Other members retry theirs."""
    reads = raft.reads
    left = [waiting for _, _, round_reads in reads.rounds for waiting in round_reads] + reads.new
    reads.fresh = [waiting for waiting in left if not waiting.origin]
    reads.new = []
    reads.rounds.clear()


def on_request(raft: RaftState, message: ReadRequest) -> None:
    if raft.role is Role.LEADER and raft.reads.waiting < raft.settings.reads_max:
        _take(raft, Waiting(None, raft.now_ms, message.sender, message.context))


def confirm(raft: RaftState) -> None:
    """Complete read rounds after new heartbeat answers: a majority recognized this leader."""
    raft.lead.confirmed = raft.configuration.agreed(
        lambda node: raft.lead.context if node == raft.node else raft.peers[node].context
    )
    while raft.lead.rounds and raft.lead.rounds[0][0] <= raft.lead.confirmed:
        raft.lead.lease_begin_ms = raft.lead.rounds.popleft()[1]
    rounds = raft.reads.rounds
    while rounds and rounds[0][0] <= raft.lead.confirmed:
        _, commit, reads = rounds.popleft()
        _answer(raft, reads, commit)


def flush(raft: RaftState) -> None:
    """Start one heartbeat round for all reads of a turn."""
    reads = raft.reads
    if reads.new and raft.commit >= raft.lead.own_term_index:
        if has_lease(raft):
            _answer(raft, reads.new, raft.commit)
            reads.new = []
        elif len(reads.rounds) < raft.settings.rounds_max:
            leading.open_round(raft, regular=False)
            reads.rounds.append((raft.lead.context, raft.commit, reads.new))
            reads.new = []


def _take(raft: RaftState, waiting: Waiting) -> None:
    if has_lease(raft):
        _answer(raft, [waiting], raft.commit)
    else:
        raft.reads.new.append(waiting)
        quiescence.wake_leader(raft)


def _answer(raft: RaftState, reads: list[Waiting], commit: int) -> None:
    for waiting in reads:
        if waiting.origin:
            raft.send(
                ReadAnswer(
                    waiting.origin, raft.node, raft.group, raft.term, waiting.context, commit
                )
            )
        else:
            _settle(raft, waiting.token, commit)


def _settle(raft: RaftState, token: Any, index: int) -> None:
    if index <= raft.applied:
        raft.reads.ready.append(token)
    else:
        raft.reads.applying.append((index, token))


# --- other members --------------------------------------------------------------------------------


def forward(raft: RaftState) -> None:
    """Send one request for all reads of a turn. A retried read also accepts the answer to its first
    request, which may take longer than a heartbeat interval."""
    reads = raft.reads
    if reads.fresh and raft.leader:
        reads.context += 1
        for waiting in reads.fresh:
            waiting.context = waiting.context or reads.context
        reads.asked += reads.fresh
        reads.fresh = []
        raft.asked_ms = raft.now_ms
        raft.send(ReadRequest(raft.leader, raft.node, raft.group, raft.term, reads.context))


def on_answer(raft: RaftState, message: ReadAnswer) -> None:
    """Complete the reads that this answer covers. Earlier requests may get a newer index than they
    need. Ignore answers to another incarnation."""
    reads = raft.reads
    if message.context > reads.context:
        return
    for waiting in reads.asked:
        if waiting.context <= message.context:
            _settle(raft, waiting.token, message.index)
    reads.asked = [waiting for waiting in reads.asked if waiting.context > message.context]


def tick(raft: RaftState) -> None:
    """Retry lost requests; fail reads that have waited for two election times."""
    if raft.now_ms < deadline_ms(raft):
        return
    reads = raft.reads
    reads.fresh = reads.asked + reads.fresh
    reads.asked = []
    late_ms = raft.now_ms - 2 * raft.settings.election_ms
    reads.failed += [waiting.token for waiting in reads.fresh if waiting.since_ms <= late_ms]
    reads.fresh = [waiting for waiting in reads.fresh if waiting.since_ms > late_ms]


def deadline_ms(raft: RaftState) -> int:
    reads = raft.reads
    if not reads.asked and not reads.fresh:
        return NEVER
    again_ms = raft.asked_ms + raft.settings.heartbeat_ms if reads.asked else NEVER
    give_up_ms = (
        min(waiting.since_ms for waiting in reads.fresh) + 2 * raft.settings.election_ms
        if reads.fresh
        else NEVER
    )
    return min(again_ms, give_up_ms)
