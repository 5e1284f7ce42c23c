"""The leaders of the groups, as one core of a node knows them, in a cluster or alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from polynya.routing.forwarding import Forwarding
from polynya.routing.remote_leaders import RemoteLeaders
from polynya.stream.machine import Machine


class Leaders:
    """The leaders for core `core` of a node with `cores` cores. Outside a cluster each group is led
    by the core that hosts it. `machines` has the local groups."""

    def __init__(self, machines: Mapping[int, Machine], core: int, cores: int) -> None:
        self.core = core
        self._cores = cores
        self._machines = machines
        self._forwarding: Forwarding | None = None
        self._remote: RemoteLeaders | None = None
        # reports a node that this one reaches, or that fell silent a moment ago: it still owns
        # streams
        self.seems_up: Callable[[int], bool] = lambda node: True

    def join(
        self, forwarding: Forwarding, remote: RemoteLeaders, seems_up: Callable[[int], bool]
    ) -> None:
        """Join a cluster, in which other nodes may lead groups."""
        self._forwarding, self._remote, self.seems_up = forwarding, remote, seems_up

    def home_of(self, group: int, *, through: bool = False) -> int:
        """Return the core that acts for a group, numbered as in `CoreRequests.ask`; the own number
        for this core. `through`: allow a relay. Raise NotLeader while the group has no leader."""
        return (
            group % self._cores
            if self._forwarding is None
            else self._forwarding.targets.home(group, through=through)
        )

    def is_home(self, group: int) -> bool:
        """Report whether this core acts for a group. Raise NotLeader as `home_of` does."""
        return self.home_of(group) == self.core

    def leads(self, group: int) -> bool:
        """Report whether this core may propose for a group that is hosted here."""
        return self._forwarding is None or self._forwarding.leaders.leads(group)

    def leader_of(self, group: int) -> int:
        """Return the node that leads a group, as far as this core knows; 0: none, or no cluster."""
        return 0 if self._forwarding is None else self._forwarding.leaders.leader_of(group)

    def leader_here(self, group: int) -> int:
        """Return the node that leads a group, as the replica of this core knows it; 0: as in
        `leader_of`."""
        return 0 if self._forwarding is None else self._forwarding.leaders.leader_here(group)

    def reached_leader_of(self, group: int) -> int:
        """Return the node that leads a group, if this node reaches it; -1: none is known. 0: this
        node, outside a cluster."""
        if self._forwarding is None:
            return 0
        leader = self._forwarding.leaders.leader_of(group)
        return leader if leader and self._forwarding.group_locations.is_up(leader) else -1

    def leaderless(self, groups: Iterable[int]) -> list[int]:
        """Return the groups that have no known leader now; empty outside a cluster."""
        forwarding = self._forwarding
        return (
            []
            if forwarding is None
            else [group for group in groups if not forwarding.leaders.leader_of(group)]
        )

    def voters_of(self, group: int) -> dict[int, bool]:
        """Return the voters of the group, each with True if this node reaches it; empty outside a
        cluster."""
        return {} if self._forwarding is None else self._forwarding.group_locations.voters_of(group)

    def epoch_of(self, group: int) -> int:
        """Return the leader epoch of a group, as far as this core knows; -1: unknown."""
        if self._forwarding is not None:
            return self._forwarding.leaders.epoch_of(group) or -1
        # all groups have the same base, and a single node has no terms
        return next((machine.counters.epoch_base for machine in self._machines.values()), -1)

    def newest_epoch(self, group: int) -> int:
        """Return an epoch that is no lower than that of any leader that this core's replica has
        heard."""
        return (
            self.epoch_of(group)
            if self._forwarding is None
            else self._forwarding.leaders.newest(group)
        )

    def learn(self, group: int, place: int, leader: int) -> None:
        """Learn from a NotLeader of core `place` that `leader` leads a group; 0: it knows none."""
        if self._forwarding is not None:
            self._forwarding.targets.learn(group, place, leader)

    async def refresh(self) -> None:
        """Ask for the leaders of the groups that have no replica on this node."""
        if self._remote is not None:
            await self._remote.refresh()
