"""Framing of one connection. Frames sent in one pass of the event loop leave in one write."""

from __future__ import annotations

import asyncio
import enum
import fcntl
import logging
import struct
import termios
from collections.abc import Callable
from typing import Any

import google_crc32c
import uvloop

from polynya.base.limits import APPEND_BYTES_MAX, INFLIGHT_BYTES_PER_CORE, KIB, MIB
from polynya.base.msgpack import UNREADABLE

PROTOCOL_VERSION = 1
# the largest append with its command; a larger frame is invalid
FRAME_BYTES_MAX = APPEND_BYTES_MAX + 8 * MIB
HELLO_BYTES_MAX = 16 * KIB  # limit before the peer is known
# unsent bytes of one connection; above it nothing more is accepted
QUEUE_BYTES_MAX = INFLIGHT_BYTES_PER_CORE
# body length, type, kind, id, and the CRC of everything (0 on links with other checks)
HEADER = struct.Struct("<IBHQI")
HEADER_BYTES = HEADER.size
_FIELDS = struct.Struct("<IBHQ")
_INT = struct.Struct("i")
log = logging.getLogger("polynya.transport")
_crc = google_crc32c.extend


class FrameType(enum.IntEnum):
    """The type of a frame."""

    HELLO = 0
    CALL = 1  # requires one REPLY or ERROR
    REPLY = 2
    ERROR = 3  # kind: an error number
    SEND = 4  # requires no answer
    OPEN = 5  # requires ITEMs until END
    ITEM = 6
    END = 7  # kind: an error number, 0 after a normal end
    CANCEL = 8  # stop sending ITEMs
    PING = 9  # between nodes: requires a PONG; id as in RAFT
    PONG = 10
    # between nodes: length-prefixed Raft messages; id: how far the sender's journal is synced, 0:
    # not reported
    RAFT = 11
    WELCOME = 12  # between nodes: answers HELLO
    REFUSED = 13  # likewise; kind: the length of the sender's Hello, after which the reason follows


