"""Decode one record at a time, exactly. The reference for the fast decoder, which leaves its
difficult records to it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from polynya.lakehouse.decoding.declared import Spelled, Unfit, fitted
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.columns import Column, by_field
from polynya.lakehouse.schema.profiles import is_text, is_typed, scalar_type

TIMESTAMP = pa.timestamp("us", tz="UTC")
_NO_TIME = pa.nulls(1, TIMESTAMP)[0]  # `pa.scalar` would import pandas
_DAY = pa.date32()
NOT_JSON, NOT_OBJECT, DUPLICATE, BAD_TEXT, MISFIT, UNKNOWN = (
    "not_json",
    "not_object",
    "duplicate_field",
    "bad_text",
    "misfit",
    "unknown_field",
)
_PREFIX = r"^\d{4}-\d\d-\d\d"
_DIGITS_MAX = 4000  # Python refuses to parse longer integers


class Problem(msgspec.Struct, frozen=True, gc=False):
    """The reason for a row in NAME__dlq. `field` is a path like `a.b`, or "" for the whole
    record."""

    reason: str
    field: str
    message: str


class Doubled(dict[str, Any]):
    """A JSON object with duplicate fields; it holds the last value of each."""

    fields: frozenset[str]


def parse(record: bytes, *, exact: bool = False) -> tuple[Any, Problem | None]:
    """Return the parsed value of one JSON record, or its problem. `exact` keeps the digits of
    fractions."""
    try:
        text = record.decode()
    except UnicodeDecodeError as fault:
        return None, Problem(
            BAD_TEXT, "", f"the record is not UTF-8: {fault.reason} at byte {fault.start}"
        )
    try:
        return _loads(text, _spelled if exact else _fraction), None
    except (ValueError, RecursionError) as fault:
        return None, Problem(NOT_JSON, "", f"the record is not JSON: {fault}"[:300])


def by_column(
    columns: Sequence[Column],
    value: dict[str, Any],
    problems: list[Problem],
    *,
    unknown_is_problem: bool,
    path: str = "",
    depth: int = 1,
) -> dict[str, Any]:
    """Return values by column name. A value that fits no column is omitted and added to
    `problems`."""
    fields = by_field(columns)
    doubled = value.fields if isinstance(value, Doubled) else frozenset()
    row: dict[str, Any] = {}
    for field, inner in value.items():
        there = fields.get(field)
        here = f"{path}{field}"
        if inner is None and field not in doubled:
            continue
        if there is None:
            if not is_text(field):
                if is_typed(inner, depth):
                    reason = "the field's name has half of a surrogate pair"
                    problems.append(Problem(BAD_TEXT, _escaped(here), reason))
            elif unknown_is_problem and is_typed(inner, depth):
                problems.append(Problem(UNKNOWN, here, "the field has no column in this job"))
        elif field in doubled:
            problems.append(
                Problem(DUPLICATE, here, "the field occurs more than once in its object")
            )
        else:
            placed = _place(there, inner, problems, unknown_is_problem, (here, depth))
            if placed is not None:
                row[placed[0].name] = placed[1]
    return row


def to_times(strings: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Parse ISO-8601 strings with a zone to timestamps, null for other strings. Also return a mask
    of these, or None if there are none."""
    try:
        times = strings.cast(TIMESTAMP)
    except pa.ArrowInvalid:
        pass
    else:
        beyond = _beyond(times)
        return times if beyond is None else pc.if_else(beyond, _NO_TIME, times), beyond
    candidates = pc.fill_null(pc.match_substring_regex(strings, _PREFIX), False)
    kept = pc.if_else(candidates, strings, pa.scalar(None, strings.type))
    try:
        times = kept.cast(TIMESTAMP)
    except pa.ArrowInvalid:
        times = pa.array(
            [None if text is None else to_time(text) for text in kept.to_pylist()], pa.int64()
        ).cast(TIMESTAMP)
    beyond = _beyond(times)
    times = times if beyond is None else pc.if_else(beyond, _NO_TIME, times)
    return times, pc.and_(times.is_null(), strings.is_valid())


