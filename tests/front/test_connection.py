"""Connections: cut anywhere, pipelined, too large, too slow, half closed; and smuggling."""

from __future__ import annotations

import asyncio
import re
import socket
from itertools import pairwise
from typing import Any

import pytest
from fake_service import FakeService
from front_world import World, play, request
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from polling import turns

from polynya.base.errors import CorruptData, OutcomeUnknown, Unavailable
from polynya.base.limits import APPEND_BYTES_MAX, SQL_BODY_BYTES_MAX, SUBSCRIPTION_BODY_BYTES_MAX
from polynya.front.http.connection import Connection
from polynya.front.http.protocol import incoming_body
from polynya.front.http.protocol.settings import (
    BODY_SECONDS,
    HEAD_SECONDS,
    IDLE_SECONDS,
    LINGER_SECONDS,
    STALL_SECONDS,
)
from polynya.front.http.server import HttpFront

CHUNKED = (
    b"POST /v1/stream/s HTTP/1.1\r\nHost: t\r\nContent-Type: text/plain\r\nTransfer-Encoding: "
    b"chunked\r\n\r\n"
)
PIPELINE = b"".join(
    [
        request("PUT", "/v1/stream/s", content_type="text/plain"),
        request("POST", "/v1/stream/s", b"hello ", content_type="text/plain"),
        CHUNKED + b"3\r\nwor\r\n2;x=y\r\nld\r\n0\r\nT: 1\r\n\r\n",
        b"\r\n",
        request("POST", "/v1/stream/s", b"", content_type="text/plain"),
        request("GET", "/v1/stream/s?offset=-1"),
        request("DELETE", "/v1/stream/s"),
        request("GET", "/v1/stream/s"),
        b"BROKEN\r\n\r\n",
        request("GET", "/never/read"),
    ]
)
STATUSES = [201, 204, 204, 400, 200, 204, 404, 400]


