"""Streams that exist become partitions of a topic: Kafka reads what HTTP wrote, and both write."""

from __future__ import annotations

import json
from typing import Any

import google_crc32c
import pytest
from front.test_kafka_front import fetch, offset_of, produce
from google_crc32c import value as crc32c
from worlds.kafka import KafkaWire, KafkaWorld, batch, fetch_fields, play

from polynya.access import Principal
from polynya.access.grants import Grant, Verb
from polynya.front.http.api.kafka.topics import PATH, TopicRoutes
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request
from polynya.front.http.routes.bodies import batch_of
from polynya.front.kafka.errors import Error
from polynya.local.api import StreamInfo
from polynya.stream.features.appends.commands import Append, AppendIf
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code
from polynya.wire.kafka import batches

TEXT, JSON = "text/plain", "application/json"


class Adopter:
    """The routes of topics, and HTTP's way to write."""

    def __init__(self, world: KafkaWorld) -> None:
        self.service = world.core.service
        ids = iter(range(1, 100))
        self.routes = TopicRoutes(self.service, lambda: next(ids).to_bytes(16), partitions=1)

    async def stream(self, name: str, content_type: str = TEXT, **more: Any) -> None:
        encoding = Encoding.JSON if content_type == JSON else Encoding.BYTES
        command = Create(name, self.service.now_ms(), content_type, encoding, **more)
        await self.service.call(self.service.group_of(name), command)

    async def append(self, name: str, body: bytes, content_type: str = TEXT) -> None:
        made = batch_of(Encoding.JSON, body) if content_type == JSON else None
        made = made or Batch(Encoding.BYTES, 1, body, crc32c(body))
        command = Append(name, self.service.now_ms(), content_type, made)
        reply = await self.service.call(self.service.group_of(name), command)
        assert reply.code == 0

    async def adopt(
        self, topic: str, *streams: str, principal: Principal | None = None, **more: Any
    ) -> tuple[int, Any]:
        body = json.dumps({"streams": streams, **more}).encode()
        request = Request("PUT", PATH, (topic,), {}, {}, body, "", principal)
        answer = await self.routes.handle(request)
        return answer.status, json.loads(answer.body)

    async def refused(self, topic: str, *streams: str, **more: Any) -> Failure:
        with pytest.raises(Failure) as refused:
            await self.adopt(topic, *streams, **more)
        return refused.value


async def values(wire: KafkaWire, topic: str, offset: int) -> list[tuple[int, bytes]]:
    ((error, _, found),) = await fetch(wire, topic, offset)
    assert error == 0
    return found


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("content_type", [TEXT, JSON])
def test_kafka_reads_what_http_wrote_and_both_write(content_type: str, flushes: bool) -> None:  # noqa: FBT001
    async def story(world: KafkaWorld) -> None:
        http, wire = Adopter(world), await world.wire()
        await http.stream("shop/orders", content_type)
        whole: list[tuple[int, bytes]] = []

        async def by_http(*found: bytes) -> None:
            for each in [b"[" + b",".join(found) + b"]"] if content_type == JSON else found:
                await http.append("shop/orders", each, content_type)
            whole.extend(enumerate(found, len(whole)))
            if flushes:
                await world.core.flusher.flush_now()

        await by_http(b"1", b"22", b"333")
        status, shown = await http.adopt("orders", "shop/orders")
        assert (status, shown["adopted"]) == (201, ["shop/orders"])
        assert shown["content_type"] == content_type
        assert await produce(wire, "orders", batch(b"k1", b"k2")) == [(0, 3)]
        whole += [(3, b"k1"), (4, b"k2")]
        await by_http(b"4", b"5")
        assert await values(wire, "orders", 0) == whole
        assert await values(wire, "orders", 1) == whole[1:]
        assert await values(wire, "orders", 4) == whole[3:], "Kafka's batch is whole"
        assert await values(wire, "orders", 6) == whole[6:]
        assert [await offset_of(wire, "orders", special) for special in (-2, -1)] == [0, 7]
        assert await offset_of(wire, "orders", 0) == 0, "what HTTP wrote has its append's time"
        assert await offset_of(wire, "orders", world.core.service.now_ms() + 10_000) == -1
        info = await world.core.service.info("shop/orders")
        assert isinstance(info, StreamInfo)
        assert info.record == 7

    play(story)


