"""Scalars of schemas: the column types of times, decimals and the like, and their values. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from polynya.lakehouse.payloads.nodes import Node
from polynya.lakehouse.schema import types

_EXACT = Context(prec=10_000)
_DAY_MIN, _DAY_MAX = types.TIME_MIN // 86_400_000_000, types.TIME_MAX // 86_400_000_000
_MIDNIGHT = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp(kind: str, per_micro: int = 1, micros: int = 1) -> Node:
    """Return the type of a time as a number: `micros` microseconds each, or `per_micro` in one."""

    def convert(value: int) -> int:
        found = value // per_micro * micros
        if not types.TIME_MIN <= found <= types.TIME_MAX:
            raise ValueError("the time is not in the years 0001 to 9999")
        return found

    return Node(kind, convert=convert)


def date() -> Node:
    """Return the type of a date as days since 1970."""

    def convert(value: int) -> int:
        if not _DAY_MIN <= value <= _DAY_MAX:
            raise ValueError("the date is not in the years 0001 to 9999")
        return value

    return Node(types.DATE, convert=convert)


def time_of_day(micros: int) -> Node:
    """Return the type of a time of day as a number of `micros` microseconds: ISO text, as Delta has
    no such type."""

    def convert(value: int) -> str:
        if not 0 <= value * micros < 86_400_000_000:
            raise ValueError("the time of day is not from 00:00 to 24:00")
        found = (_MIDNIGHT + timedelta(microseconds=value * micros)).time()
        return found.isoformat("milliseconds" if micros > 1 else "microseconds")

    return Node(types.STRING, convert=convert)


def decimal(precision: int, scale: int) -> Node:
    """Return the type of a decimal as its unscaled bytes; text beyond 38 digits."""

    def exact(value: bytes) -> Decimal:
        number = Decimal(int.from_bytes(value, signed=True))
        return number.scaleb(-scale, _EXACT)

    def convert(value: bytes) -> Decimal:
        found = exact(value)
        if len(found.as_tuple().digits) > precision:
            raise ValueError(f"the number has more than {precision} digits")
        return found

    if precision > types.DECIMAL_DIGITS:
        return Node(types.STRING, convert=lambda value: f"{exact(value):f}")
    return Node(types.scaled(precision, scale), convert=convert)


def uuid_text() -> Node:
    """Return the type of a UUID, as text or as 16 bytes: its text, as Delta has no such type."""

    def convert(value: Any) -> str:
        return str(uuid.UUID(bytes=value) if isinstance(value, bytes) else uuid.UUID(value))

    return Node(types.STRING, convert=convert)


def plain(kind: str, convert: Callable[[Any], Any] | None = None) -> Node:
    """Return a scalar type."""
    return Node(kind, convert=convert)
