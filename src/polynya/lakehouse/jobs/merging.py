"""Run the merges of a job, from a plan without ranges to the result object."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from polynya.base.errors import CorruptData
from polynya.lakehouse.formats.iceberg import StagingCatalog, live_files
from polynya.lakehouse.jobs.merge_plan import merge_tasks
from polynya.lakehouse.jobs.plan import Job, JobPlan, Merged, TableRef, Task
from polynya.lakehouse.jobs.results import (
    MERGE_VERSION,
    PARTS,
    Result,
    Runner,
    fingerprint,
    folder,
    load_result,
    part_of,
)
from polynya.lakehouse.jobs.task import TaskResult
from polynya.lakehouse.reading.blobs import Blobs


def due_merges(blobs: Blobs, table: TableRef, *, whole: bool) -> list[Task]:
    """Return the merges that are due for the table as it is now."""
    catalog = StagingCatalog(blobs)
    pointers = {"main": table.iceberg, "dlq": table.iceberg_dlq}
    live = {name: live_files(catalog, pointer) for name, pointer in pointers.items() if pointer}
    return merge_tasks(live, table, whole=whole)


def produce_merge(
    plan: JobPlan,
    runner: Runner,
    blobs: Blobs,
    progress: Callable[[str, str], None],
    *,
    whole: bool,
) -> str:
    """Merge files of the table. Return the key of the result object, or "" if no merge is due."""
    begin = time.monotonic()
    if not plan.table.result:
        return ""
    tasks = due_merges(blobs, plan.table, whole=whole)
    if not tasks:
        return ""
    previous = load_result(blobs, plan.table.result)
    job = Job(
        plan=plan,
        columns=previous.columns,
        shapes=[],
        tasks=tasks,
        arrow_schema=previous.parts["main"].arrow_schema,
        arrow_schema_dlq=previous.parts["dlq"].arrow_schema,
        discover=False,
    )
    key = f"{folder(plan)}/{plan.attempt}.0.plan.json"
    blobs.put(key, msgspec.json.encode(job))
    progress("plan-object", key)
    results = runner.run(job, key)
    made = _result(plan, job, results, previous)
    made = msgspec.structs.replace(made, seconds=round(time.monotonic() - begin, 3))
    progress("ran", _told(made))
    key = f"{folder(plan)}/{plan.attempt}.result.json"
    blobs.put(key, msgspec.json.encode(made))
    progress("result-object", key)
    return key


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
    return Result(
        job=plan.job,
        attempt=plan.attempt,
        uid=plan.table.uid,
        name=plan.table.name,
        location=plan.table.location,
        fingerprint=fingerprint(plan),
        columns=previous.columns,
        rows=0,
        dead_rows=0,
        parts=parts,
        version=MERGE_VERSION,
        uncovered=previous.uncovered,
        merges=previous.merges + 1,
        files_merged=previous.files_merged + sum(len(part.removed) for part in parts.values()),
    )


def _rows(task: Task) -> int:
    return sum(file.rows for file in task.merge.files) if task.merge is not None else 0


def _told(made: Result) -> str:
    removed = [file for part in made.parts.values() for file in part.removed]
    files = [file for part in made.parts.values() for file in part.files]
    size = sum(file.size for file in removed)
    return f"{len(removed):,} files ({size / 1e6:,.1f} MB) into {len(files):,}"
