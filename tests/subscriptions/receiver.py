"""A webhook receiver on a free port of this machine: it records requests and gives scripted
responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec


class Received(msgspec.Struct):
    headers: dict[str, str]
    body: bytes

    @property
    def wake(self) -> dict[str, object]:
        return msgspec.json.decode(self.body, type=dict)


class Receiver:
    """A webhook receiver. It gives `answers` in turn and repeats the last one: (status, body,
    further header lines). It gives none while `free` is cleared."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, str]] = [(200, b"", "")]
        self.received: asyncio.Queue[Received] = asyncio.Queue()
        self.url = ""
        self.free = asyncio.Event()
        self.free.set()

    async def next(self) -> Received:
        async with asyncio.timeout(30):
            return await self.received.get()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (
                    line.partition(":") for line in head.split("\r\n")[1:] if line
                )
            }
            body = await reader.readexactly(int(headers["content-length"]))
            self.received.put_nowait(Received(headers, body))
            await self.free.wait()
            status, said, more = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Length: {len(said)}\r\n{more}\r\n".encode() + said
            )
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    server = await asyncio.start_server(found.handle, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield found
    finally:
        found.free.set()
        server.close()
