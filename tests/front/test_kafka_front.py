"""The Kafka front over a core in memory: order, pipelining, waiting, refusals, and nonsense."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as TheirBuilder
from google_crc32c import value as crc32c
from worlds.kafka import (
    KafkaWire,
    KafkaWorld,
    batch,
    fetch_fields,
    frame,
    play,
    produce_fields,
)
from worlds.transactions import plant_end

from polynya.base.errors import OutcomeUnknown
from polynya.base.limits import KAFKA_REQUEST_BYTES_MAX, KAFKA_SMALL_REQUEST_BYTES_MAX, TIME_MS_MAX
from polynya.base.names import partition_name
from polynya.front.kafka import produce as produces
from polynya.front.kafka.errors import Error
from polynya.objectstore import MemoryStore
from polynya.routing.handle import StreamHandle
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.lifetimes.commands import Create, Touch
from polynya.stream.features.topics.commands import TopicDrop, TopicPut
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code
from polynya.stream.state.model import KafkaState, OpenTransaction
from polynya.wire.kafka import batches, record_checks

ID = bytes([9]) * 16


async def produce(wire: KafkaWire, topic: str, *sent: bytes, **more: int) -> list[tuple[int, int]]:
    """Return (error, base offset) of each batch."""
    message = await wire.ask("Produce", 9, **produce_fields(topic, *sent, **more))
    return [
        (each.error_code.value, each.base_offset)
        for each in message.responses[0].partition_responses
    ]


async def fetch(
    wire: KafkaWire, topic: str, *offsets: int, **more: int
) -> list[tuple[int, int, list[tuple[int, bytes]]]]:
    """Return (error, high watermark, [(offset, value)]) of each partition."""
    message = await wire.ask("Fetch", 11, **fetch_fields(topic, *offsets, **more))
    found = []
    for each in message.responses[0].partitions:
        records = [
            (record.offset, record.value)
            for one in batches.batches_of(each.records or b"")
            for record in DefaultRecordBatch(bytes(one))
        ]
        found.append((each.error_code.value, each.high_watermark, records))
    return found


def test_what_is_produced_is_fetched_with_its_offsets() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        wire = await world.wire()
        assert await produce(wire, "t", batch(b"a", b"b"), batch(b"x")) == [(0, 0), (0, 0)]
        assert await produce(wire, "t", batch(b"c")) == [(0, 2)]
        whole = [(0, b"a"), (1, b"b"), (2, b"c")]
        assert await fetch(wire, "t", 0, 0) == [(0, 3, whole), (0, 1, [(0, b"x")])]
        assert await fetch(wire, "t", 2) == [(0, 3, whole[2:])]
        assert await fetch(wire, "t", 1) == [(0, 3, whole)], (
            "a batch is whole, from before the offset"
        )
        assert await fetch(wire, "t", 0, max_bytes=1) == [(0, 3, whole[:2])], (
            "one batch, over the limit"
        )
        assert await fetch(wire, "t", 0, 0, max_bytes=1) == [(0, 3, whole[:2]), (0, 1, [])]
        assert await fetch(wire, "t", 4) == [(Error.OFFSET_OUT_OF_RANGE, -1, [])]
        assert await fetch(wire, "t", 3) == [(0, 3, [])]
        assert await fetch(wire, "none", 0) == [(Error.UNKNOWN_TOPIC_OR_PARTITION, -1, [])]

    play(story)


def test_batches_in_the_object_store_are_fetched_as_they_were() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        whole: list[tuple[int, bytes]] = []
        for part in range(4):
            for number in range(5):
                values = [b"%d-%d-%d" % (part, number, record) for record in range(1 + number)]
                assert await produce(wire, "t", batch(*values, time_ms=part * 1000)) == [
                    (0, len(whole))
                ]
                whole += [(len(whole) + at, value) for at, value in enumerate(values)]
            if part < 3:
                await world.core.flusher.flush_now()
        assert await fetch(wire, "t", 0) == [(0, 60, whole)]
        assert await fetch(wire, "t", 29) == [(0, 60, whole[25:])], "in a batch of a slice"
        assert await fetch(wire, "t", 25, max_bytes=1) == [(0, 60, whole[25:30])]
        for index, (part, found) in enumerate([(0, 0), (1, 15), (2, 30), (3, 45)]):
            assert await offset_of(wire, "t", part * 1000) == found, index
        assert await offset_of(wire, "t", 1003) == 15 + 9, (
            "the fourth record of the first batch that has four"
        )
        assert await offset_of(wire, "t", 9999) == -1
        assert [await offset_of(wire, "t", special) for special in (-2, -1)] == [0, 60]

    play(story)


def test_a_damaged_slice_is_the_trouble_of_its_partition() -> None:
    async def story(world: KafkaWorld) -> None:
        for topic in ("t", "sound"):
            await world.topic(topic)
        wire = await world.wire()
        for topic in ("t", "sound"):
            await produce(wire, topic, batch(b"packed"))
        await world.core.flusher.flush_now()
        name = partition_name("t", 0)
        machine = world.core.local.machines[world.core.service.group_of(name)]
        (cold,) = machine.packs.index_of(machine.directory.streams[name])
        assert isinstance(world.core.store, MemoryStore)
        data, *rest = world.core.store.objects[cold.pack]
        at = cold.offset + cold.stored - 1
        world.core.store.objects[cold.pack] = (data[:at] + b"?" + data[at + 1 :], *rest)
        assert await fetch(wire, "t", 0) == [(Error.KAFKA_STORAGE_ERROR, -1, [])]
        assert await fetch(wire, "sound", 0) == [(0, 1, [(0, b"packed")])]
        assert await produce(wire, "t", batch(b"more")) == [(0, 1)]
        assert await fetch(wire, "t", 1) == [(0, 2, [(1, b"more")])]

    play(story)


def test_a_time_is_found_by_the_index_where_times_decrease() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        for time_ms in (5000, 0, 1000, 9000, 0, 3000, 7000):
            await produce(wire, "t", batch(b"a", b"b", time_ms=time_ms))
            await world.core.flusher.flush_now()
        counters = world.core.reader.counters
        for asked, wanted in ((4000, 0), (5002, 6), (9001, 7), (9002, -1)):
            assert await offset_of(wire, "t", asked) == wanted
        assert await offset_of(wire, "t", -3) == 7, "of the newest time"
        ends = {-1: 14, -2: 0, -4: 0, -5: -1}  # the last two: of tiers that are not told apart
        assert {each: await offset_of(wire, "t", each) for each in ends} == ends
        before = counters.hits + counters.misses
        await offset_of(wire, "t", 4000)
        assert counters.hits + counters.misses - before == 2, "the place, and its batch"

    play(story)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_time_is_found_inside_a_compressed_batch(codec: str) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        times = [1000, 3000, 2000, 5000, 5000, 4000]
        for begin in (0, 6):
            await produce(wire, "t", compressed(codec, [each + begin for each in times]))
        for asked, wanted in ((0, 0), (1001, 1), (3001, 3), (5001, 9), (5007, -1)):
            assert await offset_of(wire, "t", asked) == wanted
        assert await offset_of(wire, "t", -3) == 9, "the first one of the newest time"
        damaged = bytearray(compressed(codec, [9000, 9100]))
        damaged[84:] = bytes(len(damaged) - 84)  # the frame of the codec stays
        struct.pack_into(">I", damaged, 17, crc32c(bytes(damaged[21:])))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record_checks, "SMALL_BYTES", 0)  # as of a large batch
            assert await produce(wire, "t", bytes(damaged)) == [(0, 12)]
        assert await offset_of(wire, "t", 9050) == 12, "the first one of a batch that is damaged"

    play(story)


def compressed(codec: str, times: list[int]) -> bytes:
    """A batch with a record of each time, in Kafka's own words."""
    number = ("none", "gzip", "snappy", "lz4", "zstd").index(codec)
    builder = TheirBuilder(2, number, 0, -1, -1, -1, 1 << 20)
    for offset, time_ms in enumerate(times):
        builder.append(offset, time_ms, None, b"value" * 20, [])
    return bytes(builder.build())