def test_many_records_come_in_batches_that_clients_accept() -> None:
    async def story(world: KafkaWorld) -> None:
        http, wire = Adopter(world), await world.wire()
        await http.stream("s/big", JSON)
        await http.append("s/big", json.dumps(list(range(30_000))).encode(), JSON)
        await http.append("s/big", json.dumps(["x" * 300_000]).encode(), JSON)
        await http.adopt("t", "s/big")
        found: list[tuple[int, bytes]] = []
        while len(found) < 30_001:
            found += await values(wire, "t", len(found))
        assert found[:30_000] == [(number, b"%d" % number) for number in range(30_000)]
        assert len(found[-1][1]) == 300_002

    play(story)


def test_a_topic_of_streams_is_described_grows_and_leaves_them() -> None:
    async def story(world: KafkaWorld) -> None:
        http, wire = Adopter(world), await world.wire()
        for name in ("s/a", "s/b"):
            await http.stream(name)
            await http.append(name, name.encode())
        assert (await http.adopt("t", "s/a", "s/b", partitions=3))[0] == 201
        assert (await http.adopt("t", "s/a", "s/b", partitions=3))[0] == 200
        shown = await http.routes.handle(Request("GET", PATH, ("t",), {}, {}, b"", ""))
        assert [each["stream"] for each in json.loads(shown.body)["details"]] == [
            "s/a",
            "s/b",
            "kafka/t/2",
        ]
        found = await fetch(wire, "t", 0, 0, 0)
        assert [records for _, _, records in found] == [[(0, b"s/a")], [(0, b"s/b")], []]
        await world.front.context.topics.refresh()
        await world.front.context.topics.drop(world.front.context.topics.names["t"])
        assert isinstance(await world.core.service.info("s/a"), StreamInfo)
        assert not isinstance(await world.core.service.info("kafka/t/2"), StreamInfo)

    play(story)


def test_a_deleted_stream_is_a_missing_partition() -> None:
    async def story(world: KafkaWorld) -> None:
        http, wire = Adopter(world), await world.wire()
        await http.stream("s/a")
        await http.adopt("t", "s/a")
        group = world.core.service.group_of("s/a")
        await world.core.service.call(group, Delete("s/a", 1, 0))
        missing = Error.UNKNOWN_TOPIC_OR_PARTITION
        assert await produce(wire, "t", batch(b"a")) == [(missing, -1)]
        assert await fetch(wire, "t", 0) == [(missing, -1, [])]

    play(story)


def test_a_stream_that_cannot_be_a_partition_is_refused() -> None:
    async def story(world: KafkaWorld) -> None:
        http = Adopter(world)
        await world.topic("own")
        await http.stream("s/a")
        await http.stream("s/ttl", ttl_seconds=60)
        await http.adopt("first", "s/a")
        for streams, said in (
            (["s/none"], "does not exist"),
            (["kafka/own/0"], "is a partition"),
            (["s/ttl"], "expires"),
            (["s/a"], "topic 'first' has adopted"),
        ):
            refused = await http.refused("second", *streams)
            assert refused.code == "TOPIC_CONFLICT"
            assert said in str(refused)
        assert (await http.refused("own", "s/b")).code == "TOPIC_CONFLICT"
        await http.stream("s/b")
        assert "streams of its own" in str(await http.refused("own", "s/b"))
        for streams in (["s/b", "s/b"], ["a//b"], ["/"]):
            assert (await http.refused("second", *streams)).code == "TOPIC_INVALID"

    play(story)


def test_a_token_adopts_the_streams_that_it_may_use() -> None:
    async def story(world: KafkaWorld) -> None:
        http = Adopter(world)
        await http.stream("s/a")
        verbs = [Verb.READ, Verb.APPEND, Verb.DELETE]
        for left in verbs:
            some = Grant(frozenset(set(verbs) - {left}), "s/")
            lacks = Principal(id="1", name="lacks", grants=(some,))
            assert (await http.refused("t", "s/a", principal=lacks)).code == "FORBIDDEN"
        may = Principal(id="2", name="may", grants=(Grant(frozenset(verbs), "s/"),))
        assert (await http.adopt("t", "s/a", principal=may))[0] == 201

    play(story)


