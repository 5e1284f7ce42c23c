"""Recovery of a member whose disk holds nothing of its group. A previous incarnation may have voted and acknowledged entries, so the member
stays `forgetful` (without a vote) until that is safe. docs/formats/raft.md, Forgetting, has the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from polynya.raft import election, leading, membership, quiescence
from polynya.raft.configuration import Configuration
from polynya.raft.effects import Role
from polynya.raft.messages import Append, Heartbeat, Message, Recall, RecallAnswer, SnapshotChunk
from polynya.raft.settings import NEVER

if TYPE_CHECKING:
    from polynya.raft.raft import Raft

PATIENCE = 2  # election times


def start(raft: Raft) -> None:
    """Initialize the state; a forgetful member queries all others before it does anything else."""
    raft.recall_known = {index: _voices(configuration) for index, configuration in membership.possible_from(raft)}
    raft.recall_since = min(raft.recall_known)
    others = set(_members(raft)) - {raft.node}
    raft.forgetful = raft.forgetful and not membership.is_alone(raft)
    raft.unheard = others if raft.forgetful else set()
    raft.unmet = others if raft.unborn else set()
    raft.recalled = set(raft.unheard)
    raft.recalled_term = raft.term
    raft.recall_ms = raft.now_ms
    raft.patient_ms = 0
    raft.all_blank = is_blank(raft)


def is_blank(raft: Raft) -> bool:
    """Return whether this member has promised nothing and holds nothing, as far as it knows. A member that found its group to be new stays
    blank until it votes. Otherwise two such members could wait for each other without electing a leader."""
    return raft.term == 0 and raft.log.last == 0 and not raft.learning


def deadline_ms(raft: Raft) -> int:
    return raft.recall_ms if raft.unheard or raft.unmet else raft.patient_ms or NEVER


def tick(raft: Raft) -> None:
    """Query the members that have not answered. After the election holdoff, enter a new term, which ends every older leadership."""
    if raft.patient_ms and raft.now_ms >= raft.patient_ms:
        raft.patient_ms = 0
        election.become_follower(raft, raft.recalled_term + 1, 0)
    asked = raft.unheard | (raft.strangers - raft.recalled) if raft.unheard else raft.unmet
    if asked and raft.now_ms >= raft.recall_ms:
        raft.recall_ms = raft.now_ms + raft.settings.election_ms
        for node in sorted(asked):
            raft.send(Recall(node, raft.node, raft.group, raft.term, is_blank(raft), raft.unborn))
        for node in sorted(raft.recall_told - asked if raft.unheard else ()):  # they may know newer members by now
            raft.send(Recall(node, raft.node, raft.group, raft.term, is_blank(raft), found=True))  # `found` avoids a second transfer


def concerns(message: Message) -> bool:
    """Return whether the message is handled regardless of its term."""
    return type(message) is Recall or type(message) is RecallAnswer


def on_message(raft: Raft, message: Message) -> None:
    if isinstance(message, Recall):
        known = _members(raft), raft.forgetful, tuple(membership.possible_from(raft))
        raft.send(RecallAnswer(message.sender, raft.node, raft.group, raft.term, is_blank(raft), *known))
        if message.found:
            raft.unmet.discard(message.sender)
        else:
            quiescence.recalled(raft, message.sender)
            _make_way(raft, message.sender)
        if message.blank and raft.unheard:
            _heard(raft, message.sender, 0, blank=True)
    elif isinstance(message, RecallAnswer):
        if not message.blank:
            raft.unmet.clear()  # a member with data proves that all members knew the group to be new
        elif not message.forgetful:
            raft.unmet.discard(message.sender)
        if raft.unheard:
            _learn_members(raft, message)
            _heard(raft, message.sender, message.term, blank=message.blank)


def _voices(configuration: Configuration) -> set[int]:
    """Return the members that vote or may become voters. Readers never vote."""
    return {*configuration.voters, *configuration.outgoing, *configuration.learners}


def _members(raft: Raft) -> tuple[int, ...]:
    """Return the voting members of all configurations that may be in effect."""
    return tuple(sorted(set().union(*map(_voices, membership.possible(raft)))))


def _learn_members(raft: Raft, answer: RecallAnswer) -> None:
    """Update the set of members whose answer is required. Members may have joined since, and their answers count. Members that belong only
    to configurations older than a committed one cannot be elected and may never return, so they are not awaited. A majority of each
    configuration agreed to the next one. Therefore the answers of all its members reveal the next one, if it exists."""
    knows = not answer.blank and not answer.forgetful
    if knows:
        raft.recall_told.add(answer.sender)
    if knows and answer.configurations and answer.configurations[0][1].voters and not raft.recall_based:
        _begin_as(raft, *answer.configurations[0])  # a blank member may not know any members yet
    told = answer.configurations or ((raft.recall_since, Configuration(answer.members)),)  # an older release does not send the indexes
    raft.recall_since = since = max(raft.recall_since, told[0][0])
    for index, configuration in told:
        if index or knows or not raft.recall_based:
            raft.recall_known.setdefault(index, set()).update(_voices(configuration))
    raft.recall_known = {index: members for index, members in raft.recall_known.items() if index >= since}
    answered, before = raft.recalled - raft.unheard, raft.unheard
    raft.recalled = set().union(*raft.recall_known.values()) - {raft.node}
    raft.unheard = raft.recalled - answered
    if not raft.unheard <= before:
        raft.recall_ms = raft.now_ms


def _begin_as(raft: Raft, index: int, configuration: Configuration) -> None:
    """Replace the first configuration, known here only from the settings, with that of a member that has data. The settings may name newer
    nodes."""
    raft.recall_based = True
    raft.recall_known.pop(0, None)
    if index == raft.snapshot.index == raft.configurations[0][0] == 0:
        raft.snapshot = msgspec.structs.replace(raft.snapshot, configuration=configuration)
        raft.configurations[0] = 0, configuration


def _heard(raft: Raft, sender: int, term: int, *, blank: bool) -> None:
    """Record an answer. One of the other members knows what the previous incarnation voted for, so that term is not above their largest. In
    a higher term this member has no vote to repeat, and its earlier acknowledgements no longer count."""
    if blank and not raft.all_blank:
        return
    raft.unheard.discard(sender)
    raft.all_blank = raft.all_blank and blank
    raft.recalled_term = max(raft.recalled_term, term)
    if raft.unheard:
        return
    if raft.all_blank:
        _is_new(raft)
    else:  # a queried leader transfers leadership at no cost to clients; a term of our own would cost an election
        raft.patient_ms = raft.now_ms + PATIENCE * raft.settings.election_ms


def _is_new(raft: Raft) -> None:
    """Mark the group as new. No member campaigns before all have found this. Once a leader exists, only a member that lost its disk
    lacks a vote, and one lost disk does not lose the quorum."""
    raft.unborn, raft.unmet = True, set(raft.recalled)
    raft.recall_ms = raft.now_ms
    raft.remember()


def keeps_out(raft: Raft, message: Message) -> bool:
    """Return whether a forgetful member ignores this message. It waits for a leader in a term above all that the others reported."""
    if raft.unheard:
        if isinstance(message, Append | Heartbeat | SnapshotChunk) and message.sender not in raft.recalled | raft.strangers:
            raft.strangers.add(message.sender)  # it may lead members of the group that are all unknown here
            raft.recall_ms = raft.now_ms
        return True
    if raft.patient_ms:
        if message.term <= raft.recalled_term or not isinstance(message, Append | Heartbeat | SnapshotChunk):
            return True
        raft.patient_ms = 0
    return False


def _make_way(raft: Raft, sender: int) -> None:
    """Transfer leadership if a voter lost its disk: it needs a term in which it has promised nothing."""
    if raft.role is not Role.LEADER or not raft.configuration.votes(sender):
        return
    fit = [node for node, peer in raft.peers.items() if node != sender and not peer.lost and node in raft.configuration.voters]
    if fit:
        leading.transfer(raft, max(fit, key=lambda node: raft.peers[node].match))


def try_learn(raft: Raft) -> None:
    """Become a full member once everything is durable that leaders reported as committed since this replica was created. This covers the
    acknowledgements of an earlier replica on this node: a leader re-adds a member only after its removal is committed."""
    if raft.heard_commit and raft.heard_commit <= min(raft.verified, raft.durable):
        raft.remember()


def try_remember(raft: Raft) -> None:
    """Become a full member once the log holds an entry of a leader that was elected without the lost data."""
    if not raft.unheard and not raft.patient_ms and raft.durable and (raft.log.term(raft.durable) or 0) > raft.recalled_term:
        raft.remember()
