"""Reasons to refuse operator requests, as messages. Pure; an empty text means that the request is
allowed."""

from __future__ import annotations

from collections.abc import Iterable

from polynya.replica import zones
from polynya.replica.placement_steps import ClusterObservation
from polynya.replica.planner import is_at_rest
from polynya.stream.features.placement.cluster_map import (
    META_GROUP,
    META_VOTERS_MAX,
    ClusterMap,
    voters_wanted,
)
from polynya.stream.features.placement.commands import NodeState

REPLICAS = (1, 3, 5)
_HOLDING = (NodeState.ACTIVE, NodeState.CORDONED, NodeState.DRAINING)
_SHOWN = 6


def unknown(now: ClusterMap, node: int) -> str:
    """Refuse a node that does not exist or was removed."""
    record = now.nodes.get(node)
    if record is None:
        return f"there is no node {node}; the nodes are {_listed(now.members)}"
    return f"node {node} was removed" if record.state == NodeState.REMOVED else ""


def _silent(now: ClusterMap, node: int, why: str) -> str:
    """Refuse an operation that a read replica does not support."""
    return f"node {node} is a read replica: {why}" if now.nodes[node].reader else ""


def promoting(now: ClusterMap, observed: ClusterObservation, node: int) -> str:
    """Check the promotion of a read replica to a voting node."""
    found = unknown(now, node) or _on_its_way(now, node, NodeState.DRAINING)
    if found or not now.nodes[node].reader:
        return found
    return "" if node in observed.up else f"node {node} does not answer"


def cordoning(now: ClusterMap, node: int) -> str:
    """Check cordoning a node."""
    return unknown(now, node) or _on_its_way(now, node, NodeState.CORDONED)


def draining(now: ClusterMap, observed: ClusterObservation, node: int) -> str:
    """Check draining: another node must be able to lead each of the node's groups."""
    found = unknown(now, node) or _on_its_way(now, node, NodeState.DRAINING)
    if found:
        return found
    alone = []
    for group, placement in now.groups.items():
        if node not in placement.voters:
            continue
        others = [
            each
            for each in placement.voters
            if each != node and each in observed.up and now.nodes[each].state < NodeState.DRAINING
        ]
        if not others or not _majority(placement.voters, observed.up):
            alone.append(group)
    return (
        f"no other node could lead {_groups(alone)}: too few of the other replicas are up and not "
        "draining"
        if alone
        else ""
    )


def emptying(now: ClusterMap, observed: ClusterObservation, node: int) -> str:
    """Check emptying: each replica needs another node, and no group may lose its majority
    meanwhile."""
    found = unknown(now, node)
    if found:
        return found
    if now.nodes[node].reader:
        return ""  # no group depends on it
    able = [
        number for number in now.voting if now.nodes[number].state in _HOLDING and number != node
    ]
    needed = min(now.replicas, len(able) + (now.nodes[node].state in _HOLDING))
    if len(able) < needed:
        return (
            f"{needed} replicas of each group need {needed} nodes, and without node {node} there "
            f"are {len(able)}; add a node first, or configure "
            "fewer replicas: polynya cluster rebalance --replicas "
            f"{max(each for each in REPLICAS if each <= max(len(able), 1))}"
        )
    held = [group for group, placement in now.groups.items() if node in placement.goal]
    return _leaderless(observed, held) or _without(now, observed, node, held)


