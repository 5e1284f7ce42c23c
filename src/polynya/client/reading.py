"""Reading as talks: pages up to the tail, and from there on whatever comes, without loss or repetition over any number of connections.

The position moves only when a whole page was given: an answer, or a data event whose control event arrived. What breaks before that is
asked for again from the position; an event that does not go beyond the position is a repeat, and dropped.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from polynya.base.limits import PAGE_BYTES_DEFAULT
from polynya.base.offsets import parse_token
from polynya.client.calls import Verdict, answer_of, call, failure, header, is_true, judge, retry_after, stream_target
from polynya.client.errors import AnswerDamaged, refused
from polynya.client.events import EventParser
from polynya.client.messages import SILENCE_SECONDS, Broken, Give, HttpRequest, HttpResponse, More, Open, Pause, Retry, Talk, Trouble
from polynya.client.values import Page, is_json, split_array

Live: TypeAlias = Literal["auto", "sse", "long-poll"]
SHORT_SECONDS = 1.0  # three connections in a row that end so soon, and without an event: something between does not let events through
SHORT_MAX = 3
PAGE_BYTES_MIN = 4096  # asked for where larger answers break off
JUMP = 1 << 40  # so many record numbers a restored server passes over
_OVER = frozenset(("GONE", "OTHER_LIFE", "NOT_FOUND", "INCARNATION_MISMATCH", "TRIMMED"))  # errors in mid-stream that no retry helps


class ReadPosition:
    """Where a reader is. `offset` is where it goes on; `incarnation` pins the life of the stream that it began with. `from_time` is where
    it begins instead, until the first answer tells the offset. `local`: what the asked node has is enough."""

    def __init__(self, name: str, offset: str, max_bytes: int | None = None, *, from_time: str = "", local: bool = False) -> None:
        self.name = name
        self.local = local
        self.offset = offset
        self._from_time = from_time
        self._moved = False  # `offset` is the server's, and not the user's
        self.max_bytes = max_bytes  # as the user wants it; None: as the server does
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
        query = {"from_time": self._from_time} if self._from_time else {"offset": self.offset}
        if self.local:
            query["consistency"] = "local"
        if live:
            query["live"] = live
        if live and self.cdn_cursor:
            query["cursor"] = self.cdn_cursor
        if (limit := self._shrunk or self.max_bytes) is not None and live != "sse":
            query["max_bytes"] = str(limit)
        headers = {"accept": "text/event-stream" if live == "sse" else "*/*"}
        if self.incarnation:
            headers["stream-incarnation"] = self.incarnation
        return HttpRequest("GET", stream_target(self.name, query), headers, silence_seconds=SILENCE_SECONDS)

    def page(self, answer: HttpResponse) -> Page:
        """The answer to a read as a page; does not move. Raises `AnswerDamaged`."""
        self.content_type = answer.headers.get("content-type", self.content_type)
        offset = header(answer, "stream-next-offset", self.what)
        up_to_date = is_true(answer, "stream-up-to-date")
        page = self._checked(answer.body, offset, up_to_date=up_to_date, closed=is_true(answer, "stream-closed"))
        self.incarnation = self.incarnation or answer.headers.get("stream-incarnation", "")
        self.cdn_cursor = answer.headers.get("stream-cursor", self.cdn_cursor)
        return page

    def get(self, retry: Retry, live: str = "") -> Talk[Page]:
        """One page, in one answer. Where answers break off, smaller ones are asked for: a connection that never carries a large one does
        not keep a reader where it is."""

        def smaller() -> HttpRequest:
            self._shrunk = max(PAGE_BYTES_MIN, (self._shrunk or self.max_bytes or PAGE_BYTES_DEFAULT) // 4)
            return self.request(live)

        page = yield from call(self.request(live), retry, self.what, self.page, repeatable=True, again=smaller)
        if self._shrunk is not None:
            self._shrunk = 2 * self._shrunk if 2 * self._shrunk < (self.max_bytes or PAGE_BYTES_DEFAULT) else None
        return page

    def live_page(self, data: list[bytes], control: _Control) -> Page:
        """Data events and their control event as a page. Raises `AnswerDamaged`."""
        if is_json(self.content_type) and len(data) > 1:
            body = b"[" + b",".join([piece.strip()[1:-1] for piece in data]) + b"]"
        else:
            body = b"".join(data)
        self.cdn_cursor = control.cursor or self.cdn_cursor
        return self._checked(body, control.offset, up_to_date=control.up_to_date, closed=control.closed)

    def _checked(self, body: bytes, offset: str, *, up_to_date: bool, closed: bool) -> Page:
        as_json = is_json(self.content_type)
        raws = split_array(body, self.what) if as_json else ()
        begin, end = parse_token(self.offset), parse_token(offset)
        # A server whose offsets count records and bytes cannot send more than lies between them. (Text in events may grow.)
        counts = self._moved and bool(self.incarnation) and not self.content_type.startswith("text/")
        if counts and begin and end:
            records, size = end[0] - begin[0], end[1] - begin[1]
            restored = records >= JUMP // 2  # what was read last may be lost, and other bytes be in its place
            if end < begin or (len(raws) > records if as_json else len(body) > size and not restored):
                raise AnswerDamaged(f"{self.what}: the answer does not fit its offsets")
        if offset == self.offset and not up_to_date and not closed and not self.local:
            raise AnswerDamaged(f"{self.what}: the answer goes no further, and is not the end")
        return Page(
            stream=self.name, begin=self.offset, offset=offset, content_type=self.content_type, body=body, up_to_date=up_to_date,
            closed=closed, raws=raws,
        )  # fmt: skip

    def move(self, page: Page) -> None:
        self.offset, self.up_to_date, self.closed = page.offset, page.up_to_date, page.closed
        self._moved, self._from_time = True, ""


def read(place: ReadPosition, retry: Retry) -> Talk[None]:
    """Gives pages up to the tail. The last says `up_to_date`, unless only a local read came to an end; it is given without a record, too."""
    while True:
        page = yield from place.get(retry)
        place.move(page)
        yield Give(page)
        if page.up_to_date or (place.local and page.offset == page.begin):
            return


def tail(place: ReadPosition, retry: Retry, live: Live = "auto") -> Talk[None]:
    """Gives pages until the stream is closed: the last page says so. A page without records is given too, because it moves the position.
    Text comes by long-poll when the choice is free, because lines of events cannot carry every byte of it."""
    yield from read(place, retry)
    trouble = Trouble(retry)
    fruitless = False
    by_events = live == "sse" or (live == "auto" and not place.content_type.startswith("text/"))
    short = 0
    while not place.closed:
        if not by_events:
            page = yield from place.get(retry, "long-poll")
            place.move(page)
            yield Give(page)
            continue
        if fruitless:
            yield from read(place, retry)  # an event may be larger than what connections carry; pages adapt
            if place.closed:
                return
        fruitless, brief = yield from _follow(place, trouble)
        short = short + 1 if brief else 0
        by_events = live == "sse" or short < SHORT_MAX


def follow(place: ReadPosition, retry: Retry) -> Talk[None]:
    """Gives what there is from the place on and what comes, all of it as events, until the stream is closed."""
    trouble = Trouble(retry)
    while not place.closed:
        yield from _follow(place, trouble)


def _follow(place: ReadPosition, trouble: Trouble) -> Talk[tuple[bool, bool]]:
    """One connection of events. Whether it was without a single page, and whether it was short and without a single event."""
    heard = yield Open(place.request("sse"))
    began = heard.now
    head = answer_of(heard)
    if judge(head) is Verdict.NEVER:
        assert isinstance(head, HttpResponse)
        raise refused(head, place.what)
    last: HttpResponse | Broken = head
    events = _Events(place, base64=isinstance(head, HttpResponse) and head.headers.get("stream-sse-data-encoding") == "base64")
    opened = isinstance(head, HttpResponse) and head.status == 200
    if isinstance(head, HttpResponse) and opened:
        place.incarnation = place.incarnation or head.headers.get("stream-incarnation", "")
    eventful = fruitful = False
    while isinstance(last, HttpResponse) and opened and not place.closed:
        heard = yield More()
        if not isinstance(heard.what, bytes) or not heard.what:
            last = heard.what if isinstance(heard.what, Broken) else Broken(sent=True, why="the connection ended")
            break
        try:
            for page in events.pages(heard.what):
                eventful = True
                trouble.passed()
                place.move(page)
                fruitful |= bool(page.body or page.closed)
                yield Give(page)
        except (AnswerDamaged, ValueError, msgspec.DecodeError) as damaged:
            last = Broken(sent=True, why=str(damaged))
    if place.closed:
        return False, False
    pause = trouble.pause(heard, retry_after(last))
    if pause is None:
        raise failure(last, place.what, perhaps=False)
    yield Pause(pause)
    broke = opened and isinstance(heard.what, Broken)
    return broke and not fruitful, opened and not eventful and heard.now - began < SHORT_SECONDS


class _Control(
    msgspec.Struct, rename={"offset": "streamNextOffset", "cursor": "streamCursor", "up_to_date": "upToDate", "closed": "streamClosed"}
):
    offset: str
    cursor: str = ""
    up_to_date: bool = False
    closed: bool = False


class _Events:
    """Events to pages, in order and each once. A page must be taken (`ReadPosition.move`) before the next is asked for."""

    def __init__(self, place: ReadPosition, *, base64: bool) -> None:
        self._place = place
        self._base64 = base64
        self._parser = EventParser()
        self._data: list[bytes] = []

    def pages(self, piece: bytes) -> Iterator[Page]:
        """Raises `AnswerDamaged`, ValueError, msgspec.DecodeError: of no use any more; and `Refused`: the stream is."""
        for event in self._parser.feed(piece):
            if event.name == "data":
                self._data.append(self._bytes(event.data))
            elif event.name == "error":
                self._fail(event.data.encode())
            elif event.name == "control":
                data, self._data = self._data, []
                control = msgspec.json.decode(event.data, type=_Control)
                at = self._place.offset
                if control.offset > at or (control.offset == at and not data):  # else a repeat
                    yield self._place.live_page(data, control)

    def _bytes(self, data: str) -> bytes:
        if not self._base64:
            return data.encode()
        try:
            if len(data) % 4 == 0:
                return b64decode(data, validate=True)
            raise binascii.Error
        except binascii.Error:
            raise AnswerDamaged(f"{self._place.what}: an event is not the base64 that it should be") from None

    def _fail(self, body: bytes) -> None:
        error = refused(HttpResponse(410, {}, body), self._place.what)
        if error.code in _OVER:
            raise error
        raise AnswerDamaged(error.message, code=error.code)  # such as a reader that was too slow: it resumes
