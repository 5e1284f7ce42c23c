"""The memory of large Kafka requests: taken as bytes arrive, and shared among callers."""

from __future__ import annotations

import asyncio

import pytest
from worlds.kafka import KafkaWire, KafkaWorld, batch, frame, play, produce_fields

from polynya.base.limits import KAFKA_REQUEST_BYTES_MAX, KAFKA_REQUESTS_BYTES_PER_CORE
from polynya.front.kafka import request_memory
from polynya.front.kafka.request_memory import Frame, RequestMemory

MIB = 1024 * 1024


def filled(memory: RequestMemory, key: str, size: int) -> Frame:
    """A frame of 64 MiB of which `size` bytes came."""
    return came(Frame(memory, key, memoryview(b"x"), 64 * MIB), size - 1)


def came(frame: Frame, size: int) -> Frame:
    while size and not frame.is_stuck:
        some = min(size, len(frame.room()))
        frame.received(some)
        size -= some
    return frame


def test_a_request_holds_about_what_came() -> None:
    memory = RequestMemory()
    frames = [Frame(memory, "a", memoryview(b"x"), KAFKA_REQUEST_BYTES_MAX) for _ in range(4)]
    assert memory.bytes == 4 * 64 * 1024
    came(frames[0], 100_000)
    assert memory.bytes < 4 * 64 * 1024 + 16 * 100_000
    came(frames[0], 4 * MIB)
    assert memory.bytes < 9 * MIB
    for each in frames:
        memory.release(each.holding)
    assert memory.bytes == 0
    assert not memory._callers
    assert not memory._arriving


def test_a_frame_is_whole_however_it_comes() -> None:
    memory, sent = RequestMemory(), bytes(range(256)) * 20_000
    frame, at, whole = Frame(memory, "a", memoryview(sent[:3]), len(sent)), 3, None
    while whole is None:
        room = frame.room()
        size = min(len(room), 70_000, len(sent) - at)
        room[:size] = sent[at : at + size]
        at += size
        whole = frame.received(size)
    assert whole == sent
    assert memory.bytes == len(sent)


def test_a_full_budget_is_full_for_those_with_a_share_of_it() -> None:
    memory = RequestMemory()
    held = [filled(memory, "a", 63 * MIB) for _ in range(4)]
    assert memory.is_short
    assert memory.is_full_for("a")
    assert not memory.is_full_for("b")
    other = filled(memory, "b", 60 * MIB)
    memory.release(held[0].holding)
    assert not memory.is_full_for("b")
    memory.release(other.holding)
    assert not memory.is_short
    assert not memory.is_full_for("a")


def test_the_oldest_incomplete_request_of_a_caller_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_memory, "KAFKA_REQUESTS_BYTES_PER_CORE", 4 * MIB)
    memory = RequestMemory()
    first, second = filled(memory, "a", 2 * MIB), filled(memory, "a", 2 * MIB)
    assert second.is_stuck
    assert not first.is_stuck
    came(first, 8 * MIB)
    assert memory.bytes >= 8 * MIB
    other = filled(memory, "b", 2 * MIB)
    assert other.is_stuck, "twice the budget is held: only the oldest request goes on"
    memory.release(first.holding)
    second.go_on()
    other.go_on()
    assert not second.is_stuck
    assert not other.is_stuck


@pytest.mark.parametrize("begin", [4, 6, 200])
def test_announced_bytes_take_no_memory(begin: int) -> None:
    """Four connections that sent four bytes each took the whole budget of a core."""

    async def story(world: KafkaWorld) -> None:
        count = KAFKA_REQUESTS_BYTES_PER_CORE // KAFKA_REQUEST_BYTES_MAX
        for _ in range(count):
            wire = await world.wire()
            wire.writer.write((KAFKA_REQUEST_BYTES_MAX.to_bytes(4) + bytes(begin))[:begin])
        while sum(each._reader.is_partial for each in world.front.connections) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await (await world.wire()).ask("ApiVersions", 0)).api_keys
        assert world.front.connections.memory.bytes <= count * 64 * 1024

    play(story)


def test_an_address_that_fills_the_memory_waits_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_memory, "KAFKA_REQUESTS_BYTES_PER_CORE", 8 * MIB)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        hostile = []
        for _ in range(12):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", world.port, local_addr=("127.0.0.2", 0)
            )
            wire = KafkaWire(reader, writer)
            world.wires.append(wire)
            writer.write(KAFKA_REQUEST_BYTES_MAX.to_bytes(4) + bytes(MIB))
            hostile.append(wire)
        while len(world.front.connections.waiting) < 3:  # noqa: ASYNC110 (bounded by the story)
            await asyncio.sleep(0)
        assert world.front.connections.memory.is_short
        wire = await world.wire()
        for _ in range(3):
            whole = frame("Produce", 9, 5, **produce_fields("t", batch(b"x" * 300_000)))
            wire.writer.write(whole)
            _, message = await wire.answer("Produce", 9)
            assert message.responses[0].partition_responses[0].error_code.value == 0
        for each in hostile:
            each.close()
        while len(world.front.connections) > 1:  # noqa: ASYNC110 (bounded by the story)
            await asyncio.sleep(0)
        assert not world.front.connections.memory.bytes

    play(story)
