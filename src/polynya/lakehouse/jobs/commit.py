"""Run one job from its plan to both formats, in idempotent steps that any driver can repeat."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from polynya.base.errors import CorruptData, PolynyaError
from polynya.lakehouse.formats import delta
from polynya.lakehouse.formats.iceberg import StagingCatalog, TableShape, stage
from polynya.lakehouse.formats.snapshots import Keeping
from polynya.lakehouse.jobs.culprits import culprits, describe
from polynya.lakehouse.jobs.plan import Job, JobPlan, Range, TableRef, check_plan
from polynya.lakehouse.jobs.plan_objects import run_plan
from polynya.lakehouse.jobs.prepare import Fixed, fix_schema, make_job, widened
from polynya.lakehouse.jobs.results import (
    DERIVED,
    PARTS,
    Progress,
    Result,
    Rewrite,
    Runner,
    announce,
    counted,
    find_result,
    load_result,
    part_of,
    result_of,
    store_result,
)
from polynya.lakehouse.jobs.rewrites.merging import merge_due
from polynya.lakehouse.jobs.stopping import finish_first
from polynya.lakehouse.jobs.task import TaskResult, claimed_records, failed_range
from polynya.lakehouse.payloads.registry import Writers
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.schema.columns import paths, renamed
from polynya.lakehouse.server.coordinator import Coordinator
from polynya.wire.tables import CommitRequest, FailedRange

DECIDED_SHOWN = 20  # new columns that a step names
UNCOVERED_MAX = 100  # fields without a column that are named
ROUNDS_MAX = 3  # a job is rerun with a wider schema at most twice

STEPS = (
    "planned",
    "schema",
    "plan-object",
    "ran",
    "result-object",
    "staged-main",
    "staged-dlq",
    "pointer",
    "delta-main",
    "delta-dlq",
)

# by the URI of a table's folder: the last result that this process saw or put into both Delta logs
_complete: dict[str, str] = {}


class RangesFailed(PolynyaError):
    """Ranges of the plan cannot be read. Report them, which abandons the job, and request a new
    plan."""

    def __init__(self, ranges: list[FailedRange]) -> None:
        super().__init__("; ".join(map(failure_text, ranges)))
        self.ranges = ranges


def failure_text(failed: FailedRange) -> str:
    """Return a failed range in words: stream, records, object, offset and reason."""
    last = failed.record + failed.records - 1
    records = f"record {last}" if failed.records == 1 else f"records {failed.record} to {last}"
    return (
        f"{records} of stream '{failed.stream}' (object {failed.pack}, offset {failed.offset}): "
        f"{failed.reason}"
    )


class JobOutcome(msgspec.Struct, frozen=True):
    """The outcome of a job."""

    table: TableRef
    job: int
    rows: int
    dead_rows: int
    bytes: int
    ours: bool  # False: another driver's attempt was committed
    replaced: int = 0  # files that were merged or decoded again
    unmerged: int = 0  # files that were added since the last merge
    work: str = ""  # of a job without ranges, as in `Result`


def run_job(
    plan: JobPlan,
    coordinator: Coordinator,
    runner: Runner,
    blobs: Blobs,
    progress: Progress,
    *,
    rewrite: Rewrite = merge_due,
) -> JobOutcome | None:
    """Run a plan to its end. Every step is idempotent. Raises the errors of the store, the runner
    and the coordinator.

    A plan without ranges is for `rewrite`, unless another driver's result is there. If it finds
    nothing to do, the job is abandoned, and None returned.
    """
    check_plan(plan)
    if plan.ranges:
        announce(plan, f"{counted(len(plan.ranges), 'range')}, {_size(plan)}", progress)
    repair(blobs, plan.table)
    key = find_result(blobs, plan)
    if not key and plan.ranges:
        key = _produce(plan, coordinator, runner, blobs, progress)
    elif not key:
        key = _rewritten(plan, coordinator, runner, blobs, progress, rewrite)
    if not key:
        return None
    result = load_result(blobs, key)
    try:
        request = _staged(plan, result, key, blobs, progress)
    except (PolynyaError, OSError):
        raise
    except Exception as fault:
        _check_ranges(plan, coordinator, runner, blobs, fault)
        raise
    with finish_first(
        f"job {plan.job} of '{plan.table.name}' may be in Iceberg and not yet in Delta; the next "
        "run completes it"
    ):
        table = coordinator.commit(plan.table.name, request)
        ours = table.result == key
        another = f"another driver committed first: '{plan.table.name}' is at job {table.job}"
        progress("pointer", f"job {plan.job} is in Iceberg" if ours else another)
        repair(blobs, table, progress)
    return JobOutcome(
        table,
        plan.job,
        result.rows,
        result.dead_rows,
        sum(part.length for part in plan.ranges),
        ours,
        sum(len(part.removed) for part in result.parts.values()),
        result.unmerged,
        result.work,
    )


def repair(blobs: Blobs, table: TableRef, progress: Progress | None = None) -> None:
    """Bring both Delta logs up to the table's last committed job."""
    root = blobs.uri(table.location)
    if not table.result or _complete.get(root) == table.result:
        return
    last = load_result(blobs, table.result)
    for name in PARTS:
        for result in _missing(blobs, last, name):
            part = result.parts[name]
            location = f"{result.location}/{name}"
            schema = pa.ipc.read_schema(pa.BufferReader(part.arrow_schema))
            delta.apply(
                blobs,
                location,
                delta.app_id(result.uid, name),
                result.job,
                schema=schema,
                change=part.change,
            )
        if progress:
            progress(f"delta-{name}", f"job {last.job} is in Delta ({name})")
    _complete[root] = table.result


