"""Divide rows by the table's partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import BinaryType, DateType, IcebergType, LongType, StringType, TimestamptzType

from polynya.base.partitions import BUCKET, IDENTITY
from polynya.lakehouse.schema.partitions import Cut, Value

_DAY_MICROS = 86_400_000_000
_HOUR_MICROS = 3_600_000_000
_EPOCH_YEAR = 1970
_HASHED: list[tuple[Any, IcebergType]] = [
    (pa.types.is_int64, LongType()),
    (pa.types.is_string, StringType()),
    (pa.types.is_binary, BinaryType()),
    (pa.types.is_date32, DateType()),
    (pa.types.is_timestamp, TimestamptzType()),
]


def divided(table: pa.Table, cuts: Sequence[Cut]) -> Iterator[tuple[tuple[Value, ...], pa.Table]]:
    """Yield the rows of each partition value, in their order. A table without partitions is
    yielded whole."""
    if not cuts or not len(table):
        yield (), table
        return
    values = [_values(table[cut.column].combine_chunks(), cut) for cut in cuts]
    group = np.zeros(len(table), np.int64)
    for each in values:
        codes, distinct = _codes(each)
        # numbered again after each column, so that the product of the sizes cannot overflow
        group = np.unique(group * (distinct + 1) + codes, return_inverse=True)[1]
    order = np.argsort(group, kind="stable")
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        rows = order[begin:end]
        value = tuple(each[int(rows[0])].as_py() for each in values)
        whole = len(rows) == len(table)
        yield value, table if whole else table.take(pa.array(rows)).combine_chunks()


def _codes(values: pa.Array) -> tuple[npt.NDArray[np.int64], int]:
    """Return a number for each value, null included, and how many there are without it."""
    encoded = values.dictionary_encode()
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(encoded.dictionary))
    return codes.to_numpy(zero_copy_only=False), len(encoded.dictionary)


def _values(column: pa.Array, cut: Cut) -> pa.Array:
    """Return a column's partition values."""
    if cut.transform == BUCKET:
        return _buckets(column, cut.buckets)
    if cut.transform == IDENTITY:
        return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
    if cut.transform in ("month", "year"):
        years = pc.subtract(pc.year(column), _EPOCH_YEAR)
        if cut.transform == "year":
            return years
        return pc.add(pc.multiply(years, 12), pc.subtract(pc.month(column), 1))
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return _floored(column, _DAY_MICROS if cut.transform == "day" else _HOUR_MICROS)


def _floored(times: pa.Array, micros: int) -> pa.Array:
    """Return the periods since 1970 that times are in; negative before it."""
    numbers = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    missing = times.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers // micros, mask=missing)


def _buckets(column: pa.Array, buckets: int) -> pa.Array:
    """Return the buckets of values. Each distinct value is hashed once."""
    kind = next(made for test, made in _HASHED if test(column.type))
    hashed: Any = BucketTransform(buckets).transform(kind)
    encoded = column.dictionary_encode()
    plain = encoded.dictionary
    if not isinstance(kind, StringType | BinaryType):
        plain = plain.cast(pa.int32() if isinstance(kind, DateType) else pa.int64())
    made = pa.array([hashed(value) for value in plain.to_pylist()], pa.int32())
    return made.take(encoded.indices)
