"""The pipeline of one connection, for any protocol: ordered responses, read pressure, idle time.

A connection keeps only the framing of its protocol. It takes a number for each request and sends the
response under that number; `ResponseQueue` holds what is ready too early. `ReadPressure` pauses the
transport while the connection has enough to do, and `IdleClock` tells how long the client has made
no progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

Response = bytes | Sequence[bytes | bytearray | memoryview]
"""Bytes, or pieces that are sent without a copy. No pieces: the request gets no response."""

NEVER = 1 << 62  # greater than every number of a request


class Ticks:
    """Coarse seconds of a front; its sweep sets them."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0


class IdleClock:
    """The time since when a connection waits for its client, in coarse seconds."""

    __slots__ = ("_sent", "_swept", "_unread", "opened", "since", "ticks")

    def __init__(self, ticks: Ticks) -> None:
        self.ticks = ticks
        self.opened = self.since = self._swept = ticks.now
        self._sent = self._unread = 0

    def touch(self) -> None:
        """Note progress of the client."""
        self.since = self.ticks.now

    def waited(self, tick: int, responses: ResponseQueue) -> int:
        """Return the seconds without progress, at each sweep. A response that was sent since the
        last sweep is progress, and so is a change of the unread bytes."""
        if responses.sent != self._sent:
            self._sent, self.since = responses.sent, max(self.since, self._swept)
        if (unread := responses.unread_bytes) != self._unread:
            self._unread, self.since = unread, tick
        self._swept = tick
        return tick - self.since


class ResponseQueue:
    """The responses of one connection, in the order of its requests.

    `next` is the number of the next request, `sent` that of the next response to send: both equal if
    nothing is in flight. `exclusive`: later requests have to wait for those in flight. `on_sent` is
    called after a send while `is_watched`: while the connection waits for responses."""

    __slots__ = (
        "_on_sent",
        "_ready",
        "_writable",
        "exclusive",
        "is_watched",
        "last",
        "next",
        "sent",
        "transport",
        "write_paused",
    )

    def __init__(self, on_sent: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.next = self.sent = 0
        self.last = NEVER  # number of the connection's last response
        self.exclusive = self.is_watched = False
        self.write_paused = False  # the transport is above its high-water mark
        self._on_sent: Callable[[], None] | None = on_sent
        self._ready: dict[int, Response] = {}
        self._writable: asyncio.Event | None = None

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return self.next - self.sent

    def take(self) -> int:
        """Return the number of a request that begins."""
        number = self.next
        self.next = number + 1
        return number

    def send(self, number: int, response: Response) -> None:
        """Send the response to request `number`, once all earlier ones are sent."""
        if number != self.sent:
            self._ready[number] = response
            return
        transport = self.transport
        if transport is None:
            return
        self.sent = number + 1
        if isinstance(response, bytes):
            transport.write(response)
        elif response:
            transport.writelines(response)
        if self._ready:
            self._send_ready(transport)
        if self.is_watched and self._on_sent is not None:
            self._on_sent()

    def _send_ready(self, transport: asyncio.Transport) -> None:
        while self.sent <= self.last and (found := self._ready.pop(self.sent, None)) is not None:
            self.sent += 1
            if isinstance(found, bytes):
                transport.write(found)
            elif found:
                transport.writelines(found)

    def end_after(self, number: int) -> None:
        """Make the response to request `number` the last one; `on_sent` is called after it."""
        self.last, self.is_watched = number, True

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes outside the order: of an interim response, or of one that goes on."""
        if self.transport is not None:
            self.transport.write(data)

    def close(self) -> None:
        """Close the connection after the bytes that were written."""
        if self.transport is not None:
            self.transport.close()

    def end(self) -> None:
        """Drop all further responses: the connection is lost."""
        self.transport = self._on_sent = None
        self._ready.clear()
        self._wake()

    @property
    def unread_bytes(self) -> int:
        """Response bytes that the client has not read yet."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def resume_writing(self) -> None:
        """Continue after the transport's buffer has drained."""
        self.write_paused = False
        self._wake()

    async def wait_writable(self) -> bool:
        """Wait until the transport's buffer has drained; return False if the connection is lost."""
        if self.write_paused and self.transport is not None:
            self._writable = self._writable or asyncio.Event()
            await self._writable.wait()
        return self.transport is not None

    def _wake(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set()


class ReadPressure:
    """The reading of a connection's transport, which is paused while the connection is full."""

    __slots__ = ("is_paused", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_paused = False

    def steer(self, *, full: bool) -> bool:
        """Pause reading if the connection is full, otherwise resume it. Return True if that changes
        something."""
        transport = self.transport
        if full == self.is_paused or transport is None or transport.is_closing():
            return False
        self.is_paused = full
        if full:
            transport.pause_reading()
        else:
            transport.resume_reading()
        return True
