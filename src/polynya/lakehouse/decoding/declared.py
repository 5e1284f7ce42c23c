"""Values of the types that only declarations give a column: one at a time (`fitted`), and as arrays
that pyarrow parsed (`parsed_type`, `converted`).

A value fits exactly or not at all: a decimal is never rounded, a time never cut. Only a `float`
takes the nearest number, and that of fractions alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from polynya.lakehouse.schema import types

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
_EXACT = Context(prec=100)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
_NUMBER_CHARACTERS_MAX = 200
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_LOCAL = types.DATE_PATTERN[:-1] + r"[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?$"
_UUID_TEXT, _LOCAL_TEXT = (re.compile(each, re.ASCII) for each in (_UUID, _LOCAL))
_MICROSECOND = datetime.resolution
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Mask = npt.NDArray[np.bool_]


class Unfit(ValueError):
    """A value does not fit a column; the message gives the reason."""


class Spelled(float):
    """A fraction with its digits as the record has them."""

    digits: str

    def __new__(cls, digits: str) -> Spelled:
        made = super().__new__(cls, digits)
        made.digits = digits
        return made


def fitted(kind: str, value: Any) -> Any:
    """Return a parsed JSON value other than null as the value of a column. Raises Unfit."""
    if (digits := types.digits_of(kind)) is not None:
        return _decimal(value, *digits)
    if kind in types.EPOCHS:
        return _epoch(value, types.EPOCHS[kind])
    return _FITTED[kind](value)


def _int(value: Any) -> int:
    number = _whole(value)
    if number is None or not INT_MIN <= number <= INT_MAX:
        raise Unfit("expected an integer of 32 bits")
    return number


def _whole(value: Any) -> int | None:
    if isinstance(value, float):
        whole = abs(value) < types.EXACT_MAX and value.is_integer()
        return int(value) if whole else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit("expected a number")
    try:
        with np.errstate(over="ignore"):
            nearest = np.float32(value)
    except OverflowError:
        raise Unfit("the number is beyond the range of a float") from None
    if not np.isfinite(nearest):
        raise Unfit("the number is beyond the range of a float")
    whole = value if isinstance(value, int) else _whole(value)
    if whole is not None and int(nearest) != whole:
        raise Unfit("a float cannot hold the integer exactly")
    return float(nearest)


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    unscaled = _unscaled(value, scale, f"more than {scale} digits behind the point")
    if abs(unscaled) >= 10**precision:
        raise Unfit(f"more than {precision - scale} digits before the point")
    return Decimal(unscaled).scaleb(-scale, _EXACT)


def _epoch(value: Any, digits_after: int) -> int:
    micros = _unscaled(value, digits_after, "a time has whole microseconds")
    if not types.TIME_MIN <= micros <= types.TIME_MAX:
        raise Unfit("the time is not in the years 0001 to 9999")
    return micros


def _unscaled(value: Any, digits_after: int, otherwise: str) -> int:
    """Return a number times 10 to `digits_after`, if that is an integer."""
    number = _number(value).as_tuple()
    digits, exponent = "".join(map(str, number.digits)), number.exponent
    if not isinstance(exponent, int):
        raise Unfit("expected a number")
    significant = digits.rstrip("0")
    if not significant:
        return 0
    zeros = exponent + len(digits) - len(significant) + digits_after
    if zeros < 0:
        raise Unfit(otherwise)
    if len(significant.lstrip("0")) + zeros > 2 * types.DECIMAL_DIGITS:
        raise Unfit("the number is too large")
    whole = int(significant) * 10**zeros
    return -whole if number.sign else whole


def _number(value: Any) -> Decimal:
    """Return the exact number of a JSON number, or of a text that spells one."""
    if isinstance(value, Spelled):
        return Decimal(value.digits)
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    short = isinstance(value, str) and len(value) <= _NUMBER_CHARACTERS_MAX
    if not (short and _NUMBER.fullmatch(value)):
        raise Unfit("expected a number, or a text that spells one")
    return Decimal(value)


def _uuid(value: Any) -> str:
    if not (isinstance(value, str) and _UUID_TEXT.match(value) and len(value) == 36):
        raise Unfit("expected a UUID: 01234567-89ab-cdef-0123-456789abcdef")
    return value.lower()


def _local_time(value: Any) -> int:
    if isinstance(value, str) and _LOCAL_TEXT.match(value) and not value.endswith("\n"):
        try:
            return (datetime.fromisoformat(value).replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
        except ValueError:
            pass
    raise Unfit("expected a time without a zone: 2026-01-31T09:30:00")


def json_text(value: Any) -> str:
    """Return a parsed JSON value as text: numbers with all digits of the record. Raises Unfit."""
    try:
        return _text(value)
    except RecursionError:
        raise Unfit("the value is nested too deeply") from None


def _text(value: Any) -> str:
    if isinstance(value, dict):
        if hasattr(value, "fields"):
            raise Unfit("a field occurs more than once in its object")
        inner = (f"{_quoted(name)}:{_text(each)}" for name, each in value.items())
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    return value.digits if isinstance(value, Spelled) else json.dumps(value)


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    try:
        quoted.encode()
    except UnicodeEncodeError:
        raise Unfit("a string has half of a surrogate pair") from None
    return quoted


_FITTED: dict[str, Callable[[Any], Any]] = {
    types.INT: _int,
    types.FLOAT: _float,
    types.UUID: _uuid,
    types.LOCAL_TIME: _local_time,
    types.JSON: json_text,
}


def parsed_type(kind: str) -> pa.DataType | None:
    """Return the type to parse a field as whose only column has this declared type; None: its
    records are decoded one by one."""
    if (digits := types.digits_of(kind)) is not None:
        # pyarrow checks the digits of the text before it scales the number, which may overflow
        return pa.decimal128(*digits) if sum(digits) <= types.DECIMAL_DIGITS else None
    if kind in types.EPOCHS:
        return pa.int64()
    return _PARSED.get(kind)


_PARSED = {
    types.INT: pa.int64(),
    types.FLOAT: pa.float64(),
    types.UUID: pa.string(),
    types.LOCAL_TIME: pa.string(),
}


def converted(kind: str, array: pa.Array, redo: Mask) -> pa.Array:
    """Return a parsed field's array as that of its column. Sets `redo` where a value may not
    fit."""
    if (digits := types.digits_of(kind)) is not None:
        most = Decimal(10 ** digits[0] - 1).scaleb(-digits[1], _EXACT)
        low, high = (pa.scalar(each, array.type) for each in (most.copy_negate(), most))
        return _within(array, low, high, redo)
    if kind in types.EPOCHS:
        unit = 10 ** types.EPOCHS[kind]
        low, high = -(-types.TIME_MIN // unit), types.TIME_MAX // unit
        return pc.multiply(_within(array, low, high, redo), unit).cast(pa.timestamp("us", tz="UTC"))
    if kind == types.INT:
        return _within(array, INT_MIN, INT_MAX, redo).cast(pa.int32())
    if kind == types.FLOAT:
        return _narrowed(array, redo)
    if kind == types.UUID:
        return pc.ascii_lower(_kept(array, pc.match_substring_regex(array, _UUID), redo))
    texts = _kept(array, pc.match_substring_regex(array, _LOCAL), redo)
    try:
        return texts.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:  # such as a 30th of February
        redo |= _numpy(array.is_valid())
        return pa.nulls(len(array), pa.timestamp("us"))


def _within(array: pa.Array, low: Any, high: Any, redo: Mask) -> pa.Array:
    return _kept(array, pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high)), redo)


def _kept(array: pa.Array, mask: pa.Array, redo: Mask) -> pa.Array:
    """Return the values of a mask; the others, except nulls, are to be decoded again."""
    redo |= _numpy(pc.invert(pc.fill_null(mask, True)))
    return pc.if_else(pc.fill_null(mask, False), array, pa.scalar(None, array.type))


def _narrowed(array: pa.Array, redo: Mask) -> pa.Array:
    nearest = array.cast(pa.float32())
    again = pc.not_equal(nearest.cast(pa.float64()), array)
    whole = pc.or_(pc.equal(pc.floor(array), array), pc.invert(pc.is_finite(nearest)))
    redo |= _numpy(pc.fill_null(pc.and_(again, whole), False))
    redo |= _numpy(pc.fill_null(pc.greater_equal(pc.abs(array), float(types.EXACT_MAX)), False))
    return nearest


def _numpy(mask: pa.Array) -> Mask:
    return np.asarray(mask.to_numpy(zero_copy_only=False), np.bool_)
