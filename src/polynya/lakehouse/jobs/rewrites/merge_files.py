"""Merge data files into one sorted file, in bounded memory.

Each row group of an input is a run of rows in the table's order. The keys of all runs are read
first and give the order of the rows; the rows then stream from all runs at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polynya.base.errors import CorruptData
from polynya.lakehouse.formats.parquet import ORDER, File, Writer, bytes_streams
from polynya.lakehouse.jobs.plan import Merge
from polynya.lakehouse.reading.blobs import Blobs

GROUP_BYTES = 32 << 20  # decoded bytes of a row group
_BATCH_BYTES = 2 << 20  # decoded bytes that one run holds in memory

Positions = npt.NDArray[np.int64]


def merge_files(blobs: Blobs, merge: Merge, key: str, schema: pa.Schema) -> File:
    """Write the rows of the files of `merge` to one file, in order. Older files get null in the
    columns that they lack. Raises CorruptData if a file has another number of rows."""
    runs = [run for file in merge.files for run in _runs(blobs, file.key, file.rows)]
    order, run_of = _order(runs, schema)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    begin = 0
    for run in runs:
        run.arrange(ranks[begin : begin + run.rows], schema)
        begin += run.rows
    step = max(1, min(run.rows_in(GROUP_BYTES) for run in runs))
    writer: Writer | None = None
    try:
        for begin in range(0, len(order), step):
            table = _interleaved(runs, run_of[order[begin : begin + step]])
            writer = writer or Writer(blobs, key, schema, table, merge.files[0].partition)
            writer.write(table)
        if writer is None:
            raise CorruptData(f"the files to merge into {key} have no rows")
        return writer.close({uid for run in runs for uid in run.bytes_streams})
    except BaseException:
        if writer is not None:
            writer.abort()
        raise


class _Run:
    """The rows of one row group, read once from the first to the last."""

    def __init__(self, parquet: pq.ParquetFile, group: int) -> None:
        self._parquet = parquet
        self._group = group
        described = parquet.metadata.row_group(group)
        self.rows: int = described.num_rows
        self.bytes_streams = bytes_streams(parquet.metadata)
        self._row_bytes = max(1, described.total_byte_size // max(1, self.rows))
        self._left: Iterator[pa.Table] = iter(())
        self._held: pa.Table | None = None

    def rows_in(self, size: int) -> int:
        """Return how many rows have about this many decoded bytes."""
        return max(1, size // self._row_bytes)

    def keys(self) -> pa.Table:
        return self._parquet.read_row_group(self._group, columns=list(ORDER)).select(ORDER)

    def arrange(self, ranks: Positions, schema: pa.Schema) -> None:
        """Prepare to read the rows by ascending rank. Rows of a run without order are read
        whole."""
        if (np.diff(ranks) > 0).all():
            batches = self._parquet.iter_batches(
                self.rows_in(_BATCH_BYTES), row_groups=[self._group]
            )
            self._left = (conformed(pa.Table.from_batches([each]), schema) for each in batches)
            return
        whole = conformed(self._parquet.read_row_group(self._group), schema)
        self._left = iter([whole.take(pa.array(np.argsort(ranks)))])

    def next_rows(self, count: int) -> Iterator[pa.Table]:
        """Yield the next rows."""
        while count > 0:
            held = self._held if self._held is not None else next(self._left)
            part = held.slice(0, count)
            self._held = held.slice(len(part)) if len(part) < len(held) else None
            count -= len(part)
            yield part


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns of the schema: null where it lacks them, at any depth."""
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _runs(blobs: Blobs, key: str, rows: int) -> list[_Run]:
    parquet = pq.ParquetFile(pa.BufferReader(blobs.get(key)))
    if parquet.metadata.num_rows != rows:
        raise CorruptData(f"{key} has {parquet.metadata.num_rows} rows, its table {rows}")
    return [
        _Run(parquet, group)
        for group in range(parquet.metadata.num_row_groups)
        if parquet.metadata.row_group(group).num_rows
    ]


def _order(runs: Sequence[_Run], schema: pa.Schema) -> tuple[Positions, Positions]:
    """Return the positions of all rows in order, and the run of each position. Rows of a derived
    table may have no order."""
    run_of = np.repeat(np.arange(len(runs)), [run.rows for run in runs])
    if not set(ORDER) <= set(schema.names):
        return np.arange(len(run_of), dtype=np.int64), run_of
    keys = pa.concat_tables([run.keys() for run in runs])
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in ORDER])
    return order.to_numpy().astype(np.int64), run_of


def _interleaved(runs: Sequence[_Run], wanted: Positions) -> pa.Table:
    """Return the next rows of the runs: `wanted` has the run of each, in order."""
    parts: list[Any] = []
    for number, count in zip(*np.unique(wanted, return_counts=True), strict=True):
        parts += runs[number].next_rows(int(count))
    positions = np.empty(len(wanted), np.int64)
    positions[np.argsort(wanted, kind="stable")] = np.arange(len(wanted))
    return pa.concat_tables(parts).combine_chunks().take(pa.array(positions)).combine_chunks()
