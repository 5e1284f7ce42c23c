"""Many streams on one connection, as an operation: every record of each stream once and in order.

A reader resumes with the id of its last event. When the server has lost the cursor, it resumes with
the offset of each stream. Events come on one connection, or in the pages of long-polls.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias
from urllib.parse import urlencode

import msgspec

from polynya.base.limits import LIVE_STREAMS_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.base.offsets import parse_token
from polynya.client import calls
from polynya.client.errors import AnswerDamaged, Refused, refused
from polynya.client.live.events import Event, EventParser
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
from polynya.client.values import JSON_TYPE, RECORDS_TYPE, START, Page, is_json, split_array

ManyLive: TypeAlias = Literal["sse", "long-poll"]
_GONE, _MISSING = "CURSOR_GONE", "NOT_FOUND"
_TEXT, _BYTES = "text/plain", "application/octet-stream"


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of one of many streams. Its `page` may be empty. `began`: the stream joined.
    `trimmed`: records before the page's offset were deleted. `error`: why the stream cannot be
    read, after its code."""

    page: Page
    began: bool = False
    deleted: bool = False
    trimmed: bool = False
    error: str = ""

    @property
    def stream(self) -> str:
        return self.page.stream


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Event(msgspec.Struct, rename="camel"):
    stream: str = ""
    stream_next_offset: str = ""
    data: msgspec.Raw | None = None
    text: str | None = None
    base64: str | None = None
    content_type: str = ""
    up_to_date: bool = False
    stream_closed: bool = False
    stream_deleted: bool = False
    stream_trimmed: bool = False
    error: _Error | None = None


class _Polled(msgspec.Struct, rename="camel"):
    """A page of a long-poll. Its events are objects like those of an event stream, with a name and
    an id."""

    cursor: str
    up_to_date: bool
    events: list[msgspec.Raw]


class _PolledEvent(msgspec.Struct):
    event: str
    id: str = ""