class _Memory(asyncio.Transport):
    """A transport that keeps its output."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.closed = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.data += data

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def statuses(data: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+)", data)]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, len(PIPELINE) - 1), max_size=20), st.booleans())
def test_requests_are_the_same_wherever_their_bytes_are_cut(cuts: list[int], patient: bool) -> None:
    """Cut a pipeline of requests at these points; `patient`: the loop runs between the pieces."""

    async def main() -> bytes:
        front = HttpFront(FakeService())
        connection, transport = Connection(front.context), _Memory()
        connection.connection_made(transport)
        offsets = [0, *sorted(set(cuts)), len(PIPELINE)]
        for begin, end in pairwise(offsets):
            connection.data_received(PIPELINE[begin:end])
            if patient:
                await asyncio.sleep(0)
        while not transport.closed:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return transport.data

    data = asyncio.run(main())
    assert statuses(data) == STATUSES
    assert b"\r\n\r\nhello world" in data


def test_one_byte_at_a_time() -> None:
    async def story(world: World) -> None:
        wire = await world.wire()
        for byte in PIPELINE:
            wire.send(bytes([byte]))
            await asyncio.sleep(0)
        assert [(await wire.answer()).status for _ in STATUSES] == STATUSES
        assert await wire.ended()

    play(story)


def test_pipelined_appends_are_in_flight_together_and_a_read_waits_for_them() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        world.service.turns.held = True
        wire = await world.wire()
        appends = [
            request("POST", "/v1/stream/s", b"%d" % number, content_type="application/json")
            for number in range(200)
        ]
        wire.send(b"".join(appends) + request("GET", "/v1/stream/s"))
        await world.until(lambda: len(world.service.turns._proposals) == 64)
        await turns()
        assert len(world.service.turns._proposals) == 64  # the bound
        world.service.turns.release()
        offsets = [(await wire.answer()).headers["stream-next-offset"] for _ in appends]
        assert offsets == sorted(offsets)
        assert (await wire.answer()).body == b"[" + b",".join(
            b"%d" % number for number in range(200)
        ) + b"]"

    play(story)


SMUGGLED = b"POST /v1/stream/s HTTP/1.1\r\nHost: t\r\nContent-Type: text/plain\r\n"


@pytest.mark.parametrize(
    "head",
    [
        SMUGGLED + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        SMUGGLED + b"Content-Length: +5\r\n\r\nhello",
        SMUGGLED + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        SMUGGLED + b"Content-Length: 5, 5\r\n\r\nhello",
        SMUGGLED + b"Content-Length : 5\r\n\r\nhello",
        SMUGGLED + b"Transfer-Encoding: chunked, identity\r\n\r\n",
        SMUGGLED + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        SMUGGLED + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloGET",
        SMUGGLED + b" X: folded\r\n\r\n",
        SMUGGLED + b"X: a\nY: b\r\n\r\n",
        SMUGGLED + b"X: a\rY: b\r\n\r\n",
        SMUGGLED + b"Host: u\r\n\r\n",
        b"GET /v1/stream/s HTTP/1.1\n\n",
        b"GET /v1/stream/s HTTP/1.1\r\n\r\n",
        b"GET /v1/stream/s HTTP/1.1\r\nHost: t\r\nX" + b"x" * 300_000 + b": 1\r\n\r\n",
        b"GET /" + b"x" * 300_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_doubtful_requests_are_answered_with_4xx_and_the_connection_ends(head: bytes) -> None:
    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        wire = await world.wire()
        wire.send(head + request("GET", "/v1/stream/s"))
        answer = await wire.answer()
        assert 400 <= answer.status < 500 or answer.status == 505
        assert answer.headers["connection"] == "close"
        assert answer.error
        assert await wire.ended()
        assert (await world.get("s")).body == b""

    play(story)


def test_a_body_over_the_limit_is_answered_while_it_is_still_sent() -> None:
    async def story(world: World) -> None:
        for head in (SMUGGLED + b"Content-Length: %d\r\n\r\n" % (APPEND_BYTES_MAX + 1), CHUNKED):
            wire = await world.wire()
            piece = b"x" * (1 << 20)
            wire.send(head)
            for _ in range(34):
                wire.send(piece if head != CHUNKED else b"100000\r\n" + piece + b"\r\n")
                await wire.writer.drain()
            answer = await wire.answer()
            assert (answer.status, answer.error) == (413, "BODY_TOO_LARGE")

    play(story)


def test_the_largest_body_goes_through() -> None:
    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        assert (await world.post("s", b"x" * APPEND_BYTES_MAX, "text/plain")).status == 204
        assert world.front.context.bodies.bytes == 0

    play(story)


def test_a_large_body_that_waits_behind_a_long_poll_counts_until_it_may_go_on() -> None:
    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        await world.put("t", "text/plain")
        wire = await world.wire()
        wire.send(request("GET", "/v1/stream/t?offset=now&live=long-poll&timeout_ms=60000"))
        await world.until(lambda: world.front.readers.waiters)
        wire.send(request("POST", "/v1/stream/s", b"x" * (1 << 20), content_type="text/plain"))
        (connection,) = world.front.connections
        await world.until(lambda: connection._held is not None)
        assert world.front.context.bodies.bytes == 1 << 20
        for waiter in tuple(world.front.readers.waiters):
            waiter.expire()
        assert [(await wire.answer()).status for _ in range(2)] == [204, 204]
        assert world.front.context.bodies.bytes == 0

    play(story)


def test_bodies_in_chunks_count_with_all_that_has_come() -> None:
    """Their size is not known before: a few of them at a time could take many times the memory that
    all bodies may."""

    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        piece = b"40000\r\n" + b"x" * 0x40000 + b"\r\n"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(incoming_body, "BODY_BYTES_PER_CORE", 3 * 0x40000)
            first, second = await world.wire(), await world.wire()
            first.send(CHUNKED + 2 * piece)
            await world.until(lambda: world.front.context.bodies.bytes == 2 * 0x40000)
            second.send(CHUNKED + piece)
            await world.until(lambda: world.front.context.bodies.bytes == 3 * 0x40000)
            second.send(piece)
            answer = await second.answer()
            assert (answer.status, answer.error, answer.headers["retry-after"]) == (
                503,
                "REQUEST_MEMORY_LIMIT",
                "1",
            )
            first.send(b"0\r\n\r\n")
            assert (await first.answer()).status == 204
        assert world.front.context.bodies.bytes == 0

    play(story)


def test_expect_100_continue() -> None:
    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        wire = await world.wire()
        wire.send(SMUGGLED + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert (await wire.answer()).status == 100
        wire.send(b"hello")
        assert (await wire.answer()).status == 204
        wire.send(
            SMUGGLED
            + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (APPEND_BYTES_MAX + 1)
        )
        assert (await wire.answer()).status == 413
        other = await world.wire()
        other.send(SMUGGLED + b"Content-Length: 5\r\nExpect: a-pony\r\n\r\n")
        assert (await other.answer()).error == "EXPECTATION"
        old = await world.wire()
        old.send(
            SMUGGLED.replace(b"1.1", b"1.0") + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"
        )
        await world.until(lambda: any(each._body is not None for each in world.front.connections))
        old.send(b"hello")
        assert (await old.answer()).status == 204, "HTTP/1.0 knows no 100"

    play(story)


def test_what_takes_too_long_is_ended() -> None:
    async def story(world: World) -> None:
        idle, head, body, waiting = [await world.wire() for _ in range(4)]
        head.send(b"GET / HTTP/1.1\r\nHo")
        body.send(SMUGGLED + b"Content-Length: 5\r\n\r\nhe")
        await world.put("s")
        world.service.turns.held = True
        waiting.send(request("POST", "/v1/stream/s", b"1", content_type="application/json"))
        await world.until(lambda: world.service.turns._proposals)
        begin = world.front.context.ticks.now
        world.front.sweep(begin + HEAD_SECONDS)
        world.front.sweep(begin + HEAD_SECONDS + 1)
        assert (await head.answer()).error == "REQUEST_TIMEOUT"
        world.front.sweep(begin + BODY_SECONDS + 1)
        assert (await body.answer()).error == "REQUEST_TIMEOUT"
        world.front.sweep(begin + IDLE_SECONDS + 1)
        assert await idle.ended()
        world.service.turns.release()
        assert (await waiting.answer()).status == 204  # what waits for us is not the client's fault

    play(story)


def test_a_client_that_never_leaves_is_cut() -> None:
    async def story(world: World) -> None:
        wire = await world.wire()
        wire.send(b"BROKEN\r\n\r\n")
        await wire.answer()
        assert world.front.connections
        world.front.sweep(world.front.context.ticks.now + LINGER_SECONDS + 1)
        await world.until(lambda: not world.front.connections)

    play(story)


@pytest.mark.parametrize("close", [False, True])
def test_a_client_that_takes_its_answer_slowly_has_time_and_one_that_does_not_is_cut(
    close: bool,
) -> None:
    async def story(world: World) -> None:
        await world.put("s", content_type="application/octet-stream")
        block = bytes(1 << 20)
        append = await world.wire()
        for _ in range(8):
            append.send(
                request("POST", "/v1/stream/s", block, content_type="application/octet-stream")
            )
            assert (await append.answer()).status == 204
        append.close()
        await world.until(lambda: not world.front.connections)
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        narrow.connect(("127.0.0.1", world.port))
        reader, writer = await asyncio.open_connection(sock=narrow)
        ending = "Connection: close\r\n" if close else ""
        writer.write(
            f"GET /v1/stream/s?offset=-1&max_bytes={8 << 20} HTTP/1.1\r\nHost: x\r\n{ending}\r\n".encode()
        )
        await world.until(
            lambda: any(each.peer.responses.write_paused for each in world.front.connections)
        )
        for _ in range(4):
            await reader.readexactly(1 << 20)
            world.front.sweep(world.front.context.ticks.now + STALL_SECONDS - 1)
            world.front.sweep(world.front.context.ticks.now + 1)
        assert world.front.connections, "cut although it goes on"
        for _ in range(2):
            world.front.sweep(world.front.context.ticks.now + STALL_SECONDS + 1)
        await world.until(lambda: not world.front.connections)
        assert world.front.counters.stalled == 1
        writer.transport.abort()

    play(story)


def test_answers_reach_a_client_that_has_closed_its_half() -> None:
    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        world.service.turns.held = True
        wire = await world.wire()
        wire.send(request("POST", "/v1/stream/s", b"1", content_type="text/plain") * 2)
        wire.writer.write_eof()
        await world.until(lambda: len(world.service.turns._proposals) == 2)
        world.service.turns.release()
        assert [(await wire.answer()).status for _ in range(2)] == [204, 204]
        assert await wire.ended()

    play(story)


@pytest.mark.parametrize(
    "asked", ["/v1/streams", "/v1/stream/s?offset=-1", "/v1/stream/none?offset=-1"]
)
def test_what_is_read_reaches_a_client_that_has_closed_its_half(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliver the response also if another core serves the read."""

    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        # as for a stream of another core
        monkeypatch.setattr(world.service, "read_nowait", lambda query: None)

        def slowed(answer: Any) -> Any:
            async def slow(*query: Any, **more: Any) -> Any:
                await turns()
                return await answer(*query, **more)

            return slow

        monkeypatch.setattr(world.service, "list_streams", slowed(world.service.list_streams))
        monkeypatch.setattr(world.service, "read", slowed(world.service.read))
        wire = await world.wire()
        wire.send(request("GET", asked))
        wire.writer.write_eof()
        assert (await wire.answer()).status == (404 if "none" in asked else 200)
        assert await wire.ended()

    play(story)


