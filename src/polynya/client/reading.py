"""Reads as operations: pages up to the tail, then new records as they arrive, without loss or
repetition across connections.

The position advances only past a complete page: a response, or a data event whose control event
arrived. After a break, the reader resumes from the position. An event that does not advance the
position is a repeat and is dropped.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from polynya.base.limits import PAGE_BYTES_DEFAULT
from polynya.base.msgpack import UNREADABLE
from polynya.base.names import partition_of
from polynya.base.offsets import parse_token
from polynya.client import calls
from polynya.client.errors import AnswerDamaged, refused
from polynya.client.live.events import EventParser
from polynya.client.messages import (
    SILENCE_SECONDS,
    Backoff,
    Broken,
    Deliver,
    HttpRequest,
    HttpResponse,
    Open,
    Operation,
    Pause,
    ReadMore,
    Retry,
)
from polynya.client.values import RECORDS_TYPE, Page, is_array, split_array

Live: TypeAlias = Literal["auto", "sse", "long-poll"]
# after three connections in a row shorter than this without an event, assume that a proxy blocks
# event streams
SHORT_SECONDS = 1.0
SHORT_MAX = 3
PAGE_BYTES_MIN = 4096  # page size to fall back to when larger responses break off
JUMP = 1 << 40  # record numbers that a server skips after a restore from backup
# permanent errors inside an event stream
_OVER = frozenset(("GONE", "STREAM_RECREATED", "NOT_FOUND", "INCARNATION_MISMATCH", "TRIMMED"))


class ReadPosition:
    """The position of a reader.

    `offset` is where it resumes. `incarnation` pins the stream that it started with. `begin`: a
    parameter, such as a time, that replaces the offset until the first response supplies one.
    `local`
    accepts the possibly stale copy of the contacted node. `whole`: pages are of whole records, with
    their keys."""

    def __init__(
        self,
        name: str,
        offset: str,
        max_bytes: int | None = None,
        *,
        begin: Mapping[str, str] = {},  # noqa: B006 (only read)
        max_records: int | None = None,
        local: bool = False,
        whole: bool = False,
    ) -> None:
        self.name = name
        self.whole = whole
        self.json_values = True  # of whole records
        self.local = local
        self.offset = offset
        self._begin = begin
        self.max_records = max_records  # of a page
        self._moved = False  # `offset` comes from the server, not from the user
        self.max_bytes = max_bytes  # None: the server's default
        self._shrunk: int | None = None
        self.incarnation = ""
        self.content_type = ""
        self.cdn_cursor = ""
        self.up_to_date = False
        self.closed = False

    @property
    def what(self) -> str:
        return f"read '{self.name}'"

    def request(self, live: str = "") -> HttpRequest:
        query = dict(self._begin or {"offset": self.offset})
        if self.local:
            query["consistency"] = "local"
        if live:
            query["live"] = live
        if live and self.cdn_cursor:
            query["cursor"] = self.cdn_cursor
        if (limit := self._shrunk or self.max_bytes) is not None and live != "sse":
            query["max_bytes"] = str(limit)
        if self.max_records is not None and live != "sse":
            query["max_records"] = str(self.max_records)
        form = RECORDS_TYPE if self.whole else "*/*"
        headers = {"accept": f"text/event-stream, {form}" if live == "sse" else form}
        if self.incarnation:
            headers["stream-incarnation"] = self.incarnation
        return HttpRequest(
            "GET", calls.stream_target(self.name, query), headers, silence_seconds=SILENCE_SECONDS
        )

    def page(self, answer: HttpResponse) -> Page:
        """Convert a response into a page without advancing. Raises `AnswerDamaged`."""
        self.content_type = answer.headers.get("content-type", self.content_type)
        offset = calls.header(answer, "stream-next-offset", self.what)
        up_to_date = calls.is_true(answer, "stream-up-to-date")
        page = self._checked(
            answer.body,
            offset,
            up_to_date=up_to_date,
            closed=calls.is_true(answer, "stream-closed"),
        )
        self.incarnation = self.incarnation or answer.headers.get("stream-incarnation", "")
        self.cdn_cursor = answer.headers.get("stream-cursor", self.cdn_cursor)
        return page

    def get(self, retry: Retry, live: str = "") -> Operation[Page]:
        """Fetch one page. Each response that breaks off shrinks the next request, so a connection
        that drops large responses still makes progress."""

        def smaller() -> HttpRequest:
            self._shrunk = max(
                PAGE_BYTES_MIN, (self._shrunk or self.max_bytes or PAGE_BYTES_DEFAULT) // 4
            )
            return self.request(live)

        page = yield from calls.call(
            self.request(live), retry, self.what, self.page, repeatable=True, again=smaller
        )
        if self._shrunk is not None:
            self._shrunk = (
                2 * self._shrunk
                if 2 * self._shrunk < (self.max_bytes or PAGE_BYTES_DEFAULT)
                else None
            )
        return page

    def live_page(self, data: list[bytes], control: _Control) -> Page:
        """Convert data events and their control event into a page. Raises `AnswerDamaged`."""
        if is_array(self.content_type) and len(data) > 1:
            body = b"[" + b",".join([piece.strip()[1:-1] for piece in data]) + b"]"
        else:
            body = b"".join(data)
        self.cdn_cursor = control.cursor or self.cdn_cursor
        return self._checked(
            body, control.offset, up_to_date=control.up_to_date, closed=control.closed
        )

    def _checked(self, body: bytes, offset: str, *, up_to_date: bool, closed: bool) -> Page:
        as_json = is_array(self.content_type)
        raws = split_array(body, self.what) if as_json else ()
        begin, end = parse_token(self.offset), parse_token(offset)
        # Offsets of a Polynya server count records and bytes: a response cannot hold more than lies
        # between them. (Text in events may grow.)
        # A partition's records may be stored compressed.
        counts = (
            self._moved
            and bool(self.incarnation)
            and not self.content_type.startswith("text/")
            and partition_of(self.name) is None
        )
        if counts and begin and end:
            records, size = end[0] - begin[0], end[1] - begin[1]
            # after a restore, other bytes may replace the lost ones
            restored = records >= JUMP // 2
            if end < begin or (
                len(raws) > records if as_json else len(body) > size and not restored
            ):
                raise AnswerDamaged(f"{self.what}: the response does not match its offsets")
        if offset == self.offset and not up_to_date and not closed and not self.local:
            raise AnswerDamaged(
                f"{self.what}: the response makes no progress before the end of the stream"
            )
        return Page(
            stream=self.name,
            begin=self.offset,
            offset=offset,
            content_type=self.content_type,
            body=body,
            up_to_date=up_to_date,
            closed=closed,
            raws=raws,
            json_values=self.json_values,
        )

    def move(self, page: Page) -> None:
        self.offset, self.up_to_date, self.closed = page.offset, page.up_to_date, page.closed
        self._moved, self._begin = True, {}


def read(position: ReadPosition, retry: Retry) -> Operation[None]:
    """Yield pages up to the tail.

    The last page, possibly empty, has `up_to_date` set, unless a local read ran out of local
    records."""
    while True:
        page = yield from position.get(retry)
        position.move(page)
        yield Deliver(page)
        if page.up_to_date or (position.local and page.offset == page.begin):
            return


def tail(position: ReadPosition, retry: Retry, live: Live = "auto") -> Operation[None]:
    """Yield pages until the stream is closed; the last page has `closed` set.

    Empty pages are yielded too, because they advance the position. With `live="auto"`, text uses
    long-poll, because event lines cannot carry every byte of it."""
    yield from read(position, retry)
    backoff = Backoff(retry)
    fruitless = False
    by_events = live == "sse" or (live == "auto" and not position.content_type.startswith("text/"))
    short = 0
    while not position.closed:
        if not by_events:
            page = yield from position.get(retry, "long-poll")
            position.move(page)
            yield Deliver(page)
            continue
        if fruitless:
            # an event may exceed what the connection carries; page sizes adapt
            yield from read(position, retry)
            if position.closed:
                return
        fruitless, brief = yield from _follow(position, backoff)
        short = short + 1 if brief else 0
        by_events = live == "sse" or short < SHORT_MAX


def follow(position: ReadPosition, retry: Retry) -> Operation[None]:
    """Yield existing and new records as events until the stream is closed."""
    backoff = Backoff(retry)
    while not position.closed:
        yield from _follow(position, backoff)


def _follow(position: ReadPosition, backoff: Backoff) -> Operation[tuple[bool, bool]]:
    """Read one connection of events. Return two flags: it broke without one page, and it was short
    without one event."""
    effect_result = yield Open(position.request("sse"))
    began = effect_result.now
    head = calls.answer_of(effect_result)
    if calls.judge(head) is calls.Verdict.NEVER:
        assert isinstance(head, HttpResponse)
        raise refused(head, position.what)
    last: HttpResponse | Broken = head
    events = _Events(
        position,
        base64=isinstance(head, HttpResponse)
        and head.headers.get("stream-sse-data-encoding") == "base64",
    )
    opened = isinstance(head, HttpResponse) and head.status == 200
    if isinstance(head, HttpResponse) and opened:
        position.incarnation = position.incarnation or head.headers.get("stream-incarnation", "")
    eventful = fruitful = False
    while isinstance(last, HttpResponse) and opened and not position.closed:
        effect_result = yield ReadMore()
        if not isinstance(effect_result.what, bytes) or not effect_result.what:
            last = (
                effect_result.what
                if isinstance(effect_result.what, Broken)
                else Broken(sent=True, why="the connection ended")
            )
            break
        try:
            for page in events.pages(effect_result.what):
                eventful = True
                backoff.passed()
                position.move(page)
                fruitful |= bool(page.body or page.closed)
                yield Deliver(page)
        except (AnswerDamaged, ValueError, *UNREADABLE) as damaged:
            last = Broken(sent=True, why=str(damaged))
    if position.closed:
        return False, False
    pause = backoff.pause(effect_result, calls.retry_after(last))
    if pause is None:
        raise calls.failure(last, position.what, perhaps=False)
    yield Pause(pause)
    broke = opened and isinstance(effect_result.what, Broken)
    return (
        broke and not fruitful,
        opened and not eventful and effect_result.now - began < SHORT_SECONDS,
    )


class _Control(
    msgspec.Struct,
    rename={
        "offset": "streamNextOffset",
        "cursor": "streamCursor",
        "up_to_date": "upToDate",
        "closed": "streamClosed",
    },
):
    offset: str
    cursor: str = ""
    up_to_date: bool = False
    closed: bool = False


class _Events:
    """Converts events into pages, in order and without repeats. Advance the position past a page
    (`ReadPosition.move`) before fetching the next."""

    def __init__(self, position: ReadPosition, *, base64: bool) -> None:
        self._position = position
        self._base64 = base64
        self._parser = EventParser()
        self._data: list[bytes] = []

    def pages(self, piece: bytes) -> Iterator[Page]:
        """Yield the pages that a piece completes.

        Raises `AnswerDamaged`, ValueError or msgspec.DecodeError when the connection is unusable,
        `Refused` when the stream is."""
        for event in self._parser.feed(piece):
            if event.name == "data":
                self._data.append(self._bytes(event.data))
            elif event.name == "error":
                self._fail(event.data.encode())
            elif event.name == "control":
                data, self._data = self._data, []
                control = msgspec.json.decode(event.data, type=_Control)
                at = self._position.offset
                # otherwise it is a repeat
                if control.offset > at or (control.offset == at and not data):
                    yield self._position.live_page(data, control)

    def _bytes(self, data: str) -> bytes:
        if not self._base64:
            return data.encode()
        try:
            if len(data) % 4 == 0:
                return b64decode(data, validate=True)
            raise binascii.Error
        except binascii.Error:
            raise AnswerDamaged(f"{self._position.what}: an event is not valid base64") from None

    def _fail(self, body: bytes) -> None:
        error = refused(HttpResponse(410, {}, body), self._position.what)
        if error.code in _OVER:
            raise error
        # such as a reader that was too slow: it resumes
        raise AnswerDamaged(error.message, code=error.code)