def test_readers_of_committed_records_stop_at_an_open_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant_end(monkeypatch)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        for number in range(3):
            await produce(wire, "t", batch(b"%d" % number, time_ms=number * 1000))
        name = partition_name("t", 0)
        machine = world.core.local.machines[world.core.service.group_of(name)]
        plant = OpenTransaction(1, machine.directory.streams[name].hot[1].byte, 0, 1)  # type: ignore[index]
        machine.directory.streams[name].kafka = KafkaState(open={7: plant})

        async def both(offset: int, level: int) -> tuple[int, int, int]:
            fields = fetch_fields("t", offset, isolation_level=level)
            message = await wire.ask("Fetch", 11, **fields)
            (part,) = message.responses[0].partitions
            count = len(list(batches.batches_of(part.records or b"")))
            assert part.error_code.value == 0
            return part.high_watermark, part.last_stable_offset, count

        assert await both(0, 1) == (3, 1, 1)
        assert await both(0, 0) == (3, 1, 3)
        assert await both(2, 1) == (3, 1, 0), "in the transaction: nothing yet"
        assert await both(2, 0) == (3, 1, 1)
        assert [await offset_of(wire, "t", -1, level) for level in (0, 1)] == [3, 1]
        assert [await offset_of(wire, "t", 1000, level) for level in (0, 1)] == [1, -1]
        waiting = asyncio.ensure_future(
            wire.ask("Fetch", 11, **fetch_fields("t", 3, max_wait_ms=20_000))
        )
        await asyncio.sleep(0)
        other = await world.wire()
        await produce(other, "t", batch(b"3"))
        message = await waiting
        assert message.responses[0].partitions[0].high_watermark == 4

        committed = fetch_fields("t", 1, isolation_level=1, max_wait_ms=20_000)
        waiting = asyncio.ensure_future(wire.ask("Fetch", 11, **committed))
        while not machine.tails.watched:  # noqa: ASYNC110 (bounded by the timeout of tests)
            await asyncio.sleep(0)
        touch = Touch([(machine.directory.streams[name].uid, 7)], world.core.service.now_ms())
        world.core.service.propose(name, touch, lambda reply: None)
        (part,) = (await waiting).responses[0].partitions
        assert part.last_stable_offset == 4
        assert len(list(batches.batches_of(part.records))) == 3

    play(story)


