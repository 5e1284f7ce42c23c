"""A port in front of several servers that gives each connection to the next of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from urllib.parse import urlsplit


class _InTurn:
    def __init__(self, urls: list[str]) -> None:
        self.addresses = cycle([(split.hostname, split.port) for split in map(urlsplit, urls)])
        self.ready = threading.Event()
        self.port = 0

    async def serve(self) -> None:
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await self.over.wait()
        # not `wait_closed`, which waits from Python 3.12 on until all connections have ended: the
        # end of the loop ends them
        server.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*next(self.addresses))
        with suppress(OSError):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, back))
                tasks.create_task(_copy(there, writer))


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    finally:
        sink.close()


@contextmanager
def in_turn(urls: list[str]) -> Iterator[str]:
    """Run the proxy and yield its URL."""
    proxy = _InTurn(urls)
    thread = threading.Thread(target=asyncio.run, args=(proxy.serve(),), daemon=True)
    thread.start()
    assert proxy.ready.wait(30)
    try:
        yield f"http://127.0.0.1:{proxy.port}"
    finally:
        proxy.loop.call_soon_threadsafe(proxy.over.set)
        thread.join(30)
