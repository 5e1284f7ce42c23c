"""Thousands of requests in one piece: each is answered, in order, and others have their turns in
between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fake_service import FakeService
from front_world import World, play, request

from polynya.front.http import connection
from polynya.front.http.connection import Connection
from polynya.front.http.server import HttpFront

COUNT = 1000
NOWHERE = request("GET", "/v1/nowhere")
CHUNKED = b"POST /v1/nowhere HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


class _Memory(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.answers = 0
        self.closed = self.paused = False

    def write(self, data: Any) -> None:
        self.answers += bytes(data).count(b"HTTP/1.1 404 ")

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return 0


def run(story: Callable[[Connection, _Memory], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        made, transport = Connection(HttpFront(FakeService()).context), _Memory()
        made.connection_made(transport)
        async with asyncio.timeout(60):
            await story(made, transport)

    asyncio.run(main())


@pytest.mark.parametrize("one", [NOWHERE, CHUNKED], ids=["plain", "chunked"])
def test_others_have_their_turns(one: bytes) -> None:
    async def story(made: Connection, transport: _Memory) -> None:
        made.data_received(one * COUNT)
        passes = 0
        while transport.answers < COUNT:
            assert transport.answers <= (passes + 1) * connection.REQUESTS_PER_PASS
            passes += 1
            await asyncio.sleep(0)
        assert passes >= COUNT // connection.REQUESTS_PER_PASS
        made.data_received(one)
        assert transport.answers == COUNT + 1 and not transport.closed

    run(story)


@pytest.mark.parametrize("rest", [b"", b"GET /v1/no"], ids=["whole", "cut"])
def test_who_has_said_all_is_answered_all(rest: bytes) -> None:
    async def story(made: Connection, transport: _Memory) -> None:
        made.data_received(NOWHERE * COUNT + rest)
        assert made.eof_received()
        while not transport.closed:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert transport.answers == COUNT

    run(story)


def test_what_comes_meanwhile_waits_and_a_flood_of_it_is_not_read() -> None:
    async def story(made: Connection, transport: _Memory) -> None:
        large = request("GET", "/v1/nowhere", x_pad="x" * 2000)
        made.data_received(large * 100)
        sent = 100
        while not transport.paused:
            made.data_received(large * 100)
            sent += 100
        assert transport.answers <= connection.REQUESTS_PER_PASS
        while transport.answers < sent:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not transport.paused

    run(story)


def test_a_client_that_goes_in_the_middle_leaves_nothing() -> None:
    async def story(made: Connection, transport: _Memory) -> None:
        made.data_received(NOWHERE * COUNT)
        made.connection_lost(None)
        for _ in range(COUNT):
            await asyncio.sleep(0)
        assert transport.answers <= connection.REQUESTS_PER_PASS and not made._context.connections

    run(story)


def test_a_half_closed_pipeline_of_slow_and_quick_requests_is_answered_whole() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        wire = await world.wire()
        wire.send(
            request("POST", "/v1/stream/s", b"[1]", content_type="application/json") + NOWHERE * 5
        )
        wire.writer.write_eof()
        assert [(await wire.answer()).status for _ in range(6)] == [204, 404, 404, 404, 404, 404]
        assert await wire.ended()

    play(story)
