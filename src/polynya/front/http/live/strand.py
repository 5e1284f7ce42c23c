"""One stream on a connection with many: attached, read in turns, then live.

It has written everything up to (`record`, `byte`). While it is live, an event is written at once.
An event that cannot be written, since the client is slow or its budget is used up, is read later.
"""

from __future__ import annotations

from typing import Protocol

from polynya.base.names import spelled_name
from polynya.front.http.live.backlog import Backlog, Room
from polynya.front.http.live.showing import Offset, Showing, error_fields
from polynya.front.http.protocol.errors import REFUSALS
from polynya.front.http.routes.decoded_pages import page_up_to
from polynya.local.api import LiveEvent, Page, Position, ReadQuery, Refusal, StreamInfo
from polynya.routing.handle import StreamHandle
from polynya.service.live.cursors import Cursor, State, StreamPosition
from polynya.stream.replies import Code
from polynya.wire.kafka.values import values_type

_TRIES = 3  # to find a stream that is said to be new: a replica may be behind …
_AGAIN_SECONDS = 1.0  # … and the pause between two of them
_MISSING = (Code.NOT_FOUND, Code.GONE)
_START: Offset = (Position.START, 0)
NOW, OVER = 0.0, None  # when the next turn is


class Connection(Protocol):
    """The connection of a strand."""

    room: Room
    records: bool  # events have whole records
    local: bool
    page_bytes: int
    cursor: Cursor

    @property
    def flows(self) -> bool:
        """Report whether events may be written at once."""
        ...

    def enqueue(self, strand: Strand) -> None:
        """Give the strand a turn."""
        ...

    def write(
        self, strand: Strand, rest: bytes, at: Offset, state: int, *, wakes: bool = True
    ) -> None:
        """Write an event of a strand that is at this position behind it. `wakes`: it is news for a
        client that waits."""
        ...

    def write_outside_streams(self, strand: Strand, rest: bytes) -> None:
        """Write an event of a stream without a position."""
        ...

    def allowed_bytes(self) -> int:
        """Return the size of a page. Raises `Failure` while there is no memory for one."""
        ...

    def detach(self, strand: Strand) -> None:
        """Detach a strand from its stream."""
        ...

    def remove(self, strand: Strand) -> None:
        """Remove the strand of a stream that does not exist."""
        ...

    def request_confirmation(self, strand: Strand) -> None:
        """Request that the tail is confirmed."""
        ...