def _beyond(times: pa.Array) -> pa.Array | None:
    """Return a mask of the times that are not in the years 0001 to 9999 of UTC, or None if all
    are."""
    numbers = times.cast(pa.int64())
    outer = pc.min_max(numbers).as_py()
    if outer["min"] is None or (outer["min"] >= types.TIME_MIN and outer["max"] <= types.TIME_MAX):
        return None
    beyond = pc.or_(pc.less(numbers, types.TIME_MIN), pc.greater(numbers, types.TIME_MAX))
    return pc.fill_null(beyond, False)


def to_dates(strings: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Parse ISO-8601 dates, null for other strings. Also return a mask of these, or None if there
    are none."""
    candidates = pc.match_substring_regex(strings, types.DATE_PATTERN)
    kept = pc.if_else(pc.fill_null(candidates, False), strings, pa.scalar(None, strings.type))
    try:
        dates = kept.cast(_DAY)
    except pa.ArrowInvalid:
        dates = pa.array(
            [None if text is None else to_date(text) for text in kept.to_pylist()], pa.int32()
        ).cast(_DAY)
    others = pc.and_(dates.is_null(), strings.is_valid())
    return dates, others if pc.any(others).as_py() else None


@lru_cache(4096)
def to_date(text: str) -> int | None:
    """Return the days since 1970 of an ISO-8601 date, else None. The same rule as `to_dates`."""
    if scalar_type(text) != types.DATE:
        return None
    try:
        return pa.scalar(text).cast(_DAY).value  # type: ignore[no-any-return]
    except pa.ArrowInvalid:
        return None


@lru_cache(4096)
def to_time(text: str) -> int | None:
    """Return the microseconds since 1970 of an ISO-8601 string with a zone, else None. The same
    rule as `to_times`."""
    if not (len(text) >= 10 and text[:4].isdecimal() and text[4] == "-" and is_text(text)):
        return None
    try:
        micros = pa.scalar(text).cast(TIMESTAMP).value
    except pa.ArrowInvalid:
        return None
    return micros if types.TIME_MIN <= micros <= types.TIME_MAX else None


def _escaped(name: str) -> str:
    """Return a name with what UTF-8 does not have as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def _loads(text: str, fraction: Callable[[str], int | float]) -> Any:
    hooks: dict[str, Any] = {
        "object_pairs_hook": _object,
        "parse_constant": _refuse,
        "parse_float": fraction,
    }
    try:
        return json.loads(text, **hooks)
    except ValueError as fault:
        if "integer string conversion" not in str(fault):
            raise
    return json.loads(text, **hooks, parse_int=_integer)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    names = [name for name, _ in pairs]
    doubled = Doubled(value)
    doubled.fields = frozenset(name for name in value if names.count(name) > 1)
    return doubled


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _fraction(digits: str) -> int | float:
    """Return the nearest double; the integer of one that is spelled with a fraction of zeros and
    that a double would round."""
    number = float(digits)
    if -types.EXACT_MAX < number < types.EXACT_MAX or not digits.rstrip("0").endswith("."):
        return number
    whole = _integer(digits.partition(".")[0])
    return whole if whole != number else number


def _spelled(digits: str) -> int | float:
    number = _fraction(digits)
    return Spelled(digits) if isinstance(number, float) else number


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS_MAX else float(digits)


def _place(
    there: dict[str, Column],
    value: Any,
    problems: list[Problem],
    unknown_is_problem: bool,
    where: tuple[str, int],
) -> tuple[Column, Any] | None:
    """Return the column and its value, or None. Adds a problem unless the value carries no type."""
    path, depth = where
    why = ""
    for kind, column in there.items():
        if kind != types.JSON and types.claims(kind):
            try:
                return column, fitted(kind, value)
            except Unfit as unfit:
                why = f": {unfit}"
    if isinstance(value, dict):
        if types.MAP in there and not _fits_struct(there, value):
            return _place_map(there[types.MAP], value, problems, unknown_is_problem, where)
        if types.STRUCT in there:
            column = there[types.STRUCT]
            return column, by_column(
                column.children,
                value,
                problems,
                unknown_is_problem=unknown_is_problem,
                path=f"{path}.",
                depth=depth + 1,
            )
    elif isinstance(value, list):
        if types.LIST in there:
            return _place_list(there[types.LIST], value, problems, unknown_is_problem, where)
    else:
        placed = _place_scalar(there, value)
        if placed is not None:
            return placed
        if isinstance(value, str) and not is_text(value):
            problems.append(Problem(BAD_TEXT, path, "the string has half of a surrogate pair"))
            return None
    if types.JSON in there:
        try:
            return there[types.JSON], fitted(types.JSON, value)
        except Unfit as unfit:
            why = f": {unfit}"
    if is_typed(value, depth):
        problems.append(
            Problem(
                MISFIT,
                path,
                f"{_spoken(value)} fits none of the field's columns: {', '.join(there)}{why}",
            )
        )
    return None


def _fits_struct(there: dict[str, Column], value: dict[str, Any]) -> bool:
    """Report whether a field's struct has a column for every key of an object."""
    if types.STRUCT not in there:
        return False
    known = {column.field for column in there[types.STRUCT].children}
    return all(inner is None or key in known for key, inner in value.items())


def _place_map(
    column: Column,
    value: dict[str, Any],
    problems: list[Problem],
    unknown_is_problem: bool,
    where: tuple[str, int],
) -> tuple[Column, Any]:
    """Return the entries of a map, without those that are null or do not fit."""
    path, depth = where
    element = {column.children[0].type: column.children[0]}
    doubled = value.fields if isinstance(value, Doubled) else frozenset()
    entries: list[tuple[str, Any]] = []
    for key, inner in value.items():
        here = f"{path}.{key}"
        if key in doubled:
            problems.append(
                Problem(DUPLICATE, here, "the field occurs more than once in its object")
            )
        elif not is_text(key):
            problems.append(Problem(BAD_TEXT, path, "a key has half of a surrogate pair"))
        elif inner is not None:
            found = _place(element, inner, problems, unknown_is_problem, (here, depth + 1))
            entries += [] if found is None else [(key, found[1])]
    return column, entries


def _place_list(
    column: Column,
    value: list[Any],
    problems: list[Problem],
    unknown_is_problem: bool,
    where: tuple[str, int],
) -> tuple[Column, Any] | None:
    path, depth = where
    element = {column.children[0].type: column.children[0]}
    placed: list[Any] = []
    for inner in value:
        if inner is None:
            placed.append(None)
            continue
        found = _place(element, inner, problems, unknown_is_problem, (f"{path}[]", depth + 1))
        if found is None:
            if not is_typed(inner, depth + 1):
                problems.append(
                    Problem(
                        MISFIT,
                        path,
                        f"{_spoken(inner)} does not fit the element type of the field's list",
                    )
                )
            return None
        placed.append(found[1])
    return column, placed


def _place_scalar(there: dict[str, Column], value: Any) -> tuple[Column, Any] | None:
    if isinstance(value, bool):
        return (there[types.BOOLEAN], value) if types.BOOLEAN in there else None
    if isinstance(value, str):
        time = to_time(value) if types.TIME in there else None
        if time is not None:
            return there[types.TIME], time
        day = to_date(value) if types.DATE in there else None
        if day is not None:
            return there[types.DATE], day
        return (there[types.STRING], value) if types.STRING in there and is_text(value) else None
    whole = _whole(value)
    if types.LONG in there and whole is not None:
        return there[types.LONG], whole
    large = whole if whole is not None else value
    if types.DECIMAL in there and isinstance(large, int) and abs(large) <= types.DECIMAL_MAX:
        return there[types.DECIMAL], Decimal(large)
    number = _exact(value) if types.DOUBLE in there else None
    return None if number is None else (there[types.DOUBLE], number)


def _whole(value: int | float) -> int | None:
    if isinstance(value, int):
        return value if types.LONG_MIN <= value <= types.LONG_MAX else None
    return int(value) if abs(value) < types.EXACT_MAX and value.is_integer() else None


def _exact(value: int | float) -> float | None:
    """Return the number as a double, or None if a double cannot hold it."""
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number) or (isinstance(value, int) and int(number) != value):
        return None
    return number


def _spoken(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    spoken = next((word for kind, word in kinds.items() if isinstance(value, kind)), "")
    if spoken:
        return spoken
    if isinstance(value, int) and abs(value) >= types.EXACT_MAX:
        return f"an integer of {value.bit_length()} bits, which no column can hold exactly,"
    return "a number" if math.isfinite(value) else "a number beyond the range of a double"