async def offset_of(wire: KafkaWire, topic: str, timestamp: int, level: int = 0) -> int:
    """The offset of a time, by ListOffsets."""
    from kio.schema.list_offsets.v9 import request as r

    asked = r.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    topics = (r.ListOffsetsTopic(name=topic, partitions=(asked,)),)
    fields = {"replica_id": -1, "isolation_level": level, "topics": topics}
    message = await wire.ask("ListOffsets", 9, **fields)
    return int(message.topics[0].partitions[0].offset)


def test_idempotent_batches_are_judged_by_kafkas_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produces, "GAP_SECONDS", 0.0)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        made = await wire.ask(
            "InitProducerId", 1, transactional_id=None, transaction_timeout=_ms(1000)
        )
        other = await wire.ask(
            "InitProducerId", 1, transactional_id=None, transaction_timeout=_ms(1000)
        )
        assert made.producer_id != other.producer_id
        assert made.producer_epoch == 0
        first = batch(b"a", b"b", producer=(made.producer_id, 0, 0))
        assert await produce(wire, "t", first) == [(0, 0)]
        assert await produce(wire, "t", first) == [(0, 0)], "a repeat gets the same offset"
        gap = batch(b"c", producer=(made.producer_id, 0, 3))
        assert await produce(wire, "t", gap) == [(Error.OUT_OF_ORDER_SEQUENCE, -1)]
        assert await produce(wire, "t", batch(b"c", producer=(made.producer_id, 0, 2))) == [(0, 2)]
        assert [found for *_, found in await fetch(wire, "t", 0)] == [
            [(0, b"a"), (1, b"b"), (2, b"c")]
        ]

    play(story)


def stream_of(world: KafkaWorld) -> StreamHandle:
    """Return the handle of partition 0 of topic t that the front keeps."""
    topic = world.front.context.topics.ready("t")
    found = None if topic is None else topic.partition(0)
    assert found is not None
    return found


