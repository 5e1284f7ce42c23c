"""The members of the cluster and the placement of replicas: state of the meta group, changed only
by its commands.

A placement has a group's voters and its goal voters (`goal`). The meta group's leader moves the
group from one to the other, and then reports it (`GroupPlaced`). A node must hold a replica of
every group that lists it in either. Each command leaves a complete map from which the next leader
can continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec

from polynya.stream.features.placement.commands import (
    REPLICAS_MAX,
    ClusterBorn,
    NodeRecord,
    NodeState,
    Placement,
)

META_VOTERS_MAX = 5
META_GROUP = 0


class ClusterMap(msgspec.Struct, array_like=True, frozen=True, dict=True):
    """An immutable version of the cluster map. Each change makes a new one with the next `epoch`.

    Invariants: every node in a placement is in `nodes`, not removed, and no read replica. `first`
      is in `goal`. A removed node stays in
    `nodes`, so that its number is never reused."""

    epoch: int
    replicas: int  # wanted per user group
    nodes: dict[int, NodeRecord]
    groups: dict[int, Placement]
    balancing: bool = False  # replicas and leaders are being spread evenly; reset when done

    @property
    def members(self) -> tuple[int, ...]:
        """The nodes that belong to the cluster."""
        return tuple(
            sorted(number for number, node in self.nodes.items() if node.state != NodeState.REMOVED)
        )

    @property
    def voting(self) -> tuple[int, ...]:
        """The members that may vote: all but read replicas."""
        return tuple(number for number in self.members if not self.nodes[number].reader)

    @property
    def active(self) -> tuple[int, ...]:
        """The voting members that accept new replicas."""
        return tuple(
            number for number in self.voting if self.nodes[number].state == NodeState.ACTIVE
        )

    @cached_property
    def readers(self) -> frozenset[int]:
        """The read replicas that must have every group."""
        return frozenset(
            number
            for number, node in self.nodes.items()
            if node.reader and node.state < NodeState.EMPTYING
        )

    def replicas_of(self, group: int) -> tuple[int, ...]:
        """Return the nodes that must hold a replica of the group: voters, goal voters and read
        replicas; for the meta group, all members. Empty if the map does not know the group."""
        if group == META_GROUP:
            return self.members
        return (
            tuple(sorted({*self.placed_on(group), *self.readers}))
            if self.readers
            else self.placed_on(group)
        )

    def placed_on(self, group: int) -> tuple[int, ...]:
        """Return the group's voters and goal voters."""
        placement = self.groups.get(group)
        return () if placement is None else tuple(sorted({*placement.voters, *placement.goal}))

    def learners_of(self, group: int) -> tuple[int, ...]:
        """Return the goal voters that do not vote yet."""
        placement = self.groups.get(group)
        return (
            () if placement is None else tuple(sorted(set(placement.goal) - set(placement.voters)))
        )

    def readers_of(self, group: int) -> tuple[int, ...]:
        """Return the permanent non-voters. In the meta group these are all members that do not
        vote, so that every node has this map."""
        return tuple(
            sorted(
                (set(self.members) if group == META_GROUP else self.readers)
                - set(self.placed_on(group))
            )
        )

    def first_of(self, group: int) -> int:
        """Return the group's preferred leader; 0 if the map does not know the group."""
        return self.groups[group].first if group in self.groups else 0

    def groups_of(self, node: int) -> list[int]:
        """Return the groups of which the node must hold a replica."""
        return [group for group in self.groups if node in self.replicas_of(group)]

    def wanted(self, group: int) -> int:
        """Return the wanted number of voters, limited by the number of nodes. An even count above
        two is reduced by one: it tolerates no more failures. A node to be emptied keeps replicas
        that no other node can take over. The meta group may shrink, but never below the user
        groups."""
        wanted = voters_wanted(self.replicas, len(self.voting))
        if group != META_GROUP:
            return wanted
        able = sum(
            node.state <= NodeState.DRAINING and not node.reader for node in self.nodes.values()
        )
        return max(voters_wanted(META_VOTERS_MAX, able), wanted)


def voters_wanted(most: int, nodes: int) -> int:
    """Return the number of voters for at most `most` replicas on `nodes` nodes; even counts above
    two are reduced by one."""
    found = min(most, nodes)
    return found - 1 if found > 2 and found % 2 == 0 else found


def born(
    nodes: Iterable[NodeRecord], groups: int, replicas: int, *, everywhere: bool = False
) -> ClusterBorn:
    """Build the first map; equal input gives an equal map on every node. `groups` counts user
    groups. `everywhere`: all nodes have all groups, as in clusters of the first release with
    clustering."""
    records = sorted(nodes, key=lambda node: node.id)
    numbers = [node.id for node in records]
    zones = {node.id: node.zone for node in records}
    held, led = dict.fromkeys(numbers, 0), dict.fromkeys(numbers, 0)
    placements = []
    for group in range(groups + 1):
        most = len(numbers) if everywhere else META_VOTERS_MAX if group == META_GROUP else replicas
        voters = spread(
            zones, held, len(numbers) if everywhere else voters_wanted(most, len(numbers)), group
        )
        ordered = sorted(
            voters, key=lambda node: (led[node], (numbers.index(node) - group) % len(numbers))
        )
        first = numbers[group % len(numbers)] if len(voters) == len(numbers) else ordered[0]
        for node in voters:
            held[node] += 1
        led[first] += 1
        placements.append(Placement(voters, voters, first))
    return ClusterBorn(records, placements, min(replicas, REPLICAS_MAX))


def spread(
    zones: Mapping[int, str], held: Mapping[int, float], count: int, turn: int
) -> tuple[int, ...]:
    """Choose `count` nodes, sorted: over as many zones as possible, the least loaded first. `turn`
    breaks ties."""
    numbers = sorted(zones)
    chosen: list[int] = []
    while len(chosen) < count:
        taken = [zones[node] for node in chosen]
        left = [node for node in numbers if node not in chosen]
        chosen.append(
            min(
                left,
                key=lambda node: (
                    taken.count(zones[node]),
                    held[node],
                    (numbers.index(node) - turn) % len(numbers),
                ),
            )
        )
    return tuple(sorted(chosen))
