"""One Kafka connection: turns bytes into requests, sends their answers in order, bounds its memory.

A large request is received into a buffer of its own, which grows as it arrives, small ones into a
shared one.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import cast

from polynya.base.limits import (
    KAFKA_OPEN_REQUEST_BYTES_MAX,
    KAFKA_REQUEST_BYTES_MAX,
    KAFKA_SMALL_REQUEST_BYTES_MAX,
    PIPELINED_REQUESTS_MAX,
)
from polynya.front.common.unauthenticated import AUTHENTICATION_SECONDS
from polynya.front.kafka.auth.caller import OPEN, Caller
from polynya.front.kafka.auth.handlers import authenticate_raw
from polynya.front.kafka.call import Call, Session, Slot
from polynya.front.kafka.connections import Connections
from polynya.front.kafka.dispatch import PRODUCE, dispatch
from polynya.front.kafka.request_memory import Frame, Holding
from polynya.wire.kafka.primitives import Malformed

_SHARED_BYTES = 64 * 1024
_LENGTH, _KEY = 4, 2
IDLE_SECONDS = 600  # between two requests, as Kafka's default; clients reconnect silently
PARTIAL_SECONDS = 60  # without a byte of a request that has begun
STALL_SECONDS = 60  # without reading a byte of the answers
THROTTLE_SECONDS_MAX = 30.0  # at a time; a larger debt is charged again with the next request
_UNREAD_BYTES_MAX = 1024 * 1024  # answers in the transport; beyond it requests are not read


class Connection(asyncio.BufferedProtocol):
    """A connection of a Kafka client."""

    def __init__(self, owner: Connections) -> None:
        self.context = owner.context
        self.session = Session()
        self._owner = owner
        self.transport: asyncio.Transport | None = None
        self.caller: Caller = owner.caller()
        self._shared = bytearray(_SHARED_BYTES)
        self._filled = 0  # bytes of `_shared`
        self._frame: Frame | None = None  # a large request that arrives
        self._slots: deque[Slot] = deque()
        self._since = self._opened = owner.tick
        self._unread = 0
        self._write_paused = False
        self._read_paused = False
        self._muted = False  # the caller is over its limits: requests are not read
        self._held = False  # a request is decoded in a thread: the next ones wait for it
        self._over = False  # no further requests are read
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()

    # --- transport callbacks --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(_UNREAD_BYTES_MAX)
        if not self._owner.admit(self):
            self._over = True
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._end()
        self._release_frame()
        self._slots.clear()
        self.session.failed.clear()
        self._writable.set()
        self.caller.release()
        self._owner.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame.room()
        return memoryview(self._shared)[self._filled :]

    def buffer_updated(self, size: int) -> None:
        self._since = self._owner.tick
        if self._over:
            self._filled = 0
            return
        self._guarded(lambda: self._received(size))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Malformed as error:
            self._complain(error)
            self.close()

    def _complain(self, error: Malformed) -> None:
        self.complain("closed a Kafka connection: the request is malformed", error)

    def eof_received(self) -> bool:
        return False  # close

    def pause_writing(self) -> None:
        self._write_paused = True
        self._writable.clear()
        self._steer()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._writable.set()
        self._steer()

    # --- requests -------------------------------------------------------------------------------

    def _received(self, size: int) -> None:
        frame = self._frame
        if frame is None:
            self._filled += size
            self._split()
            return
        whole = frame.received(size)
        if whole is not None:
            self._frame = None
            self._request(whole, frame.holding)
            self._steer()
        elif frame.is_stuck:
            self._steer()

    def _split(self) -> None:
        """Take whole requests off the shared buffer; begin a frame for one that does not fit."""
        at, view = 0, memoryview(self._shared)
        while self._may_take and self._filled - at >= _LENGTH:
            size = int.from_bytes(view[at : at + _LENGTH], signed=True)
            if not 8 <= size <= KAFKA_REQUEST_BYTES_MAX:
                raise Malformed(
                    f"a request of {size} bytes; expected 8 to {KAFKA_REQUEST_BYTES_MAX}"
                )
            begin, end = at + _LENGTH, at + _LENGTH + size
            if size > KAFKA_OPEN_REQUEST_BYTES_MAX:
                if self._filled < begin + _KEY:
                    break
                self._check_size(size, int.from_bytes(view[begin : begin + _KEY], signed=True))
            if end <= self._filled:
                self._request(memoryview(bytes(view[begin:end])), None)
                at = end
            elif _LENGTH + size > _SHARED_BYTES:
                self._frame = self._owner.begin(self, view[begin : self._filled], size)
                at = self._filled
            else:
                break
        left = self._filled - at
        self._shared[:left] = bytes(view[at : self._filled])
        self._filled = left
        self._steer()

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

    @property
    def _may_take(self) -> bool:
        busy = self._over or self._muted or self._held or self._frame is not None
        return not busy and len(self._slots) < PIPELINED_REQUESTS_MAX

    def _go_on(self) -> None:
        """Take up the requests that waited in the shared buffer."""
        if self._filled and self._frame is None:
            self._guarded(self._split)

    def _request(self, data: memoryview, holding: Holding | None) -> None:
        slot = Slot(self, holding)
        self._slots.append(slot)
        if self.session.is_sasl_raw:
            self.context.spawn(authenticate_raw(self, slot, bytes(data)))
            return
        try:
            dispatch(Call(self, slot, data))
        except Malformed:
            slot.drop()
            raise

    def _steer(self) -> None:
        """Pause reading while too much is in work or unread, and resume it afterwards."""
        full = len(self._slots) >= PIPELINED_REQUESTS_MAX or self._write_paused
        full = full or self._muted or self._held
        if self._frame is not None:
            full = full or self._frame.is_stuck
        elif not full and self._owner.memory.is_short:
            full = self._owner.memory.is_full_for(self.caller.key(self.remote))
        transport = self.transport
        if transport is None or full == self._read_paused or transport.is_closing():
            return
        self._read_paused = full
        if full:
            transport.pause_reading()
            self._owner.waiting.add(self)
        else:
            self._owner.waiting.discard(self)
            self._since = self._owner.tick
            transport.resume_reading()

    def steer(self) -> None:
        """Look again whether to read: the core's budget has changed."""
        if self._frame is not None and self._frame.is_stuck:
            self._frame.go_on()
        self._steer()

    def mute(self, seconds: float) -> int:
        """Read no requests for some time; return it in milliseconds."""
        seconds = min(seconds, THROTTLE_SECONDS_MAX)
        if not self._muted:
            self._muted = True
            asyncio.get_running_loop().call_later(seconds, self._unmute)
            self._steer()
        return math.ceil(seconds * 1000)

    def _unmute(self) -> None:
        self._muted = False
        self._since = self._owner.tick
        self._go_on()
        self._steer()

    def hold(self) -> None:
        """Take no further request until `go_on_after`."""
        self._held = True

    def go_on_after(self, error: BaseException | None) -> None:
        """Take the next requests after a held one that was decoded, or close if it failed."""
        self._held = False
        if error is not None:
            if isinstance(error, Malformed):
                self._complain(error)
            self.close()
            return
        self._go_on()
        self._steer()

    def _release_frame(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None:
            self._owner.release(frame.holding)

    # --- answers --------------------------------------------------------------------------------

    def advance(self) -> None:
        """Send the answers that are next in order."""
        slots, pieces = self._slots, []
        while slots and (answer := slots[0].answer) is not None:
            pieces += answer
            slot = slots.popleft()
            if self.session.failed:
                self.session.forget_failed(slot)
        if pieces and self.transport is not None and not self.transport.is_closing():
            self._since = self._owner.tick
            self.transport.writelines(pieces)
        if self._over and not slots:
            self.close()
        # not now: this may be a request's own pass
        if self._read_paused and self._filled and self._may_take:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._steer()

    def _end(self) -> None:
        self._over = True
        if self.session.parked is not None:
            self.session.parked.wake()

    @property
    def is_ending(self) -> bool:
        """Report whether no further requests are read: those in work are answered at once."""
        return self._over

    def finish(self) -> None:
        """Read no further requests, and close after the answers to those in work."""
        self._end()
        if not self._slots:
            self.close()

    def close(self) -> None:
        """Close after the bytes that were written."""
        self._over = True
        self._release_frame()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    async def wait_writable(self) -> bool:
        """Wait until the client has read earlier answers; return False if it is gone."""
        await self._writable.wait()
        return self.transport is not None

    def release(self, holding: Holding) -> None:
        """Return the memory of a large request."""
        self._owner.release(holding)

    def authenticated(self) -> None:
        """Count the connection among those of known callers."""
        self._owner.authenticated(self)

    def complain(self, said: str, error: Exception | None = None) -> None:
        """Log why the connection is closed."""
        self._owner.complain(said, self, error)

    @property
    def is_open(self) -> bool:
        return self.transport is not None

    @property
    def remote(self) -> str:
        """The peer's address."""
        found = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(found[0]) if isinstance(found, tuple) else ""

    @property
    def is_idle(self) -> bool:
        return not self._slots

    def sweep(self, tick: int) -> None:
        """Close a connection that is idle for long, or stuck in a request or an answer."""
        transport = self.transport
        if transport is None:
            return
        unread = transport.get_write_buffer_size()
        if unread != self._unread:
            self._unread, self._since = unread, tick
        waited = tick - self._since
        if unread and waited > STALL_SECONDS:
            self.complain("closed a Kafka connection: the client does not read")
            transport.abort()
        elif (self._frame is not None or self._filled) and not self._read_paused:
            if waited > PARTIAL_SECONDS:
                self.complain("closed a Kafka connection: a request stays incomplete")
                transport.abort()
        elif not self._slots and waited > IDLE_SECONDS:
            self.close()
        elif self.caller.is_unknown and tick - self._opened > AUTHENTICATION_SECONDS:
            self.complain("closed a Kafka connection: no authentication in time")
            transport.abort()
