"""DeleteRecords inside a batch: the log start is the offset that was asked, for every reader."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import cramjam
import pytest
from front_world import Answer, Wire, request
from google_crc32c import value as crc32c
from worlds.kafka import KafkaWire, KafkaWorld, batch, fetch_fields, plain_fields, play
from worlds.kafka import produce_fields as produce_fields_of
from worlds.service import IDLE_MS

from polynya.base.names import group_of, partition_name
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.server import HttpFront
from polynya.front.kafka.errors import Error
from polynya.front.kafka.topics.catalog import Adoption
from polynya.front.text.protocol import TextCommand
from polynya.front.text.topics import NodeView, Topics
from polynya.local.api import StreamInfo
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import Profile, SetProfile
from polynya.stream.features.retention.commands import TrimTo
from polynya.stream.features.retention.rules import cut_of
from polynya.stream.parts import Retention
from polynya.stream.replies import Code
from polynya.stream.state.feature_level import level_of
from polynya.wire.headers import RECORDS
from polynya.wire.kafka.batches import HEADER_BYTES, Record, batches_of, build_batch, header_of
from polynya.wire.kafka.records import decoded_records

TOPIC = "t"
NAME = partition_name(TOPIC, 0)
LATEST, EARLIEST, NEWEST_TIME = -1, -2, -3


def zstd(plain: bytes) -> bytes:
    """A batch with its records compressed."""
    made = bytearray(plain[:HEADER_BYTES] + bytes(cramjam.zstd.compress(plain[HEADER_BYTES:])))
    made[8:12] = (len(made) - 12).to_bytes(4)
    made[22] = 4
    made[17:21] = crc32c(bytes(made[21:])).to_bytes(4)
    return bytes(made)


class Reader:
    """HTTP clients of the core of a Kafka world."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def ask(self, method: str, target: str, **headers: str) -> Answer:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port))
        wire.send(request(method, target, b"" if method == "PUT" else None, **headers))
        answer = await wire.answer(method=method)
        wire.close()
        return answer

    async def get(self, name: str, query: str = "?offset=-1", **headers: str) -> Answer:
        return await self.ask("GET", f"/v1/stream/{name}{query}", **headers)

    async def offsets(self, name: str, query: str = "?offset=-1") -> list[int]:
        page = await self.get(name, query, accept=RECORDS)
        assert page.status == 200, page
        return [each["offset"] for each in json.loads(page.body)]

    async def events(self, name: str, query: str, size: int) -> list[int]:
        """The offsets of the first records of a live reader."""
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port))
        wire.send(request("GET", f"/v1/stream/{name}{query}", accept=RECORDS))
        assert (await wire.answer()).status == 200
        found: list[int] = []
        while len(found) < size:
            for line in (await wire.chunk()).decode().splitlines():
                if line.startswith("data:["):
                    found += [each["offset"] for each in json.loads(line[5:])]
        wire.close()
        return found


@asynccontextmanager
async def http(world: KafkaWorld) -> AsyncIterator[Reader]:
    front = HttpFront(world.core.service, HttpSettings(long_poll_seconds=30.0))
    listener = socket.create_server(("127.0.0.1", 0))
    await front.start([listener])
    try:
        yield Reader(listener.getsockname()[1])
    finally:
        await front.stop(0.5)


async def produce(wire: KafkaWire, *batches: bytes) -> None:
    for each in batches:
        message = await wire.ask("Produce", 9, **produce_fields_of(TOPIC, each))
        (answer,) = message.responses[0].partition_responses
        assert answer.error_code.value == 0


async def deleted(wire: KafkaWire, offset: int) -> tuple[int, int]:
    """Delete the records before an offset; return (error, low watermark)."""
    partition = {"partition_index": 0, "offset": offset}
    topics = [{"name": TOPIC, "partitions": [partition]}]
    fields = {"topics": topics, "timeout": 1000}
    message = await wire.ask("DeleteRecords", 2, **plain_fields("DeleteRecords", 2, fields))
    (answer,) = message.topics[0].partitions
    return answer.error_code.value, answer.low_watermark


