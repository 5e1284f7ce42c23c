"""Pages of streams with batches of several encodings: the spans that a front gets, from memory and
from the object store."""

from __future__ import annotations

from struct import pack

from stories.service import story
from worlds.service import World
from worlds.stream import kafka_batch

from polynya.service.api import Span
from polynya.stream.commands import Append, Encoding

NAME = "default/mixed"
BYTES, KAFKA = Encoding.BYTES, Encoding.KAFKA


async def write(world: World) -> None:
    await world.create(NAME)
    await world.append(NAME, b"one")
    await world.append(NAME, b"four")
    batch = kafka_batch(3, b"a batch")
    assert (await world.send(Append(NAME, world.clock.ms, "text/plain", batch))).code == 0
    await world.append(NAME, b"last")


def told(spans: list[Span]) -> list[tuple[int, int, bytes, int, bytes]]:
    return [
        (each.record, each.byte, bytes(each.payload), each.encoding, each.lengths) for each in spans
    ]


@story
async def test_spans_have_the_encoding_and_the_borders_of_their_records(world: World) -> None:
    await write(world)
    hot = await world.page(NAME, whole_records=True)
    expected = [(2, 7, b"a batch", KAFKA, b""), (5, 14, b"last", BYTES, b"")]
    assert told(hot.spans) == [(0, 0, b"one", BYTES, b""), (1, 3, b"four", BYTES, b""), *expected]
    await world.flusher.flush_now()
    assert world.hot_bytes == 0
    cold = await world.page(NAME, whole_records=True)
    joined = (0, 0, b"onefour", BYTES, pack("<2I", 3, 4))
    assert told(cold.spans) == [joined, *expected], "small batches are one span with their borders"
    values = await world.page(NAME)
    assert told(values.spans) == [(0, 0, b"onefour", BYTES, b""), *expected]
    part = await world.page(NAME, 1, 3, bytes_max=4, whole_records=True)
    assert told(part.spans) == [(1, 3, b"four", BYTES, b"")]
    inside = await world.page(NAME, 3, 7, whole_records=True)
    assert told(inside.spans) == expected, "a batch is not divided"


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
