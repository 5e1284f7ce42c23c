"""Parse a read: its position, size, timeout and consistency, and the kind of its answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from polynya.base.limits import PAGE_BYTES_DEFAULT, PAGE_BYTES_MAX
from polynya.base.offsets import parse_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.service.api import Position, ReadQuery
from polynya.wire.headers import BadField, accepts_records, parse_event_id
from polynya.wire.times import parse_time_ms

# the parameters that name a time
_TIMES = {"from_time": Position.AT_TIME, "from_record_time": Position.AT_RECORD_TIME}
LIVE = ("long-poll", "sse")
END_SUFFIX = "~end"  # of the id of the event that reports a closed stream
_TIMEOUT_MS_MAX = 60_000
_BYTE_MAX = 10**18  # larger than every tail, and small enough for messages between cores


class ReadRequest(msgspec.Struct, frozen=True, gc=False):
    """A parsed read of a stream: one page, a long-poll or an event stream."""

    query: ReadQuery
    live: str = ""  # "", "long-poll" or "sse"
    seconds: float = 0.0  # timeout of a long-poll
    incarnation: tuple[int, int] | None = None  # (uid, history) in `Last-Event-ID`
    saw_end: bool = False  # the last event of the reader was the end of the stream


def parse_read(exchange: Exchange, now_ms: Callable[[], int], timeout: float) -> ReadRequest:
    """Parse a read. `timeout`: of a long-poll that names none. Raises `Failure`."""
    query = exchange.query
    live = query.get("live", "")
    if "live" in query:
        if live not in LIVE:
            raise Failure("INVALID_PARAMETER", f"live must be long-poll or sse, not '{live[:64]}'")
        if live == "sse" and (last := exchange.head.headers.get("last-event-id")):
            return _resumed(exchange, last)
        if not query.keys() & {"offset", *_TIMES}:
            raise Failure("OFFSET_REQUIRED")
    given = [name for name in _TIMES if name in query]
    if given:
        if len(given) > 1 or "offset" in query:
            raise Failure(
                "INVALID_PARAMETER",
                "a read takes only one of offset, from_time and from_record_time",
            )
        record, byte = _at_time(given[0], query[given[0]], now_ms())
    else:
        text = query.get("offset", "-1")
        record, byte = Position.START, 0
        if text != "-1":
            record, byte = parse_offset(text, bare=exchange.route.bare_offsets)
    if live == "long-poll" and "timeout_ms" in query:
        timeout = min(_number("timeout_ms", query["timeout_ms"]), _TIMEOUT_MS_MAX) / 1000
    size = PAGE_BYTES_DEFAULT
    if "max_bytes" in query and live != "sse":
        size = min(_number("max_bytes", query["max_bytes"]), PAGE_BYTES_MAX)
    local = "consistency" in query and is_local(exchange)
    accept = exchange.head.headers.get("accept")
    whole = accept is not None and accepts_records(accept)
    place = ReadQuery(
        exchange.route.name,
        record,
        byte,
        size,
        whole_records=whole,
        beyond_tail_waits=bool(live),
        local=local,
        append_times=whole,
        batch_times=whole,
    )
    return ReadRequest(place, live, timeout)


def _resumed(exchange: Exchange, last: str) -> ReadRequest:
    """Parse the `Last-Event-ID` of an event stream, which takes precedence over `offset`."""
    try:
        record, byte, incarnation = parse_event_id(last.removesuffix(END_SUFFIX))
    except BadField as bad:
        raise Failure("INVALID_HEADER", str(bad)) from None
    query = ReadQuery(exchange.route.name, record, byte, local=is_local(exchange))
    return ReadRequest(query, "sse", 0.0, incarnation, last.endswith(END_SUFFIX))


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
