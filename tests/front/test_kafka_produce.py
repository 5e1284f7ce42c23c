"""The records of a Produce request are checked; producers go on in a topic that exists again."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import struct
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import cramjam
import pytest
from front.test_kafka_front import compressed, fetch, offset_of, produce
from google_crc32c import value as crc32c
from polling import wait_for
from worlds.compaction import with_codec
from worlds.kafka import KafkaWorld, batch, made, play, produce_fields

from polynya.front.kafka import produce as produces
from polynya.front.kafka.batch_checks import AT_ONCE_BYTES
from polynya.front.kafka.errors import Error
from polynya.front.kafka.topics import producers
from polynya.front.kafka.topics.catalog import TopicCatalog
from polynya.front.kafka.topics.producers import DeletedTopics
from polynya.stream.command import Command
from polynya.stream.replies import Reply
from polynya.wire.kafka import batches
from polynya.wire.kafka.batches import Record, build_batch

FALSE = (
    ("a false gzip frame", b"no gzip at all, and long enough", 1, 1),
    (
        "a gzip frame of junk",
        gzip.compress(b"", mtime=0)[:10] + b"junk" * 8 + bytes((9, 0, 0, 0)),
        1,
        1,
    ),
    ("a count above those in gzip", gzip.compress(bytes((12, 0, 0, 0, 1, 1, 0)), mtime=0), 2, 1),
    (
        "a count below those in gzip",
        gzip.compress(bytes((12, 0, 0, 0, 1, 1, 0)) * 3, mtime=0),
        2,
        1,
    ),
    ("2^31-1 records in 7 bytes", bytes((12, 0, 0, 0, 1, 1, 0)), 2**31 - 1, 0),
    ("a count below the records", bytes((12, 0, 0, 0, 1, 1, 0)) * 3, 2, 0),
    ("a count above the records", bytes((12, 0, 0, 0, 1, 1, 0)), 2, 0),
)


@pytest.mark.parametrize(("body", "records", "codec"), [each[1:] for each in FALSE])
def test_records_that_no_consumer_can_read_are_refused(
    body: bytes, records: int, codec: int
) -> None:
    """Consumers would not get past them."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        assert await produce(wire, "t", made(body, records=records, codec=codec)) == [
            (Error.INVALID_RECORD, -1)
        ]
        assert await produce(wire, "t", batch(b"a")) == [(0, 0)]
        assert await fetch(wire, "t", 0) == [(0, 1, [(0, b"a")])]

    play(story)


def test_a_full_check_decodes_what_is_compressed_in_the_order_of_the_requests() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("quick")
        await world.front.context.topics.create("full", 1, [("records.check", "full")])
        wire = await world.wire()
        large = compressed("zstd", [9000] * 1000)[batches.HEADER_BYTES :]
        wrong = made(large, records=999, codec=4)
        assert await produce(wire, "quick", wrong) == [(0, 0)]
        assert await produce(wire, "full", wrong) == [(Error.INVALID_RECORD, -1)]
        for sequence in range(6):  # odd ones are not compressed, and overtake nothing
            sent = batch(b"%d" % sequence, producer=(7, 0, sequence))
            if sequence % 2 == 0:
                packed = bytes(cramjam.zstd.compress(sent[batches.HEADER_BYTES :]))
                sent = made(packed, codec=4, producer=(7, 0, sequence))
            wire.send("Produce", 9, **produce_fields("full", sent))
        for sequence in range(6):
            _, answer = await wire.answer("Produce", 9)
            (found,) = answer.responses[0].partition_responses
            assert (found.error_code.value, found.base_offset) == (0, sequence)

    play(story)


