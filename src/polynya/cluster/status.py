"""The state of the cluster: its nodes, each group's leader and each replica's lag. Any node answers
for all."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from polynya import __version__
from polynya.base.errors import PolynyaError
from polynya.base.levels import LEVEL
from polynya.base.msgpack import UNREADABLE
from polynya.cluster.every_core import ask_core, other_cores
from polynya.cluster.map_cache import ClusterMapCache
from polynya.config.core_start import CoreStart
from polynya.raft import Configuration, Role, Settings, Status
from polynya.replica import zones
from polynya.replica.memory import waits
from polynya.replica.placement_steps import ClusterObservation, GroupView
from polynya.replica.planner import is_at_rest
from polynya.stream.features.placement.cluster_map import META_GROUP, ClusterMap
from polynya.stream.features.placement.commands import NodeState
from polynya.transport import Reply, Transport

KIND_STATUSES = 1004  # message kind between cores
GATHER_SECONDS = 2.0  # a core that takes longer counts as down
HEALTH_SECONDS = 0.5  # maximum age of a cached health answer
TRUST_SHOWN = 3  # reasons shown for each unreachable node
LAG_ENTRIES = 10_000  # a replica further behind is reported as a problem
CLOCK_SECONDS = 5.0  # larger differences are reported
KNOWS_MAPS = 1  # version of the map format
CAUGHT_UP_ENTRIES = Settings().caught_up_entries


class Replica(msgspec.Struct, frozen=True):
    """A replica as its own node sees it. Only leaders fill `configuration`, `settled` and
    `caught_up`."""

    group: int
    role: str
    term: int
    leader: int  # node; 0 if unknown
    commit: int
    applied: int
    last: int
    configuration: Configuration | None = None
    settled: bool = False
    caught_up: list[int] = []
    # after a disk loss, without a vote: nodes that must answer first
    forgotten: list[int] | None = None


class CoreStatus(msgspec.Struct, frozen=True):
    """The status report of one core. `maps`: 0 from a release without maps; `epoch`: of its newest
    map."""

    release: str
    replicas: list[Replica]
    maps: int = 0
    epoch: int = 0
    lost: list[int] = []  # groups with a voting replica there whose data is lost
    level: int = 1  # highest feature level of its release
    works_at: int = 1  # lowest feature level of the groups it leads
    lags: dict[
        int, tuple[int, float]
    ] = {}  # read replica -> (entries, seconds) behind, for the groups led by it
    store: str = ""  # why the object store is unusable
    disk: str = ""  # warning: disk nearly full
    certificate: str = ""  # warning: the node certificate expires, or a new one is unusable
    refusals: dict[int, str] = {}  # node -> why one rejects the other's connection
    twins: dict[int, str] = {}  # node -> address of a second process with the same id
    clock: float = 0.0  # seconds since 1970; 0 from a release without it
    unheard: list[int] = []  # members without a connection to this core
    # least seconds by which that clock is ahead of the asking node's; never sent
    ahead: float = 0.0


ByCore = dict[tuple[int, int], CoreStatus]
"""The report of each (node, core); those that did not answer are missing."""


class MemberReport(msgspec.Struct, frozen=True):
    """The facts that one core of a cluster adds to the view; of a standalone node there are
    none."""

    replicas: Callable[[], list[Replica]] = list
    lost: Callable[[], list[int]] = list  # groups whose replica here has lost its data
    works_at: Callable[[], int] = lambda: LEVEL
    lags: Callable[[], dict[int, tuple[int, float]]] = dict  # of read replicas, by node
    certificate: Callable[[], str | None] = str


class ClusterView:
    """The cluster view of one core. `own` reports on it; `maps` is None on a standalone node."""

    def __init__(
        self,
        start: CoreStart,
        transport: Transport | None,
        own: MemberReport,
        maps: ClusterMapCache | None,
    ) -> None:
        self._start = start
        self._transport = transport
        self._own = own
        self._maps = maps
        self.works_at = own.works_at
        self.store: Callable[[], str] = str
        self.disk: Callable[[], str] = str
        self._asking: asyncio.Task[dict[str, Any]] | None = None  # shared by health requests
        self._asked = 0.0
        self.clock = time.time
        if transport is not None:
            transport.on(KIND_STATUSES, self._hear)

    async def look(self) -> dict[str, Any]:
        """Answer `GET /v1/cluster`."""
        identity = self._start.identity
        shown: dict[str, Any] = {
            "cluster": identity.cluster_id,
            "node": identity.node,
            "epoch": 0,
            "replicas": 1,
            "rebalancing": False,
        }
        if self._maps is None:
            return {**shown, "nodes": [], "groups": [], "problems": [], "notes": []}
        statuses = await self.gather()
        now = self._maps.now
        nodes, groups = described(now, identity.groups, statuses)
        shown["level"] = min(part.works_at for part in statuses.values())
        shown |= {"epoch": now.epoch, "replicas": now.replicas, "rebalancing": now.balancing}
        found = (
            list(problems(now, nodes, groups))
            if nodes
            else [
                f"node {identity.node} has no cluster map yet: check that it was added ('polynya "
                "cluster add')"
            ]
        )
        found += [
            f"read replica {number} is not added to the cluster yet"
            for number in identity.readers
            if number not in now.nodes
        ]
        notes = [
            *zones.notes(now),
            *reader_notes(now, nodes, identity.groups),
            *store_notes(nodes),
            *disk_notes(nodes),
            *clock_notes(statuses),
            *trust_notes(nodes, statuses),
        ]
        return {
            **shown,
            "nodes": list(nodes.values()),
            "groups": groups,
            "problems": found,
            "notes": notes,
        }

    async def health(self) -> dict[str, Any]:
        """Answer `GET /v1/cluster/health`: problems, notes and the number of nodes. Anyone may
        request it, so the answer is cached."""
        loop = asyncio.get_running_loop()
        if self._asking is None or (
            self._asking.done() and loop.time() - self._asked > HEALTH_SECONDS
        ):
            self._asking, self._asked = loop.create_task(self.look()), loop.time()
        statuses = await asyncio.shield(self._asking)
        return {
            "healthy": not statuses["problems"],
            "nodes": len(statuses["nodes"]),
            "problems": statuses["problems"],
            "notes": statuses["notes"],
        }

    async def gather(self) -> ByCore:
        """Ask all cores of all nodes; those that do not answer are missing."""
        start = self._start
        own = start.identity.node
        statuses = {(own, start.core): self._own_status()}
        if self._transport is None:
            return statuses
        core_ids = other_cores(self._transport, own)

        async def ask(transport: Transport, where: tuple[int, int], core_id: int) -> None:
            asked = self.clock()
            try:
                async with asyncio.timeout(GATHER_SECONDS):
                    answer = await ask_core(transport, core_id, KIND_STATUSES)
                part = msgspec.msgpack.decode(answer, type=CoreStatus)
            except (PolynyaError, TimeoutError, *UNREADABLE):
                return
            if not math.isfinite(part.clock):  # NaN or infinite: treated as not sent
                part = msgspec.structs.replace(part, clock=0.0)
            statuses[where] = msgspec.structs.replace(
                part, ahead=_ahead(part.clock, asked, self.clock())
            )

        await asyncio.gather(
            *(ask(self._transport, where, core_id) for where, core_id in core_ids.items())
        )
        return statuses

    def _own_status(self) -> CoreStatus:
        links = None if self._transport is None else self._transport.node_links
        return CoreStatus(
            __version__,
            self._own.replicas(),
            KNOWS_MAPS,
            0 if self._maps is None else self._maps.now.epoch,
            self._own.lost(),
            LEVEL,
            self.works_at(),
            self._own.lags(),
            self.store(),
            self.disk(),
            self._own.certificate() or "",
            {} if links is None else links.refusals,
            {} if links is None else links.twins,
            self.clock(),
            self._unheard(),
        )

    def _unheard(self) -> list[int]:
        raft = None if self._transport is None else self._transport.raft
        if raft is None or self._maps is None:
            return []
        return [
            node
            for node in self._maps.now.members
            if node != self._start.identity.node and not raft.is_up(node)
        ]

    def _hear(self, body: bytes, reply: Reply, sender: int) -> None:
        reply(msgspec.msgpack.encode(self._own_status()))


def replica_of(group: int, status: Status, node: int) -> Replica:
    """Return the reported form of a local replica."""
    leads = status.role is Role.LEADER
    near = [
        each
        for each, peer in status.peers.items()
        if not peer.lost and peer.match and peer.match + CAUGHT_UP_ENTRIES >= status.last
    ]
    return Replica(
        group,
        status.role.name.lower(),
        status.term,
        status.leader,
        status.commit,
        status.applied,
        status.last,
        status.configuration if leads else None,
        status.settled and leads,
        sorted([node, *near]) if leads else [],
        None if status.forgotten is None else list(status.forgotten),
    )


def observed(statuses: ByCore) -> ClusterObservation:
    """Return the planner's input from the reports."""
    best: dict[int, tuple[int, Replica]] = {}
    for (node, _), part in statuses.items():
        for replica in part.replicas:
            if replica.configuration is not None and (
                replica.group not in best or best[replica.group][1].term < replica.term
            ):
                best[replica.group] = (node, replica)
    groups = {
        group: GroupView(node, replica.configuration, replica.settled, frozenset(replica.caught_up))
        for group, (node, replica) in best.items()
        if replica.configuration is not None
    }
    return ClusterObservation(frozenset(node for node, _ in statuses), groups)


