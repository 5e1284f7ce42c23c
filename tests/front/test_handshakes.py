"""TLS handshakes that never end: they are counted, the oldest make room, and other clients are
unaffected."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from fake_service import FakeService
from front_world import request
from polling import wait_for

from polynya.config.model import Config
from polynya.config.sections import TlsConfig
from polynya.config.tls import Tls, prepare
from polynya.front.common import tls_handshakes
from polynya.front.http.protocol.exchange import Protection
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.server import HttpFront

CONNECTIONS = 39  # of which ten may be handshakes
Story = Callable[["Secured"], Coroutine[Any, Any, None]]


class Secured:
    def __init__(self, front: HttpFront, port: int, trusted: ssl.SSLContext) -> None:
        self.front, self.port, self._trusted = front, port, trusted

    async def ask(self) -> bytes:
        """The answer to a request on a connection of its own."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self._trusted, server_hostname="localhost"
        )
        writer.write(
            request("PUT", "/v1/stream/s", content_type="application/json", connection="close")
        )
        answer = await reader.read()
        writer.close()
        return answer

    async def strangers(self, count: int, said: bytes = b"") -> list[socket.socket]:
        loop = asyncio.get_running_loop()
        made = []
        for _ in range(count):
            raw = socket.socket()
            raw.setblocking(False)
            await loop.sock_connect(raw, ("127.0.0.1", self.port))
            if said:
                await loop.sock_sendall(raw, said)
            made.append(raw)
        return made

    @property
    def shaking(self) -> int:
        (server,) = self.front.connections._servers
        assert isinstance(server, tls_handshakes.Handshakes)
        return len(server)


@contextlib.asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[Secured]:
    files = prepare(Config(data=str(folder), listen="127.0.0.1:0", tls=TlsConfig(self=True)))
    assert files is not None
    front = HttpFront(
        FakeService(),
        HttpSettings(connections_max=CONNECTIONS),
        protection=Protection(tls=Tls(files).context),
    )
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await front.start([listener])
    try:
        yield Secured(front, port, ssl.create_default_context(cafile=files.cert))
    finally:
        await front.stop(0)


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def play(request: Any, tmp_path: Path) -> Callable[[Story], None]:
    def run(story: Story) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60), secured(tmp_path) as world:
                await story(world)

        request.param(bounded())

    return run


def closed(raw: socket.socket) -> bool:
    try:
        return raw.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "half a hello"])
def test_handshakes_that_never_end_make_room_for_younger_ones(
    play: Callable[[Story], None], said: bytes
) -> None:
    async def story(world: Secured) -> None:
        crowd = await world.strangers(3 * CONNECTIONS, said)
        await wait_for(lambda: sum(map(closed, crowd)) == 3 * CONNECTIONS - 10)
        assert world.shaking == 10 and not world.front.connections
        assert not any(map(closed, crowd[-10:])), "the oldest went"
        for _ in range(12):
            assert b" 20" in (await world.ask())[:20]
        assert world.front.counters.connections_refused >= 2 * CONNECTIONS
        for raw in crowd:
            raw.close()
        await wait_for(lambda: world.shaking == 0)

    play(story)


def test_a_handshake_has_its_time(
    play: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_handshakes, "HANDSHAKE_SECONDS", 0.2)

    async def story(world: Secured) -> None:
        (raw,) = await world.strangers(1)
        await wait_for(lambda: closed(raw) and not world.shaking)

    play(story)


def test_plain_requests_and_noise_are_no_handshakes(play: Callable[[Story], None]) -> None:
    async def story(world: Secured) -> None:
        crowd = await world.strangers(4, request("GET", "/livez")) + await world.strangers(
            4, b"\x16\x03\x01" + bytes(500)
        )
        await wait_for(lambda: all(map(closed, crowd)) and not world.shaking)
        assert b" 20" in (await world.ask())[:20]

    play(story)


def test_where_no_file_can_be_opened_nothing_is_taken_for_a_moment(
    play: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: Secured) -> None:
        (server,) = world.front.connections._servers
        assert isinstance(server, tls_handshakes.Handshakes)
        real, refusals = server._listener, iter(range(2))

        class Poor:
            def accept(self) -> object:
                if next(refusals, None) is not None:
                    raise OSError(24, "Too many open files")
                return real.accept()

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        monkeypatch.setattr(tls_handshakes, "PAUSE_SECONDS", 0.01)
        server._listener = Poor()  # type: ignore[assignment]
        assert b" 20" in (await world.ask())[:20]

    play(story)


def test_a_front_that_stops_waits_for_no_handshake(play: Callable[[Story], None]) -> None:
    async def story(world: Secured) -> None:
        crowd = await world.strangers(5)
        await wait_for(lambda: world.shaking == 5)
        await world.front.stop(600)
        await wait_for(lambda: all(map(closed, crowd)))

    play(story)
