"""Profiles of JSON values: the types that samples of a field hold. Pure and deterministic."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from polynya.lakehouse.schema import types

_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)", re.ASCII
)

_OUTER_YEARS = ("0000", "0001", "9999")

_DATE = re.compile(types.DATE_PATTERN[1:-1], re.ASCII)


class FieldProfile(msgspec.Struct):
    """The observed values of a field: counts by type in order of first occurrence, `fields` of
    objects, `element` of arrays."""

    types: dict[str, int] = {}
    fields: dict[str, FieldProfile] = {}
    element: FieldProfile | None = None

    @property
    def total(self) -> int:
        return sum(self.types.values())


def observe(seen: FieldProfile, value: Any, depth: int = 0) -> None:
    """Add one parsed JSON value. null, {} and [] carry no type."""
    if value is None:
        return
    if isinstance(value, dict | list) and depth >= types.DEPTH_MAX:
        if value:
            seen.types[types.JSON] = seen.types.get(types.JSON, 0) + 1
    elif isinstance(value, dict):
        if value:
            seen.types[types.STRUCT] = seen.types.get(types.STRUCT, 0) + 1
            for name, inner in value.items():
                if not (name.isascii() or is_text(name)):
                    continue
                observe(seen.fields.setdefault(name, FieldProfile()), inner, depth + 1)
    elif isinstance(value, list):
        if value:
            seen.types[types.LIST] = seen.types.get(types.LIST, 0) + 1
            seen.element = seen.element or FieldProfile()
            for inner in value:
                observe(seen.element, inner, depth + 1)
    else:
        kind = scalar_type(value)
        seen.types[kind] = seen.types.get(kind, 0) + 1


def is_text(text: str) -> bool:
    """Report whether a parsed JSON string can be encoded as UTF-8: escapes can form half of a
    surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_typed(value: Any, depth: int) -> bool:
    """Report whether `observe` would find a type in a field's value at this depth (1: a field of
    the record)."""
    if isinstance(value, dict | list) and depth >= types.DEPTH_MAX:
        return bool(value)
    if isinstance(value, dict):
        return any(is_typed(inner, depth + 1) for inner in value.values())
    if isinstance(value, list):
        return any(is_typed(inner, depth + 1) for inner in value)
    return value is not None


def scalar_type(value: Any) -> str:
    """Return the type of a parsed JSON scalar other than null; `WHOLE`, `WIDE` and `HUGE` are told
    apart."""
    if isinstance(value, bool):
        return types.BOOLEAN
    if isinstance(value, int):
        if types.LONG_MIN <= value <= types.LONG_MAX:
            return types.LONG if int(float(value)) == value else types.WIDE
        return types.DECIMAL if abs(value) <= types.DECIMAL_MAX else types.HUGE
    if isinstance(value, float):
        if not math.isfinite(value):
            return types.HUGE
        return types.WHOLE if abs(value) < types.EXACT_MAX and value.is_integer() else types.DOUBLE
    if len(value) == 10 and _DATE.fullmatch(value):
        return types.DATE
    return (
        types.TIME
        if len(value) >= 17 and _TIME.fullmatch(value) and _is_known(value)
        else types.STRING
    )


def _is_known(time: str) -> bool:
    """Report whether a time with a zone is in the years 0001 to 9999 of UTC. Only the outermost
    years need a look."""
    if time[:4] not in _OUTER_YEARS:
        return True
    try:
        datetime.fromisoformat(time).astimezone(UTC)
    except (ValueError, OverflowError):
        return False
    return True


def merged(profiles: Iterable[FieldProfile]) -> FieldProfile:
    """Return one profile of all values."""
    found = FieldProfile()
    for each in profiles:
        _merge(found, each)
    return found


def _merge(into: FieldProfile, seen: FieldProfile) -> None:
    for kind, number in seen.types.items():
        into.types[kind] = into.types.get(kind, 0) + number
    for name, inner in seen.fields.items():
        _merge(into.fields.setdefault(name, FieldProfile()), inner)
    if seen.element is not None:
        into.element = into.element or FieldProfile()
        _merge(into.element, seen.element)
