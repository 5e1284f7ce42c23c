"""The partitions of a table as its columns: which column each is made of, and its name in Iceberg.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polynya.base.errors import CorruptData
from polynya.base.partitions import BUCKET, IDENTITY, OWN_TYPES, parse_partitions
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.columns import Column

Value = int | str | bool | None  # of a file: in Iceberg's form, dates and times are numbers


class Cut(msgspec.Struct, frozen=True):
    """One partition field: a transform of a column."""

    column: str  # in the table
    transform: str
    buckets: int = 0

    @property
    def name(self) -> str:
        """Return the name in the Iceberg table, which no column has except that of an identity."""
        if self.transform == IDENTITY:
            return self.column
        return f"{types.PARTITION_PREFIX}{self.column}_{self.transform}"

    @property
    def spelled(self) -> str:
        """Return the transform in Iceberg's spelling."""
        return f"{BUCKET}[{self.buckets}]" if self.transform == BUCKET else self.transform


def cuts(
    partitions: Sequence[str], declared: Sequence[tuple[str, str]], columns: Sequence[Column]
) -> list[Cut]:
    """Return the partition fields of a table with these declared types and typed columns."""
    types = dict(declared)
    names = {(column.field, column.type): column.name for column in columns}
    found = []
    for each in parse_partitions(partitions, types):
        own = each.field in OWN_TYPES
        name = each.field if own else names.get((each.field, types[each.field]))
        if name is None:
            raise CorruptData(f"the table has no column of the partition '{each}'")
        found.append(Cut(name, each.transform, each.buckets))
    return found