class ManyPosition:
    """The position of a reader of many streams: a list of names, or one pattern or prefix.

    `offsets` has where each stream is. `begin` is where the others begin."""

    def __init__(  # noqa: PLR0913 (one option each)
        self,
        streams: Sequence[str],
        begin: str = START,
        *,
        offsets: Mapping[str, str] = {},  # noqa: B006 (only read)
        local: bool = False,
        whole: bool = False,
    ) -> None:
        """Raise ValueError for other streams than a list, or one name that `is_covering`."""
        covering = [name for name in streams if is_covering(name)]
        if not streams or (covering and len(streams) > 1):
            raise ValueError(
                "pass the names of streams, or one pattern such as 'runs/*', or one prefix"
            )
        if begin not in (START, "now"):
            raise ValueError(f"many streams begin at '-1' or 'now', not {begin!r}; pass `offsets`")
        self._covering = covering[0] if covering else None
        self._names = () if covering else tuple(dict.fromkeys(streams))
        self._begin, self._local, self._whole = begin, local, whole
        self.offsets = dict(offsets)
        self.up_to_date = False  # every stream has been read up to its tail once
        self._types: dict[str, str] = {}
        self._ended: set[str] = set()
        self._cursor = ""
        self._has_begun = False

    @property
    def what(self) -> str:
        shown = self._covering if self._covering is not None else ", ".join(self._names[:3])
        return f"tail '{shown}'"

    @property
    def over(self) -> bool:
        """Report whether all streams of a list have ended."""
        return self._covering is None and self._ended.issuperset(self._names)

    def request(self, live: ManyLive = "sse") -> HttpRequest:
        query = [("offset", START if self._has_begun else self._begin)]
        if live == "long-poll":
            query.append(("live", live))
        if self._covering is not None:
            is_prefix = self._covering.endswith("/") or not self._covering
            query.append(("prefix" if is_prefix else "match", self._covering))
        if self._local:
            query.append(("consistency", "local"))
        form = RECORDS_TYPE if self._whole else "*/*"
        headers = {"accept": f"text/event-stream, {form}" if live == "sse" else form}
        if self._cursor:
            headers["last-event-id"] = self._cursor
        query += [("stream", text) for text in self._listed()]
        target = "/v1/live?" + urlencode(query, safe="/@*")
        return HttpRequest("GET", target, headers, silence_seconds=SILENCE_SECONDS)

    def _listed(self) -> list[str]:
        positions = {} if self._cursor else self.offsets
        names = self._names if self._covering is None else tuple(positions)
        return [
            f"{name}@{_short(positions[name])}" if name in positions else name for name in names
        ]

    def lose_cursor(self, error: Refused) -> None:
        """Go on with the offsets. Raises the error if a request cannot name all streams."""
        self._cursor = ""
        if len(self.offsets) > LIVE_STREAMS_MAX:
            raise error

    def end_page(self, cursor: str, *, up_to_date: bool) -> None:
        """Go on after the last event of a long-poll."""
        self._cursor, self._has_begun = cursor, True
        self.up_to_date |= up_to_date

    def take(self, event: Event) -> StreamEvent | None:
        """Advance past an event. Raises `AnswerDamaged`, or DecodeError."""
        if event.name not in ("data", "control"):
            return None
        self._cursor, self._has_begun = event.id or self._cursor, True
        parsed = _decoded(event.data)
        if not parsed.stream:
            self.up_to_date = True
            return None
        if parsed.content_type:
            self._types[parsed.stream] = parsed.content_type
        return self._moved(parsed)

    def _moved(self, parsed: _Event) -> StreamEvent | None:
        name = parsed.stream
        begin = self.offsets.get(name, "")
        offset = parsed.stream_next_offset or begin
        body, raws, content_type = self._payload(parsed)
        if body and begin and parse_token(offset) is not None and offset <= begin:
            return None  # a repeat
        if parsed.stream_deleted:
            self.offsets.pop(name, None)
        elif offset:
            self.offsets[name] = offset
        missing = (
            parsed.error is not None and parsed.error.code == _MISSING
        )  # it may yet be created
        if (
            parsed.stream_closed
            or parsed.stream_deleted
            or (parsed.error is not None and not missing)
        ):
            self._ended.add(name)
        elif parsed.content_type:
            self._ended.discard(name)
        page = Page(
            stream=name,
            begin=begin,
            offset=offset,
            content_type=content_type,
            body=body,
            up_to_date=parsed.up_to_date,
            closed=parsed.stream_closed,
            raws=raws,
            json_values=is_json(self._types.get(name, JSON_TYPE)),
        )
        return StreamEvent(
            page=page,
            began=bool(parsed.content_type),
            deleted=parsed.stream_deleted,
            trimmed=parsed.stream_trimmed,
            error="" if parsed.error is None else f"{parsed.error.code}: {parsed.error.message}",
        )

    def _payload(self, parsed: _Event) -> tuple[bytes, tuple[bytes, ...], str]:
        """Return the body of an event, its records, and its content type."""
        known = self._types.get(parsed.stream, "")
        if parsed.data is not None:
            body = bytes(parsed.data)
            return body, split_array(body, self.what), RECORDS_TYPE if self._whole else JSON_TYPE
        if parsed.text is not None:
            return parsed.text.encode(errors="replace"), (), known or _TEXT
        if parsed.base64 is not None:
            try:
                return b64decode(parsed.base64, validate=True), (), known or _BYTES
            except binascii.Error:
                raise AnswerDamaged(f"{self.what}: an event is not valid base64") from None
        return b"", (), RECORDS_TYPE if self._whole else known


def is_covering(name: str) -> bool:
    """Report whether a name is a pattern or a prefix: it has a segment `*` or `**`, or ends with a
    slash."""
    segments = name.split("/")
    return not segments[-1] or not {"*", "**"}.isdisjoint(segments)


def tail_many(position: ManyPosition, retry: Retry, live: ManyLive = "sse") -> Operation[None]:
    """Yield the events of many streams until all streams of a list have ended. A pattern has no
    end."""
    backoff = Backoff(retry)
    while not position.over:
        if live == "sse":
            yield from _connection(position, backoff)
        else:
            yield from _page(position, retry)