def _produce(
    plan: JobPlan, coordinator: Coordinator, runner: Runner, blobs: Blobs, progress: Progress
) -> str:
    """Run the tasks, again with a wider schema if they ask for it. Return the key of the result
    object."""
    began = time.monotonic()
    previous = load_result(blobs, plan.table.result) if plan.table.result else None
    writers = Writers(plan.table.columns, coordinator.schemas)
    fixed = fix_schema(blobs, plan, previous.columns if previous else [], writers)
    for number in range(ROUNDS_MAX):
        last = number == ROUNDS_MAX - 1
        job = make_job(
            blobs, plan, fixed, cores=runner.cores, round_number=number, discover=not last
        )
        if fixed.decided:
            progress("columns", _decisions(fixed))
        progress("schema", f"{len(job.columns)} typed columns, {len(job.tasks)} tasks")
        results = run_plan(blobs, job, runner, progress)
        failed = [each for result in results for each in result.failed]
        if failed:
            raise RangesFailed(failed)
        proposals = [proposed for result in results for proposed in result.proposals]
        ids = {number for result in results for number in result.ids}
        if not proposals and not ids:
            break
        fixed = widened(fixed, proposals, writers.of(ids) if ids else None)
        found = f"{len(ids)} more schemas" if ids else f"{len(proposals)} more fields"
        progress("schema", f"{found} were found: running again with columns for them")
    unframed = sum(result.unframed for result in results)
    without = f", {unframed:,} of them without a schema's id" if unframed else ""
    progress("ran", counted(sum(result.records for result in results), "record") + without)
    known = {*fixed.uncovered, *(previous.uncovered if previous else ())} - set(paths(job.columns))
    made = _result(plan, job, results, previous)
    made = msgspec.structs.replace(
        made,
        unframed=made.unframed + unframed,
        uncovered=sorted(known)[:UNCOVERED_MAX],
    )
    return store_result(blobs, plan, made, progress, began=began)


def _check_ranges(
    plan: JobPlan, coordinator: Coordinator, runner: Runner, blobs: Blobs, fault: Exception
) -> None:
    """Raise RangesFailed if ranges of the plan alone make the commit fail as `fault` did."""

    def commit(some: Sequence[Range]) -> None:
        part = msgspec.structs.replace(plan, ranges=list(some), attempt=secrets.token_hex(8))
        key = _produce(part, coordinator, runner, blobs, _silent)
        _staged(part, load_result(blobs, key), key, blobs, _silent)

    failed = culprits(plan.ranges, commit)
    if failed:
        raise RangesFailed([failed_range(each) for each in failed]) from fault


def _silent(step: str, said: str) -> None:
    """Say nothing of a step that is only tried."""


def _rewritten(
    plan: JobPlan,
    coordinator: Coordinator,
    runner: Runner,
    blobs: Blobs,
    progress: Progress,
    rewrite: Rewrite,
) -> str:
    """Run a rewrite. Return the key of its result, or "". One that fails or has nothing to do is
    abandoned: the table's next job need not wait for it."""
    try:
        key = rewrite(plan, runner, blobs, progress)
    except Exception as fault:
        coordinator.abandon(plan.table.name, plan.table.uid, plan.job, describe(fault), failed=True)
        raise
    if not key:
        coordinator.abandon(plan.table.name, plan.table.uid, plan.job, "nothing is to do")
    return key


