"""The result object of a job: all that both formats need, so that any driver can continue from
it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from polynya.base.errors import CorruptData
from polynya.base.transforms import Transform
from polynya.lakehouse.formats.parquet import Change, File
from polynya.lakehouse.jobs.plan import Job, JobPlan, Merged
from polynya.lakehouse.jobs.task import TaskResult
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.schema.columns import Column
from polynya.lakehouse.schema.partitions import Cut
from polynya.wire.tables import Move

VERSION = 1
MERGE_VERSION = 2  # a driver that does not know `removed` would add the rows again
REDO_VERSION = 3  # one that does not know `move` and `rewritten` would commit to the old folder
KEYED_VERSION = 4  # one that does not know `watermark_us` or `source` would forget it
VERSIONS = (VERSION, MERGE_VERSION, REDO_VERSION, KEYED_VERSION)
MERGE, REBUILD, REPLAY, DERIVED = "merge", "rebuild", "replay", "derived"
PARTS = ("main", "dlq")
_END = ".result.json"


class Asked(msgspec.Struct, frozen=True):
    """A request to derive rows: the definition, and of a table with a key its files and
    watermark."""

    transform: Transform
    live: list[Merged] = []
    watermark_us: int | None = None  # rows of earlier times are late


class Derived(msgspec.Struct, frozen=True):
    """The derived rows: the job that wrote them and the results of its tasks. Of a table with a key
    also the files that they replace, the late rows, and the largest time."""

    job: Job
    results: list[TaskResult]
    removed: list[Merged] = []
    late: int = 0
    newest_us: int | None = None


class Runner(Protocol):
    """The executor of a job's tasks."""

    @property
    def cores(self) -> int: ...

    def run(self, job: Job, key: str) -> list[TaskResult]:
        """Return one result for each task, in order. `key` names the job's plan object."""
        ...

    def derive(
        self, job: Job, key: str, asked: Asked, shaped: Callable[[pa.Schema], tuple[Job, str]]
    ) -> Derived:
        """Transform the rows of the job's ranges, and write the result. `shaped` returns the job
        that writes rows of a schema, and the key of its plan object."""
        ...


class SourcePosition(msgspec.Struct, frozen=True):
    """The state of a source table up to which its rows were derived."""

    uid: str
    job: int
    rows: int  # of the source table then


class FormatCommit(msgspec.Struct, frozen=True):
    """The changes of a job to one of the two tables: files added, and those that they replace.

    `previous_*` name the last earlier job with a commit there, and its result object.
    """

    files: list[File]
    arrow_schema: bytes
    previous_job: int
    previous_result: str
    removed: list[Merged] = []  # replaced by `files`, which have the same rows …
    rewritten: bool = False  # … or rows with other values

    @property
    def changed(self) -> bool:
        """True if the job has a Delta commit there: it has files or is the first."""
        return bool(self.files or self.removed) or self.previous_job == 0

    @property
    def change(self) -> Change:
        return Change(self.files, self.removed, self.rewritten)

    @property
    def rows_added(self) -> int:
        """Return the number of new rows."""
        return sum(file.rows for file in self.files) - sum(file.rows for file in self.removed)


class Result(msgspec.Struct, frozen=True):
    """The result object. It has all that both formats need, so any driver can continue from it."""

    job: int
    attempt: str
    uid: str
    name: str
    location: str
    fingerprint: str  # hash of the ranges
    columns: list[Column]
    rows: int
    dead_rows: int
    parts: dict[str, FormatCommit]
    version: int = VERSION
    seconds: float = 0.0  # from the plan to the written files
    uncovered: list[
        str
    ] = []  # fields without a column, as far as samples showed; at most UNCOVERED_MAX
    merges: int = 0  # merges until now, this job included
    files_merged: int = 0  # files that they replaced
    unmerged: int = 0  # files that this job and those since the last merge added
    cuts: list[Cut] = []  # partitions of the main part
    work: str = ""  # of a job without ranges: MERGE, REBUILD, REPLAY or DERIVED
    taken: dict[str, tuple[int, int]] = {}  # of a derived table, by stream: uid, next record
    move: Move | None = None  # the table is in a new folder, with this definition
    watermark_us: int | None = None  # of a derived table: later jobs take no rows of earlier times
    late_rows: int = 0  # rows that were late, until now
    source: SourcePosition | None = None  # of a table that is derived from another one
    unframed: int = 0  # values without a schema's id, until now


