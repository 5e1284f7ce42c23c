"""An object store that fails: a real S3 server (SeaweedFS) behind a proxy that refuses requests,
delays them, breaks connections after a request was carried out, or is unreachable."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import msgspec

from chaos.proxy import Address, reset_at_close

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>later</Message></Error>"
_CLASH = b"<Error><Code>ConditionalRequestConflict</Code><Message>retry</Message></Error>"
_HEAD = (
    b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n"
    b"Connection: close\r\n\r\n"
)
BUSY = _HEAD % (b"503 Slow Down", len(_SLOW_DOWN)) + _SLOW_DOWN
CLASH = _HEAD % (b"409 Conflict", len(_CLASH)) + _CLASH


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of requests. `late`: seconds before each is passed on. `gone`: "" or how it is not
    there."""

    name: str = "fair"
    refused: float = 0.0  # with 503, and not done
    clashing: float = 0.0  # puts refused with 409 as racing ones, and not done
    untold: float = 0.0  # done, and the connection breaks before the answer
    torn: float = 0.0  # the connection breaks within the answer
    late: tuple[float, float] = (0.0, 0.0)
    gone: str = ""  # "refuses": connections are reset; "is silent": nothing is answered


FAIR = Weather()
WEATHERS = (
    Weather(name="the store refuses", refused=0.5),
    Weather(name="the store refuses everything", refused=1.0),
    Weather(name="the store does and does not tell", untold=0.5),
    Weather(name="the store's answers are torn", torn=0.5),
    Weather(name="the store is slow", late=(0.2, 2.5)),
    Weather(name="the store is away", gone="refuses"),
    Weather(name="the store is silent", gone="is silent"),
    Weather(
        name="the store does a bit of everything",
        refused=0.2,
        untold=0.2,
        torn=0.1,
        late=(0.0, 0.5),
    ),
)


class Broken(Exception):
    """The connection is to end here."""


class Store:
    """The proxy. `met`: how often each thing was done to a request."""

    def __init__(self, seed: int) -> None:
        self.weather = FAIR
        self.met: Counter[str] = Counter()
        self._random = Random(f"store {seed}")
        self._server: asyncio.Server | None = None
        self._to: Address = ("", 0)
        self._open: set[asyncio.StreamWriter] = set()
        self._fair = asyncio.Event()

    async def listen(self, host: str, to: Address) -> Address:
        """Listen, and return the address at which nodes reach the store."""
        self._to = to
        self._server = await asyncio.start_server(self._serve, host, 0)
        address: Address = self._server.sockets[0].getsockname()[:2]
        return address

    def turn(self, weather: Weather) -> None:
        """Apply new conditions from now on. A store that goes down closes its open connections."""
        self.weather = weather
        if weather.gone:
            self._fair.clear()
        else:
            self._fair.set()
        for writer in list(self._open) if weather.gone == "refuses" else ():
            reset_at_close(writer)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            reset_at_close(writer)
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            if self.weather.gone == "refuses":
                raise Broken
            far_reader, far = await asyncio.open_connection(*self._to)
            while True:
                await self._pass_on(reader, writer, (far_reader, far))
        except (OSError, EOFError, ValueError, Broken):
            pass
        finally:
            self._open.discard(writer)
            reset_at_close(writer)
            if far is not None:
                far.transport.abort()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Forward one request, and its answer."""
        request = await _message(reader)
        weather, draw = self.weather, self._random
        if weather.gone:
            self.met["no answer"] += 1
            await self._fair.wait()
            raise Broken
        if draw.random() < weather.refused:
            await self._refuse(writer, "503", BUSY)
        clashes = weather.clashing and request.startswith(b"PUT")
        if clashes and draw.random() < weather.clashing:
            await self._refuse(writer, "409", CLASH)
        if weather.late[1]:
            self.met["late"] += 1
            await asyncio.sleep(draw.uniform(*weather.late))
        far[1].write(request)
        await far[1].drain()
        answer = await _message(far[0], to=request[: request.index(b" ")])
        if draw.random() < weather.untold:
            self.met["done, and not told"] += 1
            raise Broken
        if draw.random() < weather.torn:
            self.met["a torn answer"] += 1
            writer.write(answer[: draw.randrange(len(answer))])
            await writer.drain()
            raise Broken
        self.met["answered"] += 1
        writer.write(answer)
        await writer.drain()

    async def _refuse(self, writer: asyncio.StreamWriter, name: str, answer: bytes) -> None:
        """Answer, and end the connection. Raises Broken."""
        self.met[name] += 1
        writer.write(answer)
        await writer.drain()
        await asyncio.sleep(0.01)  # it is to be read before the connection breaks
        raise Broken


async def _message(reader: asyncio.StreamReader, to: bytes = b"") -> bytes:
    """Read a whole request, or the answer to a request with the method `to`. Raises EOFError,
    ValueError."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(_field(line) for line in head.split(b"\r\n")[1:] if line)
    status = int(head.split(b" ", 2)[1]) if to else 0
    if to == b"HEAD" or status in (204, 304):
        return head
    if status == 100:
        return await _message(reader, to)
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        return head + b"".join([piece async for piece in _chunks(reader)])
    return head + await reader.readexactly(int(fields.get(b"content-length", b"0")))


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        size = await reader.readuntil(b"\r\n")
        yield size + await reader.readexactly(int(size.split(b";")[0], 16) + 2)
        if not int(size.split(b";")[0], 16):
            return


@contextlib.contextmanager
def server() -> Iterator[dict[str, str]]:
    """Run a real S3 server on loopback and return its settings. Raises OSError with the reason why
    there is none."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from missing import CannotStart
    from s3_server import running_server

    stack = contextlib.ExitStack()
    try:
        started = stack.enter_context(running_server())
    except (CannotStart, OSError) as fault:
        raise OSError(f"no S3 server: {fault}") from None
    with stack:
        yield started.settings()


def address_of(endpoint: str) -> Address:
    host, _, port = endpoint.removeprefix("http://").rpartition(":")
    return host, int(port)
