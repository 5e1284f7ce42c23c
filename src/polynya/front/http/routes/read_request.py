"""Parse a read: its position, size, timeout and consistency, and the kind of its answer.

A position is an offset, a time, or the number of a record (`record`, `tail_records`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from polynya.base.limits import KIB, PAGE_BYTES_DEFAULT, PAGE_BYTES_MAX
from polynya.base.offsets import parse_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.responses import NUMBERED_JSON
from polynya.front.http.routes.pages import is_json_stream, wants_records
from polynya.local.api import Page, Position, ReadQuery, StreamInfo
from polynya.wire.headers import BadField, parse_event_id
from polynya.wire.times import parse_time_ms

# the parameters that name a time
_TIMES = {"from_time": Position.AT_TIME, "from_record_time": Position.AT_RECORD_TIME}
# the parameters that name where a read begins, of which it takes one
_BEGINS = ("offset", *_TIMES, "record", "tail_records")
_NUMBERED = frozenset(("record", "tail_records", "max_records"))
LIVE = ("long-poll", "sse")
END_SUFFIX = "~end"  # of the id of the event that reports a closed stream
_TIMEOUT_MS_MAX = 60_000
_BYTE_MAX = 10**18  # larger than every tail, and small enough for messages between cores
# stored bytes read for each record of `max_records`, so that a page of few records is cheap
_BYTES_FOR_RECORD = 64 * KIB


class ReadRequest(msgspec.Struct, frozen=True, gc=False):
    """A parsed read of a stream: one page, a long-poll or an event stream."""

    query: ReadQuery
    live: str = ""  # "", "long-poll" or "sse"
    seconds: float = 0.0  # timeout of a long-poll
    incarnation: tuple[int, int] | None = None  # (uid, history) in `Last-Event-ID`
    saw_end: bool = False  # the last event of the reader was the end of the stream
    numbered: bool = False  # the answer names the numbers of its records
    tail_records: int = 0  # begin so many records before the tail; 0: where the query says
    records_max: int = 0  # of a page; 0: no limit
    first_event: bytes = b""  # of an event stream, before all others


def parse_read(exchange: Exchange, now_ms: Callable[[], int], timeout: float) -> ReadRequest:
    """Parse a read. `timeout`: of a long-poll that names none. Raises `Failure`."""
    query = exchange.query
    live = query.get("live", "")
    whole = wants_records(exchange)
    if "live" in query:
        if live not in LIVE:
            raise Failure("INVALID_PARAMETER", f"live must be long-poll or sse, not '{live[:64]}'")
        if live == "sse" and "max_records" in query:
            raise Failure(
                "NOT_SUPPORTED",
                "the query parameter 'max_records' is not supported with live=sse, which has no "
                "pages: use live=long-poll, or close the connection after enough records",
            )
        if live == "sse" and (last := _last_event(exchange)):
            return resumed(exchange, last)
        if query.keys().isdisjoint(_BEGINS):
            raise Failure("OFFSET_REQUIRED")
    record, byte = _begin(exchange, now_ms)
    numbered = is_numbered(exchange)
    if live == "long-poll":
        timeout = poll_seconds(exchange, timeout)
    size = PAGE_BYTES_DEFAULT
    if "max_bytes" in query and live != "sse":
        size = min(_number("max_bytes", query["max_bytes"]), PAGE_BYTES_MAX)
    records_max = _number("max_records", query["max_records"]) if "max_records" in query else 0
    if records_max:
        size = min(size, records_max * _BYTES_FOR_RECORD)
    local = "consistency" in query and is_local(exchange)
    position = ReadQuery(
        exchange.route.name,
        record,
        byte,
        size,
        whole_records=numbered or whole,
        beyond_tail_waits=bool(live),
        local=local,
        append_times=whole,
        batch_times=whole,
    )
    return ReadRequest(
        position,
        live,
        timeout,
        numbered=numbered,
        tail_records=_number("tail_records", query["tail_records"])
        if "tail_records" in query
        else 0,
        records_max=records_max,
    )


def poll_seconds(exchange: Exchange, default: float) -> float:
    """Return the timeout of a long-poll. Raises `Failure`."""
    text = exchange.query.get("timeout_ms")
    if text is None:
        return default
    return min(_number("timeout_ms", text), _TIMEOUT_MS_MAX) / 1000


def _last_event(exchange: Exchange) -> str:
    """Return the id of the last event that the reader has: from the header of a reconnect, or as
    the offset of a page that was reloaded; "" without one."""
    offset = exchange.query.get("offset", "")
    return exchange.head.headers.get("last-event-id") or (offset if "~" in offset else "")


def _begin(exchange: Exchange, now_ms: Callable[[], int]) -> tuple[int, int]:
    """Return where a read begins: (record or a `Position`, byte). Raises `Failure`."""
    query = exchange.query
    given = [name for name in _BEGINS if name in query]
    if len(given) > 1:
        raise Failure(
            "INVALID_PARAMETER",
            f"a read takes only one of {', '.join(_BEGINS[:-1])} and {_BEGINS[-1]}; "
            f"this one has {' and '.join(given)}",
        )
    name = given[0] if given else "offset"
    text = query.get(name, "-1")
    if name in _TIMES:
        return _at_time(name, text, now_ms())
    if name == "record":
        return _at_record(text)
    if name == "tail_records" or text == "-1":
        return Position.START, 0
    if "~" in text:
        return _event_id(exchange, text)[:2]
    return parse_offset(text, bare=exchange.route.bare_offsets)


def _at_record(text: str) -> tuple[int, int]:
    """Parse `record`: a number, or the tail as `now`. Of an offset the record number decides."""
    if text == "now":
        return Position.NOW, 0
    if text.isdecimal() and text.isascii() and len(text) <= 18:
        return int(text), 0
    raise Failure(
        "INVALID_PARAMETER",
        f"record must be now or the number of a record, 0 for the first, not '{text[:64]}'",
    )


def placed(request: ReadRequest, info: StreamInfo) -> ReadRequest:
    """Return the request with its position, if that is counted from the tail in `info`."""
    if not request.tail_records:
        return request
    record = max(info.first_record, info.record - request.tail_records)
    return msgspec.structs.replace(
        request, query=msgspec.structs.replace(request.query, record=record)
    )


def is_numbered(exchange: Exchange) -> bool:
    """Report whether a read names numbers of records, or asks for them."""
    query = exchange.query
    return not _NUMBERED.isdisjoint(query) or query.get("record_view") == "envelope"


def record_numbers(request: ReadRequest, page: Page) -> list[tuple[str, str]]:
    """Return the headers with the number of the first record of a page and of the next one, if the
    request names numbers."""
    if not request.numbered:
        return []
    first = min(max(request.query.record, page.first_record), page.record)
    return [*first_number(page.info, first), ("Stream-Record-Next", str(page.record))]


def first_number(info: StreamInfo, first: int) -> list[tuple[str, str]]:
    """Return the headers with the number of the first record of a stream and of an answer."""
    numbers = [
        ("Stream-Record-First", str(info.first_record)),
        ("Stream-Record-Start", str(first)),
    ]
    return [NUMBERED_JSON, *numbers] if is_json_stream(info) else numbers


def resumed(exchange: Exchange, last: str) -> ReadRequest:
    """Parse the id of an event, whose stream may be another incarnation by now. Raises
    `Failure`."""
    record, byte, incarnation = _event_id(exchange, last)
    query = ReadQuery(exchange.route.name, record, byte, local=is_local(exchange))
    saw_end, numbered = last.endswith(END_SUFFIX), is_numbered(exchange)
    return ReadRequest(query, "sse", 0.0, incarnation, saw_end, numbered)


def _event_id(exchange: Exchange, text: str) -> tuple[int, int, tuple[int, int] | None]:
    """Parse the id of an event into (record, byte, incarnation). Raises `Failure`."""
    try:
        return parse_event_id(text.removesuffix(END_SUFFIX))
    except BadField as bad:
        if "last-event-id" in exchange.head.headers:
            raise Failure("INVALID_HEADER", str(bad)) from None
        raise Failure(
            "INVALID_OFFSET", f"'{text[:64]}' is not the id of an event of this server"
        ) from None


def parse_offset(text: str, *, bare: bool) -> tuple[int, int]:
    """Parse an offset into (record or a `Position`, byte). `bare`: allow a byte position. Raises
    `Failure`."""
    if text == "-1":
        return Position.START, 0
    if text == "now":
        return Position.NOW, 0
    at = parse_token(text)
    if at is not None:
        return at
    if bare and text.isdecimal() and text.isascii() and len(text) <= 20:
        return Position.AT_BYTE, min(int(text), _BYTE_MAX)
    raise Failure(
        "INVALID_OFFSET",
        f"'{text[:64]}' is not a valid offset: it must be -1, now, or an offset returned by this "
        "server",
    )


def _at_time(name: str, text: str, now_ms: int) -> tuple[int, int]:
    try:
        return _TIMES[name], parse_time_ms(text, now_ms)
    except BadField as bad:
        raise Failure("INVALID_PARAMETER", f"{name}: {bad}") from None


def is_local(exchange: Exchange) -> bool:
    """Report whether the read uses this node's state (`consistency=local`) instead of all
    acknowledged records. Raises `Failure`."""
    text = exchange.query.get("consistency")
    if text is None or text == "leader":
        return False
    if text == "local":
        return True
    raise Failure(
        "INVALID_PARAMETER",
        "consistency must be leader (the default: all acknowledged records) or local (this node's "
        "replica)",
    )


def _number(name: str, text: str) -> int:
    if text.isdecimal() and text.isascii() and len(text) <= 15 and int(text) > 0:
        return int(text)
    raise Failure("INVALID_PARAMETER", f"{name} must be a whole number above 0, not '{text[:64]}'")
