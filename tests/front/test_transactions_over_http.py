"""Planted transactions over HTTP: every form of a read has the records of committed ones only."""

from __future__ import annotations

import asyncio
import json

from front_world import World, play, request
from test_live import control
from worlds.transactions import Planter

from polynya.base.names import group_of
from polynya.stream.command import Command
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.replies import Reply
from polynya.stream.state.model import Stream
from polynya.wire.headers import RECORDS
from polynya.wire.kafka.values import partition_type

NAME = "kafka/t/0"
SEEN = [1, 2, 3]


def send(world: World, command: Command, name: str) -> asyncio.Future[Reply | BaseException]:
    done: asyncio.Future[Reply | BaseException] = asyncio.get_running_loop().create_future()
    world.service.propose(name, command, done.set_result)
    return done


async def planter(world: World) -> Planter:
    machine = world.service.local.machines[group_of(NAME, 2)]

    def stream() -> Stream:
        return machine.directory.streams[NAME]

    made = Planter(NAME, stream, lambda command, name: send(world, command, name))
    made.now_ms = world.service.now_ms()
    create = Create(NAME, made.now_ms, partition_type("application/json"), Encoding.KAFKA)
    await send(world, create, NAME)
    return made


async def write_transactions(world: World) -> Planter:
    """A committed record, an aborted one, a committed one, and an open transaction."""
    made = await planter(world)
    await made.write(b"1")
    await made.write(b"7", producer=107)
    await made.write(b"2", producer=5)
    await made.end(107)
    await made.end(5)
    await made.write(b"3")
    await made.write(b"8", producer=6)
    await made.write(b"9")
    return made


def test_pages_of_every_form_have_committed_records() -> None:
    async def story(world: World) -> None:
        await write_transactions(world)
        page = await world.get(NAME)
        assert (json.loads(page.body), page.headers["stream-up-to-date"]) == (SEEN, "true")
        end = page.headers["stream-next-offset"]
        assert end.startswith("0000000000000006_")
        assert (await world.head(NAME)).headers["stream-next-offset"] == end
        lines = await world.get(NAME, accept="application/x-ndjson")
        assert lines.body == b"1\n2\n3\n"
        envelopes = json.loads((await world.get(NAME, accept=RECORDS)).body)
        assert [(each["offset"], each["value"]) for each in envelopes] == [(0, 1), (2, 2), (5, 3)]
        counted = await world.get(NAME, "?record=1&max_records=2")
        assert json.loads(counted.body) == [2, 3]
        assert counted.headers["stream-record-next"] == "6"
        assert json.loads((await world.get(NAME, "?tail_records=4")).body) == [2, 3]
        small = await world.get(NAME, "?record=1&max_bytes=1")
        assert json.loads(small.body) == [2]

    play(story)


def test_a_stream_that_ends_with_an_aborted_transaction_is_read_to_its_end() -> None:
    async def story(world: World) -> None:
        made = await planter(world)
        await made.write(b"1")
        await made.write(b"7", producer=107)
        await made.end(107)
        first = await world.get(NAME)
        assert (json.loads(first.body), first.headers["stream-up-to-date"]) == ([1], "true")
        assert first.headers["stream-next-offset"].startswith("0000000000000003_")
        rest = await world.get(NAME, "?record=1")
        assert (rest.status, json.loads(rest.body)) == (200, [])
        assert rest.headers["stream-next-offset"] == first.headers["stream-next-offset"]
        assert rest.headers["stream-up-to-date"] == "true"

    play(story)


def test_a_page_of_aborted_records_alone_is_empty_and_moves_on() -> None:
    async def story(world: World) -> None:
        made = await planter(world)
        for _ in range(20):
            await made.write(b"7", producer=107)
        await made.end(107)
        await made.write(b"1")
        offset, seen, pages = "-1", [], 0
        while (
            "stream-up-to-date"
            not in (page := await world.get(NAME, f"?offset={offset}&max_bytes=1")).headers
        ):
            offset, pages = page.headers["stream-next-offset"], pages + 1
            seen += json.loads(page.body)
        assert ([*seen, *json.loads(page.body)], pages) == ([1], 2)
        wire = await world.wire()
        wire.send(request("GET", f"/v1/stream/{NAME}?live=long-poll&offset=-1&max_bytes=1"))
        assert (await wire.answer()).body == b"[1]", "a wait goes on behind them"

    play(story)


def test_live_readers_get_what_is_committed_and_are_told_of_what_is_not() -> None:
    async def story(world: World) -> None:
        made = await planter(world)
        await made.write(b"1")
        events = await world.sse(NAME)
        assert b"data:[1]\n" in await events.chunk()
        await made.write(b"7", producer=107)
        await made.write(b"2", producer=5)
        await made.end(107)
        moved = await events.chunk()
        assert b"event: data" not in moved
        assert str(control(moved)["streamNextOffset"]).startswith("0000000000000002_")
        poll = await world.wire()
        poll.send(request("GET", f"/v1/stream/{NAME}?live=long-poll&record=1"))
        await world.until(lambda: world.front.readers.waiters)
        await made.end(5)
        assert (await poll.answer()).body == b"[2]"
        assert b"data:[2]\n" in await events.chunk()
        await made.write(b"3")
        assert b"data:[3]\n" in await events.chunk()

    play(story)


def test_a_wait_ends_behind_an_aborted_transaction() -> None:
    async def story(world: World) -> None:
        made = await planter(world)
        await made.write(b"7", producer=107)
        await made.end(107)
        wire = await world.wire()
        wire.send(request("GET", f"/v1/stream/{NAME}?live=long-poll&offset=-1&timeout_ms=1"))
        answer = await wire.answer()
        assert answer.status == 204
        assert answer.headers["stream-next-offset"].startswith("0000000000000002_")

    play(story)
