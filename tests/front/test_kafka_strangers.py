"""Attacks on the Kafka port: large frames, very many elements, memory that is only announced."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from unittest.mock import patch

import pytest
from front.test_kafka_access import Gate, guarded
from worlds.kafka import KafkaWire, KafkaWorld, batch, frame, play, produce_fields
from worlds.wide_requests import wide_requests

from polynya.base.limits import (
    KAFKA_ELEMENTS_MAX,
    KAFKA_ELEMENTS_PER_TURN,
    KAFKA_OPEN_REQUEST_BYTES_MAX,
    KAFKA_SMALL_REQUEST_BYTES_MAX,
)
from polynya.front.kafka import dispatch
from polynya.wire.kafka import messages, primitives

MIB = 1024 * 1024
API_VERSIONS_OF_63_MIB = (63 * MIB).to_bytes(4) + bytes.fromhex("0012 0003 00000001 ffff 00")


def uvarint(value: int) -> bytes:
    pieces: list[primitives.Bytes] = []
    primitives.put_uvarint(pieces.append, value)
    return b"".join(pieces)


def many_topics(count: int) -> bytes:
    """Return a Produce request of version 9 with that many topics without a name and without
    partitions."""
    head = bytes.fromhex("0000 0009 00000001 0000 00") + bytes.fromhex("00 ffff 00001000")
    body = head + uvarint(count + 1) + b"\1\1\0" * count + b"\0"
    return len(body).to_bytes(4) + body


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["error"] for record in caplog.records if "error" in vars(record)]


async def refused(world: KafkaWorld, wire: KafkaWire, sent: bytes) -> None:
    """Send the begin of a request: the connection ends before the rest of it comes."""
    wire.writer.write(sent)
    assert await wire.ended()
    assert not world.front.context.counters.requests


@pytest.mark.parametrize("key", [0, 3, 17, 18, 36])
def test_a_large_request_is_refused_at_its_begin_before_authentication(
    tmp_path: Path, key: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        size = KAFKA_OPEN_REQUEST_BYTES_MAX + 1
        await refused(world, await world.wire(), size.to_bytes(4) + key.to_bytes(2))
        assert reasons(caplog) == [
            f"a request of {size} bytes before authentication; the limit is 131072"
        ]

    guarded(tmp_path, story)


@pytest.mark.parametrize(
    ("key", "size"),
    [
        (18, 63 * MIB),
        (18, KAFKA_OPEN_REQUEST_BYTES_MAX + 1),
        (17, KAFKA_OPEN_REQUEST_BYTES_MAX + 1),
        (36, KAFKA_OPEN_REQUEST_BYTES_MAX + 1),
        (3, KAFKA_SMALL_REQUEST_BYTES_MAX + 1),
        (999, KAFKA_SMALL_REQUEST_BYTES_MAX + 1),
    ],
)
def test_a_request_over_the_limit_of_its_key_is_refused_at_its_begin(key: int, size: int) -> None:
    async def story(world: KafkaWorld) -> None:
        await refused(world, await world.wire(), size.to_bytes(4) + key.to_bytes(2))

    play(story)


def test_a_token_has_no_large_authentication_either(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        gate.token("shop", "all")
        wire = await gate.wire(world, "shop")
        wire.writer.write(API_VERSIONS_OF_63_MIB)
        assert await wire.ended()
        wire = await gate.wire(world, "shop")
        await world.topic("t")
        large = frame("Produce", 9, 5, **produce_fields("t", batch(b"x" * 300_000)))
        wire.writer.write(large)
        _, message = await wire.answer("Produce", 9)
        assert message.responses[0].partition_responses[0].error_code.value == 0

    guarded(tmp_path, story)


def test_the_largest_frame_before_authentication_has_few_tags(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """63 MiB of empty tagged fields took 11 CPU seconds; so did as many smaller frames."""

    async def story(world: KafkaWorld, gate: Gate) -> None:
        count = (KAFKA_OPEN_REQUEST_BYTES_MAX - 64) // 2
        for head in ("ffff", "ffff 00 01 01"):  # of the header, and of the body
            wire = await world.wire()
            body = bytes.fromhex("0012 0003 00000001" + head) + uvarint(count) + b"\x7f\0" * count
            wire.writer.write(len(body).to_bytes(4) + body)
            assert await wire.ended()
        caplog.set_level(logging.WARNING)
        assert reasons(caplog) == [f"{count} tagged fields; expected at most 64"]

    guarded(tmp_path, story)


def test_a_request_of_very_many_elements_is_refused_before_they_are_decoded() -> None:
    api = messages.APIS[0]

    def decode(count: int) -> int:
        data = memoryview(many_topics(count))[4:]
        request, _ = messages.decode_request(api, data, messages.read_header(data))
        return len(request.topic_data)

    assert decode(KAFKA_ELEMENTS_MAX) == KAFKA_ELEMENTS_MAX
    with pytest.raises(primitives.Malformed, match="more than 20000 array elements"):
        decode(KAFKA_ELEMENTS_MAX + 1)
    with pytest.raises(primitives.Malformed, match="more than 20000 array elements"):
        decode(1_000_000)


@pytest.mark.parametrize(
    "name",
    ["Produce", "DescribeConfigs", "AlterConfigs", "ListOffsets", "OffsetForLeaderEpoch",
     "OffsetFetch", "DescribeGroups", "FindCoordinator", "DeleteRecords", "CreateTopics"],
)  # fmt: skip
def test_other_connections_have_turns_while_many_elements_are_worked_on(name: str) -> None:
    wide = next(wide for wide in wide_requests() if wide.api.name == name)
    few = KAFKA_ELEMENTS_MAX // 2

    async def story(world: KafkaWorld) -> None:
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(count)

        wire = await world.wire()
        wire.writer.write(wide.frame(few))
        correlation = wire.send("ApiVersions", 0)
        while not world.front.connections or not world.front.context.counters.requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
        count()
        await wire.receive()
        assert (await wire.answer("ApiVersions", 0))[0] == correlation
        assert turns >= few // KAFKA_ELEMENTS_PER_TURN

    play(story)


def test_requests_behind_a_large_one_wait_until_it_is_decoded() -> None:
    wide = next(wide for wide in wide_requests() if str(wide) == "CreateTopics topics")

    async def story(world: KafkaWorld) -> None:
        decoded: list[str] = []
        decode = dispatch.decode_request

        def noted(api: messages.Api, data: memoryview, header: messages.Header) -> object:
            found = decode(api, data, header)
            decoded.append(api.name)
            return found

        with patch.object(dispatch, "decode_request", noted):
            wire = await world.wire()
            wire.writer.write(wide.frame(10_000))
            wire.send("ListGroups", 0)
            await wire.receive()
            await wire.answer("ListGroups", 0)
            assert decoded == ["CreateTopics", "ListGroups"]
            wire.writer.write(
                wide.frame(10_000)[:-5] + b"\xff" * 5
            )  # more tagged fields than bytes
            assert await wire.ended()
        assert decoded == ["CreateTopics", "ListGroups"]

    play(story)


def test_a_token_pays_for_elements_as_for_requests(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        gate.token("shop", "all", requests_per_second=100)
        wire = await gate.wire(world, "shop")
        wire.writer.write(many_topics(KAFKA_ELEMENTS_MAX))
        await wire.receive()
        (connection,) = world.front.connections
        meter = connection.caller.meter
        assert meter is not None
        assert meter.drain()[0] == 1 + KAFKA_ELEMENTS_MAX // KAFKA_ELEMENTS_PER_TURN

    guarded(tmp_path, story)
