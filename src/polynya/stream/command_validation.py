"""Validation of commands that decode but carry impossible values: numbers out of range, or lengths
that do not match the payload. Pure.

The leader rejects such a command before it proposes it, and a follower before it accepts the entry
(docs/decisions/0022). Once committed, it would crash every member that applies it. The bounds are
wide: they admit every command that any release has proposed, including client requests that a rule
then refused. Entries of a member's own journal are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from polynya.base.limits import GROUPS_MAX, TIME_MS_MAX

Span = tuple[int, int]
Rows = tuple[str, tuple[Span | None, ...]]  # a list field, and the spans of its tuples
Check = Callable[[Any], str]
COUNTER: Span = (0, 2**62)  # records, bytes, terms: the sum of two fits in 63 bits
WORD: Span = (0, 2**32 - 1)
WIDE: Span = (0, 2**63 - 1)  # uids, which are never added to
ANY: Span = (-(2**63), 2**64 - 1)  # values that are only compared; a client may have sent them
FROM_TAIL: Span = (-3, 2**62)  # positions; special values are below 0
TIME: Span = (0, TIME_MS_MAX)
DATE: Span = (-(2**53), 2**53)  # dates, including those before 1970
AMOUNT: Span = (0, 2**53)  # amounts that the state sums up
GROUP: Span = (0, GROUPS_MAX)
NODE: Span = (0, 2**31)  # the cluster map's rules decide which numbers exist
NONE: Mapping[str, Span] = {}

SPANS: dict[type, Mapping[str, Span]] = {}  # the range of each integer field, by struct
ROWS: dict[type, Rows] = {}
CHECKS: dict[type, Check] = {}
# of the common form of a command, without a fault: quick checks that leave nothing for the full one
_COMMON: dict[type, Callable[[Any], bool]] = {}
StructT = TypeVar("StructT", bound=type[msgspec.Struct])
CommonT = TypeVar("CommonT", bound=Callable[[Any], bool])


def bounded(
    bounds: Mapping[str, Span | None], *, rows: Rows | None = None, check: Check | None = None
) -> Callable[[StructT], StructT]:
    """Register the valid values of a command or of a struct in one.

    `bounds`: the range of each whole number; None: `check` judges it. `rows`: the ranges of the
    numbers in each tuple of a list field. `check` judges several fields together, and the structs
    inside: it returns the fault, or "". It comes last."""

    def register(kind: StructT) -> StructT:
        numbers = {
            field
            for base in kind.__mro__
            for field, hint in vars(base).get("__annotations__", {}).items()
            if str(hint).startswith(("int", "Count", "Natural", "Annotated[int"))
        }
        if numbers != bounds.keys():
            strange = ", ".join(sorted(numbers ^ bounds.keys()))
            raise TypeError(f"{kind.__name__} needs one bound for each whole number: {strange}")
        SPANS[kind] = {field: span for field, span in bounds.items() if span is not None}
        if rows is not None:
            ROWS[kind] = rows
        if check is not None:
            CHECKS[kind] = check
        return kind

    return register


def common_form(kind: type) -> Callable[[CommonT], CommonT]:
    """Register a quick check that a command is of its common form, and valid."""

    def register(is_common: CommonT) -> CommonT:
        _COMMON[kind] = is_common
        return is_common

    return register


def fault_of(command: Any) -> str:
    """Return why the command is invalid, or "" if it is valid."""
    is_common = _COMMON.get(type(command))
    if is_common is not None and is_common(command):
        return ""
    return describe_fault(command)


def describe_fault(value: Any) -> str:
    """Return the fault of a command or of a nested struct, or "". The full check."""
    kind = type(value)
    fault = out_of_span(value)
    if fault:
        return fault
    if kind in ROWS:
        fault = _rows(kind, getattr(value, ROWS[kind][0]))
        if fault:
            return fault
    check = CHECKS.get(kind)
    return "" if check is None else check(value)


def out_of_span(value: Any) -> str:
    """Return the fault of a struct's own numbers, or ""."""
    kind = type(value)
    for field, (low, high) in SPANS.get(kind, NONE).items():
        number = getattr(value, field)
        if number is not None and not low <= number <= high:
            return f"{kind.__name__}.{field} is {number}; expected {low} to {high}"
    return ""


def _rows(kind: type, rows: Iterable[tuple[Any, ...]]) -> str:
    field, spans = ROWS[kind]
    for row in rows:
        for number, span in zip(row, spans, strict=True):
            if span is not None and not span[0] <= number <= span[1]:
                return f"{kind.__name__}.{field} has {number}; expected {span[0]} to {span[1]}"
    return ""


def first_fault(values: Iterable[Any]) -> str:
    """Return the first fault of several structs; None values are skipped."""
    return next(
        (fault for value in values if value is not None and (fault := describe_fault(value))), ""
    )


def nested(*fields: str) -> Check:
    """Return the check that judges only the structs in these fields."""
    return lambda value: first_fault(getattr(value, field) for field in fields)
