"""Decode the table's own rows again: all of them into a new folder (a rebuild), or those of the
files with dead letters (a replay)."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from polynya.base.errors import ConfigError, CorruptData
from polynya.base.partitions import BadPartition, parse_partitions
from polynya.lakehouse.decoding.decode import NO_OBJECT, Schema, observed, sample_values
from polynya.lakehouse.formats.iceberg import StagingCatalog, live_files, with_field_ids
from polynya.lakehouse.jobs.output import DLQ_TYPES, fields_in
from polynya.lakehouse.jobs.plan import Job, JobPlan, Merged, Task, Writer, with_schemas
from polynya.lakehouse.jobs.plan_objects import run_plan
from polynya.lakehouse.jobs.prepare import SAMPLE_RECORDS_STREAM, Fixed, main_schema, widened
from polynya.lakehouse.jobs.results import (
    REBUILD,
    REDO_VERSION,
    REPLAY,
    Progress,
    Result,
    Runner,
    announce,
    load_result,
    part_of,
    result_of,
    store_result,
)
from polynya.lakehouse.jobs.rewrites.redo_files import laid_out, layout_of, opened, typed_values
from polynya.lakehouse.jobs.task import TaskResult
from polynya.lakehouse.payloads.decode import Heads, add_heads, heads_in
from polynya.lakehouse.payloads.fields import with_writers
from polynya.lakehouse.payloads.registry import Registry, Writers
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.reading.slices import Kind
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.choice import chosen
from polynya.lakehouse.schema.columns import Column, adopt, declared, leaves, paths
from polynya.lakehouse.schema.partitions import cuts
from polynya.lakehouse.schema.profiles import FieldProfile
from polynya.wire.tables import Move

TASK_BYTES = 64 << 20  # stored bytes of the files of one task, which it decodes one by one
ROUNDS_MAX = 3
SAMPLE_FILES_MAX = 64
SAMPLE_ROWS_FILE = 10_000

Keys = npt.NDArray[np.void]  # (incarnation, offset) of rows
_KEY = np.dtype([("incarnation", np.int64), ("offset", np.int64)])


class Redefined(msgspec.Struct, frozen=True):
    """Changes of a rebuild: declared types, and all partitions (None: they stay)."""

    columns: dict[str, str] = {}
    partitions: list[str] | None = None


def produce_rebuild(
    plan: JobPlan,
    runner: Runner,
    blobs: Blobs,
    progress: Progress,
    wanted: Redefined,
    registry: Registry | None = None,
) -> str:
    """Write all rows of the table to a new folder, with columns chosen as for a new table. Return
    the key of the result object. Raises ConfigError for partitions that cannot be."""
    began = time.monotonic()
    previous = _previous(plan, blobs)
    named = list((dict(plan.table.columns) | wanted.columns).items())
    partitions = plan.table.partitions if wanted.partitions is None else wanted.partitions
    try:
        partitions = [str(each) for each in parse_partitions(partitions, dict(named))]
    except BadPartition as bad:
        raise ConfigError(str(bad)) from None
    live = _live(plan, blobs)
    announce(plan, f"all rows of {len(live['main'])} files again", progress)
    samples = [found for file in _spread(live["main"]) for found in _profiles(blobs, file)]
    writers = Writers(plan.table.columns, registry)
    heads, known = _known(blobs, writers, _spread(live["main"]), whole=False)
    wide, _ = with_writers(adopt([], declared(named)), known, heads)
    fixed = Fixed(chosen(wide, samples), [{}], {}, writers=known)
    make = _Maker(plan, blobs, live, f"tables/{plan.table.uid}/{plan.job:012d}")
    for number in range(ROUNDS_MAX):
        discover = number < ROUNDS_MAX - 1 and leaves(fixed.columns) < types.LEAVES_MAX
        job = make.job(fixed.columns, live["main"], number, discover=discover, fresh=True)
        job = with_schemas(job, fixed.writers)
        job = msgspec.structs.replace(job, cuts=cuts(partitions, named, fixed.columns))
        results = run_plan(blobs, job, runner, progress)
        proposals = [proposed for result in results for proposed in result.proposals]
        ids = {number for result in results for number in result.ids}
        if not proposals and not ids:
            break
        fixed = widened(fixed, proposals, writers.of(ids) if ids else None)
    _check_rows(job, results)
    made = _result(plan, job, results, None)
    dead = sum(file.rows for file in live["dlq"])
    uncovered = sorted(set(fixed.uncovered) - set(paths(job.columns)))
    made = msgspec.structs.replace(
        made,
        work=REBUILD,
        unframed=sum(done.unframed for done in results),
        move=Move(named, partitions),
        dead_rows=made.parts["dlq"].rows_added - dead,
        uncovered=uncovered,
        merges=previous.merges,
        files_merged=previous.files_merged,
    )
    return _stored(made, plan, blobs, progress, began)


def produce_replay(
    plan: JobPlan,
    runner: Runner,
    blobs: Blobs,
    progress: Progress,
    registry: Registry | None = None,
) -> str:
    """Decode the files with dead letters again, if a dead letter fits the columns now. Return the
    key of the result object, or "" if none does."""
    began = time.monotonic()
    previous = _previous(plan, blobs)
    live = _live(plan, blobs)
    writers = Writers(plan.table.columns, registry)
    heads, known = _known(blobs, writers, live["dlq"])
    columns = adopt(previous.columns, declared(plan.table.columns))
    columns, _ = with_writers(columns, known, heads)
    if not any(_fitting(blobs, file, columns, known) for file in live["dlq"]):
        return ""
    dead = np.concatenate([_keys(blobs, file) for file in live["dlq"]])
    announce(plan, f"{len(dead):,} dead letters again", progress)
    found = [(file, int(np.isin(_keys(blobs, file), dead).sum())) for file in live["main"]]
    if sum(count for _, count in found) != len(dead):
        raise CorruptData(
            f"'{plan.table.name}' has {len(dead)} dead letters, and rows of "
            f"{sum(count for _, count in found)} of them"
        )
    files = [file for file, count in found if count]
    _, known = _known(blobs, writers, files)
    job = _Maker(plan, blobs, live).job(columns, files, 0, discover=False)
    job = with_schemas(msgspec.structs.replace(job, cuts=previous.cuts), known)
    results = run_plan(blobs, job, runner, progress)
    _check_rows(job, results)
    made = _result(plan, job, results, previous)
    removed = {"main": files, "dlq": live["dlq"]}
    parts = {
        name: msgspec.structs.replace(part, removed=removed[name], rewritten=True)
        for name, part in made.parts.items()
    }
    made = msgspec.structs.replace(
        made,
        work=REPLAY,
        parts=parts,
        dead_rows=parts["dlq"].rows_added,
        uncovered=previous.uncovered,
        unframed=previous.unframed,
        merges=previous.merges,
        files_merged=previous.files_merged,
        unmerged=previous.unmerged,
    )
    return _stored(made, plan, blobs, progress, began)


class _Maker:
    """Makes the jobs of one plan."""

    def __init__(
        self, plan: JobPlan, blobs: Blobs, live: dict[str, list[Merged]], location: str = ""
    ) -> None:
        self._plan, self._blobs, self._location = plan, blobs, location
        self._strict = sorted({uid for file in live["dlq"] for uid in _strict(blobs, file)})

    def job(
        self,
        columns: list[Column],
        files: Sequence[Merged],
        number: int,
        *,
        discover: bool,
        fresh: bool = False,
    ) -> Job:
        """Return a job that decodes files again. With `fresh` the table is a new one."""
        catalog, table = StagingCatalog(self._blobs), self._plan.table
        location = self._blobs.uri(self._location or table.location)
        main, dead = ("", "") if fresh else (table.iceberg, table.iceberg_dlq)
        schema = with_field_ids(catalog, main, f"{location}/main", main_schema(columns))
        dlq = with_field_ids(catalog, dead, f"{location}/dlq", pa.schema(list(DLQ_TYPES.items())))
        return Job(
            plan=self._plan,
            columns=columns,
            shapes=[{}],
            tasks=_tasks(files),
            arrow_schema=schema.serialize().to_pybytes(),
            arrow_schema_dlq=dlq.serialize().to_pybytes(),
            discover=discover,
            full=leaves(columns) >= types.LEAVES_MAX,
            round=number,
            folder=self._location,
            strict=self._strict,
        )


def _previous(plan: JobPlan, blobs: Blobs) -> Result:
    if plan.table.transform:
        raise ConfigError(
            f"'{plan.table.name}' is derived: drop it and create it, and its transform runs over "
            "all records again"
        )
    if not plan.table.result:
        raise ConfigError(
            f"table '{plan.table.name}' has no rows yet; drop it and create it with other options"
        )
    return load_result(blobs, plan.table.result)


def _live(plan: JobPlan, blobs: Blobs) -> dict[str, list[Merged]]:
    catalog, table = StagingCatalog(blobs), plan.table
    pointers = {"main": table.iceberg, "dlq": table.iceberg_dlq}
    return {name: live_files(catalog, pointer) for name, pointer in pointers.items()}


def _tasks(files: Sequence[Merged]) -> list[Task]:
    """Return tasks of about `TASK_BYTES`, in order of the files' jobs."""
    tasks: list[Task] = []
    size = 0
    for file in sorted(files, key=lambda file: file.key):
        if not tasks or size + file.size > TASK_BYTES:
            tasks.append(Task(len(tasks), [], []))
            size = 0
        tasks[-1].redo.append(file)
        size += file.size
    return tasks


