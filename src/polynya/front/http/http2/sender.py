"""The sending of one HTTP/2 connection: its streams in turns, within the windows of the client."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Protocol, cast

from h2.connection import H2Connection
from h2.errors import ErrorCodes

from polynya.base.limits import H2_UNSENT_BYTES_MAX
from polynya.front.common.pipeline import IdleClock, ResponseQueue
from polynya.front.http.http2.virtual import VirtualTransport
from polynya.wire.http.http2_floods import FrameCounter
from polynya.wire.http.response_parts import Buffer

_FRAME_HEAD = struct.Struct(">HBBBI")  # 24 bits of length, type, flags, stream
_CONTROL_PER_FRAME = 2  # a client opens the windows of the stream and of the connection


class Owner(Protocol):
    """The connection of a sender."""

    def on_flushed(self) -> None:
        """Go on after the streams have sent what they may."""
        ...

    def refuse(self, reason: str, code: ErrorCodes | None) -> None:
        """Close the connection, because of its client."""
        ...


class StreamSender:
    """The streams of one connection and what they have to send. `ready`: those with something to
    send, in turns. `is_paused`: the transport is full."""

    def __init__(
        self,
        owner: Owner,
        h2: H2Connection,
        frames: FrameCounter,
        responses: ResponseQueue,
        clock: IdleClock,
    ) -> None:
        self._owner, self._h2, self._frames = owner, h2, frames
        self._responses, self._clock = responses, clock
        self.streams: dict[int, VirtualTransport] = {}
        self.ready: dict[VirtualTransport, None] = {}
        self._unsent = 0
        self._is_scheduled = self.is_paused = self._is_full = False

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport of all streams; None after the connection is lost."""
        return self._responses.transport

    def wake_all(self) -> None:
        """Look at all streams again: a window has opened."""
        self.ready |= dict.fromkeys(self.streams.values())

    def wake(self, stream: VirtualTransport) -> None:
        """Send for a stream, in a later pass of the loop."""
        self.ready[stream] = None
        if not self._is_scheduled and not self.is_paused:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def wrote(self, size: int) -> None:
        """Count unsent bytes of a stream."""
        self._unsent += size
        if self._unsent > H2_UNSENT_BYTES_MAX and not self._is_full:
            self._is_full = True
            asyncio.get_running_loop().call_soon(
                self._owner.refuse, "unsent", ErrorCodes.ENHANCE_YOUR_CALM
            )

    def flush(self) -> None:
        """Send what the streams have and their windows allow, one frame each and round and round,
        until the transport is full."""
        self._is_scheduled = False
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        while self.ready and not self.is_paused:
            frames: list[Buffer] = []
            for stream in tuple(self.ready):
                if not self._send_step(stream, frames):
                    self.ready.pop(stream, None)
            self.write(frames)
        self.write([])
        self._owner.on_flushed()

    def write(self, frames: list[Buffer]) -> None:
        """Write the library's frames, and DATA behind them."""
        transport, control = self.transport, self._h2.data_to_send()
        if transport is not None and (control or frames):
            transport.writelines([control, *frames] if control else frames)

    def _send_step(self, stream: VirtualTransport, frames: list[Buffer]) -> bool:
        """Send the heads and one frame of a stream. Return True if it has more that may be sent."""
        if self.streams.get(stream.number) is not stream:
            return False
        if stream.aborted or (stream.closing and not stream.is_complete):
            self._reset(stream)
            return False
        if self._send_heads(stream):
            self.forget(stream)
            return False
        if not stream.size:
            if stream.closing:
                self._end_stream(stream, frames, b"")
            return False
        flow, h2 = stream.flow, self._h2
        window = min(flow.outbound_flow_control_window, h2.outbound_flow_control_window)
        size = min(window, stream.size, h2.max_outbound_frame_size)
        if size <= 0:
            return False  # until the client opens the window
        flow.outbound_flow_control_window -= size
        h2.outbound_flow_control_window -= size
        self._unsent -= size
        self._frames.allow(_CONTROL_PER_FRAME)
        pieces = stream.take(size)
        if stream.closing and not stream.size:
            self._end_stream(stream, frames, b"".join(pieces))
            return False
        frames.append(_frame_head(size, stream.number))
        frames += pieces
        stream.drained()
        return stream.size > 0 or stream.closing

    def _send_heads(self, stream: VirtualTransport) -> bool:
        """Send the heads of a stream. Return True if the last one ends it."""
        heads = stream.heads[:]
        stream.heads.clear()
        is_end = False
        for head in heads:
            is_end = stream.closing and not stream.size and head is heads[-1] and stream.began
            self._h2.send_headers(stream.number, cast("Any", head), end_stream=is_end)
        if is_end and not stream.is_whole:
            self._h2.reset_stream(stream.number, ErrorCodes.NO_ERROR)
        return is_end

    def _end_stream(self, stream: VirtualTransport, frames: list[Buffer], data: bytes) -> None:
        """End a stream with its last DATA. The library counts bytes that were counted here, and
        gets them back."""
        if frames:
            self.write(frames)
            frames.clear()
        stream.flow.outbound_flow_control_window += len(data)
        self._h2.outbound_flow_control_window += len(data)
        self._h2.send_data(stream.number, data, end_stream=True)
        if not stream.is_whole:  # the response came early: the rest of the request is of no use
            self._h2.reset_stream(stream.number, ErrorCodes.NO_ERROR)
        self.forget(stream)

    def _reset(self, stream: VirtualTransport) -> None:
        """Reset a stream. One without a response was not processed, and may be sent again."""
        code = ErrorCodes.CANCEL if stream.began or stream.aborted else ErrorCodes.REFUSED_STREAM
        self._h2.reset_stream(stream.number, code)
        self.forget(stream)

    def forget(self, stream: VirtualTransport) -> None:
        """End the virtual connection of a stream that is over."""
        self.streams.pop(stream.number, None)
        self._unsent -= stream.size
        stream.size = 0
        stream.pieces.clear()
        protocol, stream.protocol = stream.protocol, None
        stream.closing = True
        if protocol is not None:
            protocol.connection_lost(None)
        self._clock.touch()


def _frame_head(size: int, number: int) -> bytes:
    """Return the header of a DATA frame."""
    return _FRAME_HEAD.pack(size >> 8, size & 0xFF, 0, 0, number)
