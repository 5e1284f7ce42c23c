"""The rules of the cluster map, in the meta group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from polynya.stream.command import applies
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import (
    NODE_NUMBER_MAX,
    ClusterBorn,
    GroupPlaced,
    NodeAdd,
    NodeAnnounce,
    NodePromote,
    NodeRecord,
    NodeSet,
    NodeState,
    PlaceGroup,
    Placement,
    ReaderAdd,
    SetBalancing,
)
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


@applies(ClusterBorn)
def apply_born(machine: Machine, command: ClusterBorn, position: int) -> Reply:
    """Set the first map: CREATED, or EXISTS if there is one, which stays."""
    if machine.meta.map is not None:
        return Reply(Code.EXISTS)
    nodes = {node.id: node for node in command.nodes}
    machine.meta.map = ClusterMap(
        1,
        command.replicas,
        nodes,
        {group: _stamped(each, 1) for group, each in enumerate(command.placements)},
    )
    return Reply(Code.CREATED)


@applies(NodeAdd)
def apply_add(machine: Machine, command: NodeAdd, position: int) -> Reply:
    """Add a node: CREATED, or EXISTS if this node is already a member. `replaces`: a node that
    leaves and hands its replicas to this one."""
    node = msgspec.structs.replace(command.node, state=NodeState.ACTIVE, reader=False)
    now = _before(machine, node)
    if isinstance(now, Reply):
        return now
    nodes = {**now.nodes, node.id: node}
    if node.replaces:
        old = nodes[node.replaces]
        shared = old.peer == node.peer or old.http == node.http
        nodes[old.id] = msgspec.structs.replace(
            old,
            state=NodeState.LEAVING,
            peer="" if shared else old.peer,
            http="" if shared else old.http,
        )
    _change(machine, nodes=nodes, balancing=now.balancing or command.balance)
    return _done(machine, Code.CREATED)


@applies(ReaderAdd)
def apply_reader(machine: Machine, command: ReaderAdd, position: int) -> Reply:
    """Add a read replica: CREATED, or EXISTS if it is already a member."""
    node = msgspec.structs.replace(command.node, state=NodeState.ACTIVE, replaces=0, reader=True)
    now = _before(machine, node)
    if isinstance(now, Reply):
        return now
    _change(machine, nodes={**now.nodes, node.id: node})
    return _done(machine, Code.CREATED)


@applies(NodePromote)
def apply_promote(machine: Machine, command: NodePromote, position: int) -> Reply:
    """Make a read replica a voting node: OK (also if it is one already), NOT_FOUND, or REFUSED
    while it is being emptied or leaves."""
    found = _member(machine, command.node)
    if isinstance(found, Reply):
        return found
    now, node = found
    if node.state >= NodeState.EMPTYING:
        return Reply(
            Code.REFUSED,
            detail=(
                f"node {node.id} is {NodeState.NAMES[node.state]}; run 'polynya cluster uncordon "
                f"{node.id}' first"
            ),
        )
    if node.reader:
        nodes = {**now.nodes, node.id: msgspec.structs.replace(node, reader=False)}
        _change(machine, nodes=nodes, balancing=now.balancing or command.balance)
    return _done(machine)


@applies(NodeSet)
def apply_set(machine: Machine, command: NodeSet, position: int) -> Reply:
    """Set a node's state: OK, NOT_FOUND, or REFUSED with the reason. Removal is permanent, and
    requires that no group is placed on the node."""
    now = machine.meta.map
    if now is None:
        return _no_map()
    node = now.nodes.get(command.node)
    if node is None or (node.state == NodeState.REMOVED and command.state != NodeState.REMOVED):
        return Reply(
            Code.NOT_FOUND,
            detail=f"there is no node {command.node}"
            + (": it was removed" if node is not None else ""),
        )
    if node.state == command.state:
        return _done(machine)
    if command.state == NodeState.REMOVED and any(
        command.node in now.placed_on(group) for group in now.groups
    ):
        return Reply(Code.REFUSED, detail=f"node {command.node} still has replicas")
    if node.state == NodeState.LEAVING and not node.peer and command.state != NodeState.REMOVED:
        return Reply(
            Code.REFUSED,
            detail=f"node {command.node} is replaced by another at its address; it can only leave",
        )
    _change(
        machine, nodes={**now.nodes, node.id: msgspec.structs.replace(node, state=command.state)}
    )
    return _done(machine)


@applies(NodeAnnounce)
def apply_announce(machine: Machine, command: NodeAnnounce, position: int) -> Reply:
    """Update a node's addresses, zone and cores. NOT_FOUND: it is not a member."""
    found = _member(machine, command.node)
    if isinstance(found, Reply):
        return found
    now, node = found
    announced = msgspec.structs.replace(
        node,
        peer=command.peer,
        http=command.http,
        zone=command.zone,
        cores=command.cores,
        kafka=command.kafka,
        kafka_ports=command.kafka_ports,
    )
    if announced == node:
        return _done(machine)
    if any(
        command.peer == other.peer
        for other in now.nodes.values()
        if other.id != node.id and other.state != NodeState.REMOVED
    ):
        return Reply(
            Code.REFUSED, detail=f"another node already uses the peer address {command.peer}"
        )
    _change(machine, nodes={**now.nodes, node.id: announced})
    return _done(machine)


