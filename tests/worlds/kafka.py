"""A Kafka front over one whole core in memory, and a client that speaks frames, with kio's
codecs."""

from __future__ import annotations

import asyncio
import io
import itertools
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32
from wire.kafka.kio_values import kio_class, kio_of
from worlds.service import World

from polynya.base.limits import CONNECTIONS_PER_CORE_MAX
from polynya.front.kafka.brokers import Broker
from polynya.front.kafka.connections import KafkaProtection
from polynya.front.kafka.server import KafkaFront
from polynya.wire.kafka.batches import Record, build_batch
from polynya.wire.kafka.messages import APIS

HEAD_TAGS = b"\0"
SECONDS = 60.0


class OneBroker:
    """A node alone."""

    cluster_id = "c"
    own = 0

    def all(self) -> Sequence[Broker]:
        return (Broker(0, "127.0.0.1", 9092),)

    def leader_of(self, group: int) -> int:
        return 0

    def epoch_of(self, group: int) -> int:
        return 0

    def replicas_of(self, group: int) -> tuple[list[int], list[int]]:
        return [0], [0]

    zone = ""

    def nodes_in(self, zone: str) -> tuple[int, ...]:
        return () if zone else (0,)

    def owners(self, zone: str) -> tuple[int, ...]:
        return (0,)

    def owner_of(self, stream: str, group: int, zone: str) -> int:
        return 0

    def owners_of(self, stream: str, group: int, zone: str) -> list[int]:
        return [0]

    async def follow(self) -> None:
        pass


