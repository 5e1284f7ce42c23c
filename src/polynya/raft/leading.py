"""The leader: append, replicate, count, send heartbeats, transfer leadership (thesis 3.5, 3.6,
3.10, 6.4, 10.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.errors import InvalidMessage
from polynya.raft import election, membership, quiescence, reading, snapshots
from polynya.raft.effects import EntryLoad, ProposalRefused, Role
from polynya.raft.messages import (
    Append,
    AppendAnswer,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatAnswer,
    TimeoutNow,
)
from polynya.raft.progress import Mode, Progress
from polynya.raft.settings import NEVER

if TYPE_CHECKING:
    from polynya.raft.state import RaftState

_Slices = dict[tuple[int, int], list[Entry]]


def become_leader(raft: RaftState) -> None:
    raft.role, raft.leader = Role.LEADER, raft.node
    raft.votes, raft.transfers.incoming = {}, None
    raft.lead.rounds.clear()
    raft.lead.context = raft.lead.confirmed = 0
    raft.lead.lease_begin_ms = -NEVER
    raft.lead.transferee, raft.lead.transfer_sent = 0, False
    raft.lead.loading = 0
    raft.peers, raft.lead.departed = {}, {}
    membership.keep_peers(raft)
    snapshots.know_members(raft)
    append(raft, [Entry(b"", EntryKind.NOOP)])
    raft.lead.own_term_index = raft.log.last
    raft.lead.next_beat_ms = raft.now_ms
    reading.become_leader(raft)


def retire(raft: RaftState) -> None:
    raft.peers = {}
    raft.lead.rounds.clear()
    raft.lead.transferee = 0
    raft.lead.load, raft.transfers.chunks_wanted = None, []
    reading.retire(raft)


# --- inputs ---------------------------------------------------------------------------------------


def propose(raft: RaftState, entries: list[Entry]) -> ProposalRefused | None:
    if raft.role is not Role.LEADER:
        return ProposalRefused.NOT_LEADER
    if raft.lead.transferee:
        return ProposalRefused.HANDING_OVER
    log = raft.log
    if log.size(raft.commit + 1, log.last + 1) > raft.settings.uncommitted_bytes_max:
        return ProposalRefused.OVERLOADED
    append(raft, entries)
    return None


def append(raft: RaftState, entries: list[Entry]) -> None:
    """Append entries to the leader's log. They are sent at the next flush."""
    index, term, group = raft.log.last, raft.term, raft.group
    for entry in entries:
        index += 1
        entry.index = index
        entry.term = term
        entry.group = group
    raft.log.append(entries)
    raft.last_active_ms = raft.now_ms
    raft.lead.recount = True
    quiescence.wake_leader(raft)


def transfer(raft: RaftState, target: int) -> ProposalRefused | None:
    if raft.role is not Role.LEADER:
        return ProposalRefused.NOT_LEADER
    if target == raft.node or target not in raft.configuration.voters:
        return ProposalRefused.NOT_A_VOTER
    if raft.lead.transferee:
        return ProposalRefused.HANDING_OVER
    raft.lead.transferee, raft.lead.transfer_ms = target, raft.now_ms
    raft.last_active_ms = raft.now_ms
    quiescence.wake_leader(raft)
    hand_over(raft)
    return None


def unreachable(raft: RaftState, node: int) -> None:
    peer = raft.peers.get(node)
    if peer is None:
        return
    if peer.outgoing is not None:
        peer.outgoing.next = peer.outgoing.acked
    else:
        peer.probe(peer.match + 1)


def leaving(raft: RaftState, node: int) -> None:
    """Count a member as up while bytes leave for it. Leases still require answered heartbeats."""
    peer = raft.peers.get(node)
    if peer is not None:
        peer.heard_ms = raft.now_ms


def loaded(raft: RaftState, begin: int, entries: list[Entry]) -> None:
    if raft.role is not Role.LEADER or raft.lead.loading != begin:
        return
    raft.lead.loading = 0
    for node, peer in raft.peers.items():
        if peer.next == begin >= raft.log.first and _may_send(raft, peer):
            if entries:
                _send(raft, node, peer, entries, sum(len(entry.payload) for entry in entries))
            elif raft.snapshot.index >= begin:
                peer.send_snapshot(raft.snapshot, raft.now_ms)


def assert_itself(raft: RaftState, candidate: int) -> None:
    """Send heartbeats soon: a member that does not receive them requested votes."""
    if candidate in raft.peers:
        raft.last_active_ms = raft.now_ms
        quiescence.wake_leader(raft)
        raft.lead.next_beat_ms = min(raft.lead.next_beat_ms, raft.now_ms)


# --- answers --------------------------------------------------------------------------------------


def on_append_answer(raft: RaftState, message: AppendAnswer) -> None:
    peer = raft.peers.get(message.sender)
    if peer is None or raft.role is not Role.LEADER:
        return
    _check(raft, message)
    peer.heard_ms = raft.now_ms
    if message.rejected:
        _rejected(raft, peer, message)
    else:
        _matched(raft, peer, message.match)
        # an acknowledgement from before a disk loss does not answer a probe
        if peer.mode is Mode.PROBE and message.match >= peer.next - 1:
            peer.replicate()


