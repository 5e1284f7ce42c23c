"""Fetches that idle consumers repeat: the same bytes, without decoding, until something changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from front.test_kafka_fetch import Found, fetch, parked, produce, until
from worlds.kafka import KafkaWorld, OneBroker, fetch_fields, frame, plain_fields, play

from polynya.base.names import partition_name
from polynya.front.kafka import dispatch, repeated_fetches
from polynya.front.kafka.errors import Error
from polynya.local.api import Refusal, TrimQuery
from polynya.stream.features.lifetimes.commands import Delete
from polynya.wire.kafka.messages import APIS

FETCH = APIS[1]
IDLE: Found = [(0, 0, 0), (0, 0, 0)]


class Decoded:
    """Counts the fetches that are decoded."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = dispatch.decode_request

        def counted(api: Any, *arguments: Any) -> Any:
            self.count += api is FETCH
            return original(api, *arguments)

        patch.setattr(dispatch, "decode_request", counted)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Decoded:
    return Decoded(monkeypatch)


def test_a_repeat_gets_the_same_bytes_without_decoding(decoded: Decoded) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        await world.follow("t")
        wire = await world.wire()
        answers = []
        for correlation in (7, 1 << 30, 9):
            request = frame("Fetch", 11, correlation, **fetch_fields("t", 0, 0, max_wait_ms=5))
            wire.writer.write(request)
            body = await wire.receive()
            assert int.from_bytes(body[:4], signed=True) == correlation
            answers.append(body[4:])
        assert len({*answers}) == 1 and decoded.count == 1
        assert await fetch(wire, 0, 0, max_wait_ms=5) == IDLE
        assert await fetch(wire, 0, 0, max_wait_ms=6) == IDLE
        assert decoded.count == 2, "another request"
        other = await world.wire()
        assert await fetch(other, 0, 0, max_wait_ms=6) == IDLE
        assert decoded.count == 3, "another connection"

    play(story)