def moving(
    now: ClusterMap, observed: ClusterObservation, group: int, source: int, target: int
) -> str:
    """Check moving one group's replica between two nodes."""
    if group not in now.groups:
        return f"there is no group {group}; the groups are 0 to {max(now.groups, default=0)}"
    found = unknown(now, source) or unknown(now, target)
    found = found or _silent(
        now,
        source,
        "its copies do not vote and cannot be moved; 'polynya cluster remove' removes the node",
    )
    found = found or _silent(
        now,
        target,
        f"it has the group without a vote; 'polynya cluster promote {target}' makes it a voting "
        "node",
    )
    if found:
        return found
    placement = now.groups[group]
    if placement.goal == tuple(sorted({*placement.voters, target} - {source})):
        return ""  # in progress, or done
    if not is_at_rest(placement):
        return (
            f"group {group} is moving from nodes {_listed(placement.voters)} to "
            f"{_listed(placement.goal)}; wait until the move is complete"
        )
    if source not in placement.voters:
        return (
            f"node {source} has no replica of group {group}; nodes {_listed(placement.voters)} "
            "have one"
        )
    if target in placement.voters:
        return f"node {target} has a replica of group {group} already"
    if now.nodes[target].state != NodeState.ACTIVE:
        return (
            f"node {target} is {NodeState.NAMES[now.nodes[target].state]}, and gets no new replicas"
        )
    if target not in observed.up:
        return f"node {target} does not answer"
    goal = {*placement.voters, target} - {source}
    return (
        _leaderless(observed, [group])
        or _quorum(placement.voters, goal, observed, group)
        or _crowding(now, group, goal)
    )


def transferring(now: ClusterMap, observed: ClusterObservation, group: int, target: int) -> str:
    """Check the transfer of a group's leadership."""
    if group not in now.groups:
        return f"there is no group {group}; the groups are 0 to {max(now.groups, default=0)}"
    found = unknown(now, target) or _silent(now, target, "it cannot lead a group")
    if found:
        return found
    placement = now.groups[group]
    if target not in placement.goal or target not in placement.voters:
        return (
            f"node {target} has no vote in group {group}; nodes {_listed(placement.voters)} have "
            "one"
        )
    if now.nodes[target].state >= NodeState.DRAINING:
        return (
            f"node {target} is {NodeState.NAMES[now.nodes[target].state]}, and cannot lead a group"
        )
    if target not in observed.up:
        return f"node {target} does not answer"
    if group not in observed.groups:
        return f"group {group} has no leader at the moment to hand over; retry"
    return (
        ""
        if target in observed.groups[group].caught_up
        else f"node {target} is behind in group {group}; wait until it has caught up"
    )


def replacing(
    now: ClusterMap, observed: ClusterObservation, node: int, successor: int, peer: str = ""
) -> str:
    """Check replacing a node whose disk is lost: the other replicas must suffice. `peer`: the new
    node's address; empty: the old one's."""
    found = unknown(now, node) or _silent(
        now, node, "start it on an empty disk under its id, and it copies every group again"
    )
    if found:
        return found
    if successor in now.nodes and now.nodes[successor].replaces != node:
        return (
            f"node id {successor} is taken; a replacement node needs a new id, such as "
            f"{max(now.nodes) + 1}"
        )
    heirs = [
        each.id
        for each in now.nodes.values()
        if each.replaces == node and each.id != successor and each.state != NodeState.REMOVED
    ]
    if heirs:
        again = f"'polynya cluster replace-disk {node} --id {heirs[0]}' prints its settings again"
        return (
            f"node {heirs[0]} already replaces node {node}: start the replacement on an empty "
            f"disk; {again}"
        )
    held = [group for group, placement in now.groups.items() if node in placement.goal]
    lone = [group for group in held if now.groups[group].voters == (node,)]
    if lone:
        return f"node {node} is the last voter of {_groups(lone)}: no other node has the data"
    if node in observed.up and successor not in now.nodes and peer in ("", now.nodes[node].peer):
        return (
            f"node {node} is up, and no other node can use its address: stop it first to replace "
            "its disk, or give another --peer and "
            "--http. A replacement cannot be undone"
        )
    without = [
        group
        for group in held
        if not _majority(now.groups[group].voters, set(observed.up) - {node})
    ]
    return (
        f"{_groups(without)} would have no majority without node {node}: start its other nodes "
        "first"
        if without
        else ""
    )


