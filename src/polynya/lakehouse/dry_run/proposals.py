"""Types for the fields of JSON records, proposed by the values that were seen. Pure.

A candidate is proposed if every value fits it, by the rule of the jobs (`fitted`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from polynya.lakehouse.decoding.declared import Spelled, Unfit, fitted
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.profiles import scalar_type

FIELDS_MAX = 1000  # that are looked at
VALUES_MAX = 5000  # of one field
_TIME_NAME = re.compile(
    r"(^|_)(ts|at|time|timestamp|date|epoch|created|updated)(_|$)|(At|Time|Date|Ts)$"
)
_MONEY = re.compile(r"-?\d{1,15}\.\d{1,6}", re.ASCII)
_SECONDS = (1_000_000_000, 4_102_444_800)  # 2001 to 2100
_UNITS = {"epoch_seconds": 1, "epoch_millis": 1000, "epoch_micros": 1_000_000}


class _Seen(msgspec.Struct):
    numbers: list[Any] = []
    texts: list[str] = []
    others: int = 0


class Fields:
    """The scalars of records by field: `a.b`, and `a[]` for the elements of an array."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def add(self, value: Any, path: str = "", depth: int = 0) -> None:
        """Add a parsed record."""
        if value is None or depth > types.DEPTH_MAX:
            return
        if isinstance(value, dict):
            for name, inner in value.items():
                self.add(inner, f"{path}.{name}" if path else name, depth + 1)
        elif isinstance(value, list):
            for inner in value:
                self.add(inner, f"{path}[]", depth + 1)
        elif path in self._seen or len(self._seen) < FIELDS_MAX:
            _note(self._seen.setdefault(path, _Seen()), value)

    def proposed(self) -> dict[str, str]:
        """Return the types that fit all values, by field, where samples would choose another."""
        found = ((path, _proposal(path, seen)) for path, seen in self._seen.items())
        return {path: kind for path, kind in found if kind}


def _note(seen: _Seen, value: Any) -> None:
    if isinstance(value, str):
        if len(seen.texts) < VALUES_MAX:
            seen.texts.append(value)
    elif isinstance(value, bool):
        seen.others += 1
    elif len(seen.numbers) < VALUES_MAX:
        seen.numbers.append(value)


def _proposal(path: str, seen: _Seen) -> str:
    """Return a type that says more than that of samples, or ""."""
    kinds = (bool(seen.numbers), bool(seen.texts), bool(seen.others))
    if sum(kinds) > 1:
        return "json"
    if seen.texts:
        return next(_for_texts(seen.texts), "")
    return next(_for_numbers(path, seen.numbers), "") if seen.numbers else ""


def _for_texts(texts: list[str]) -> Iterator[str]:
    kinds = {scalar_type(text) for text in texts}
    if kinds != {types.STRING}:
        return
    for kind in (types.UUID, types.LOCAL_TIME):
        if _all_fit(kind, texts):
            yield kind
    if all(_MONEY.fullmatch(text) for text in texts):
        yield from _decimal(texts)


def _for_numbers(path: str, numbers: list[Any]) -> Iterator[str]:
    name = path.removesuffix("[]").rpartition(".")[2]
    for kind, unit in _UNITS.items() if _TIME_NAME.search(name) else ():
        low, high = (bound * unit for bound in _SECONDS)
        if all(low <= number < high for number in numbers) and _all_fit(kind, numbers):
            yield kind
    spelled = [number.digits for number in numbers if isinstance(number, Spelled)]
    if len(spelled) == len(numbers) and all(_MONEY.fullmatch(text) for text in spelled):
        yield from _decimal(spelled)


def _decimal(texts: list[str]) -> Iterator[str]:
    """Yield the decimal for numbers that are all spelled with the same few digits of a fraction, as
    amounts of money are."""
    scales = {len(text.partition(".")[2]) for text in texts}
    if len(scales) == 1 and (scale := scales.pop()) <= 4:
        whole = max(len(text.lstrip("-").partition(".")[0]) for text in texts)
        kind = types.scaled(max(12, whole + scale), scale)
        if _all_fit(kind, texts):
            yield kind


def _all_fit(kind: str, values: list[Any]) -> bool:
    try:
        for value in values:
            fitted(kind, value)
    except Unfit:
        return False
    return True


def options_of(proposals: Mapping[str, str], declared: Mapping[str, str]) -> dict[str, str]:
    """Return proposals as options of a creation: elements of arrays as lists, without those that
    are declared so already, and fields that no declaration can name."""
    found = {}
    for path, kind in proposals.items():
        field, inner = path, kind
        while field.endswith("[]"):
            field, inner = field[:-2], f"list<{inner}>"
        if "[]" not in field and all(field.split(".")) and declared.get(field) != inner:
            found[field] = inner
    return found
