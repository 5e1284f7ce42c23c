"""Recovery of a member whose disk holds nothing of its group. A previous incarnation may have voted
and acknowledged entries, so the member stays `amnesiac` (without a vote) until that is safe.
docs/formats/raft.md, Disk loss, has the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from polynya.raft import election, leading, membership, quiescence
from polynya.raft.configuration import Configuration
from polynya.raft.effects import Role
from polynya.raft.messages import (
    Append,
    Heartbeat,
    Message,
    RecoverVote,
    RecoverVoteAnswer,
    SnapshotChunk,
)
from polynya.raft.settings import NEVER

if TYPE_CHECKING:
    from polynya.raft.state import RaftState

ELECTION_HOLDOFF = 2  # election times


def start(raft: RaftState) -> None:
    """Initialize the state; a amnesiac member queries all others before it does anything else."""
    raft.loss.known_voters = {
        index: _voices(configuration) for index, configuration in membership.possible_from(raft)
    }
    raft.loss.known_since = min(raft.loss.known_voters)
    others = set(_members(raft)) - {raft.node}
    raft.amnesiac = raft.amnesiac and not membership.is_alone(raft)
    raft.loss.awaiting_term = others if raft.amnesiac else set()
    raft.loss.undiscovered = others if raft.group_is_new else set()
    raft.loss.queried = set(raft.loss.awaiting_term)
    raft.loss.reported_term = raft.term
    raft.loss.query_ms = raft.now_ms
    raft.loss.election_holdoff_until_ms = 0
    raft.loss.all_blank = is_blank(raft)


def is_blank(raft: RaftState) -> bool:
    """Return whether this member has promised nothing and holds nothing, as far as it knows. A
    member that found its group to be new stays blank until it votes. Otherwise two such members
    could wait for each other without electing a leader."""
    return raft.term == 0 and raft.log.last == 0 and not raft.learning


def deadline_ms(raft: RaftState) -> int:
    return (
        raft.loss.query_ms
        if raft.loss.awaiting_term or raft.loss.undiscovered
        else raft.loss.election_holdoff_until_ms or NEVER
    )


def tick(raft: RaftState) -> None:
    """Query the members that have not answered. After the election holdoff, enter a new term, which
    ends every older leadership."""
    if raft.loss.election_holdoff_until_ms and raft.now_ms >= raft.loss.election_holdoff_until_ms:
        raft.loss.election_holdoff_until_ms = 0
        election.become_follower(raft, raft.loss.reported_term + 1, 0)
    asked = (
        raft.loss.awaiting_term | (raft.loss.unknown_leaders - raft.loss.queried)
        if raft.loss.awaiting_term
        else raft.loss.undiscovered
    )
    if asked and raft.now_ms >= raft.loss.query_ms:
        raft.loss.query_ms = raft.now_ms + raft.settings.election_ms
        for node in sorted(asked):
            raft.send(
                RecoverVote(
                    node, raft.node, raft.group, raft.term, is_blank(raft), raft.group_is_new
                )
            )
        # they may know newer members by now
        for node in sorted(raft.loss.informed - asked if raft.loss.awaiting_term else ()):
            # `found` avoids a second transfer
            raft.send(
                RecoverVote(node, raft.node, raft.group, raft.term, is_blank(raft), found=True)
            )


def concerns(message: Message) -> bool:
    """Return whether the message is handled regardless of its term."""
    return type(message) is RecoverVote or type(message) is RecoverVoteAnswer


def on_message(raft: RaftState, message: Message) -> None:
    if isinstance(message, RecoverVote):
        known = _members(raft), raft.amnesiac, tuple(membership.possible_from(raft))
        raft.send(
            RecoverVoteAnswer(
                message.sender, raft.node, raft.group, raft.term, is_blank(raft), *known
            )
        )
        if message.found:
            raft.loss.undiscovered.discard(message.sender)
        else:
            quiescence.on_recover_vote(raft, message.sender)
            _make_way(raft, message.sender)
        if message.blank and raft.loss.awaiting_term:
            _heard(raft, message.sender, 0, blank=True)
    elif isinstance(message, RecoverVoteAnswer):
        if not message.blank:
            # a member with data proves that all members knew the group to be new
            raft.loss.undiscovered.clear()
        elif not message.amnesiac:
            raft.loss.undiscovered.discard(message.sender)
        if raft.loss.awaiting_term:
            _learn_members(raft, message)
            _heard(raft, message.sender, message.term, blank=message.blank)


def _voices(configuration: Configuration) -> set[int]:
    """Return the members that vote or may become voters. Readers never vote."""
    return {*configuration.voters, *configuration.outgoing, *configuration.learners}


def _members(raft: RaftState) -> tuple[int, ...]:
    """Return the voting members of all configurations that may be in effect."""
    return tuple(sorted(set().union(*map(_voices, membership.possible(raft)))))


def _learn_members(raft: RaftState, answer: RecoverVoteAnswer) -> None:
    """Update the set of members whose answer is required. Members may have joined since, and their
    answers count. Members that belong only to configurations older than a committed one cannot be
    elected and may never return, so they are not awaited. A majority of each configuration agreed
    to the next one. Therefore the answers of all its members reveal the next one, if it exists."""
    knows = not answer.blank and not answer.amnesiac
    if knows:
        raft.loss.informed.add(answer.sender)
    if (
        knows
        and answer.configurations
        and answer.configurations[0][1].voters
        and not raft.loss.members_learned
    ):
        _begin_as(raft, *answer.configurations[0])  # a blank member may not know any members yet
    # an older release does not send the indexes
    reported = answer.configurations or ((raft.loss.known_since, Configuration(answer.members)),)
    raft.loss.known_since = since = max(raft.loss.known_since, reported[0][0])
    for index, configuration in reported:
        if index or knows or not raft.loss.members_learned:
            raft.loss.known_voters.setdefault(index, set()).update(_voices(configuration))
    raft.loss.known_voters = {
        index: members for index, members in raft.loss.known_voters.items() if index >= since
    }
    answered, before = raft.loss.queried - raft.loss.awaiting_term, raft.loss.awaiting_term
    raft.loss.queried = set().union(*raft.loss.known_voters.values()) - {raft.node}
    raft.loss.awaiting_term = raft.loss.queried - answered
    if not raft.loss.awaiting_term <= before:
        raft.loss.query_ms = raft.now_ms


def _begin_as(raft: RaftState, index: int, configuration: Configuration) -> None:
    """Replace the first configuration, known here only from the settings, with that of a member
    that has data. The settings may name newer nodes."""
    raft.loss.members_learned = True
    raft.loss.known_voters.pop(0, None)
    if index == raft.snapshot.index == raft.configurations[0][0] == 0:
        raft.snapshot = msgspec.structs.replace(raft.snapshot, configuration=configuration)
        raft.configurations[0] = 0, configuration


def _heard(raft: RaftState, sender: int, term: int, *, blank: bool) -> None:
    """Record an answer. One of the other members knows what the previous incarnation voted for, so
    that term is not above their largest. In a higher term this member has no vote to repeat, and
    its earlier acknowledgements no longer count."""
    if blank and not raft.loss.all_blank:
        return
    raft.loss.awaiting_term.discard(sender)
    raft.loss.all_blank = raft.loss.all_blank and blank
    raft.loss.reported_term = max(raft.loss.reported_term, term)
    if raft.loss.awaiting_term:
        return
    if raft.loss.all_blank:
        _is_new(raft)
    else:  # a queried leader transfers leadership at no cost to clients; a term of our own would cost an election
        raft.loss.election_holdoff_until_ms = (
            raft.now_ms + ELECTION_HOLDOFF * raft.settings.election_ms
        )


def _is_new(raft: RaftState) -> None:
    """Mark the group as new. No member campaigns before all have found this. Once a leader exists,
    only a member that lost its disk lacks a vote, and one lost disk does not lose the quorum."""
    raft.group_is_new, raft.loss.undiscovered = True, set(raft.loss.queried)
    raft.loss.query_ms = raft.now_ms
    raft.end_amnesia()


def keeps_out(raft: RaftState, message: Message) -> bool:
    """Return whether a amnesiac member ignores this message. It waits for a leader in a term above
    all that the others reported."""
    if raft.loss.awaiting_term:
        if (
            isinstance(message, Append | Heartbeat | SnapshotChunk)
            and message.sender not in raft.loss.queried | raft.loss.unknown_leaders
        ):
            # it may lead members of the group that are all unknown here
            raft.loss.unknown_leaders.add(message.sender)
            raft.loss.query_ms = raft.now_ms
        return True
    if raft.loss.election_holdoff_until_ms:
        if message.term <= raft.loss.reported_term or not isinstance(
            message, Append | Heartbeat | SnapshotChunk
        ):
            return True
        raft.loss.election_holdoff_until_ms = 0
    return False


def _make_way(raft: RaftState, sender: int) -> None:
    """Transfer leadership if a voter lost its disk: it needs a term in which it has promised
    nothing."""
    if raft.role is not Role.LEADER or not raft.configuration.votes(sender):
        return
    fit = [
        node
        for node, peer in raft.peers.items()
        if node != sender and not peer.lost and node in raft.configuration.voters
    ]
    if fit:
        leading.transfer(raft, max(fit, key=lambda node: raft.peers[node].match))


def try_learn(raft: RaftState) -> None:
    """Become a full member once everything is durable that leaders reported as committed since this
    replica was created. This covers the acknowledgements of an earlier replica on this node: a
    leader re-adds a member only after its removal is committed."""
    if raft.loss.heard_commit and raft.loss.heard_commit <= min(raft.verified, raft.durable):
        raft.end_amnesia()


def try_end_amnesia(raft: RaftState) -> None:
    """Become a full member once the log holds an entry of a leader that was elected without the
    lost data."""
    if (
        not raft.loss.awaiting_term
        and not raft.loss.election_holdoff_until_ms
        and raft.durable
        and (raft.log.term(raft.durable) or 0) > raft.loss.reported_term
    ):
        raft.end_amnesia()
