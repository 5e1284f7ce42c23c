"""Stop a front after each number of loop passes since its clients connected: it waits for no
client and leaves nothing behind."""

from __future__ import annotations

import asyncio
import socket

import uvloop
from fake_service import FakeService
from front_world import request
from polling import wait_for

from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.server import HttpFront

SECONDS = 60.0  # of one stop, on a machine that has much else to do
LAST = -1
NEVER = 600.0  # after which those that still read would be cut
JSON = {"content_type": "application/json"}
POST, POLL = (
    request("POST", "/v1/stream/s", b"[1]", **JSON),
    request("GET", "/v1/stream/quiet?offset=now&live=long-poll"),
)
REQUESTS = (
    b"",
    b"GET /v1/str",
    request("GET", "/v1/stream/s?offset=-1"),
    request("GET", "/v1/stream/s?offset=-1&live=sse"),
    POLL,
    POST * 5 + POLL,
    b"POST /v1/stream/s HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5\r\n[1,2,",
)


async def client(port: int, data: bytes, late: int) -> bytes:
    """Return the response until the other side closes; empty if the connection was never accepted."""
    for _ in range(late):
        await asyncio.sleep(0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        answer = await reader.read()
        writer.close()
    except OSError:
        return b""
    return answer


async def stopped(count: int) -> list[bytes]:
    """Stop the front after `passes` of the loop, or (`LAST`) when all clients wait, and return the
    responses. Some clients connect just before."""
    front = HttpFront(FakeService(), HttpSettings(long_poll_seconds=NEVER))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await front.start([listener])
    async with asyncio.timeout(SECONDS):
        for name in ("s", "quiet"):
            assert b" 201 " in await client(
                port, request("PUT", f"/v1/stream/{name}", connection="close", **JSON), 0
            )
        clients = [
            asyncio.create_task(client(port, data, late))
            for late in (0, max(0, count - 3))
            for data in REQUESTS
        ]
        for _ in range(count):
            await asyncio.sleep(0)
        if count == LAST:
            await wait_for(lambda: (len(front.readers.live), len(front.readers.waiters)) == (2, 4))
        await front.stop(NEVER)
        answers = await asyncio.gather(*clients)
    assert not (
        front.connections or front.readers.live or front.readers.waiters or front.connections._tasks
    )
    return answers


def test_a_front_stops_at_any_step() -> None:
    answers = [uvloop.run(stopped(count)) for count in (*range(40), LAST)]
    _, _, page, events, poll, pipelined, upload, *_ = answers[-1]
    assert page.startswith(b"HTTP/1.1 200") and events.endswith(b"\r\n0\r\n\r\n")
    assert (
        poll.startswith(b"HTTP/1.1 204") and pipelined.count(b"HTTP/1.1 204") == 6 and upload == b""
    )
