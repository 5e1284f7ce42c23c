"""Run one task: read ranges, write one Parquet file and one of dead letters. Runs in a Spark worker
or any other process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import pyarrow as pa

from polynya.base.errors import PolynyaError
from polynya.lakehouse.decoding.decode import Decoded, Schema
from polynya.lakehouse.decoding.kinds import typed
from polynya.lakehouse.formats.parquet import File
from polynya.lakehouse.jobs.culprits import Discarding, culprits, describe
from polynya.lakehouse.jobs.output import Output, file_name
from polynya.lakehouse.jobs.plan import Job, Range, Task, Writer, claimed
from polynya.lakehouse.jobs.rewrites.merge_files import merge_files
from polynya.lakehouse.jobs.rewrites.redo_files import read_again
from polynya.lakehouse.payloads.decode import (
    SchemaMissing,
    SchemaUnknown,
    decoded_payloads,
    laid,
    unknown_runs,
)
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.reading.slices import (
    Block,
    Kind,
    Rows,
    Unreadable,
    absent,
    base_columns,
    joined,
    read_blocks,
)
from polynya.lakehouse.schema.columns import Column, adopt
from polynya.wire.tables import FailedRange


class TaskResult(msgspec.Struct, frozen=True):
    """The result of a task. With `proposals` or `ids` nothing was written, and the job must be
    rerun with these columns, and with the schemas of these ids."""

    task: int
    records: int
    bytes: int
    files: list[File] = []
    dead: list[File] = []
    proposals: list[Column] = msgspec.field(name="wishes", default_factory=list)  # in JSON
    failed: list[FailedRange] = []  # ranges that cannot be read: nothing was written either
    seconds: float = 0.0  # duration of the task, without Spark
    ids: list[int] = []  # of schemas that the job does not have
    unframed: int = 0  # values without a schema's id, in a table of framed ones


def run_task(job: Job, task: Task, blobs: Blobs) -> TaskResult:
    """Run a task: merge files, decode the rows of files again, or decode ranges."""
    pa.set_cpu_count(1)  # Spark runs one task per core
    if task.merge is None:
        return (_decode_files if task.redo else _decode_ranges)(job, task, blobs)
    begin = time.perf_counter()
    schema = job.arrow_schema if task.merge.part == "main" else job.arrow_schema_dlq
    key = f"{job.location}/{task.merge.part}/data/{file_name(job, task)}"
    file = merge_files(blobs, task.merge, key, pa.ipc.read_schema(pa.BufferReader(schema)))
    size = sum(each.size for each in task.merge.files)
    return TaskResult(task.id, file.rows, size, [file], seconds=time.perf_counter() - begin)


def _decode_files(job: Job, task: Task, blobs: Blobs) -> TaskResult:
    """Decode the rows of the task's files again, or report fields without a column."""
    out = Output(job, task, blobs)
    begin = time.perf_counter()
    columns, proposals, ids = job.columns, list[Column](), set[int]()
    records = unframed = 0
    try:
        for file in task.redo:
            for rows in read_again(blobs, file, frozenset(job.strict)):
                schema = Schema(columns, job.shapes[0], discover=job.discover, full=job.full)
                records += rows.count
                try:
                    decoded = rows.decoded(schema, job.writers)
                except SchemaMissing as lacking:
                    ids.update(lacking.numbers)
                    continue
                columns = adopt(columns, decoded.proposals)
                proposals += decoded.proposals
                unframed += decoded.unframed
                if not proposals and not ids:
                    if rows.kind == Kind.BYTES:
                        out.note_bytes(rows.uids)
                    out.add(rows.base, decoded.arrays, decoded.problems)
        size = sum(file.size for file in task.redo)
        if proposals or ids:
            out.abort()
            return TaskResult(task.id, records, size, proposals=proposals, ids=sorted(ids))
        files, dead, seconds = *out.close(), time.perf_counter() - begin
        return TaskResult(task.id, records, size, files, dead, seconds=seconds, unframed=unframed)
    except BaseException:
        out.abort()
        raise


