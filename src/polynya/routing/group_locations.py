"""The locations of the groups: which nodes host replicas, as far as this core knows, and which of
them to call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from polynya.stream.features.placement.commands import NodeState


class CoreAddress(msgspec.Struct, frozen=True):
    """The position of a core: core `core` of `cores`, on node `node`."""

    node: int
    core: int
    cores: int
    groups: int


class Node(Protocol):
    @property
    def zone(self) -> str: ...

    @property
    def peer(self) -> str:
        """HOST:PORT of its peer port; empty after its removal."""
        ...

    @property
    def state(self) -> int:
        """See `polynya.stream.features.placement.commands.NodeState`."""
        ...

    @property
    def reader(self) -> bool:
        """True for a read replica."""
        ...


class GroupMap(Protocol):
    """An immutable view of the meta group's cluster map. Each change creates a new one with a
    larger epoch."""

    @property
    def epoch(self) -> int: ...

    @property
    def nodes(self) -> Mapping[int, Node]:
        """Every node that ever belonged to the cluster."""
        ...

    @property
    def members(self) -> tuple[int, ...]:
        """The present members."""
        ...

    def replicas_of(self, group: int) -> tuple[int, ...]:
        """Return the nodes that must host a replica."""
        ...

    def placed_on(self, group: int) -> tuple[int, ...]:
        """Return the nodes whose replica is a voter, or is to become one."""
        ...

    def learners_of(self, group: int) -> tuple[int, ...]:
        """Return the nodes of `placed_on` whose replica is not known to vote yet."""
        ...

    def first_of(self, group: int) -> int:
        """Return the node that is the preferred leader of the group."""
        ...


class BirthMap(msgspec.Struct, frozen=True):
    """The initial map, used until the meta group's is known: the founding nodes, or the seeds of
    discovery."""

    numbers: tuple[int, ...]
    placed: Mapping[int, tuple[int, ...]] = {}
    epoch: int = 0

    @property
    def nodes(self) -> Mapping[int, Node]:
        return {}

    @property
    def members(self) -> tuple[int, ...]:
        return self.numbers

    def replicas_of(self, group: int) -> tuple[int, ...]:
        return self.numbers if group == 0 else self.placed_on(group)

    def placed_on(self, group: int) -> tuple[int, ...]:
        return self.placed.get(group, self.numbers)

    def learners_of(self, group: int) -> tuple[int, ...]:
        return ()

    def first_of(self, group: int) -> int:
        nodes = self.placed_on(group)
        return nodes[group % len(nodes)] if nodes else 0


class GroupLocations:
    """The group locations as one core of node `node` knows them. `is_there` reports whether a node
    is reachable, `was_there` also one that fell silent a moment ago. Information about other nodes
    is a hint."""

    def __init__(
        self,
        node: int,
        known: GroupMap,
        is_there: Callable[[int], bool],
        was_there: Callable[[int], bool] | None = None,
    ) -> None:
        self.node, self.map = node, known
        self.is_there = is_there
        self._was_there = was_there or is_there

    def first_of(self, group: int) -> int:
        return self.map.first_of(group)

    def may_lead(self, node: int) -> bool:
        """Report whether the node may lead groups: it is not draining or removed."""
        record = self.map.nodes.get(node)
        return record is None or record.state < NodeState.DRAINING

    def is_up(self, node: int) -> bool:
        """Report whether this node reaches another one, or is it."""
        return node == self.node or self.is_there(node)

    def seems_up(self, node: int) -> bool:
        """Report a node that this one reaches, or that fell silent a moment ago, or is it."""
        return node == self.node or self._was_there(node)

    def voters_of(self, group: int) -> dict[int, bool]:
        """Return the voters of the group, each with True if this node reaches it."""
        return {node: self.is_up(node) for node in self.map.placed_on(group)}

    def others(self) -> Iterator[int]:
        """Yield the other reachable nodes."""
        return (node for node in self.map.members if node != self.node and self.is_there(node))

    def near(self, group: int) -> list[int]:
        """Return the other reachable nodes that host a voter, those of the same zone first."""
        nodes = self.map.nodes
        own = self._zone(self.node)
        there = [
            node for node in self.map.placed_on(group) if node != self.node and self.is_there(node)
        ]
        there.sort(
            key=lambda node: (
                not own or node not in nodes or nodes[node].zone != own,
                (node - self.node) % 256,
            )
        )
        return there

    def likely(self, group: int, turn: int) -> int:
        """Return a node that probably leads the group or knows its leader; each `turn` returns
        another. 0: none is reachable."""
        there, first = self.near(group), self.map.first_of(group)
        there.sort(key=lambda node: node != first)
        return there[turn % len(there)] if there else 0

    def _zone(self, node: int) -> str:
        nodes = self.map.nodes
        return nodes[node].zone if node in nodes else ""