def test_what_is_pipelined_behind_a_failed_batch_is_refused_until_its_answer_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refuse pipelined batches until the failed one's response has left. Otherwise a batch behind
    one of unknown outcome could be accepted, and the retry would look like a duplicate."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        wire = await world.wire()
        proposed: list[int] = []
        stream = stream_of(world)
        append = stream.append

        def failing(command: Produce, done: Callable[[object], None]) -> None:
            assert command.producer is not None
            proposed.append(command.producer.sequence)
            if len(proposed) == 1:
                done(OutcomeUnknown("lost"))
            else:
                append(command, done)

        monkeypatch.setattr(stream, "append", failing)
        first, second = (batch(b"%d" % each, producer=(77, 0, each)) for each in range(2))
        wire.send("Fetch", 11, **fetch_fields("t", 0, max_wait_ms=200))  # answers wait behind it
        for sent in (first, second):
            wire.send("Produce", 9, **produce_fields("t", sent))
        wire.send("Produce", 9, **produce_fields("t", first, partition=1))
        await wire.answer("Fetch", 11)
        answers = [await wire.answer("Produce", 9) for _ in range(3)]
        assert [
            each.responses[0].partition_responses[0].error_code.value for _, each in answers
        ] == [Error.REQUEST_TIMED_OUT, Error.NOT_ENOUGH_REPLICAS, 0]
        assert proposed == [0], "what is behind it is not proposed"
        assert [await produce(wire, "t", each) for each in (first, second)] == [[(0, 0)], [(0, 1)]]

    play(story)


def test_a_batch_that_is_judged_before_an_earlier_one_is_to_be_sent_again_and_has_no_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The earlier one looked for the leader, found it, and is acknowledged. For librdkafka a gap
    behind an acknowledged batch is fatal: it has lost nothing, so the broker must have."""
    monkeypatch.setattr(produces, "GAP_SECONDS", 0.0)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        waiting: list[Callable[[], None]] = []
        stream = stream_of(world)
        append = stream.append

        def overtaking(command: Produce, done: Callable[[object], None]) -> None:
            assert command.producer is not None
            if command.producer.sequence == 0 and not waiting:
                waiting.append(lambda: append(command, done))
                return

            def judged(outcome: object) -> None:
                done(outcome)
                if len(waiting) == 1:
                    waiting.append(waiting[0])
                    waiting[0]()

            append(command, judged)

        monkeypatch.setattr(stream, "append", overtaking)
        first, second = (batch(b"%d" % each, producer=(77, 0, each)) for each in range(2))
        for sent in (first, second):
            wire.send("Produce", 9, **produce_fields("t", sent))
        answers = [await wire.answer("Produce", 9) for _ in range(2)]
        parts = [each.responses[0].partition_responses[0] for _, each in answers]
        assert [each.error_code.value for each in parts] == [0, Error.NOT_ENOUGH_REPLICAS]
        assert "retry in order" in parts[1].error_message
        assert await produce(wire, "t", second) == [(0, 1)]
        gap = batch(b"4", producer=(77, 0, 4))
        assert await produce(wire, "t", gap) == [(Error.OUT_OF_ORDER_SEQUENCE, -1)], (
            "nothing was in flight before it"
        )

    play(story)


def test_a_gap_may_close_from_another_connection_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that moves to a new leader has batches in flight at both."""
    monkeypatch.setattr(produces, "GAP_SECONDS", 3600.0)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        former, present = await world.wire(), await world.wire()

        def pass_time(seconds: float) -> None:
            """Make the gaps that are known older."""
            for connection in world.front.connections:
                gaps = connection.session.gaps
                gaps.update({name: (a - seconds, b - seconds) for name, (a, b) in gaps.items()})

        first, second, third = (batch(b"%d" % n, producer=(77, 0, n)) for n in range(3))
        assert await produce(present, "t", second) == [(Error.NOT_ENOUGH_REPLICAS, -1)]
        assert await produce(former, "t", first) == [(0, 0)]
        assert await produce(present, "t", second) == [(0, 1)]
        lost = batch(b"4", producer=(77, 0, 4))
        assert await produce(present, "t", lost) == [(Error.NOT_ENOUGH_REPLICAS, -1)]
        pass_time(0.8 * produces.GAP_SECONDS)
        assert await produce(present, "t", lost) == [(Error.NOT_ENOUGH_REPLICAS, -1)]
        pass_time(1.2 * produces.GAP_SECONDS)
        assert await produce(present, "t", lost) == [(Error.NOT_ENOUGH_REPLICAS, -1)], "a new one"
        pass_time(0.6 * produces.GAP_SECONDS)
        assert await produce(present, "t", lost) == [(Error.NOT_ENOUGH_REPLICAS, -1)]
        pass_time(0.6 * produces.GAP_SECONDS)
        assert await produce(present, "t", lost) == [(Error.OUT_OF_ORDER_SEQUENCE, -1)]
        assert await produce(present, "t", third) == [(0, 2)]

    play(story)


