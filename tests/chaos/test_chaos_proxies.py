"""The proxies between nodes and before the object store: they identify the client and apply only
the configured faults."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from polling import turns, wait_for

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos import moves  # noqa: E402  (not a part of the package)
from chaos.network import Loopback  # noqa: E402
from chaos.nodes import Cluster  # noqa: E402
from chaos.objects import FAIR, Store, Weather  # noqa: E402
from chaos.proxy import PACKET_BYTES, Address, Pair, Way, Wires, trickle  # noqa: E402

PUT = b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
GET = b"GET /b/k HTTP/1.1\r\nHost: x\r\n\r\n"
STORED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Upstream:
    """A store that gives one response to everything and records the requests."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(1000):
            self.asked.append(head)
            writer.write(STORED)


def with_store(
    tell: Callable[[Store, Upstream, Callable[[bytes], Awaitable[bytes]]], Awaitable[None]],
) -> None:
    async def run() -> None:
        store, upstream = Store(1), Upstream()
        server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
        address = await store.listen("127.0.0.1", server.sockets[0].getsockname()[:2])

        async def ask(request: bytes) -> bytes:
            """Return the bytes received until the response is complete or the connection ends."""
            reader, writer = await asyncio.open_connection(*address)
            writer.write(request)
            got = b""
            try:
                while got != STORED and (more := await reader.read(1000)):
                    got += more
            except ConnectionError:
                pass
            writer.close()
            return got

        async with asyncio.timeout(20):
            await tell(store, upstream, ask)
        await store.close()
        server.close()

    asyncio.run(run())


def test_a_fair_store_gets_all_and_answers() -> None:
    async def tell(
        store: Store, upstream: Upstream, ask: Callable[[bytes], Awaitable[bytes]]
    ) -> None:
        assert await ask(PUT) == await ask(GET) == STORED
        assert upstream.asked == [PUT, GET]

    with_store(tell)


def test_what_is_refused_is_not_done() -> None:
    async def tell(
        store: Store, upstream: Upstream, ask: Callable[[bytes], Awaitable[bytes]]
    ) -> None:
        store.turn(Weather(refused=1.0))
        assert (await ask(PUT)).startswith(b"HTTP/1.1 503")
        assert not upstream.asked and store.met["503"] == 1

    with_store(tell)


def test_a_put_that_clashes_is_not_done() -> None:
    async def tell(
        store: Store, upstream: Upstream, ask: Callable[[bytes], Awaitable[bytes]]
    ) -> None:
        store.turn(Weather(clashing=1.0))
        assert (await ask(PUT)).startswith(b"HTTP/1.1 409")
        assert not upstream.asked and store.met["409"] == 1
        assert await ask(GET) == STORED

    with_store(tell)


@pytest.mark.parametrize(
    "weather", [Weather(untold=1.0), Weather(torn=1.0)], ids=["untold", "torn"]
)
def test_what_is_done_and_not_told_is_done(weather: Weather) -> None:
    async def tell(
        store: Store, upstream: Upstream, ask: Callable[[bytes], Awaitable[bytes]]
    ) -> None:
        store.turn(weather)
        answer = await ask(PUT)
        assert upstream.asked == [PUT]
        assert len(answer) < len(STORED) and STORED.startswith(answer)

    with_store(tell)


def test_a_store_that_is_away_breaks_what_is_open_and_comes_back() -> None:
    async def tell(
        store: Store, upstream: Upstream, ask: Callable[[bytes], Awaitable[bytes]]
    ) -> None:
        store.turn(Weather(gone="refuses"))
        assert await ask(PUT) == b"" and not upstream.asked
        store.turn(Weather(gone="is silent"))
        waiting = asyncio.create_task(ask(PUT))
        while not store.met["no answer"]:
            await asyncio.sleep(0)
        store.turn(FAIR)
        assert await waiting == b"" and not upstream.asked, "who waited must ask again"
        assert await ask(PUT) == STORED

    with_store(tell)


class Neighbours:
    """Everybody who connects is node 1."""

    def sender(self, address: Address) -> int:
        return 1

    def source(self, pair: Pair) -> Address:
        return "127.0.0.1", 0


def test_a_door_knows_who_knocks_and_holds_up_one_way() -> None:
    async def run() -> None:
        wires, upstream = Wires(1), Upstream()
        server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
        for node in (1, 2):
            await wires.listen(
                node, ("127.0.0.1", 0), server.sockets[0].getsockname()[:2], Neighbours()
            )
        assert sorted(wires.pairs) == [(1, 2), (2, 1)]
        reader, writer = await asyncio.open_connection(*wires.doors[2])
        wires.hold((2, 1))
        writer.write(PUT)
        await wait_for(lambda: upstream.asked, what="the request")
        assert wires.carried() == {(1, 2)}
        answer = asyncio.create_task(reader.readexactly(len(STORED)))
        await turns()
        assert not answer.done()
        wires.heal()
        assert await answer == STORED
        stranger, _ = await asyncio.open_connection(*wires.doors[1])  # node 1 itself
        with pytest.raises(ConnectionError):
            await stranger.readexactly(1)
        await wires.close()
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize(("rate", "piece"), [(0.0, 50_000), (1e6, 10_000), (1e5, PACKET_BYTES)])
def test_a_narrow_way_lets_little_pass_at_once(rate: float, piece: int) -> None:
    class Writer:
        def __init__(self) -> None:
            self.pieces: list[bytes] = []

        def write(self, data: bytes) -> None:
            self.pieces.append(data)

        async def drain(self) -> None:
            pass

    data, writer = bytes(range(250)) * (10 * piece // 1000), Writer()
    asyncio.run(trickle(Way(rate=rate), writer, data))  # type: ignore[arg-type]
    assert b"".join(writer.pieces) == data
    assert len(writer.pieces) == (-(-len(data) // piece) if rate else 1)


def test_who_stands_still_is_not_waited_for(tmp_path: Path) -> None:
    class Some(Cluster):
        async def view(self, number: int) -> dict[str, Any] | None:
            if number == 1:
                await asyncio.Event().wait()
            return None if number == 2 else {"nodes": [number]}

    async def run() -> None:
        cluster = Some(tmp_path, Loopback([], "test"), Wires(1), lambda path: None)  # type: ignore[arg-type,return-value]
        cluster.nodes = dict.fromkeys((1, 2, 3), SimpleNamespace(is_alive=True))  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            assert await cluster.look() == {"nodes": [3]}
        del cluster.nodes[1], cluster.nodes[3]
        assert await cluster.look() is None

    asyncio.run(run())


def test_an_operator_asks_for_what_can_be_done(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, Loopback([], "test"), Wires(1), lambda path: None)  # type: ignore[arg-type,return-value]
    names = {each.name for each in moves.ACTS}
    cluster.nodes = dict.fromkeys((1, 2, 3))  # type: ignore[arg-type]
    assert set(moves.possible(cluster)) == {
        "a node joins",
        "a lead moves",
        "a node is drained",
        "all is spread anew",
    }
    cluster.nodes = dict.fromkeys((1, 2, 3, 4))  # type: ignore[arg-type]
    assert set(moves.possible(cluster)) == names
    cluster.leaving = {4: 1}
    assert "a node is removed" not in moves.possible(cluster)
    cluster.nodes, cluster.leaving = dict.fromkeys((1, 2, 3, 4, 5)), {}  # type: ignore[arg-type]
    assert set(moves.possible(cluster)) == names - {"a node joins"}