def described(
    now: ClusterMap, groups: int, statuses: ByCore
) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """Return the nodes by id, and all groups."""
    shown = [_group(now, group, statuses) for group in range(groups + 1)]
    leaderless = any(not group["leader"] for group in shown)
    nodes = {number: _node(now, number, statuses) for number in now.members}
    for number, node in nodes.items():
        node["condition"] = _condition(now, number, node, unsure=leaderless and not node["up"])
    return nodes, shown


def _condition(now: ClusterMap, number: int, node: dict[str, Any], *, unsure: bool) -> str:
    """Return the node's state, or whether a drain or emptying is complete.
    `unsure`: the node is down and some group has no known leader, which may be this node."""
    state = now.nodes[number].state
    if state == NodeState.DRAINING and not node["leader_of"] and not unsure:
        return "drained"
    if state == NodeState.EMPTYING and not node["leader_of"] and not unsure:
        # every node follows the meta group
        held = any(
            group != META_GROUP or number in now.placed_on(group) for group in now.groups_of(number)
        )
        return "emptying" if held else "emptied"
    return NodeState.NAMES[state]


def problems(
    now: ClusterMap, nodes: dict[int, dict[str, Any]], groups: list[dict[str, Any]]
) -> Iterable[str]:
    """Yield the problems of the cluster for operators. `reader_notes` covers read replicas."""
    away = [number for number in nodes if not nodes[number]["up"] and not now.nodes[number].reader]
    for number in away:
        yield f"node {number} does not answer"
    leaderless = [group["group"] for group in groups if not group["leader"]]
    if leaderless:
        yield f"no leader: {_groups(leaderless)}"
    yield from _memory_problems(now, nodes, leaderless)
    yield from _lag_problems(now, nodes, groups)
    yield from _node_problems(now, nodes)
    yield from _placement_problems(now, nodes, away)