def _ms(count: int) -> object:
    from datetime import timedelta

    return timedelta(milliseconds=count)


def test_refused_batches_change_nothing() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        good = batch(b"a")
        damaged = good[:-1] + b"!"
        old = bytearray(good)
        old[16] = 1
        transactional = bytearray(good)
        transactional[22] |= 0x10
        struct.pack_into(">I", transactional, 17, crc32c(bytes(transactional[21:])))
        for bad, error in (
            (damaged, Error.CORRUPT_MESSAGE),
            (good + good, Error.INVALID_RECORD),
            (b"", Error.INVALID_RECORD),
            (bytes(old), Error.UNSUPPORTED_FOR_MESSAGE_FORMAT),
            (bytes(transactional), Error.INVALID_RECORD),
        ):
            assert await produce(wire, "t", bad) == [(error, -1)]
        assert await produce(wire, "t", good, acks=5) == [(Error.INVALID_REQUIRED_ACKS, -1)]
        assert await produce(wire, "t", good, partition=7) == [
            (Error.UNKNOWN_TOPIC_OR_PARTITION, -1)
        ]
        assert await produce(wire, "unknown", good) == [(Error.UNKNOWN_TOPIC_OR_PARTITION, -1)]
        assert await fetch(wire, "t", 0) == [(0, 0, [])]

    play(story)


def test_a_time_after_the_year_9999_is_refused_unless_the_server_sets_the_times() -> None:
    """Such as microseconds, which some clients send by mistake."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        await world.front.context.topics.create(
            "stamped", 1, [("message.timestamp.type", "LogAppendTime")]
        )
        wire = await world.wire()
        late = batch(b"a", time_ms=1_700_000_000_000_000)
        assert await produce(wire, "t", late) == [(Error.INVALID_TIMESTAMP, -1)]
        assert await produce(wire, "stamped", late) == [(0, 0)]
        assert await produce(wire, "t", batch(b"b", time_ms=TIME_MS_MAX)) == [(0, 0)]

    play(story)


def test_answers_come_in_the_order_of_the_requests() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        sent = [wire.send("Fetch", 11, **fetch_fields("t", 0, max_wait_ms=300))]
        sent += [
            wire.send("Produce", 9, **produce_fields("t", batch(b"%d" % number)))
            for number in range(70)
        ]
        sent.append(wire.send("ApiVersions", 0))
        names = [("Fetch", 11), *[("Produce", 9)] * 70, ("ApiVersions", 0)]
        answers = [await wire.answer(*name) for name in names]
        assert [correlation for correlation, _ in answers] == sent
        offsets = [
            message.responses[0].partition_responses[0].base_offset for _, message in answers[1:-1]
        ]
        assert offsets == list(range(70)), "they were appended in their order"

    play(story)


def test_a_request_without_acknowledgement_gets_no_answer() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        wire.send("Produce", 9, **produce_fields("t", batch(b"a"), acks=0))
        assert (await fetch(wire, "t", 0, max_wait_ms=5000))[0][2] == [(0, b"a")]
        wire.send("Produce", 9, **produce_fields("t", b"", acks=0))
        assert await wire.ended(), "an error is told by the end of the connection"

    play(story)


def test_a_fetch_of_an_unknown_session_is_refused() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        fields = fetch_fields("t", 0, session_id=7, session_epoch=1)
        message = await wire.ask("Fetch", 11, **fields)
        assert message.error_code.value == Error.FETCH_SESSION_ID_NOT_FOUND
        assert (await wire.ask("Fetch", 11, **fetch_fields("t", 0))).session_id == 0

    play(story)


def test_an_unknown_version_of_api_versions_gets_the_list_in_version_0() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        wire.writer.write(bytes.fromhex("0000000e 0012 0063 00000007 0004 74657374"))
        correlation, message = await wire.answer("ApiVersions", 0)
        assert (correlation, message.error_code.value) == (7, Error.UNSUPPORTED_VERSION)
        ranges = {each.api_key: (each.min_version, each.max_version) for each in message.api_keys}
        assert ranges[0] == (0, 13), "from 0: else an old librdkafka sends uncompressed"
        assert ranges[1] == (4, 18)

    play(story)


def test_a_client_id_may_be_any_bytes() -> None:
    """Accept any bytes: Kafka's decoder replaces invalid UTF-8 by U+FFFD."""

    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        sent = frame("Metadata", 1, 7, "marked", topics=())
        wire.writer.write(sent.replace(b"marked", b"mar\xff\xc3d"))
        correlation, answer = await wire.answer("Metadata", 1)
        assert (correlation, len(answer.brokers)) == (7, 1)

    play(story)


