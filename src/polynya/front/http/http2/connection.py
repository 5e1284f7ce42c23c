"""One HTTP/2 connection: frames in, virtual connections of HTTP/1.1, and frames out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from polynya.base.limits import (
    H2_CONNECTION_WINDOW_BYTES,
    H2_STREAM_WINDOW_BYTES,
    H2_STREAMS_MAX,
    HEADER_BLOCK_BYTES_MAX,
    KIB,
)
from polynya.front.common.pipeline import IdleClock, ResponseQueue
from polynya.front.http.connection import Connection
from polynya.front.http.http2.sender import StreamSender
from polynya.front.http.http2.virtual import VirtualTransport
from polynya.front.http.protocol.exchange import Context
from polynya.front.http.protocol.peer import Peer
from polynya.front.http.protocol.settings import HEAD_SECONDS, IDLE_SECONDS, STALL_SECONDS
from polynya.wire.http.http2_fields import LiteralEncoder
from polynya.wire.http.http2_floods import Flood, FrameCounter
from polynya.wire.http.http2_heads import MalformedHead, virtual_head

_DEFAULT_WINDOW_BYTES = 65_535
_TINY_INCREMENT_BYTES = KIB  # of a window that opens in steps that cost more than they carry


class Http2Connection(asyncio.Protocol):
    """An HTTP/2 connection, over TLS or with prior knowledge."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock = IdleClock(context.ticks)
        self.peer = Peer(ResponseQueue(lambda: None))
        self._h2 = _library_connection()
        self._frames = FrameCounter()
        self._sender = StreamSender(self, self._h2, self._frames, self.peer.responses, self._clock)
        self._finished = False  # no further frame is read
        self._leaving = False  # no further stream is opened

    # --- transport callbacks ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        context = self._context
        made = cast("asyncio.Transport", transport)
        self.peer.responses.transport = made
        context.connections.add(self)
        context.counters.connections_opened += 1
        context.counters.http2_connections += 1
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(H2_CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        if len(context.connections) > context.settings.connections_max - context.handshakes_max:
            context.counters.connections_refused += 1
            self._end(ErrorCodes.ENHANCE_YOUR_CALM)
        else:
            self._sender.flush()

    def data_received(self, data: bytes) -> None:
        if self._finished:
            return
        try:
            self._frames.feed(data, self._context.ticks.now)
            for event in self._h2.receive_data(data):
                found = _HANDLERS.get(type(event))
                if found is not None:
                    found(self, event)
        except Flood as flood:
            self.refuse(flood.reason, ErrorCodes.ENHANCE_YOUR_CALM)
        except ProtocolError as error:
            is_flood = getattr(error, "error_code", None) == ErrorCodes.ENHANCE_YOUR_CALM
            self.refuse("headers" if is_flood else "protocol", None)
        else:
            self._sender.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._finished = True
        self.peer.lose()
        self._sender.ready.clear()
        for stream in tuple(self._sender.streams.values()):
            self._sender.forget(stream)
        self._context.connections.discard(self)

    def pause_writing(self) -> None:
        self._sender.is_paused = True

    def resume_writing(self) -> None:
        self._sender.is_paused = False
        self._sender.flush()

    # --- requests ---------------------------------------------------------------------------------

    def _on_request(self, event: RequestReceived) -> None:
        number, has_body = event.stream_id, event.stream_ended is None
        self._clock.touch()
        self._context.counters.http2_streams += 1
        flow = self._h2.streams.get(number)
        if flow is None or flow.closed:
            return  # the client has reset it already
        if self._leaving:
            self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        try:
            head = virtual_head(cast("Any", event.headers), has_body=has_body)
        except MalformedHead:
            self._h2.reset_stream(number, ErrorCodes.PROTOCOL_ERROR)
            self._frames.reset()
            return
        stream = VirtualTransport(self._sender, number, head.method, is_chunked=head.is_chunked)
        stream.flow = flow
        self._sender.streams[number] = stream
        stream.protocol = Connection(self._context)
        stream.protocol.connection_made(stream)
        stream.protocol.data_received(head.block)

    def _on_data(self, event: DataReceived) -> None:
        size = event.flow_controlled_length
        if size:
            self._h2.acknowledge_received_data(size, event.stream_id)
        if not event.data:
            if event.stream_ended is None:
                self._frames.control()  # padding alone
            return
        self._clock.touch()
        stream = self._sender.streams.get(event.stream_id)
        if stream is not None and stream.protocol is not None:
            data = event.data
            stream.protocol.data_received(
                b"%x\r\n%b\r\n" % (len(data), data) if stream.is_chunked else data
            )

    def _on_end(self, event: StreamEnded) -> None:
        stream = self._sender.streams.get(event.stream_id)
        if stream is None or stream.protocol is None:
            return
        stream.is_whole = True
        if stream.is_chunked:
            stream.protocol.data_received(b"0\r\n\r\n")

    def _on_reset(self, event: StreamReset) -> None:
        stream = self._sender.streams.get(event.stream_id)
        if stream is not None:
            self._sender.forget(stream)
        if not event.remote_reset:
            self._frames.reset()  # the library refused what the client sent (CVE-2025-8671)

    def _on_window(self, event: WindowUpdated) -> None:
        if (event.delta or 0) < _TINY_INCREMENT_BYTES:
            self._frames.control()
        if event.stream_id:
            stream = self._sender.streams.get(event.stream_id)
            if stream is not None:
                self._sender.ready[stream] = None
        else:
            self._sender.wake_all()

    def _on_settings(self, event: RemoteSettingsChanged) -> None:
        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            self._sender.wake_all()

    def _on_goodbye(self, event: ConnectionTerminated) -> None:
        """Answer what the client has requested before it leaves."""
        self._leaving = True

    # --- the end ----------------------------------------------------------------------------------

    def refuse(self, reason: str, code: ErrorCodes | None) -> None:
        """Refuse a connection: count it, and close it. `code` None: the library has said why."""
        if self._finished:
            return
        counters = self._context.counters
        counters.http2_refused[reason] = counters.http2_refused.get(reason, 0) + 1
        self._context.log_rate_limited(f"refused an HTTP/2 connection: {reason}", "", self.peer)
        self._end(code)

    def _end(self, code: ErrorCodes | None) -> None:
        """Close the connection behind a GOAWAY, and end its streams."""
        self._finished = True
        for stream in tuple(self._sender.streams.values()):
            self._sender.forget(stream)
        if code is not None:
            self._sender.write([self._goodbye(code)])
        else:
            self._sender.write([])
        if self._sender.transport is not None:
            self._sender.transport.close()

    def on_flushed(self) -> None:
        """End a connection that is leaving, behind its last stream."""
        if self._leaving and not self._sender.streams and not self._finished:
            self._end(ErrorCodes.NO_ERROR)

    def _goodbye(self, code: ErrorCodes) -> bytes:
        """Return a GOAWAY. The library would send nothing behind its own, but the streams go on."""
        frame = GoAwayFrame(0, last_stream_id=self._h2.highest_inbound_stream_id, error_code=code)
        return frame.serialize()

    def stop(self) -> None:
        """End with the front, after the responses in flight."""
        if self._finished or self._leaving:
            return
        self._leaving = True
        asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        """Say goodbye behind what the streams have by now: some clients read nothing behind it."""
        if not self._finished and self._sender.streams:
            self._sender.flush()
            self._sender.write([self._goodbye(ErrorCodes.NO_ERROR)])
        self._sender.flush()

    def abort(self) -> None:
        """Close at once."""
        if self._sender.transport is not None:
            self._sender.transport.abort()

    def sweep(self, tick: int) -> None:
        """Enforce the timeouts of the connection, every other second. Those of its requests are
        their virtual connections'."""
        waited = self._clock.waited(tick, self.peer.responses)
        if self.peer.unread_bytes or self._finished:
            if waited > STALL_SECONDS:
                self._context.counters.stalled += 1
                self.abort()
        elif not self._sender.streams:
            is_new = not self._h2.highest_inbound_stream_id
            if waited > (HEAD_SECONDS if is_new else IDLE_SECONDS):
                self._end(ErrorCodes.NO_ERROR)


class _LibraryConnection(H2Connection):
    """The library's state of a connection. Its streams go on behind a GOAWAY of the client, which
    still reads the responses to its requests (RFC 9113, 6.8); the library would close."""

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> Any:
        before, pending = self.state_machine.state, self.data_to_send()
        found = super()._receive_goaway_frame(frame)
        if before is not ConnectionState.CLOSED:
            self.state_machine.state = before
            self._data_to_send += pending
        return found


def _library_connection() -> H2Connection:
    """Return the state of a connection, with this server's settings."""
    config = H2Configuration(
        client_side=False,
        header_encoding=None,
        validate_inbound_headers=False,  # `virtual_head` does, and resets the stream alone
        normalize_inbound_headers=False,
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
    )
    found = _LibraryConnection(config)
    found.encoder = cast("Any", LiteralEncoder())
    found.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: H2_STREAMS_MAX,
            SettingCodes.INITIAL_WINDOW_SIZE: H2_STREAM_WINDOW_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: HEADER_BLOCK_BYTES_MAX,
        },
    )
    found.decoder.max_header_list_size = HEADER_BLOCK_BYTES_MAX
    return found


_HANDLERS: dict[type[Event], Callable[[Http2Connection, Any], None]] = {
    RequestReceived: Http2Connection._on_request,
    DataReceived: Http2Connection._on_data,
    StreamEnded: Http2Connection._on_end,
    StreamReset: Http2Connection._on_reset,
    WindowUpdated: Http2Connection._on_window,
    RemoteSettingsChanged: Http2Connection._on_settings,
    ConnectionTerminated: Http2Connection._on_goodbye,
}
