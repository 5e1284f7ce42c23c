"""Kafka's consumers in a simulated cluster, over the whole Kafka front of each node: a consumer
reads a partition from its first record on, by any node, and waits at its end. It gets each batch
once, in order, never one that is lost later, and no offset is out of range."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from datetime import timedelta
from random import Random
from struct import Struct
from typing import Any

from kio.schema.fetch.v11 import request as r
from kio.static.primitive import i32
from sim.cluster import Node
from sim.kafka import NAMES, PRODUCERS, KafkaClient, KafkaEpisode
from sim.knobs import Knobs
from worlds.kafka import OneBroker, frame, read_answer

from polynya.base.errors import PolynyaError
from polynya.front.kafka.brokers import Broker
from polynya.front.kafka.connection import Connection
from polynya.front.kafka.errors import Error
from polynya.front.kafka.server import KafkaFront
from polynya.wire.kafka.batches import HEADER_BYTES, MAGIC, batches_of, header_of

TOPIC, VERSION, CONSUMERS = "t", 11, 3
WAIT_MS = 300
LOST_SECONDS = 5.0  # a client gives its connection up
RETRIED = {
    Error.UNKNOWN_TOPIC_OR_PARTITION,  # this node has not heard of it
    Error.NOT_LEADER,
    Error.OFFSET_NOT_AVAILABLE,
    Error.FENCED_LEADER_EPOCH,
    Error.UNKNOWN_LEADER_EPOCH,
}
_HEADER = Struct(">qiibIhiqqqhii")
_PATCHED_BYTES = 16  # of a batch: its offset, length and epoch


def record_batch(records: int, text: bytes) -> bytes:
    """Return a batch whose header counts that many records; its body is this text."""
    length = HEADER_BYTES - 12 + len(text)
    head = _HEADER.pack(0, length, 0, MAGIC, 0, 0, records - 1, 0, 0, -1, -1, -1, records)
    return head + text


class BatchClient(KafkaClient):
    """A producer whose batches have headers."""

    def payload(self, records: int) -> bytes:
        return record_batch(records, super().payload(records))


class SimBrokers(OneBroker):
    """The nodes as one of them knows them."""

    def __init__(self, node: Node) -> None:
        self._service, self.own = node.engine.service, node.number

    def all(self) -> tuple[Broker, ...]:
        return (Broker(self.own, "", 1),)

    def leader_of(self, group: int) -> int:
        return self._service.directory.leader(group)

    def epoch_of(self, group: int) -> int:
        return self._service.directory.epoch_of(group)


class SimFront(KafkaFront):
    """The front of one life of a node: its work ends with it, and must not fail."""

    def __init__(self, node: Node) -> None:
        engine = node.engine
        super().__init__(
            engine.service,
            SimBrokers(node),
            engine.group_coordinator,
            engine.kafka_transactions,
            new_id=lambda: b"t" * 16,
        )
        self._node, self._life = node, node.life

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task = super().spawn(work)
        self._node.tasks.add(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        node = self._node
        node.tasks.discard(task)
        failed = not task.cancelled() and task.exception() is not None
        if failed and node.alive and node.life == self._life:
            node.faults.append(task.exception())  # type: ignore[arg-type]


class Wire(asyncio.Transport):
    """The transport of a connection to a front; a client asks one request at a time."""

    def __init__(self, front: SimFront, node: Node) -> None:
        super().__init__()
        self._node, self._got, self._is_closed = node, b"", False
        self._answer: asyncio.Future[bytes] | None = None
        self._connection = Connection(front.connections)
        self._connection.connection_made(self)

    async def ask(self, request: bytes) -> bytes:
        """Return the answer. Raises TimeoutError and ConnectionError."""
        if self._is_closed:
            raise ConnectionError
        self._answer = asyncio.get_running_loop().create_future()
        self._node.process.hand(lambda: self._feed(request))
        async with asyncio.timeout(LOST_SECONDS):
            return await self._answer

    def _feed(self, request: bytes) -> None:
        buffer = self._connection.get_buffer(len(request))
        buffer[: len(request)] = request
        self._connection.buffer_updated(len(request))

    def writelines(self, pieces: Any) -> None:
        self._got += b"".join(pieces)
        size = int.from_bytes(self._got[:4])
        if len(self._got) >= 4 + size and self._answer is not None and not self._answer.done():
            self._answer.set_result(self._got[4 : 4 + size])
            self._got = self._got[4 + size :]

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(ConnectionError())

    abort = close

    def is_closing(self) -> bool:
        return self._is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Consumer:
    """One consumer of one partition."""

    def __init__(self, episode: ConsumerEpisode, number: int) -> None:
        self.episode = episode
        self.partition = number % len(NAMES)
        self.random = Random(f"kafka consumer {episode.seed} {number}")
        self.next, self.epoch = 0, -1
        self.fetches = 0
        self._correlations = itertools.count(1)
        self._wire: Wire | None = None
        self._at: tuple[Node, int] | None = None  # and its life

    async def run(self) -> None:
        while not self.episode.over:
            await self.fetch()
            await asyncio.sleep(self.random.expovariate(1 / 0.05))

    async def fetch(self) -> None:
        """Fetch once, by the node of before or another."""
        try:
            wire = await self._connected()
            if wire is None:
                return
            correlation = next(self._correlations)
            answer = await wire.ask(self._request(correlation))
        except (PolynyaError, TimeoutError, ConnectionError):
            self._leave()
            return
        got, message = read_answer("Fetch", VERSION, answer)
        assert got == correlation
        (part,) = message.responses[0].partitions
        error = Error(part.error_code.value)
        if error == Error.NONE:
            self._take(part)
        else:
            assert error in RETRIED, f"{self.partition} at {self.next}: {error!r}"
            self.epoch = -1
            self._leave()
        if self.random.random() < 0.05:
            self._leave()

    def _leave(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._wire = self._at = None

    async def _connected(self) -> Wire | None:
        if self._at is not None and (not self._at[0].alive or self._at[0].life != self._at[1]):
            self._leave()
        alive = self.episode.world.alive()
        if self._wire is None and alive:
            node = self.random.choice(alive)
            front, life = await self.episode.front(node), node.life
            if front is not None and node.alive:
                self._wire = node.process.run(lambda: Wire(front, node))
                self._at = node, life
        return self._wire

    def _request(self, correlation: int) -> bytes:
        asked = r.FetchPartition(
            partition=i32(self.partition),
            current_leader_epoch=i32(self.epoch),
            fetch_offset=self.next,  # type: ignore[arg-type]
            partition_max_bytes=i32(self.random.choice((1, 1 << 20))),
        )
        return frame(
            "Fetch", VERSION, correlation,
            replica_id=i32(-1), max_wait=timedelta(milliseconds=WAIT_MS), min_bytes=i32(1),
            max_bytes=i32(1 << 20), isolation_level=1, session_id=i32(0),
            topics=(r.FetchTopic(topic=TOPIC, partitions=(asked,)),),
            forgotten_topics_data=(), rack_id="",
        )  # fmt: skip

    def _take(self, part: Any) -> None:
        """Take over batches: the first holds the next record, the others follow."""
        self.fetches += 1
        before = None
        for each in batches_of(bytes(part.records or b"")):
            header = header_of(each)
            base, end = header.base_offset, header.base_offset + header.last_offset_delta + 1
            fits = base <= self.next < end if before is None else base == before
            assert fits, f"{self.partition}: a batch {base} to {end} where {self.next} is next"
            self.episode.see(self.partition, base, bytes(each[_PATCHED_BYTES:]))
            self.next = before = end
            self.epoch = header.leader_epoch
        assert part.high_watermark >= self.next


class ConsumerEpisode(KafkaEpisode):
    """Kafka's producers, and its consumers."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        self.producers = [BatchClient(self, number) for number in range(PRODUCERS)]
        self.consumers = [Consumer(self, number) for number in range(CONSUMERS)]
        self.seen: dict[tuple[int, int], bytes] = {}  # partition and offset -> a batch
        self._fronts: dict[tuple[int, int], SimFront] = {}  # by node and life

    def summary(self) -> str:
        return f"{super().summary()}, {sum(each.fetches for each in self.consumers)} fetches"

    def clients(self) -> list[asyncio.Future[None]]:
        return [*super().clients(), *(asyncio.ensure_future(each.run()) for each in self.consumers)]

    async def _kafka(self, client: KafkaClient) -> None:
        """Produce as soon as the topic is there: its creation may be given up until then."""
        while not self.over:
            for node in self.world.alive():
                with contextlib.suppress(PolynyaError, TimeoutError):
                    if await self.front(node) is not None:
                        return await client.run()
            await asyncio.sleep(0.1)
        return None

    async def front(self, node: Node) -> SimFront | None:
        """Return the front of a node; None: it does not know the topic yet. Raises PolynyaError."""
        key = node.number, node.life
        if key not in self._fronts:
            self._fronts[key] = node.process.run(lambda: SimFront(node))
        front = self._fronts[key]
        if front.context.topics.known(TOPIC) is None:
            async with asyncio.timeout(LOST_SECONDS):
                if await node.process.drive(front.context.topics.find(TOPIC)) is None:
                    await node.process.drive(front.context.topics.create(TOPIC, len(NAMES), []))
        return front if front.context.topics.known(TOPIC) is not None else None

    def see(self, partition: int, offset: int, batch: bytes) -> None:
        """Note a batch that a consumer got; all get the same."""
        known = self.seen.setdefault((partition, offset), batch)
        assert known == batch, f"{partition}: two consumers got other batches at {offset}"

    async def settle(self) -> None:
        """Let the consumers on the healthy cluster reach the end, and compare their records with
        the stream."""
        await super().settle()
        for consumer in self.consumers:
            stored = dict(await self.batches(NAMES[consumer.partition]))
            end = max((base + header_of(each).records for base, each in stored.items()), default=0)
            for _ in range(200):
                if consumer.next == end:
                    break
                await consumer.fetch()
            assert consumer.next == end, f"{consumer.partition}: at {consumer.next} of {end}"
            for (partition, base), batch in self.seen.items():
                if partition == consumer.partition:
                    there = stored.get(base, b"")[_PATCHED_BYTES:]
                    assert there == batch, f"{partition}: {batch!r} was seen at {base}, {there!r}"


def run_consumers(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode. Raises AssertionError with the violated invariant."""
    return ConsumerEpisode(seed, mishaps, knobs).play()
