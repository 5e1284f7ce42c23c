"""Where a read begins, and how much it takes: the parameters `offset`, `max_bytes` and `timeout_ms`."""

from __future__ import annotations

from polynya.base.limits import PAGE_BYTES_DEFAULT, PAGE_BYTES_MAX
from polynya.base.offsets import parse_token
from polynya.front.http.errors import Failure
from polynya.front.http.exchange import Exchange
from polynya.service.api import Position

_TIMEOUT_MS_MAX = 60_000
_BYTE_MAX = 10**18  # beyond every tail, and still a number that travels between cores


def parse_position(exchange: Exchange) -> tuple[int, int]:
    """(record or a `Position`, byte) of `offset`. Raises `Failure`."""
    offset = exchange.query.get("offset")
    if offset is None or offset == "-1":
        return Position.START, 0
    if offset == "now":
        return Position.NOW, 0
    at = parse_token(offset)
    if at is not None:
        return at
    if exchange.route.bare_offsets and offset.isdecimal() and offset.isascii() and len(offset) <= 20:
        return Position.AT_BYTE, min(int(offset), _BYTE_MAX)
    raise Failure("INVALID_OFFSET")


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
    raise Failure("INVALID_PARAMETER", f"{name} must be a whole number above 0")
