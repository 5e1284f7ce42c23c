"""Membership changes by joint consensus; the leader leaves the joint configuration automatically
(thesis 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.raft import election, leading
from polynya.raft.configuration import (
    Configuration,
    decode_configuration,
    encode_configuration,
    normal,
)
from polynya.raft.effects import ProposalRefused, Role
from polynya.raft.messages import Entry, EntryKind, TimeoutNow
from polynya.raft.progress import Progress

if TYPE_CHECKING:
    from polynya.raft.state import RaftState


def note(raft: RaftState, entries: list[Entry]) -> None:
    """Put the configurations among appended entries into effect."""
    for entry in entries:
        if entry.kind == EntryKind.CONFIGURATION:
            raft.configurations.append((entry.index, decode_configuration(entry.payload)))


def configuration_at(raft: RaftState, index: int) -> Configuration:
    """Return the configuration in effect at an index. A blank replica that received all entries
    does not know the first one. It derives that one from the first change, which includes the
    previous voters."""
    found = next(
        configuration for begin, configuration in reversed(raft.configurations) if begin <= index
    )
    if found.voters:
        return found
    first = next(
        (configuration for _, configuration in raft.configurations if configuration.voters), found
    )
    return Configuration(first.outgoing or first.voters)


def possible(raft: RaftState) -> list[Configuration]:
    """Return the configurations that may be in effect on other members: the last committed one and
    all after it."""
    return [configuration for _, configuration in possible_from(raft)]


def possible_from(raft: RaftState) -> list[tuple[int, Configuration]]:
    """Return the configurations of `possible` with the index where each begins."""
    known = raft.configurations
    return [
        each
        for position, each in enumerate(known, 1)
        if position == len(known) or known[position][0] > raft.commit
    ]


def is_alone(raft: RaftState) -> bool:
    """Return whether no other node is, or could be, a member of this group."""
    return all(known.members == (raft.node,) for known in possible(raft))


def forget(raft: RaftState, index: int) -> None:
    """Drop configurations that the snapshot at `index` covers."""
    found = raft.configurations
    while len(found) > 1 and found[1][0] <= index:
        del found[0]


def change(raft: RaftState, target: Configuration) -> ProposalRefused | None:
    try:
        target = normal(target)
    except ValueError:
        return ProposalRefused.INVALID
    refusal = _refusal(raft, target)
    if refusal is None:
        old = raft.configuration
        joint = target.voters != old.voters
        _propose(
            raft,
            Configuration(
                target.voters, old.voters if joint else (), target.learners, target.readers
            ),
        )
    return refusal


def committed(raft: RaftState) -> None:
    """Proceed after the configuration in effect is committed: leave the joint one, or step down if
    no longer a voter."""
    configuration = raft.configuration
    if configuration.joint:
        _propose(
            raft,
            Configuration(configuration.voters, (), configuration.learners, configuration.readers),
        )
    elif not configuration.votes(raft.node):
        best = max(configuration.voters, key=lambda node: raft.peers[node].match)
        raft.send(TimeoutNow(best, raft.node, raft.group, raft.term))
        election.become_follower(raft, raft.term, 0)


def keep_peers(raft: RaftState) -> None:
    """Track the progress of the members of the configuration in effect."""
    members = set(raft.configuration.members) - {raft.node}
    raft.lead.departed |= dict.fromkeys(raft.peers.keys() - members, raft.now_ms)
    raft.peers = {
        node: raft.peers.get(node) or Progress(raft.log.last + 1, raft.now_ms)
        for node in sorted(members)
    }


def _refusal(raft: RaftState, target: Configuration) -> ProposalRefused | None:
    if raft.role is not Role.LEADER:
        return ProposalRefused.NOT_LEADER
    if raft.lead.transferee:
        return ProposalRefused.HANDING_OVER
    if raft.commit < raft.lead.own_term_index:
        return ProposalRefused.NOT_READY
    if raft.configuration.joint or raft.configurations[-1][0] > raft.commit:
        return ProposalRefused.CHANGE_IN_FLIGHT
    back = [
        raft.lead.departed[node]
        for node in {*target.members} - {*raft.configuration.members}
        if node in raft.lead.departed
    ]
    if back and raft.now_ms - max(back) < raft.settings.rejoin_ms:
        return ProposalRefused.JUST_LEFT
    new = set(target.voters) - set(raft.configuration.voters)
    return None if all(_caught_up(raft, node) for node in new) else ProposalRefused.NOT_CAUGHT_UP


def _caught_up(raft: RaftState, node: int) -> bool:
    """Return whether a learner may become a voter. A blank replica that still learns never votes,
    so counting on it could prevent elections."""
    peer = raft.peers.get(node)
    return (
        peer is not None
        and peer.match + raft.settings.caught_up_entries >= raft.log.last
        and peer.match > 0
        and peer.learned
    )


def _propose(raft: RaftState, configuration: Configuration) -> None:
    leading.append(raft, [Entry(encode_configuration(configuration), EntryKind.CONFIGURATION)])
    raft.configurations.append((raft.log.last, configuration))
    keep_peers(raft)
