"""Partitions of Kafka topics over HTTP: forms, places, limits, caches, and damaged batches."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode

import cramjam
from front_world import World, play
from google_crc32c import value as crc32c

from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code, Reply
from polynya.wire.headers import RECORDS
from polynya.wire.kafka.batches import HEADER_BYTES, Record, build_batch
from polynya.wire.kafka.values import partition_type, values_type

NAME = "kafka/t/0"
APPENDED = {"append_time": 1_800_000_000_000}  # the world's time
JSON = "application/json"


async def call(world: World, command: Command) -> Reply:
    done: asyncio.Future[Reply | BaseException] = asyncio.get_running_loop().create_future()
    world.service.propose(NAME, command, done.set_result)
    reply = await done
    assert isinstance(reply, Reply)
    return reply


async def topic(world: World, content_type: str = "") -> None:
    command = Create(NAME, world.service.now_ms(), partition_type(content_type), Encoding.KAFKA)
    assert (await call(world, command)).code == Code.CREATED


async def produce(world: World, *values: bytes | None, key: bytes | None = None) -> int:
    """Append one batch; return its size."""
    return await store(world, build_batch([Record(key, each, 1000) for each in values]))


async def store(world: World, batch: bytes) -> int:
    count = int.from_bytes(batch[57:61])
    stored = Batch(Encoding.KAFKA, count, batch, crc32c(batch))
    assert (await call(world, Produce(NAME, world.service.now_ms(), stored))).code == Code.OK
    return len(batch)


def compressed(batch: bytes) -> bytes:
    made = bytearray(batch[:HEADER_BYTES] + bytes(cramjam.zstd.compress(batch[HEADER_BYTES:])))
    made[8:12] = (len(made) - 12).to_bytes(4)
    made[22] = 4
    return bytes(made)


def compressed_wrongly(batch: bytes) -> bytes:
    made = bytearray(batch)
    made[22] = 4
    return bytes(made)


def test_values_are_concatenated_and_places_are_the_streams() -> None:
    async def story(world: World) -> None:
        await topic(world)
        size = await produce(world, b"a", None, b"b")
        size += await produce(world, b"c")
        page = await world.get(NAME)
        assert (page.status, page.body) == (200, b"abc")
        assert page.headers["content-type"] == "application/octet-stream"
        assert page.headers["stream-next-offset"] == f"{4:016d}_{size:016d}"
        assert page.headers["stream-up-to-date"] == "true"
        inside = await world.get(NAME, f"?offset={2:016d}_{0:016d}")
        assert inside.body == b"bc", "records before the offset are left out"
        assert inside.headers["etag"] != page.headers["etag"]
        empty = await world.get(NAME, "?offset=now")
        assert (empty.status, empty.body) == (200, b"")

    play(story)


def test_a_json_topic_reads_as_an_array_lines_or_records() -> None:
    async def story(world: World) -> None:
        await topic(world, JSON)
        await produce(world, b' {"a":\n1.50}', None, b"plain", b"\xff", b'"\\ud800"', key=b"k")
        page = await world.get(NAME)
        assert page.headers["content-type"] == JSON
        coded = {"$base64": b64encode(b"\xff").decode()}
        values = [{"a": 1.5}, None, "plain", coded, "\ud800"]
        assert json.loads(page.body) == values
        assert b"1.50" in page.body, "numbers stay as they are"
        lines = await world.get(NAME, accept="application/x-ndjson")
        assert [json.loads(line) for line in lines.body.splitlines()] == values
        records = await world.get(NAME, accept=RECORDS)
        assert records.headers["content-type"] == RECORDS
        assert json.loads(records.body) == [
            {"offset": n, "timestamp": 1000, **APPENDED, "key": "k", "headers": [], "value": value}
            for n, value in enumerate(values)
        ]
        tags = {each.headers["etag"] for each in (page, lines, records)}
        assert len(tags) == 3
        for each, accept in ((page, "*/*"), (records, RECORDS)):
            again = await world.get(NAME, accept=accept, if_none_match=each.headers["etag"])
            assert again.status == 304
        assert "Accept" in page.headers["vary"]
        assert (await world.head(NAME)).headers["content-type"] == JSON

    play(story)


def test_pages_end_at_batches_and_are_bounded_by_what_is_decoded() -> None:
    async def story(world: World) -> None:
        await topic(world)
        plain = build_batch([Record(None, b"x" * 1000, 1)])
        small = compressed(plain)
        for _ in range(5):
            await store(world, small)
        sizes, offset = [], "-1"
        while True:
            page = await world.get(NAME, f"?offset={offset}&max_bytes=2500")
            offset = page.headers["stream-next-offset"]
            sizes.append(len(page.body))
            if "stream-up-to-date" in page.headers:
                break
        assert sizes == [2000, 2000, 1000]
        assert offset == f"{5:016d}_{5 * len(small):016d}"

    play(story)


def test_a_damaged_batch_is_an_error_that_names_the_place_behind_it() -> None:
    async def story(world: World) -> None:
        await topic(world)
        await produce(world, b"good")
        await store(world, compressed_wrongly(build_batch([Record(None, b"bad")] * 2)))
        await produce(world, b"after")
        page = await world.get(NAME)
        assert (page.status, page.body) == (200, b"good")
        assert "stream-up-to-date" not in page.headers
        damaged = await world.get(NAME, f"?offset={page.headers['stream-next-offset']}")
        assert (damaged.status, damaged.error) == (422, "KAFKA_BATCH_UNREADABLE")
        assert b"the batch at offset 1" in damaged.body
        rest = await world.get(NAME, f"?offset={damaged.headers['stream-next-offset']}")
        assert rest.body == b"after"

    play(story)


def test_live_reads_are_decoded() -> None:
    async def story(world: World) -> None:
        await topic(world, JSON)
        waiting = world.meanwhile(world.get(NAME, "?live=long-poll&offset=now&timeout_ms=60000"))
        await world.until(lambda: world.front.readers.waiters)
        await produce(world, b"1", b"2")
        page = await waiting
        assert (page.status, page.body) == (200, b"[1,2]")
        assert "stream-cursor" in page.headers
        at_once = await world.get(NAME, "?live=long-poll&offset=-1", accept=RECORDS)
        assert [each["value"] for each in json.loads(at_once.body)] == [1, 2]
        wire = await world.sse(NAME, f"?live=sse&offset={1:016d}_{0:016d}")
        assert "data:[2]\n" in (await wire.chunk()).decode(), "from inside a batch"
        small = build_batch([Record(None, b'{"x":"%b"}' % (b"x" * 1000), 1)])
        await store(world, compressed(small))
        await produce(world, b"4")
        got = (await wire.chunk()).decode() + (await wire.chunk()).decode()
        assert got.index("xxx") < got.index("data:[4]\n"), "what is compressed is in its place"

    play(story)


def test_events_end_at_a_damaged_batch_and_a_reader_resumes_behind_it() -> None:
    async def story(world: World) -> None:
        await topic(world, "text/plain")
        await produce(world, b"good")
        wire = await world.sse(NAME)
        assert "data:good" in (await wire.chunk()).decode()
        await store(world, compressed_wrongly(build_batch([Record(None, b"bad")])))
        await produce(world, b"after")
        error = (await wire.chunk()).decode()
        assert "event: error" in error and "KAFKA_BATCH_UNREADABLE" in error
        assert await wire.chunk() == b"", "the response is over"
        last = error.partition("id:")[2].partition("\n")[0]
        again = await world.sse(NAME, "?live=sse", last_event_id=last)
        assert "data:after" in (await again.chunk()).decode()

    play(story)


def test_http_does_not_write_to_a_partition_of_any_type() -> None:
    async def story(world: World) -> None:
        await topic(world, JSON)
        whole = b'[{"value": 1}]'
        for refused in (
            await world.post(NAME, b"1"),
            await world.post(NAME, b"1", record_key="k"),
            await world.post(NAME, b"1", partition_type(JSON)),
            await world.post(NAME, whole, RECORDS),
            await world.post(NAME, b"", JSON, stream_closed="true"),
            await world.put(NAME),
            await world.put("kafka/t/1"),
            await world.put("kafka/t/1", stream_forked_from="/v1/stream/s"),
        ):
            assert (refused.status, refused.error) == (409, "KAFKA_PARTITION")
        assert (await world.put("kafka/t/notes")).status == 201
        closed = await world.post("kafka/t/notes", b"", JSON, stream_closed="true")
        assert closed.status == 204
        assert (await world.get(NAME)).body == b"[]"

    play(story)


def test_a_json_stream_reads_as_records_too() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b'[1, {"a": 2}]')
        await world.post("s", b"null")
        page = await world.get("s", f"?offset={1:016d}_{2:016d}", accept=RECORDS)
        assert json.loads(page.body) == [
            {"offset": n, "timestamp": None, **APPENDED, "key": None, "headers": [], "value": value}
            for n, value in ((1, {"a": 2}), (2, None))
        ]
        assert page.headers["etag"] != (await world.get("s")).headers["etag"]

    play(story)


def test_the_content_type_of_values_is_kept_in_that_of_the_partition() -> None:
    for content_type in (JSON, "text/plain; charset=utf-8"):
        assert values_type(partition_type(content_type)) == content_type
    assert values_type(partition_type("")) == "application/octet-stream"
