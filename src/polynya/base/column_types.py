"""The types that columns of a table can be declared with: `long`, `decimal(10,2)`, `list<uuid>`."""

from __future__ import annotations

import re

PLAIN = ("long", "double", "decimal", "string", "timestamptz", "date", "boolean")
EPOCHS = ("epoch_seconds", "epoch_millis", "epoch_micros")  # numbers, as times in UTC
NARROW = ("int", "float", "uuid", "timestamp", *EPOCHS, "json")
DIGITS_MAX = 38  # of a decimal in all readers
LISTS_MAX = 7  # of lists in lists: columns have eight levels
EXPECTED = f"{', '.join((*PLAIN, *NARROW))}, decimal(PRECISION,SCALE) or list<TYPE>"
STORED_AS = {**dict.fromkeys(EPOCHS, "timestamptz"), "uuid": "string"}

_DECIMAL = re.compile(r"decimal\((\d{1,2})(?:,(\d{1,2}))?\)", re.ASCII)


class BadType(ValueError):
    """The text is no type of a column; the message gives the reason."""


def canonical_type(text: str) -> str:
    """Return a type in its canonical spelling. Raises BadType."""
    kind, lists = "".join(text.split()), 0
    while kind.startswith("list<") and kind.endswith(">"):
        kind, lists = kind[5:-1], lists + 1
    if lists > LISTS_MAX:
        raise BadType(f"the type has {lists} lists in each other; at most {LISTS_MAX} can be")
    if kind not in PLAIN and kind not in NARROW:
        kind = _decimal(kind)
    return "list<" * lists + kind + ">" * lists


def _decimal(text: str) -> str:
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise BadType(f"expected {EXPECTED}")
    precision, scale = int(match[1]), int(match[2] or 0)
    if not (0 < precision <= DIGITS_MAX and scale <= precision):
        raise BadType(
            f"a decimal has 1 to {DIGITS_MAX} digits, and at most as many of them are behind the "
            "point: decimal(10,2)"
        )
    return f"decimal({precision},{scale})"
