"""Run one task: read ranges, write one Parquet file and one of dead letters. Runs in a Spark worker
or any other process."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from polynya.base.errors import PolynyaError
from polynya.lakehouse.decoding.assemble import arrow_type
from polynya.lakehouse.decoding.decode import (
    Decoded,
    Schema,
    decode,
    may_be_object,
    without_strangers,
)
from polynya.lakehouse.decoding.rows import Problem
from polynya.lakehouse.formats.parquet import File, Writer
from polynya.lakehouse.jobs.merge_files import merge_files
from polynya.lakehouse.jobs.plan import Job, Task, claimed
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.reading.kafka.undivided import BLOCK_BYTES
from polynya.lakehouse.reading.slices import (
    BASE_TYPES,
    Block,
    Kind,
    Unreadable,
    absent,
    base_columns,
    joined,
    read_blocks,
)
from polynya.lakehouse.schema.columns import OUR_COLUMNS, Column, adopt
from polynya.wire.tables import FailedRange

DLQ_TYPES: dict[str, pa.DataType] = {
    **{
        name: BASE_TYPES[name]
        for name in ("stream", "incarnation", "offset", "byte_offset", "timestamp", "append_time")
    },
    "reason": pa.string(),
    "field": pa.string(),
    "message": pa.string(),
    "value": pa.binary(),
}
_MESSAGE_FIELDS_MAX = 8


class TaskResult(msgspec.Struct, frozen=True):
    """The result of a task. With `wishes` nothing was written, and the job must be rerun with these
    columns."""

    task: int
    records: int
    bytes: int
    files: list[File] = []
    dead: list[File] = []
    wishes: list[Column] = []
    failed: list[FailedRange] = []  # ranges that cannot be read: nothing was written either
    seconds: float = 0.0  # duration of the task, without Spark


def run_task(job: Job, task: Task, blobs: Blobs) -> TaskResult:
    """Run a task: merge files, or decode ranges."""
    pa.set_cpu_count(1)  # Spark runs one task per core
    if task.merge is None:
        return _decode_ranges(job, task, blobs)
    begin = time.perf_counter()
    schema = job.arrow_schema if task.merge.part == "main" else job.arrow_schema_dlq
    key = f"{job.plan.table.location}/{task.merge.part}/data/{file_name(job, task)}"
    file = merge_files(blobs, task.merge, key, pa.ipc.read_schema(pa.BufferReader(schema)))
    size = sum(each.size for each in task.merge.files)
    return TaskResult(task.id, file.rows, size, [file], seconds=time.perf_counter() - begin)


def _decode_ranges(job: Job, task: Task, blobs: Blobs) -> TaskResult:
    """Decode the task's ranges and write them, or report fields without a column."""
    out = _Output(job, task, blobs)
    begin = time.perf_counter()
    columns, wishes = job.columns, list[Column]()
    records = size = 0
    failed: list[Unreadable] = []
    try:
        for block in read_blocks(blobs, task.ranges, task.shapes, failed):
            if failed:
                continue  # the others are only checked
            schema = Schema(columns, job.shapes[block.shape], discover=job.discover, full=job.full)
            try:
                data, ends, decoded = _decoded(block, schema)
                if not decoded.wishes and not wishes:
                    out.add(block, data, ends, decoded)
            except Exception as fault:
                failed += _culprits(block, schema, fault)
                continue
            size += len(data)
            records += len(ends)
            columns = adopt(columns, decoded.wishes)
            wishes += decoded.wishes
        if wishes or failed:
            out.abort()
            return TaskResult(task.id, records, size, wishes=wishes, failed=_failures(failed))
        return TaskResult(task.id, records, size, *out.close(), seconds=time.perf_counter() - begin)
    except BaseException:
        out.abort()
        raise


def _decoded(block: Block, schema: Schema) -> tuple[Any, Any, Decoded]:
    data, ends = joined(block)
    chosen = _parsed(block, data, ends)
    if not chosen.any():
        return data, ends, _undecoded(schema.columns, len(ends))
    if chosen.all():
        decoded = decode(data, ends, schema)
    else:
        lengths = np.diff(ends, prepend=0)
        text = data[np.repeat(chosen, lengths)]
        decoded = _spread(decode(text, np.cumsum(lengths[chosen]), schema), chosen)
    return data, ends, without_strangers(decoded) if block.kind == Kind.MAYBE_JSON else decoded


def _parsed(block: Block, data: Any, ends: Any) -> Any:
    """Mark the records that are parsed as JSON: none of bytes, and no record without a value."""
    if block.kind == Kind.BYTES:
        return np.zeros(len(ends), np.bool_)
    present = ~absent(block)
    return present if block.kind == Kind.JSON else present & may_be_object(data, ends)