@applies(PlaceGroup)
def apply_place(machine: Machine, command: PlaceGroup, position: int) -> Reply:
    """Set a group's goal voters and preferred leader. NOT_YET: the placement changed since
    `epoch`."""
    found = _placed(machine, command.group)
    if isinstance(found, Reply):
        return found
    now, before = found
    if command.epoch and command.epoch != before.epoch:
        return Reply(
            Code.NOT_YET, detail=f"the placement of group {command.group} changed meanwhile; retry"
        )
    goal = tuple(sorted(set(command.goal)))
    strange = [node for node in goal if node not in now.members]
    if strange or not goal:
        return Reply(
            Code.REFUSED,
            detail=f"there is no node {strange[0]}"
            if strange
            else "the goal is empty: a group needs at least one voter",
        )
    silent = [node for node in goal if now.nodes[node].reader]
    if silent:
        return Reply(
            Code.REFUSED, detail=f"node {silent[0]} is a read replica, and votes in no group"
        )
    if command.first not in goal:
        return Reply(
            Code.REFUSED,
            detail=f"node {command.first} has no vote in group {command.group}, and cannot lead it",
        )
    _position(machine, command.group, Placement(before.voters, goal, command.first))
    return _done(machine)


@applies(GroupPlaced)
def apply_placed(machine: Machine, command: GroupPlaced, position: int) -> Reply:
    """Record the voters that the group committed. NOT_YET: its goal has changed since."""
    found = _placed(machine, command.group)
    if isinstance(found, Reply):
        return found
    _, before = found
    if before.epoch != command.epoch:
        return Reply(Code.NOT_YET)
    if before.voters != tuple(command.voters):
        _position(
            machine, command.group, Placement(tuple(command.voters), before.goal, before.first)
        )
    return _done(machine)


@applies(SetBalancing)
def apply_balancing(machine: Machine, command: SetBalancing, position: int) -> Reply:
    """Turn balancing on or off and set the wanted replicas. OK, or NOT_YET without a map."""
    now = machine.meta.map
    if now is None:
        return _no_map()
    if now.balancing != command.on or (command.replicas and now.replicas != command.replicas):
        _change(machine, balancing=command.on, replicas=command.replicas or now.replicas)
    return _done(machine)


def _done(machine: Machine, code: int = Code.OK) -> Reply:
    """Return a reply whose detail is the current map epoch."""
    assert machine.meta.map is not None
    return Reply(code, detail=machine.meta.map.epoch)


def _before(machine: Machine, node: NodeRecord) -> ClusterMap | Reply:
    """Return the map to add the node to, or the reply that ends the command: EXISTS if it is a
    member, else the refusal."""
    now = machine.meta.map
    if now is None:
        return _no_map()
    known = now.nodes.get(node.id)
    if known is not None and _is_at(known, node) and known.reader == node.reader:
        return _done(machine, Code.EXISTS)
    problem = _unfit(now, node)
    return Reply(Code.REFUSED, detail=problem) if problem else now


def _member(machine: Machine, number: int) -> tuple[ClusterMap, NodeRecord] | Reply:
    """Return the map and the member node, or the refusal."""
    now = machine.meta.map
    if now is None:
        return _no_map()
    node = now.nodes.get(number)
    if node is None or node.state == NodeState.REMOVED:
        return Reply(Code.NOT_FOUND, detail=f"there is no node {number}")
    return now, node


def _placed(machine: Machine, group: int) -> tuple[ClusterMap, Placement] | Reply:
    """Return the map and the group's placement, or the refusal."""
    now = machine.meta.map
    if now is None:
        return _no_map()
    before = now.groups.get(group)
    return (
        Reply(Code.NOT_FOUND, detail=f"there is no group {group}")
        if before is None
        else (now, before)
    )


def _no_map() -> Reply:
    return Reply(Code.NOT_YET, detail="the cluster has no map yet; retry")


def _unfit(now: ClusterMap, node: NodeRecord) -> str:
    """Return why the node cannot be added; empty if it can."""
    if not 1 <= node.id <= NODE_NUMBER_MAX:
        return f"the node id is out of range: ids are 1 to {NODE_NUMBER_MAX}"
    if node.id in now.nodes:
        known = now.nodes[node.id]
        if known.state == NodeState.REMOVED:
            return f"node {node.id} was removed; node ids are never reused"
        if _is_at(known, node):
            return (
                f"node {node.id} is already a member, as "
                f"{'a read replica' if known.reader else 'a voting node'}"
            )
        return f"node {node.id} is already a member, at another address"
    old = now.nodes.get(node.replaces)
    if node.replaces and (old is None or old.state == NodeState.REMOVED):
        return f"node {node.replaces}, which is to be replaced, is not a member of the cluster"
    if old is not None and old.reader:
        return (
            f"node {old.id} is a read replica: start it on an empty disk, and it copies every "
            "group again"
        )
    for other in now.nodes.values():
        if other.state == NodeState.REMOVED or other.id == node.replaces:
            continue
        if node.peer == other.peer or node.http == other.http:
            return (
                f"node {other.id} already uses "
                f"{node.peer if node.peer == other.peer else node.http}: choose another address"
            )
    return ""


def _is_at(known: NodeRecord, node: NodeRecord) -> bool:
    """Report whether both records have the same addresses and the known node is not removed."""
    return known.state != NodeState.REMOVED and (known.peer, known.http) == (node.peer, node.http)


def _stamped(placement: Placement, epoch: int) -> Placement:
    return msgspec.structs.replace(placement, epoch=epoch)


def _position(machine: Machine, group: int, placement: Placement) -> None:
    assert machine.meta.map is not None
    _change(
        machine,
        groups={**machine.meta.map.groups, group: _stamped(placement, machine.meta.map.epoch + 1)},
    )


def _change(machine: Machine, **fields: object) -> None:
    assert machine.meta.map is not None
    machine.meta.map = msgspec.structs.replace(
        machine.meta.map, epoch=machine.meta.map.epoch + 1, **fields
    )
