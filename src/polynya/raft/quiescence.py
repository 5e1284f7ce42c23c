"""Quiescence: idle groups cost nothing. This module decides when they sleep and what wakes them
(docs/formats/raft.md, Sleep)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.raft import election, leading
from polynya.raft.effects import Role
from polynya.raft.messages import HeartbeatAnswer, Vote
from polynya.raft.progress import Mode

if TYPE_CHECKING:
    from polynya.raft.state import RaftState


def may_quiesce(raft: RaftState) -> bool:
    """Return whether a follower has everything and may sleep."""
    last = raft.log.last
    return (
        raft.verified == raft.durable == raft.applied == last
        and raft.hard_durable
        and raft.transfers.installing is None
        and not raft.amnesiac
        and not raft.learning
    )


def is_quiet(raft: RaftState) -> bool:
    """Return whether a leader is idle, so that its members may sleep."""
    after_ms, last = raft.settings.sleep_after_ms, raft.log.last
    if (
        not after_ms
        or raft.now_ms - raft.last_active_ms < after_ms
        or raft.lead.transferee
        or raft.configuration.joint
    ):
        return False
    if not raft.applied == raft.commit == raft.durable == last or not raft.hard_durable:
        return False
    return all(
        peer.lost or (peer.mode is Mode.REPLICATE and peer.match == peer.commit_sent == last)
        for peer in raft.peers.values()
    )


def try_sleep(raft: RaftState) -> None:
    """Put the leader to sleep once all reachable members have agreed."""
    if (
        is_quiet(raft)
        and not raft.reads.waiting
        and all(peer.lost or peer.quiescent for peer in raft.peers.values())
    ):
        raft.quiescent = True


def wake_leader(raft: RaftState) -> None:
    """Wake the leader: send heartbeats at once, and restart the liveness clock of each member."""
    if raft.quiescent:
        raft.quiescent = False
        for peer in raft.peers.values():
            peer.heard_ms = raft.now_ms
        raft.lead.next_beat_ms = raft.now_ms


def doubt(raft: RaftState, asked: Vote) -> None:
    """Handle a pre-vote at a quiescent follower. The candidate may have noticed the loss of the
    leader first, or may be alone in missing it. Wake up and notify the leader, which then sends
    heartbeats at once if it is alive. The pre-vote is withheld until then."""
    raft.withheld = (raft.now_ms, asked)
    raft.quiescent = False
    election.restart_timer(raft)
    held = raft.verified
    raft.send(
        HeartbeatAnswer(
            raft.leader, raft.node, raft.group, raft.term, 0, held, min(held, raft.durable)
        )
    )


def on_recover_vote(raft: RaftState, sender: int) -> None:
    """Drop the leader if it recovers from a disk loss. A heartbeat of its previous incarnation may
    have arrived late."""
    if raft.role is Role.FOLLOWER and raft.leader == sender:
        raft.leader = 0
        raft.quiescent = False
        election.restart_timer(raft)


def peer_lost(raft: RaftState, peer: int, heard_ms: int) -> None:
    if raft.role is Role.LEADER:
        progress = raft.peers.get(peer)
        if progress is not None:
            progress.lost = True
            if not raft.configuration.votes(peer):
                progress.match, progress.learned = 0, False  # it may return with an empty disk
            leading.unreachable(raft, peer)
            wake_leader(raft)
    elif raft.leader == peer and (raft.quiescent or raft.withheld is not None):
        election.leader_lost(raft, heard_ms)


def peer_found(raft: RaftState, peer: int) -> None:
    if raft.role is Role.LEADER and peer in raft.peers:
        raft.peers[peer].lost = False
        raft.last_active_ms = raft.now_ms
        wake_leader(raft)
