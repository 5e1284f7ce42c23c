"""One connection of the text protocol: frames in, one response each, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol, cast

from polynya.base.errors import PolynyaError
from polynya.front.common.pipeline import ReadPressure, ResponseQueue
from polynya.front.common.unauthenticated import AUTHENTICATION_SECONDS
from polynya.front.text.counters import TextCounters
from polynya.front.text.gate import Caller
from polynya.front.text.protocol import (
    BadCommand,
    BadFrame,
    TextCommand,
    pack_frame,
    parse_command,
    take_frames,
)
from polynya.front.text.topics import TextError, Topics, fault
from polynya.service.api import Service

REQUESTS_MAX = 64  # pipelined and not answered, and started in one turn of the loop; while there
# are as many, the connection is not read
STALL_SECONDS = 30  # for the rest of a frame, and for a client to read a response


class ConnectionOwner(Protocol):
    """The front that a connection belongs to."""

    @property
    def service(self) -> Service: ...
    @property
    def topics(self) -> Topics: ...
    @property
    def counters(self) -> TextCounters: ...
    @property
    def is_tls(self) -> bool: ...

    def now(self) -> float: ...

    def caller(self) -> Caller: ...

    def admit(self, connection: TextConnection) -> bool: ...

    def forget(self, connection: TextConnection) -> None: ...

    def authenticated(self, connection: TextConnection) -> None: ...

    def late(self, connection: TextConnection) -> None: ...

    def malformed(self, connection: TextConnection, why: str) -> None: ...

    def unexpected(self, error: Exception) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


class TextConnection(asyncio.Protocol):
    """A connection of a client. It runs pipelined PUTs together; any other command waits for those
    before it, and they for it. Frames beyond `REQUESTS_MAX` stay in the buffer until a later turn of
    the loop."""

    def __init__(self, front: ConnectionOwner) -> None:
        self.remote = ""
        self._front = front
        self._responses = ResponseQueue(self._on_sent)
        self._responses.is_watched = True
        self._pressure = ReadPressure()
        self._caller: Caller = front.caller()
        self._opened = front.now()
        self._buffer = bytearray()
        self._more = False  # the buffer may begin with a whole frame
        self._waiting: deque[bytes] = deque()
        self._alone = False  # a command other than PUT runs
        self._ending = False
        self._last = ""  # the response after all others
        self._pumps = False  # at the next turn of the loop
        self._partial_since = 0.0  # a frame has begun
        self._unread_since = 0.0  # the client does not read its responses

    @property
    def is_idle(self) -> bool:
        """Report whether no request waits or runs."""
        return not (self._waiting or self._responses.in_flight or self._more)

    @property
    def is_unauthenticated(self) -> bool:
        """Report whether the client has to authenticate, and has not."""
        return self._caller.is_unknown

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast(asyncio.Transport, transport)
        self._responses.transport = self._pressure.transport = made
        self.remote = str((transport.get_extra_info("peername") or ("?",))[0])
        if not self._front.admit(self):
            self._responses.write(self._framed("ERR too many connections; retry later"))
            self._responses.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._responses.end()
        self._pressure.transport = None
        self._forget_requests()
        self._caller.release()
        self._front.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        self._buffer += data
        self._more = True
        self._pump()

    def eof_received(self) -> bool:
        self._ending = True
        self._finish()
        return not self._front.is_tls  # the responses in flight are sent; TLS cannot do that

    def pause_writing(self) -> None:
        self._unread_since = self._front.now()
        self._pressure.steer(full=True)

    def resume_writing(self) -> None:
        self._unread_since = 0.0
        self._pump()

    def sweep(self, now: float) -> None:
        """End a connection whose client neither completes a frame nor reads its responses, or does
        not authenticate."""
        partial = 0.0 if self._pressure.is_paused else self._partial_since
        since = self._unread_since or partial
        if since and now - since > STALL_SECONDS and self._responses.transport is not None:
            self._front.counters.timeouts += 1
            self.abort()
        elif self.is_unauthenticated and now - self._opened > AUTHENTICATION_SECONDS:
            self._front.late(self)
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._responses.transport is not None:
            self._responses.transport.abort()

    def stop(self) -> None:
        """Close after the responses in flight."""
        self._ending = True
        self._forget_requests()
        self._finish()

    def _forget_requests(self) -> None:
        self._waiting.clear()
        self._buffer.clear()
        self._more = False

    def _take(self) -> None:
        """Take the whole frames there is room for from the buffer. After an invalid one, the
        connection ends."""
        room = REQUESTS_MAX - len(self._waiting) - self._responses.in_flight
        if not self._more or room <= 0:
            return
        frames: list[bytes] = []
        try:
            while some := take_frames(self._buffer, room - len(frames)):
                frames += some
            self._more = len(frames) == room
        except BadFrame as bad:
            self._front.malformed(self, str(bad))
            self._last = "ERR invalid frame length"
            self._ending, self._more = True, False
        self._waiting += frames
        if self._more or not self._buffer:
            self._partial_since = 0.0
        elif frames or not self._partial_since:
            self._partial_since = self._front.now()

    def _pump(self) -> None:
        """Start what may run now, and read on if there is room."""
        self._pumps = False
        self._take()
        while self._waiting and not (
            self._alone or self._unread_since or self._responses.in_flight >= REQUESTS_MAX
        ):
            frame = self._waiting[0]
            try:
                command = parse_command(frame)
                if command.verb != "PUT" and self._responses.in_flight:
                    break
                self._waiting.popleft()
                self._start(command, len(frame))
            except (BadCommand, TextError) as wrong:
                if self._waiting and self._waiting[0] is frame:
                    self._waiting.popleft()
                self._answer(self._responses.take(), str(wrong))
        in_flight = self._responses.in_flight
        if self._more and not (self._waiting or in_flight):
            self._pump_soon()
        is_full = len(self._waiting) + in_flight >= REQUESTS_MAX
        self._pressure.steer(full=bool(self._unread_since) or self._more or is_full)
        self._finish()

    def _pump_soon(self) -> None:
        """Pump at the next turn of the loop, so that others have theirs."""
        if not self._pumps:
            self._pumps = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _start(self, command: TextCommand, size: int) -> None:
        """Start a command. Raises `TextError` before it had any effect."""
        self._front.counters.count(command.verb)
        if command.verb != "AUTH":
            self._caller.check(command, size)
        if command.verb != "PUT":
            self._alone = True
            self._front.spawn(self._run(command, self._responses.take()))
            return
        number = self._responses.take()
        try:
            self._front.topics.put(command, lambda response: self._answer(number, response))
        except TextError as wrong:
            self._answer(number, str(wrong))

    async def _run(self, command: TextCommand, number: int) -> None:
        response = "ERR the node is stopping"
        try:
            if command.verb == "AUTH":
                response = await self._caller.authenticate(command.argument)
                self._front.authenticated(self)
            else:
                if command.verb == "REGISTER":
                    await self._caller.check_quota(self._front.service, command.argument)
                response = await self._front.topics.run(command)
        except TextError as wrong:
            response = str(wrong)
        except PolynyaError as error:
            response = fault(error)
        except Exception as error:  # noqa: BLE001 (the client must get a response)
            self._front.unexpected(error)
            response = fault(error)
        finally:
            self._alone = False
            self._answer(number, response)
            self._pump()

    def _answer(self, number: int, response: str) -> None:
        """Send a response when its turn comes."""
        self._responses.send(number, self._framed(response))

    def _on_sent(self) -> None:
        """Start the requests that wait for the responses that were sent."""
        if self._waiting or self._more or self._pressure.is_paused:
            self._pump_soon()
        self._finish()

    def _framed(self, response: str) -> bytes:
        if response.startswith("ERR"):
            self._front.counters.errors += 1
        frame = pack_frame(response)
        self._caller.charge(len(frame))
        return frame

    def _finish(self) -> None:
        if self._ending and self.is_idle:
            if self._last:
                self._responses.write(self._framed(self._last))
                self._last = ""
            self._responses.close()