def test_a_waiting_reader_that_leaves_is_forgotten() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        poll = await world.wire()
        poll.send(request("GET", "/v1/stream/s?offset=-1&live=long-poll&timeout_ms=60000"))
        live = await world.sse("s")
        await world.until(lambda: len(world.service.local.feeds) == 2)
        poll.close()
        live.close()
        await world.until(
            lambda: not len(world.service.local.feeds) and not world.front.connections
        )
        assert not world.front.readers.live
        assert not world.front.readers.waiters

    play(story)


def test_connection_close_and_old_clients() -> None:
    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        wire = await world.wire()
        wire.send(
            request("GET", "/v1/stream/s", connection="close") + request("GET", "/v1/stream/s")
        )
        assert (await wire.answer()).headers["connection"] == "close"
        assert await wire.ended()
        old = await world.wire()
        old.send(b"GET /v1/stream/s HTTP/1.0\r\n\r\n")
        assert (await old.answer()).status == 200
        assert await old.ended()
        kept = await world.wire()
        kept.send(b"GET /v1/stream/s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2)
        assert [(await kept.answer()).headers["connection"] for _ in range(2)] == ["keep-alive"] * 2

    play(story)


def test_stopping_answers_what_is_in_flight() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        world.service.turns.held = True
        idle, busy = await world.wire(), await world.wire()
        busy.send(request("POST", "/v1/stream/s", b"1", content_type="application/json"))
        reader = await world.sse("s")
        await reader.chunk()
        await world.until(lambda: world.service.turns._proposals)
        stopping = world.meanwhile(world.front.stop(5))
        assert await idle.ended()
        assert await reader.chunk() == b""
        reader.close()
        world.service.turns.release()
        assert (await busy.answer()).status == 204
        busy.close()
        await stopping
        with pytest.raises(OSError, match=r"."):
            socket.create_connection(("127.0.0.1", world.port), 1)

    play(story)


@pytest.mark.parametrize(
    ("fault", "code", "outcome"),
    [
        (Unavailable("x"), "UNAVAILABLE", "refused"),
        (OutcomeUnknown("x"), "OUTCOME_UNKNOWN", "unknown"),
        (RuntimeError("x"), "INTERNAL", "unknown"),
        (MemoryError(), "NO_MEMORY", "unknown"),
        (CorruptData("block 7 is gone"), "DATA_DAMAGED", "unknown"),
    ],
)
def test_a_client_can_tell_refused_from_unknown(fault: Exception, code: str, outcome: str) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        world.service.turns.fault = fault
        answer = await world.post("s", b"1", x_request_id="mine-7")
        assert (answer.error, answer.headers["stream-outcome"]) == (code, outcome)
        assert answer.headers["x-request-id"] == "mine-7"
        assert ("retry-after" in answer.headers) == (code in ("UNAVAILABLE", "NO_MEMORY"))

    play(story)


def test_a_fork_that_begins_with_more_than_one_append_may_have_is_too_large() -> None:
    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        assert (await world.post("s", b"x" * APPEND_BYTES_MAX, "text/plain")).status == 204
        more = {
            "stream_forked_from": "/v1/stream/s",
            "stream_fork_offset": "-1",
            "stream_fork_sub_offset": str(APPEND_BYTES_MAX - 1),
        }
        answer = await world.ask("PUT", "/v1/stream/f", b"yy", content_type="text/plain", **more)
        assert (answer.status, answer.error) == (413, "BODY_TOO_LARGE")
        assert (
            await world.ask("PUT", "/v1/stream/f", b"y", content_type="text/plain", **more)
        ).status == 201

    play(story)


def test_the_bound_of_hot_bytes() -> None:
    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        assert (await world.post("s", b"x" * 60, "text/plain")).status == 204
        answer = await world.post("s", b"x" * 60, "text/plain")
        assert (answer.status, answer.error, answer.headers["retry-after"]) == (
            503,
            "MEMORY_PRESSURE",
            "1",
        )
        for method, path in (("POST", "s"), ("PUT", "t")):
            answer = await world.ask(
                method, f"/v1/stream/{path}", b"x" * 200, content_type="text/plain"
            )
            assert (answer.status, answer.error) == (413, "APPEND_EXCEEDS_MEMORY_LIMIT")
            assert (
                "retry-after" not in answer.headers
                and answer.headers["stream-outcome"] == "refused"
            )
            assert b"100 bytes" in answer.body and b"cold.max_hot_bytes_per_group" in answer.body
        forked = await world.ask(
            "PUT",
            "/v1/stream/f",
            b"x" * 200,
            content_type="text/plain",
            stream_forked_from="/v1/stream/s",
        )
        assert (forked.status, forked.error) == (413, "APPEND_EXCEEDS_MEMORY_LIMIT")
        assert (await world.ask("DELETE", "/v1/stream/s")).status == 204, "no fork holds it"
        assert (await world.head("s")).status == 404

    play(story, hot_bytes_max=100)


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/v1/sql", SQL_BODY_BYTES_MAX),
        ("/v1/stream/__ds/subscriptions/a", SUBSCRIPTION_BODY_BYTES_MAX),
        ("/v1/admin/tokens?a=b", 4 * 1024 * 1024),
        ("/v1/stream/a", APPEND_BYTES_MAX),
    ],
)
def test_a_body_over_the_limit_of_its_route_is_refused_at_its_headers(path: str, most: int) -> None:
    async def story(world: World) -> None:
        wire = await world.wire()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {most + 1}\r\n\r\n"
        wire.send(head.encode())
        answer = await wire.answer()
        assert (answer.status, answer.error) == (413, "BODY_TOO_LARGE")

    play(story)
