"""The time of a Produce and of a Fetch; one that waited counts from its wake."""

from __future__ import annotations

import asyncio

from front.test_kafka_fetch import fetch, parked, produce
from worlds.kafka import KafkaWorld, play


def test_a_fetch_that_waits_counts_from_the_records_that_wake_it() -> None:
    async def story(world: KafkaWorld) -> None:
        counters = world.front.context.counters
        found = (counters.produce_seconds, counters.fetch_seconds, counters.woken_fetch_seconds)

        def counts() -> list[int]:
            return [sum(each.counts) for each in found]

        await world.topic("t", 1)
        reader, writer = await world.wire(), await world.wire()
        await produce(writer, b"x")
        await fetch(reader, 0)
        assert counts() == [1, 1, 0]
        for _ in range(2):  # the second is a repeat of the same bytes
            await fetch(reader, 1, max_wait_ms=5)
        assert counts() == [1, 1, 0], "nothing came: the wait was asked for"
        for end in (1, 2):
            waiting = asyncio.create_task(fetch(reader, end, max_wait_ms=50_000))
            await parked(world)
            await produce(writer, b"y")
            assert await waiting == [(0, end + 1, 1)]
        assert counts() == [3, 1, 2]
        assert sum(world.core.local.feeds.seconds.counts) == 2

    play(story)
