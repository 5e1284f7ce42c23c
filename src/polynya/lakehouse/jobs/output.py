"""The files of a task: Parquet files of rows, one for each partition value, and one of dead
letters."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from polynya.base.limits import PARTITION_FILES_OPEN_MAX
from polynya.lakehouse.decoding.rows import Problem
from polynya.lakehouse.formats.parquet import File, Writer
from polynya.lakehouse.formats.partitions import divided
from polynya.lakehouse.jobs.plan import Job, Task
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.reading.kafka.undivided import BLOCK_BYTES
from polynya.lakehouse.reading.slices import BASE_TYPES
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.partitions import Value

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
_MORE = "; and "


def file_name(job: Job, task: Task) -> str:
    """Return a new name for a data file; the server's sweep knows its form."""
    return f"{job.plan.job:012d}-{job.plan.attempt}-{task.id:05d}-{secrets.token_hex(8)}.parquet"


class Output:
    """The files of a task. A file is created with its first row.

    Of the partition files only `PARTITION_FILES_OPEN_MAX` are open. The one that was written
    least recently is closed for another, and its value gets a further file later.
    """

    def __init__(self, job: Job, task: Task, blobs: Blobs) -> None:
        self._blobs = blobs
        self._job, self._task = job, task
        self._schema = pa.ipc.read_schema(pa.BufferReader(job.arrow_schema))
        self._schema_dlq = pa.ipc.read_schema(pa.BufferReader(job.arrow_schema_dlq))
        self._open: dict[tuple[Value, ...], Writer] = {}  # the most recently written last
        self._closed: list[File] = []
        self._dead: Writer | None = None
        self._gathered: list[pa.Table] = []
        self._gathered_bytes = 0
        self._bytes: set[int] = set()

    def note_bytes(self, uids: Iterable[int]) -> None:
        """Note in the files that these incarnations hold bytes, which are not parsed."""
        self._bytes.update(uids)

    def add(
        self, base: dict[str, pa.Array], arrays: list[pa.Array], problems: dict[int, list[Problem]]
    ) -> None:
        """Add rows: their built-in columns, the typed ones, and the problems by row."""
        if not len(base["stream"]):
            return
        columns = [base[name] for name in types.OUR_COLUMNS] + arrays
        rows = pa.Table.from_arrays(columns, schema=self._schema)
        self.add_rows(rows, base["value"].nbytes)
        if problems:
            self._dead = self._dead or Writer(self._blobs, self._key("dlq"), self._schema_dlq)
            self._dead.write(_dead_letters(base, problems, self._schema_dlq))

    def add_rows(self, rows: pa.Table, size: int) -> None:
        """Add rows with the columns of the table. `size` is about the bytes of their values."""
        self._gathered.append(rows)
        self._gathered_bytes += size
        if self._gathered_bytes >= BLOCK_BYTES // 2:
            self._flush()

    def close(self) -> tuple[list[File], list[File]]:
        """Return the files of rows and of dead letters, which are then durable."""
        self._flush()
        files = self._closed + [writer.close(self._bytes) for writer in self._open.values()]
        return files, [self._dead.close()] if self._dead else []

    def abort(self) -> None:
        for writer in (*self._open.values(), self._dead):
            if writer is not None:
                writer.abort()

    def _flush(self) -> None:
        if not self._gathered:
            return
        table = pa.concat_tables(self._gathered).combine_chunks()
        self._gathered, self._gathered_bytes = [], 0
        for value, rows in divided(table, self._job.cuts):
            writer = self._open.pop(value, None)
            if writer is None:
                self._make_room()
                key = self._key("main")
                writer = Writer(self._blobs, key, self._schema, rows, value)
            self._open[value] = writer
            writer.write(rows)

    def _make_room(self) -> None:
        if len(self._open) >= PARTITION_FILES_OPEN_MAX:
            self._closed.append(self._open.pop(next(iter(self._open))).close(self._bytes))

    def _key(self, part: str) -> str:
        """Return the key of a new file."""
        return f"{self._job.location}/{part}/data/{file_name(self._job, self._task)}"


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
    shown = [
        f"{problem.field}: {problem.message}" if problem.field else problem.message
        for problem in problems[:_MESSAGE_FIELDS_MAX]
    ]
    more = len(problems) - len(shown)
    return "; ".join(shown) + (f"{_MORE}{more} more" if more else "")


def fields_in(message: str) -> tuple[set[str], int]:
    """Return the fields that the message of a dead letter names, and the number of all."""
    listed, more, count = message.rpartition(_MORE)
    parts = (listed if more else message).split("; ")
    fields = {part.partition(": ")[0] for part in parts}
    return fields, len(parts) + (int(count.split()[0]) if more else 0)