@pytest.mark.parametrize("version", [4, 5, 7, 9, 11, 12])
def test_the_order_of_partitions_does_not_matter(version: int, decoded: Decoded) -> None:
    """Ignore the order of partitions, except in versions whose partitions have a fixed size.
    Another offset always matters."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 5)
        await world.follow("t")
        wire = await world.wire()

        async def ask(order: list[int], offset: int = 0) -> list[int]:
            partition = {"partition_max_bytes": 1 << 20}
            partition |= {"current_leader_epoch": -1} if version >= 9 else {}
            partitions = [{"partition": at, "fetch_offset": offset, **partition} for at in order]
            fields = {
                "max_wait": 5,
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "isolation_level": 0,
                "topics": [{"topic": "t", "partitions": partitions}],
            }
            if version >= 7:
                fields |= {"session_id": 0, "forgotten_topics_data": []}
            if version >= 11:
                fields |= {"rack_id": ""}
            message = await wire.ask("Fetch", version, **plain_fields("Fetch", version, fields))
            (answers,) = message.responses
            assert all(each.high_watermark == 0 for each in answers.partitions if not offset)
            return sorted(each.partition_index for each in answers.partitions)

        for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2], [4, 3, 2, 1, 0]):
            assert await ask(order) == [0, 1, 2, 3, 4]
        assert decoded.count == (1 if version < 12 else 3)
        assert await ask([0, 1, 2, 3]) == [0, 1, 2, 3]
        assert await ask([0, 1, 2, 3], 1) == [0, 1, 2, 3]
        assert decoded.count == (3 if version < 12 else 5)

    play(story)


def test_a_repeat_waits_and_is_woken(decoded: Decoded) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        await world.follow("t")
        wire, writer = await world.wire(), await world.wire()
        for _ in range(3):
            assert await fetch(wire, 0, 0, max_wait_ms=20) == IDLE
        began = asyncio.get_running_loop().time()
        assert await fetch(wire, 0, 0, max_wait_ms=20) == IDLE
        assert asyncio.get_running_loop().time() - began >= 0.015
        assert decoded.count == 1
        for number in range(3):
            other = asyncio.create_task(fetch(wire, number, 0, max_wait_ms=50_000, min_bytes=60))
            await parked(world)
            await produce(writer, b"%d" % number)
            assert await other == [(0, number + 1, 1), (0, 0, 0)]
        assert await fetch(wire, 3, 0, max_wait_ms=1) == [(0, 3, 0), (0, 0, 0)]
        waiting = asyncio.create_task(fetch(wire, 3, 0, max_wait_ms=1))
        await produce(writer, b"3")
        assert await waiting in ([(0, 3, 0), (0, 0, 0)], [(0, 4, 1), (0, 0, 0)])
        assert await fetch(wire, 3, 0, max_wait_ms=1) == [(0, 4, 1), (0, 0, 0)]

    play(story)


def test_a_repeat_that_grows_too_little_is_answered_in_the_end(decoded: Decoded) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        await world.follow("t")
        wire, more = await world.wire(), {"max_wait_ms": 2000, "min_bytes": 10_000}
        assert await fetch(wire, 0, 0, **more) == IDLE
        waiting = asyncio.create_task(fetch(wire, 0, 0, **more))
        await parked(world)
        await produce(await world.wire(), b"a")
        assert await waiting == [(0, 1, 1), (0, 0, 0)]
        assert decoded.count == 2

    play(story)


def test_a_new_epoch_or_a_lost_leadership_is_looked_at(
    decoded: Decoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NewEpoch(OneBroker):
        def epoch_of(self, group: int) -> int:
            return 1

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        await world.follow("t")
        wire = await world.wire()
        for count in (1, 1):
            assert await fetch(wire, 0, 0, max_wait_ms=1) == IDLE
            assert decoded.count == count
        world.use(NewEpoch())
        for count in (2, 2):
            assert await fetch(wire, 0, 0, max_wait_ms=1) == IDLE
            assert decoded.count == count
        monkeypatch.setattr(world.core.service, "is_readable", lambda group: False)
        for count in (3, 4):
            assert await fetch(wire, 0, 0, max_wait_ms=1) == IDLE
            assert decoded.count == count

    play(story)


def test_a_trim_is_told_in_time_and_a_deletion_at_once(
    decoded: Decoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_fetches, "FRESH_SECONDS", 0.2)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        await world.follow("t")
        wire, name = await world.wire(), partition_name("t", 0)
        await produce(wire, b"a")
        service = world.core.service
        group = service.group_of(name)

        async def starts() -> int:
            fields = fetch_fields("t", 1, max_wait_ms=1)
            message = await wire.ask("Fetch", 11, **fields)
            return int(message.responses[0].partitions[0].log_start_offset)

        assert [await starts() for _ in range(2)] == [0, 0]
        assert not isinstance(await service.trim(TrimQuery(name, 1, 0)), Refusal)
        async with asyncio.timeout(60):
            while await starts() != 1:
                pass
        assert await fetch(wire, 1, max_wait_ms=1) == [(0, 1, 0)]
        waiting = asyncio.create_task(fetch(wire, 1, max_wait_ms=50_000))
        await parked(world)
        await service.call(group, Delete(name, service.now_ms()))
        assert await waiting == [(Error.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)]

    play(story)


def test_a_repeat_that_waits_ends_with_the_front(decoded: Decoded) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        await world.follow("t")
        wire = await world.wire()
        for _ in range(2):
            assert await fetch(wire, 0, 0, max_wait_ms=200) == IDLE
        waiting = asyncio.create_task(fetch(wire, 0, 0, max_wait_ms=200))
        await parked(world)
        stopping = asyncio.create_task(world.front.stop(30.0))
        assert await waiting == IDLE
        assert decoded.count == 1
        await stopping

    play(story)


def test_a_repeat_stays_at_the_tails_until_another_fetch_or_the_end() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        await world.follow("t")
        wire, tails = await world.wire(), world.front.context.tails
        known = [tails.known(partition_name("t", number)) for number in range(2)]

        def waiting() -> list[int]:
            return [len(each.parked) for each in known if each is not None]

        async def repeat() -> list[int]:
            for _ in range(3):
                assert await fetch(wire, 0, 0, max_wait_ms=5) == IDLE
            return waiting()

        assert waiting() == [0, 0]
        assert await repeat() == [1, 1]
        assert await fetch(wire, 0, max_wait_ms=5) == [(0, 0, 0)]
        assert waiting() == [0, 0]
        assert await repeat() == [1, 1]
        await produce(await world.wire(), b"a")
        assert await fetch(wire, 0, 0, max_wait_ms=5) == [(0, 1, 1), (0, 0, 0)]
        assert waiting() == [0, 0]
        for _ in range(2):
            assert await fetch(wire, 1, 0, max_wait_ms=5) == [(0, 1, 0), (0, 0, 0)]
        assert waiting() == [1, 1]
        wire.close()
        await until(lambda: waiting() == [0, 0])

    play(story)
