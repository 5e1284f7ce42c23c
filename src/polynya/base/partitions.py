"""Partitions of a table: expressions such as `day(timestamp)`, their spelling, and the columns that
they are for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from polynya.base.column_types import STORED_AS

PARTITIONS_MAX = 4  # more would make many small files
BUCKETS_MAX = 1024
IDENTITY, BUCKET = "identity", "bucket"
TIMES = ("hour", "day", "month", "year")
OWN_TYPES = {  # the columns that every table has, without those that are no partition
    "stream": "string",
    **dict.fromkeys(("incarnation", "offset", "byte_offset", "batch"), "long"),
    **dict.fromkeys(("timestamp", "append_time"), "timestamptz"),
    "key": "binary",
}
_ALLOWED = {  # transform: types of its column
    IDENTITY: ("string", "long", "boolean", "date"),
    BUCKET: ("string", "long", "date", "timestamptz", "binary"),
    "hour": ("timestamptz",),
    **dict.fromkeys(("day", "month", "year"), ("timestamptz", "date")),
}
_CALL = re.compile(r"(\w+)\s*\(\s*(?:(\d{1,9})\s*,\s*)?([^(),]+?)\s*\)")
_USAGE = (
    "expected a column, or day, hour, month or year of a time, or buckets: day(timestamp), "
    "bucket(16, key)"
)


class BadPartition(ValueError):
    """The partitions are not valid; the message gives the reason."""


class Partition(NamedTuple):
    """One expression: a transform of a column. `field` is a column of every table or a declared
    field."""

    field: str
    transform: str
    buckets: int = 0

    def __str__(self) -> str:
        if self.transform == IDENTITY:
            return self.field
        width = f"{self.buckets}, " if self.transform == BUCKET else ""
        return f"{self.transform}({width}{self.field})"


def parse_partition(text: str) -> Partition:
    """Return an expression's parts. Raises BadPartition."""
    text = text.strip()
    match = _CALL.fullmatch(text)
    if match is None:
        if not text or set(text) & set("(),"):
            raise BadPartition(f"'{text}' is no partition; {_USAGE}")
        return Partition(text, IDENTITY)
    transform, width, field = match[1].lower(), match[2], match[3]
    if transform == BUCKET and width is not None and 2 <= int(width) <= BUCKETS_MAX:
        return Partition(field, transform, int(width))
    if transform == BUCKET:
        raise BadPartition(
            f"'{text}' has no valid number of buckets; expected 2 to {BUCKETS_MAX}: "
            f"bucket(16, {field})"
        )
    if transform not in TIMES or width is not None:
        raise BadPartition(f"'{text}' is no partition; {_USAGE}")
    return Partition(field, transform)


def parse_partitions(texts: Sequence[str], declared: Mapping[str, str] | None) -> list[Partition]:
    """Return the parts of all expressions of a table with these declared columns; None: its columns
    are not known. Raises BadPartition."""
    found = [parse_partition(text) for text in texts]
    if len(found) > PARTITIONS_MAX:
        raise BadPartition(f"{len(found)} partitions are given; at most {PARTITIONS_MAX} can be")
    if len({(each.field, each.transform) for each in found}) < len(found):
        raise BadPartition(f"two partitions are equal: {', '.join(map(str, found))}")
    if declared is not None:
        for each in found:
            check_type(each, OWN_TYPES.get(each.field) or declared.get(each.field, ""))
    return found


def check_type(each: Partition, kind: str) -> None:
    """Raise BadPartition if the expression cannot be of a column of this type ("": there is none)."""
    if "." in each.field and kind:
        raise BadPartition(f"'{each}' names a field of an object; expected a field of the record")
    if not kind:
        raise BadPartition(
            f"'{each}' names no column of every table and no declared one; declare it: --column "
            f"{each.field}:TYPE"
        )
    if STORED_AS.get(kind, kind) not in _ALLOWED[each.transform]:
        raise BadPartition(
            f"'{each}' is of a column of type {kind}; expected one of type "
            f"{', '.join(_ALLOWED[each.transform])}"
        )
