"""Pages of streams with batches of several encodings: the spans that a front gets, from memory and
from the object store."""

from __future__ import annotations

import json
from struct import pack

import msgspec
import pytest
from google_crc32c import value as crc32c
from msgspec import structs
from stories.service import story
from worlds.service import World
from worlds.stream import json_batch, kafka_batch, raw_batch

from polynya.base.errors import CorruptData
from polynya.front.http.routes.decoded_pages import stored
from polynya.local.api import Page, Span
from polynya.objectstore import MemoryStore
from polynya.routing import messages
from polynya.stream.features.appends.commands import Append
from polynya.stream.parts import Batch, Encoding
from polynya.wire.kafka.batches import Record, build_batch
from polynya.wire.record_pages import Form, show

NAME = "default/mixed"
BYTES, KAFKA = Encoding.BYTES, Encoding.KAFKA
CONTROL = 2  # a flag of batches
TIMES = {"whole_records": True, "append_times": True, "batch_times": True}


async def write(world: World) -> None:
    await world.create(NAME)
    await world.append(NAME, b"one")
    await world.append(NAME, b"four")
    batch = kafka_batch(3, b"a batch")
    assert (await world.send(Append(NAME, world.clock.ms, "text/plain", batch))).code == 0
    await world.append(NAME, b"last")


def fields_of(spans: list[Span]) -> list[tuple[int, int, bytes, int, bytes]]:
    return [
        (each.record, each.byte, bytes(each.payload), each.encoding, each.lengths) for each in spans
    ]


@story
async def test_spans_have_the_encoding_and_the_borders_of_their_records(world: World) -> None:
    await write(world)
    hot = await world.page(NAME, whole_records=True)
    expected = [(2, 7, b"a batch", KAFKA, b""), (5, 14, b"last", BYTES, b"")]
    assert fields_of(hot.spans) == [
        (0, 0, b"one", BYTES, b""),
        (1, 3, b"four", BYTES, b""),
        *expected,
    ]
    await world.flusher.flush_now()
    assert world.hot_bytes == 0
    cold = await world.page(NAME, whole_records=True)
    joined = (0, 0, b"onefour", BYTES, pack("<2I", 3, 4))
    assert fields_of(cold.spans) == [joined, *expected], (
        "small batches are one span with their borders"
    )
    values = await world.page(NAME)
    assert fields_of(values.spans) == [(0, 0, b"onefour", BYTES, b""), *expected]
    part = await world.page(NAME, 1, 3, bytes_max=4, whole_records=True)
    assert fields_of(part.spans) == [(1, 3, b"four", BYTES, b"")]
    inside = await world.page(NAME, 3, 7, whole_records=True)
    assert fields_of(inside.spans) == expected, "a batch is not divided"


@story
async def test_a_batch_survives_a_restart_and_its_fork_reads_it(world: World) -> None:
    await write(world)
    await world.engine.core.drain()
    world.kill()
    page = await world.page(NAME)
    assert [each.encoding for each in page.spans] == [BYTES, BYTES, KAFKA, BYTES]
    assert (await world.fork("default/fork", NAME)).uid
    await world.flusher.flush_now()
    found = await world.page("default/fork", whole_records=True)
    assert [each.encoding for each in found.spans] == [BYTES, KAFKA, BYTES]
    assert found.spans[0].lengths == pack("<2I", 3, 4), "also of what is inherited"