def _check_rows(job: Job, results: Sequence[TaskResult]) -> None:
    for task, done in zip(job.tasks, results, strict=True):
        before = sum(file.rows for file in task.redo)
        after = sum(file.rows for file in done.files)
        if done.task != task.id or before != after:
            raise CorruptData(
                f"task {task.id} of job {job.plan.job} wrote {after} of {before} rows"
            )


def _result(
    plan: JobPlan, job: Job, results: Sequence[TaskResult], previous: Result | None
) -> Result:
    main = [file for done in results for file in done.files]
    dead = [file for done in results for file in done.dead]
    parts = {
        "main": part_of(main, job.arrow_schema, previous, plan, "main"),
        "dlq": part_of(dead, job.arrow_schema_dlq, previous, plan, "dlq"),
    }
    return msgspec.structs.replace(
        result_of(plan, job, parts, None),
        location=job.location,
        rows=0,
        dead_rows=0,
        version=REDO_VERSION,
        unmerged=0,
    )


def _stored(made: Result, plan: JobPlan, blobs: Blobs, progress: Progress, began: float) -> str:
    rows = sum(file.rows for file in made.parts["main"].files)
    progress("ran", f"{rows:,} rows were decoded again")
    return store_result(blobs, plan, made, progress, began=began)


def _spread(files: Sequence[Merged]) -> list[Merged]:
    """Return at most `SAMPLE_FILES_MAX` files, evenly chosen."""
    count = min(len(files), SAMPLE_FILES_MAX)
    return [files[at] for at in np.linspace(0, len(files) - 1, count, dtype=np.int64)]


