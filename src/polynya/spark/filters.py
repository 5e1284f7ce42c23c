"""Pushdown: the streams, offsets and append times to which a query's filters narrow a read.

Filters on other columns change nothing here. Spark evaluates all filters on the rows that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from polynya.spark.planning import Span

_MAX = 1 << 62


class Narrowed(msgspec.Struct):
    """The part of a read that may have rows. `names` None: every stream; bounds are inclusive."""

    names: frozenset[str] | None = None
    starts: str = ""
    first: int = 0
    last: int = _MAX
    from_ms: int = 0
    to_ms: int = _MAX

    def takes(self, stream: str) -> bool:
        return (self.names is None or stream in self.names) and stream.startswith(self.starts)

    def spans(self, spans: Iterable[Span]) -> list[Span]:
        """Cut spans to the offsets."""
        cut = [
            Span(span.stream, span.uid, max(span.first, self.first), min(span.end, self.last + 1))
            for span in spans
        ]
        return [span for span in cut if span.first < span.end]


def narrow(filters: Sequence[Any]) -> Narrowed:
    """Return the part of a read that all of the filters leave."""
    found = Narrowed()
    for each in filters:
        column = ".".join(getattr(each, "attribute", ()))
        apply = _APPLY.get((column, type(each).__name__))
        if apply is not None:
            apply(found, each.value)
    return found


def _names(found: Narrowed, names: frozenset[str]) -> None:
    found.names = names if found.names is None else found.names & names


def _starts(found: Narrowed, prefix: str) -> None:
    if len(prefix) > len(found.starts):
        found.starts = prefix


def _from(found: Narrowed, first: int) -> None:
    found.first = max(found.first, first)


def _to(found: Narrowed, last: int) -> None:
    found.last = min(found.last, last)


def _at(found: Narrowed, record: int) -> None:
    _from(found, record)
    _to(found, record)


def _since(found: Narrowed, time: Any) -> None:
    if (ms := _ms(time)) is not None:
        found.from_ms = max(found.from_ms, ms)


def _until(found: Narrowed, time: Any) -> None:
    if (ms := _ms(time)) is not None:
        found.to_ms = min(found.to_ms, ms + 1)


def _ms(time: Any) -> int | None:
    """Return a time in ms; None for one without a time zone, which is not unambiguous."""
    if not isinstance(time, datetime) or time.tzinfo is None:
        return None
    return int(time.timestamp() * 1000)


_Apply = Callable[[Narrowed, Any], None]
_APPLY: dict[tuple[str, str], _Apply] = {
    ("stream", "EqualTo"): lambda found, value: _names(found, frozenset([value])),
    ("stream", "In"): lambda found, value: _names(found, frozenset(value)),
    ("stream", "StringStartsWith"): _starts,
    ("offset", "EqualTo"): _at,
    ("offset", "GreaterThan"): lambda found, value: _from(found, value + 1),
    ("offset", "GreaterThanOrEqual"): _from,
    ("offset", "LessThan"): lambda found, value: _to(found, value - 1),
    ("offset", "LessThanOrEqual"): _to,
    ("append_time", "GreaterThan"): _since,
    ("append_time", "GreaterThanOrEqual"): _since,
    ("append_time", "LessThan"): _until,
    ("append_time", "LessThanOrEqual"): _until,
}
