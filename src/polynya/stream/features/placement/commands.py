"""Commands of the cluster map, in the meta group: tags 82-88, 91 and 92."""

from __future__ import annotations

import msgspec

from polynya.stream.command import Command


class NodeState:
    """The administrative state of a node. Each node that is not removed is a member of the
    cluster."""

    ACTIVE = 0
    CORDONED = 1  # gets no new replicas
    DRAINING = 2  # … and leads no group
    EMPTYING = 3  # … and is to hold no replica
    LEAVING = 4  # … and is removed afterwards
    REMOVED = 5
    NAMES = ("active", "cordoned", "draining", "emptying", "leaving", "removed")


class NodeRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A node of the cluster. `peer` is HOST:PORT of its peer port; `http` is its URL for
    clients."""

    id: int
    peer: str
    http: str
    zone: str = ""
    cores: int = 0  # 0: not reported yet
    state: int = NodeState.ACTIVE
    replaces: int = 0  # the node whose replicas it takes over
    reader: bool = False  # a read replica: it follows every group and votes in none
    kafka: str = ""  # HOST:PORT for Kafka clients; "": it serves none
    kafka_ports: tuple[int, ...] = ()  # of its cores, on that host; empty: the node is one broker


class Placement(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The placement of one group: voters, goal voters (equal when nothing moves), preferred leader,
    map epoch of its last change."""

    voters: tuple[int, ...]
    goal: tuple[int, ...]
    first: int
    epoch: int = 0


class ClusterBorn(Command, tag=82, frozen=True, gc=False):
    """Set the first cluster map in the meta group, unless one exists. `placements` are ordered by
    group number."""

    nodes: list[NodeRecord]
    placements: list[Placement]
    replicas: int


class NodeAdd(Command, tag=83, frozen=True, gc=False):
    """Add a node, in the meta group. `balance`: move its share of replicas to it."""

    node: NodeRecord
    balance: bool = False


class NodeSet(Command, tag=84, frozen=True, gc=False):
    """Set the state of a node (`NodeState`), in the meta group."""

    node: int
    state: int


class NodeAnnounce(Command, tag=85, frozen=True, gc=False):
    """Update a node's addresses, zone and cores in the meta group, as the node reports them."""

    node: int
    peer: str
    http: str
    zone: str
    cores: int
    kafka: str = ""  # level 3
    kafka_ports: tuple[int, ...] = ()  # level 3


class PlaceGroup(Command, tag=86, frozen=True, gc=False):
    """Set a group's goal voters and preferred leader, in the meta group. `epoch`: the expected
    current placement epoch; 0: any."""

    group: int
    goal: tuple[int, ...]
    first: int
    epoch: int = 0


class GroupPlaced(Command, tag=87, frozen=True, gc=False):
    """Record in the meta group that the group committed these voters, as its placement at `epoch`
    asked."""

    group: int
    voters: tuple[int, ...]
    epoch: int


class SetBalancing(Command, tag=88, frozen=True, gc=False):
    """Turn even spreading of replicas and leaders on or off, in the meta group. `replicas`: wanted
    per group from now on; 0: unchanged."""

    on: bool
    replicas: int = 0


class ReaderAdd(Command, tag=91, frozen=True, gc=False):
    """Add a read replica, in the meta group."""

    node: NodeRecord


class NodePromote(Command, tag=92, frozen=True, gc=False):
    """Turn a read replica into a regular node, in the meta group. `balance`: move its share of
    replicas to it."""

    node: int
    balance: bool = False
