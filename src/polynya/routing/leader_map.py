"""The leader of each group and its epoch, as far as one core knows."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Protocol

from polynya.routing.group_locations import CoreAddress, GroupLocations

ELECTION_SECONDS = 1.0  # longer than most elections take
NEVER = 2.0**62
Leader = tuple[int, int]  # node, leader epoch


class LocalReplicas(Protocol):
    """The interface of the replicas of this core."""

    @property
    def led(self) -> Container[int]:
        """The groups that this core leads and may propose for now."""
        ...

    def leader_of(self, group: int) -> int:
        """Return the leader's node number, 0 when it is unknown."""
        ...

    def epoch(self, group: int) -> int:
        """Return the group's leader epoch, 0 without a replica here."""
        ...

    def fit(self, group: int) -> bool:
        """Report whether this core hosts a replica that follows its group, and so learns of a new
        leader first."""
        ...


class LeaderMap:
    """The leaders that one core knows. A replica on this core is the authority on its leader; what
    other cores and nodes report is a hint. `now` returns the loop's time.

    `known` has the last leader of each group, 0 for none, and is changed here alone."""

    def __init__(
        self,
        place: CoreAddress,
        replicas: LocalReplicas,
        group_locations: GroupLocations,
        now: Callable[[], float],
    ) -> None:
        self.led = replicas.led
        self.leader_here = replicas.leader_of
        self.known = dict.fromkeys(range(place.groups + 1), 0)
        self._place = place
        self._replicas = replicas
        self._group_locations = group_locations
        self._now = now
        self._epochs: dict[int, int] = {}  # leader epochs, of the last known leaders
        self._leaderless: dict[int, float] = {}  # group of this core → when it lost its leader

    # --- what is known ----------------------------------------------------------------------------

    def knows(self, group: int) -> bool:
        """Report whether a replica of this core knows the leader. It must be a member of its group
        and have had a leader within the last election timeout. A replica that was unreachable may
        have been removed from the group."""
        if not self._replicas.fit(
            group
        ) or self._place.node not in self._group_locations.map.replicas_of(group):
            return False
        return self._now() - self._leaderless.get(group, NEVER) < ELECTION_SECONDS

    def follows(self, group: int) -> bool:
        """Report whether the local replica knows the leader and this node reaches it."""
        return self.knows(group) and self.is_reached(self.known[group])

    def is_reached(self, leader: int) -> bool:
        """Report whether this node reaches a leader; True for 0, no leader."""
        return not leader or self._group_locations.is_up(leader)

    def leads(self, group: int) -> bool:
        """Report whether this core leads the group."""
        return group in self.led

    def leader_of(self, group: int) -> int:
        """Return the node that leads the group, as far as this core knows; 0: none."""
        return self._place.node if group in self.led else self.known[group]

    def elsewhere(self, group: int) -> int:
        """Return the leader's node if it is another, known node; else 0."""
        leader = self.leader_of(group)
        return 0 if leader == self._place.node else leader

    def epoch_of(self, group: int) -> int:
        """Return the epoch of the last leader that this core knows; 0: it has known none."""
        if self._replicas.leader_of(group):
            self._epochs[group] = self._replicas.epoch(group)
        return self._epochs.get(group, 0)

    def newest(self, group: int) -> int:
        """Return an epoch that is no lower than that of any leader this core's replica has
        heard."""
        return self._replicas.epoch(group)

    def of_replica(self, group: int) -> Leader | None:
        """Return the leader that a replica of this core knows, and its epoch."""
        leader = self.leader_of(group) if group in self.known and self.knows(group) else 0
        return (leader, self.epoch_of(group)) if leader else None

    # --- what changes -----------------------------------------------------------------------------

    def replica_changed(self, group: int) -> bool:
        """Record a possible change of the leader or role of a local group. Return True if the
        leader or its epoch is another one."""
        leader = self.leader_here(group)
        if leader:
            self._leaderless.pop(group, None)
        else:
            self._leaderless.setdefault(group, self._now())
        before, epoch = self.known[group], self._epochs.get(group, 0)
        is_new = leader != before and (leader or before == self._place.node or self.knows(group))
        if not is_new and self.epoch_of(group) == epoch:
            return False
        self.known[group] = leader
        return True

    def reload(self, group: int) -> int:
        """Record the leader that the replica of this core names, and return it. Another node's
        hint may have replaced it, or the replica has learned of it since its last notification."""
        leader = self.known[group] = self.leader_here(group)
        return leader

    def record(self, group: int, leader: int) -> None:
        """Record what a refusal or an accepted proposal tells about the leader; 0: nothing."""
        self.known[group] = leader

    def forget(self, group: int) -> None:
        """Forget the leader of a group whose replica was removed from this core."""
        self.known[group] = 0
        self._leaderless.pop(group, None)

    def accepts(self, group: int, hint: Leader) -> bool:
        """Report whether to adopt the hint of another node: there is no replica here that knows
        better, and the epoch is not old."""
        leader, epoch = hint
        return (
            leader != self._place.node
            and not self.knows(group)
            and epoch >= self._epochs.get(group, 0)
        )

    def differs(self, group: int, hint: Leader) -> bool:
        """Report whether a hint names another leader or epoch."""
        leader, epoch = hint
        return epoch != self._epochs.get(group) or leader != self.known[group]

    def adopt(self, group: int, hint: Leader) -> bool:
        """Record a hint. Return True if it names another leader."""
        leader, epoch = hint
        is_other = leader != self.known[group]
        self.known[group], self._epochs[group] = leader, epoch
        return is_other
