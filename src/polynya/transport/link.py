"""One connection: frames in, frames out; what is sent within one pass of the loop leaves in one write."""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Callable
from typing import Any

from polynya.base.limits import APPEND_BYTES_MAX, INFLIGHT_BYTES_PER_CORE, MIB

PROTOCOL_VERSION = 1
FRAME_BYTES_MAX = APPEND_BYTES_MAX + 8 * MIB  # the largest append with its command around it; more is no frame of ours
QUEUE_BYTES_MAX = INFLIGHT_BYTES_PER_CORE  # unsent bytes of one connection; over it nothing more is taken
HEADER = struct.Struct("<IBHQ")  # body length, type, kind, id
HEADER_BYTES = HEADER.size


class Type(enum.IntEnum):
    """What a frame is."""

    HELLO = 0
    CALL = 1  # asks for one REPLY or ERROR
    REPLY = 2
    ERROR = 3  # kind: an error's number
    SEND = 4  # asks for nothing
    OPEN = 5  # asks for ITEMs until END
    ITEM = 6
    END = 7  # kind: an error's number, 0 when all was said
    CANCEL = 8  # no more ITEMs are wanted


class Link(asyncio.Protocol):
    """A connection's framing. `on_frame(type, kind, id, body)` is called for each frame, `on_lost` once at the end.

    A frame that cannot be ours ends the connection.
    """

    def __init__(self, on_up: Callable[[], None], on_frame: Callable[[int, int, int, bytes], None], on_lost: Callable[[], None]) -> None:
        self._on_up = on_up
        self._on_frame = on_frame
        self._on_lost = on_lost
        self.transport: Any = None
        self.up = False
        self.full = False  # more than the bound is unsent
        self.pauses_reading = False  # while full: set by the side that answers
        self.queued_id = 0  # the largest id handed to `send` …
        self.written_id = 0  # … and to the socket
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._paused = False  # the socket's buffer is over the bound
        self._flush_scheduled = False
        self._rest = b""  # of a header that is not whole yet
        self._head = (0, 0, 0)  # type, kind, id of a frame whose body is not whole yet …
        self._pieces: list[bytes] = []  # … the body so far …
        self._missing = 0  # … and how much of it is to come

    def send(self, type_: int, kind: int, ident: int, body: bytes) -> None:
        """Queue one frame; it leaves at the end of this pass of the loop. Ignored when the connection is down."""
        if not self.up:
            return
        out = self._out
        out.append(HEADER.pack(len(body), type_, kind, ident))
        if body:
            out.append(body)
        self._out_bytes += len(body)
        if ident > self.queued_id:
            self.queued_id = ident
        if self._out_bytes > QUEUE_BYTES_MAX:
            self.full = True
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Drop the connection, with all that is unsent; `on_lost` follows."""
        self.up = False
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=QUEUE_BYTES_MAX, low=QUEUE_BYTES_MAX // 2)
        self.up = True
        self._on_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self.up = False
        self._out.clear()
        self._pieces.clear()
        self._on_lost()

    def pause_writing(self) -> None:
        self._paused = self.full = True
        if self.pauses_reading:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = self.full = False
        if self.pauses_reading:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        position, end = 0, len(data)
        if self._missing:
            position = self._missing
            if end < position:
                self._pieces.append(data)
                self._missing -= end
                return
            self._pieces.append(data if end == position else data[:position])
            self._finish()
        elif self._rest:
            data = self._rest + data
            self._rest = b""
            end = len(data)
        unpack, on_frame = HEADER.unpack_from, self._on_frame
        while end - position >= HEADER_BYTES and self.up:
            length, type_, kind, ident = unpack(data, position)
            position += HEADER_BYTES
            if length > end - position:
                self._begin((type_, kind, ident), length, data[position:])
                return
            on_frame(type_, kind, ident, data[position : position + length])
            position += length
        if position < end:
            self._rest = data[position:]

    def _begin(self, head: tuple[int, int, int], length: int, first: bytes) -> None:
        """A frame whose body is not all here: its pieces are joined once, at the end."""
        if length > FRAME_BYTES_MAX:
            self.close()
            return
        self._head = head
        self._pieces.append(first)
        self._missing = length - len(first)

    def _finish(self) -> None:
        body = b"".join(self._pieces)
        self._pieces.clear()
        self._missing = 0
        self._on_frame(*self._head, body)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self.up or not self._out:
            return
        out, self._out = self._out, []
        self._out_bytes = 0
        self.written_id = self.queued_id
        self.transport.writelines(out)
        self.full = self._paused
