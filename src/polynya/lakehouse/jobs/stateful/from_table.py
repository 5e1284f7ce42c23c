"""The input of a table that is derived from another one: the rows that its source got since the
last job, or all rows of the source.

The jobs of a table are linked by their result objects, so the files that each added are known. The
rows of these files are the next input, if every job since the last place only added rows. If rows
changed, or files are gone, all rows of the source are transformed, and replace those of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polynya.base.transforms import Transform
from polynya.lakehouse.formats.iceberg import StagingCatalog, live_files
from polynya.lakehouse.jobs.plan import TASKS_PER_CORE, Job, JobPlan, Merged, TableRef, Task
from polynya.lakehouse.jobs.results import (
    KEYED_VERSION,
    Progress,
    Result,
    Runner,
    SourcePosition,
    announce,
    load_result,
)
from polynya.lakehouse.jobs.stateful.faults import TransformFailed
from polynya.lakehouse.reading.blobs import Blobs
from polynya.objectstore import NotFound

Taken = dict[str, tuple[int, int]]  # by stream: uid, next record


class Input(msgspec.Struct, frozen=True):
    """The input of a job: the job that reads it, and the positions in the streams or the source
    table behind it."""

    job: Job
    taken: Taken = {}
    source: SourcePosition | None = None
    whole: bool = False  # all rows of the source: they replace those of the table


def source_rows(
    plan: JobPlan,
    transform: Transform,
    previous: Result | None,
    blobs: Blobs,
    run: tuple[Runner, Progress],
) -> Input | None:
    """Return the next input from the source table, None if it had no job since. `run` reads them,
    and is told of them. Raises TransformFailed."""
    runner, progress = run
    source, before = plan.source, previous.source if previous else None
    if source is None:
        raise TransformFailed(
            "the plan names no source table: run a server of the driver's release"
        )
    if not source.result or (before is not None and before.job == source.job):
        return None
    last = load_result(blobs, source.result)
    files = None if before is None or transform.whole else _added(blobs, source, last, before.job)
    whole = files is None
    if files is None:
        if before is not None and transform.time:
            raise TransformFailed(
                f"the rows that '{source.name}' got since its job {before.job} cannot be told from the "
                "others any more, and rows before the watermark must not change: drop this table and "
                "create it"
            )
        files = live_files(StagingCatalog(blobs), source.iceberg)
    count = sum(file.rows for file in files)
    kind = "all" if whole else "the new"
    announce(plan, f"the transform of {kind} {count:,} rows of '{source.name}'", progress)
    job = Job(
        plan=plan,
        columns=[],
        shapes=[],
        tasks=_tasks(files, runner.cores),
        arrow_schema=last.parts["main"].arrow_schema,
        arrow_schema_dlq=b"",
        discover=False,
        full=True,
    )
    rows = count if whole or before is None else before.rows + count
    return Input(job, source=SourcePosition(source.uid, source.job, rows), whole=whole)


def replaced(blobs: Blobs, plan: JobPlan, made: Result) -> Result:
    """Return the result of a job whose rows replace all rows of its table."""
    live = live_files(StagingCatalog(blobs), plan.table.iceberg) if plan.table.iceberg else []
    main = msgspec.structs.replace(made.parts["main"], removed=live, rewritten=True)
    return msgspec.structs.replace(
        made,
        version=KEYED_VERSION,
        parts={**made.parts, "main": main},
        rows=main.rows_added,
        unmerged=len(main.files),
    )


def _added(blobs: Blobs, source: TableRef, last: Result, job: int) -> list[Merged] | None:
    """Return the files with the rows that the source got after `job`; None if they cannot be told
    from the others."""
    found: list[Merged] = []
    result = last
    while True:
        part = result.parts["main"]
        if part.rewritten or (part.changed and not part.previous_job):
            return None  # rows changed, or all are in a new folder
        if not part.removed:  # a merge adds none
            found += [Merged(each.key, each.rows, each.size, each.partition) for each in part.files]
        if part.previous_job <= job:
            break
        try:
            result = load_result(blobs, part.previous_result)
        except NotFound:
            return None  # results are kept for some jobs
    live = {each.key for each in live_files(StagingCatalog(blobs), source.iceberg)}
    merged = [each.key for each in found if each.key not in live]
    return found if all(_is_there(blobs, key) for key in merged) else None


def _is_there(blobs: Blobs, key: str) -> bool:
    """Report whether the sweep has left a file that a merge replaced."""
    try:
        blobs.get_range(key, 0, 1)
    except NotFound:
        return False
    return True


def _tasks(files: Sequence[Merged], cores: int) -> list[Task]:
    """Divide files into tasks of similar size."""
    count = min(len(files), cores * TASKS_PER_CORE)
    shares: list[list[Merged]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda each: (-each.size, each.key)):
        least = sizes.index(min(sizes))
        shares[least].append(file)
        sizes[least] += file.size
    return [Task(number, [], [], redo=share) for number, share in enumerate(shares)]
