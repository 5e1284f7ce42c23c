"""Where the groups are: which nodes have replicas of them, as far as this core knows, and which of those to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from polynya.stream.commands import NodeState


class Node(Protocol):
    @property
    def zone(self) -> str: ...

    @property
    def peer(self) -> str:
        """HOST:PORT of its peer port; empty when it has none any more."""
        ...

    @property
    def state(self) -> int:
        """See `polynya.stream.commands.NodeState`."""
        ...

    @property
    def reader(self) -> bool:
        """Whether it is a read replica."""
        ...


class GroupMap(Protocol):
    """What the meta group says; a new one for each change, with a larger epoch."""

    @property
    def epoch(self) -> int: ...

    @property
    def nodes(self) -> Mapping[int, Node]:
        """All that ever belonged to the cluster."""
        ...

    @property
    def members(self) -> tuple[int, ...]:
        """Those that do."""
        ...

    def replicas_of(self, group: int) -> tuple[int, ...]:
        """The nodes that have to have a replica."""
        ...

    def placed_on(self, group: int) -> tuple[int, ...]:
        """Those of them that have a voice, or are to have one."""
        ...

    def learners_of(self, group: int) -> tuple[int, ...]:
        """Those of them that are not known to have a voice yet."""
        ...

    def first_of(self, group: int) -> int:
        """The node that is to lead the group."""
        ...


class BirthMap(msgspec.Struct, frozen=True):
    """Until there is another: the nodes that the cluster was born with, or by which this one looks for it."""

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
    """Of one core of the node `node`. `is_there` says whether a node is heard; what is answered is at most a guess about the others."""

    def __init__(self, node: int, known: GroupMap, is_there: Callable[[int], bool]) -> None:
        self.node, self.map = node, known
        self.is_there = is_there

    def first_of(self, group: int) -> int:
        return self.map.first_of(group)

    def may_lead(self, node: int) -> bool:
        """Whether the node is none that gives up what it leads."""
        record = self.map.nodes.get(node)
        return record is None or record.state < NodeState.DRAINING

    def others(self) -> Iterator[int]:
        """The other nodes that are there."""
        return (node for node in self.map.members if node != self.node and self.is_there(node))

    def near(self, group: int) -> list[int]:
        """The other nodes that are there and have a replica with a voice, those of the own zone first."""
        nodes = self.map.nodes
        own = self._zone(self.node)
        there = [node for node in self.map.placed_on(group) if node != self.node and self.is_there(node)]
        there.sort(key=lambda node: (not own or node not in nodes or nodes[node].zone != own, (node - self.node) % 256))
        return there

    def likely(self, group: int, turn: int) -> int:
        """Who may lead the group, or know who does; with each turn another. 0: nobody is there."""
        there, first = self.near(group), self.map.first_of(group)
        there.sort(key=lambda node: node != first)
        return there[turn % len(there)] if there else 0

    def _zone(self, node: int) -> str:
        nodes = self.map.nodes
        return nodes[node].zone if node in nodes else ""