def _page(position: ManyPosition, retry: Retry) -> Operation[None]:
    """Read the page of one long-poll."""
    try:
        page, parsed = yield from calls.call(
            position.request("long-poll"), retry, position.what, _polled, repeatable=True
        )
    except Refused as error:
        if error.code != _GONE:
            raise
        position.lose_cursor(error)
        return
    for event in parsed:
        if (moved := position.take(event)) is not None:
            yield Deliver(moved)
    position.end_page(page.cursor, up_to_date=page.up_to_date)


def _polled(answer: HttpResponse) -> tuple[_Polled, list[Event]]:
    """Parse a page. Raises `AnswerDamaged`."""
    try:
        page = _read_page(answer.body)
        return page, [_named(bytes(raw)) for raw in page.events]
    except (ValueError, *UNREADABLE) as damaged:
        raise AnswerDamaged(f"a page of many streams cannot be read: {damaged}") from None


def _read_page(body: bytes) -> _Polled:
    try:
        return msgspec.json.decode(body, type=_Polled)
    except UNREADABLE:  # the server accepts lone surrogates, msgspec does not
        import json

        page = json.loads(body)
        raws = [msgspec.Raw(json.dumps(event).encode()) for event in page.pop("events")]
        polled = msgspec.convert(page | {"events": []}, _Polled)
        return msgspec.structs.replace(polled, events=raws)


def _named(raw: bytes) -> Event:
    try:
        named = msgspec.json.decode(raw, type=_PolledEvent)
    except UNREADABLE:
        import json

        named = msgspec.convert(json.loads(raw), _PolledEvent)
    return Event(named.event, raw.decode(), named.id)


def _connection(position: ManyPosition, backoff: Backoff) -> Operation[None]:
    """Read one connection, and pause behind it."""
    result = yield Open(position.request())
    head = calls.answer_of(result)
    if calls.judge(head) is calls.Verdict.NEVER:
        assert isinstance(head, HttpResponse)
        raise refused(head, position.what)
    last: HttpResponse | Broken = head
    parser = EventParser()
    while isinstance(last, HttpResponse) and last.status == 200 and not position.over:
        result = yield ReadMore()
        if not isinstance(result.what, bytes) or not result.what:
            why = Broken(sent=True, why="the connection ended")
            last = result.what if isinstance(result.what, Broken) else why
            break
        try:
            for event in parser.feed(result.what):
                if event.name == "error":
                    _fail(position, event.data.encode())
                backoff.passed()
                if (parsed := position.take(event)) is not None:
                    yield Deliver(parsed)
        except _CursorLost:
            return
        except (AnswerDamaged, ValueError, *UNREADABLE) as damaged:
            last = Broken(sent=True, why=str(damaged))
    if position.over:
        return
    pause = backoff.pause(result, calls.retry_after(last))
    if pause is None:
        raise calls.failure(last, position.what, perhaps=False)
    yield Pause(pause)


class _CursorLost(Exception):
    """The server has lost the cursor; the reader has not lost its position."""


def _fail(position: ManyPosition, body: bytes) -> None:
    error: Refused = refused(HttpResponse(410, {}, body), position.what)
    if error.code == _GONE:
        position.lose_cursor(error)
        raise _CursorLost
    raise AnswerDamaged(error.message, code=error.code)


def _decoded(text: str) -> _Event:
    try:
        return msgspec.json.decode(text.encode(), type=_Event)
    except UNREADABLE:  # the server accepts lone surrogates, msgspec does not
        import json

        found = json.loads(text)
        data = msgspec.Raw(json.dumps(found.pop("data")).encode()) if "data" in found else None
        event = msgspec.convert(found, _Event)
        event.data = data
        return event


def _short(offset: str) -> str:
    """Return an offset without the zeros before its numbers."""
    at = parse_token(offset)
    return offset if at is None else f"{at[0]}_{at[1]}"