async def offset_of(wire: KafkaWire, timestamp: int) -> int:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    fields = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": TOPIC, "partitions": [asked]}],
    }
    message = await wire.ask("ListOffsets", 7, **plain_fields("ListOffsets", 7, fields))
    return int(message.topics[0].partitions[0].offset)


async def fetched(wire: KafkaWire, offset: int) -> tuple[int, int, list[int]]:
    """Return (error, log start, offsets that a consumer keeps) of a Fetch."""
    message = await wire.ask("Fetch", 11, **fetch_fields(TOPIC, offset))
    (answer,) = message.responses[0].partitions
    kept = [
        record.offset
        for stored in batches_of(answer.records or b"")
        for record in decoded_records(stored, header_of(stored).base_offset)
        if record.offset >= offset
    ]
    return answer.error_code.value, answer.log_start_offset, kept


async def stay_hot(world: KafkaWorld) -> None:
    """Leave the batches in memory."""


async def flush(world: KafkaWorld) -> None:
    await world.core.flusher.flush_now()


async def evict(world: KafkaWorld) -> None:
    await world.core.flusher.flush_now()
    world.core.clock.ms += 2 * IDLE_MS
    await world.core.evictor.evict_due()
    assert NAME in world.core.local.machines[group_of(NAME, world.core.groups)].directory.evicted


@pytest.mark.parametrize("profile", ["replicated", "diskless"])
@pytest.mark.parametrize("coded", [bytes, zstd], ids=["plain", "zstd"])
@pytest.mark.parametrize("settle", [stay_hot, flush, evict])
def test_no_reader_gets_the_records_before_the_log_start(
    settle: Callable[[KafkaWorld], Awaitable[None]], coded: Callable[[bytes], bytes], profile: str
) -> None:
    async def story(world: KafkaWorld) -> None:
        configs = [("profile", profile), ("content.type", "application/json")]
        await world.front.context.topics.create(TOPIC, 1, configs)
        wire = await world.wire()
        first = coded(batch(*(b"%d" % n for n in range(10))))
        await produce(wire, first, batch(b"10", b"11", time_ms=5000))
        async with http(world) as reader:
            if settle is not evict:  # a stream with forks stays
                assert await fork(world, "docs/old") == Code.CREATED
            await settle(world)
            assert await deleted(wire, 4) == (0, 4)
            await settle(world)
            await check_kafka(wire, 4)
            await settle(world)
            await check_http(reader, NAME, 4)
            assert await deleted(wire, 3) == (0, 4), "before the log start"
            assert await deleted(wire, 13) == (Error.OFFSET_OUT_OF_RANGE, -1)
            await settle(world)
            assert await deleted(wire, 5) == (0, 5)
            assert await fork(world, "docs/new") == Code.CREATED
            await check_http(reader, "docs/new", 5)
            assert await deleted(wire, 9) == (0, 9)
            await check_http(reader, NAME, 9)
            await check_http(reader, "docs/new", 5)
            if settle is not evict:
                assert await reader.offsets("docs/old") == [*range(12)], "as after any trim"
            assert await deleted(wire, -1) == (0, 12)
            assert await reader.offsets(NAME) == []

    play(story)


async def fork(world: KafkaWorld, name: str, record: int = -1) -> int:
    command = Create(name, world.core.service.now_ms(), "", 0)
    return (await world.core.service.fork(command, NAME, record, -1, 0)).code


