"""Planted transactions as Kafka's consumers get them: all batches, and for those that read committed
records the list of the aborted transactions of each answer."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from worlds.kafka import KafkaWire, KafkaWorld, fetch_fields, play
from worlds.transactions import Planter

from polynya.base.names import partition_name
from polynya.stream.state.model import Stream
from polynya.wire.kafka.batches import batches_of
from polynya.wire.kafka.records import decoded_records

Listed = list[tuple[int, int]]


async def planter(world: KafkaWorld) -> Planter:
    await world.topic("t")
    core, name = world.core, partition_name("t", 0)
    machine = core.local.machines[core.service.group_of(name)]

    def stream() -> Stream:
        return machine.directory.streams[name]

    made = Planter(name, stream, core.send)
    made.now_ms = core.clock.ms
    return made


async def write_transactions(world: KafkaWorld, when: str) -> None:
    """Five aborted and five committed transactions of one producer, beside one of another that is
    aborted, and an open one behind them."""
    made = await planter(world)
    await made.write(b"other", producer=200)
    for number in range(5):
        await made.write(b"x%d" % number, producer=107)
        if when == "early" and number == 2:
            await world.core.flusher.flush_now(whole=True)
        await made.write(b"x%d again" % number, producer=107)
        await made.end(107)
        await made.write(b"c%d" % number, producer=107)
        await made.end(107, commit=True)
    await made.end(200)
    await made.write(b"end")
    await made.write(b"open", producer=7)
    if when == "late":
        await world.core.flusher.flush_now()


async def fetched(wire: KafkaWire, offset: int, level: int, **more: int) -> tuple[Any, Listed]:
    fields = fetch_fields("t", offset, isolation_level=level, **more)
    (part,) = (await wire.ask("Fetch", 11, **fields)).responses[0].partitions
    assert part.error_code.value == 0
    listed = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
    return part, listed


def as_a_client_does(records: bytes, listed: Listed) -> list[bytes]:
    """The values that Java's consumer gives of an answer."""
    waiting, aborted, values = sorted(listed, key=lambda each: each[1]), set(), []
    for batch in batches_of(records):
        (base,) = struct.unpack_from(">q", batch)
        attributes, producer = struct.unpack_from(">h", batch, 21)[0], batch[43:51]
        last = base + struct.unpack_from(">i", batch, 23)[0]
        while waiting and waiting[0][1] <= last:
            aborted.add(struct.pack(">q", waiting.pop(0)[0]))
        if attributes & 0x20:
            if not _is_commit(batch):
                aborted.discard(bytes(producer))
            continue
        if attributes & 0x10 and bytes(producer) in aborted:
            continue
        values += [each.value for each in decoded_records(batch, base)]
    return values


def _is_commit(batch: bytes) -> bool:
    assert len(batch) == 78
    return batch[66:70] == b"\0\0\0\1"  # its only record's key: version and type


SEEN = [b"c0", b"c1", b"c2", b"c3", b"c4", b"end"]


@pytest.mark.parametrize("when", ["", "early", "late"])
def test_an_answer_names_each_aborted_transaction_that_it_has_a_batch_of(when: str) -> None:
    async def story(world: KafkaWorld) -> None:
        await write_transactions(world, when)
        wire = await world.wire()
        part, listed = await fetched(wire, 0, 1)
        assert listed == [(200, 0), (107, 1), (107, 6), (107, 11), (107, 16), (107, 21)]
        assert as_a_client_does(part.records, listed) == SEEN
        assert (part.last_stable_offset, part.high_watermark) == (28, 29)
        all_of_it, none = await fetched(wire, 0, 0)
        assert none == []
        assert len([*batches_of(all_of_it.records)]) == 28 + 1

    play(story)


@pytest.mark.parametrize("when", ["", "early", "late"])
def test_any_cut_of_the_answers_gives_the_committed_records(when: str) -> None:
    async def story(world: KafkaWorld) -> None:
        await write_transactions(world, when)
        wire = await world.wire()
        for size in (1, 90, 200, 450):
            offset, values = 0, []
            while offset < 28:
                part, listed = await fetched(wire, offset, 1, partition_max_bytes=size)
                values += as_a_client_does(part.records, listed)
                last = [*batches_of(part.records)][-1]
                (base,) = struct.unpack_from(">q", last)
                offset = base + struct.unpack_from(">i", last, 23)[0] + 1
            assert values == SEEN, size

    play(story)