def test_bytes_behind_a_body_are_ignored() -> None:
    """Send trailing bytes as librdkafka 2.16 does with Metadata."""

    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        wire.writer.write(bytes.fromhex("00000011 0003 0001 00000007 ffff ffffffff 000000"))
        assert (await wire.answer("Metadata", 1))[0] == 7

    play(story)


def test_large_requests_are_counted_from_their_first_byte_to_their_answer() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        whole = frame("Produce", 9, 5, **produce_fields("t", batch(b"x" * 300_000)))
        wire.writer.write(whole[:100_000])
        while world.front.connections.memory.bytes < 100_000:  # noqa: ASYNC110 (bounded by the story)
            await asyncio.sleep(0)
        assert world.front.connections.memory.bytes <= len(whole) - 4
        wire.writer.write(whole[100_000:])
        _, message = await wire.answer("Produce", 9)
        assert message.responses[0].partition_responses[0].error_code.value == 0
        assert world.front.connections.memory.bytes == 0
        assert (await fetch(wire, "t", 0))[0][2] == [(0, b"x" * 300_000)]
        wire.writer.write(whole[:100_000])
        while not world.front.connections.memory.bytes:  # noqa: ASYNC110 (bounded by the story)
            await asyncio.sleep(0)
        wire.close()
        while world.front.connections:  # noqa: ASYNC110 (bounded by the story)
            await asyncio.sleep(0)
        assert world.front.connections.memory.bytes == 0

    play(story)


MALFORMED = {
    "a negative length": b"\xff\xff\xff\xff",
    "a short request": b"\0\0\0\2ab",
    "a huge length": (KAFKA_REQUEST_BYTES_MAX + 1).to_bytes(4),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("1603010200010001fc0303"),
    "an unknown key": bytes.fromhex("0000000a 7fff 0000 00000001 ffff"),
    "an unknown version": bytes.fromhex("0000000a 0003 0063 00000001 ffff"),
    "an array longer than the request": bytes.fromhex("0000000e 0003 0001 00000001 ffff 7fffffff"),
    "a large request of names": (KAFKA_SMALL_REQUEST_BYTES_MAX + 1).to_bytes(4) + b"\0\3\0\1",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_nonsense_closes_the_connection_with_one_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = MALFORMED[name]

    async def story(world: KafkaWorld) -> None:
        caplog.set_level(logging.WARNING)
        for _ in range(2):
            wire = await world.wire()
            wire.writer.write(sent)
            assert await wire.ended()
        assert len((await (await world.wire()).ask("ApiVersions", 0)).api_keys) == len(_keys())
        assert [record.message for record in caplog.records] == [
            "closed a Kafka connection: the request is malformed"
        ]

    play(story)


def _keys() -> list[int]:
    from polynya.wire.kafka.messages import APIS

    return list(APIS)


@pytest.mark.parametrize("seed", range(3))
def test_changed_requests_leave_the_front_standing(seed: int) -> None:
    rng = random.Random(seed)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        whole = [
            frame("Produce", 9, 1, **produce_fields("t", batch(b"a"), batch(b"b"))),
            frame("Fetch", 11, 2, **fetch_fields("t", 0, 0)),
            frame("Metadata", 1, 3, topics=None),
        ]
        for _ in range(60):
            wire = await world.wire()
            damaged = bytearray(b"".join(rng.choices(whole, k=3)))
            for _ in range(rng.choice((1, 1, 5))):
                damaged[rng.randrange(len(damaged))] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                )
            wire.writer.write(damaged[: rng.choice((len(damaged), rng.randrange(len(damaged))))])
            wire.writer.write_eof()
            await wire.reader.read()
            wire.close()
        wire = await world.wire()
        assert (await produce(wire, "t", batch(b"last")))[0][0] == 0

    play(story)


