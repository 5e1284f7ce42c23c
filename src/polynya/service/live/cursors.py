"""The cursors of readers of many streams: the position of each stream at each of the last events.

The id of an event is `NAME.N`: the cursor's random name, and the number of the event. A reader that
reconnects, to any core of the cluster, takes its cursor as it was at that event.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable
from copy import copy

import msgspec

from polynya.base.limits import (
    LIVE_CURSOR_BYTES_PER_CORE,
    LIVE_CURSOR_EVENTS_MAX,
    LIVE_CURSOR_SECONDS,
)
from polynya.service.node_service import NodeService

LIVE_CURSOR = 71  # messages between cores
_ID = re.compile(r"([0-9a-f]{24})\.([0-9a-f]{8})", re.ASCII)
_POSITION_BYTES = 200  # of memory, beside the name
_UNDO = 3  # numbers of an entry of the undo log


class State:
    """The knowledge that a client has of a stream."""

    UNTOLD = 0  # nothing
    OPEN = 1
    CLOSED = 2
    DELETED = 3


class StreamPosition(msgspec.Struct, array_like=True):
    """The position of a reader in one incarnation of a stream. `UNTOLD`: it begins there, perhaps
    at a special position."""

    name: str  # canonical
    uid: int
    record: int
    byte: int
    state: int = State.UNTOLD


class CursorQuery(msgspec.Struct, array_like=True, frozen=True):
    name: str
    number: int


class Cursor:
    """The positions of one reader. `on_taken` ends its connection, if it has one, or releases it if
    it is parked. `before`: the name of the cursor that it goes on from."""

    __slots__ = ("_added", "_undo", "before", "name", "number", "on_taken", "positions")

    def __init__(self, on_taken: Callable[[], None]) -> None:
        self.name = secrets.token_hex(12)
        self.number = 0  # of the last event
        self.positions: list[StreamPosition] = []
        self.on_taken = on_taken
        self.before = ""
        self._added = array("q")  # for each position: the event after which it was added
        self._undo = array("q")  # for each of the last events: what its stream's position was

    @property
    def event_id(self) -> str:
        """The id of the last event, or of the opening."""
        return f"{self.name}.{self.number:08x}"

    @property
    def size(self) -> int:
        """The bytes of memory that it takes, about."""
        names = sum(len(position.name) for position in self.positions)
        numbers = len(self._undo) + len(self._added)
        return names + len(self.positions) * _POSITION_BYTES + numbers * 8

    def add(self, position: StreamPosition) -> int:
        """Add a stream that the client has not been told of, and return its index."""
        self.positions.append(position)
        self._added.append(self.number)
        return len(self.positions) - 1

    def go_on(self, before: str, positions: list[StreamPosition]) -> None:
        """Begin with the positions of another cursor."""
        self.before = before
        for position in positions:
            self.add(position)

    def move(self, index: int, record: int, byte: int, state: int) -> str:
        """Move a stream to its position after an event, and return the id of that event."""
        position, undo = self.positions[index], self._undo
        undo.extend((index << 2 | position.state, position.record, position.byte))
        if len(undo) >= 2 * _UNDO * LIVE_CURSOR_EVENTS_MAX:
            del undo[: _UNDO * LIVE_CURSOR_EVENTS_MAX]
        position.record, position.byte, position.state = record, byte, state
        self.number = number = self.number + 1
        return f"{self.name}.{number:08x}"

    def at(self, number: int) -> list[StreamPosition] | None:
        """Return the positions as they were at an event; None: that is too long ago."""
        undo = self._undo
        if not self.number - len(undo) // _UNDO <= number <= self.number:
            return None
        positions = [copy(position) for position in self.positions]
        for back in range(1, self.number - number + 1):  # newest first
            begin = len(undo) - _UNDO * back
            packed, record, byte = undo[begin : begin + _UNDO]
            position = positions[packed >> 2]
            position.record, position.byte, position.state = record, byte, packed & 3
        # a stream that began again later has an older position, which decides
        return positions[: bisect_right(self._added, number)]

    def moved_after(self, number: int) -> set[int]:
        """Return the streams that were moved after an event of which `at` knows the positions."""
        begin = len(self._undo) - _UNDO * (self.number - number)
        return {packed >> 2 for packed in self._undo[begin::_UNDO]}


class LiveCursors:
    """The cursors of one core, in use and kept. Create one on every core."""

    def __init__(self, service: NodeService, now: Callable[[], float] = time.monotonic) -> None:
        self._rpc = service.rpc
        self._now = now
        self._used: dict[str, Cursor] = {}
        self._kept: dict[str, tuple[Cursor, float, int]] = {}  # with its end, and its size
        self._kept_bytes = 0
        service.rpc.serve(LIVE_CURSOR, CursorQuery, list[StreamPosition] | None, self._here)

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, on_taken: Callable[[], None]) -> Cursor:
        """Return the cursor of a new connection."""
        cursor = Cursor(on_taken)
        self._used[cursor.name] = cursor
        return cursor

    def keep(self, cursor: Cursor, on_taken: Callable[[], None] | None = None) -> None:
        """Keep the cursor of a connection that has ended, for a while. `on_taken`: called when it
        is used or dropped."""
        if self._used.pop(cursor.name, None) is None:
            return
        cursor.on_taken = on_taken or _nothing  # the connection's own would keep it in memory
        size = cursor.size
        self._kept[cursor.name] = (cursor, self._now() + LIVE_CURSOR_SECONDS, size)
        self._kept_bytes += size
        self._drop_old()

    async def take(self, event_id: str) -> list[StreamPosition] | None:
        """Return the positions at an event, and end the connection that it was sent on; None: no
        core has them. `event_id` is one that `is_event_id` accepts."""
        match = _ID.fullmatch(event_id)
        assert match is not None
        query = CursorQuery(match[1], int(match[2], 16))
        if query.name in self._used or query.name in self._kept:
            return await self._here(query)
        asked = [self._rpc.ask(core, LIVE_CURSOR, query) for core in self._rpc.others()]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, list):
                return answer
            if isinstance(answer, BaseException) and not isinstance(answer, Exception):
                raise answer
        return None

    async def _here(self, query: CursorQuery) -> list[StreamPosition] | None:
        self._drop_old()
        cursor = self._used.get(query.name)
        if cursor is not None:
            cursor.on_taken()  # which keeps it
        cursor, _, _ = self._kept.get(query.name, (None, 0.0, 0))
        if cursor is None:
            return None
        cursor.on_taken()
        # its client has this one, and goes back no further: a client that polls needs two
        if cursor.before in self._kept:
            self._drop(cursor.before)
        return cursor.at(query.number)

    def _drop_old(self) -> None:
        now = self._now()
        for name, (_, end, _) in tuple(self._kept.items()):
            if end > now and self._kept_bytes <= LIVE_CURSOR_BYTES_PER_CORE:
                break
            self._drop(name)

    def _drop(self, name: str) -> None:
        cursor, _, size = self._kept.pop(name)
        self._kept_bytes -= size
        cursor.on_taken()


def cursor_name(event_id: str) -> str:
    """Return the name of the cursor of an event."""
    return event_id.partition(".")[0]


def _nothing() -> None:
    """Do nothing when the cursor is used: its connection is over."""


def is_event_id(text: str) -> bool:
    """Report whether a text has the form of an event's id."""
    return _ID.fullmatch(text) is not None
