"""A front on a free port over the fake service, and a client that speaks raw HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvloop
from fake_service import FakeService

from polynya.front.http.protocol.exchange import Protection
from polynya.front.http.protocol.extension import Handler
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.server import HttpFront
from polynya.service.live import LiveStreams

SECONDS = 60.0  # of a whole story, on a machine that has much else to do


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def error(self) -> str:
        """Return the code of the error, and check the error's shape."""
        found = json.loads(self.body)["error"]
        assert set(found) == {"code", "message", "request_id"}
        assert found["request_id"] == self.headers["x-request-id"]
        assert self.headers["stream-outcome"] in ("refused", "unknown")
        return str(found["code"])

    def __repr__(self) -> str:
        return f"{self.status} {self.headers} {self.body!r}"


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, method: str = "GET") -> Answer:
        """Read the next answer, whole; of an SSE one the head alone."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        status = int(first.split()[1])
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        # the one list that may come in pieces
        once = [line for line in lines if not line.startswith("Vary:")]
        assert len(once) == len(headers.keys() - {"vary"}), f"a header came twice: {lines}"
        assert headers.get("x-content-type-options") == "nosniff" or status == 100
        length = (
            0
            if method == "HEAD" or status in (100, 204, 304)
            else int(headers.get("content-length", 0))
        )
        return Answer(status, headers, await self.reader.readexactly(length))

    async def chunk(self) -> bytes:
        """Read the next piece of a chunked body; b"" at its end."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def ended(self) -> bool:
        """Report whether the server has closed without further output."""
        return await self.reader.read(1) == b""

    def close(self) -> None:
        self.writer.transport.abort()


class World:
    def __init__(
        self, service: FakeService, front: HttpFront, port: int, tasks: asyncio.TaskGroup
    ) -> None:
        self.service, self.front, self.port = service, front, port
        self._tasks = tasks
        self.wires: list[Wire] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def wire(self) -> Wire:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port))
        self.wires.append(wire)
        return wire

    async def ask(
        self, method: str, target: str, body: bytes | None = None, **headers: str
    ) -> Answer:
        """Send one request on a connection of its own; header names are written with
        underscores."""
        wire = await self.wire()
        wire.send(request(method, target, body, **headers))
        answer = await wire.answer(method=method)
        wire.close()
        return answer

    async def put(
        self, name: str, content_type: str = "application/json", **headers: str
    ) -> Answer:
        return await self.ask("PUT", f"/v1/stream/{name}", content_type=content_type, **headers)

    async def post(
        self, name: str, body: bytes, content_type: str = "application/json", **headers: str
    ) -> Answer:
        return await self.ask(
            "POST", f"/v1/stream/{name}", body, content_type=content_type, **headers
        )

    async def get(self, name: str, query: str = "", **headers: str) -> Answer:
        return await self.ask("GET", f"/v1/stream/{name}{query}", **headers)

    async def head(self, name: str) -> Answer:
        return await self.ask("HEAD", f"/v1/stream/{name}")

    async def sse(self, name: str, query: str = "?live=sse&offset=-1", **headers: str) -> Wire:
        """Open a live reader, and read the head of its answer."""
        wire = await self.wire()
        wire.send(request("GET", f"/v1/stream/{name}{query}", **headers))
        answer = await wire.answer()
        assert answer.status == 200, answer
        return wire

    def meanwhile(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Let something run beside the story."""
        return self._tasks.create_task(work)

    async def until(self, true: Callable[[], Any]) -> None:
        """Let the loop run until something is so."""
        while not true():  # noqa: ASYNC110 (bounded by the time limit of `play`)
            await asyncio.sleep(0)


def request(method: str, target: str, body: bytes | None = None, **headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: test"]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def play(
    story: Callable[[World], Awaitable[None]],
    *,
    settings: HttpSettings | None = None,
    handlers: dict[str, Handler] | None = None,
    mounts: dict[str, Handler] | None = None,
    hot_bytes_max: int = 64 << 20,
    protection: Protection | None = None,
) -> None:
    """Run a story against a fresh front."""

    async def main() -> None:
        service = FakeService(hot_bytes_max=hot_bytes_max)
        front = HttpFront(
            service,
            settings or HttpSettings(long_poll_seconds=30.0),
            handlers,
            mounts,
            protection=protection,
            live=LiveStreams(service),
        )
        listener = socket.create_server(("127.0.0.1", 0))
        await front.start([listener])
        wires: list[Wire] = []
        try:
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
                world = World(service, front, listener.getsockname()[1], tasks)
                wires = world.wires
                await story(world)
        finally:
            for wire in wires:
                wire.close()
            await front.stop(0.5)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
