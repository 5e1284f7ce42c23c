"""The counts of an HTTP/2 connection's frames: what costs its sender little and the server more is
allowed a number of times in a window of time.

Frames are counted by their headers, before any parser builds them, so that a flood is refused at the
cost of one look at each frame.
"""

from __future__ import annotations

from polynya.base.limits import (
    H2_CONTROL_FRAMES_MAX,
    H2_FLOOD_WINDOW_SECONDS,
    H2_HEADER_FRAMES_MAX,
    H2_RESETS_MAX,
    H2_TINY_FRAMES_MAX,
    HEADER_BLOCK_BYTES_MAX,
)
from polynya.wire.http.http2_heads import PREFACE

REASONS = ("control", "headers", "protocol", "resets", "tiny", "unsent")
"""Why a connection was refused: a flood of control frames (PING, SETTINGS, PRIORITY, WINDOW_UPDATE,
empty DATA, unknown ones), a header block in too many parts, a breach of the protocol, a flood of
resets, one of tiny DATA frames, too many unsent bytes."""
_HEAD_BYTES = 9
_DATA, _HEADERS, _RST_STREAM, _CONTINUATION = 0, 1, 3, 9
_END_STREAM = 1
_TINY_BYTES = 64
_FRAME_BYTES_MAX = (
    16_384  # what this server announces; the library would first collect a longer one
)


class Flood(Exception):
    """More frames of a kind than a connection may send; `reason` is one of `REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FrameCounter:
    """The frames that one connection has received, from the preface on."""

    __slots__ = ("_block", "_control", "_head", "_left", "_resets", "_since", "_tiny")

    def __init__(self) -> None:
        self._head = b""  # of a frame whose header is not complete
        self._left = len(PREFACE)  # of the payload that is passed over
        self._since = 0
        self._control = self._resets = self._tiny = 0
        self._block = [0, 0]  # frames and bytes of the header block that arrives

    def feed(self, data: bytes, tick: int) -> None:
        """Count the frames that begin in received bytes. `tick`: coarse seconds. Raises `Flood`."""
        if tick - self._since >= H2_FLOOD_WINDOW_SECONDS:
            self._since, self._control, self._resets, self._tiny = tick, 0, 0, 0
        position, size = 0, len(data)
        while position < size:
            if self._left:
                skipped = min(self._left, size - position)
                self._left -= skipped
                position += skipped
                continue
            missing = _HEAD_BYTES - len(self._head)
            self._head += data[position : position + missing]
            position += missing
            if len(self._head) == _HEAD_BYTES:
                self._left = int.from_bytes(self._head[:3], "big")
                kind, flags, self._head = self._head[3], self._head[4], b""
                self._count(kind, flags, self._left)

    def allow(self, control: int) -> None:
        """Allow more control frames: a client sends some for each frame that it receives."""
        self._control -= control

    def reset(self) -> None:
        """Count a stream that either side reset. Raises `Flood`."""
        self._resets += 1
        if self._resets > H2_RESETS_MAX:
            raise Flood("resets")

    def control(self) -> None:
        """Count a frame that carries nothing. Raises `Flood`."""
        self._control += 1
        if self._control > H2_CONTROL_FRAMES_MAX:
            raise Flood("control")

    def _count(self, kind: int, flags: int, size: int) -> None:
        if size > _FRAME_BYTES_MAX:
            raise Flood("protocol")
        if kind == _HEADERS:
            self._block = [1, size]
        elif kind == _CONTINUATION:
            self._block[0] += 1
            self._block[1] += size
            if self._block[0] > H2_HEADER_FRAMES_MAX or self._block[1] > HEADER_BLOCK_BYTES_MAX:
                raise Flood("headers")
        elif kind == _RST_STREAM:
            self.reset()
        elif kind != _DATA or (not size and not flags & _END_STREAM):
            self.control()
        elif size < _TINY_BYTES and not flags & _END_STREAM:
            self._tiny += 1
            if self._tiny > H2_TINY_FRAMES_MAX:
                raise Flood("tiny")
