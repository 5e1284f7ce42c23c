"""Commands of the cluster map, in the meta group: tags 82-88, 91 and 92."""

from __future__ import annotations

import msgspec

from polynya.base.limits import GROUPS_MAX
from polynya.stream.command import Command, command
from polynya.stream.command_validation import COUNTER, NODE, NONE, bounded, first_fault, nested


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


REPLICAS_MAX = 5
NODE_NUMBER_MAX = 250
_CORES_MAX = 256  # of a node


def _record(node: NodeRecord) -> str:
    return _ports(node.kafka_ports) or _peer(node.peer)


def _announced(command: NodeAnnounce) -> str:
    return _ports(command.kafka_ports) or _peer(command.peer)


def _ports(ports: tuple[int, ...]) -> str:
    """Return the fault of the Kafka ports of a node's cores, or ""."""
    if len(ports) <= _CORES_MAX and all(0 < port < 1 << 16 for port in ports):
        return ""
    return f"the Kafka ports of a node's cores are {ports[:8]}; expected up to {_CORES_MAX} ports"


def _peer(peer: str) -> str:
    """Return the fault of a node's peer address, or "". An empty address is valid: nodes do not
    connect to it."""
    if not peer:
        return ""
    host, _, port = peer.rpartition(":")
    if host and port.isascii() and port.isdigit() and len(port) <= 20 and 0 < int(port) < 1 << 16:
        return ""
    return f"the peer address of a node is '{peer[:100]}'; expected HOST:PORT"


@bounded(
    {
        "id": (1, NODE_NUMBER_MAX),
        "cores": NODE,
        "state": (NodeState.ACTIVE, NodeState.REMOVED),
        "replaces": NODE,
    },
    check=_record,
)
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


def _placement(placement: Placement) -> str:
    if placement.first not in placement.goal:
        return f"node {placement.first} is the preferred leader of a group in which it has no vote"
    return _nodes(placement.voters) or _nodes(placement.goal)


def _nodes(voters: tuple[int, ...]) -> str:
    if (
        not voters
        or len(set(voters)) != len(voters)
        or not all(1 <= node <= NODE_NUMBER_MAX for node in voters)
    ):
        return (
            f"{voters} is not a valid voter set: it needs distinct node ids from 1 to "
            f"{NODE_NUMBER_MAX}"
        )
    return ""


@bounded({"first": (1, NODE_NUMBER_MAX), "epoch": COUNTER}, check=_placement)
class Placement(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The placement of one group: voters, goal voters (equal when nothing moves), preferred leader,
    map epoch of its last change."""

    voters: tuple[int, ...]
    goal: tuple[int, ...]
    first: int
    epoch: int = 0


def _born(command: ClusterBorn) -> str:
    numbers = [node.id for node in command.nodes]
    if not numbers or len(set(numbers)) != len(numbers):
        return f"the first cluster map needs distinct nodes; it has {numbers}"
    if not 1 <= len(command.placements) <= GROUPS_MAX + 1:
        return (
            f"the first cluster map has {len(command.placements)} groups; expected 1 to "
            f"{GROUPS_MAX + 1}"
        )
    strange = {node for each in command.placements for node in (*each.voters, *each.goal)} - set(
        numbers
    )
    if strange:
        return (
            f"the first cluster map positions groups on node {min(strange)}, which is not in its "
            "node list"
        )
    return first_fault(command.nodes) or first_fault(command.placements)


@command(since=1, bounds={"replicas": (0, REPLICAS_MAX)}, check=_born)
class ClusterBorn(Command, tag=82, frozen=True, gc=False):
    """Set the first cluster map in the meta group, unless one exists. `placements` are ordered by
    group number."""

    nodes: list[NodeRecord]
    placements: list[Placement]
    replicas: int


@command(since=1, bounds=NONE, check=nested("node"))
class NodeAdd(Command, tag=83, frozen=True, gc=False):
    """Add a node, in the meta group. `balance`: move its share of replicas to it."""

    node: NodeRecord
    balance: bool = False


@command(since=1, bounds={"node": NODE, "state": (NodeState.ACTIVE, NodeState.REMOVED)})
class NodeSet(Command, tag=84, frozen=True, gc=False):
    """Set the state of a node (`NodeState`), in the meta group."""

    node: int
    state: int


def _announce_level(command: NodeAnnounce) -> int:
    """Return 3 with the addresses of Kafka, which an older node would not keep."""
    return 3 if command.kafka or command.kafka_ports else 1


@command(since=1, bounds={"node": NODE, "cores": NODE}, check=_announced, level=_announce_level)
class NodeAnnounce(Command, tag=85, frozen=True, gc=False):
    """Update a node's addresses, zone and cores in the meta group, as the node reports them."""

    node: int
    peer: str
    http: str
    zone: str
    cores: int
    kafka: str = ""  # level 3
    kafka_ports: tuple[int, ...] = ()  # level 3


def _goal(command: PlaceGroup) -> str:
    strange = [node for node in command.goal if not NODE[0] <= node <= NODE[1]]
    return f"the goal of a group has an invalid node id: {strange[0]}" if strange else ""


@command(since=1, bounds={"group": NODE, "first": NODE, "epoch": COUNTER}, check=_goal)
class PlaceGroup(Command, tag=86, frozen=True, gc=False):
    """Set a group's goal voters and preferred leader, in the meta group. `epoch`: the expected
    current placement epoch; 0: any."""

    group: int
    goal: tuple[int, ...]
    first: int
    epoch: int = 0


@command(
    since=1, bounds={"group": NODE, "epoch": COUNTER}, check=lambda command: _nodes(command.voters)
)
class GroupPlaced(Command, tag=87, frozen=True, gc=False):
    """Record in the meta group that the group committed these voters, as its placement at `epoch`
    asked."""

    group: int
    voters: tuple[int, ...]
    epoch: int


@command(since=1, bounds={"replicas": (0, REPLICAS_MAX)})
class SetBalancing(Command, tag=88, frozen=True, gc=False):
    """Turn even spreading of replicas and leaders on or off, in the meta group. `replicas`: wanted
    per group from now on; 0: unchanged."""

    on: bool
    replicas: int = 0


@command(since=2, bounds=NONE, check=nested("node"))
class ReaderAdd(Command, tag=91, frozen=True, gc=False):
    """Add a read replica, in the meta group."""

    node: NodeRecord


@command(since=2, bounds={"node": NODE})
class NodePromote(Command, tag=92, frozen=True, gc=False):
    """Turn a read replica into a regular node, in the meta group. `balance`: move its share of
    replicas to it."""

    node: int
    balance: bool = False
