"""One Kafka connection: turns bytes into requests, sends their answers in order, bounds its memory.

A large request is received into a buffer of its own, which grows as it arrives, small ones into a
shared one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

from polynya.base.limits import (
    KAFKA_OPEN_REQUEST_BYTES_MAX,
    KAFKA_REQUEST_BYTES_MAX,
    KAFKA_SMALL_REQUEST_BYTES_MAX,
    PIPELINED_REQUESTS_MAX,
)
from polynya.front.common.pipeline import IdleClock, ReadPressure, ResponseQueue
from polynya.front.common.unauthenticated import AUTHENTICATION_SECONDS
from polynya.front.kafka.auth.caller import OPEN, Caller
from polynya.front.kafka.auth.handlers import authenticate_raw
from polynya.front.kafka.call import PRODUCE, Call, Session
from polynya.front.kafka.connections import Connections
from polynya.front.kafka.dispatch import dispatch
from polynya.front.kafka.request_memory import Frame, Holding
from polynya.wire.kafka.primitives import Malformed

_SHARED_BYTES = 64 * 1024
_LENGTH, _KEY = 4, 2
IDLE_SECONDS = 600  # between two requests, as Kafka's default; clients reconnect silently
PARTIAL_SECONDS = 60  # without a byte of a request that has begun
STALL_SECONDS = 60  # without reading a byte of the answers
THROTTLE_SECONDS_MAX = 30.0  # at a time; a larger debt is charged again with the next request
_UNREAD_BYTES_MAX = 1024 * 1024  # answers in the transport; beyond it requests are not read


class RequestReader:
    """The bytes of a connection as whole requests: small ones out of a shared buffer, a large one
    out of a frame of its own. `begin` begins the frame of a request from its first bytes."""

    def __init__(self, begin: Callable[[memoryview, int], Frame]) -> None:
        self.frame: Frame | None = None  # a large request that arrives
        self._begin = begin
        self._shared = bytearray(_SHARED_BYTES)
        self._at = self._filled = 0  # the bytes of `_shared` that are no request yet
        self.is_empty = True  # there are none

    @property
    def is_partial(self) -> bool:
        """Report whether there are bytes of a request."""
        return self.frame is not None or self._filled > self._at

    def room(self) -> memoryview:
        """Return the place of the next bytes."""
        if self.frame is not None:
            return self.frame.room()
        if self._at:
            left = self._filled - self._at
            self._shared[:left] = self._shared[self._at : self._filled]
            self._at, self._filled = 0, left
        return memoryview(self._shared)[self._filled :]

    def received(self, size: int) -> tuple[memoryview, Holding] | None:
        """Count bytes that came into `room`; return the large request that they complete."""
        if self.frame is None:
            self._filled += size
            return None
        frame = self.frame
        whole = frame.received(size)
        if whole is None:
            return None
        self.frame = None
        return whole, frame.holding

    def next(self, check_size: Callable[[int, int], None]) -> memoryview | None:
        """Take the next request out of the shared buffer, or begin a frame for one that does not
        fit; None: more bytes are needed. `check_size` gets the size of a request that is larger
        than before authentication, and its key. Raises Malformed."""
        begin = self._at + _LENGTH
        if self.frame is not None or self._filled < begin:
            return None
        view = memoryview(self._shared)
        size = int.from_bytes(view[self._at : begin], signed=True)
        if not 8 <= size <= KAFKA_REQUEST_BYTES_MAX:
            raise Malformed(f"a request of {size} bytes; expected 8 to {KAFKA_REQUEST_BYTES_MAX}")
        end = begin + size
        if size > KAFKA_OPEN_REQUEST_BYTES_MAX:
            if self._filled < begin + _KEY:
                return None
            check_size(size, int.from_bytes(view[begin : begin + _KEY], signed=True))
        if end <= self._filled:
            self._at, self.is_empty = end, end == self._filled
            return memoryview(bytes(view[begin:end]))
        if _LENGTH + size > _SHARED_BYTES:
            self.frame = self._begin(view[begin : self._filled], size)
            self._at = self._filled = 0
        return None

    def drop(self) -> None:
        """Drop what was received."""
        self._at = self._filled = 0
        frame, self.frame = self.frame, None
        if frame is not None:
            frame.holding.release()


class Connection(asyncio.BufferedProtocol):
    """A connection of a Kafka client."""

    def __init__(self, owner: Connections) -> None:
        self.context = owner.context
        self.session = Session()
        self.caller: Caller = owner.caller()
        self.is_ending = False  # no further requests are read; those in work are answered at once
        self._owner = owner
        self._clock = IdleClock(owner.ticks)
        self._pressure = ReadPressure()
        self.responses = ResponseQueue(self._on_sent)
        self._reader = RequestReader(lambda first, size: owner.begin(self, first, size))
        self._muted = False  # the caller is over its limits: requests are not read
        self._held = False  # a request is decoded in a thread: the next ones wait for it

    # --- transport callbacks --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        self.responses.transport = self._pressure.transport = made
        made.set_write_buffer_limits(_UNREAD_BYTES_MAX)
        if not self._owner.admit(self):
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._end()
        self._pressure.transport = None
        self.responses.end()
        self._reader.drop()
        self.session.failed.clear()
        self.context.fetch_sessions.close(self.session.fetches)
        if self.session.repeated is not None:
            self.session.repeated.end()
        self.caller.release()
        self._owner.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, size: int) -> None:
        self._clock.touch()
        if self.is_ending:
            self._reader.drop()
            return
        self._process(self._reader.received(size))

    def eof_received(self) -> bool:
        self.close()
        return False

    def pause_writing(self) -> None:
        self.responses.write_paused = True
        self.steer()

    def resume_writing(self) -> None:
        self.responses.resume_writing()
        self.steer()

    # --- requests -------------------------------------------------------------------------------

    def _process(self, large: tuple[memoryview, Holding] | None = None) -> None:
        """Begin a large request, and those that have come behind it into the shared buffer."""
        reader, responses = self._reader, self.responses
        try:
            if large is not None:
                self._begin(*large)
            while not (self.is_ending or self._muted or self._held):
                if responses.next - responses.sent >= PIPELINED_REQUESTS_MAX:
                    break
                data = reader.next(self._check_size)
                if data is None:
                    break
                self._begin(data, None)
                if reader.is_empty:
                    break
        except Malformed as error:
            self.complain("closed a Kafka connection: the request is malformed", error)
            self.close()
        self.steer()

    def _check_size(self, size: int, key: int) -> None:
        """Refuse a request by the size and the key that it begins with. Raises Malformed."""
        most = KAFKA_REQUEST_BYTES_MAX if key == PRODUCE else KAFKA_SMALL_REQUEST_BYTES_MAX
        about = f"with key {key}"
        if self.caller.is_unknown or self.session.is_sasl_raw:
            most, about = KAFKA_OPEN_REQUEST_BYTES_MAX, "before authentication"
        elif key in OPEN:
            most = KAFKA_OPEN_REQUEST_BYTES_MAX
        if size > most:
            raise Malformed(f"a request of {size} bytes {about}; the limit is {most}")

    def _begin(self, data: memoryview, holding: Holding | None) -> None:
        responses = self.responses
        number = responses.next
        responses.next = number + 1
        if not number:
            self.session.opened = asyncio.get_running_loop().time()
        if self.session.is_sasl_raw:
            self.context.spawn(authenticate_raw(self, number, data, holding))
            return
        try:
            dispatch(Call(self, number, data, holding))
        except Malformed:
            if holding is not None:
                holding.release()
            raise

    def steer(self) -> None:
        """Pause reading while too much is in work or unread, and resume it afterwards."""
        responses, frame, memory = self.responses, self._reader.frame, self._owner.memory
        full = responses.write_paused or self._muted or self._held
        full = full or responses.next - responses.sent >= PIPELINED_REQUESTS_MAX
        if frame is not None:
            if frame.is_stuck:
                frame.go_on()
            full = full or frame.is_stuck
        elif not full and memory.is_short:
            full = memory.is_full_for(self.caller.key(self.remote))
        if full == self._pressure.is_paused or not self._pressure.steer(full=full):
            return
        if full:
            responses.is_watched = True
            self._owner.waiting.add(self)
        else:
            self._owner.waiting.discard(self)
            self._clock.touch()

    def mute(self, seconds: float) -> int:
        """Read no requests for some time; return it in milliseconds."""
        seconds = min(seconds, THROTTLE_SECONDS_MAX)
        if not self._muted:
            self._muted = True
            asyncio.get_running_loop().call_later(seconds, self._unmute)
            self.steer()
        return math.ceil(seconds * 1000)

    def _unmute(self) -> None:
        self._muted = False
        self._clock.touch()
        self._process()

    def hold(self) -> None:
        """Take no further request until `go_on_after`."""
        self._held = True

    def go_on_after(self, error: BaseException | None) -> None:
        """Take the next requests after a held one that was decoded, or close if it failed."""
        self._held = False
        if error is None:
            self._process()
            return
        if isinstance(error, Malformed):
            self.complain("closed a Kafka connection: the request is malformed", error)
        self.close()

    # --- answers --------------------------------------------------------------------------------

    def _on_sent(self) -> None:
        """Continue after an answer that something waits for."""
        responses, session = self.responses, self.session
        if session.failed:
            session.forget_failed(responses.sent)
        if self.is_ending and not responses.in_flight:
            self.close()
            return
        if self._pressure.is_paused and self._reader.is_partial:  # not now: a request may run
            asyncio.get_running_loop().call_soon(self._process)
        self.steer()
        responses.is_watched = bool(session.failed or self.is_ending or self._pressure.is_paused)

    def _end(self) -> None:
        self.is_ending = self.responses.is_watched = True
        if self.session.parked is not None:
            self.session.parked.wake()

    def stop(self) -> None:
        """Read no further requests, and close after the answers to those in work."""
        self._end()
        if not self.responses.in_flight:
            self.close()

    def close(self) -> None:
        """Close after the bytes that were written."""
        self.is_ending = True
        self._reader.drop()
        self.responses.close()
        self.responses.end()

    def abort(self) -> None:
        """Close at once."""
        self.is_ending = True
        transport = self._pressure.transport
        if transport is not None:
            transport.abort()

    def authenticated(self) -> None:
        """Count the connection among those of known callers."""
        self._owner.authenticated(self)

    def complain(self, said: str, error: Exception | None = None) -> None:
        """Log why the connection is closed."""
        self._owner.complain(said, self, error)

    @property
    def remote(self) -> str:
        """The peer's address."""
        transport = self._pressure.transport
        found = transport.get_extra_info("peername") if transport is not None else None
        return str(found[0]) if isinstance(found, tuple) else ""

    def sweep(self, tick: int) -> None:
        """Close a connection that is idle for long, or stuck in a request or an answer."""
        responses = self.responses
        if self._pressure.transport is None:
            return
        unread, why = responses.unread_bytes, ""
        waited = self._clock.waited(tick, responses)
        if unread and waited > STALL_SECONDS:
            why = "the client does not read"
        elif self._reader.is_partial and not self._pressure.is_paused:
            if waited > PARTIAL_SECONDS:
                why = "a request stays incomplete"
        elif not responses.in_flight and waited > IDLE_SECONDS:
            self.close()
        elif self.caller.is_unknown and tick - self._clock.opened > AUTHENTICATION_SECONDS:
            why = "no authentication in time"
        if why:
            self.complain(f"closed a Kafka connection: {why}")
            self.abort()
