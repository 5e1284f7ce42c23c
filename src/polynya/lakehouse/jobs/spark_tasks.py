"""The functions that Spark calls in its Python workers, with a store and the key of a plan object.

They are sent by name, so that a worker imports this release's code: nothing here may import Spark,
pyiceberg's tables or Delta at the top.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from polynya.files import keep_private
from polynya.lakehouse.decoding.decode import Schema
from polynya.lakehouse.decoding.kinds import typed
from polynya.lakehouse.jobs.output import Output
from polynya.lakehouse.jobs.plan import Job, Task
from polynya.lakehouse.jobs.plan_objects import load_header, load_task
from polynya.lakehouse.jobs.rewrites.redo_files import opened
from polynya.lakehouse.jobs.task import TaskResult, run_task
from polynya.lakehouse.machine.zips import keep_zip_directories
from polynya.lakehouse.reading.blobs import Blobs, open_blobs
from polynya.lakehouse.reading.slices import (
    Unreadable,
    absent,
    base_columns,
    joined,
    read_blocks,
)
from polynya.lakehouse.schema import types
from polynya.objectstore import StoreSettings

Batches = Iterator[pa.RecordBatch]
FILE = "_polynya_file"  # the column of `read_rows` with the number of the task
_BATCH_ROWS = 10_000


def run_tasks(store: StoreSettings, key: str, batches: Batches) -> Batches:
    """Run the tasks whose numbers come in, and yield a result for each."""
    _prepare_worker()
    blobs = open_blobs(store)
    for job, task in _tasks(blobs, key, batches):
        yield _encoded(run_task(job, task, blobs))


def read_input(store: StoreSettings, key: str, batches: Batches) -> Batches:
    """Yield the rows of the tasks whose numbers come in, the input of a transform."""
    _prepare_worker()
    pa.set_cpu_count(1)
    blobs = open_blobs(store)
    for job, task in _tasks(blobs, key, batches):
        yield from (file_rows if task.redo else input_rows)(job, task, blobs)


def write_output(store: StoreSettings, key: str, batches: Batches) -> Batches:
    """Write a partition of a transform's rows to files, and yield their description."""
    from pyspark import TaskContext

    _prepare_worker()
    pa.set_cpu_count(1)
    blobs, begin = open_blobs(store), time.perf_counter()
    job = load_header(blobs, key)
    context = TaskContext.get()
    task = Task(context.partitionId() if context is not None else 0, [], [])
    schema = pa.ipc.read_schema(pa.BufferReader(job.arrow_schema))
    out, count, size = Output(job, task, blobs), 0, 0
    try:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            out.add_rows(pa.Table.from_arrays(_fitted(rows, schema), schema=schema), rows.nbytes)
            count, size = count + len(rows), size + rows.nbytes
        files, _ = out.close()
    except BaseException:
        out.abort()
        raise
    seconds = time.perf_counter() - begin
    yield _encoded(TaskResult(task.id, count, size, files, seconds=seconds))


def read_rows(store: StoreSettings, key: str, columns: Sequence[str], batches: Batches) -> Batches:
    """Yield these columns of the job of the rows of the files of the tasks whose numbers come in,
    and the number of the task as the last one. Columns that a file lacks are null."""
    _prepare_worker()
    pa.set_cpu_count(1)
    blobs = open_blobs(store)
    for job, task in _tasks(blobs, key, batches):
        whole = pa.ipc.read_schema(pa.BufferReader(job.arrow_schema))
        schema = pa.schema([whole.field(name) for name in columns])
        for file in task.redo:
            for rows in opened(blobs, file).iter_batches(_BATCH_ROWS, columns=list(columns)):
                yield _numbered(rows, schema, task.id)


def _tasks(blobs: Blobs, key: str, batches: Batches) -> Iterator[tuple[Job, Task]]:
    """Yield the tasks whose numbers come in, with their job."""
    job: Job | None = None
    for batch in batches:
        for number in batch.column(0).to_pylist():
            job = job or load_header(blobs, key)
            yield job, load_task(blobs, key, job, number)


def _numbered(rows: pa.RecordBatch, schema: pa.Schema, number: int) -> pa.RecordBatch:
    numbers = pa.array([number], pa.int64()).take(pa.array([0] * len(rows), pa.int64()))
    columns = [*_fitted(rows, schema), numbers]
    return pa.RecordBatch.from_arrays(columns, names=[*schema.names, FILE])


def _fitted(rows: Any, schema: pa.Schema) -> list[Any]:
    """Return the columns of a schema; those that the rows lack are null."""
    known = set(rows.schema.names)
    return [
        rows[field.name].cast(field.type)
        if field.name in known
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]


def input_rows(job: Job, task: Task, blobs: Blobs) -> Batches:
    """Yield the rows of a task's ranges: their built-in columns and the typed ones. Raises
    Unreadable."""
    failed: list[Unreadable] = []
    schema = pa.ipc.read_schema(pa.BufferReader(job.arrow_schema))
    for block in read_blocks(blobs, task.ranges, task.shapes, failed):
        data, ends = joined(block)
        wanted = Schema(job.columns, job.shapes[block.shape], full=True)
        decoded = typed(block.kind, data, ends, absent(block), wanted)
        base = base_columns(block, data, ends)
        arrays = [base[name] for name in types.OUR_COLUMNS] + decoded.arrays
        yield from pa.Table.from_arrays(arrays, schema=schema).combine_chunks().to_batches()
    if failed:
        raise failed[0]


def file_rows(job: Job, task: Task, blobs: Blobs) -> Batches:
    """Yield the rows of a task's files with the columns of the job; those that a file lacks are
    null."""
    schema = pa.ipc.read_schema(pa.BufferReader(job.arrow_schema))
    for file in task.redo:
        for rows in opened(blobs, file).iter_batches(_BATCH_ROWS):
            yield pa.RecordBatch.from_arrays(_fitted(rows, schema), schema=schema)


def _prepare_worker() -> None:
    keep_private()
    keep_zip_directories()


def _encoded(result: TaskResult) -> pa.RecordBatch:
    data = pa.array([msgspec.json.encode(result)], pa.binary())
    return pa.RecordBatch.from_arrays([data], names=["result"])
