"""The wires between the nodes: a proxy before each, which knows who connects, and delays, holds up
or breaks what passes from one to another."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from random import Random
from typing import Protocol

import msgspec

CHUNK_BYTES = 1 << 16
PACKET_BYTES = 1400
Address = tuple[str, int]
Pair = tuple[int, int]  # from one node to another


class Network(Protocol):
    """A network that identifies a connection's source node (0: none of the cluster) and the
    address from which a proxy connects."""

    def sender(self, address: Address) -> int: ...

    def source(self, pair: Pair) -> Address: ...


class Way(msgspec.Struct):
    """The treatment of bytes from one node to another. Delays in seconds, drawn for each chunk;
    chunks never overtake. `rate`: bytes a second; 0: unlimited."""

    delay: tuple[float, float] = (0.0, 0.0)
    rate: float = 0.0
    open: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


class Wires:
    """Each node has a door, which is all that others know of it. A connection that node A makes to
    the door of node B has two ways, of the pair (A, B) and of the pair (B, A)."""

    def __init__(self, seed: int) -> None:
        self.ways: dict[Pair, Way] = {}
        self.doors: dict[int, Address] = {}
        self._random = Random(f"wires {seed}")
        self._servers: list[asyncio.Server] = []
        self._open: set[tuple[Pair, asyncio.StreamWriter]] = set()

    @property
    def pairs(self) -> list[Pair]:
        return list(self.ways)

    async def listen(self, node: int, at: Address, to: Address, network: Network) -> None:
        """Serve the door of a node; port 0 takes a free one."""
        for other in self.doors:
            for pair in ((node, other), (other, node)):
                self.ways[pair] = Way()
                self.ways[pair].open.set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            address = writer.get_extra_info("peername")[:2]
            # in a thread: on a loaded machine many connections come again while one is looked up
            try:
                sender = await asyncio.to_thread(network.sender, address)
            except asyncio.CancelledError:  # at the end of a run
                reset_at_close(writer)
                return
            if (sender, node) in self.ways:
                await self._serve(
                    (sender, node), (network.source((sender, node))[0], to), reader, writer
                )
            else:  # it is already gone, or has no owner
                reset_at_close(writer)

        server = await asyncio.start_server(serve, *at)
        self.doors[node] = server.sockets[0].getsockname()[:2]
        self._servers.append(server)

    def carried(self) -> set[Pair]:
        """Return the pairs of nodes that have a connection."""
        return {pair for pair, _ in self._open}

    def delay(self, pair: Pair, low: float, high: float) -> None:
        self.ways[pair].delay = (low, high)

    def narrow(self, pair: Pair, rate: float) -> None:
        self.ways[pair].rate = rate

    def hold(self, pair: Pair) -> None:
        """Hold all bytes without loss: above TCP, a network that drops everything looks like
        this."""
        self.ways[pair].open.clear()

    def reset(self, pair: Pair) -> int:
        """Break all connections that one made to the other; how many."""
        broken = [writer for where, writer in self._open if where == pair]
        for writer in broken:
            reset_at_close(writer)
        return len(broken)

    def heal(self) -> None:
        for way in self.ways.values():
            way.delay, way.rate = (0.0, 0.0), 0.0
            way.open.set()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for _, writer in list(self._open):
            reset_at_close(writer)
        await asyncio.sleep(0)

    async def _serve(
        self,
        pair: Pair,
        onward: tuple[str, Address],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        source, to = onward
        self._open.add((pair, writer))
        far: asyncio.StreamWriter | None = None
        try:
            await self.ways[pair].open.wait()
            far_reader, far = await asyncio.open_connection(*to, local_addr=(source, 0))
            self._open.add((pair, far))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(self.ways[pair], reader, far))
                tasks.create_task(self._pump(self.ways[pair[1], pair[0]], far_reader, writer))
        except (
            OSError,
            ExceptionGroup,
            asyncio.CancelledError,
        ):  # at the end of a run; asyncio would report a cancelled one as a defect
            pass
        finally:
            for each in (writer, far):
                if each is not None:
                    self._open.discard((pair, each))
                    reset_at_close(each)

    async def _pump(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Copy bytes in order. Raises ConnectionResetError at the end of either side, so that the
        other direction ends too."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)

        async def deliver() -> None:
            while True:
                due, data = await queue.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                await way.open.wait()
                await trickle(way, writer, data)

        async with asyncio.TaskGroup() as tasks:
            delivering = tasks.create_task(deliver())
            while data := await reader.read(CHUNK_BYTES):
                await queue.put((loop.time() + self._random.uniform(*way.delay), data))
            delivering.cancel()
        raise ConnectionResetError


async def trickle(way: Way, writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send at the link's rate, in pieces of a hundredth of a second, or of a packet's size.
    Follows changes of the rate."""
    while data:
        length = max(PACKET_BYTES, int(way.rate / 100)) if way.rate else len(data)
        piece, data = data[:length], data[length:]
        writer.write(piece)
        await writer.drain()
        if way.rate:
            await asyncio.sleep(len(piece) / way.rate)


def reset_at_close(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, as a host that forgot the connection does."""
    with suppress(OSError):
        sock: socket.socket | None = writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    writer.transport.abort()