class FrameLink(asyncio.Protocol):
    """The framing of a connection. `on_frame(type, kind, id, body)` is called for each frame,
    `on_lost` once at the end.

    An invalid frame ends the connection. `checked`: frames carry a CRC, for networks with weak
    checksums.
    """

    def __init__(
        self,
        on_up: Callable[[], None],
        on_frame: Callable[[int, int, int, bytes], None],
        on_lost: Callable[[], None],
        *,
        checked: bool = False,
        body_bytes_max: int = FRAME_BYTES_MAX,
        pauses_reading: bool = False,
        on_invalid: Callable[[str], None] | None = None,
    ) -> None:
        self._on_up = on_up
        self.on_frame = on_frame
        self.on_lost = on_lost
        self.checked = checked
        # a longer frame is invalid; smaller before the handshake
        self.body_bytes_max = body_bytes_max
        # called with the reason when received data is invalid; the connection then ends
        self.on_invalid = on_invalid or _log_invalid
        self.on_room: Callable[[], None] = _nothing  # called when it is no longer full
        self.quiet = False  # nothing was received since this was last set
        # total bytes received, and handed to the socket or its buffer
        self.received = self.handed = 0
        self.transport: Any = None
        self.up = False
        self.full = False  # the unsent bytes exceed the bound
        self.pauses_reading = pauses_reading  # while full: on the answering side
        self.queued_id = 0  # the largest id passed to `send` …
        self.written_id = 0  # … and handed to the socket
        self._loop = asyncio.get_running_loop()
        # `writelines` of asyncio's own loop never calls `pause_writing` in Python 3.12.0 to 3.12.8,
        # 3.13.0 and 3.13.1 (CVE-2024-12254). It also fails there on a closed connection.
        self._joins_writes = isinstance(self._loop, uvloop.Loop)
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._paused = False  # the socket's buffer exceeds the bound
        self._flush_scheduled = False
        self._rest = b""  # of an incomplete header
        self._head = (0, 0, 0, 0)  # type, kind, id, CRC of a frame with an incomplete body …
        self._pieces: list[bytes] = []  # … the body so far …
        self._missing = 0  # … and the number of missing bytes

    def send(self, type_: int, kind: int, ident: int, body: bytes) -> None:
        """Queue one frame; it leaves at the end of this pass of the loop. Ignored if the connection
        is down."""
        if not self.up:
            return
        out = self._out
        crc = (
            _crc(_crc(0, _FIELDS.pack(len(body), type_, kind, ident)), body) if self.checked else 0
        )
        out.append(HEADER.pack(len(body), type_, kind, ident, crc))
        if body:
            out.append(body)
        self._out_bytes += HEADER_BYTES + len(body)
        if ident > self.queued_id:
            self.queued_id = ident
        if self._out_bytes > QUEUE_BYTES_MAX:
            self.full = True
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    @property
    def awaited(self) -> int:
        """Return the type of the partly received frame; -1 if there is none."""
        return self._head[0] if self._missing else -1

    @property
    def unsent(self) -> int:
        """Return the bytes that the peer's kernel has not acknowledged. The local kernel may hold
        megabytes, on a slow link for seconds."""
        waiting: int = self.transport.get_write_buffer_size()
        socket = self.transport.get_extra_info("socket")
        if socket is None:  # it has ended, and the notification is pending
            return waiting
        try:
            queued = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
        except (OSError, ValueError):  # it is closed, or the system does not report this
            return waiting
        return waiting + int(_INT.unpack(queued)[0])

    def close(self) -> None:
        """Drop the connection and all unsent data; `on_lost` follows."""
        self.up = False
        if self.transport is not None:
            self.transport.abort()

    def fail(self, reason: str) -> None:
        """Report invalid data and drop the connection."""
        self.on_invalid(reason)
        self.close()

    def end(self) -> None:
        """Stop receiving and sending. Sent data still leaves; `on_lost` follows."""
        self.flush()
        self.up = False
        self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=QUEUE_BYTES_MAX, low=QUEUE_BYTES_MAX // 2)
        self.up = True
        self._on_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self.up = False
        self._out.clear()
        self._pieces.clear()
        self.on_lost()

    def pause_writing(self) -> None:
        self._paused = self.full = True
        if self.pauses_reading:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = self.full = False
        if self.pauses_reading:
            self.transport.resume_reading()
        self.on_room()

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except UNREADABLE as error:  # raised by the receiver of the frame
            self.fail(f"a frame cannot be decoded: {error}")

    def _take(self, data: bytes) -> None:
        self.quiet = False
        position, end = 0, len(data)
        self.received += end
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
        unpack, on_frame, checked = HEADER.unpack_from, self.on_frame, self.checked
        while end - position >= HEADER_BYTES and self.up:
            length, type_, kind, ident, crc = unpack(data, position)
            position += HEADER_BYTES
            if length > end - position:
                self._begin((type_, kind, ident, crc), length, data[position:])
                return
            body = data[position : position + length]
            if checked and not self._is_sound((type_, kind, ident, crc), body):
                return
            on_frame(type_, kind, ident, body)
            position += length
        if position < end:
            self._rest = data[position:]

    def _is_sound(self, head: tuple[int, int, int, int], body: bytes) -> bool:
        """Check the CRC of a frame. A wrong one ends the connection."""
        type_, kind, ident, crc = head
        if _crc(_crc(0, _FIELDS.pack(len(body), type_, kind, ident)), body) == crc:
            return True
        self.fail("a frame has a wrong checksum")
        return False

    def _begin(self, head: tuple[int, int, int, int], length: int, first: bytes) -> None:
        """Start a frame with an incomplete body; its pieces are joined once, at the end."""
        if length > self.body_bytes_max:
            self.fail("a frame exceeds the maximum length")
            return
        self._head = head
        self._pieces.append(first)
        self._missing = length - len(first)

    def _finish(self) -> None:
        body = b"".join(self._pieces)
        self._pieces.clear()
        self._missing = 0
        if not self.checked or self._is_sound(self._head, body):
            self.on_frame(*self._head[:3], body)

    def flush(self) -> None:
        """Write all queued frames now."""
        self._flush_scheduled = False
        if not self.up or not self._out:
            return
        out, self._out = self._out, []
        self.handed += self._out_bytes
        self._out_bytes = 0
        self.written_id = self.queued_id
        if self._joins_writes:
            self.transport.writelines(out)
        else:
            self.transport.write(b"".join(out))
        self.full = self._paused


def _nothing() -> None:
    pass


def _log_invalid(reason: str) -> None:
    log.warning("invalid data on a connection: it is dropped", extra={"reason": reason})