class Strand:
    """A stream of a connection. `is_live`: its events are written as they come. `is_over`: it is
    closed, or it does not exist now. Else it needs a turn, to attach or to read."""

    __slots__ = (
        "_backlog",
        "_byte",
        "_connection",
        "_is_attached",
        "_is_gone",
        "_is_listed",
        "_is_new",
        "_is_quiet",
        "_record",
        "_showing",
        "_skip_to",
        "_tries",
        "_was_closed",
        "index",
        "is_live",
        "is_over",
        "stream",
        "uid",
    )

    def __init__(
        self, connection: Connection, stream: StreamHandle, begin: Offset, *, listed: bool
    ) -> None:
        """`listed`: the client named the stream, and is told if it does not exist."""
        self._connection, self.stream = connection, stream
        self._showing = Showing(
            spelled_name(stream.name),
            records=connection.records,
            bytes_max=connection.page_bytes,
        )
        self._backlog = Backlog(connection.room)
        self._record, self._byte = begin
        self.uid = 0  # of the incarnation that the client knows, or that is attached
        self.index = -1  # of its position in the cursor
        self._is_listed = listed
        self._is_new = True  # the client has been told nothing of this incarnation
        self._is_quiet = False  # the client knows that it is up to date
        self._was_closed = False  # the client knows that this incarnation was closed
        self._is_attached = self.is_live = False
        self._is_gone = False  # deleted, and the client is not told yet
        self.is_over = False
        self._tries = 0
        self._skip_to = 0  # skip events before this record: the offset is beyond the tail

    def resume(self, position: StreamPosition) -> None:
        """Go on at a position that the client has reached."""
        self.uid, self._is_new, self._is_quiet = position.uid, False, True
        self._was_closed = position.state == State.CLOSED
        self._record, self._byte = position.record, position.byte

    def notice(self) -> None:
        """Look for the stream: one of its name is new."""
        self._tries = _TRIES
        if self.is_over:
            self.is_over = False
            self._connection.enqueue(self)

    def stop(self) -> None:
        """End with the connection."""
        self._end()
        self._backlog.reset()

    def fail(self, code: str, message: str) -> float | None:
        """Tell the client that the stream cannot be read, and end it."""
        control = self._showing.control(None, error_fields(code, message))
        self._connection.write_outside_streams(self, control)
        self._end()
        return OVER

    # --- turns ------------------------------------------------------------------------------------

    async def turn(self) -> float | None:
        """Attach if needed, and write one page. Return the seconds until the next turn, or None.
        Raises `Failure` and PolynyaError."""
        if self.is_over or self.is_live:
            return OVER
        if self._is_gone:  # this turn looks for another one
            if not self._is_new:
                self._write_control({"streamDeleted": True}, State.DELETED)
            self._leave()
            self._begin_again()
        if not self._is_attached:
            later = await self._attach()
            if not self._is_attached or self._is_gone:
                return later
        self._backlog.is_open = True
        try:
            asked = self._record
            page = await self._read()
            if not self._is_attached:  # the feed broke, or the connection ended
                return OVER if self.is_over else NOW
            if isinstance(page, Refusal):
                return self._refused(page)
            return await self._page(page, asked)
        finally:
            self._backlog.is_open = False

    async def _attach(self) -> float | None:
        info = await self.stream.attach(self, local=self._connection.local)
        if isinstance(info, Refusal):
            return self._not_there(info)
        known, self.uid, self._is_attached = self.uid, info.uid, True
        if self.is_over:  # the connection has ended meanwhile
            self._leave()
            return OVER
        if known and known != info.uid:
            self._write_control({"streamDeleted": True}, State.DELETED)
            self._begin_again()
        if self._was_closed and info.closed:
            self._end()
            return OVER
        self._was_closed = False
        self._showing.learn(info)
        return NOW

    async def _read(self) -> Page | Refusal:
        connection = self._connection
        query = ReadQuery(
            self.stream.name,
            self._record,
            self._byte,
            connection.allowed_bytes(),
            whole_records=True,
            beyond_tail_waits=True,
            local=connection.local,
            append_times=connection.records,
            batch_times=connection.records,
        )
        return self.stream.read_nowait(query) or await self.stream.read(query)

    async def _page(self, page: Page, asked: int) -> float | None:
        if page.info.uid != self.uid:
            self._is_gone = True
            return NOW
        if asked > page.record:
            self._skip_to = asked
        first = max(asked, page.first_record)
        if self._is_new:
            self._introduce(page, first)
        shown = await self._showing.page(page, first)
        if not self._is_attached:
            return OVER if self.is_over else NOW
        if shown.damage:
            self._record, self._byte = shown.record, shown.byte
            self._write_control(error_fields("KAFKA_BATCH_UNREADABLE", shown.damage))
            return NOW
        page = page_up_to(page, shown)
        self._write_page(page, b"".join(shown.parts))
        if page.closed:
            self._end()
            return OVER
        return OVER if self._go_live(page) else NOW

    def _introduce(self, page: Page, first: int) -> None:
        """Tell the client where a stream that is new to it begins."""
        info = page.info
        self._record, self._byte = min(first, page.record), page.begin_byte
        if self.index < 0:
            begin = StreamPosition(self.stream.name, self.uid, *_START)
            self.index = self._connection.cursor.add(begin)
        self._connection.cursor.positions[self.index].uid = self.uid
        self._is_new = False
        self._is_quiet = not page.spans and page.has_all and not page.closed
        fields: dict[str, object] = {
            "contentType": values_type(info.content_type),
            "streamIncarnation": str(info.uid),
        }
        self._write_control(fields | ({"upToDate": True} if self._is_quiet else {}))

    def _write_page(self, page: Page, payload: bytes) -> None:
        self._record, self._byte = at = page.record, page.byte
        if payload:
            rest = self._showing.data(payload, at, up_to_date=page.has_all)
            self._connection.write(self, rest, at, State.OPEN)
        elif not self._is_quiet and page.has_all and not page.closed:
            self._write_control({"upToDate": True})
        self._is_quiet = page.has_all
        if page.closed:
            self._write_control({"upToDate": True, "streamClosed": True}, State.CLOSED)
        elif page.up_to_date and not page.has_all:
            self._connection.request_confirmation(self)

    def _go_live(self, page: Page) -> bool:
        """Return True if live events continue at the end of the page."""
        at = (self._record, self._byte)
        events = self._backlog.continues(at, up_to_date=page.up_to_date)
        if events is None or self._is_gone or not self._connection.flows:
            return False
        self.is_live = True
        for event in events:
            self.live(event)
        return True

    # --- refusals ---------------------------------------------------------------------------------

    def _refused(self, refusal: Refusal) -> float | None:
        if refusal.code in _MISSING:
            self._is_gone = True
            return NOW
        if refusal.code != Code.TRIMMED:
            return self.fail(REFUSALS.get(refusal.code, "INTERNAL"), refusal.message)
        self._record, self._byte = at = refusal.record, refusal.byte
        trimmed: dict[str, object] = {"streamTrimmed": True}
        if self._is_new:
            self._connection.write_outside_streams(self, self._showing.control(at, trimmed))
        else:
            self._write_control(trimmed)
        return NOW

    def _not_there(self, refusal: Refusal) -> float | None:
        """Handle that no such stream exists now."""
        if self._tries:
            self._tries -= 1
            return _AGAIN_SECONDS
        if not self._is_new:
            self._write_control({"streamDeleted": True}, State.DELETED)
        elif self._is_listed and not self.uid:
            fields = error_fields(REFUSALS.get(refusal.code, "INTERNAL"), refusal.message)
            self._connection.write_outside_streams(self, self._showing.control(None, fields))
        self._begin_again()  # one that is created later begins at its start
        self.index = self._connection.cursor.add(StreamPosition(self.stream.name, 0, *_START))
        self._end()
        if not self._is_listed:
            self._connection.remove(self)
        return OVER

    def _begin_again(self) -> None:
        """Begin at the start of another incarnation."""
        self._is_gone = self.is_live = self._was_closed = self._is_quiet = False
        self._is_new, self.index = True, -1
        self._record, self._byte = _START
        self._skip_to = 0
        self._backlog.reset()

    def _end(self) -> None:
        """End a stream that is closed, missing or unreadable, or whose connection has ended."""
        self._leave()
        self.is_live, self.is_over = False, True

    def _leave(self) -> None:
        if self._is_attached:
            self._is_attached = False
            self._connection.detach(self)

    # --- live -------------------------------------------------------------------------------------

    def live(self, event: LiveEvent) -> None:
        """Handle an event, in the stream's order, on the loop."""
        if event.gone or event.cut:
            self._broke(event)
        elif not self.is_live:
            self._backlog.add(event)
        elif event.begin_record != self._record or event.begin_byte != self._byte:
            if (event.record, event.byte) > (self._record, self._byte):
                self._fall_back(event)  # events before it are missing
        elif not self._connection.flows:
            self._fall_back(event)
        elif (frame := event.frames.get(self._showing.key)) is not None and not self._skip_to:
            self._write_frame(event, frame)
        else:
            self._live_slowly(event)

    def _live_slowly(self, event: LiveEvent) -> None:
        payload = self._showing.payload_of(event)
        if payload is None:
            self._fall_back(event)
        elif event.record <= self._skip_to and not event.closed:
            self._record, self._byte = event.record, event.byte
        elif payload:
            self._skip_to = 0
            at = (event.record, event.byte)
            frame = self._showing.data(payload, at, up_to_date=event.known)
            event.frames[self._showing.key] = frame
            self._write_frame(event, frame)
        elif event.closed:
            self._close(event)

    def _write_frame(self, event: LiveEvent, frame: bytes) -> None:
        self._record, self._byte = at = event.record, event.byte
        self._connection.write(self, frame, at, State.OPEN)
        if event.closed:
            self._close(event)
        elif not event.known:
            self._connection.request_confirmation(self)

    def _close(self, event: LiveEvent) -> None:
        self._record, self._byte = event.record, event.byte
        self._write_control({"upToDate": True, "streamClosed": True}, State.CLOSED)
        self._end()

    def _fall_back(self, event: LiveEvent) -> None:
        """Read from the present position on, in turn."""
        self.is_live = False
        self._backlog.miss(event)
        self._connection.enqueue(self)

    def _broke(self, event: LiveEvent) -> None:
        """Handle the last event of a feed: the next turn attaches."""
        self._is_gone = self._is_gone or event.gone
        self.is_live = False
        self._leave()
        self._connection.enqueue(self)

    def confirm(self, info: StreamInfo | Refusal) -> None:
        """Tell the client that it is at the leader's tail, if it is."""
        if (
            self.is_live
            and isinstance(info, StreamInfo)
            and info.uid == self.uid
            and (self._record, self._byte) == (info.record, info.byte)
        ):
            self._is_quiet = True
            self._write_control({"upToDate": True}, wakes=False)

    def _write_control(
        self, fields: dict[str, object], state: int = State.OPEN, *, wakes: bool = True
    ) -> None:
        """Write a control event at the present position."""
        at = (self._record, self._byte)
        self._connection.write(self, self._showing.control(at, fields), at, state, wakes=wakes)
