"""The events of a stream that arrive while a page of it is read."""

from __future__ import annotations

from polynya.base.limits import SSE_BACKLOG_BYTES_MAX
from polynya.local.api import LiveEvent

Offset = tuple[int, int]


class Room:
    """The bytes of events that all streams of a connection keep."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0


class Backlog:
    """The events of one stream. Those without room are dropped, and have to be read."""

    __slots__ = ("_events", "_room", "_seen", "is_open")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._events: list[LiveEvent] = []
        self._seen: Offset = (0, 0)  # end of the events that were dropped
        self.is_open = False  # a page is being read

    def add(self, event: LiveEvent) -> None:
        """Keep an event, or note where it ends."""
        size = len(event.payload)
        if self.is_open and self._room.used + size <= SSE_BACKLOG_BYTES_MAX:
            self._room.used += size
            self._events.append(event)
        else:
            self.miss(event)

    def miss(self, event: LiveEvent) -> None:
        """Drop an event, and those before it."""
        self._seen = max(self._seen, (event.record, event.byte))
        self._clear()

    def continues(self, at: Offset, *, up_to_date: bool) -> list[LiveEvent] | None:
        """Return the events that follow a page that ends at `at`; None: another page has to be
        read. `up_to_date`: the page reached the tail."""
        events = [
            event for event in self._events if (event.record, event.byte) > at or event.closed
        ]
        self._clear()
        follows = (events[0].begin_record, events[0].begin_byte) == at if events else up_to_date
        return events if follows and self._seen <= at else None

    def reset(self) -> None:
        """Forget all events: another incarnation follows, or nothing."""
        self._seen = (0, 0)
        self._clear()

    def _clear(self) -> None:
        self._room.used -= sum(len(event.payload) for event in self._events)
        self._events = []
