"""Whether a replica here may answer: it follows its group, and has what there was before it was made."""

from __future__ import annotations

from polynya.raft import RestoredMember
from polynya.replica.member import Member


class ReplicaReadiness:
    """Of the replicas of one core of the node `node`."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._anew: set[int] = set()  # groups whose replica here may lack what there was before it was made

    def begins(self, number: int, restored: RestoredMember) -> None:
        """A replica is here, with this."""
        if restored.hard_state.learning or not (restored.snapshot.index or restored.entries):
            self._anew.add(number)

    def of(self, member: Member) -> bool:
        """None that still catches up, or that does not belong any more."""
        raft = member.raft
        if raft.forgetful:
            return False
        known = raft.configuration
        return self._node in known.voters or (self._node in known.readers and self._is_whole(member))

    def _is_whole(self, member: Member) -> bool:
        """A leader's word of how much there is counts when something of its own term is applied here."""
        raft, group = member.raft, member.group
        if group.number in self._anew and not raft.learning and group.applied_index >= raft.heard_commit and group.term == raft.term:
            self._anew.discard(group.number)
        return group.number not in self._anew