class KafkaWire:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.correlations = itertools.count(100)
        self.client_id = "test"

    def send(self, name: str, version: int, correlation: int = 0, **fields: Any) -> int:
        """Send a request of kio's fields; return its correlation id."""
        correlation = correlation or next(self.correlations)
        self.writer.write(frame(name, version, correlation, self.client_id, **fields))
        return correlation

    async def receive(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def answer(self, name: str, version: int) -> tuple[int, Any]:
        """Return the next answer: its correlation id, and kio's message."""
        return read_answer(name, version, await self.receive())

    async def ask(self, name: str, version: int, **fields: Any) -> Any:
        sent = self.send(name, version, **fields)
        correlation, message = await self.answer(name, version)
        assert correlation == sent
        return message

    async def ended(self) -> bool:
        return await self.reader.read(1) == b""

    def close(self) -> None:
        self.writer.transport.abort()


def read_answer(name: str, version: int, body: bytes) -> tuple[int, Any]:
    """Return the correlation id of an answer, and kio's message."""
    api = next(api for api in APIS.values() if api.name == name)
    has_tags = version >= api.flexible and name != "ApiVersions"
    message, _ = entity_reader(kio_class(api, version, "response"))(body, 5 if has_tags else 4)
    return int.from_bytes(body[:4]), message


def frame(
    name: str, version: int, correlation: int, client_id: str = "test", /, **fields: Any
) -> bytes:
    """Encode a whole request."""
    api = next(api for api in APIS.values() if api.name == name)
    buffer = io.BytesIO()
    head = api.key.to_bytes(2) + version.to_bytes(2) + correlation.to_bytes(4)
    head += len(client_id).to_bytes(2) + client_id.encode()
    buffer.write(head + (HEAD_TAGS if version >= api.flexible else b""))
    made = kio_class(api, version, "request")(**fields)
    entity_writer(type(made))(buffer, made)
    return len(buffer.getvalue()).to_bytes(4) + buffer.getvalue()


class KafkaWorld:
    """A core, its front, and where it listens."""

    def __init__(self, core: World, front: KafkaFront, port: int) -> None:
        self.core, self.front, self.port = core, front, port
        self.wires: list[KafkaWire] = []

    def use(self, brokers: Any) -> Any:
        """Show clients other brokers."""
        context = self.front.context
        context.brokers = context.topic_frames.brokers = brokers
        return brokers

    async def wire(self) -> KafkaWire:
        wire = KafkaWire(*await asyncio.open_connection("127.0.0.1", self.port))
        self.wires.append(wire)
        return wire

    async def topic(self, name: str, partitions: int = 1) -> None:
        await self.front.context.topics.create(name, partitions, [])
        assert self.front.context.topics.known(name) is not None

    async def follow(self, name: str) -> None:
        """Follow a topic, so that even a fetch that waits a millisecond finds its ends known."""
        topic = self.front.context.topics.known(name)
        assert topic is not None
        for partition in range(topic.partitions):
            assert (
                await self.front.context.tails.follow(
                    self.front.context.service.open(topic.stream(partition))
                )
                is not None
            )


def play(
    tell: Callable[[KafkaWorld], Awaitable[None]],
    protection: KafkaProtection | None = None,
    connections_max: int = CONNECTIONS_PER_CORE_MAX,
) -> None:
    """Tell a story to a front over a core in memory."""

    async def run() -> None:
        core = World().start()
        groups = core.engine.group_coordinator
        running = asyncio.ensure_future(groups.run())
        ids = itertools.count(1)
        front = KafkaFront(
            core.service,
            OneBroker(),
            groups,
            core.engine.kafka_transactions,
            new_id=lambda: next(ids).to_bytes(16),
            protection=protection,
            connections_max=connections_max,
        )
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        world = KafkaWorld(core, front, listener.getsockname()[1])
        await front.start([listener])
        try:
            async with asyncio.timeout(SECONDS):
                await tell(world)
        finally:
            for wire in world.wires:
                wire.close()
            await front.stop(1.0)
            running.cancel()
        assert not core.faults
        await core.stop()

    asyncio.run(run())


def batch(
    *values: bytes, producer: tuple[int, int, int] = (-1, -1, -1), time_ms: int = 1000
) -> bytes:
    """Build a record batch, of an idempotent producer if one is given: (id, epoch, sequence)."""
    import struct

    import google_crc32c

    made = bytearray(
        build_batch(Record(None, value, time_ms + number) for number, value in enumerate(values))
    )
    struct.pack_into(">qhi", made, 43, *producer)
    struct.pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
    return bytes(made)


def made(
    body: bytes,
    *,
    records: int = 1,
    codec: int = 0,
    base_ms: int = 1000,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """Build a record batch with this body, whose header is right."""
    import struct

    import google_crc32c

    head = struct.pack(">hiqqqhii", codec, records - 1, base_ms, base_ms, *producer, records)
    crc = google_crc32c.value(head + body)
    return struct.pack(">qiibI", 0, len(head + body) + 9, 0, 2, crc) + head + body


def produce_fields(
    topic: str, *batches: bytes, partition: int = 0, acks: int = -1
) -> dict[str, Any]:
    """Return the fields of a Produce request of version 9 with a batch for each of some
    partitions."""
    from datetime import timedelta

    from kio.schema.produce.v9 import request as r

    data = tuple(
        r.PartitionProduceData(index=i32(partition + number), records=each)
        for number, each in enumerate(batches)
    )
    return {
        "transactional_id": None,
        "acks": i16(acks),
        "timeout": timedelta(seconds=1),
        "topic_data": (r.TopicProduceData(name=topic, partition_data=data),),
    }


def fetch_fields(topic: str, *offsets: int, max_wait_ms: int = 0, **more: Any) -> dict[str, Any]:
    """Return the fields of a Fetch request of version 11 for the first partitions of a topic."""
    from datetime import timedelta

    from kio.schema.fetch.v11 import request as r

    partitions = tuple(
        r.FetchPartition(
            partition=i32(number),
            fetch_offset=offset,
            partition_max_bytes=i32(more.get("partition_max_bytes", 1 << 20)),
        )
        for number, offset in enumerate(offsets)
    )
    return {
        "replica_id": i32(-1),
        "max_wait": timedelta(milliseconds=max_wait_ms),
        "min_bytes": i32(more.get("min_bytes", 1)),
        "max_bytes": i32(more.get("max_bytes", 1 << 20)),
        "isolation_level": more.get("isolation_level", 0),
        "session_id": i32(more.get("session_id", 0)),
        "session_epoch": i32(more.get("session_epoch", -1)),
        "topics": (r.FetchTopic(topic=topic, partitions=partitions),),
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def plain_fields(name: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request as kio's types, from plain values: see `kio_of`."""
    api = next(api for api in APIS.values() if api.name == name)
    made = kio_of(kio_class(api, version, "request"), fields)
    return {each: getattr(made, each) for each in fields}