async def records(wire: KafkaWire, topic: str, offset: int) -> list[tuple[int, int, bytes | None]]:
    """Return the offset, time and value of the records that one fetch gives; check their batches."""
    message = await wire.ask("Fetch", 11, **fetch_fields(topic, offset))
    (part,) = message.responses[0].partitions
    found = []
    for one in batches.batches_of(part.records):
        header = batches.check_batch(bytes(one), google_crc32c.value(bytes(one)))
        made = list(batches.records_of(one))
        assert (header.producer_id, header.codec) == (-1, 0)
        assert header.max_timestamp == max(each.timestamp for each in made)
        assert all((each.key, each.headers) == (None, ()) for each in made)
        found += [(each.offset, each.timestamp, each.value) for each in made]
    return [each for each in found if each[0] >= offset]


@pytest.mark.parametrize("flushes", ["never", "at the end", "now and then"])
@pytest.mark.parametrize("content_type", [TEXT, JSON])
def test_what_http_wrote_has_the_time_of_its_append(content_type: str, flushes: str) -> None:
    async def story(world: KafkaWorld) -> None:
        http, wire = Adopter(world), await world.wire()
        await http.stream("s/a", content_type)
        whole: list[tuple[int, int, bytes]] = []
        for number in range(12):
            count = number % 3 + 1 if content_type == JSON else 1
            made = [b"%d" % (number * 10 + each) for each in range(count)]
            body = b"[" + b",".join(made) + b"]" if content_type == JSON else made[0]
            now_ms = world.core.service.now_ms()
            await http.append("s/a", body, content_type)
            whole += [(len(whole) + at, now_ms, value) for at, value in enumerate(made)]
            world.core.clock.ms += number % 4 * 7  # some are at one time
            if flushes == "now and then" and number % 5 == 4:
                await world.core.flusher.flush_now()
        if flushes == "at the end":
            await world.core.flusher.flush_now()
        await http.adopt("t", "s/a")
        for offset in range(len(whole)):
            assert await records(wire, "t", offset) == whole[offset:]
        for asked in sorted({time + by for _, time, _ in whole for by in (-1, 0, 1)}):
            wanted = next((at for at, time, _ in whole if time >= asked), -1)
            assert await offset_of(wire, "t", asked) == wanted
        newest = await offset_of(wire, "t", -3)
        assert whole[newest][1] == max(time for _, time, _ in whole)

    play(story)


def test_times_of_a_fork_and_its_source_are_those_of_their_appends() -> None:
    async def story(world: KafkaWorld) -> None:
        http, wire = Adopter(world), await world.wire()
        await http.stream("s/a")
        whole: list[tuple[int, int, bytes]] = []
        for number in range(6):
            if number == 4:
                await world.core.flusher.flush_now()
                reply = await world.core.fork("s/b", "s/a", (4, 4))
                assert reply.code == Code.CREATED
            now_ms = world.core.service.now_ms()
            await http.append("s/b" if number > 3 else "s/a", b"%d" % number)
            whole.append((number, now_ms, b"%d" % number))
            world.core.clock.ms += 5
        await http.adopt("t", "s/b")
        assert [each for _, _, found in await fetch(wire, "t", 0) for each in found]
        found: list[tuple[int, int, bytes | None]] = []
        while len(found) < len(whole):
            found += await records(wire, "t", len(found))
        assert found == whole

    play(story)


def test_aborted_appends_to_several_groups_are_a_gap() -> None:
    async def story(world: KafkaWorld) -> None:
        http, across = Adopter(world), world.core.engine.appends_across
        for name in ("s/a", "s/b", "s/c", "s/d", "s/e"):
            await http.stream(name)
        group = http.service.group_of("s/a")
        other = next(
            name for name in ("s/b", "s/c", "s/d", "s/e") if http.service.group_of(name) != group
        )
        await http.append("s/a", b"one")
        await http.adopt("t", "s/a")
        wire = await world.wire()

        async def together(body: bytes, record: int) -> Code:
            made = [
                (name, http.service.now_ms(), TEXT, Batch(Encoding.BYTES, 1, body, crc32c(body)))
                for name in ("s/a", other)
            ]
            parts = [Append(*made[0]), AppendIf(*made[1], record=record)]
            return Code((await across.append(parts)).code)

        assert await together(b"aborted", 7) == Code.NONE_APPENDED
        await world.core.settle()
        assert (await values(wire, "t", 0))[:1] == [(0, b"one")]
        assert b"aborted" not in [value for _, value in await values(wire, "t", 0)]
        assert await values(wire, "t", 1) == [], "an empty batch moves the client on"
        assert await together(b"two", 0) == Code.OK
        assert await values(wire, "t", 0) == [(0, b"one"), (2, b"two")]

    play(story)
