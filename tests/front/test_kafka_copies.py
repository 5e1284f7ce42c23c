"""Limits on the data path of a Kafka batch: few copies, no scan of its records."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from typing import Any

import pytest
from worlds.kafka import KafkaWire, KafkaWorld, batch, fetch_fields, play, produce_fields

from polynya.front.kafka import connection
from polynya.front.kafka import produce as produces
from polynya.front.kafka.call import PRODUCE, Call
from polynya.replica.log import decode_heard, encode_command
from polynya.stream.features.appends.commands import Produce
from polynya.stream.parts import Batch, Encoding
from polynya.wire.kafka.batches import batches_of, header_of

SIZE = 1 << 20


async def produce(wire: KafkaWire, whole: bytes) -> None:
    message = await wire.ask("Produce", 9, **produce_fields("t", whole))
    assert message.responses[0].partition_responses[0].error_code.value == 0


def test_a_batch_is_copied_twice_between_its_socket_and_the_journal(
    monkeypatch: pytest.MonkeyPatch, without_collector: None
) -> None:
    """Copy once out of the request's buffer and once into the journal entry. Other threads and
    caches may allocate meanwhile, so only blocks of a batch's size count. A third copy that is
    dropped at once would raise the peak by a whole one.

    Other threads and caches may allocate meanwhile: only blocks of a batch's size count, and a
    third copy that is dropped at once would raise the peak by a whole one."""
    blocks: list[int] = []
    peaks: list[int] = []
    original = connection.dispatch

    def measured(call: Call) -> None:
        assert call.header.key == PRODUCE
        tracemalloc.start()
        try:
            original(call)
            peaks.append(tracemalloc.get_traced_memory()[1])
            sizes = (trace.size for trace in tracemalloc.take_snapshot().traces)
            blocks.extend(sorted(size for size in sizes if size > SIZE // 2))
        finally:
            tracemalloc.stop()

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        await produce(wire, batch(b"x" * SIZE))
        proposer = world.core.engine.core
        monkeypatch.setattr(connection, "dispatch", measured)
        monkeypatch.setattr(produces, "AT_ONCE_BYTES", 2 * SIZE)  # all of it in the measured call
        await produce(wire, batch(b"x" * SIZE))
        while proposer.inflight_bytes:  # noqa: ASYNC110 (the story has a time limit)
            await asyncio.sleep(0)

    play(story)
    copied, entry = blocks
    assert SIZE <= copied < 1.1 * SIZE
    assert SIZE <= entry < 1.6 * SIZE, "an encoder's buffer is half as long again"
    assert peaks[0] < copied + entry + SIZE / 2


def test_records_are_not_looped_over() -> None:
    """A batch of many records costs as many calls on produce, replicate, flush and fetch."""
    calls: dict[int, int] = {}

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        made = {records: batch(*[b"v"] * records) for records in (2, 2000)}
        entries = {
            records: encode_command(Produce("x", 1, Batch(Encoding.KAFKA, records, whole, 0)))
            for records, whole in made.items()
        }
        at = 0
        for records in (2, 2, 2000):  # the first round fills caches
            seen = 0

            def count(frame: Any, event: str, argument: object) -> None:
                nonlocal seen
                seen += event in ("call", "c_call")

            sys.setprofile(count)
            try:
                await produce(wire, made[records])
                decode_heard(entries[records])
                await world.core.flusher.flush_now()
                message = await wire.ask("Fetch", 11, **fetch_fields("t", at))
            finally:
                sys.setprofile(None)
            calls[records] = seen
            (found,) = batches_of(message.responses[0].partitions[0].records)
            assert header_of(found).records == records
            at += records

    play(story)
    assert calls[2] > 500, "the profile has counted"
    assert abs(calls[2000] - calls[2]) < 500, "half of one for each record would be more"
