"""The transport of one HTTP/2 stream, as its virtual connection of HTTP/1.1 sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from polynya.wire.http.response_parts import Buffer, Field, ResponseParts

# unsent bytes at which the virtual connection pauses, and continues, as those of a socket
HIGH_BYTES = 64 * 1024
LOW_BYTES = 16 * 1024


class Sender(Protocol):
    """The connection that sends what its streams have written."""

    @property
    def transport(self) -> asyncio.Transport | None: ...

    def wake(self, stream: VirtualTransport) -> None:
        """Send for a stream, in a later pass of the loop."""
        ...

    def wrote(self, size: int) -> None:
        """Count unsent bytes."""
        ...


class VirtualTransport(asyncio.Transport):
    """The unsent parts of a stream's response. `close` ends the stream behind them, `abort` resets
    it."""

    __slots__ = (
        "_parts",
        "_sender",
        "aborted",
        "closing",
        "flow",
        "heads",
        "is_chunked",
        "is_whole",
        "number",
        "paused",
        "pieces",
        "protocol",
        "size",
    )

    def __init__(self, sender: Sender, number: int, method: bytes, *, is_chunked: bool) -> None:
        super().__init__()
        self._sender = sender
        self.number = number
        self.is_chunked = is_chunked  # the request's body, which is framed as chunks
        self.is_whole = False  # the request has arrived
        self.protocol: asyncio.Protocol | None = None
        self.flow: Any = None  # the library's stream, which has the window
        self.heads: list[list[Field]] = []  # to send before the pieces
        self.pieces: deque[Buffer] = deque()
        self.size = 0  # bytes of the pieces
        self.closing = self.aborted = self.paused = False
        self._parts = ResponseParts(method, self.heads.append, self._add)

    @property
    def began(self) -> bool:
        """Report whether the final head has been written."""
        return self._parts.began

    @property
    def is_complete(self) -> bool:
        """Report whether the response has all its bytes."""
        return self._parts.is_complete

    def write(self, data: Buffer) -> None:
        if self.closing or self.protocol is None:
            return
        before = self.size
        self._parts.feed(data)
        self._sender.wrote(self.size - before)
        self._sender.wake(self)
        if self.size > HIGH_BYTES and not self.paused:
            self.paused = True
            self.protocol.pause_writing()

    def writelines(self, pieces: Iterable[Buffer]) -> None:
        for piece in pieces:
            self.write(piece)

    def take(self, size: int) -> list[Buffer]:
        """Return the next `size` bytes, which are written."""
        taken: list[Buffer] = []
        self.size -= size
        while size:
            piece = self.pieces[0]
            if len(piece) > size:
                view = memoryview(piece)
                taken.append(view[:size])
                self.pieces[0] = view[size:]
                break
            taken.append(self.pieces.popleft())
            size -= len(piece)
        return taken

    def drained(self) -> None:
        """Let the virtual connection continue, once few bytes are unsent."""
        if self.paused and self.size <= LOW_BYTES and self.protocol is not None:
            self.paused = False
            self.protocol.resume_writing()

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._sender.wake(self)

    def abort(self) -> None:
        self.aborted = True
        self.close()
        self._sender.wake(self)

    def is_closing(self) -> bool:
        """Report whether the stream ends with nothing left to read. A client that does not read the
        rest is cut and counted as on a socket."""
        return self.closing and not self.size

    def can_write_eof(self) -> bool:
        """Return False: a stream ends with its response, in one step."""
        return False

    def get_write_buffer_size(self) -> int:
        return self.size

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        real = self._sender.transport
        # a stream has no TLS of its own, whose handshake would choose a protocol
        return real.get_extra_info(name, default) if real and name != "ssl_object" else default

    def pause_reading(self) -> None:
        """Do nothing: a virtual connection has one request, whose window bounds it."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def _add(self, piece: Buffer) -> None:
        self.pieces.append(piece)
        self.size += len(piece)
