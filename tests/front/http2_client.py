"""A client of HTTP/2 for the tests: the library's client side over a socket, and raw frames."""

from __future__ import annotations

import asyncio
from typing import Any

from front_world import World
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)

from polynya.front.http.protocol.settings import HttpSettings

HTTP2 = HttpSettings(long_poll_seconds=30.0, http2=True)


class Reply:
    """The response of one stream, as far as it has come."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.interim: list[int] = []
        self.ended = False
        self.reset: ErrorCodes | int | None = None

    @property
    def is_over(self) -> bool:
        return self.ended or self.reset is not None


class Http2Client:
    """One connection. `reads` False leaves DATA unacknowledged, so that the windows close."""

    def __init__(self, world: World, reader: asyncio.StreamReader, writer: Any) -> None:
        self._world = world
        self.reader, self.writer = reader, writer
        config = H2Configuration(client_side=True, validate_outbound_headers=False)
        config.normalize_outbound_headers = False
        self.h2 = H2Connection(config)
        self.replies: dict[int, Reply] = {}
        self.goodbye: ErrorCodes | int | None = None
        self.closed = False
        self.reads = True
        self.task: asyncio.Task[None] | None = None
        self.h2.initiate_connection()
        self.send()

    def send(self) -> None:
        """Send what the library has to say."""
        self.writer.write(self.h2.data_to_send())

    def request(
        self, method: str, path: str, body: bytes | None = None, *, end: bool = True, **more: str
    ) -> Reply:
        """Begin a request; names are written with underscores, pseudo-headers as `p_path`."""
        number = self.h2.get_next_available_stream_id()
        pseudo = {":method": method, ":scheme": "http", ":authority": "test", ":path": path}
        fields = {}
        for name, value in more.items():
            if name.startswith("p_"):
                pseudo[f":{name[2:]}"] = value
            else:
                fields[name.replace("_", "-")] = value
        headers = [*pseudo.items(), *fields.items()]
        self.replies[number] = reply = Reply()
        self.h2.send_headers(number, headers, end_stream=end and body is None)
        if body is not None:
            for begin in range(0, len(body), 16_384):
                is_last = begin + 16_384 >= len(body)
                self.h2.send_data(number, body[begin : begin + 16_384], end and is_last)
            if not body and end:
                self.h2.end_stream(number)
        self.send()
        return reply

    def number(self, reply: Reply) -> int:
        return next(number for number, each in self.replies.items() if each is reply)

    async def run(self) -> None:
        """Receive until either side closes."""
        try:
            while data := await self.reader.read(65_536):
                for event in self.h2.receive_data(data):
                    self._on(event)
                self.send()
        except ConnectionError:
            pass
        finally:
            self.closed = True

    async def answer(self, reply: Reply) -> Reply:
        """Wait until a stream is over."""
        await self._world.until(lambda: reply.is_over or self.closed)
        return reply

    async def ask(self, method: str, path: str, body: bytes | None = None, **more: str) -> Reply:
        return await self.answer(self.request(method, path, body, **more))

    def _on(self, event: Event) -> None:
        reply = self.replies.get(getattr(event, "stream_id", None) or 0, Reply())
        if isinstance(event, InformationalResponseReceived):
            reply.interim.append(int(dict(event.headers)[b":status"]))
        elif isinstance(event, ResponseReceived):
            reply.headers = {name.decode(): value.decode() for name, value in event.headers}
            reply.status = int(reply.headers.pop(":status"))
        elif isinstance(event, DataReceived):
            reply.body += event.data
            if self.reads and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            reply.ended = True
        elif isinstance(event, StreamReset):
            reply.reset = event.error_code
        elif isinstance(event, ConnectionTerminated):
            self.goodbye = event.error_code


async def connected(world: World) -> Http2Client:
    """Connect a client that begins with HTTP/2, and receives beside the story."""
    wire = await world.wire()
    client = Http2Client(world, wire.reader, wire.writer)
    client.task = asyncio.get_running_loop().create_task(client.run())  # ends with its wire
    return client
