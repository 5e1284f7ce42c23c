"""Kafka's producers in a simulated cluster: several batches in flight, retries, wraps, new epochs,
and fenced ones that go on. In the end each batch that was acknowledged is where its producer was
told, once, and in order."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any

import msgspec
from sim.chaos import FULL, Episode
from sim.cluster import Node
from sim.knobs import Knobs
from worlds.stream import kafka_batch, kafka_producer

from polynya.base import levels
from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import Page, ReadQuery
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code, Reply

NAMES = ("kafka/t/0", "kafka/t/1")
PRODUCERS = 3
IN_FLIGHT = 5
RECEIPTS = 5


class Sent(msgspec.Struct):
    """A batch of a producer."""

    name: str
    epoch: int
    sequence: int  # before it wraps
    records: int
    payload: bytes
    base: int = -1  # where it is, when that was told


class KafkaClient:
    """One producer of one stream: it sends a window of batches, and all again from the first one
    that was not acknowledged."""

    def __init__(self, episode: KafkaEpisode, number: int) -> None:
        self.episode, self.number = episode, number
        self.name = NAMES[number % len(NAMES)]
        self.random = Random(f"kafka {episode.seed} {number}")
        self.epoch, self.sequence, self.count = 0, 0, 0
        self.acknowledged: list[Sent] = []
        self.waiting: list[Sent] = []
        self.fenced: set[bytes] = set()

    async def run(self) -> None:
        while not self.episode.over:
            act = self.random.random()
            if act < 0.1 and not self.waiting and self.acknowledged:
                self.epoch, self.sequence = self.epoch + 1, 0
            elif act < 0.25:
                await self.again()
            elif act < 0.35:
                await self.fenced_one()
            else:
                await self.window()
            await asyncio.sleep(self.random.expovariate(1 / 0.05))

    def next_batch(self) -> Sent:
        """Build the next batch; the first one of an epoch nearly reaches the wrap: its records are
        only counted."""
        records = self.random.randint(1, 3) if self.sequence else 2**31 - self.random.randint(1, 12)
        sent = Sent(self.name, self.epoch, self.sequence, records, self.payload(records))
        self.sequence += records
        return sent

    def payload(self, records: int) -> bytes:
        """Return a unique payload that stands for a batch of that many records."""
        self.count += 1
        return b"%d:%06d;" % (self.number, self.count)

    async def window(self) -> None:
        while len(self.waiting) < self.random.randint(1, IN_FLIGHT):
            self.waiting.append(self.next_batch())
        alive = self.episode.world.alive()
        if not alive:
            return
        node = self.random.choice(alive)
        window = list(self.waiting)
        replies = await asyncio.gather(*(self.ask(node, sent) for sent in window))
        for sent, reply in zip(window, replies, strict=True):
            if reply is None or reply.code in FULL:
                break
            if reply.code == Code.PRODUCER_GAP:  # simulated calls may overtake each other
                assert sent is not window[0], (
                    f"{self.name}: {sent} is not the next, and all before it was acknowledged: "
                    f"{reply}"
                )
                break
            assert reply.code in (Code.OK, Code.DUPLICATE, Code.DUPLICATE_SEQUENCE), reply
            sent.base = reply.first_record
            self.acknowledged.append(sent)
            self.waiting.pop(0)

    async def again(self) -> None:
        """Repeat an earlier batch: its producer's response does not change."""
        mine = [sent for sent in self.acknowledged if sent.epoch == self.epoch]
        if not mine or self.waiting:
            return
        back = self.random.randint(1, min(len(mine), 8))
        sent, alive = mine[-back], self.episode.world.alive()
        if back > RECEIPTS and (sent.sequence - self.sequence) % 2**31 == 0:
            return  # behind a wrap nothing tells it from the next one
        reply = await self.ask(self.random.choice(alive), sent) if alive else None
        if reply is not None and reply.code not in FULL:
            expected = Code.DUPLICATE if back <= RECEIPTS else Code.DUPLICATE_SEQUENCE
            assert reply.code == expected, f"{self.name}: {sent}, {back} back, is answered {reply}"
            assert reply.code != Code.DUPLICATE or sent.base in (-1, reply.first_record), (
                f"{sent} is answered {reply}"
            )

    async def fenced_one(self) -> None:
        """Send a batch of the same producer in an epoch that is over: nothing of it is taken."""
        if not self.acknowledged or self.acknowledged[-1].epoch != self.epoch or not self.epoch:
            return
        alive = self.episode.world.alive()
        payload = self.payload(1)
        self.fenced.add(payload)
        if alive:
            sequence = self.random.choice((0, self.sequence % 2**31))
            await self.ask(
                self.random.choice(alive), Sent(self.name, self.epoch - 1, sequence, 1, payload)
            )

    async def ask(self, node: Node, sent: Sent) -> Reply | None:
        """Send a batch, and return None when the answer is unknown or did not arrive."""
        life = node.life
        producer = kafka_producer(self.number, sent.epoch, sent.sequence % 2**31, sent.records)
        command = Produce(
            sent.name,
            node.engine.service.now_ms(),
            kafka_batch(sent.records, sent.payload),
            producer,
        )
        try:
            reply = await node.propose(sent.name, command)
        except (Unavailable, OutcomeUnknown):
            return None
        self.episode.note(
            f"{sent.name} {sent.payload!r} {Code(reply.code).name} {reply.first_record} by "
            f"{node.number}"
        )
        return reply if node.life == life and node.alive else None


