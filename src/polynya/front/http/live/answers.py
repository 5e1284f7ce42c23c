"""The two answers to a reader of many streams: an event stream, or the page of a long-poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from polynya.base.limits import LIVE_POLL_BYTES, LIVE_POLL_GATHER_SECONDS
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.live_response import LiveResponse
from polynya.wire.http.live_events import poll_event, poll_page, with_id


class Answer(Protocol):
    """The answer that a reader of many streams fills."""

    @property
    def finished(self) -> bool:
        """Report whether it takes no more events."""
        ...

    def begin(self, cursor_id: str, on_end: Callable[[], None], *, resumed: bool) -> None:
        """Begin the answer of a cursor. `on_end` is called when the connection is lost or an event
        stream ends. `resumed`: the client goes on from an earlier answer."""
        ...

    def event(self, event_id: str, rest: bytes, *, wakes: bool) -> None:
        """Add an event. `wakes`: it is news for a client that waits."""
        ...

    def unplaced(self, rest: bytes) -> None:
        """Add an event of a stream without a position."""
        ...

    def all_notified(self, streams: int) -> None:
        """Handle that no stream has a turn now. May be called more than once."""
        ...

    def sweep(self, tick: int) -> None:
        """Send keep-alives, and end the answer after its lifetime."""
        ...

    def finish(self) -> None:
        """End the answer; the client resumes."""
        ...

    def end_with_error(self, code: str, message: str) -> None:
        """End with an error."""
        ...


class EventStream:
    """Server-sent events, written as they come."""

    __slots__ = ("_cursor_id", "_is_notified", "_response", "_responses")

    def __init__(self, exchange: Exchange) -> None:
        self._response = LiveResponse(exchange)
        self._responses = exchange.peer.responses
        self._cursor_id = ""
        self._is_notified = False  # the client knows that it has been told of all streams

    @property
    def finished(self) -> bool:
        return self._response.finished

    def begin(self, cursor_id: str, on_end: Callable[[], None], *, resumed: bool) -> None:
        if self._responses.transport is None:
            self._response.finished = True
            on_end()
            return
        self._cursor_id = cursor_id
        self._response.begin([], on_end)
        if resumed:  # the client must not keep the id of a connection that is over
            self._response.write(f"id:{cursor_id}\n\n".encode())

    def event(self, event_id: str, rest: bytes, *, wakes: bool) -> None:
        response, transport = self._response, self._responses.transport
        self._cursor_id = event_id
        if transport is not None:
            transport.write(with_id(event_id, rest, chunked=response.chunked))
        response.wrote = True

    def unplaced(self, rest: bytes) -> None:
        self._response.write(rest)

    def all_notified(self, streams: int) -> None:
        if not self._is_notified:
            self._is_notified = True
            event = f'event: control\ndata:{{"allUpToDate":true,"streams":{streams}}}\n\n'.encode()
            self._responses.write(with_id(self._cursor_id, event, chunked=self._response.chunked))

    def sweep(self, tick: int) -> None:
        self._response.sweep(tick)

    def finish(self) -> None:
        self._response.finish()

    def end_with_error(self, code: str, message: str) -> None:
        self._response.end_with_error(code, message)


class PolledPage:
    """The events of a long-poll. It is `done` when it was woken and no stream has a turn, a second
    after it was woken, or when it is full. Events after that are dropped: the cursor of the page is
    that of its last event."""

    __slots__ = (
        "_cursor_id",
        "_events",
        "_is_notified",
        "_is_woken",
        "_resumed",
        "_size",
        "_timer",
        "done",
        "finished",
        "goes_on",
    )

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._size = 0
        self._cursor_id = ""
        self._resumed = self._is_notified = self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None
        self.finished = False
        self.goes_on = True  # the next page may, with the same streams
        self.done = asyncio.Event()

    def begin(self, cursor_id: str, on_end: Callable[[], None], *, resumed: bool) -> None:
        self._cursor_id, self._resumed = cursor_id, resumed

    def event(self, event_id: str, rest: bytes, *, wakes: bool) -> None:
        if self.finished:
            return
        self._cursor_id = event_id
        self._add(poll_event(event_id, rest))
        if wakes:
            self.wake()

    def unplaced(self, rest: bytes) -> None:
        """Add an event that the client of a first page waits for. A later one has heard it: it is
        no news, or a list with a missing stream would never wait."""
        if self.finished:
            return
        self._add(poll_event("", rest))
        if not self._resumed:
            self.wake()

    def _add(self, event: bytes) -> None:
        self._events.append(event)
        self._size += len(event)
        if self._size >= LIVE_POLL_BYTES:
            self.finish()

    def wake(self) -> None:
        """Answer as soon as no stream has a turn, or after a second: there is news, or the wait is
        over."""
        if self.finished or self._is_woken:
            return
        self._is_woken = True
        seconds = 0.0 if self._is_notified else LIVE_POLL_GATHER_SECONDS
        self._timer = asyncio.get_running_loop().call_later(seconds, self.finish)

    def all_notified(self, streams: int) -> None:
        self._is_notified = True
        if self._is_woken:
            self.finish()

    def sweep(self, tick: int) -> None:
        """A page has a timer of its own."""

    def finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        if self._timer is not None:
            self._timer.cancel()
        self.done.set()

    def end_with_error(self, code: str, message: str) -> None:
        """Answer with the events; the next request gets the error as its status."""
        self.goes_on = False
        self.finish()

    def body(self) -> bytes:
        """Return the page, and give its events away."""
        events, self._events = self._events, []
        return poll_page(self._cursor_id, events, up_to_date=self._is_notified)
