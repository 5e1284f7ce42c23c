"""The controller: the leader of the meta group moves the groups to their placement in the map. It
observes, plans (`polynya.replica.planner`), takes the steps and observes again. It keeps no state
that a successor needs: the map and the groups show every unfinished change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from polynya.base.errors import PolynyaError
from polynya.cluster.map_cache import ClusterMapCache, cluster_born
from polynya.cluster.reconfiguration import Reconfiguration
from polynya.cluster.status import KNOWS_MAPS, ClusterView, observed
from polynya.config.core_start import CoreStart
from polynya.jobs import Failures, Rest, repeat
from polynya.raft import ProposalRefused
from polynya.replica.placement_steps import (
    ChangeVoters,
    ClusterObservation,
    ConfirmVoters,
    MarkBalanced,
    RemoveNode,
    SetVoters,
    Step,
    TransferLeadership,
)
from polynya.replica.planner import may_rest, plan
from polynya.stream.command import Command, level_of
from polynya.stream.features.placement.cluster_map import META_GROUP, ClusterMap
from polynya.stream.features.placement.commands import (
    GroupPlaced,
    NodeAnnounce,
    NodeRecord,
    NodeSet,
    NodeState,
    PlaceGroup,
    ReaderAdd,
    SetBalancing,
)
from polynya.stream.features.topics.commands import TopicPut
from polynya.stream.replies import Code, Reply

BUSY_SECONDS = 0.1  # pause between rounds while something moves …
WAIT_SECONDS = 1.0  # … while something waits …
IDLE_SECONDS = 5.0  # … and when idle; a map change wakes the controller
_ANNOUNCED = ("peer", "http", "zone", "cores", "kafka", "kafka_ports")
log = logging.getLogger("polynya.cluster")


class Proposing(Protocol):
    async def call(self, group: int, command: Command) -> Reply: ...


class Controller:
    """The controller of a node, on core 0. `is_leader` reports whether this node leads the meta
    group."""

    def __init__(
        self,
        start: CoreStart,
        maps: ClusterMapCache,
        view: ClusterView,
        reconfiguration: Reconfiguration,
        service: Proposing,
        is_leader: Callable[[], bool],
    ) -> None:
        (
            self._start,
            self._maps,
            self._view,
            self._reconfiguration,
            self._service,
            self._is_leader,
        ) = (start, maps, view, reconfiguration, service, is_leader)
        self._news = asyncio.Event()
        self._away: dict[
            int, float
        ] = {}  # node -> time at which this leader first found it down (and down ever since)
        self._rested = 0  # epoch at which no step was left
        self.steps = 0  # steps taken
        maps.on_map.append(lambda now: self._news.set())

    def led(self, group: int) -> None:
        """Handle a change of a group's leader."""
        if group == META_GROUP:
            self._away = {}  # restart the timers: under the former leader a node may have been up
            if self._is_leader():
                self._news.set()

    async def run(self) -> None:
        """Run until cancelled."""
        failures = Failures(
            log, "placement round failed; retrying", PolynyaError, level=logging.INFO
        )
        await repeat(self._step, WAIT_SECONDS, failures, wake=self._news)

    async def _step(self) -> Rest:
        return Rest(await (self._round() if self._is_leader() else self._announce()))

    async def _round(self) -> float:
        """Run one round and return the pause in seconds."""
        now = self._maps.now
        if not now.epoch:
            return await self._bear()
        await self._announce()
        if await self._let_in(now):
            return WAIT_SECONDS
        give_up = self._start.config.cluster.replace_after
        if not give_up and self._rested == now.epoch:
            return IDLE_SECONDS
        seen = observed(await self._view.gather())
        seen = msgspec.structs.replace(seen, lost=self._lost(now, seen, give_up))
        steps = await asyncio.to_thread(plan, now, seen)  # about 20 ms for a thousand groups
        for step in steps:
            if not self._is_leader():
                return 0.0
            await self._take(step)
        if steps:
            return BUSY_SECONDS
        self._rested = now.epoch if may_rest(now, seen) else 0
        return IDLE_SECONDS if self._rested else WAIT_SECONDS

    def _lost(self, now: ClusterMap, seen: ClusterObservation, give_up: float) -> frozenset[int]:
        """Return the nodes down for at least `give_up` seconds; their replicas are replaced. 0
        disables this."""
        clock = asyncio.get_running_loop().time()
        self._away = {
            node: self._away.get(node, clock) for node in now.members if node not in seen.up
        }
        return frozenset(
            node for node, since in self._away.items() if give_up and clock - since >= give_up
        )

    async def _bear(self) -> float:
        """Propose the first map once every node is up with a release that knows maps. An older
        release could not read the log after that."""
        reported = await self._view.gather()
        here = {node for node, _ in reported}
        if (
            all(part.maps >= KNOWS_MAPS for part in reported.values())
            and here >= set(self._start.identity.nodes)
            and self._start.identity.nodes
        ):
            await self._propose(cluster_born(self._start.identity, self._start.config.cluster))
            log.info(
                "the first cluster map is committed",
                extra={"nodes": len(self._start.identity.nodes)},
            )
        return WAIT_SECONDS

    async def _let_in(self, now: ClusterMap) -> bool:
        """Add the read replicas of the birth configuration. Return True while one is missing from
        the map."""
        identity = self._start.identity
        coming = [
            node
            for node in self._start.config.cluster.nodes
            if node.id in identity.readers and node.id not in now.nodes
        ]
        known = coming and self._view.works_at() >= level_of(ReaderAdd)
        for node in coming if known else ():
            await self._propose(ReaderAdd(NodeRecord(node.id, node.peer, node.http, node.zone)))
            log.info("a read replica was added to the cluster", extra={"read_replica": node.id})
        return bool(coming)

    async def _announce(self) -> float:
        """Announce this node's addresses, zone and cores if the map differs."""
        now, cluster = self._maps.now, self._start.config.cluster
        record = now.nodes.get(cluster.node)
        if now.epoch and record is not None and record.state != NodeState.REMOVED:
            own, cores = cluster.own, self._start.cores
            zone = own.zone or record.zone
            reported = NodeAnnounce(
                own.id, own.peer, own.http, zone, cores, *self._kafka_of(record)
            )
            if any(getattr(record, name) != getattr(reported, name) for name in _ANNOUNCED):
                await self._propose(reported)
            if not self._announces_kafka():
                return WAIT_SECONDS
        return IDLE_SECONDS

    def _kafka_of(self, record: NodeRecord) -> tuple[str, tuple[int, ...]]:
        """Return this node's address for Kafka clients and the ports of its cores, once all nodes
        know of such."""
        if not self._announces_kafka():
            return record.kafka, record.kafka_ports
        start = self._start
        return start.kafka_advertised, tuple(address.port for address in start.kafka_direct)

    def _announces_kafka(self) -> bool:
        return self._view.works_at() >= level_of(TopicPut)

    async def _take(self, step: Step) -> None:
        """Take one step. The next round observes a failure and plans again."""
        self.steps += 1
        match step:
            case SetVoters(group, goal, first, epoch):
                log.info(
                    "the placement of a group changes",
                    extra={"of_group": group, "voters": _listed(goal), "first": first},
                )
                await self._propose(PlaceGroup(group, goal, first, epoch))
            case ConfirmVoters(group, voters, epoch):
                log.info(
                    "a group reached its placement",
                    extra={"of_group": group, "voters": _listed(voters)},
                )
                await self._propose(GroupPlaced(group, voters, epoch))
            case ChangeVoters(group, _, configuration):
                refused(step, await self._reconfiguration.change(group, configuration))
            case TransferLeadership(group, _, to):
                refused(step, await self._reconfiguration.transfer(group, to))
            case RemoveNode(node) if (
                self._maps.now.nodes[node].state == NodeState.LEAVING
            ):  # an operator may have withdrawn the removal
                log.info("removing an emptied node", extra={"removed": node})
                await self._propose(NodeSet(node, NodeState.REMOVED))
            case MarkBalanced():
                log.info("replicas and leaderships are balanced")
                await self._propose(SetBalancing(False))

    async def _propose(self, command: Command) -> None:
        reply = await self._service.call(META_GROUP, command)
        if reply.code >= Code.NOT_FOUND and reply.code != Code.NOT_YET:
            log.warning(
                "the meta group rejected a placement step",
                extra={"step": type(command).__name__, "reason": str(reply.detail)},
            )


def refused(step: ChangeVoters | TransferLeadership, refusal: ProposalRefused | None) -> None:
    """Log the refusal of a step; the next round retries it."""
    if refusal is not None:
        log.debug(
            "a group is not ready for its next step",
            extra={"of_group": step.group, "reason": refusal.name},
        )


def _listed(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes))
