"""Commits of a table over many jobs: what the commit of a job with one file costs, and how many
files stay live, with merges as in the product.

    PYTHONPATH=src python bench/table_commits.py [--jobs 1000] [--fields 30] [--raw]

A job reads one small pack, as a worker with a short interval does. The driver runs here, without
Spark: the figures are the time from the result object to the end of the job, in which Iceberg's
metadata of both tables and the Delta logs are written, and the CPU time of the same span. Jobs that
merge files are told apart.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import google_crc32c
import msgspec

from polynya.lakehouse.formats.iceberg import StagingCatalog, live_files
from polynya.lakehouse.jobs.plan import Job, JobPlan, Range, TableRef
from polynya.lakehouse.jobs.plan_objects import load_header, load_task
from polynya.lakehouse.jobs.task import TaskResult, run_task
from polynya.lakehouse.jobs.worker import Syncing
from polynya.lakehouse.reading.blobs import LocalBlobs
from polynya.stream.parts import Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire.pack import PackBuilder
from polynya.wire.slices import build_slice
from polynya.wire.tables import CommitRequest, FailedRange, StoreRef

RECORDS = 200  # of a job


class OneTable:
    """The server's side for one table, and the runner of its tasks. Each round has one pack."""

    cores = 1

    def __init__(self, folder: str, fields: int, merge_files: int) -> None:
        self.blobs = LocalBlobs(folder)
        self.table = TableRef(
            "7001", "bench", "", "tables/7001", merge_files=merge_files, merge_bytes=128 << 20
        )
        self._store = StoreRef("local", folder)
        self._fields = fields
        self._tail = [0, 0]
        self._jobs = 0
        self._pending: list[Range] = []

    def append(self) -> None:
        """Put the records of one job into a pack."""
        record = b",".join(
            b'"f%d":%d' % (number, self._tail[0] * 31 + number) for number in range(self._fields)
        )
        payload = b"{%s}," % record * RECORDS
        lengths = (len(record) + 3).to_bytes(4, "little") * RECORDS
        batch = HotBatch(*self._tail, RECORDS, payload, lengths, google_crc32c.value(payload),
                         1_700_000_000_000 + self._tail[0], 0, Encoding.JSON, 0)  # fmt: skip
        builder = PackBuilder()
        entry = builder.add(1, 1, build_slice(Encoding.JSON, *self._tail, [batch]))
        key = f"c/packs/20240101-00/1-{secrets.token_hex(16)}"
        self.blobs.put(key, b"".join(builder.finish(owner_group=1, created_ms=0)[0]))
        self._pending = [
            Range("s", 1, 1, "application/json", Encoding.JSON, *self._tail, entry.records,
                  entry.length, key, entry.offset, entry.stored, entry.crc)
        ]  # fmt: skip
        self._tail = [self._tail[0] + RECORDS, self._tail[1] + len(payload)]

    def tables(self) -> list[TableRef]:
        return [msgspec.structs.replace(self.table, store=self._store)]

    def plan(self, name: str, *, merge: bool = False) -> JobPlan | None:
        ranges, self._pending = ([], self._pending) if merge else (self._pending, [])
        if not ranges and not merge:
            return None
        self._jobs += 1
        return JobPlan(self.table, self._jobs, secrets.token_hex(16), self._store, ranges)

    def commit(self, name: str, request: CommitRequest) -> TableRef:
        self.table = msgspec.structs.replace(
            self.table, job=request.job, iceberg=request.iceberg,
            iceberg_dlq=request.iceberg_dlq, result=request.result,
        )  # fmt: skip
        return self.table

    def abandon(
        self, name: str, uid: str, job: int, reason: str, *, failed: bool = False
    ) -> TableRef:
        return self.table

    def fail(self, name: str, uid: str, job: int, ranges: list[FailedRange]) -> TableRef:
        raise AssertionError(ranges)

    def aside(self, name: str) -> set[tuple[int, int]]:
        return set()

    def run(self, job: Job, key: str) -> list[TaskResult]:
        header = load_header(self.blobs, key)
        return [
            run_task(header, load_task(self.blobs, key, header, task.id), self.blobs)
            for task in job.tasks
        ]


class Clock:
    """A progress callback that times the commits: from the result object to the Delta log."""

    def __init__(self) -> None:
        self.commits: list[tuple[bool, float, float]] = []  # whether a merge; wall, CPU
        self._begin = (0.0, 0.0)
        self._merges = False

    def __call__(self, step: str, told: str) -> None:
        now = (time.perf_counter(), time.process_time())
        if step == "planned":
            self._merges = "rewrite" in told
        elif step == "result-object":
            self._begin = now
        elif step == "delta-dlq":
            self.commits.append((self._merges, now[0] - self._begin[0], now[1] - self._begin[1]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--jobs", type=int, default=1000)
    arguments.add_argument("--fields", type=int, default=30)
    arguments.add_argument("--merge-files", type=int, default=10)
    arguments.add_argument("--raw", action="store_true", help="print the raw numbers as JSON")
    options = arguments.parse_args()
    folder = tempfile.mkdtemp(prefix="polynya-bench-")
    world, clock = OneTable(folder, options.fields, options.merge_files), Clock()
    syncing = Syncing(world, lambda: world, clock)  # type: ignore[arg-type, return-value]
    most_live = 0
    try:
        for number in range(1, options.jobs + 1):
            world.append()
            syncing.sync([])
            if number % 10 == 0 or number > options.jobs - 20:
                live = live_files(StagingCatalog(world.blobs), world.table.iceberg)
                most_live = max(most_live, len(live))
        _print(clock, options.jobs, most_live)
        if options.raw:
            print(json.dumps(clock.commits))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _print(clock: Clock, jobs: int, most_live: int) -> None:
    for merged, title in ((False, "one-file commits"), (True, "merge commits")):
        for column, unit in ((1, "ms"), (2, "ms of CPU")):
            times = [each[column] * 1000 for each in clock.commits if each[0] == merged]
            if len(times) < 20:
                continue
            early, late = statistics.median(times[5:15]), statistics.median(times[-20:])
            median = statistics.median(times)
            print(
                f"{title}: {early:.0f} {unit} at first, {late:.0f} at the last ({late / early:.2f}"
                f" x); median {median:.0f}, worst {max(times[1:]):.0f} "
                f"({max(times[1:]) / median:.1f} x)"
            )
    print(f"{jobs} jobs with files; at most {most_live} live files")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    main()
