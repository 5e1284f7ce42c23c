"""`/v1/mirror/TOPIC/PARTITION`: batches of another cluster keep their offsets, whatever is missing
between them, and nothing else is written to the topic."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import google_crc32c
import pytest
from stories.service import story
from worlds.kafka import KafkaWorld, batch, fetch_fields, play, produce_fields
from worlds.service import World

from polynya.access import Principal
from polynya.access.grants import Grant, Verb
from polynya.base.limits import MIRROR_BATCHES_MAX
from polynya.front.http.api.kafka.mirror import PREFIX, MirrorRoutes
from polynya.front.http.api.kafka.topics import TopicRoutes
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request
from polynya.front.kafka.topics.catalog import TopicCatalog
from polynya.local.api import Page, ReadQuery
from polynya.wire.kafka.batches import batches_of, header_of
from polynya.wire.kafka.records import decoded_records, placed_batches

SOURCE = "old:9092"
Send = Callable[..., Awaitable[dict[str, Any]]]


def at(
    offset: int, *values: bytes, deltas: tuple[int, ...] = (), last: int = -1, attributes: int = 0
) -> bytes:
    """A batch at an offset, whose records have these offset deltas."""
    made = bytearray(batch(*values))
    for number, delta in enumerate(deltas):  # each record is short: its delta is its fourth byte
        position = 61
        for _ in range(number):
            position += 1 + (made[position] >> 1)
        made[position + 3] = 2 * delta
    last = max([len(values) - 1, last, *deltas])
    struct.pack_into(">hi", made, 21, attributes, last)
    struct.pack_into(">q", made, 0, offset)
    struct.pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
    return bytes(made)


def sender(world: World, topics: TopicCatalog | None = None) -> Send:
    ids = iter(range(1, 100))
    routes = TopicRoutes(world.service, lambda: next(ids).to_bytes(16), partitions=1)
    mirror = MirrorRoutes(world.service, topics or routes.topics)

    async def send(
        path: str, *batches: bytes, method: str = "POST", principal: Any = None, **query: int | str
    ) -> dict[str, Any]:
        segments = tuple(path.split("/"))
        texts = {name: str(value) for name, value in query.items()}
        request = Request(method, PREFIX, segments, texts, {}, b"".join(batches), "", principal)
        answer = await mirror.handle(request)
        assert answer.status == 200
        return dict(json.loads(answer.body))

    send.topics = routes.topics  # type: ignore[attr-defined]
    return send


async def created(send: Send, name: str = "t", **configs: str) -> None:
    configs = {"mirror.from": SOURCE, **{key.replace("_", "."): configs[key] for key in configs}}
    await send.topics.create(name, 2, sorted(configs.items()))  # type: ignore[attr-defined]


async def refused(sent: Awaitable[Any]) -> Failure:
    with pytest.raises(Failure) as failure:
        await sent
    return failure.value


@story
async def test_batches_keep_their_offsets(world: World) -> None:
    send = sender(world)
    await created(send)
    answer = await send("t/0", at(0, b"a", b"b"), at(2, b"c"), begin=0, end=3, first=0)
    assert answer == {"first_offset": 0, "next_offset": 3, "mirror.from": SOURCE}
    # a gap before a batch, one in it, one behind it
    sparse = at(5, b"d", b"e", deltas=(1, 6), last=9)
    answer = await send("t/0", sparse, begin=3, end=20)
    assert answer["next_offset"] == 20
    again = await send("t/0", sparse, begin=3, end=20)
    assert again == answer, "a repeat changes nothing"
    assert await send("t/0", method="GET") == answer
    assert (await send("t/1", method="GET"))["next_offset"] == 0


@story
async def test_a_mirror_begins_where_its_source_does(world: World) -> None:
    send = sender(world)
    await created(send)
    answer = await send("t/0", at(1004, b"a"), begin=1000, end=1005, first=1000)
    assert (answer["first_offset"], answer["next_offset"]) == (1000, 1005)
    # the source deletes records: in the middle of a batch, and all of them
    await send("t/0", at(1005, b"b", b"c", b"d"), begin=1005, end=1008, first=1000)
    assert (await send("t/0", begin=1008, end=1008, first=1006))["first_offset"] == 1006
    answer = await send("t/0", begin=1008, end=1010, first=1010)
    assert (answer["first_offset"], answer["next_offset"]) == (1010, 1010)
    # a source whose first batch begins before its start
    answer = await send("t/1", at(7, b"a", b"b", b"c"), begin=7, end=10, first=8)
    assert (answer["first_offset"], answer["next_offset"]) == (8, 10)


@story
async def test_nothing_is_left_out(world: World) -> None:
    send = sender(world)
    await created(send)
    await send("t/0", at(0, b"a", b"b"), begin=0, end=2)
    for begin, offset in ((3, 3), (1, 1)):
        failure = await refused(send("t/0", at(offset, b"c", b"d"), begin=begin, end=9))
        assert failure.code == "TOPIC_CONFLICT"
        assert "the partition ends at offset 2" in failure.message
    failure = await refused(send("t/0", begin=5, end=9))
    assert failure.code == "TOPIC_CONFLICT"
    assert (await send("t/0", method="GET"))["next_offset"] == 2


BAD: list[tuple[str, dict[str, Any]]] = [
    ("bytes follow the last whole one", {"body": at(0, b"a")[:-3] + b"", "code": "INVALID_REQUEST"}),
    ("the CRC-32C does not match", {"body": at(0, b"a")[:-1] + b"z"}),
    ("attributes 0x10", {"body": at(0, b"a", attributes=0x10)}),
    ("attributes 0x20", {"body": at(0, b"a", attributes=0x20)}),
    ("attributes 0x7", {"body": at(0, b"a", attributes=7)}),
    ("producer \\(4, 0, 0\\)", {"body": batch(b"a", producer=(4, 0, 0))}),
    ("expected 5 or later", {"body": at(4, b"a"), "begin": 5, "end": 9}),
    ("expected 2 or later", {"body": at(0, b"a", b"b") + at(1, b"c")}),
    ("ends at offset 2, behind 1", {"body": at(0, b"a", b"b"), "end": 1}),
    ("1 record or more", {"body": at(0, b"a", b"b", b"c")[:23] + bytes(4) + at(0, b"a", b"b", b"c")[27:]}),
]  # fmt: skip


@story
async def test_bodies_that_are_refused(world: World) -> None:
    send = sender(world)
    await created(send)
    for why, given in BAD:
        body, begin, end = given["body"], given.get("begin", 0), given.get("end", 9)
        if why.startswith("1 record"):
            fixed = bytearray(body)
            struct.pack_into(">I", fixed, 17, google_crc32c.value(bytes(fixed[21:])))
            body = bytes(fixed)
        with pytest.raises(Failure) as failure:
            await send("t/0", body, begin=begin, end=end)
        assert failure.value.code == "INVALID_REQUEST", why
    old = bytearray(at(0, b"a"))
    old[16] = 1
    assert "magic 1" in (await refused(send("t/0", bytes(old), begin=0, end=1))).message
    many = b"".join(at(number, b"") for number in range(MIRROR_BATCHES_MAX + 1))
    failure = await refused(send("t/0", many, begin=0, end=MIRROR_BATCHES_MAX + 1))
    assert "send them in several bodies" in failure.message
    for query in ({}, {"begin": 0}, {"begin": 3, "end": 2}, {"begin": "x", "end": 2}):
        assert (await refused(send("t/0", **query))).code == "INVALID_PARAMETER"
    assert (await send("t/0", method="GET"))["next_offset"] == 0


@story
async def test_topics_that_are_refused(world: World) -> None:
    send = sender(world)
    await send.topics.create("own", 1, [])  # type: ignore[attr-defined]
    failure = await refused(send("own/0", at(0, b"a"), begin=0, end=1))
    assert failure.code == "TOPIC_CONFLICT"
    assert "topic 'own' is no mirror" in failure.message
    assert (await refused(send("gone/0", begin=0, end=1))).code == "TOPIC_NOT_FOUND"
    assert (await refused(send("a b/0", begin=0, end=1))).code == "TOPIC_INVALID"
    await created(send)
    for number in ("2", "-1", "x", "99999999999999999999"):
        failure = await refused(send(f"t/{number}", begin=0, end=1))
        assert (failure.code, "2 partitions" in failure.message) == ("TOPIC_NOT_FOUND", True)
    assert (await refused(send("t", begin=0, end=1))).code == "NO_ROUTE"
    assert (await refused(send("t/0", method="PUT"))).code == "METHOD_NOT_ALLOWED"
    await created(send, "packed", profile="diskless")
    failure = await refused(send("packed/0", at(0, b"a"), begin=0, end=1))
    assert failure.code == "TOPIC_CONFLICT"
    assert "profile=replicated" in failure.message


@story
async def test_a_token_needs_both_rights(world: World) -> None:
    send = sender(world)
    await created(send)
    for verbs, allowed in (
        ((Verb.APPEND,), False),
        ((Verb.CREATE,), False),
        ((Verb.CREATE, Verb.APPEND), True),
    ):
        principal = Principal(id="1", name="m", grants=(Grant(frozenset(verbs), "kafka/t/"),))
        sent = send("t/0", at(0, b"a"), begin=0, end=1, principal=principal)
        if allowed:
            await sent
        else:
            assert (await refused(sent)).code == "FORBIDDEN"


def test_a_consumer_reaches_the_end_of_a_mirror() -> None:
    async def tell(world: KafkaWorld) -> None:
        send = sender(world.core, world.front.context.topics)
        await world.front.context.topics.create("t", 1, [("mirror.from", SOURCE)])
        await send("t/0", at(2, b"a"), at(6, b"b", b"c", deltas=(0, 2)), begin=2, end=12, first=2)
        wire = await world.wire()

        async def read(offset: int) -> list[tuple[int, int, int]]:
            answer = await wire.ask("Fetch", 11, **fetch_fields("t", offset))
            part = answer.responses[0].partitions[0]
            assert (part.error_code, part.high_watermark) == (0, 12)
            found = [header_of(each) for each in batches_of(part.records or b"")]
            return [(each.base_offset, each.last_offset_delta, each.records) for each in found]

        end = (11, 0, 0)  # an empty batch: what is before it has no records
        assert await read(2) == [(2, 0, 1), (6, 2, 2), end]
        for offset in (3, 4, 5, 6, 7, 8):
            assert await read(offset) == [(6, 2, 2), end]
        for offset in (9, 10, 11):
            assert await read(offset) == [end]
        assert await read(12) == []
        await world.core.flusher.flush_now("")
        assert await read(3) == [(6, 2, 2), end]
        await send("t/0", at(13, b"d"), begin=12, end=14)
        answer = await wire.ask("Fetch", 11, **fetch_fields("t", 9))
        part = answer.responses[0].partitions[0]
        assert [header_of(each).base_offset for each in batches_of(part.records or b"")] == [13]

    play(tell)


def test_a_consumer_passes_a_gap_behind_a_large_slice() -> None:
    """Fetch in a gap that the slice before it covers, with room for less than that slice."""

    async def tell(world: KafkaWorld) -> None:
        send = sender(world.core, world.front.context.topics)
        await world.front.context.topics.create("t", 1, [("mirror.from", SOURCE)])
        many = [at(number, b"x" * 200) for number in range(20)]
        for begin in (0, 30):
            moved = [
                struct.pack(">q", begin + number) + each[8:] for number, each in enumerate(many)
            ]
            await send("t/0", *moved, begin=begin, end=begin + 30, first=0)
            await world.core.flusher.flush_now("")
        await send("t/0", at(60, b"last"), begin=60, end=61)
        wire, offset, seen = await world.wire(), 0, []
        while offset < 61:
            fields = fetch_fields("t", offset, partition_max_bytes=600)
            answer = await wire.ask("Fetch", 11, **fields)
            part = answer.responses[0].partitions[0]
            found = [header_of(each) for each in batches_of(part.records or b"")]
            assert found, f"nothing at {offset}"
            assert all(each.records for each in found), "no empty batch where records follow"
            offset = found[-1].base_offset + 1
            seen += [each.base_offset for each in found]
        assert seen == [*range(20), *range(30, 50), 60]

    play(tell)


def test_a_mirror_takes_no_records_of_producers() -> None:
    async def tell(world: KafkaWorld) -> None:
        topics = world.front.context.topics
        await topics.create("t", 1, [("mirror.from", SOURCE)])
        wire = await world.wire()
        answer = await wire.ask("Produce", 9, **produce_fields("t", batch(b"a")))
        part = answer.responses[0].partition_responses[0]
        assert part.error_code == 44
        assert "polynya mirror --cut-over" in part.error_message
        # another core ends the mirror, and this one has not heard of it
        other = TopicCatalog(world.core.service, lambda: b"x" * 16)
        await other.alter("t", lambda before: {})
        known = topics.ready("t")
        assert known is not None
        assert known.rules.mirror_from
        answer = await wire.ask("Produce", 9, **produce_fields("t", batch(b"a")))
        assert answer.responses[0].partition_responses[0].error_code == 0
        send = sender(world.core, topics)
        assert "is no mirror" in (await refused(send("t/0", begin=1, end=2))).message

    play(tell)


@pytest.mark.parametrize("seed", range(3))
def test_a_mirror_survives_restarts(seed: int) -> None:
    """Send random parts of a source again and again, while the node dies and flushes."""
    chance = random.Random(seed)
    source, at_offset = [], 3
    while at_offset < 120:
        at_offset += chance.choice((0, 0, 0, 1, 6))
        span = chance.choice((1, 2, 4))
        deltas = sorted(chance.sample(range(span), chance.randint(1, span)))
        values = [b"%d" % (at_offset + delta) for delta in deltas]
        source.append((at_offset, span, at(at_offset, *values, deltas=(*deltas,), last=span - 1)))
        at_offset += span
    end = at_offset + 2

    @story
    async def run(world: World) -> None:
        send, tail = sender(world), 3
        await created(send)
        while tail < end:
            some = [each for each in source if each[0] + each[1] > tail][: chance.randint(1, 6)]
            if chance.random() < 0.3:  # a part that was sent before
                some = source[: chance.randint(1, 5)]
            begin = some[0][0] if some and some[0][0] < tail else tail
            last = some[-1][0] + some[-1][1] if some else end
            sent = await send("t/0", *(each[2] for each in some), begin=begin, end=last, first=3)
            tail = sent["next_offset"]
            if chance.random() < 0.3:
                await world.flusher.flush_now()
            if chance.random() < 0.3:
                world.kill()
                send = sender(world)
        found, record = [], 3
        while record < end:
            query = ReadQuery("kafka/t/0", record, 0, 1 << 20, whole_records=True)
            page = await world.service.read(query)
            assert isinstance(page, Page)
            assert page.record > record
            record = page.record
            found += [
                (each.offset, each.value)
                for span in page.spans
                for one, _, first in placed_batches(span.payload, span.record)
                for each in decoded_records(one, first)
            ]
        assert (record, page.info.first_record) == (end, 3)
        assert [offset for offset, _ in found] == [int(value or b"") for _, value in found]
        assert len(found) == sum(header_of(each).records for *_, each in source)

    run()


@story
async def test_when_a_topic_becomes_a_mirror_and_stops_being_one(world: World) -> None:
    ids = iter(range(1, 100))
    routes = TopicRoutes(world.service, lambda: next(ids).to_bytes(16), partitions=1)

    async def ask(method: str, name: str, **body: Any) -> Any:
        sent = json.dumps(body).encode()
        answer = await routes.handle(Request(method, "/v1/topics", (name,), {}, {}, sent, "", None))
        return json.loads(answer.body)["configs"]

    mirror = {"mirror.from": SOURCE}
    assert await ask("PUT", "t", configs=mirror) == mirror
    for given, why in (
        ({"mirror.from": "other:9092"}, "can only be removed"),
        ({"profile": "diskless"}, "while the topic mirrors"),
        ({"mirror.from": "no port"}, "expected brokers"),
    ):
        failure = await refused(ask("PATCH", "t", configs=given))
        assert (failure.code, why in failure.message) == ("TOPIC_INVALID", True), failure.message
    assert await ask("PATCH", "t", configs={"mirror.from": None}) == {}
    failure = await refused(ask("PATCH", "t", configs=mirror))
    assert "is set when 'polynya mirror' creates a topic" in failure.message
    assert await ask("PATCH", "t", configs={"profile": "diskless"}) == {"profile": "diskless"}
    await world.create("shop/orders")
    failure = await refused(ask("PUT", "a", streams=["shop/orders"], configs=mirror))
    assert "leave mirror.from out" in failure.message
