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
        self._pieces: list[bytes] = []  # of a frame that is not whole yet
        self._have = 0
        self._need = 0

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
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        position, end = 0, len(data)
        unpack, on_frame = HEADER.unpack_from, self._on_frame
        need = HEADER_BYTES
        while end - position >= HEADER_BYTES:
            length, type_, kind, ident = unpack(data, position)
            body_end = position + HEADER_BYTES + length
            if body_end > end:
                if length > FRAME_BYTES_MAX:
                    self.close()
                    return
                need = HEADER_BYTES + length
                break
            on_frame(type_, kind, ident, data[position + HEADER_BYTES : body_end])
            position = body_end
            if not self.up:
                return
        if position < end:
            rest = data[position:]
            self._pieces.append(rest)
            self._have, self._need = len(rest), need

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self.up or not self._out:
            return
        out, self._out = self._out, []
        self._out_bytes = 0
        self.written_id = self.queued_id
        self.transport.writelines(out)
        self.full = self._paused