def _profiles(blobs: Blobs, file: Merged) -> list[FieldProfile]:
    """Return the fields of each stream among the first rows of a file."""
    parquet = opened(blobs, file)
    batch = next(parquet.iter_batches(SAMPLE_ROWS_FILE, columns=["incarnation", "value"]), None)
    if batch is None:
        return []
    found = []
    for uid in batch["incarnation"].unique().to_pylist():
        own = batch["value"].filter(pc.equal(batch["incarnation"], uid)).drop_null()
        data, ends = laid_out(own)
        if len(ends):
            found.append(observed(sample_values(data, ends, SAMPLE_RECORDS_STREAM)))
    return found


def _known(
    blobs: Blobs, writers: Writers, files: Sequence[Merged], *, whole: bool = True
) -> tuple[Heads, dict[int, Writer] | None]:
    """Return the schemas of the records in files, or of the first ones in each, and the first bytes
    of bodies by id."""
    first = writers.first()
    if first != {}:
        return {}, first
    heads: Heads = {}
    for file in files:
        for batch in opened(blobs, file).iter_batches(SAMPLE_ROWS_FILE, columns=["value"]):
            add_heads(heads, heads_in(layout_of(Kind.MAYBE_JSON, batch["value"])))
            if not whole:
                break
    return heads, writers.of(heads)


def _strict(blobs: Blobs, file: Merged) -> set[int]:
    """Return the incarnations that have dead letters because they are no JSON objects: those of
    JSON streams."""
    table = opened(blobs, file).read(columns=["incarnation", "reason", "field"])
    of_record = pc.and_(pc.is_in(table["reason"], pa.array(NO_OBJECT)), pc.is_null(table["field"]))
    return set(table["incarnation"].filter(of_record).to_pylist())


def _fitting(
    blobs: Blobs, file: Merged, columns: list[Column], writers: dict[int, Writer] | None
) -> bool:
    """Report whether a value of a file's dead letters fits the columns."""
    for batch in opened(blobs, file).iter_batches(SAMPLE_ROWS_FILE, columns=["message", "value"]):
        schema = Schema(columns, {}, full=leaves(columns) >= types.LEAVES_MAX)
        problems = typed_values(Kind.JSON, batch["value"], schema, writers).problems
        for row, message in enumerate(batch["message"].to_pylist()):
            found = problems.get(row, [])
            left, (fields, count) = {problem.field for problem in found}, fields_in(message)
            if "" not in left and (not fields <= left or len(found) < count):
                return True
    return False


def _keys(blobs: Blobs, file: Merged) -> Keys:
    table = opened(blobs, file).read(columns=["incarnation", "offset"])
    keys = np.empty(len(table), _KEY)
    for name in ("incarnation", "offset"):
        keys[name] = table[name].to_numpy()
    return keys