async def check_kafka(wire: KafkaWire, start: int) -> None:
    assert await fetched(wire, start - 1) == (Error.OFFSET_OUT_OF_RANGE, -1, [])
    for offset in (start, start + 1):
        assert await fetched(wire, offset) == (0, start, [*range(offset, 12)])
    assert await offset_of(wire, EARLIEST) == start
    assert await offset_of(wire, LATEST) == 12
    assert await offset_of(wire, 0) == start
    assert await offset_of(wire, 1000 + start + 2) == start + 2
    assert await offset_of(wire, NEWEST_TIME) == 11


async def check_http(reader: Reader, name: str, start: int) -> None:
    """Check all forms of reads over HTTP, from every spelling of the begin."""
    rest = [*range(start, 12)]
    head = (await reader.ask("HEAD", f"/v1/stream/{name}")).headers
    begin = head["stream-retained-offset"]
    assert begin.startswith(f"{start:016d}_")
    times = "from_time=2000-01-01T00:00:00Z", "from_record_time=1000"
    for query in ("offset=-1", f"offset={begin}", *times):
        assert await reader.offsets(name, "?" + query) == rest, query
    values = await reader.get(name)
    assert json.loads(values.body) == rest
    begun = await reader.get(name, f"?offset={begin}", if_none_match=values.headers["etag"])
    assert (begun.status, begun.body) == (304, b"") or json.loads(begun.body) == rest
    live = f"live=long-poll&offset={begin}"
    assert await reader.offsets(name, "?" + live) == rest
    for query in ("offset=-1", f"offset={begin}", times[0]):
        assert await reader.events(name, f"?live=sse&{query}", len(rest)) == rest, query
    for offset in (0, start - 1):
        for live in ("", "&live=long-poll", "&live=sse"):
            page = await reader.get(name, f"?offset={offset:016d}_{0:016d}{live}")
            assert (page.status, page.error) == (410, "TRIMMED"), page
            assert page.headers["stream-retained-offset"] == begin
    inside = f"{start + 1:016d}_{0:016d}"
    assert await reader.offsets(name, f"?offset={inside}") == rest[1:]


def test_a_time_of_a_deleted_record_finds_those_behind_it() -> None:
    """The largest time of a batch may be that of a record before the log start."""

    async def story(world: KafkaWorld) -> None:
        await world.front.context.topics.create(TOPIC, 1, [])
        wire = await world.wire()
        times = (9000, 2000, 3000)
        late = build_batch(Record(None, b"x", time_ms) for time_ms in times)
        await produce(wire, late, batch(b"3", time_ms=5000), batch(b"4", time_ms=4000))
        assert [await offset_of(wire, at) for at in (NEWEST_TIME, 2500, 4500)] == [0, 0, 0]
        for settle in (stay_hot, flush):
            await settle(world)
            assert await deleted(wire, 1) == (0, 1)
            assert await offset_of(wire, NEWEST_TIME) == 3
            assert await offset_of(wire, 2500) == 2
            assert await offset_of(wire, 4500) == 3, "no kept record of the first batch is so late"
            assert await offset_of(wire, 6000) == -1
        await produce(wire, batch(b"5", time_ms=1))
        assert await deleted(wire, 2) == (0, 2)
        assert await offset_of(wire, NEWEST_TIME) == 3

    play(story)


def test_the_newest_time_may_be_that_of_a_kept_record_of_the_first_batch() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.front.context.topics.create(TOPIC, 1, [])
        wire = await world.wire()
        first = build_batch(Record(None, b"x", at) for at in (9000, 8000, 8000))
        await produce(wire, zstd(first), batch(b"3", time_ms=5000))
        assert await deleted(wire, 1) == (0, 1)
        assert await offset_of(wire, NEWEST_TIME) == 1
        assert await offset_of(wire, 8500) == -1

    play(story)