def _memory_problems(
    now: ClusterMap, nodes: dict[int, dict[str, Any]], leaderless: list[int]
) -> Iterable[str]:
    """Yield the problems of nodes that lost their disk and do not vote yet."""
    for number, node in nodes.items():
        waiting = waits(
            {group: unheard for group, unheard in node["forgotten"].items() if group in leaderless}
        )
        if waiting:
            yield f"node {number} {waiting}"
        learning = [
            group
            for group in node["forgotten"]
            if group not in leaderless
            and group in now.groups
            and number in now.groups[group].voters
        ]
        if learning:
            yield (
                f"node {number} has no vote yet, as it started with an empty disk and is catching "
                f"up: {_groups(learning)}"
            )


def _lag_problems(
    now: ClusterMap, nodes: dict[int, dict[str, Any]], groups: list[dict[str, Any]]
) -> Iterable[str]:
    for number, node in nodes.items():
        behind = [
            group["group"]
            for group in groups
            if node["up"] and group["behind"].get(str(number), 0) > LAG_ENTRIES
        ]
        if behind and not now.nodes[number].reader:
            yield f"node {number} is more than {LAG_ENTRIES} entries behind: {_groups(behind)}"


def _node_problems(now: ClusterMap, nodes: dict[int, dict[str, Any]]) -> Iterable[str]:
    """Yield the problems of a node's connections and of its disk."""
    for number, node in nodes.items():
        if unheard := [
            each
            for each in node["unheard_by"]
            if not (now.nodes[each].reader or now.nodes[number].reader)
        ]:
            yield (
                f"node {number} is up, but not connected to {_named(unheard)}: check the network "
                "between them"
            )
        if node["lost"]:
            yield (
                f"node {number} has lost its data of {_groups(node['lost'])}: polynya cluster "
                f"replace-disk {number}"
            )