class KafkaEpisode(Episode):
    """The plain world, with Kafka's producers beside a few clients of HTTP."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        # simulated calls overtake each other, unlike those of a connection: a window is one call
        self.knobs.constants.pop("BUNDLE_BYTES_MAX", None)
        self.world.release = levels.LEVEL
        self.producers = [KafkaClient(self, number) for number in range(PRODUCERS)]

    def acknowledged_count(self) -> int:
        batches = sum(len(each.acknowledged) for each in self.producers)
        return super().acknowledged_count() + batches

    def summary(self) -> str:
        return (
            f"{super().summary()}, {sum(len(each.acknowledged) for each in self.producers)} Kafka "
            "batches"
        )

    def clients(self) -> list[asyncio.Future[None]]:
        work: list[Any] = [
            self._append(0),
            self._produce(1),
            self._read(),
            *(self._kafka(each) for each in self.producers),
        ]
        return [asyncio.ensure_future(each) for each in work]

    async def _kafka(self, client: KafkaClient) -> None:
        while not self.over:
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                alive = self.world.alive()
                if alive:
                    node = self.random.choice(alive)
                    command = Create(client.name, node.engine.service.now_ms(), "", Encoding.KAFKA)
                    if (await node.propose(client.name, command)).code in (
                        Code.CREATED,
                        Code.EXISTS,
                    ):
                        return await client.run()
            await asyncio.sleep(0.1)
        return None

    async def settle(self) -> None:
        """Wait on the healthy cluster until all batches are acknowledged and the streams match the
        producers' responses."""
        for client in self.producers:
            for _ in range(100):
                if not client.waiting:
                    break
                await client.window()
                await asyncio.sleep(0.1)
            assert not client.waiting or not client.acknowledged, (
                f"{client.name} takes nothing though all is well"
            )
        for name in NAMES:
            await self.judge(name, [client for client in self.producers if client.name == name])

    async def judge(self, name: str, clients: list[KafkaClient]) -> None:
        found: dict[bytes, int] = {}
        following = 0
        known = {
            sent.payload: sent
            for client in clients
            for sent in [*client.acknowledged, *client.waiting]
        }
        for record, payload in await self.batches(name):
            assert payload not in found, f"{name}: {payload!r} is there twice"
            assert record == following, f"{name}: {payload!r} is at {record}, expected {following}"
            assert payload in known, f"{name}: {payload!r} was fenced, and is there"
            found[payload], following = record, record + known[payload].records
        for client in clients:
            for sent in client.acknowledged:
                assert sent.payload in found, f"{name}: {sent} was acknowledged, and is lost"
                assert sent.base in (-1, found[sent.payload]), (
                    f"{name}: {sent} is at {found[sent.payload]}"
                )
            positions = [found[sent.payload] for sent in client.acknowledged]
            assert positions == sorted(positions), (
                f"{name}: the batches of producer {client.number} are out of order"
            )

    async def batches(self, name: str) -> list[tuple[int, bytes]]:
        """Return the first record and the payload of each batch."""
        node = self.world.alive()[0]
        page = await node.process.drive(
            node.engine.service.read(ReadQuery(name, bytes_max=1 << 22))
        )
        if not isinstance(page, Page):
            return []
        assert page.up_to_date
        return [(span.record, bytes(span.payload)) for span in page.spans]


def run_kafka(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode; the same seed gives the same checksum. Raises AssertionError with the
    violated invariant."""
    return KafkaEpisode(seed, mishaps, knobs).play()