def balancing(now: ClusterMap, replicas: int) -> str:
    """Check rebalancing. `replicas` 0: unchanged."""
    able = [number for number in now.voting if now.nodes[number].state in _HOLDING]
    if replicas and replicas not in REPLICAS:
        return f"{replicas} replicas are not supported; choose 1, 3 or 5"
    if replicas > len(able):
        return f"{replicas} replicas need {replicas} nodes; there are {len(able)}"
    return ""


def _crowding(now: ClusterMap, group: int, goal: set[int]) -> str:
    """Refuse a move that zone balancing would revert."""
    before = now.groups[group].voters
    if not zones.are_known(now) or zones.unevenness(now.nodes, goal) <= zones.unevenness(
        now.nodes, before
    ):
        return ""
    mates, targets = zones.better(now.nodes, goal, now.active)
    if not targets:
        return ""
    zone, free = now.nodes[mates[0]].zone, sorted({now.nodes[node].zone for node in targets})
    return (
        f"replicas are spread over zones: in group {group} zone {zone} would hold nodes "
        f"{_listed(mates)}, while zone {free[0]} holds fewer; "
        "choose another target"
    )


def _on_its_way(now: ClusterMap, node: int, state: int) -> str:
    """Return why the node cannot go back to a lower state."""
    is_so = now.nodes[node].state
    if is_so > state and not now.nodes[node].peer:  # its replacement has its address
        return (
            f"node {node} is already {NodeState.NAMES[is_so]}, permanently: another node replaces "
            "it"
        )
    if is_so > state:
        return (
            f"node {node} is already {NodeState.NAMES[is_so]}; run 'polynya cluster uncordon "
            f"{node}' first"
        )
    return ""


def _without(now: ClusterMap, observed: ClusterObservation, node: int, held: list[int]) -> str:
    """Return what the node's groups would lack once it is empty."""
    able = sum(now.nodes[number].state in _HOLDING for number in now.voting if number != node)
    active = now.active
    for group in held:
        placement = now.groups[group]
        after = set(placement.goal) - {node}
        fit = [number for number in active if number not in placement.goal]
        there = [number for number in fit if number in observed.up]
        if there:
            after |= {there[0]}
        elif len(after) < voters_wanted(
            META_VOTERS_MAX if group == META_GROUP else now.replicas, able
        ):
            why = ", ".join(
                f"{number} {_why(now, observed, number)}"
                for number in now.voting
                if number not in placement.goal
            )
            return f"group {group} cannot move off node {node}" + (
                f": node {why}" if why else "; add a node first"
            )
        found = _quorum(placement.voters, after, observed, group)
        if found:
            return found
    return ""


def _why(now: ClusterMap, observed: ClusterObservation, node: int) -> str:
    state = now.nodes[node].state
    return (
        f"is {NodeState.NAMES[state]}"
        if state != NodeState.ACTIVE
        else "does not answer"
        if node not in observed.up
        else "accepts no replica"
    )


def _leaderless(observed: ClusterObservation, groups: Iterable[int]) -> str:
    without = [group for group in groups if group not in observed.groups]
    return (
        f"{_groups(without)} {'has' if len(without) == 1 else 'have'} no leader now; see 'polynya "
        "cluster health'"
        if without
        else ""
    )


def _quorum(
    before: Iterable[int], after: Iterable[int], observed: ClusterObservation, group: int
) -> str:
    for voters in (tuple(before), tuple(sorted(after))):
        if not _majority(voters, observed.up):
            down = [node for node in voters if node not in observed.up]
            return (
                f"group {group} would have no majority: of its nodes {_listed(voters)}, "
                f"{_listed(down)} do not answer"
            )
    return ""


def _majority(voters: Iterable[int], up: Iterable[int]) -> bool:
    voters = set(voters)
    return len(voters & set(up)) > len(voters) // 2


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"


def _groups(groups: list[int]) -> str:
    shown = ", ".join(map(str, groups[:_SHOWN])) + (" …" if len(groups) > _SHOWN else "")
    return f"group {shown}" if len(groups) == 1 else f"groups {shown}"