def test_small_compressed_batches_are_decoded_on_the_loop_unless_they_are_many() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 6)
        wire = await world.wire()
        in_threads = []

        async def to_thread(work: Callable[..., object], *given: object) -> object:
            in_threads.append(work)
            return work(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(produces.asyncio, "to_thread", to_thread)
            sound = compressed("gzip", [9000])
            false = made(sound[batches.HEADER_BYTES :], records=2, codec=1)
            refused = (Error.INVALID_RECORD, -1)
            assert await produce(wire, "t", sound, false) == [(0, 0), refused]
            assert not in_threads
            assert await produce(wire, "t", *[sound, false] * 3) == [
                *[(0, 1), refused],
                *[(0, 0), refused] * 2,
            ]
            assert len(in_threads) == 1

    play(story)


def test_a_compacted_topic_refuses_records_without_a_key() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.front.context.topics.create("c", 1, [("cleanup.policy", "compact,delete")])
        wire = await world.wire()
        keyed = [Record(b"k%d" % at, b"v") for at in range(100)]
        for codec in range(5):
            whole = with_codec(build_batch(keyed), codec)
            assert [code for code, _ in await produce(wire, "c", whole)] == [0]
            for at in (0, 50, 99):
                records = [*keyed[:at], Record(None, b"v"), *keyed[at + 1 :]]
                batch = with_codec(build_batch(records), codec)
                assert await produce(wire, "c", batch) == [(Error.INVALID_RECORD, -1)]
        await world.front.context.topics.create("d", 1, [])
        one = build_batch([Record(None, b"v")])
        assert [code for code, _ in await produce(wire, "d", one)] == [0], "of other topics"

    play(story)


def test_large_batches_are_checked_beside_the_loop() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        wire = await world.wire()
        large = batch(*[b"v" * 1000] * 300)
        assert len(large) > AT_ONCE_BYTES
        false = bytearray(large)
        false[-1] ^= 2
        struct.pack_into(">I", false, 17, crc32c(bytes(false[21:])))
        in_threads = []

        async def to_thread(work: Callable[..., object], *given: object) -> object:
            in_threads.append(work)
            return work(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(produces.asyncio, "to_thread", to_thread)
            assert await produce(wire, "t", bytes(false), batch(b"a")) == [
                (Error.INVALID_RECORD, -1),
                (0, 0),
            ]
            assert await produce(wire, "t", large, batch(b"b")) == [(0, 0), (0, 1)]
            assert len(in_threads) == 2
            assert await produce(wire, "t", batch(b"c"), batch(b"c")) == [(0, 300), (0, 2)]
            assert len(in_threads) == 2
            limit = ("message.timestamp.before.max.ms", str(2**60))
            await world.front.context.topics.create("timed", 1, [limit])
            assert await produce(wire, "timed", batch(b"c")) == [(0, 0)]
            assert len(in_threads) == 2
            assert await produce(wire, "timed", compressed("zstd", [9000])) == [(0, 1)]
            assert len(in_threads) == 3, "to decode it takes long, however small it is"

    play(story)


@pytest.mark.parametrize(("acks", "stored"), [(-1, 0), (0, 1)])
def test_a_batch_that_waits_is_not_stored_for_a_client_that_has_gone(
    acks: int, stored: int
) -> None:
    """The client sends the batch again, on another connection. Without acks it does not wait."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        large = batch(b"v" * (AT_ONCE_BYTES + 1))
        checking = world.front.context.turns.checking
        wire = await world.wire()
        async with checking:
            wire.send("Produce", 9, **produce_fields("t", large, acks=acks))
            await wait_for(lambda: checking._waiters)
            wire.close()
            await wait_for(lambda: not len(world.front.connections))
        assert await produce(await world.wire(), "t", large) == [(0, stored)]

    play(story)


@pytest.mark.parametrize("said", [0, 4000])
def test_a_header_gets_the_time_of_its_newest_record(said: int) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        sent = bytearray(batch(b"a", b"b", time_ms=2000))
        struct.pack_into(">q", sent, 35, said)
        struct.pack_into(">I", sent, 17, crc32c(bytes(sent[21:])))
        assert await produce(wire, "t", bytes(sent)) == [(0, 0)]
        assert await offset_of(wire, "t", 2001) == 1
        assert await offset_of(wire, "t", 2002) == -1
        assert await fetch(wire, "t", 0) == [(0, 2, [(0, b"a"), (1, b"b")])]

    play(story)


async def given_ids(world: KafkaWorld, count: int) -> list[int]:
    """Return the ids of producers that ask at the same time."""
    wires = [await world.wire() for _ in range(count)]
    fields = {"transactional_id": None, "transaction_timeout": timedelta(seconds=1)}
    for wire in wires:
        wire.send("InitProducerId", 1, **fields)
    return [(await wire.answer("InitProducerId", 1))[1].producer_id for wire in wires]


def test_a_topic_is_deleted_and_created_again_under_an_idempotent_producer() -> None:
    """Continue with the producer; a later one starts at 0."""

    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        (early,) = await given_ids(world, 1)
        await world.topic("t")
        for sequence in range(3):
            sent = batch(b"a", producer=(early, 0, sequence))
            assert await produce(wire, "t", sent) == [(0, sequence)]
        topic = world.front.context.topics.known("t")
        assert topic is not None
        await world.front.context.topics.drop(topic)
        await world.topic("t")
        assert await produce(wire, "t", batch(b"b", producer=(early, 0, 3))) == [(0, 0)]
        assert await produce(wire, "t", batch(b"b", producer=(early, 0, 3))) == [(0, 0)], "again"
        assert await produce(wire, "t", batch(b"c", producer=(early, 0, 4))) == [(0, 1)]
        (late,) = await given_ids(world, 1)
        await world.topic("first")
        for id_, name in ((late, "t"), (early, "first")):
            lost = batch(b"d", producer=(id_, 0, 1))
            assert await produce(wire, name, lost) == [(Error.NOT_ENOUGH_REPLICAS, -1)]

    play(story)


def test_a_topic_is_created_again_by_a_node_that_did_not_see_its_deletion() -> None:
    """Another node, or the same one after a restart: its catalog begins with nothing."""

    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        (early,) = await given_ids(world, 1)
        await world.topic("t")
        assert await produce(wire, "t", batch(b"a", producer=(early, 0, 0))) == [(0, 0)]
        topic = world.front.context.topics.known("t")
        assert topic is not None
        await world.front.context.topics.drop(topic)
        ids = itertools.count(100)
        other = TopicCatalog(world.core.service, lambda: next(ids).to_bytes(16))
        following = asyncio.ensure_future(other.follow())
        await asyncio.sleep(0)
        for name in ("t", "first"):
            await other.create(name, 1, [])
        following.cancel()
        await world.front.context.topics.refresh()
        assert await produce(wire, "t", batch(b"b", producer=(early, 0, 1))) == [(0, 0)]
        (late,) = await given_ids(world, 1)
        for id_, name in ((late, "t"), (early, "first")):
            lost = batch(b"d", producer=(id_, 0, 1))
            assert await produce(wire, name, lost) == [(Error.NOT_ENOUGH_REPLICAS, -1)]

    play(story)


def test_the_oldest_names_of_deleted_topics_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: KafkaWorld) -> None:
        now = itertools.count(1)
        monkeypatch.setattr(producers, "DELETED_TOPICS_MAX", 3)
        meta_group = world.core.service.meta_group
        service: Any = SimpleNamespace(meta_group=meta_group, now_ms=lambda: next(now))
        here, there = DeletedTopics(service), DeletedTopics(service)
        for name in ("a", "b", "a"):
            await here.add(name)
        await asyncio.gather(here.add("c"), there.add("d"), here.add("e"))
        assert [await there.has(name) for name in "abcde"] == [False, False, True, True, True]

    play(story)


def test_ids_of_producers_that_ask_at_once_take_few_entries() -> None:
    async def story(world: KafkaWorld) -> None:
        service, calls = world.front.context.service, []
        original = service.call

        async def call(group: int, command: Command) -> Reply:
            calls.append(command)
            return await original(group, command)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service, "call", call)
            given = await given_ids(world, 20)
            assert len(set(given)) == 20
            assert len(calls) < 20
            before = len(calls)
            assert (await given_ids(world, 1))[0] > max(given), "none is kept for later"
            assert len(calls) == before + 1

    play(story)