def test_only_a_trim_inside_a_batch_needs_the_new_level() -> None:

    async def story(world: KafkaWorld) -> None:
        await world.front.context.topics.create(TOPIC, 1, [])
        wire = await world.wire()
        await produce(wire, batch(b"0", b"1"), batch(b"2", b"3"))
        machine = world.core.local.machines[group_of(NAME, world.core.groups)]
        level = machine.counters.level
        assert await deleted(wire, 2) == (0, 2)
        assert machine.counters.level == level < level_of(TrimTo), (
            "a trim between batches is an older rule"
        )
        assert await deleted(wire, 3) == (0, 3)
        assert machine.counters.level == level_of(TrimTo)

    play(story)


@pytest.mark.parametrize("settle", [stay_hot, flush, evict])
def test_a_fork_begins_at_the_log_start_and_not_between_records(
    settle: Callable[[KafkaWorld], Awaitable[None]],
) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.front.context.topics.create(TOPIC, 1, [])
        wire = await world.wire()
        await produce(wire, batch(b"x"), batch(*(b"%d" % n for n in range(10))))
        assert await deleted(wire, 4) == (0, 4)
        await settle(world)
        for record, code in (
            (0, Code.TRIMMED),
            (3, Code.TRIMMED),
            (4, Code.CREATED),
            (5, Code.SUB_OFFSET),
            (11, Code.CREATED),
        ):
            assert await fork(world, f"docs/at{record}", record) == code, record
        at = await world.core.service.info("docs/at4")
        assert isinstance(at, StreamInfo)
        assert (at.first_record, at.record) == (4, 4)

    play(story)


def test_an_adopted_stream_begins_inside_a_kafka_batch_for_walrus_and_http_too() -> None:
    async def story(world: KafkaWorld) -> None:
        core = world.core
        await core.create("docs/jobs", json=True)
        await world.front.context.topics.adopt(TOPIC, Adoption(["docs/jobs"]))
        wire = await world.wire()
        await produce(wire, batch(*(b'"m%d"' % number for number in range(4))))
        await core.append("docs/jobs", b'"m4"', json=True)
        assert await deleted(wire, 2) == (0, 2)
        view = NodeView(1, lambda name: 1, lambda: 1, list, no_segments)
        topics = Topics(core.service, view)
        found = [await topics.run(TextCommand("GET", "docs/jobs")) for _ in range(4)]
        assert found == ["OK m2", "OK m3", "OK m4", "EMPTY"]
        async with http(world) as reader:
            assert await reader.offsets("docs/jobs") == [2, 3, 4]
            assert json.loads((await reader.get("docs/jobs")).body) == ["m2", "m3", "m4"]
        assert await deleted(wire, 4) == (0, 4), "where the batch ends"
        assert (await fetched(wire, 4))[1:] == (4, [4])

    play(story)


async def no_segments(name: str) -> None:
    return None


def test_the_log_start_stays_when_the_profile_changes_and_retention_passes_it() -> None:
    async def story(world: KafkaWorld) -> None:
        core = world.core
        await world.front.context.topics.create(TOPIC, 1, [("content.type", "application/json")])
        wire = await world.wire()
        await produce(wire, batch(*(b"%d" % n for n in range(10))))
        await produce(wire, batch(b"10", b"11", time_ms=5000))
        assert await deleted(wire, 4) == (0, 4)
        stream = core.local.machines[group_of(NAME, core.groups)].directory.streams[NAME]
        assert stream.hot is not None
        behind = (10, stream.hot[1].byte)
        size = stream.next_byte
        for kept, boundary in ((size - behind[1], behind), (size, None)):
            cut = cut_of(stream, Retention(bytes=kept), core.clock.ms)
            assert cut.boundary == boundary, "retention knows whole batches"
        async with http(world) as reader:
            for profile in (Profile.DISKLESS, Profile.REPLICATED):
                changed = await core.send(SetProfile(NAME, profile, core.clock.ms))
                assert changed.code == Code.OK
                await check_kafka(wire, 4)
                await check_http(reader, NAME, 4)
            assert await deleted(wire, 5) == (0, 5)
            assert await deleted(wire, 10) == (0, 10)

    play(story)
