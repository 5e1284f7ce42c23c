"""The Kafka clients that push metrics, of all cores of all nodes. Any core answers for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from heapq import nsmallest
from time import monotonic

import msgspec
from msgspec import structs

from polynya.base.errors import PolynyaError
from polynya.base.msgpack import UNREADABLE
from polynya.cluster.every_core import ask_core, other_cores
from polynya.front.http.api.kafka.clients import LISTED_MAX, ClientRow, ClientsQuery
from polynya.front.kafka.telemetry.instances import ClientInstances, Instance
from polynya.transport import Reply, Transport

KIND_CLIENTS = 1019  # message kind between cores
GATHER_SECONDS = 2.0  # a core that takes longer is left out


class KafkaClients:
    """The clients of this core, which its Kafka front fills, and on request those of the others."""

    def __init__(
        self,
        core_id: tuple[int, int],
        transport: Transport | None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`core_id`: the numbers of this node and core."""
        self.here = ClientInstances()
        self._core, self._transport, self._now = core_id, transport, now
        if transport is not None:
            transport.on(KIND_CLIENTS, self._answer)

    async def listed(self, query: ClientsQuery) -> list[ClientRow]:
        """Return the first clients behind `query.after`. One that has gone to another broker counts
        where it was heard last."""
        newest: dict[str, ClientRow] = {}
        for row in [*self._own(query), *await self._others(query)]:
            known = newest.get(row.client_instance_id)
            if known is None or row.silent_seconds < known.silent_seconds:
                newest[row.client_instance_id] = row
        return _first(newest.values())

    def _own(self, query: ClientsQuery) -> list[ClientRow]:
        now = self._now()
        found = (
            each
            for each in self.here.present(now)
            if each.client.client_id.startswith(query.prefix)
            and each.client.client_instance_id > query.after
        )
        return _first(_row(each, now, self._core) for each in found)

    async def _others(self, query: ClientsQuery) -> list[ClientRow]:
        transport = self._transport
        if transport is None:
            return []
        asked = msgspec.msgpack.encode(query)

        async def ask(core_id: int) -> list[ClientRow]:
            try:
                async with asyncio.timeout(GATHER_SECONDS):
                    answer = await ask_core(transport, core_id, KIND_CLIENTS, asked)
                return msgspec.msgpack.decode(answer, type=list[ClientRow])
            except (PolynyaError, TimeoutError, *UNREADABLE):
                return []

        core_ids = other_cores(transport, self._core[0]).values()
        return [row for rows in await asyncio.gather(*map(ask, core_ids)) for row in rows]

    def _answer(self, body: bytes, reply: Reply, sender: int) -> None:
        reply(msgspec.msgpack.encode(self._own(msgspec.msgpack.decode(body, type=ClientsQuery))))


def _first(rows: Iterable[ClientRow]) -> list[ClientRow]:
    return nsmallest(LISTED_MAX, rows, key=lambda row: row.client_instance_id)


def _row(instance: Instance, now: float, core_id: tuple[int, int]) -> ClientRow:
    client = instance.client
    row = ClientRow(
        client.client_instance_id,
        client.client_id,
        client.client_software_name,
        client.client_software_version,
        client.client_source_address,
        instance.wanted.metrics,
        instance.wanted.interval_ms,
        instance.pushes,
        len(instance.series),
        round(max(0.0, now - instance.heard_at), 3),
        instance.is_terminating,
    )
    return structs.replace(row, node=core_id[0], core=core_id[1])
