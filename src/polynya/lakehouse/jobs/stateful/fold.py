"""Merge the rows of a job into those of its table by key, in Spark.

The rows of the transform are written to files first, and all that follows reads these: a task that
Spark repeats cannot see other rows than those whose keys chose the files to replace. Whole rows are
shuffled only if they have a key of the job, unless these are too many to be sent to each executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from polynya.base.transforms import Transform
from polynya.lakehouse.jobs.plan import Job, Merged, Task, store_settings
from polynya.lakehouse.jobs.plan_objects import store_plan
from polynya.lakehouse.jobs.results import Asked, Derived
from polynya.lakehouse.jobs.spark_tasks import FILE, read_rows, write_output
from polynya.lakehouse.jobs.stateful.faults import TransformFailed
from polynya.lakehouse.jobs.task import TaskResult
from polynya.lakehouse.reading.blobs import open_blobs
from polynya.objectstore import StoreSettings

_NEW, _REST = "_polynya_new", "_polynya_rest"
_BROADCAST_ROWS, _BROADCAST_BYTES = 100_000, 8 << 20  # of files whose keys each executor may have


def written(frame: Any, store: StoreSettings, plan_key: str) -> list[TaskResult]:
    """Write the rows of a frame by the plan at `plan_key`. Return what its tasks wrote."""
    taken = frame.mapInArrow(partial(write_output, store, plan_key), "result binary").collect()
    return [msgspec.json.decode(bytes(row.result), type=TaskResult) for row in taken]


def fold(
    session: Any, asked: Asked, made: Job, plan_key: str, results: Sequence[TaskResult]
) -> Derived:
    """Merge the rows in the files of `results` with those of the table that have their keys. Raises
    TransformFailed."""
    staged = [
        Merged(file.key, file.rows, file.size, file.partition)
        for done in results
        for file in done.files
    ]
    files = _Files(session, made, plan_key, [*staged, *asked.live])
    came, key = range(len(staged)), asked.transform.key
    keys = files.rows(came, key)
    late, newest = _times(keys, asked)
    keys = _in_time(keys, asked)
    is_unique = _is_unique(keys, asked.transform, files.names)
    few = (
        sum(file.rows for file in staged) <= _BROADCAST_ROWS
        and sum(file.size for file in staged) <= _BROADCAST_BYTES
    )
    keys = f.broadcast(keys.distinct()) if few else keys.distinct()
    touched = files.with_keys(keys, key, len(staged))
    rows, had = _in_time(files.rows(came), asked), files.rows(touched)
    if few and touched:
        other, had = _of_keys(had, keys, key, "left_anti"), _of_keys(had, keys, key, "left_semi")
        rows = _merged(rows, had, asked.transform, files.names).unionByName(other)
    elif touched or not is_unique:
        rows = _merged(rows, had, asked.transform, files.names)
    done = written(rows, files.store, plan_key) if staged else []
    removed = [files.every[number] for number in touched]
    return Derived(made, done, removed, late, newest)


class _Files:
    """Files with the columns of a job, as frames."""

    def __init__(self, session: Any, made: Job, plan_key: str, every: list[Merged]) -> None:
        self._session, self.every = session, every
        self._plan_key = plan_key.replace(".plan.json", "r.plan.json")
        self.store = store_settings(made.plan.store)
        tasks = [Task(number, [], [], redo=[file]) for number, file in enumerate(every)]
        store_plan(
            open_blobs(self.store), msgspec.structs.replace(made, tasks=tasks), self._plan_key
        )
        schema = pa.ipc.read_schema(pa.BufferReader(made.arrow_schema))
        self.names: list[str] = schema.names
        self._schema = from_arrow_schema(pa.schema([*schema, pa.field(FILE, pa.int64())]))

    def rows(self, numbers: Sequence[int], columns: Sequence[str] = ()) -> Any:
        """Return these columns of the rows of files, by default all."""
        return self._numbered(numbers, columns or self.names).drop(FILE)

    def _numbered(self, numbers: Sequence[int], columns: Sequence[str]) -> Any:
        schema = StructType([self._schema[name] for name in (*columns, FILE)])
        if not numbers:
            return self._session.createDataFrame([], schema)
        rows = self._session.createDataFrame([(each,) for each in numbers], "number long")
        rows = rows.repartition(min(len(numbers), self._session.sparkContext.defaultParallelism))
        reads = partial(read_rows, self.store, self._plan_key, columns)
        return rows.mapInArrow(reads, schema)

    def with_keys(self, keys: Any, key: list[str], first: int) -> list[int]:
        """Return the files from `first` on that have one of `keys`."""
        if first == len(self.every):
            return []
        had = self._numbered(range(first, len(self.every)), key)
        found = _of_keys(had, keys, key, "left_semi")
        return sorted(row[0] for row in found.select(FILE).distinct().collect())


def _of_keys(rows: Any, keys: Any, key: Sequence[str], how: str) -> Any:
    """Return the rows that have one of `keys` ("left_semi"), or none of them ("left_anti")."""
    rows, keys = rows.alias("rows"), keys.alias("keys")
    same = [f.col(f"rows.{_tick(each)}").eqNullSafe(f.col(f"keys.{_tick(each)}")) for each in key]
    return rows.join(keys, reduce(lambda one, two: one & two, same), how)


def _times(came: Any, asked: Asked) -> tuple[int, int | None]:
    """Return the number of late rows, and the largest time."""
    if not asked.transform.time:
        return 0, None
    micros = f.unix_micros(_quoted(asked.transform.time))
    bound = f.lit(asked.watermark_us).cast("long")
    row = came.agg(f.count_if(micros < bound), f.max(micros)).collect()[0]
    return row[0], row[1]


def _in_time(came: Any, asked: Asked) -> Any:
    """Return the rows that are not late. One without a time never is."""
    if asked.watermark_us is None or not asked.transform.time:
        return came
    micros = f.unix_micros(_quoted(asked.transform.time))
    return came.filter(micros.isNull() | (micros >= f.lit(asked.watermark_us)))


def _is_unique(keys: Any, transform: Transform, names: Sequence[str]) -> bool:
    """Report whether the rows of a job are known to have a key each. Raises TransformFailed if it
    is open which of two is the last one of its key."""
    if transform.latest_by or not set(names) - set(transform.key) - set(transform.merge):
        return False
    by = [_quoted(each) for each in transform.key]
    twice = keys.groupBy(*by).count().filter("count > 1").head(1)
    if twice:
        shown = ", ".join(f"{name} = {twice[0][name]}" for name in transform.key)
        raise TransformFailed(
            f"the transform has {twice[0]['count']} rows of the key {shown} for one job: group by "
            "the key, or name the column that tells the last one (--latest-by)"
        )
    return True


def _merged(rows: Any, had: Any, transform: Transform, names: Sequence[str]) -> Any:
    """Return one row for each key of the rows of a job and those that the table had."""
    both = rows.withColumn(_NEW, f.lit(1)).unionByName(had.withColumn(_NEW, f.lit(0)))
    rest = [name for name in names if name not in {*transform.key, *transform.merge}]
    last = [_quoted(transform.latest_by)] if transform.latest_by else []
    found = [
        getattr(f, function)(_quoted(name)).cast(both.schema[name].dataType).alias(name)
        for name, function in transform.merge.items()
    ]
    if rest:
        order = f.struct(*last, f.col(_NEW))
        found.append(f.max_by(f.struct(*map(_quoted, rest)), order).alias(_REST))
    keys = [_quoted(each) for each in transform.key]
    rows = both.groupBy(*keys).agg(*found) if found else both.select(*keys).distinct()
    return rows.select(
        *(f.col(f"{_REST}.{_tick(name)}") if name in rest else _quoted(name) for name in names)
    )


def _quoted(name: str) -> Any:
    return f.col(_tick(name))


def _tick(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
