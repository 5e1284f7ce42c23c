"""One connection: frames in, frames out; what is sent within one pass of the loop leaves in one write."""

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
FRAME_BYTES_MAX = APPEND_BYTES_MAX + 8 * MIB  # the largest append with its command around it; more is no frame of ours
HELLO_BYTES_MAX = 16 * KIB  # of one before the other side is known
QUEUE_BYTES_MAX = INFLIGHT_BYTES_PER_CORE  # unsent bytes of one connection; over it nothing more is taken
HEADER = struct.Struct("<IBHQI")  # body length, type, kind, id, and the CRC of all that (0 on links that are checked otherwise)
HEADER_BYTES = HEADER.size
_FIELDS = struct.Struct("<IBHQ")
_INT = struct.Struct("i")
log = logging.getLogger("polynya.transport")
_crc = google_crc32c.extend


class FrameType(enum.IntEnum):
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
    PING = 9  # between nodes: asks for a PONG; its id as RAFT's
    PONG = 10
    RAFT = 11  # between nodes: messages of groups, each with its length before it; id: how far the sender's journal is synced, 0: it does not say
    WELCOME = 12  # between nodes: answers HELLO
    REFUSED = 13  # likewise: kind is the length of what the answerer is, after which the reason follows


class FrameLink(asyncio.Protocol):
    """A connection's framing. `on_frame(type, kind, id, body)` is called for each frame, `on_lost` once at the end.

    A frame that cannot be ours ends the connection. `checked`: frames carry a CRC, for networks whose own is weak.
    """

    def __init__(
        self,
        on_up: Callable[[], None],
        on_frame: Callable[[int, int, int, bytes], None],
        on_lost: Callable[[], None],
        *,
        checked: bool = False,
    ) -> None:
        self._on_up = on_up
        self.on_frame = on_frame
        self.on_lost = on_lost
        self.checked = checked
        self.body_bytes_max = FRAME_BYTES_MAX  # a longer frame is none of ours; less, as long as nobody has greeted
        self.complain: Callable[[str], None] = _told  # called with the reason when what comes makes no sense; the connection then ends
        self.on_room: Callable[[], None] = _nothing  # called when it is not full any more
        self.quiet = False  # nothing came since somebody set this
        self.received = self.handed = 0  # bytes that came, and bytes that the socket or the buffer before it was given, so far
        self.transport: Any = None
        self.up = False
        self.full = False  # more than the bound is unsent
        self.pauses_reading = False  # while full: set by the side that answers
        self.queued_id = 0  # the largest id handed to `send` …
        self.written_id = 0  # … and to the socket
        self._loop = asyncio.get_running_loop()
        # `writelines` of asyncio's own loop never calls `pause_writing` in Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 (CVE-2024-12254), and fails
        # there on a connection that is closed.
        self._joins_writes = isinstance(self._loop, uvloop.Loop)
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._paused = False  # the socket's buffer is over the bound
        self._flush_scheduled = False
        self._rest = b""  # of a header that is not whole yet
        self._head = (0, 0, 0, 0)  # type, kind, id, CRC of a frame whose body is not whole yet …
        self._pieces: list[bytes] = []  # … the body so far …
        self._missing = 0  # … and how much of it is to come

    def send(self, type_: int, kind: int, ident: int, body: bytes) -> None:
        """Queue one frame; it leaves at the end of this pass of the loop. Ignored when the connection is down."""
        if not self.up:
            return
        out = self._out
        crc = _crc(_crc(0, _FIELDS.pack(len(body), type_, kind, ident)), body) if self.checked else 0
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
        """The type of the frame of which a part has come, and the rest has not; -1 when there is none."""
        return self._head[0] if self._missing else -1

    @property
    def unsent(self) -> int:
        """Bytes that the other side's kernel does not have, as far as this one's says: megabytes may be there, and on a slow link for seconds."""
        waiting: int = self.transport.get_write_buffer_size()
        socket = self.transport.get_extra_info("socket")
        if socket is None:  # its end is only not told yet
            return waiting
        try:
            queued = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
        except (OSError, ValueError):  # it is closed, or this is a system whose sockets do not tell
            return waiting
        return waiting + int(_INT.unpack(queued)[0])

    def close(self) -> None:
        """Drop the connection, with all that is unsent; `on_lost` follows."""
        self.up = False
        if self.transport is not None:
            self.transport.abort()

    def fail(self, reason: str) -> None:
        """What has come cannot be ours: that is said, and the connection dropped."""
        self.complain(reason)
        self.close()

    def end(self) -> None:
        """Take and send nothing more; what was sent still leaves. `on_lost` follows."""
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
        except UNREADABLE as error:  # by whoever the frame was for
            self.fail(f"what a frame says cannot be read: {error}")

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
        """What is not ends the connection."""
        type_, kind, ident, crc = head
        if _crc(_crc(0, _FIELDS.pack(len(body), type_, kind, ident)), body) == crc:
            return True
        self.fail("a frame was damaged on its way, or is none of ours")
        return False

    def _begin(self, head: tuple[int, int, int, int], length: int, first: bytes) -> None:
        """A frame whose body is not all here: its pieces are joined once, at the end."""
        if length > self.body_bytes_max:
            self.fail("a frame is longer than any of ours")
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
        """What was sent leaves now."""
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


def _told(reason: str) -> None:
    log.warning("a connection makes no sense: it is dropped", extra={"reason": reason})
