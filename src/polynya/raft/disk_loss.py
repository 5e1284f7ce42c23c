"""A member that finds nothing of its group on its disk may have voted and acknowledged in an earlier life: it is forgetful until that can do
no harm (docs/formats/raft.md, Forgetting)."""

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
    """Ask all others before anything else."""
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
    """It has promised nothing and holds nothing, as far as it knows. One that has found so with all others stays blank until it votes: they may not
    have heard of each other yet, and would wait for a leader that nobody can be."""
    return raft.term == 0 and raft.log.last == 0 and not raft.learning


def deadline_ms(raft: Raft) -> int:
    return raft.recall_ms if raft.unheard or raft.unmet else raft.patient_ms or NEVER


def tick(raft: Raft) -> None:
    """Ask those again who have not answered; end every older lead by ourselves if its leader has not."""
    if raft.patient_ms and raft.now_ms >= raft.patient_ms:
        raft.patient_ms = 0
        election.become_follower(raft, raft.recalled_term + 1, 0)
    asked = raft.unheard | (raft.strangers - raft.recalled) if raft.unheard else raft.unmet
    if asked and raft.now_ms >= raft.recall_ms:
        raft.recall_ms = raft.now_ms + raft.settings.election_ms
        for node in sorted(asked):
            raft.send(Recall(node, raft.node, raft.group, raft.term, is_blank(raft), raft.unborn))
        for node in sorted(
            raft.recall_told - asked if raft.unheard else ()
        ):  # they may know by now that others have gone; as `found`, so that
            raft.send(Recall(node, raft.node, raft.group, raft.term, is_blank(raft), found=True))  # nobody hands over for it once more


def concerns(message: Message) -> bool:
    """Such messages are looked at whatever their term is."""
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
            raft.unmet.clear()  # somebody has known of all that they are there
        elif not message.forgetful:
            raft.unmet.discard(message.sender)
        if raft.unheard:
            _learn_members(raft, message)
            _heard(raft, message.sender, message.term, blank=message.blank)


def _voices(configuration: Configuration) -> set[int]:
    """Who has a voice in it, or may get one; readers never vote, and have nothing to tell."""
    return {*configuration.voters, *configuration.outgoing, *configuration.learners}


def _members(raft: Raft) -> tuple[int, ...]:
    """Who has one in any that may be in effect."""
    return tuple(sorted(set().union(*map(_voices, membership.possible(raft)))))


def _learn_members(raft: Raft, answer: RecallAnswer) -> None:
    """Members may have come since, whose word is needed; and gone: whoever belonged to the group only before a configuration that is known to be
    committed can be elected by nobody, and may be gone for good. Each configuration was agreed to by a majority of the one before, so that,
    when all of one have been heard, the next is known, if there is one."""
    knows = not answer.blank and not answer.forgetful
    if knows:
        raft.recall_told.add(answer.sender)
    if knows and answer.configurations and answer.configurations[0][1].voters and not raft.recall_based:
        _begin_as(raft, *answer.configurations[0])  # who was made anew may know of no members yet
    told = answer.configurations or ((raft.recall_since, Configuration(answer.members)),)  # of a release that does not tell since when
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
    """Whom the group began with is known here from the settings alone, and these may be of later: what one says that has data is true."""
    raft.recall_based = True
    raft.recall_known.pop(0, None)
    if index == raft.snapshot.index == raft.configurations[0][0] == 0:
        raft.snapshot = msgspec.structs.replace(raft.snapshot, configuration=configuration)
        raft.configurations[0] = 0, configuration


def _heard(raft: Raft, sender: int, term: int, *, blank: bool) -> None:
    """What an earlier life of ours voted for is known to one of the others, so its term is not above the largest of theirs. In a term above
    that we have no vote to repeat, and what we acknowledged before counts no more."""
    if blank and not raft.all_blank:
        return
    raft.unheard.discard(sender)
    raft.all_blank = raft.all_blank and blank
    raft.recalled_term = max(raft.recalled_term, term)
    if raft.unheard:
        return
    if raft.all_blank:
        _is_new(raft)
    else:  # a leader that was asked hands over, which costs its clients nothing; to enter that term ourselves costs them an election
        raft.patient_ms = raft.now_ms + PATIENCE * raft.settings.election_ms


def _is_new(raft: Raft) -> None:
    """There is nothing to remember. Nobody campaigns before all have found that: once there is a leader nobody but who has lost its disk since is
    without a voice, and one such disk is no lost quorum."""
    raft.unborn, raft.unmet = True, set(raft.recalled)
    raft.recall_ms = raft.now_ms
    raft.remember()


def keeps_out(raft: Raft, message: Message) -> bool:
    """Of a forgetful member: whether it takes no notice, until it hears who leads in a term above all that it was told of."""
    if raft.unheard:
        if isinstance(message, Append | Heartbeat | SnapshotChunk) and message.sender not in raft.recalled | raft.strangers:
            raft.strangers.add(message.sender)  # it may lead what the group has become, of whose members no other is known here
            raft.recall_ms = raft.now_ms
        return True
    if raft.patient_ms:
        if message.term <= raft.recalled_term or not isinstance(message, Append | Heartbeat | SnapshotChunk):
            return True
        raft.patient_ms = 0
    return False


def _make_way(raft: Raft, sender: int) -> None:
    """A leader: whoever has forgotten what it promised us needs a term that it promised nothing in, so another voter is to lead in one."""
    if raft.role is not Role.LEADER or not raft.configuration.votes(sender):
        return
    fit = [node for node, peer in raft.peers.items() if node != sender and not peer.lost and node in raft.configuration.voters]
    if fit:
        leading.transfer(raft, max(fit, key=lambda node: raft.peers[node].match))


def try_learn(raft: Raft) -> None:
    """All is here that leaders have said to be committed since this member was made: what one before it acknowledged, under the same number, is
    among that, as a leader commits that it is to be a member only after that it was none."""
    if raft.heard_commit and raft.heard_commit <= min(raft.verified, raft.durable):
        raft.remember()


def try_remember(raft: Raft) -> None:
    """All that was committed before is here: the log goes on from that of a leader that was elected without what we forgot."""
    if not raft.unheard and not raft.patient_ms and raft.durable and (raft.log.term(raft.durable) or 0) > raft.recalled_term:
        raft.remember()
