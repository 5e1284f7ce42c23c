"""Two nodes in one loop over real TCP, and a proxy between them that cuts and stops."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from polling import wait_for

from polynya.base.errors import Unavailable
from polynya.system.ports import shared_listener, take_port
from polynya.transport import (
    NodeLinks,
    PeerCluster,
    RaftReceiver,
    Transport,
    address,
    keepalive,
    transport,
)
from polynya.transport.dialing import PeerTls
from polynya.transport.handshake import Hello
from polynya.transport.link_events import LinkEvents
from polynya.transport.peer_listener import ConnectionSet
from polynya.transport.port import NodePort

ECHO, HOLD = 1, 2


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def each_loop(request: Any, monkeypatch: Any) -> None:
    """Run every story of the module on both loops."""
    monkeypatch.setattr(request.module, "run", request.param)


@pytest.fixture
def impatient(monkeypatch: Any) -> None:
    """Let ticks come often, though a machine that stands still for a second loses no node."""
    monkeypatch.setattr(transport, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(keepalive, "SILENCE_SECONDS", 60.0)


def port_of(
    connections: ConnectionSet,
    own: Hello,
    *,
    listener: socket.socket,
    directory: str = "",
    tls: PeerTls | None = None,
) -> NodePort:
    """Return the peer port of a core that node 2 may connect to, with nothing behind it."""
    return NodePort(
        connections,
        own,
        [2],
        listener=listener,
        directory=directory,
        tls=tls,
        events=LinkEvents(),
    )


class _Replication(RaftReceiver):
    """A receiver that notes what a core of a node hears and sees."""

    def __init__(self, node: Node, core: int) -> None:
        self._node, self._core = node, core

    def messages(self, node: int, messages: list[bytes]) -> None:
        self._node.heard.append((self._core, node, messages))

    def found(self, node: int, shared: Callable[[int], bool]) -> None:
        self._node.seen.append(f"found {node}")

    def lost(self, node: int, shared: Callable[[int], bool], silent_ms: int) -> None:
        self._node.seen.append(f"lost {node}")


class Node:
    """The cores of one node. `heard`: (core, sender, messages); `seen`: lost and found, with the
    node."""

    def __init__(self, directory: Path, number: int, cores: int = 1) -> None:
        self.number, self.cores = number, cores
        self.directory = directory / f"run-{number}"
        self.directory.mkdir(exist_ok=True)
        self.held = take_port("127.0.0.1", 0, name="peers")
        self.port: int = self.held.getsockname()[1]
        self.transports: list[Transport] = []
        self.heard: list[tuple[int, int, list[bytes]]] = []
        self.seen: list[str] = []
        # what its cores say of their journals
        self.vouches: tuple[int, int, Callable[[], int]] | None = None

    async def start(
        self,
        others: dict[int, int],
        *,
        life: str = "first",
        tls: PeerTls | None = None,
        groups: int = 4,
        name: str = "c",
    ) -> None:
        addresses = {number: ("127.0.0.1", port) for number, port in others.items()}
        for core in range(self.cores):
            cluster = PeerCluster(
                name,
                1,
                self.number,
                groups,
                addresses,
                shared_listener("127.0.0.1", self.port),
                tls,
            )
            made = Transport(core, self.cores, str(self.directory), start_id=life, cluster=cluster)
            made.on(
                ECHO,
                lambda body, reply, sender, core=core: reply(
                    b"%d.%d: " % (sender >> 8, core) + body
                ),
            )
            assert made.raft is not None
            made.raft.join(_Replication(self, core))
            if self.vouches is not None:
                assert made.node_links is not None
                made.node_links.vouch(*self.vouches)
            self.transports.append(made)
        for made in self.transports:
            await made.start()

    async def stop(self) -> None:
        for made in self.transports:
            await made.close()
        self.transports.clear()

    @property
    def links(self) -> NodeLinks:
        """Return the links of core 0."""
        assert self.transports[0].node_links is not None
        return self.transports[0].node_links

    @property
    def raft(self) -> Any:
        return self.transports[0].raft


async def answer_of(asking: Node, body: bytes) -> bytes:
    """Call core 0 of node 2. It was just found, so the connection for calls may need a moment."""

    async def answer() -> list[bytes]:
        try:
            return [await asking.transports[0].call(address(2, 0), ECHO, body)]
        except Unavailable:
            return []

    (found,) = await wait_for(answer, what="a connection for calls")
    return found  # type: ignore[no-any-return]


class Proxy:
    """A proxy between two nodes with a small buffer. It passes the permitted number of bytes, at
    first all, and holds back the rest silently."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._allowed = math.inf  # bytes
        self._more = asyncio.Event()
        self.pipes: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        # those that it accepts have it, too
        self.server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    def allow(self, count: float) -> None:
        """Permit that many further bytes, and the rest of the piece in progress."""
        self._allowed = count
        self._more.set()

    def cut(self) -> None:
        for pair in self.pipes:
            for writer in pair:
                writer.transport.abort()
        self.pipes.clear()

    async def stop(self) -> None:
        self.server.close()
        self.cut()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self.pipes.append((writer, back))
        self.tasks += [
            asyncio.ensure_future(self._copy(reader, back)),
            asyncio.ensure_future(self._copy(there, writer)),
        ]

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            while self._allowed <= 0:
                self._more.clear()
                await self._more.wait()
            self._allowed -= len(data)
            sink.write(data)
            await sink.drain()


@asynccontextmanager
async def one_way(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """Run nodes 1 and 2; node 1 has a wrong address of node 2."""
    one, two = Node(tmp_path, 1), Node(tmp_path, 2)
    nowhere = take_port("127.0.0.1", 0, name="nowhere")
    await one.start({2: nowhere.getsockname()[1]})
    await two.start({1: one.port})
    try:
        yield one, two
    finally:
        for node in (one, two):
            await node.stop()
            node.held.close()
        nowhere.close()


@asynccontextmanager
async def two_nodes(
    tmp_path: Path, *, cores: int = 1, proxied: bool = False, **more: Any
) -> AsyncIterator[tuple[Node, Node, Proxy]]:
    """Run nodes 1 and 2, which have found each other, until `with` ends; what 1 asks of 2 passes
    the proxy if `proxied`."""
    one, two = Node(tmp_path, 1, cores), Node(tmp_path, 2, cores)
    proxy = Proxy(two.port)
    port = await proxy.start() if proxied else two.port
    await two.start({1: one.port}, **more)
    await one.start({2: port}, **more)
    try:
        await wait_for(
            lambda: one.seen.count("found 2") == cores and two.seen.count("found 1") == cores
        )
        yield one, two, proxy
    finally:
        await one.stop()
        await two.stop()
        if proxied:
            await proxy.stop()
        one.held.close()
        two.held.close()