def _placement_problems(
    now: ClusterMap, nodes: dict[int, dict[str, Any]], away: list[int]
) -> Iterable[str]:
    """Yield the problems of where replicas are, and of nodes that should have none. `away`: the
    nodes that are down."""
    short = [
        group
        for group, placement in now.groups.items()
        if len(placement.voters) < min(now.wanted(group), now.replicas)
    ]
    if short:
        yield f"fewer than {now.replicas} replicas: {_groups(short)}"
    lacking = [
        group for group, placement in now.groups.items() if set(placement.voters) & set(away)
    ]
    if lacking:
        yield f"under-replicated, as {_nodes(away)} down: {_groups(lacking)}"
    able = [number for number in now.active if nodes[number]["up"]]
    crowded = zones.crowded(now, able, today=True)
    if crowded:
        yield f"more replicas than necessary in one zone, being moved: {_groups(crowded)}"
    for number, record in now.nodes.items():
        if record.state in (NodeState.EMPTYING, NodeState.LEAVING):
            stuck = [
                group
                for group, each in now.groups.items()
                if number in each.goal and is_at_rest(each) and not set(able) - set(each.goal)
            ]
            successor = next(
                (
                    each.id
                    for each in now.nodes.values()
                    if each.replaces == number and each.state == NodeState.ACTIVE
                ),
                0,
            )
            if stuck and successor and not nodes[successor]["up"]:
                yield (
                    f"node {number} waits for its replacement: "
                    f"start node {successor} on an empty disk"
                )
            elif stuck:
                yield f"node {number} cannot be emptied: no other node has room for {_groups(stuck)}"


def reader_notes(now: ClusterMap, nodes: dict[int, dict[str, Any]], groups: int) -> Iterable[str]:
    """Yield the problems of read replicas for operators; writes do not depend on them."""
    for number in sorted(now.readers):
        node = nodes[number]
        if not node["up"]:
            yield f"read replica {number} does not answer"
        elif node["unheard_by"]:
            yield (
                f"read replica {number} is up, but not connected to {_named(node['unheard_by'])}: "
                "check the network between them"
            )
        elif node["replicas"] <= groups:
            yield f"read replica {number} has {node['replicas']} of {groups + 1} groups so far"
        elif node["behind_entries"] > LAG_ENTRIES:
            yield (
                f"read replica {number} is {node['behind_entries']} entries behind, and "
                f"{node['behind_seconds']:.0f} s"
            )


def store_notes(nodes: dict[int, dict[str, Any]]) -> Iterable[str]:
    """Yield the nodes without access to the object store. Written data is safe, and other nodes
    take leadership if they can."""
    for number, node in nodes.items():
        if node["store"]:
            yield f"node {number} and the object store: {node['store']}"


def disk_notes(nodes: dict[int, dict[str, Any]]) -> Iterable[str]:
    """Yield the nodes whose disk is nearly full. They give up leadership and fall behind."""
    return (f"node {number}: {node['disk']}" for number, node in nodes.items() if node["disk"])


def clock_notes(statuses: ByCore) -> Iterable[str]:
    """Yield the nodes whose clock differs from the median by more than `CLOCK_SECONDS`."""
    ahead = {node: part.ahead for (node, _), part in statuses.items() if part.clock}
    first, last = (
        min(ahead, key=lambda node: ahead[node], default=0),
        max(ahead, key=lambda node: ahead[node], default=0),
    )
    if not ahead or ahead[last] - ahead[first] <= CLOCK_SECONDS:
        return
    middle = statistics.median(ahead.values())
    wrong = {
        node: round(seconds - middle)
        for node, seconds in sorted(ahead.items())
        if abs(seconds - middle) > CLOCK_SECONDS
    }
    what = "expiry, certificates and the object store depend on it: check NTP"
    if len(ahead) == 2 or not wrong:  # no majority shows which one is right
        yield (
            f"the clocks of nodes {first} and {last} are {ahead[last] - ahead[first]:.0f} s "
            f"apart; {what}"
        )
        return
    for node, seconds in wrong.items():
        yield (
            f"the clock of node {node} is {abs(seconds)} s "
            f"{'ahead of' if seconds > 0 else 'behind'} the others; {what}"
        )