Progress = Callable[[str, str], None]
"""A callback with the name of the finished step (`commit.STEPS`) and a sentence about it."""

Rewrite = Callable[[JobPlan, Runner, Blobs, Progress], str]
"""Produces the result of a plan without ranges: returns its key, or "" if nothing is to do."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural but for one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def announce(plan: JobPlan, what: str, progress: Progress) -> None:
    """Say what a job will do. One without ranges may turn out to have nothing to do."""
    progress("planned", f"job {plan.job} of '{plan.table.name}': {what}")


def store_result(
    blobs: Blobs, plan: JobPlan, made: Result, progress: Progress, *, began: float
) -> str:
    """Store the result of a job that began at this time of `time.monotonic`. Return its key."""
    key = f"{folder(plan)}/{plan.attempt}{_END}"
    seconds = round(time.monotonic() - began, 3)
    blobs.put(key, msgspec.json.encode(msgspec.structs.replace(made, seconds=seconds)))
    progress("result-object", key)
    return key


def find_result(blobs: Blobs, plan: JobPlan) -> str:
    """Return the key of a result that any driver stored for exactly these ranges, or ""."""
    for key in blobs.list_keys(folder(plan)):
        if key.endswith(_END) and load_result(blobs, key).fingerprint == fingerprint(plan):
            return key
    return ""


def load_result(blobs: Blobs, key: str) -> Result:
    result = msgspec.json.decode(blobs.get(key), type=Result)
    check_version(key, result.version, VERSIONS, "driver", "run the driver of the server's release")
    return result


def check_version(key: str, found: int, known: Sequence[int], reader: str, advice: str) -> None:
    """Raise CorruptData if an object has a version of another release."""
    if found not in known:
        raise CorruptData(
            f"{key} has version {found}, this {reader} supports {', '.join(map(str, known))}: "
            f"{advice}"
        )


def fingerprint(plan: JobPlan) -> str:
    """Return a hash of the plan's ranges and base, equal for all attempts at one job."""
    matter = msgspec.json.encode(
        [plan.table.uid, plan.job, plan.table.iceberg, plan.table.iceberg_dlq, plan.ranges]
    )
    return hashlib.blake2b(matter, digest_size=16).hexdigest()


def part_of(
    files: list[File], schema: bytes, previous: Result | None, plan: JobPlan, name: str
) -> FormatCommit:
    """Return the additions to a part, linked to the last earlier job that changed it."""
    if previous is None:
        return FormatCommit(files, schema, 0, "")
    before = previous.parts[name]
    if before.changed:
        return FormatCommit(files, schema, previous.job, plan.table.result)
    return FormatCommit(files, schema, before.previous_job, before.previous_result)


def result_of(
    plan: JobPlan, job: Job, parts: dict[str, FormatCommit], previous: Result | None
) -> Result:
    """Return the result of a job that added the files of `parts` to what earlier jobs made."""
    files = max(len(part.files) for part in parts.values())
    return Result(
        job=plan.job,
        attempt=plan.attempt,
        uid=plan.table.uid,
        name=plan.table.name,
        location=plan.table.location,
        fingerprint=fingerprint(plan),
        columns=job.columns,
        cuts=job.cuts,
        rows=parts["main"].rows_added,
        dead_rows=parts["dlq"].rows_added,
        parts=parts,
        merges=previous.merges if previous else 0,
        files_merged=previous.files_merged if previous else 0,
        unmerged=files + (previous.unmerged if previous else 0),
        unframed=previous.unframed if previous else 0,
    )


def folder(plan: JobPlan) -> str:
    """Return the folder of the job's plan and result objects."""
    return f"{plan.table.location}/jobs/{plan.job:012d}"
