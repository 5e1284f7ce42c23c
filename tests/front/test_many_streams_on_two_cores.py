"""Many streams of a node with two cores: of both, created on either, and resumed on the other one."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from front_world import request
from stories.service import node_story
from worlds.service import Node, World, name_in

from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.server import HttpFront
from polynya.service.live import LiveStreams

HERE, THERE = name_in(2), name_in(1)  # of core 0, of core 1


class Reader:
    """A connection to one core, and the records that it has got, by stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._text = ""
        self.records: dict[str, list[object]] = {}
        self.last_id = ""

    async def until(self, wanted: dict[str, list[object]]) -> None:
        """Read until these records have come, and no others."""
        while self.records != wanted:
            piece = await self._reader.read(65536)
            assert piece, f"the response ended at {self.records}"
            self._text += piece.decode()
            *blocks, self._text = self._text.split("\n\n")
            for block in blocks:
                if found := re.search(r"^id:(\S+)$", block, re.MULTILINE):
                    self.last_id = found[1]
                if found := re.search(r"^event: data\r?\ndata:(.*)$", block, re.MULTILINE):
                    event = json.loads(found[1])
                    self.records.setdefault(event["stream"], []).extend(event["data"])


@asynccontextmanager
async def fronts(node: Node) -> AsyncIterator[list[int]]:
    """Run a front on each core until `with` ends; yield their ports."""
    ports, started = [], []
    for world in node.worlds:
        front = HttpFront(world.service, HttpSettings(), live=LiveStreams(world.service))
        listener = socket.create_server(("127.0.0.1", 0))
        await front.start([listener])
        ports.append(listener.getsockname()[1])
        started.append(front)
    try:
        yield ports
    finally:
        for front in started:
            await front.stop(0.1)


async def live(port: int, query: str, **headers: str) -> Reader:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        request("GET", f"/v1/live?{query}", **headers).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    )
    return Reader(reader, writer)


async def appended(world: World, name: str, value: bytes) -> None:
    await world.append(name, value, json=True)


@node_story
async def test_streams_of_both_cores_are_followed_and_resumed_on_either(node: Node) -> None:
    here, there = node.worlds
    for name in (HERE, THERE):
        await here.create(name, json=True)
        await appended(here, name, b"1")
    async with fronts(node) as ports:
        first = await live(ports[0], "match=**")
        await first.until({HERE: [1], THERE: [1]})
        await appended(there, HERE, b"2")
        await first.until({HERE: [1, 2], THERE: [1]})
        last_id = first.last_id
        await appended(here, THERE, b"3")
        await first.until({HERE: [1, 2], THERE: [1, 3]})
        new = name_in(1, hint="new")
        await there.create(new, json=True)
        await appended(there, new, b"4")
        # the other core asks for the cursor, which is still in use
        again = await live(ports[1], "match=**", last_event_id=last_id)
        await again.until({THERE: [3], new: [4]})
        first.writer.close()
        again.writer.close()


@node_story
async def test_a_core_that_dies_pauses_its_streams_alone(node: Node) -> None:
    here, _ = node.worlds
    for name in (HERE, THERE):
        await here.create(name, json=True)
        await appended(here, name, b"1")
    async with fronts(node) as ports:
        reader = await live(ports[0], f"stream={HERE}&stream={THERE}")
        await reader.until({HERE: [1], THERE: [1]})
        await node.kill_core(1)
        await appended(here, HERE, b"2")
        await reader.until({HERE: [1, 2], THERE: [1]})
        await node.start_core(1)
        await node.wait_connected()
        await appended(here, THERE, b"3")
        await reader.until({HERE: [1, 2], THERE: [1, 3]})
        reader.writer.close()