def _decisions(fixed: Fixed) -> str:
    """Return the new columns in words: their types, and how many of the sampled values have
    them."""
    shown, more = fixed.decided[:DECIDED_SHOWN], len(fixed.decided) - DECIDED_SHOWN
    return f"new, with their share of the sampled values: {', '.join(shown)}" + (
        f", and {more:,} more" if more > 0 else ""
    )


def _result(
    plan: JobPlan, job: Job, results: Sequence[TaskResult], previous: Result | None
) -> Result:
    for task, done in zip(job.tasks, results, strict=True):
        written = sum(file.rows for file in done.files)
        if done.task != task.id or written != done.records or written > claimed_records(task):
            raise CorruptData(
                f"task {task.id} of job {plan.job} wrote {written} of {claimed_records(task)} "
                "records"
            )
    main = [file for done in results for file in done.files]
    dead = [file for done in results for file in done.dead]
    parts = {
        "main": part_of(main, job.arrow_schema, previous, plan, "main"),
        "dlq": part_of(dead, job.arrow_schema_dlq, previous, plan, "dlq"),
    }
    return result_of(plan, job, parts, previous)


def _staged(
    plan: JobPlan, result: Result, key: str, blobs: Blobs, progress: Progress
) -> CommitRequest:
    """Write the metadata of both tables. Return the request that makes it visible."""
    catalog = StagingCatalog(blobs)
    base = {"main": plan.table.iceberg, "dlq": plan.table.iceberg_dlq}
    pointers = {}
    known = base if result.move is None else dict.fromkeys(base, "")
    summary = {
        "polynya.job": str(plan.job),
        "polynya.attempt": plan.attempt,
        "polynya.table-uid": plan.table.uid,
        "polynya.result": key,
        "polynya.seconds": f"{result.seconds:.3f}",
        "polynya.merges": str(result.merges),
        "polynya.files-merged": str(result.files_merged),
        "polynya.unframed": str(result.unframed),
        "polynya.fields-without-column": msgspec.json.encode(result.uncovered).decode(),
    }
    for name, part in result.parts.items():
        pointers[name] = known[name]
        if part.changed:
            pointers[name] = stage(
                catalog,
                f"{plan.table.name}{'__dlq' if name == 'dlq' else ''}",
                known[name],
                f"{blobs.uri(result.location)}/{name}",
                shape=TableShape(
                    pa.ipc.read_schema(pa.BufferReader(part.arrow_schema)),
                    result.cuts if name == "main" else (),
                    renamed(result.columns) if name == "main" and result.work != DERIVED else {},
                    _keeping(plan.table, name),
                ),
                change=part.change,
                summary=summary,
            )
        progress(f"staged-{name}", pointers[name])
    return CommitRequest(
        uid=plan.table.uid,
        job=plan.job,
        attempt=plan.attempt,
        base_iceberg=base["main"],
        base_iceberg_dlq=base["dlq"],
        iceberg=pointers["main"],
        iceberg_dlq=pointers["dlq"],
        result=key,
        rows=result.rows,
        dead_rows=result.dead_rows,
        move=result.move,
    )


def _keeping(table: TableRef, name: str) -> Keeping:
    """Return what a part keeps. Tags are of the rows; dead letters are found by their job."""
    tags = {tag: each.snapshot for tag, each in table.tags.items()} if name == "main" else {}
    return Keeping(table.keep_snapshots, table.keep_ms, tags)


def _missing(blobs: Blobs, last: Result, name: str) -> list[Result]:
    """Return the results that the Delta log lacks, oldest first."""
    there = delta.committed_job(blobs, f"{last.location}/{name}", delta.app_id(last.uid, name))
    found: list[Result] = []
    result: Result | None = last
    while result is not None and result.job > there:
        part = result.parts[name]
        if part.changed:
            found.append(result)
        # results of jobs that are in both logs may have expired
        more = part.previous_job > there and part.previous_result
        result = load_result(blobs, part.previous_result) if more else None
    return found[::-1]


def _size(plan: JobPlan) -> str:
    return f"{sum(part.length for part in plan.ranges) / 1e6:,.1f} MB"


def cores_here() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
