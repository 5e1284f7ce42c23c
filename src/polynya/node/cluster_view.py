"""What a cluster looks like: its nodes, and where each group is led and how far each replica is. Any node answers, for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from polynya import __version__
from polynya.base.errors import PolynyaError
from polynya.node.cluster_settings import ClusterConfig
from polynya.node.start import CoreStart
from polynya.transport import Reply, Transport, address

KIND_STATUSES = 1004  # beside those of health, access and farewell
GATHER_SECONDS = 2.0  # a core that does not answer in this time counts as away
LAG_ENTRIES = 10_000  # a replica so far behind is none to count on yet


class Replica(msgspec.Struct, frozen=True):
    """A member of one group, as its own node sees it."""

    group: int
    role: str
    term: int
    leader: int  # node; 0 when it knows none
    commit: int
    applied: int
    last: int


class Told(msgspec.Struct, frozen=True):
    """What one core says."""

    release: str
    replicas: list[Replica]


class ClusterView:
    """Of one core. `replicas` are those of its groups."""

    def __init__(self, start: CoreStart, transport: Transport | None, replicas: Callable[[], list[Replica]]) -> None:
        self._start = start
        self._transport = transport
        self._replicas = replicas
        if transport is not None:
            transport.on(KIND_STATUSES, self._hear)

    async def look(self) -> dict[str, Any]:
        """`GET /v1/cluster`."""
        cluster = self._start.config.cluster
        told = await self._ask()
        nodes, groups = described(cluster, self._start.groups, told)
        return {
            "cluster": self._start.birth.cluster_id,
            "node": self._start.birth.node,
            "nodes": [{"id": node.id, "http": node.http, "peer": node.peer, **nodes[node.id]} for node in cluster.nodes],
            "groups": groups,
            "problems": list(problems(cluster, nodes, groups)),
        }

    async def _ask(self) -> dict[tuple[int, int], Told]:
        """What each core of each node says; those that do not answer are left out."""
        start = self._start
        own = start.birth.node
        told = {(own, start.core): self._told()}
        if self._transport is None:
            return told
        places = {(own, core): core for core in self._transport.others}
        raft = self._transport.raft
        for node in start.config.cluster.others:
            if raft is not None and raft.is_there(node.id):
                places |= {(node.id, core): address(node.id, core) for core in range(raft.cores_of(node.id))}

        async def ask(transport: Transport, where: tuple[int, int], place: int) -> None:
            try:
                async with asyncio.timeout(GATHER_SECONDS):
                    told[where] = msgspec.msgpack.decode(await transport.call(place, KIND_STATUSES, b""), type=Told)
            except (PolynyaError, TimeoutError):
                return

        await asyncio.gather(*(ask(self._transport, where, place) for where, place in places.items()))
        return told

    def _told(self) -> Told:
        return Told(__version__, self._replicas())

    def _hear(self, body: bytes, reply: Reply, sender: int) -> None:
        reply(msgspec.msgpack.encode(self._told()))


def described(
    cluster: ClusterConfig, groups: int, told: dict[tuple[int, int], Told]
) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """Nodes by id, and all groups, from what the cores (node, core) say. Both are empty for a node by itself."""
    nodes = {node.id: _node(node.id, told) for node in cluster.nodes}
    return nodes, [_group(group, nodes, told) for group in range(groups + 1)] if cluster.is_on else []


def problems(cluster: ClusterConfig, nodes: dict[int, dict[str, Any]], groups: list[dict[str, Any]]) -> Iterable[str]:
    """What keeps the cluster from being well, for people."""
    for node in cluster.nodes:
        if not nodes[node.id]["there"]:
            yield f"node {node.id} does not answer"
    leaderless = [group["group"] for group in groups if not group["leader"]]
    if leaderless:
        yield f"no leader: {_groups(leaderless)}"
    for node in cluster.nodes:
        behind = [group["group"] for group in groups if nodes[node.id]["there"] and group["behind"].get(str(node.id), 0) > LAG_ENTRIES]
        if behind:
            yield f"node {node.id} is more than {LAG_ENTRIES} entries behind: {_groups(behind)}"


def _node(node: int, told: dict[tuple[int, int], Told]) -> dict[str, Any]:
    parts = [part for (where, _), part in told.items() if where == node]
    led = sum(replica.role == "leader" for part in parts for replica in part.replicas)
    return {"there": bool(parts), "release": parts[0].release if parts else None, "cores": len(parts), "leads": led}


def _group(group: int, nodes: Iterable[int], told: dict[tuple[int, int], Told]) -> dict[str, Any]:
    """As its leader says, and where that is away, as the newest of the others."""
    found = {where: replica for (where, _), part in told.items() for replica in part.replicas if replica.group == group}
    leaders = {where: replica for where, replica in found.items() if replica.role == "leader"}
    leader = max(leaders, key=lambda where: leaders[where].term, default=0)
    newest = max((replica.commit for replica in found.values()), default=0)
    return {
        "group": group,
        "leader": leader,
        "term": max((replica.term for replica in found.values()), default=0),
        "commit": newest,
        "behind": {str(node): max(0, newest - found[node].applied) for node in nodes if node in found},
    }


def _groups(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
    return f"group {shown}" if len(numbers) == 1 else f"groups {shown}"
