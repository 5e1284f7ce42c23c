"""Report whether a local replica may serve reads: it is a member and has caught up past its
creation point."""

from __future__ import annotations

from polynya.raft import RestoredMember
from polynya.replica.member import Member


class ReplicaReadiness:
    """The readiness of the replicas of one core of the node `node`."""

    def __init__(self, node: int) -> None:
        self._node = node
        # groups whose replica may lack entries from before its creation
        self._anew: set[int] = set()

    def begins(self, number: int, restored: RestoredMember) -> None:
        """Register a replica with its restored state."""
        if restored.hard_state.learning or not (restored.snapshot.index or restored.entries):
            self._anew.add(number)

    def of(self, member: Member) -> bool:
        """Return False for a replica that still catches up or that is no longer a member."""
        raft = member.raft
        if raft.amnesiac:
            return False
        known = raft.configuration
        return self._node in known.voters or (
            self._node in known.readers and self._is_whole(member)
        )

    def _is_whole(self, member: Member) -> bool:
        """Return True once caught up. The leader's commit index counts only after an entry of its
        own term is applied here."""
        raft, group = member.raft, member.group
        if (
            group.number in self._anew
            and not raft.learning
            and group.applied_index >= raft.loss.heard_commit
            and group.term == raft.term
        ):
            self._anew.discard(group.number)
        return group.number not in self._anew
