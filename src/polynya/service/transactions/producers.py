"""The producers of a stream, and their open transactions, as its leader knows them."""

from __future__ import annotations

import msgspec

from polynya.service.node_service import NodeService
from polynya.stream.features.appends import producers

PRODUCERS = 74  # messages between cores
_KAFKA = "1\0"  # before the id of a Kafka producer in the key of its state


class ProducersQuery(msgspec.Struct, array_like=True, gc=False):
    """A question for the producers of a stream."""

    group: int
    name: str


class StreamProducer(msgspec.Struct, array_like=True, gc=False):
    """A producer of a stream. `first_record`: of its open transaction; -1: it has none."""

    producer: int
    epoch: int
    sequence: int
    active_ms: int
    first_record: int


class TransactionProducers:
    """The producers of streams, wherever their groups are led."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        service.rpc.serve(PRODUCERS, ProducersQuery, list[StreamProducer], self._answer)

    async def of_stream(self, group: int, name: str) -> list[StreamProducer]:
        """Return the Kafka producers of a stream, by id; none of a stream that does not exist.
        Raises PolynyaError."""
        query = ProducersQuery(group, name)
        found: list[StreamProducer] = await self._service.rpc.at_home(
            group, PRODUCERS, query, self._answer
        )
        return found

    async def _answer(self, query: ProducersQuery) -> list[StreamProducer]:
        await self._service.local.linearize(query.group)
        stream = self._service.local.here(query.group).directory.streams.get(query.name)
        if stream is None:
            return []
        opened = stream.kafka.open if stream.kafka is not None else {}
        found = []
        for key, state in (stream.producers or {}).items():
            if key.startswith(_KAFKA):
                id_ = int(key.removeprefix(_KAFKA))
                epoch, last, active_ms = producers.STATE.unpack_from(state)
                first = opened[id_].record if id_ in opened else -1
                found.append(StreamProducer(id_, epoch, last, active_ms, first))
        return sorted(found, key=lambda each: each.producer)
