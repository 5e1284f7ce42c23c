"""Waiting and reading of fetches: kept tail watches, parked fetches, offsets beyond the end, and
prefetched slices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from worlds.kafka import KafkaWire, KafkaWorld, batch, fetch_fields, play, produce_fields

from polynya.base.errors import Unavailable
from polynya.base.names import partition_name
from polynya.front.kafka.errors import Error
from polynya.front.kafka.tails import UNUSED_SECONDS
from polynya.stream.features.lifetimes.commands import Delete
from polynya.wire.kafka.batches import batches_of

Found = list[tuple[int, int, int]]  # error, high watermark, batches of each partition


async def fetch(wire: KafkaWire, *offsets: int, **more: int) -> Found:
    message = await wire.ask("Fetch", 11, **fetch_fields("t", *offsets, **more))
    return [
        (each.error_code.value, each.high_watermark, len(list(batches_of(each.records or b""))))
        for each in message.responses[0].partitions
    ]


async def produce(wire: KafkaWire, *values: bytes, partition: int = 0) -> None:
    fields = produce_fields("t", batch(*values), partition=partition)
    message = await wire.ask("Produce", 9, **fields)
    assert message.responses[0].partition_responses[0].error_code.value == 0


class Calls:
    """Counts the calls that a story makes of the service."""

    def __init__(self, world: KafkaWorld, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        for name in ("attach", "read", "read_nowait", "info"):
            self._count(world.core.service.reads, name, patch)

    def _count(self, service: object, name: str, patch: pytest.MonkeyPatch) -> None:
        original = getattr(service, name)

        def counted(*arguments: Any, **more: Any) -> Any:
            self.counts[name] += 1
            return original(*arguments, **more)

        patch.setattr(service, name, counted)


async def until(reached: Callable[[], object]) -> None:
    while not reached():  # noqa: ASYNC110 (bounded by the story)
        await asyncio.sleep(0)


async def parked(world: KafkaWorld, count: int = 1) -> None:
    """Wait until that many fetches are parked."""
    await until(
        lambda: sum(each.session.parked is not None for each in world.front.connections) == count
    )


def test_a_fetch_waits_for_records_and_no_longer_than_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        reader, writer = await world.wire(), await world.wire()
        calls = Calls(world, monkeypatch).counts
        for _ in range(3):
            assert await fetch(reader, 0, 0, max_wait_ms=20) == [(0, 0, 0)] * 2
        assert calls == {"attach": 2}, "followed once, and nothing is read where nothing is"
        waiting = asyncio.create_task(fetch(reader, 0, 0, max_wait_ms=50_000))
        await parked(world)
        await produce(writer, b"late", partition=1)
        assert await waiting == [(0, 0, 0), (0, 1, 1)]
        assert calls == {"attach": 2, "read_nowait": 1}, "the partition that has grown"

    play(story)


def test_a_fetch_is_woken_when_the_appended_bytes_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        reader, writer = await world.wire(), await world.wire()
        size = len(batch(b"x" * 100))
        calls = Calls(world, monkeypatch).counts
        waiting = asyncio.create_task(
            fetch(reader, 0, 0, max_wait_ms=50_000, min_bytes=2 * size + 1)
        )
        await parked(world)
        await produce(writer, b"x" * 100)
        await produce(writer, b"x" * 100, partition=1)
        assert not calls["read_nowait"], "not enough yet"
        await produce(writer, b"x" * 100)
        assert await waiting == [(0, 2, 2), (0, 1, 1)]
        assert calls["read_nowait"] == 2
        assert await fetch(reader, 1, 1, max_wait_ms=20, min_bytes=10_000) == [(0, 2, 1), (0, 1, 0)]

    play(story)


def test_many_fetches_wait_at_one_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        calls = Calls(world, monkeypatch).counts
        wires = [await world.wire() for _ in range(5)]
        waiting = [asyncio.create_task(fetch(each, 0, max_wait_ms=50_000)) for each in wires]
        await parked(world, 5)
        await produce(await world.wire(), b"a")
        assert await asyncio.gather(*waiting) == [[(0, 1, 1)]] * 5
        assert calls["attach"] <= 5
        assert [len(sinks) for sinks in world.core.local.feeds.sinks.values()] == [1]

    play(story)


def test_a_watch_of_the_first_moments_of_a_node_stays() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        await world.follow("t")
        world.front.context.tails.sweep(world.front.connections.ticks.now + 2)
        assert len(world.front.context.tails) == 1

    play(story)


def test_a_watch_ends_when_no_fetch_has_named_its_partition_for_a_while() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire, tails = await world.wire(), world.front.context.tails
        tails.sweep(100)
        await world.follow("t")
        await fetch(wire, 0, max_wait_ms=10)
        tails.sweep(100 + UNUSED_SECONDS)
        assert len(tails) == len(world.core.local.feeds.sinks) == 1
        waiting = asyncio.create_task(fetch(wire, 0, max_wait_ms=50_000))
        await parked(world)
        tails.sweep(1000)
        assert len(tails) == 1, "a fetch waits there"
        await produce(await world.wire(), b"a")
        assert await waiting == [(0, 1, 1)]
        tails.sweep(1000)
        assert (len(tails), len(world.core.local.feeds.sinks)) == (0, 0)

    play(story)


def test_a_waiting_fetch_learns_that_its_partition_is_deleted() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        waiting = asyncio.create_task(fetch(wire, 0, max_wait_ms=50_000))
        await parked(world)
        name = partition_name("t", 0)
        service = world.core.service
        await service.call(service.group_of(name), Delete(name, service.now_ms()))
        assert await waiting == [(Error.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)]

    play(story)


def test_a_waiting_fetch_ends_with_its_connection_and_with_the_front() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        gone, wire = await world.wire(), await world.wire()
        gone.send("Fetch", 11, **fetch_fields("t", 0, max_wait_ms=50_000))
        waiting = asyncio.create_task(fetch(wire, 0, max_wait_ms=50_000))
        await parked(world, 2)
        tail = world.front.context.tails.known(partition_name("t", 0))
        assert tail is not None
        gone.close()
        await until(lambda: len(tail.parked) == 1)
        stopping = asyncio.create_task(world.front.stop(30.0))
        assert await waiting == [(0, 0, 0)], "answered at once"
        await stopping

    play(story)


def test_an_offset_behind_the_end_is_waited_for_and_refused_by_the_leader_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wait instead of an error: a consumer resets its position on an out-of-range offset."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        reader, writer = await world.wire(), await world.wire()
        await produce(writer, b"a")
        waiting = asyncio.create_task(fetch(reader, 2, max_wait_ms=50_000))
        await parked(world)
        await produce(writer, b"b")
        await produce(writer, b"c")
        assert (await waiting)[0][0] == 0, "the offset is there now"
        assert await fetch(reader, 2) == [(0, 3, 1)]
        assert await fetch(reader, 9) == [(Error.OFFSET_OUT_OF_RANGE, -1, 0)]
        assert await fetch(reader, 0, 9) == [(0, 3, 3), (Error.OFFSET_OUT_OF_RANGE, -1, 0)]

        async def unavailable(group: int, name: str, **more: object) -> None:
            raise Unavailable("no leader")

        monkeypatch.setattr(world.core.service.reads, "info", unavailable)
        assert await fetch(reader, 9, max_wait_ms=10) == [(Error.OFFSET_NOT_AVAILABLE, -1, 0)]

    play(story)


def test_slices_of_several_partitions_come_together_and_the_next_ones_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        wire, store = await world.wire(), world.core.store
        for _ in range(3):
            for partition in range(2):
                await produce(wire, b"x" * 1000, partition=partition)
            await world.core.flusher.flush_now()
        got: list[int] = []
        original = store.get_range

        async def counted(key: str, begin: int, size: int) -> bytes:
            got.append(begin)
            return await original(key, begin, size)

        monkeypatch.setattr(store, "get_range", counted)
        assert await fetch(wire, 0, 0, partition_max_bytes=1, max_bytes=4 << 20) == [(0, 3, 1)] * 2
        await until(lambda: len(got) == 2)  # of each pack both slices
        counters = world.core.reader.counters
        before = counters.misses
        await asyncio.sleep(0)
        assert await fetch(wire, 1, 1, partition_max_bytes=1, max_bytes=4 << 20) == [(0, 3, 1)] * 2
        assert counters.misses == before, "the second slices were there"
        assert await fetch(wire, 0, 0) == [(0, 3, 3)] * 2
        assert len(got) == 3, "each slice once"

    play(story)
