"""Choose the core to send to: the one that leads a group, may know its leader, or serves its reads.
A request for a leader that this node cannot reach is relayed through another node
(docs/decisions/0018)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from polynya.base.errors import NotLeader
from polynya.routing.directory import Directory
from polynya.routing.group_locations import CoreAddress
from polynya.transport.handshake import address

# added to a core's transport number: the core relays the request to the leader of the group
THROUGH = 1 << 16
RELAY_PROTOCOL = 3  # peer protocol version that introduced PASS_ON
Target = tuple[int, bool]  # transport number, -1 for none; whether that core is known to lead


class TargetTransport(Protocol):
    """The part of `polynya.transport` that the choice of a target needs."""

    def cores_of(self, node: int) -> int:
        """Return the number of cores of another node; that of this node until it is known."""
        ...

    def protocol(self, core: int) -> int:
        """Return the newest protocol that both cores support."""
        ...


class Targets:
    """The choice of targets of one core, as transport numbers.

    Without a known leader another node is named, with each refusal the next one. For a leader that
    is known but unreachable a relay is named."""

    has_replicas = True  # of a group, in which another answers for one that cannot

    def __init__(self, own: CoreAddress, directory: Directory, transport: TargetTransport) -> None:
        self.cores_of = transport.cores_of
        self.redirects = 0  # total
        self._own = own
        self._directory = directory
        self._locations = directory.locations
        self._protocol = transport.protocol
        self._nodes: dict[int, int] = {}  # target → node
        self._turns: dict[int, int] = {}  # group → unsuccessful attempts to find its leader

    def other_nodes(self) -> Iterator[int]:
        """Yield all cores of the other reachable nodes."""
        for node in self._locations.others():
            yield from (address(node, core) for core in range(self.cores_of(node)))

    def core_at(self, node: int, group: int) -> int:
        """Return the core of another node that hosts the group, or would host it."""
        return address(node, group % self.cores_of(node))

    def to_read(self, group: int, *, local: bool = False) -> list[int]:
        """Return the other cores that may serve reads of the group, best first. This node's core is
        first if it can reach the leader, then near nodes, then the known leader."""
        own, core = self._own, group % self._own.cores
        here = core != own.core and own.node in self._locations.map.replicas_of(group)
        nodes, leader = self._locations.near(group), self._directory.known[group]
        if leader not in (0, own.node, *nodes) and self._locations.is_there(leader):
            nodes.append(leader)
        others = [self.core_at(node, group) for node in nodes]
        return (
            [core] * here + others
            if local or (leader and self._directory.is_reached(leader))
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
        own, core, directory = self._own, group % self._own.cores, self._directory
        if group in directory.led:
            return core, True
        leader = directory.known[group]
        if not leader and directory.knows(group):
            leader = directory.reload(group)
        if leader == own.node:
            return (core, True) if core != own.core else (-1, False)  # elected, but not ready yet
        if leader and self._locations.is_there(leader):
            return self._at(leader, group), True
        between = self._between(group) if leader and through else 0
        if between:
            return between, False
        if directory.knows(group):
            return -1, False
        likely = self._likely(group)
        return (self._at(likely, group) if likely else -1), False

    def leader_at(self, group: int) -> int:
        """Return the core of another node that leads the group, if it is known and reachable; else
        -1."""
        leader = self._directory.elsewhere(group) if group in self._directory.known else 0
        return self._at(leader, group) if leader and self._locations.is_there(leader) else -1

    def learn(self, group: int, target: int, leader: int) -> bool:
        """Record a redirect from `target`, and return True if it named a new leader. The replicas
        of this core take precedence."""
        self.redirects += 1
        directory, own = self._directory, self._own
        if directory.knows(group):
            directory.reload(group)
            return False
        # this core knows better
        here = leader == own.node and group % own.cores == own.core
        # the relay does not reach the leader either
        vain = target >= THROUGH and leader == directory.known[group]
        is_news = bool(leader and leader != self._nodes.get(target) and not here and not vain)
        directory.record(group, leader if is_news else 0)
        if not is_news:
            self._turns[group] = self._turns.get(group, 0) + 1
        return is_news

    def confirm(self, group: int, target: int) -> bool:
        """Record that `target` did not refuse a proposal, and so leads the group. Return True if
        that is news."""
        directory = self._directory
        if (
            directory.known[group]
            or target >= THROUGH
            or target == self._own.core
            or directory.knows(group)
        ):
            return False
        directory.record(group, self._nodes.get(target, 0))
        return True

    def _between(self, group: int) -> int:
        """Return a relay through which the leader may be reached; 0: no reachable node supports
        it."""
        node = self._likely(group)
        target = self._at(node, group) if node else 0
        if not target or self._protocol(target) < RELAY_PROTOCOL:
            return 0
        self._nodes[target + THROUGH] = node
        return target + THROUGH

    def _likely(self, group: int) -> int:
        return self._locations.likely(group, self._turns.get(group, 0))

    def _at(self, node: int, group: int) -> int:
        target = self.core_at(node, group)
        self._nodes[target] = node
        return target


class SoleTargets:
    """The targets of core `core` of a node with `cores` cores, outside a cluster."""

    has_replicas = False

    def __init__(self, core: int, cores: int) -> None:
        self._core, self._cores = core, cores

    def other_nodes(self) -> Iterable[int]:
        """Return the cores of other nodes: none."""
        return ()

    def to_read(self, group: int, *, local: bool = False) -> list[int]:
        """Return the other core that serves reads of the group, if one does."""
        core = group % self._cores
        return [] if core == self._core else [core]

    def home(self, group: int, *, through: bool = False) -> int:
        """Return the core that hosts the group."""
        return group % self._cores

    def learn(self, group: int, target: int, leader: int) -> bool:
        """Learn nothing: groups do not move."""
        return False