def _decode_ranges(job: Job, task: Task, blobs: Blobs) -> TaskResult:
    """Decode the task's ranges and write them. Report fields without a column, and ranges that make
    any step fail."""
    try:
        return _written(job, task, blobs)
    except (PolynyaError, OSError):
        raise
    except Exception:
        shapes = {id(part): shape for part, shape in zip(task.ranges, task.shapes, strict=True)}
        dropped = cast("Blobs", Discarding(blobs))

        def write(some: Sequence[Range]) -> None:
            part = Task(task.id, list(some), [shapes[id(each)] for each in some])
            found = _written(job, part, dropped).failed
            if found:
                raise ValueError(found[0].reason)

        failed = culprits(task.ranges, write)
        if not failed:
            raise
        return TaskResult(task.id, 0, 0, failed=_failures(failed))


def _written(job: Job, task: Task, blobs: Blobs) -> TaskResult:
    """Decode ranges and write them, or report fields without a column."""
    out = Output(job, task, blobs)
    begin = time.perf_counter()
    columns, proposals, ids = job.columns, list[Column](), set[int]()
    records = size = unframed = 0
    failed: list[Unreadable] = []
    try:
        for block in read_blocks(blobs, task.ranges, task.shapes, failed):
            if failed and job.writers is None:
                continue  # the others are only checked
            schema = Schema(columns, job.shapes[block.shape], discover=job.discover, full=job.full)
            try:
                data, ends, decoded = _decoded(job, block, schema)
                if not decoded.proposals and not proposals and not ids:
                    if block.kind == Kind.BYTES:
                        out.note_bytes(rows.part.uid for rows in block.parts)
                    base = base_columns(block, data, ends)
                    out.add(base, decoded.arrays, decoded.problems)
            except SchemaMissing as lacking:
                ids.update(lacking.numbers)
                continue
            except Exception as fault:
                failed += _culprits(job, block, schema, fault)
                continue
            size += len(data)
            records += len(ends)
            unframed += decoded.unframed
            columns = adopt(columns, decoded.proposals)
            proposals += decoded.proposals
        if proposals or ids or failed:
            out.abort()
            return TaskResult(
                task.id,
                records,
                size,
                proposals=proposals,
                failed=_failures(failed),
                ids=sorted(ids),
            )
        files, dead, seconds = *out.close(), time.perf_counter() - begin
        return TaskResult(task.id, records, size, files, dead, seconds=seconds, unframed=unframed)
    except BaseException:
        out.abort()
        raise


def _decoded(job: Job, block: Block, schema: Schema) -> tuple[Any, Any, Decoded]:
    data, ends = joined(block)
    missing = absent(block)
    if job.writers is None:
        return data, ends, typed(block.kind, data, ends, missing, schema)
    records = laid(block.kind, data, ends, missing)
    return data, ends, decoded_payloads(records, schema, job.writers)


def _culprits(job: Job, block: Block, schema: Schema, fault: Exception) -> list[Unreadable]:
    """Return the ranges of a block that fail alone. Raises `fault` if none does, or if it is no
    fault of records."""
    if isinstance(fault, SchemaUnknown):
        return [found for rows in block.parts for found in _unknown(rows, job.writers or {})]
    if isinstance(fault, PolynyaError | OSError):
        raise fault
    found = []
    for rows in block.parts:
        try:
            _decoded(job, Block([rows], block.shape, block.kind), schema)
        except Exception as own:
            found.append(Unreadable(rows.part, describe(own)))
    if not found:
        raise fault
    return found


def _unknown(rows: Rows, writers: Mapping[int, Writer]) -> list[Unreadable]:
    """Return the records of unknown schemas alone: the others of their slice are read by the next
    job."""
    part, records = rows.part, laid(rows.kind, rows.data, rows.ends, rows.absent)
    found = []
    for first, last, reason in unknown_runs(records, writers):
        begin, end = int(rows.offsets[first]), int(rows.offsets[last]) + 1
        own = msgspec.structs.replace(part, skip=begin - part.record, take=end - begin)
        found.append(Unreadable(own, reason))
    return found


def _failures(failed: list[Unreadable]) -> list[FailedRange]:
    """Return the ranges that failed, each once: a range may fail in several of its runs."""
    first = {
        (fault.part.uid, fault.part.record + fault.part.skip): fault for fault in reversed(failed)
    }
    return [failed_range(fault) for fault in reversed(first.values())]


def failed_range(fault: Unreadable) -> FailedRange:
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