def _ahead(clock: float, asked: float, answered: float) -> float:
    """Return the least seconds by which `clock` is ahead, read between the local times `asked` and
    `answered`."""
    return 0.0 if not clock else max(clock - answered, 0.0) + min(clock - asked, 0.0)


def trust_notes(nodes: dict[int, dict[str, Any]], statuses: ByCore) -> Iterable[str]:
    """Yield expiring certificates, duplicate node ids and rejected connections between running
    nodes, for operators."""
    twins: dict[int, str] = {}
    for number in nodes:
        yield from {
            f"node {number}: {part.certificate}": None
            for (where, _), part in statuses.items()
            if where == number and part.certificate
        }
    for (where, _), part in sorted(statuses.items()):
        for number, core_id in part.twins.items():
            twins.setdefault(
                number,
                f"a second process at {core_id} uses the id of node {number}, and node {where} "
                "rejects it",
            )
    for _, said in sorted(twins.items()):
        yield f"{said}: node ids must be unique; check cluster.node in its settings"
    for number, node in nodes.items():
        found = {
            (where, part.refusals[number]): None
            for (where, _), part in sorted(statuses.items())
            if number in part.refusals
        }
        for where, reason in list(found)[:TRUST_SHOWN] if not node["up"] else ():
            yield f"node {where} and node {number}: {reason}"


def _node(now: ClusterMap, number: int, statuses: ByCore) -> dict[str, Any]:
    record = now.nodes[number]
    parts = [part for (where, _), part in statuses.items() if where == number]
    led = sum(replica.role == "leader" for part in parts for replica in part.replicas)
    has = sum(len(part.replicas) for part in parts)
    lags = [part.lags[number] for part in statuses.values() if number in part.lags]
    return {
        "id": number,
        "http": record.http,
        "peer": record.peer,
        "zone": record.zone,
        "role": "reader" if record.reader else "voter",
        "state": NodeState.NAMES[record.state],
        "up": bool(parts),
        "release": parts[0].release if parts else None,
        "level": parts[0].level if parts else None,
        "cores": len(parts),
        "leader_of": led,
        "replicas": has if parts else len(now.groups_of(number)),
        "forgotten": {
            replica.group: replica.forgotten
            for part in parts
            for replica in part.replicas
            if replica.forgotten is not None
        },
        "lost": sorted(group for part in parts for group in part.lost),
        "votes": sum(number in placement.voters for placement in now.groups.values()),
        "behind_entries": max((entries for entries, _ in lags), default=0),  # read replicas only
        "behind_seconds": round(max((seconds for _, seconds in lags), default=0.0), 3),
        "store": next((part.store for part in parts if part.store), ""),
        "unheard_by": sorted(
            {
                where
                for (where, _), part in statuses.items()
                if parts and where in now.nodes and number in part.unheard
            }
        ),
        "disk": next((part.disk for part in parts if part.disk), ""),
    }


def _group(now: ClusterMap, group: int, statuses: ByCore) -> dict[str, Any]:
    """Return a group's state from its leader, else from the newest follower."""
    found = {
        where: replica
        for (where, _), part in statuses.items()
        for replica in part.replicas
        if replica.group == group
    }
    leaders = {where: replica for where, replica in found.items() if replica.role == "leader"}
    leader = max(leaders, key=lambda where: leaders[where].term, default=0)
    newest = max((replica.commit for replica in found.values()), default=0)
    placement = now.groups.get(group)
    return {
        "group": group,
        "leader": leader,
        "term": max((replica.term for replica in found.values()), default=0),
        "commit": newest,
        "behind": {str(node): max(0, newest - found[node].applied) for node in sorted(found)},
        "voters": list(placement.voters) if placement else [],
        "goal": list(placement.goal) if placement else [],
        "first": placement.first if placement else 0,
        "readers": list(now.readers_of(group)) if placement else [],
    }


def _nodes(numbers: list[int]) -> str:
    return f"{_named(numbers)} {'is' if len(numbers) == 1 else 'are'}"


def _named(numbers: list[int]) -> str:
    return f"node {numbers[0]}" if len(numbers) == 1 else f"nodes {', '.join(map(str, numbers))}"


def _groups(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
    return f"group {shown}" if len(numbers) == 1 else f"groups {shown}"