def _spread(decoded: Decoded, chosen: Any) -> Decoded:
    """Return what was decoded of the chosen records as rows of all records."""
    places = np.flatnonzero(chosen)
    indices = pa.array(np.cumsum(chosen) - 1, mask=~chosen)
    arrays = [array.take(indices) for array in decoded.arrays]
    problems = {int(places[row]): found for row, found in decoded.problems.items()}
    return Decoded(arrays, problems, decoded.wishes)


def _culprits(block: Block, schema: Schema, fault: Exception) -> list[Unreadable]:
    """Return the ranges of a block that fail alone. Raises `fault` if none does, or if it is no
    fault of records."""
    if isinstance(fault, PolynyaError | OSError):
        raise fault
    found = []
    for rows in block.parts:
        try:
            _decoded(Block([rows], block.shape, block.kind), schema)
        except Exception as own:
            found.append(Unreadable(rows.part, f"{type(own).__name__}: {own}"[:300]))
    if not found:
        raise fault
    return found


def _failures(failed: list[Unreadable]) -> list[FailedRange]:
    """Return the ranges that failed, each once: a range may fail in several of its runs."""
    first = {
        (fault.part.uid, fault.part.record + fault.part.skip): fault for fault in reversed(failed)
    }
    return [_failed(fault) for fault in reversed(first.values())]


def _failed(fault: Unreadable) -> FailedRange:
    part = fault.part
    return FailedRange(
        part.stream,
        part.uid,
        part.record + part.skip,
        claimed(part),
        part.pack,
        part.offset,
        fault.reason,
    )


def claimed_records(task: Task) -> int:
    """Return the number of records that the task's ranges claim, including control batches."""
    return sum(claimed(part) for part in task.ranges)


def file_name(job: Job, task: Task) -> str:
    """Return a new name for a data file; the server's sweep knows its form."""
    return f"{job.plan.job:012d}-{job.plan.attempt}-{task.id:05d}-{secrets.token_hex(8)}.parquet"


class _Output:
    """The two files of a task, created with their first row."""

    def __init__(self, job: Job, task: Task, blobs: Blobs) -> None:
        self._blobs = blobs
        self._location = job.plan.table.location
        self._name = file_name(job, task)
        self._schema = pa.ipc.read_schema(pa.BufferReader(job.arrow_schema))
        self._schema_dlq = pa.ipc.read_schema(pa.BufferReader(job.arrow_schema_dlq))
        self._main: Writer | None = None
        self._dead: Writer | None = None
        self._gathered: list[pa.Table] = []
        self._gathered_bytes = 0

    def add(self, block: Block, data: Any, ends: Any, decoded: Decoded) -> None:
        if not len(ends):
            return
        base = base_columns(block, data, ends)
        arrays = [base[name] for name in OUR_COLUMNS] + decoded.arrays
        self._gathered.append(pa.Table.from_arrays(arrays, schema=self._schema))
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= BLOCK_BYTES // 2:
            self._flush()
        if decoded.problems:
            self._dead = self._dead or Writer(
                self._blobs, f"{self._location}/dlq/data/{self._name}", self._schema_dlq
            )
            self._dead.write(_dead_letters(base, decoded.problems, self._schema_dlq))

    def close(self) -> tuple[list[File], list[File]]:
        self._flush()
        return (
            [self._main.close()] if self._main else [],
            [self._dead.close()] if self._dead else [],
        )

    def abort(self) -> None:
        for writer in (self._main, self._dead):
            if writer is not None:
                writer.abort()

    def _flush(self) -> None:
        if not self._gathered:
            return
        table = pa.concat_tables(self._gathered).combine_chunks()
        self._gathered, self._gathered_bytes = [], 0
        self._main = self._main or Writer(
            self._blobs, f"{self._location}/main/data/{self._name}", self._schema, table
        )
        self._main.write(table)


def _undecoded(columns: list[Column], count: int) -> Decoded:
    """Return rows of streams that are not JSON: no typed values and no problems."""
    return Decoded([pa.nulls(count, arrow_type(column)) for column in columns], {}, [])


def _dead_letters(
    base: dict[str, pa.Array], problems: dict[int, list[Problem]], schema: pa.Schema
) -> pa.Table:
    numbers = np.array(sorted(problems), np.int64)
    found = [problems[int(row)] for row in numbers]
    indices = pa.array(numbers)
    arrays = {name: base[name].take(indices) for name in DLQ_TYPES if name in base}
    arrays["reason"] = pa.array([problem[0].reason for problem in found], pa.string())
    arrays["field"] = pa.array([problem[0].field or None for problem in found], pa.string())
    arrays["message"] = pa.array([_message(problem) for problem in found], pa.string())
    return pa.Table.from_arrays([arrays[name] for name in DLQ_TYPES], schema=schema)


def _message(problems: list[Problem]) -> str:
    told = [
        f"{problem.field}: {problem.message}" if problem.field else problem.message
        for problem in problems[:_MESSAGE_FIELDS_MAX]
    ]
    more = len(problems) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")
