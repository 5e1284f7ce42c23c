"""Operators' changes to a cluster: each is checked against the current state and written to the
map; the controller executes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from polynya.base.errors import NotLeader, OutcomeUnknown, Unavailable
from polynya.cluster.controller import Proposing
from polynya.cluster.map_cache import ClusterMapCache
from polynya.cluster.reconfiguration import Reconfiguration
from polynya.cluster.status import ClusterView, observed
from polynya.config.cluster_settings import checked_node
from polynya.front.http.api.cluster import ClusterRefused, NewNode
from polynya.replica import refusals
from polynya.replica.placement_steps import ClusterObservation
from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import META_GROUP, ClusterMap
from polynya.stream.features.placement.commands import (
    NODE_NUMBER_MAX,
    NodeAdd,
    NodePromote,
    NodeRecord,
    NodeSet,
    NodeState,
    PlaceGroup,
    ReaderAdd,
    SetBalancing,
)
from polynya.stream.replies import Code

STATES = {
    "cordon": NodeState.CORDONED,
    "uncordon": NodeState.ACTIVE,
    "drain": NodeState.DRAINING,
    "remove": NodeState.LEAVING,
}


class ClusterOperations:
    """Cluster operations, on any core of a cluster node."""

    def __init__(
        self,
        view: ClusterView,
        maps: ClusterMapCache,
        reconfiguration: Reconfiguration,
        service: Proposing,
        cluster_id: str,
    ) -> None:
        self._view, self._maps, self._reconfiguration, self._service, self._cluster_id = (
            view,
            maps,
            reconfiguration,
            service,
            cluster_id,
        )

    async def look(self) -> dict[str, Any]:
        return await self._view.look()

    async def health(self) -> dict[str, Any]:
        return await self._view.health()

    async def add(self, node: NewNode) -> dict[str, Any]:
        """Add a node, or one that replaces another."""
        now, seen = await self._see()
        if node.replaces and node.reader:
            raise ClusterRefused("INVALID_REQUEST", "a read replica cannot replace another node")
        if node.replaces:
            refuse(refusals.replacing(now, seen, node.replaces, node.id, node.peer))
            # a repeated request: the replacement's own record
            old = now.nodes.get(node.id, now.nodes[node.replaces])
            node = msgspec.structs.replace(
                node,
                peer=node.peer or old.peer,
                http=node.http or old.http,
                zone=node.zone or old.zone,
            )
        number = node.id or max(now.nodes, default=0) + 1
        if not node.peer or not node.http:
            raise ClusterRefused(
                "INVALID_REQUEST",
                "a node needs peer (HOST:PORT, for the other nodes) and http (the URL for clients)",
            )
        try:
            parsed = checked_node(str(number), node.peer, node.http, node.zone)
        except ValueError as error:
            raise ClusterRefused("INVALID_REQUEST", str(error)) from None
        if number > NODE_NUMBER_MAX:
            raise ClusterRefused(
                "CLUSTER_REFUSED", f"all node numbers up to {NODE_NUMBER_MAX} have been used"
            )
        record = NodeRecord(
            parsed.id,
            parsed.peer,
            parsed.http,
            parsed.zone,
            replaces=node.replaces,
            reader=node.reader,
        )
        command = (
            ReaderAdd(record)
            if node.reader
            else NodeAdd(record, node.rebalance and not node.replaces)
        )
        epoch = await self._write(command)
        peers = [
            each
            for each in now.nodes.values()
            if each.peer and each.id in now.members and each.id not in (node.replaces, number)
        ]
        return {
            "epoch": epoch,
            "cluster": self._cluster_id,
            "groups": max(now.groups),
            "node": _shown(record),
            "peers": [
                _shown(each) for each in sorted(peers, key=lambda each: each.id not in seen.up)
            ],
        }

    async def set_node(self, node: int, act: str, replicas: bool) -> dict[str, Any]:
        now, seen = await self._see()
        unknown = refusals.unknown(now, node)
        if unknown:
            raise ClusterRefused("NODE_NOT_FOUND", unknown)
        wanted = NodeState.EMPTYING if replicas else STATES[act]
        if act == "cordon":
            refuse(refusals.cordoning(now, node))
        elif act == "drain" and not replicas:
            refuse(refusals.draining(now, seen, node))
        elif act != "uncordon" and now.nodes[node].state != wanted:
            refuse(refusals.emptying(now, seen, node))
        return {"epoch": await self._write(NodeSet(node, wanted)), "node": node}

    async def promote(self, node: int, rebalance: bool) -> dict[str, Any]:
        """Promote a read replica to a voting node."""
        now, seen = await self._see()
        unknown = refusals.unknown(now, node)
        if unknown:
            raise ClusterRefused("NODE_NOT_FOUND", unknown)
        refuse(refusals.promoting(now, seen, node))
        epoch = now.epoch
        if now.nodes[node].reader:
            epoch = await self._write(NodePromote(node, rebalance))
        return {"epoch": epoch, "node": node}

    async def move(self, group: int, source: int, target: int) -> dict[str, Any]:
        now, seen = await self._see()
        self._check_group(now, group)
        refuse(refusals.moving(now, seen, group, source, target))
        placement = now.groups[group]
        goal = tuple(sorted({*placement.voters, target} - {source}))
        first = (
            target
            if placement.first == source and now.nodes[target].state < NodeState.DRAINING
            else placement.first
        )
        epoch = now.epoch
        if goal != placement.goal:
            epoch = await self._write(
                PlaceGroup(group, goal, first if first in goal else goal[0], placement.epoch)
            )
        return {"epoch": epoch, "group": group, "goal": list(goal)}

    async def transfer(self, group: int, target: int) -> dict[str, Any]:
        now, seen = await self._see()
        self._check_group(now, group)
        refuse(refusals.transferring(now, seen, group, target))
        placement = now.groups[group]
        epoch, pending = now.epoch, ""
        written = placement.first != target
        if written:
            epoch = await self._write(PlaceGroup(group, placement.goal, target, placement.epoch))
        if seen.groups[group].leader != target:
            pending = await self._hand_over(group, target, begun=written)
        return {"epoch": epoch, "group": group, "first": target, "pending": pending}

    async def rebalance(self, replicas: int) -> dict[str, Any]:
        now, _ = await self._see()
        refuse(refusals.balancing(now, replicas))
        return {"epoch": await self._write(SetBalancing(True, replicas))}

    async def _hand_over(self, group: int, target: int, *, begun: bool) -> str:
        """Transfer a group's leadership. Return why it is pending, or "". `begun` means that the
        map names the target already: the transfer follows from the map, so a failure is not an
        error. Otherwise raise `ClusterRefused`, Unavailable or OutcomeUnknown."""
        try:
            refusal = await self._reconfiguration.transfer(group, target)
        except (Unavailable, OutcomeUnknown) as fault:
            if not begun:
                raise
            why = str(fault)
        else:
            why = "" if refusal is None else refusal.name.lower().replace("_", " ")
        if why and not begun:
            refuse(f"group {group} cannot transfer its leadership: {why}")
        return f"the leadership of group {group} is not transferred yet: {why}" if why else ""

    async def _see(self) -> tuple[ClusterMap, ClusterObservation]:
        now = self._maps.now
        if not now.epoch:
            raise ClusterRefused(
                "CLUSTER_STARTING",
                "the cluster has no map yet: it is written once all nodes are connected and run a "
                "release with maps",
            )
        return now, observed(await self._view.gather())

    def _check_group(self, now: ClusterMap, group: int) -> None:
        if group not in now.groups:
            raise ClusterRefused(
                "GROUP_NOT_FOUND",
                f"there is no group {group}; the groups are 0 to {max(now.groups)}",
            )

    async def _write(self, command: Command) -> int:
        """Write a command to the map and return the new epoch. This core's cached map follows
        later."""
        try:
            reply = await self._service.call(META_GROUP, command)
        except NotLeader:
            raise ClusterRefused("UNAVAILABLE", await self._leaderless()) from None
        if reply.code == Code.NOT_FOUND:
            raise ClusterRefused("NODE_NOT_FOUND", str(reply.detail))
        if reply.code >= Code.NOT_FOUND:
            raise ClusterRefused("CLUSTER_REFUSED", str(reply.detail))
        return int(reply.detail)

    async def _leaderless(self) -> str:
        """Return why the map cannot be written now."""
        voters, up = (
            self._maps.now.groups[META_GROUP].voters,
            observed(await self._view.gather()).up,
        )
        away = [node for node in voters if node not in up]
        why = (
            f"it has no quorum of its nodes {_listed(voters)}; down: {_listed(away)}"
            if 2 * len(away) >= len(voters)
            else "an election is in progress"
        )
        return (
            f"group {META_GROUP}, which holds the cluster map, has no leader: {why}; nothing was "
            "changed"
        )


class NoCluster:
    """Cluster operations of a standalone node."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    async def look(self) -> dict[str, Any]:
        return await self._view.look()

    async def health(self) -> dict[str, Any]:
        return await self._view.health()

    async def add(self, node: NewNode) -> dict[str, Any]:
        raise _alone()

    async def set_node(self, node: int, act: str, replicas: bool) -> dict[str, Any]:
        raise _alone()

    async def promote(self, node: int, rebalance: bool) -> dict[str, Any]:
        raise _alone()

    async def move(self, group: int, source: int, target: int) -> dict[str, Any]:
        raise _alone()

    async def transfer(self, group: int, target: int) -> dict[str, Any]:
        raise _alone()

    async def rebalance(self, replicas: int) -> dict[str, Any]:
        raise _alone()


def refuse(reason: str) -> None:
    """Raise `ClusterRefused` if there is a reason."""
    if reason:
        raise ClusterRefused("CLUSTER_REFUSED", reason)


def _alone() -> ClusterRefused:
    return ClusterRefused(
        "CLUSTER_REFUSED",
        "this is a standalone node; start a cluster on empty folders and copy the streams into it",
    )


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))


def _shown(record: NodeRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "peer": record.peer,
        "http": record.http,
        "zone": record.zone,
        "role": "reader" if record.reader else "voter",
    }
