"""Run the merges of a job, from a plan without ranges to the result object."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from polynya.base.errors import CorruptData
from polynya.lakehouse.formats.iceberg import StagingCatalog, live_files
from polynya.lakehouse.jobs.plan import Job, JobPlan, Merged, TableRef, Task
from polynya.lakehouse.jobs.plan_objects import run_plan
from polynya.lakehouse.jobs.results import (
    KEYED_VERSION,
    MERGE,
    MERGE_VERSION,
    PARTS,
    Progress,
    Result,
    Runner,
    announce,
    load_result,
    part_of,
    result_of,
    store_result,
)
from polynya.lakehouse.jobs.rewrites.merge_plan import merge_tasks
from polynya.lakehouse.jobs.task import TaskResult
from polynya.lakehouse.reading.blobs import Blobs


def due_merges(blobs: Blobs, table: TableRef, *, whole: bool) -> list[Task]:
    """Return the merges that are due for the table as it is now."""
    catalog = StagingCatalog(blobs)
    pointers = {"main": table.iceberg, "dlq": table.iceberg_dlq}
    live = {name: live_files(catalog, pointer) for name, pointer in pointers.items() if pointer}
    return merge_tasks(live, table, whole=whole)


def merge_due(plan: JobPlan, runner: Runner, blobs: Blobs, progress: Progress) -> str:
    """Merge files of the table that are due. Return the key of the result object, or "" if none
    is."""
    return produce_merge(plan, runner, blobs, progress, whole=False)


def merge_all(plan: JobPlan, runner: Runner, blobs: Blobs, progress: Progress) -> str:
    """Merge all small files of the table. Return as `merge_due`."""
    return produce_merge(plan, runner, blobs, progress, whole=True)


def produce_merge(
    plan: JobPlan, runner: Runner, blobs: Blobs, progress: Progress, *, whole: bool
) -> str:
    """Merge files of the table. Return the key of the result object, or "" if no merge is due."""
    began = time.monotonic()
    if not plan.table.result:
        return ""
    tasks = due_merges(blobs, plan.table, whole=whole)
    if not tasks:
        return ""
    files = sum(len(task.merge.files) for task in tasks if task.merge is not None)
    announce(plan, f"a merge of {files} files", progress)
    previous = load_result(blobs, plan.table.result)
    job = Job(
        plan=plan,
        columns=previous.columns,
        shapes=[],
        tasks=tasks,
        arrow_schema=previous.parts["main"].arrow_schema,
        arrow_schema_dlq=previous.parts["dlq"].arrow_schema,
        discover=False,
        cuts=previous.cuts,
    )
    results = run_plan(blobs, job, runner, progress)
    made = _result(plan, job, results, previous)
    progress("ran", _summary(made))
    return store_result(blobs, plan, made, progress, began=began)


def _result(plan: JobPlan, job: Job, results: Sequence[TaskResult], previous: Result) -> Result:
    for task, done in zip(job.tasks, results, strict=True):
        before, after = _rows(task), sum(file.rows for file in done.files)
        if done.task != task.id or before != after:
            raise CorruptData(f"task {task.id} of job {plan.job} merged {before} rows to {after}")
    parts = {}
    for name in PARTS:
        done_there = [
            (task.merge, done)
            for task, done in zip(job.tasks, results, strict=True)
            if task.merge is not None and task.merge.part == name
        ]
        files = [file for _, done in done_there for file in done.files]
        removed: list[Merged] = [file for merge, _ in done_there for file in merge.files]
        schema = job.arrow_schema if name == "main" else job.arrow_schema_dlq
        part = part_of(files, schema, previous, plan, name)
        parts[name] = msgspec.structs.replace(part, removed=removed)
    return msgspec.structs.replace(
        result_of(plan, job, parts, previous),
        version=KEYED_VERSION if previous.version == KEYED_VERSION else MERGE_VERSION,
        work=MERGE,
        taken=previous.taken,
        source=previous.source,
        watermark_us=previous.watermark_us,
        late_rows=previous.late_rows,
        uncovered=previous.uncovered,
        merges=previous.merges + 1,
        files_merged=previous.files_merged + sum(len(part.removed) for part in parts.values()),
        unmerged=0,
    )


def _rows(task: Task) -> int:
    return sum(file.rows for file in task.merge.files) if task.merge is not None else 0


def _summary(made: Result) -> str:
    removed = [file for part in made.parts.values() for file in part.removed]
    files = [file for part in made.parts.values() for file in part.files]
    size = sum(file.size for file in removed)
    return f"{len(removed):,} files ({size / 1e6:,.1f} MB) into {len(files):,}"
