"""Streams and partitions that change their profile while Kafka's producers, idempotent producers of
HTTP, consumers and a consumer group use them, and nodes die. One stream takes Kafka's batches
beside appends of HTTP, as one that a topic adopted."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

from msgspec import structs
from sim.chaos import FULL, STREAMS, WIDTH
from sim.clock import WALL_MS
from sim.cluster import Node, World
from sim.echoes import Echoes
from sim.groups import MEMBERS, GroupClient
from sim.kafka import NAMES, KafkaClient, Sent
from sim.kafka_consumers import ConsumerEpisode
from sim.knobs import Knobs
from sim.store import GOOD, SimStore, Weather

from polynya.base import levels
from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.stream.parts import Producer
from polynya.stream.replies import Code, Reply
from polynya.wire.kafka.batches import batches_of, header_of

SWITCH_SECONDS = 0.3  # between two changes, where the seed draws nothing else
SWEPT = {"CollectorSettings.interval_ms": 100, "CollectorSettings.sweep_every_ms": 300}
ADOPTED = STREAMS[0]


class AdoptedClient(KafkaClient):
    """A Kafka producer of a stream that HTTP writes to as well. Each batch is one record."""

    def __init__(self, episode: SwitchedEpisode, number: int) -> None:
        super().__init__(episode, number)
        self.name, self.history = ADOPTED, episode.histories[ADOPTED]

    def next_batch(self) -> Sent:
        sent = Sent(self.name, self.epoch, self.sequence, 1, self.payload(1))
        self.sequence += 1
        self.history.unknown.add(sent.payload)
        return sent

    def payload(self, records: int) -> bytes:
        self.count += 1
        return b"k%d%05d;" % (self.number, self.count)

    async def fenced_one(self) -> None:
        """Leave this to the producers of partitions."""

    async def window(self) -> None:
        before = len(self.acknowledged)
        await super().window()
        for sent in self.acknowledged[before:]:
            self.history.unknown.discard(sent.payload)
            self.history.produced.append(sent.payload)


class PipelinedClient(AdoptedClient):
    """An idempotent producer of HTTP with several appends in flight."""

    def payload(self, records: int) -> bytes:
        self.count += 1
        return b"h%d%05d;" % (self.number, self.count)

    async def again(self) -> None:
        """Leave repeats of acknowledged appends to the other clients."""

    async def ask(self, node: Node, sent: Sent) -> Reply | None:
        life = node.life
        producer = Producer(f"h{self.number}", sent.epoch, sent.sequence)
        try:
            reply = await node.append(sent.name, sent.payload, producer)
        except (Unavailable, OutcomeUnknown):
            return None
        return reply if node.life == life and node.alive else None


class SandwichClient:
    """A client that appends twice at once to one node, with a refused append between them: a pack
    then holds a refused batch between two accepted ones."""

    def __init__(self, episode: SwitchedEpisode) -> None:
        self.episode, self.count = episode, 0
        self.random = Random(f"sandwich {episode.seed}")

    async def run(self) -> None:
        while not self.episode.over:
            alive = self.episode.world.alive()
            if alive:
                node, name = self.random.choice(alive), self.random.choice(self.episode.streams)
                await asyncio.gather(
                    self.append(node, name), self.refused(node, name), self.append(node, name)
                )
            await asyncio.sleep(self.random.expovariate(1 / 0.2))

    def payload(self) -> bytes:
        self.count += 1
        return b"s%06d;" % self.count

    async def append(self, node: Node, name: str) -> None:
        history, payload, life = self.episode.histories[name], self.payload(), node.life
        history.unknown.add(payload)
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            reply = await node.append(name, payload)
            if reply.code == Code.OK and node.life == life and node.alive:
                history.unknown.discard(payload)
                history.acknowledged[payload] = reply.record, asyncio.get_running_loop().time()

    async def refused(self, node: Node, name: str) -> None:
        """Append as an unknown idempotent producer whose first batch is lost."""
        payload = self.payload()
        self.episode.histories[name].refused.add(payload)
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            reply = await node.append(name, payload, Producer("sandwich", 0, 1))
            assert reply.code in (Code.PRODUCER_GAP, *FULL), reply


class SwitchedEpisode(ConsumerEpisode):
    """The plain world with an object store that is swept all the time, and with all kinds of
    clients."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        self.knobs = structs.replace(self.knobs, settings=self.knobs.settings | SWEPT)
        self.world = World(seed, store=SimStore(seed, _wall_ms))
        self.world.release, self.world.runs_groups = levels.LEVEL, True
        self.world.diskless, self.world.switches = 2, SWITCH_SECONDS
        count = len(self.producers)
        self.adopted = (AdoptedClient(self, count), PipelinedClient(self, count + 1))
        self.acknowledged: dict[int, int] = {}  # offsets that members committed, by partition
        self.switched = 0
        self.echoes = Echoes(self)
        self.world.heard = self.echoes.hear

    def acknowledged_count(self) -> int:
        return super().acknowledged_count() + sum(self.acknowledged.values())

    def summary(self) -> str:
        return f"{super().summary()}, {self.switched} changes of a profile"

    def clients(self) -> list[asyncio.Future[None]]:
        members = [GroupClient(self, number) for number in range(MEMBERS)]  # type: ignore[arg-type]
        clients = (*members, *self.adopted, SandwichClient(self), self.echoes)
        more = [self._produce(0), self._switch(), *(each.run() for each in clients)]
        return [*super().clients(), *(asyncio.ensure_future(each) for each in more)]

    async def _mishaps(self) -> None:
        random, store = Random(f"weather {self.seed}"), self.world.store
        assert store is not None
        store.weather = Weather(
            away=random.choice((0.0, 0.02, 0.1)),
            untold=random.choice((0.0, 0.02, 0.1)),
            delay=random.choice(((0.001, 0.01), (0.02, 0.3))),
        )
        await super()._mishaps()

    async def _switch(self) -> None:
        random, names = Random(f"switch {self.seed}"), (ADOPTED, *NAMES)
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / self.world.switches))
            name, profile, alive = random.choice(names), random.randrange(2), self.world.alive()
            if alive:
                with contextlib.suppress(Unavailable, OutcomeUnknown):
                    reply = await random.choice(alive).switch(name, profile)
                    self.switched += reply.code == Code.OK
                    self.note(f"{name} has profile {reply.detail}: {Code(reply.code).name}")

    async def _heal(self) -> None:
        assert self.world.store is not None
        self.world.store.weather = GOOD
        await super()._heal()

    async def settle(self) -> None:
        await super().settle()
        for each in self.adopted:
            for _ in range(100):
                if not each.waiting:
                    break
                await each.window()
                await asyncio.sleep(0.1)
            assert not each.waiting, f"{ADOPTED} takes nothing though all is well"

    async def batches(self, name: str) -> list[tuple[int, bytes]]:
        """Return the batches one by one: a slice has several."""
        found = []
        for first, payload in await super().batches(name):
            record = first
            for each in batches_of(payload):
                found.append((record, bytes(each)))
                record += header_of(each).records
        return found

    def finish(self, name: str, content: bytes) -> None:
        super().finish(name, content)
        if name == ADOPTED:
            for sent in (sent for each in self.adopted for sent in each.acknowledged):
                there = content[sent.base * WIDTH : (sent.base + 1) * WIDTH]
                assert sent.base < 0 or there == sent.payload, f"{name}: {sent} is not there"


def _wall_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000) + WALL_MS - 1_000_000


def run_switched(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode. Raises AssertionError with the violated invariant."""
    return SwitchedEpisode(seed, mishaps, knobs).play()
