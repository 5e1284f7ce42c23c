"""Requests about a transactional id that come late, on a connection that its client has replaced."""

from __future__ import annotations

from front.test_kafka_producers_in_transactions import OLD, TransactionalProducer, values
from worlds.kafka import KafkaWire, KafkaWorld, play

from polynya.front.kafka.errors import Error
from polynya.service.transactions.connections import ConnectionUse


async def opened(world: KafkaWorld) -> KafkaWire:
    """A connection whose first request is answered."""
    wire = await world.wire()
    await wire.ask("ApiVersions", 0)
    return wire


def test_an_older_connection_cannot_end_the_next_transaction() -> None:
    """Both transactions have one epoch in the older protocol."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        former, unused = await opened(world), await opened(world)
        one = TransactionalProducer(former, OLD)
        assert await one.init() == 0
        await one.write(0, b"a")
        one.wire = await opened(world)
        assert await one.end(commit=True) == 0
        await one.write(0, b"half")
        newest = one.wire
        for one.wire in (former, unused):
            assert await one.end(commit=True) == Error.NOT_COORDINATOR
            assert await one.wire.ended(), "the client finds a connection that is closed"
        one.wire = newest
        assert await values(newest, 1) == [b"a"]
        await one.write(0, b"whole")
        assert await one.end(commit=True) == 0
        assert await one.init() == 0
        assert await values(newest, 1) == [b"a", b"half", b"whole"]

    play(story)


def test_a_fenced_instance_gets_its_error_and_leaves_the_live_one_alone() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), OLD)
        assert await one.init() == 0
        two = TransactionalProducer(await opened(world), OLD)
        assert await two.init() == 0
        one.wire = await opened(world)  # newer than that of the live instance
        assert await one.end(commit=True) == Error.INVALID_PRODUCER_EPOCH
        await two.write(0, b"a")
        assert await two.end(commit=True) == 0

    play(story)


def test_a_connection_of_before_the_leaders_term_is_replaced() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await opened(world), OLD)
        assert await one.init() == 0
        parts = world.front.context.transaction_parts
        parts.connections.leadership_changed(parts.service.group_of(one.id))
        assert await one.end(commit=True) == Error.NOT_COORDINATOR
        assert await one.wire.ended()
        one.wire = await opened(world)
        await one.write(0, b"a")
        assert await one.end(commit=True) == 0

    play(story)


def test_another_nodes_connection_is_not_judged_here() -> None:
    async def story(world: KafkaWorld) -> None:
        parts = world.front.context.transaction_parts
        group = parts.service.group_of("x")
        use = ConnectionUse(group, "x", -1, -1, 1.0, 9)
        assert await parts.connections._judge(use) is None

    play(story)