# --- topics ---------------------------------------------------------------------------------------


def test_metadata_creates_a_topic_that_a_client_names() -> None:
    async def story(world: KafkaWorld) -> None:
        from kio.schema.metadata.v8 import request as r

        wire = await world.wire()
        asked = {
            "topics": (
                r.MetadataRequestTopic(name="new"),
                r.MetadataRequestTopic(name="not a name"),
            ),
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        message = await wire.ask("Metadata", 8, allow_auto_topic_creation=False, **asked)
        assert [each.error_code.value for each in message.topics] == [
            Error.UNKNOWN_TOPIC_OR_PARTITION,
            Error.INVALID_TOPIC,
        ]
        message = await wire.ask("Metadata", 8, allow_auto_topic_creation=True, **asked)
        assert [each.error_code.value for each in message.topics] == [0, Error.INVALID_TOPIC]
        assert [
            (each.partition_index, each.leader_id) for each in message.topics[0].partitions
        ] == [(0, 0)]
        # of all: from cached bytes, with the request's own correlation id
        for correlation in (
            7,
            8,
        ):
            wire.send("Metadata", 1, correlation, topics=None)
            correlation_id, message = await wire.answer("Metadata", 1)
            assert correlation_id == correlation
            assert [each.name for each in message.topics] == ["new"]
        await world.topic("b")
        assert len((await wire.ask("Metadata", 1, topics=None)).topics) == 2

    play(story)


def test_a_creation_that_somebody_began_is_finished() -> None:
    """Finish a creation that crashed between the topic and its streams, or between some of the
    streams."""

    async def story(world: KafkaWorld) -> None:
        service = world.core.service
        await service.call(0, TopicPut("t", ID, 3, [], 1))
        name = partition_name("t", 1)
        made = Create(name, 1, "application/vnd.apache.kafka.recordbatch", Encoding.KAFKA)
        assert (await service.call(service.group_of(name), made)).code == Code.CREATED
        wire = await world.wire()
        assert await produce(wire, "t", *[batch(b"a")] * 3) == [(0, 0)] * 3
        assert world.front.context.topics.names["t"].id == ID

    play(story)


def test_a_deletion_that_somebody_began_is_finished_before_the_name_is_free() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        await world.topic("t", 2)
        await produce(wire, "t", batch(b"old"))
        old = world.front.context.topics.names["t"]
        await world.core.service.call(0, TopicDrop("t", old.id))
        assert await world.front.context.topics.create("t", 2, []) == Code.EXISTS
        assert "t" not in world.front.context.topics.names, "that create finished the deletion"
        await world.topic("t", 2)
        assert world.front.context.topics.names["t"].id != old.id
        assert (await fetch(wire, "t", 0))[0] == (0, 0, [])

    play(story)


def test_a_topic_is_not_made_of_a_stream_of_another_kind() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.core.create("kafka/t/1")
        await world.front.context.topics.create("t", 3, [])
        assert world.front.context.topics.names == {}
        assert await world.core.code_of("kafka/t/0") == Code.NOT_FOUND
        assert await world.core.code_of("kafka/t/1") == 0, "it is left as it was"

    play(story)


def test_topics_survive_a_restart_with_their_records() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        await world.topic("t", 2)
        await produce(wire, "t", batch(b"a", b"b"))
        await world.core.engine.core.drain()
        core = world.core.kill()
        assert core.local.machines[0].meta.topics == {"t": world.front.context.topics.names["t"]}
        page = await core.page("kafka/t/0")
        assert (page.info.record, len(page.spans)) == (2, 1)

    play(story)
