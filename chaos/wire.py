"""HTTP/1.1 as small as a client can be: one request at a time on a connection, which knows whether
anything of it may have arrived."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress

import msgspec


class Unsent(Exception):
    """No connection: nothing of the request has left."""


class Lost(Exception):
    """No answer: what became of the request is unknown."""


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes = b""

    def __repr__(self) -> str:
        return f"Answer({self.status}, {self.headers}, {self.body[:200]!r})"


class Connection:
    """A connection to one address, opened on demand and reopened after an error."""

    def __init__(
        self, host: str, port: int, dial: Callable[[], socket.socket] = socket.socket
    ) -> None:
        """Keep `dial`, which makes the socket in the network from which the address is reached."""
        self._host, self._port, self._dial = host, port, dial
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def __repr__(self) -> str:
        return f"{self._host}:{self._port}"

    async def ask(
        self, method: str, target: str, body: bytes = b"", *, seconds: float, **headers: str
    ) -> Answer:
        """Send a request, and return its answer. Raises Unsent or Lost."""
        try:
            async with asyncio.timeout(seconds):
                reader = await self._send(method, target, body, headers)
                answer = await _read_head(reader)
                answer.body = b"".join([piece async for piece in _pieces(reader, answer)])
        except Unsent:
            raise
        except (OSError, EOFError, ValueError, TimeoutError) as fault:
            self.close()
            raise Lost(repr(fault)) from None
        if answer.headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    async def stream(self, target: str, *, seconds: float) -> AsyncIterator[Answer | bytes]:
        """Yield the answer, and then its body in pieces as they come. Raises Unsent, and Lost after
        `seconds` of silence."""
        try:
            async with asyncio.timeout(seconds):
                reader = await self._send("GET", target, b"", {})
                answer = await _read_head(reader)
            yield answer
            pieces = _pieces(reader, answer)
            while True:
                async with asyncio.timeout(seconds):
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                yield piece
        except Unsent:
            raise
        except (OSError, EOFError, ValueError, TimeoutError) as fault:
            raise Lost(repr(fault)) from None
        finally:
            self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _connected(self) -> socket.socket:
        made = self._dial()
        try:
            made.setblocking(False)
            await asyncio.get_running_loop().sock_connect(made, (self._host, self._port))
        except BaseException:
            made.close()
            raise
        return made

    async def _send(
        self, method: str, target: str, body: bytes, headers: dict[str, str]
    ) -> asyncio.StreamReader:
        if self._streams is not None and self._streams[0].at_eof():
            self.close()
        if self._streams is None:
            try:
                self._streams = await asyncio.open_connection(sock=await self._connected())
            except (OSError, TimeoutError) as fault:
                raise Unsent(repr(fault)) from None
        reader, writer = self._streams
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {self._host}:{self._port}",
            f"Content-Length: {len(body)}",
        ]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        with suppress(ConnectionError):
            await writer.drain()
        return reader


async def ask_once(
    address: tuple[str, int],
    method: str,
    target: str,
    body: bytes = b"",
    *,
    seconds: float,
    dial: Callable[[], socket.socket] = socket.socket,
    **headers: str,
) -> Answer:
    """Send one request on a connection of its own. Raises Unsent or Lost."""
    with closing(Connection(*address, dial)) as connection:
        return await connection.ask(method, target, body, seconds=seconds, **headers)


async def _read_head(reader: asyncio.StreamReader) -> Answer:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = (line.partition(":") for line in lines[1:] if line)
    return Answer(
        int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in fields}
    )


async def _pieces(reader: asyncio.StreamReader, answer: Answer) -> AsyncIterator[bytes]:
    if answer.headers.get("transfer-encoding") == "chunked":
        while length := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(length + 2))[:-2]
        await reader.readexactly(2)
    elif answer.status != 204 and (length := int(answer.headers.get("content-length", "0"))):
        yield await reader.readexactly(length)
