"""The costs of the cluster: the counts per hour of all cores of all nodes. Any core answers for
all."""

from __future__ import annotations

import asyncio
import time

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.msgpack import UNREADABLE
from polynya.cluster.every_core import ask_core, other_cores
from polynya.cluster.map_cache import ClusterMapCache
from polynya.config.core_start import CoreStart
from polynya.cost import CostReport, Shape, UsageHistory, report_of
from polynya.cost.history import Row
from polynya.cost.report import NodeRows
from polynya.transport import Reply, Transport

KIND_COST = 1015  # message kind between cores
GATHER_SECONDS = 5.0  # a core that takes longer is reported as missing
Rows = dict[tuple[int, int], list[Row]]  # by (node, core)


class CostView:
    """The costs as one core gathers them. `maps` is None on a standalone node."""

    def __init__(
        self,
        start: CoreStart,
        transport: Transport | None,
        history: UsageHistory,
        maps: ClusterMapCache | None,
    ) -> None:
        self._start, self._transport, self._history, self._maps = start, transport, history, maps
        if transport is not None:
            transport.on(KIND_COST, self._answer)

    async def report(self, hours: int) -> CostReport:
        """Answer `GET /v1/cost`."""
        rows = await self._gather(hours)
        nodes = [self._node(number, rows) for number in sorted({node for node, _ in rows})]
        known = {node.node for node in nodes}
        missing = [] if self._maps is None else sorted(set(self._maps.now.members) - known)
        shape = self._shape(sum(len(node.cores) + len(node.missing_cores) for node in nodes))
        return await asyncio.to_thread(report_of, nodes, shape, missing, hours, time.time())

    async def _gather(self, hours: int) -> Rows:
        start, transport = self._start, self._transport
        own = start.identity.node
        rows: Rows = {(own, start.core): self._history.rows(hours)}
        if transport is None:
            return rows
        question = msgspec.msgpack.encode(hours)

        async def ask(where: tuple[int, int], core_id: int) -> None:
            try:
                async with asyncio.timeout(GATHER_SECONDS):
                    answer = await ask_core(transport, core_id, KIND_COST, question)
                rows[where] = msgspec.msgpack.decode(answer, type=list[Row])
            except (PolynyaError, TimeoutError, *UNREADABLE):
                return

        core_ids = other_cores(transport, own)
        await asyncio.gather(*(ask(where, core_id) for where, core_id in core_ids.items()))
        return rows

    def _answer(self, body: bytes, reply: Reply, sender: int) -> None:
        hours = msgspec.msgpack.decode(body, type=int)
        reply(msgspec.msgpack.encode(self._history.rows(hours)))

    def _node(self, node: int, rows: Rows) -> NodeRows:
        cores = range(self._cores_of(node))
        found = [rows[node, core] for core in cores if (node, core) in rows]
        return NodeRows(
            node, self._zone_of(node), found, [core for core in cores if (node, core) not in rows]
        )

    def _cores_of(self, node: int) -> int:
        raft = None if self._transport is None else self._transport.raft
        if node == self._start.identity.node or raft is None:
            return self._start.cores
        return raft.cores_of(node)

    def _zone_of(self, node: int) -> str:
        record = None if self._maps is None else self._maps.now.nodes.get(node)
        return "" if record is None else record.zone

    def _shape(self, cores: int) -> Shape:
        config = self._start.config
        pack_bytes, interval_ms = config.cold.pack_bytes_max, config.diskless.interval
        if self._maps is None:
            return Shape(cores=cores, pack_bytes=pack_bytes, interval_ms=interval_ms)
        now = self._maps.now
        zones = {now.nodes[node].zone for node in now.members} - {""}
        return Shape(
            len(now.members),
            cores,
            max(len(zones), 1),
            max(now.replicas, 1),
            pack_bytes,
            interval_ms,
        )
