"""The cores to send to: the one that leads a group, may know its leader, or serves its reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from polynya.base.errors import NotLeader
from polynya.routing import relay
from polynya.routing.group_locations import CoreAddress, GroupLocations
from polynya.routing.leader_map import LeaderMap
from polynya.routing.relay import THROUGH

Target = tuple[int, bool]  # transport number, -1 for none; whether that core is known to lead


class TargetRpc(Protocol):
    """The part of `polynya.transport` that the choice of a target needs."""

    def cores_of(self, node: int) -> int:
        """Return the number of cores of another node; that of this node until it is known."""
        ...

    def protocol(self, core: int) -> int:
        """Return the newest protocol that both cores support."""
        ...


class Targets:
    """The choice of targets of one core, as transport numbers. `address(node, core)` returns the
    number of a core.

    Without a known leader another node is named, with each refusal the next one. For a leader that
    is known but unreachable a relay is named (see `polynya.routing.relay`)."""

    def __init__(
        self,
        place: CoreAddress,
        leaders: LeaderMap,
        group_locations: GroupLocations,
        *,
        address: Callable[[int, int], int],
        way: TargetRpc,
    ) -> None:
        self.cores_of = way.cores_of
        self.redirects = 0  # total
        self._place = place
        self._leaders = leaders
        self._group_locations = group_locations
        self._address = address
        self._protocol = way.protocol
        self._nodes: dict[int, int] = {}  # target → node
        self._turns: dict[int, int] = {}  # group → unsuccessful attempts to find its leader

    def places(self) -> Iterator[int]:
        """Yield all cores of the other reachable nodes."""
        for node in self._group_locations.others():
            yield from (self._address(node, core) for core in range(self.cores_of(node)))

    def core_at(self, node: int, group: int) -> int:
        """Return the core of another node that hosts the group, or would host it."""
        return self._address(node, group % self.cores_of(node))

    def to_read(self, group: int, *, local: bool = False) -> list[int]:
        """Return the other cores that may serve reads of the group, best first. This node's core is
        first if it can reach the leader, then near nodes, then the known leader."""
        place, core = self._place, group % self._place.cores
        here = core != place.core and place.node in self._group_locations.map.replicas_of(group)
        nodes, leader = self._group_locations.near(group), self._leaders.known[group]
        if leader not in (0, place.node, *nodes) and self._group_locations.is_there(leader):
            nodes.append(leader)
        others = [self.core_at(node, group) for node in nodes]
        return (
            [core] * here + others
            if local or (leader and self._leaders.is_reached(leader))
            else others + [core] * here
        )

    def home(self, group: int, *, through: bool = False) -> int:
        """Return the core that leads the group; the own core has its own number. `through`: allow
        a relay. Raise NotLeader when no candidate is known."""
        target, _ = self.candidate(group, through=through)
        if target < 0:
            raise NotLeader(0)
        return target

    def candidate(self, group: int, *, through: bool = True) -> Target:
        """Return the core that leads the group or may know its leader."""
        place, core, leaders = self._place, group % self._place.cores, self._leaders
        if group in leaders.led:
            return core, True
        leader = leaders.known[group]
        if not leader and leaders.knows(group):
            leader = leaders.reload(group)
        if leader == place.node:
            return (core, True) if core != place.core else (-1, False)  # elected, but not ready yet
        if leader and self._group_locations.is_there(leader):
            return self._at(leader, group), True
        between = self._between(group) if leader and through else 0
        if between:
            return between, False
        if leaders.knows(group):
            return -1, False
        likely = self._likely(group)
        return (self._at(likely, group) if likely else -1), False

    def leader_at(self, group: int) -> int:
        """Return the core of another node that leads the group, if it is known and reachable; else
        -1."""
        leader = self._leaders.elsewhere(group) if group in self._leaders.known else 0
        return self._at(leader, group) if leader and self._group_locations.is_there(leader) else -1

    def learn(self, group: int, target: int, leader: int) -> bool:
        """Record a redirect from `target`, and return True if it named a new leader. The replicas
        of this core take precedence."""
        self.redirects += 1
        leaders, place = self._leaders, self._place
        if leaders.knows(group):
            leaders.reload(group)
            return False
        # this core knows better
        here = leader == place.node and group % place.cores == place.core
        # the relay does not reach the leader either
        vain = target >= THROUGH and leader == leaders.known[group]
        is_news = bool(leader and leader != self._nodes.get(target) and not here and not vain)
        leaders.record(group, leader if is_news else 0)
        if not is_news:
            self._turns[group] = self._turns.get(group, 0) + 1
        return is_news

    def confirm(self, group: int, target: int) -> bool:
        """Record that `target` did not refuse a proposal, and so leads the group. Return True if
        that is news."""
        leaders = self._leaders
        if (
            leaders.known[group]
            or target >= THROUGH
            or target == self._place.core
            or leaders.knows(group)
        ):
            return False
        leaders.record(group, self._nodes.get(target, 0))
        return True

    def _between(self, group: int) -> int:
        """Return a relay through which the leader may be reached; 0: no reachable node supports
        it."""
        node = self._likely(group)
        target = self._at(node, group) if node else 0
        if not target or self._protocol(target) < relay.PROTOCOL:
            return 0
        self._nodes[target + THROUGH] = node
        return target + THROUGH

    def _likely(self, group: int) -> int:
        return self._group_locations.likely(group, self._turns.get(group, 0))

    def _at(self, node: int, group: int) -> int:
        target = self.core_at(node, group)
        self._nodes[target] = node
        return target
