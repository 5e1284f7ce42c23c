"""A TCP proxy between a client and its server that cuts, delays, truncates and repeats, all by one
seed."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

PIECE_BYTES = 16 << 10
REPLAYED_BYTES_MAX = 1 << 20


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Probabilities from 0 to 1.

    * `refuse`: a connection is closed at once
    * `cut`: it ends after some bytes in either direction (truncation)
    * `reset`: such a cut is an RST
    * `replay`: a second connection repeats the bytes, as a retrying balancer does
    * `delay`: a piece is delayed by some milliseconds
    * `repeat`: a piece on its way to the client is sent twice"""

    refuse: float = 0.0
    cut: float = 0.0
    cut_bytes: int = 20_000
    reset: float = 0.5
    replay: float = 0.0
    delay: float = 0.0
    delay_seconds: float = 0.02
    repeat: float = 0.0


class FaultProxy:
    """A proxy on a free port of 127.0.0.1. A change of `faults` applies to new connections.
    `counts` tallies the injected faults."""

    def __init__(self, server: tuple[str, int], faults: Faults, seed: int) -> None:
        self.server = server
        self.faults = faults
        self.counts = dict.fromkeys(
            ("connections", "refused", "cut", "replayed", "delayed", "repeated"), 0
        )
        self._chance = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening = threading.Event()
        self._ended = asyncio.Event()
        self.port = 0
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="fault-proxy", daemon=True
        )
        self._thread.start()
        assert self._listening.wait(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(60)

    async def _serve(self) -> None:
        """Accept connections until `close`. `asyncio.run` then ends the tasks of those that have
        just come, too."""
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._ended.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._connection(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        faults, chance = self.faults, self._chance
        self.counts["connections"] += 1
        if chance.random() < faults.refuse:
            self.counts["refused"] += 1
            writer.close()
            return
        try:
            above = await asyncio.open_connection(*self.server)
        except OSError:
            writer.close()
            return
        limits = [
            chance.randint(1, faults.cut_bytes) if chance.random() < faults.cut else None
            for _ in range(2)
        ]
        sent = bytearray()
        up = asyncio.create_task(self._pump(reader, above[1], limits[0], keep=sent))
        down = asyncio.create_task(self._pump(above[0], writer, limits[1], repeat=faults.repeat))
        try:
            done, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() for task in done):
                self.counts["cut"] += 1
                if chance.random() < faults.reset:
                    _make_reset(writer)
        finally:
            for task in (up, down):
                task.cancel()
            writer.close()
            above[1].close()
        if sent and chance.random() < faults.replay:
            await self._replay(bytes(sent))

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        limit: int | None,
        *,
        keep: bytearray | None = None,
        repeat: float = 0.0,
    ) -> bool:
        """Copy until the end or `limit` bytes, and report whether the limit ended it."""
        faults, chance = self.faults, self._chance
        with suppress(OSError):
            while piece := await source.read(PIECE_BYTES):
                if chance.random() < faults.delay:
                    self.counts["delayed"] += 1
                    await asyncio.sleep(chance.random() * faults.delay_seconds)
                if limit is not None:
                    piece = piece[:limit]
                    limit -= len(piece)
                if keep is not None and len(keep) < REPLAYED_BYTES_MAX:
                    keep += piece
                target.write(piece)
                if chance.random() < repeat:
                    self.counts["repeated"] += 1
                    begin = chance.randrange(len(piece))
                    target.write(piece[begin : begin + chance.randint(1, 200)])
                await target.drain()
                if limit == 0:
                    return True
        return False

    async def _replay(self, sent: bytes) -> None:
        """Send the bytes again to the server; read the answers, and throw them away."""
        self.counts["replayed"] += 1
        reader, writer = await asyncio.open_connection(*self.server)
        writer.write(sent)
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(0.3):
                while await reader.read(PIECE_BYTES):
                    pass
        writer.close()


def _make_reset(writer: asyncio.StreamWriter) -> None:
    """Let closing send an RST."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def fault_proxy(server: tuple[str, int], faults: Faults, seed: int) -> Iterator[FaultProxy]:
    proxy = FaultProxy(server, faults, seed)
    try:
        yield proxy
    finally:
        proxy.close()
