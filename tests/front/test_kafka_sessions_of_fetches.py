"""Incremental fetch sessions over a socket: what is told, waited for, refused, and forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from front.test_kafka_fetch import parked, produce, until
from front.test_kafka_repeated_fetches import Decoded
from worlds.kafka import KafkaWire, KafkaWorld, OneBroker, batch, plain_fields, play

from polynya.base.names import partition_name
from polynya.front.kafka.errors import Error
from polynya.front.kafka.fetch_sessions import table
from polynya.stream.features.lifetimes.commands import Delete

Told = list[tuple[int, int, int, int]]  # partition, error, high watermark, bytes of records


class Client:
    """A consumer with a session, by topic ids or names."""

    def __init__(self, world: KafkaWorld, wire: KafkaWire, version: int = 18) -> None:
        self.world, self.wire, self.version = world, wire, version
        self.id = self.epoch = 0
        self.error = Error.NONE

    def _topic(self, name: str) -> dict[str, Any]:
        if self.version < 13:
            return {"topic": name}
        known = self.world.front.context.topics.known(name)
        assert known is not None
        return {"topic_id": known.id}

    def _partition(self, number: int, offset: int) -> dict[str, Any]:
        found = {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        found["current_leader_epoch"] = -1
        return found

    async def fetch(
        self,
        offsets: dict[int, int] | None = None,
        forget: tuple[int, ...] = (),
        *,
        topic: str = "t",
        **more: int,
    ) -> Told:
        """Fetch by the next epoch of the session; partitions and their offsets that change."""
        asked = [self._partition(*each) for each in (offsets or {}).items()]
        fields = {
            "max_wait": more.get("max_wait_ms", 0),
            "min_bytes": more.get("min_bytes", 1),
            "max_bytes": more.get("max_bytes", 1 << 20),
            "isolation_level": 0,
            "session_id": more.get("id", self.id),
            "session_epoch": more.get("epoch", self.epoch),
            "topics": [{**self._topic(topic), "partitions": asked}] if asked else [],
            "forgotten_topics_data": (
                [{**self._topic(topic), "partitions": list(forget)}] if forget else []
            ),
        }
        if self.version >= 11:
            fields["rack_id"] = ""
        message = await self.wire.ask(
            "Fetch", self.version, **plain_fields("Fetch", self.version, fields)
        )
        self.error = Error(message.error_code.value)
        if not self.error:
            self.id, self.epoch = message.session_id, self.epoch + 1
        return [
            (each.partition_index, each.error_code.value, each.high_watermark, size)
            for answers in message.responses
            for each in answers.partitions
            for size in (len(each.records or b""),)
        ]


SIZE = len(batch(b"a"))


async def begin(world: KafkaWorld, partitions: int = 3, version: int = 18) -> Client:
    """Begin a session on all partitions of a new topic."""
    await world.topic("t", partitions)
    await world.follow("t")
    client = Client(world, await world.wire(), version)
    fetched = await client.fetch(dict.fromkeys(range(partitions), 0), max_wait_ms=1)
    assert fetched == [(number, 0, 0, 0) for number in range(partitions)] and client.id
    return client


@pytest.mark.parametrize("version", [9, 12, 13, 15, 18])
def test_a_session_tells_news_alone(version: int) -> None:
    async def story(world: KafkaWorld) -> None:
        client, writer = await begin(world, version=version), await world.wire()
        assert await client.fetch(max_wait_ms=1) == []
        assert await client.fetch(max_wait_ms=1) == []
        await produce(writer, b"a", partition=1)
        assert await client.fetch() == [(1, 0, 1, SIZE)]
        assert await client.fetch() == [(1, 0, 1, SIZE)], "the offset is as before"
        assert await client.fetch({1: 1}, max_wait_ms=1) == []
        assert await client.fetch(max_wait_ms=1) == []
        assert await client.fetch({0: 0}, (1,), max_wait_ms=1) == []
        await produce(writer, b"a", partition=1)
        assert await client.fetch(max_wait_ms=1) == [], "forgotten"
        assert await client.fetch({1: 1}) == [(1, 0, 2, SIZE)]
        await produce(await world.wire(), b"b")
        assert await client.fetch({0: 1, 1: 2}, max_wait_ms=1) == [(0, 0, 1, 0)], "an end alone"
        assert world.front.context.fetch_sessions.sessions == 1

    play(story)


def test_an_idle_session_is_not_decoded_and_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Decoded(monkeypatch)

    async def story(world: KafkaWorld) -> None:
        client, writer = await begin(world), await world.wire()
        assert await client.fetch(max_wait_ms=1) == []
        count = decoded.count
        for _ in range(5):
            assert await client.fetch(max_wait_ms=1) == []
        assert decoded.count == count
        assert decoded.count == count
        assert await client.fetch(epoch=client.epoch + 1) == []
        assert client.error == Error.INVALID_FETCH_SESSION_EPOCH
        assert await client.fetch(max_wait_ms=50) == [] and not client.error
        for number in range(3):
            waiting = asyncio.create_task(client.fetch(max_wait_ms=50_000))
            await parked(world)
            await produce(writer, b"a", partition=number)
            assert await waiting == [(number, 0, 1, SIZE)]
            assert await client.fetch({number: 1}, max_wait_ms=1) == []

    play(story)


def test_requests_that_are_not_the_next_are_refused() -> None:
    async def story(world: KafkaWorld) -> None:
        client = await begin(world)
        other = Client(world, await world.wire())
        other.id, other.epoch = client.id, client.epoch
        assert await other.fetch() == [] and other.error == Error.FETCH_SESSION_ID_NOT_FOUND
        for id_, epoch, error in (
            (client.id, 7, Error.INVALID_FETCH_SESSION_EPOCH),
            (client.id, -7, Error.INVALID_FETCH_SESSION_EPOCH),
            (client.id + 1, 1, Error.FETCH_SESSION_ID_NOT_FOUND),
            (0, 1, Error.FETCH_SESSION_ID_NOT_FOUND),
        ):
            assert await client.fetch(id=id_, epoch=epoch) == [] and client.error == error
        client.version = 12
        assert await client.fetch() == [] and client.error == Error.FETCH_SESSION_TOPIC_ID_ERROR
        client.version = 18
        assert await client.fetch(max_wait_ms=1) == [] and not client.error
        sessionless = await client.fetch({0: 0}, id=0, epoch=-1, max_wait_ms=1)
        assert sessionless == [(0, 0, 0, 0)] and client.id == 0

    play(story)


def test_a_session_ends_with_its_connection_and_by_the_last_epoch() -> None:
    async def story(world: KafkaWorld) -> None:
        client, sessions = await begin(world), world.front.context.fetch_sessions
        assert (sessions.sessions, sessions.partitions) == (1, 3)
        old = client.id
        assert len(await client.fetch({0: 0, 1: 0}, epoch=0, max_wait_ms=1)) == 2
        assert client.id not in (0, old) and (sessions.sessions, sessions.partitions) == (1, 2)
        assert len(await client.fetch({0: 0}, epoch=-1, max_wait_ms=1)) == 1
        assert client.id == 0 and (sessions.sessions, sessions.partitions) == (0, 0)
        assert len(await client.fetch({0: 0}, epoch=0, max_wait_ms=1)) == 1
        assert client.id and sessions.sessions == 1
        client.wire.close()
        await until(lambda: not sessions.sessions)
        assert sessions.partitions == 0

    play(story)


def test_a_declined_session_is_0_and_a_large_one_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "KAFKA_FETCH_SESSION_PARTITIONS_MAX", 3)

    async def story(world: KafkaWorld) -> None:
        client = await begin(world)
        assert await client.fetch({3: 0}) == []
        assert client.error == Error.FETCH_SESSION_ID_NOT_FOUND
        for _ in range(3):
            fetched = await client.fetch(dict.fromkeys(range(4), 0), id=0, epoch=0, max_wait_ms=1)
            assert len(fetched) == 4 and client.id == 0
        assert world.front.context.fetch_sessions.declined == 3

    play(story)


def test_errors_are_told_until_they_are_over_and_then_the_partition() -> None:
    class NewEpoch(OneBroker):
        def epoch_of(self, group: int) -> int:
            return 1

    async def story(world: KafkaWorld) -> None:
        client = await begin(world)
        assert await client.fetch({7: 0}, max_wait_ms=50_000) == [
            (7, Error.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)
        ]
        assert await client.fetch(max_wait_ms=50_000) == [
            (7, Error.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)
        ]
        assert await client.fetch({1: 9}, (7,), max_wait_ms=1) == [
            (1, Error.OFFSET_OUT_OF_RANGE, -1, 0)
        ]
        assert await client.fetch({1: 0}, max_wait_ms=1) == [(1, 0, 0, 0)]
        assert await client.fetch(max_wait_ms=1) == []
        world.use(NewEpoch())
        assert await client.fetch(max_wait_ms=1) == []
        name = partition_name("t", 2)
        service = world.core.service
        await client.fetch(max_wait_ms=1)
        waiting = asyncio.create_task(client.fetch(max_wait_ms=50_000))
        await parked(world)
        await service.call(service.group_of(name), Delete(name, service.now_ms()))
        assert await waiting == [(2, Error.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)]

    play(story)


def test_each_partition_has_its_turn_in_small_responses() -> None:
    async def story(world: KafkaWorld) -> None:
        client, writer = await begin(world, 4), await world.wire()
        for number in range(4):
            for _ in range(3):
                await produce(writer, b"a", partition=number)
        offsets, order = dict.fromkeys(range(4), 0), []
        changed: dict[int, int] = {}
        for _ in range(12):
            fetched = await client.fetch(changed, max_bytes=SIZE)
            ((number, size),) = [(each[0], each[3]) for each in fetched if each[3]]
            order.append(number)
            offsets[number] += size // SIZE
            changed = {number: offsets[number]}
        assert order == [0, 1, 2, 3] * 3

    play(story)


def test_a_request_twice_in_flight_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: KafkaWorld) -> None:
        client = await begin(world)
        assert await client.fetch(max_wait_ms=1) == await client.fetch(max_wait_ms=1) == []
        fields = plain_fields(
            "Fetch",
            18,
            {
                "max_wait": 1,
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "isolation_level": 0,
                "session_id": client.id,
                "session_epoch": client.epoch,
                "topics": [],
                "forgotten_topics_data": [],
                "rack_id": "",
            },
        )
        for _ in range(2):
            client.wire.send("Fetch", 18, **fields)
        codes = [(await client.wire.answer("Fetch", 18))[1].error_code.value for _ in range(2)]
        assert codes == [0, Error.INVALID_FETCH_SESSION_EPOCH]

    play(story)