def on_heartbeat_answer(raft: RaftState, message: HeartbeatAnswer) -> None:
    peer = raft.peers.get(message.sender)
    if peer is None or raft.role is not Role.LEADER:
        return
    if message.context > raft.lead.context:
        raise InvalidMessage(
            f"node {message.sender} answered a heartbeat of group {raft.group} that was never sent"
        )
    _check(raft, message)
    peer.heard_ms = raft.now_ms
    peer.context = max(peer.context, message.context)
    peer.learned = peer.learned or message.match > 0
    _matched(raft, peer, message.match)
    _held(peer, message)
    if raft.quiescent and not message.quiescent:
        assert_itself(raft, message.sender)
    reading.confirm(raft)


def _check(raft: RaftState, message: AppendAnswer | HeartbeatAnswer) -> None:
    """Raise InvalidMessage if a member acknowledges entries beyond the leader's log."""
    if message.match > raft.log.last:
        raise InvalidMessage(
            f"node {message.sender} acknowledged entry {message.match} of group {raft.group}, but "
            f"the leader's last entry is {raft.log.last}"
        )


def _matched(raft: RaftState, peer: Progress, match: int) -> None:
    if peer.acknowledge(match):
        raft.lead.recount = True
    if peer.outgoing is not None:
        if peer.match + 1 >= raft.log.first:
            peer.replicate()
        elif (
            peer.match >= peer.outgoing.snapshot.index
        ):  # the entries that it needs next were compacted during the transfer
            peer.send_snapshot(raft.snapshot, raft.now_ms)
    if raft.lead.transferee:
        hand_over(raft)


def _held(peer: Progress, message: HeartbeatAnswer) -> None:
    """Detect lost appends: a member that holds less than was sent before the answered heartbeat did
    not receive the rest."""
    held = message.held
    if message.context >= peer.beat_context:
        peer.quiescent = message.quiescent
        if peer.mode is Mode.REPLICATE and held < peer.beat_next - 1:
            peer.probe(held + 1)
    elif not message.context:  # it woke up, possibly after it agreed to sleep
        peer.quiescent = False
    if peer.mode is Mode.PROBE and message.context > peer.probe_context:
        peer.probing = False
        if held >= peer.next - 1:
            peer.replicate()
            peer.next = max(peer.next, held + 1)


def _rejected(raft: RaftState, peer: Progress, message: AppendAnswer) -> None:
    stale = (
        message.rejected != peer.next - 1
        if peer.mode is Mode.PROBE
        else message.rejected <= peer.match
    )
    if peer.mode is Mode.SNAPSHOT or stale:
        return
    if message.rejected == peer.match:
        # it lost its disk; its earlier acknowledgement was in flight, or it is a voter
        peer.match = 0
    log = raft.log
    index = min(message.hint_index, message.rejected - 1)
    if index >= log.first:
        index = log.last_not_after(index, message.hint_term)
    peer.probe(index + 1)


def hand_over(raft: RaftState) -> None:
    """Transfer leadership once the target has all entries and all are applied here, so that
    proposers get answers. After half an election time, stop waiting for the apply, because the disk
    may be full. This term has no lease from here on."""
    peer = raft.peers.get(raft.lead.transferee)
    answered = (
        raft.applied == raft.log.last
        or raft.now_ms - raft.lead.transfer_ms >= raft.settings.election_ms // 2
    )
    if peer is not None and peer.match == raft.log.last and answered:
        raft.lead.transfer_sent = True
        raft.send(TimeoutNow(raft.lead.transferee, raft.node, raft.group, raft.term))


# --- time -----------------------------------------------------------------------------------------


