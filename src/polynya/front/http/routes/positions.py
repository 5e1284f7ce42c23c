"""Parse read parameters: `offset`, `from_time`, `max_bytes`, `timeout_ms` and `consistency`."""

from __future__ import annotations

from polynya.base.limits import PAGE_BYTES_DEFAULT, PAGE_BYTES_MAX
from polynya.base.offsets import parse_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.service.api import Position
from polynya.wire.headers import BadField
from polynya.wire.times import parse_time_ms

_TIMEOUT_MS_MAX = 60_000
_BYTE_MAX = 10**18  # larger than every tail, and small enough for messages between cores


def has_position(exchange: Exchange) -> bool:
    """Report whether the request specifies a start."""
    return "offset" in exchange.query or "from_time" in exchange.query


def parse_position(exchange: Exchange, now_ms: int) -> tuple[int, int]:
    """Return (record or a `Position`, byte) of `offset` or `from_time`. Raises `Failure`."""
    offset = exchange.query.get("offset")
    if "from_time" in exchange.query:
        if offset is not None:
            raise Failure("INVALID_PARAMETER", "a read takes offset or from_time, not both")
        return _at_time(exchange.query["from_time"], now_ms)
    return parse_offset("-1" if offset is None else offset, bare=exchange.route.bare_offsets)


def parse_offset(text: str, *, bare: bool) -> tuple[int, int]:
    """Parse an offset into (record or a `Position`, byte). `bare`: allow a byte position. Raises `Failure`."""
    if text == "-1":
        return Position.START, 0
    if text == "now":
        return Position.NOW, 0
    at = parse_token(text)
    if at is not None:
        return at
    if bare and text.isdecimal() and text.isascii() and len(text) <= 20:
        return Position.AT_BYTE, min(int(text), _BYTE_MAX)
    raise Failure("INVALID_OFFSET", f"'{text[:64]}' is not a valid offset: it must be -1, now, or an offset returned by this server")


def _at_time(text: str, now_ms: int) -> tuple[int, int]:
    try:
        return Position.AT_TIME, parse_time_ms(text, now_ms)
    except BadField as bad:
        raise Failure("INVALID_PARAMETER", f"from_time: {bad}") from None


def is_local(exchange: Exchange) -> bool:
    """Report whether the read uses this node's state (`consistency=local`) instead of all acknowledged records. Raises `Failure`."""
    text = exchange.query.get("consistency")
    if text is None or text == "leader":
        return False
    if text == "local":
        return True
    raise Failure("INVALID_PARAMETER", "consistency must be leader (the default: all acknowledged records) or local (this node's replica)")


def page_bytes(exchange: Exchange) -> int:
    text = exchange.query.get("max_bytes")
    if text is None:
        return PAGE_BYTES_DEFAULT
    return min(_number("max_bytes", text), PAGE_BYTES_MAX)


def timeout_seconds(exchange: Exchange, default: float) -> float:
    text = exchange.query.get("timeout_ms")
    return default if text is None else min(_number("timeout_ms", text), _TIMEOUT_MS_MAX) / 1000


def _number(name: str, text: str) -> int:
    if text.isdecimal() and text.isascii() and len(text) <= 15 and int(text) > 0:
        return int(text)
    raise Failure("INVALID_PARAMETER", f"{name} must be a whole number above 0, not '{text[:64]}'")