@story
async def test_spans_are_batches_with_counts_times_and_flags(world: World) -> None:
    await world.create(NAME)
    start = world.clock.ms
    raw = [json_batch(b"1", b"22"), json_batch(b"3"), json_batch(b"4")]
    own_ms, flags = (9000, 0, 5000, 7000, 0), (0, 0, 0, CONTROL, 0)
    batches = [*raw, kafka_batch(3, b"a batch"), json_batch(b"5")]
    for number, each in enumerate(batches):
        batch = structs.replace(
            each,
            encoding=KAFKA if each.encoding == KAFKA else BYTES,
            record_time_ms_max=own_ms[number],
            flags=flags[number],
        )
        command = Append(NAME, start + number, "text/plain", batch)
        assert (await world.send(command)).code == 0

    def numbers(page: Page) -> list[tuple[int, ...]]:
        return [
            (each.records, each.time_ms - start, each.record_time_ms_max, each.flags)
            for each in page.spans
        ]

    expected = [(2, 0, 9000, 0), (1, 1, 0, 0), (1, 2, 5000, 0), (3, 3, 7000, CONTROL), (1, 4, 0, 0)]
    page = await world.page(NAME, raw=True)
    assert numbers(page) == expected
    assert numbers(messages.decode(messages.READ, messages.encode(page))) == expected
    part = await world.page(NAME, 1, 2, bytes_max=3, whole_records=True, raw=True)
    assert numbers(part)[0] == (1, 0, 9000, 0), "one of two records"
    await world.flusher.flush_now()
    assert world.hot_bytes == 0
    newest = start + 1  # of the batch without a time of its own, which is the append time
    assert numbers(await world.page(NAME, raw=True)) == [(4, 2, newest, 0), *expected[3:]], (
        "small neighbours are one span with the largest times"
    )


@story
async def test_every_record_has_the_time_of_its_append_wherever_a_page_begins(world: World) -> None:
    await world.create(NAME)
    times: list[int] = []
    for number in range(14):
        batch = kafka_records(2) if number % 7 > 4 else raw_batch(b"%03d" % number)
        command = Append(NAME, world.clock.ms, "text/plain", batch)
        assert (await world.send(command)).code == 0
        times += [world.clock.ms] * batch.records
        world.clock.ms += number % 3
    for flushed in (False, True):
        if flushed:
            await world.flusher.flush_now()
            assert world.hot_bytes == 0
        begin, positions = (0, 0), []
        while begin[0] < len(times):
            positions.append(begin)
            page = await world.page(NAME, *begin, bytes_max=1, **TIMES)
            assert appended(page) == times[begin[0] : page.record], f"one piece, {flushed=}"
            begin = (page.record, page.byte)
        for record, byte in positions:
            assert appended(await world.page(NAME, record, byte, **TIMES)) == times[record:]


def kafka_records(count: int) -> Batch:
    payload = build_batch([Record(b"k", b"v", 1000)] * count)
    return Batch(KAFKA, count, payload, crc32c(payload))


def appended(page: Page) -> list[int]:
    """Return the append times of the whole records of a page."""
    spans = [stored(span, page.info) for span in page.spans]
    end = (page.record, page.byte)
    form = Form(records=True, is_json=False)
    shown = show(spans, end, first=page.begin_record, form=form, bytes_max=1 << 20)
    body = b"".join(map(bytes, shown.parts))
    return [each["append_time"] for each in json.loads(b"[" + body[:-1] + b"]")]


def test_a_span_of_an_older_node_has_no_counts_and_times() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode((3, 9, b"x")), type=Span) == Span(
        3, 9, b"x"
    )


@story
async def test_a_damaged_slice_is_the_trouble_of_its_stream(world: World) -> None:
    for name in (NAME, "default/sound"):
        await world.create(name)
        await world.append(name, b"packed")
    await world.flusher.flush_now()
    for name in (NAME, "default/sound"):
        await world.append(name, b"recent")
    machine = world.local.machines[world.service.group_of(NAME)]
    (cold,) = machine.packs.index_of(machine.directory.streams[NAME])
    assert isinstance(world.store, MemoryStore)
    data, *rest = world.store.objects[cold.pack]
    at = cold.offset + cold.stored - 1
    world.store.objects[cold.pack] = (data[:at] + b"?" + data[at + 1 :], *rest)
    with pytest.raises(CorruptData, match="checksum"):
        await world.page(NAME)
    assert fields_of((await world.page("default/sound")).spans)[0][2] == b"packed"
    assert fields_of((await world.page(NAME, 1, 6)).spans) == [(1, 6, b"recent", BYTES, b"")]
    await world.append(NAME, b"more")
    assert (await world.page(NAME, 2, 12)).spans[0].payload == b"more"