def beat(raft: RaftState) -> None:
    settings, now_ms = raft.settings, raft.now_ms
    if (
        now_ms - raft.configuration.agreed(lambda node: _heard_ms(raft, node))
        >= settings.election_ms
    ):
        _give_up(raft)
        return
    raft.lead.next_beat_ms = (now_ms // settings.heartbeat_ms + 1) * settings.heartbeat_ms
    if raft.lead.transferee and now_ms - raft.lead.transfer_ms >= settings.election_ms:
        raft.lead.transferee = 0
    if raft.lead.transferee:
        hand_over(raft)
    snapshots.beat(raft)
    quiescence.try_sleep(raft)
    if not raft.quiescent and raft.peers:
        open_round(raft, regular=True)


def _send_commit(raft: RaftState, node: int, peer: Progress) -> None:
    """Send the commit index in an empty append to a member that still learns. It may have lost the
    last append, or the value in a restart."""
    if peer.mode is Mode.REPLICATE and not peer.inflight and peer.next == raft.log.last + 1:
        _send(raft, node, peer, [], 0)


def _give_up(raft: RaftState) -> None:
    """Step down without a majority, so that this node does not contradict a new leader. Members
    that still receive our heartbeats would wait for a silent leader. The lease is over, so tell the
    most advanced voter to campaign."""
    voters = [node for node in raft.configuration.voters if node in raft.peers]
    if voters:
        best = max(voters, key=lambda node: raft.peers[node].match)
        raft.send(TimeoutNow(best, raft.node, raft.group, raft.term))
    election.become_follower(raft, raft.term, 0)


def open_round(raft: RaftState, *, regular: bool) -> None:
    """Send a heartbeat that requires an answer: to all members, or for reads only to voters."""
    raft.lead.context += 1
    raft.lead.rounds.append((raft.lead.context, raft.now_ms))
    quiesce = quiescence.is_quiet(raft)
    for node, peer in raft.peers.items():
        if not regular and not raft.configuration.votes(node):
            continue
        commit = min(peer.match, raft.commit)
        raft.send(
            Heartbeat(node, raft.node, raft.group, raft.term, commit, raft.lead.context, quiesce)
        )
        peer.commit_sent = max(peer.commit_sent, commit)
        peer.quiescent = peer.quiescent and quiesce
        late = raft.now_ms - peer.beat_ms >= raft.settings.election_ms
        # else the previous one is in flight to a distant member
        if regular and (late or peer.context >= peer.beat_context):
            peer.beat_context, peer.beat_next, peer.beat_ms = (
                raft.lead.context,
                peer.next,
                raft.now_ms,
            )
        if regular and not (peer.learned or raft.configuration.votes(node)):
            _send_commit(raft, node, peer)


def _heard_ms(raft: RaftState, node: int) -> int:
    return raft.now_ms if node == raft.node else raft.peers[node].heard_ms


# --- the end of a turn ----------------------------------------------------------------------------


def flush(raft: RaftState) -> None:
    if raft.lead.recount:
        raft.lead.recount = False
        _count(raft)
        if raft.role is not Role.LEADER:
            return
    reading.flush(raft)
    slices: _Slices = {}
    for node, peer in raft.peers.items():
        _replicate(raft, node, peer, slices)


def _count(raft: RaftState) -> None:
    """Commit the entries that a majority holds durably, if they are of this term (thesis 3.6.2)."""
    reached = raft.configuration.agreed(
        lambda node: raft.durable if node == raft.node else raft.peers[node].match
    )
    if reached <= raft.commit or raft.log.term(reached) != raft.term:
        return
    raft.commit = reached
    raft.last_active_ms = raft.now_ms
    configuration = raft.configuration
    if raft.configurations[-1][0] <= reached and (
        configuration.joint or not configuration.votes(raft.node)
    ):
        membership.committed(raft)


def _may_send(raft: RaftState, peer: Progress) -> bool:
    if peer.mode is Mode.PROBE:
        return not peer.probing
    settings = raft.settings
    return peer.mode is Mode.REPLICATE and peer.has_room(
        settings.inflight_messages_max, settings.inflight_bytes_max
    )


def _replicate(raft: RaftState, node: int, peer: Progress, slices: _Slices) -> None:
    """Send as much as the window allows. Send the commit index if no append carried it."""
    log = raft.log
    while (peer.next <= log.last or peer.mode is Mode.PROBE) and _may_send(raft, peer):
        if peer.next < log.first:
            peer.send_snapshot(raft.snapshot, raft.now_ms)
            break
        if peer.next < log.cached:
            _load(raft, peer.next)
            break
        end = (
            log.cut(peer.next, raft.settings.message_bytes_max)
            if peer.next <= log.last
            else peer.next
        )
        entries = slices.get((peer.next, end))
        if entries is None:
            entries = slices[peer.next, end] = log.entries(peer.next, end)
        _send(raft, node, peer, entries, log.size(peer.next, end))
    if peer.outgoing is not None:
        # a dead member would take the place of one that is up
        if raft.now_ms - peer.heard_ms < raft.settings.election_ms:
            snapshots.want(raft, node, peer.outgoing)
    elif peer.commit_sent < (commit := min(peer.match, raft.commit)):
        peer.commit_sent = commit
        raft.send(Heartbeat(node, raft.node, raft.group, raft.term, commit))


def _send(raft: RaftState, node: int, peer: Progress, entries: list[Entry], size: int) -> None:
    prev_index = peer.next - 1
    prev_term = raft.log.term(prev_index)
    assert prev_term is not None, "what is sent follows something known"
    raft.send(
        Append(node, raft.node, raft.group, raft.term, prev_index, prev_term, raft.commit, entries)
    )
    peer.quiescent = False
    last = prev_index + len(entries)
    if peer.mode is Mode.PROBE:
        peer.probing, peer.probed, peer.probe_context = True, (last, size), raft.lead.context
    else:
        peer.sent(last, size)
        peer.commit_sent = max(peer.commit_sent, min(last, raft.commit))


def _load(raft: RaftState, begin: int) -> None:
    """Request entries from the journal, one load at a time."""
    if not raft.lead.loading:
        raft.lead.loading = begin
        raft.lead.load = EntryLoad(begin, raft.log.cached, raft.settings.message_bytes_max)
