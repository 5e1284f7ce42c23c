"""Transactions over their timeout, ids that are idle for long, and transactions that a stream has open
while their coordinator has ended them, or does not know them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import structs
from worlds.service import World
from worlds.stream import kafka_batch, kafka_producer

from polynya.base.limits import ORPHAN_MS, TRANSACTIONAL_ID_KEPT_MS
from polynya.service.transactions.jobs import ASK_MS
from polynya.stream.features.appends.commands import TxnProduce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import CONTROL, TRANSACTIONAL, Encoding
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import HotBatch, OpenTransaction, Stream

MINUTE = 60_000
NAMES = ("kafka/orders/0", "kafka/orders/1", "kafka/orders/2")


class Participants:
    """A core with three streams, and the transactional id `a`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.transactions = world.engine.transactions
        self.jobs = world.engine.transaction_jobs
        self.pair = (-1, -1)

    async def begin(self) -> int:
        for name in NAMES:
            await self.world.send(Create(name, self.world.clock.ms, "", Encoding.KAFKA))
        self.pair = await self.transactions.init("a", MINUTE)
        return await self.add()

    async def add(self, count: int = len(NAMES)) -> int:
        streams = [
            (self.world.service.group_of(name), self.stream(name).uid, name)
            for name in NAMES[:count]
        ]
        return await self.transactions.add("a", self.pair, streams, [], version=2)

    async def produce(self, name: str, number: int, producer: int = -1) -> Reply:
        batch = structs.replace(kafka_batch(2), flags=TRANSACTIONAL)
        id_ = self.pair[0] if producer < 0 else producer
        made = kafka_producer(id_, self.pair[1], 0, 2)
        return await self.world.send(
            TxnProduce(name, self.world.clock.ms, batch, made, self.stream(name).uid, number)
        )

    def stream(self, name: str) -> Stream:
        group = self.world.service.group_of(name)
        return self.world.local.machines[group].directory.streams[name]

    def open(self, name: str) -> list[OpenTransaction]:
        kafka = self.stream(name).kafka
        return [] if kafka is None else list(kafka.open.values())

    def marker(self, name: str) -> HotBatch:
        """Return the newest batch, which is a marker."""
        hot = self.stream(name).hot
        assert hot is not None
        assert hot[-1].flags & CONTROL
        return hot[-1]

    async def pass_ms(self, ms: int) -> None:
        self.world.clock.ms += ms
        await self.jobs.run_once()
        await self.world.settle()

    async def state(self) -> str:
        found = await self.transactions.describe(["a"])
        return found["a"].state.name if found else "forgotten"

    async def end_without_markers(self, *, commit: bool) -> None:
        """End the transaction, and lose the outbox, as a defect or an accepted loss would."""
        self.world.engine.outbox_sender.markers.send = lambda *message: None  # type: ignore[method-assign]
        await self.transactions.end("a", self.pair, commit=commit, version=2)
        for machine in self.world.local.machines.values():
            machine.outbox.messages.clear()


def play(story: Callable[[Participants], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World().start()
        await story(Participants(world))
        await world.stop()

    asyncio.run(run())


def test_a_transaction_over_its_timeout_is_aborted_everywhere() -> None:
    async def story(each: Participants) -> None:
        number = await each.begin()
        for name in NAMES[:2]:
            assert (await each.produce(name, number)).code == Code.OK
        assert each.jobs.open == 1
        await each.pass_ms(MINUTE - 1)
        assert await each.state() == "ONGOING"
        assert each.jobs.stable_end_lag_seconds == 59.999
        await each.pass_ms(1)
        assert await each.state() == "COMPLETE_ABORT"
        assert (each.jobs.open, each.jobs.stable_end_lag_seconds) == (0, 0)
        assert each.jobs.counters.expired == 1
        assert not any(map(each.open, NAMES))
        assert each.marker(NAMES[0]).payload == each.marker(NAMES[1]).payload
        assert (await each.produce(NAMES[2], number)).code == Code.TXN_ENDED, "it was told, too"

    play(story)


def test_an_idle_id_is_forgotten() -> None:
    async def story(each: Participants) -> None:
        await each.begin()
        await each.pass_ms(MINUTE)
        await each.pass_ms(TRANSACTIONAL_ID_KEPT_MS - 1)
        assert await each.state() == "COMPLETE_ABORT"
        await each.pass_ms(1)
        assert await each.state() == "forgotten"

    play(story)


def test_an_orphan_ends_as_its_coordinator_decided() -> None:
    async def story(each: Participants) -> None:
        number = await each.begin()
        for name in NAMES:
            await each.produce(name, number)
        await each.end_without_markers(commit=True)
        await each.pass_ms(ORPHAN_MS - 1)
        assert all(map(each.open, NAMES))
        await each.pass_ms(1)
        assert not any(map(each.open, NAMES))
        counters = each.jobs.counters
        assert (counters.orphans, counters.unknown) == (3, 0)
        marker = each.marker(NAMES[0])
        assert marker.payload == each.marker(NAMES[1]).payload
        assert marker.record_time_ms_max == each.world.clock.ms - ORPHAN_MS, "when it was decided"
        assert await each.state() == "PREPARE_COMMIT"

    play(story)


def test_a_transaction_that_its_coordinator_does_not_know_is_aborted() -> None:
    async def story(each: Participants) -> None:
        await each.begin()
        stranger = each.pair[0] + 40
        await each.produce(NAMES[0], 3, stranger)
        await each.pass_ms(ORPHAN_MS)
        assert not each.open(NAMES[0])
        assert (each.jobs.counters.orphans, each.jobs.counters.unknown) == (1, 1)
        assert (await each.produce(NAMES[0], 3, stranger)).code == Code.DUPLICATE
        assert (await each.produce(NAMES[1], 3, stranger)).code == Code.OK, "it was not open there"
        await each.pass_ms(ORPHAN_MS)
        assert not each.open(NAMES[1])
        ids = each.world.local.machines[each.pair[0] >> 47].counters
        assert ids.producer_ids == 41, "the id is never given"

    play(story)


def test_a_producer_of_a_group_that_is_gone_has_no_coordinator() -> None:
    async def story(each: Participants) -> None:
        await each.begin()
        await each.produce(NAMES[0], 1, (each.world.groups + 1) << 47)
        await each.pass_ms(ORPHAN_MS)
        assert not each.open(NAMES[0])
        assert each.jobs.counters.unknown == 1

    play(story)


def test_what_is_open_is_asked_for_every_five_seconds() -> None:
    async def story(each: Participants) -> None:
        number = await each.begin()
        await each.produce(NAMES[0], number)
        asked = 0
        call = each.world.service.call

        async def counted(group: int, command: object) -> Reply:
            nonlocal asked
            asked += 1
            return await call(group, command)  # type: ignore[arg-type]

        each.world.service.call = counted  # type: ignore[method-assign]
        group = each.world.service.group_of(NAMES[0])
        await each.jobs.ask_soon(group, each.pair[0], number)
        for _ in range(ASK_MS // 1000 + 1):
            await each.pass_ms(1000)
            await each.jobs.ask_soon(group, each.pair[0], number)
        assert asked == 2
        assert each.open(NAMES[0]), "it is open, and stays so"
        await each.end_without_markers(commit=False)
        await each.pass_ms(ASK_MS)
        assert not each.open(NAMES[0])

    play(story)
