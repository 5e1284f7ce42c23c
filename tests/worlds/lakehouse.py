"""Packs, a coordinator in memory, and readers: what the tests of the lakehouse share."""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from worlds.schema_registry import SchemaRegistry

from polynya.lakehouse.jobs.output import Output
from polynya.lakehouse.jobs.plan import Job, JobPlan, Range, TableRef, Task, claimed
from polynya.lakehouse.jobs.plan_objects import header_of, load_header, load_task
from polynya.lakehouse.jobs.results import Derived
from polynya.lakehouse.jobs.spark_tasks import file_rows, input_rows
from polynya.lakehouse.jobs.task import TaskResult, run_task
from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.payloads.registry import SchemaReader
from polynya.lakehouse.reading.blobs import Blobs, open_blobs
from polynya.lakehouse.server.coordinator import NoSuchTable, StreamRanges
from polynya.objectstore import StoreSettings
from polynya.stream.features.tables.failures import TRIES
from polynya.stream.features.tables.state import folder_of
from polynya.stream.parts import Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire.pack import PackBuilder
from polynya.wire.slice_building import build_slice
from polynya.wire.tables import CommitRequest, FailedRange, StoreRef

CLUSTER = "c1"
FULL_BYTES = 128 << 20
T0 = 1_700_000_000_000
DAY_MS = 86_400_000
FILE_ROWS = 150  # of a file of `many_files`, 1 KiB each


class Source:
    """Streams whose appends go to packs, as a flusher would write them."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self.tails: dict[str, tuple[int, int, int]] = {}  # name: uid, record, byte
        self.pending: list[Range] = []
        self.every: list[Range] = []
        self.records: list[tuple[str, int, int, bytes]] = []  # stream, uid, offset, value
        self.now_ms = T0  # of the next appends
        self._uids = iter(range(1 << 32, 1 << 33))

    def append(self, stream: str, *batches: list[bytes], encoding: int = Encoding.JSON) -> None:
        """Append one slice with these batches, in a pack of its own."""
        self.append_many({stream: list(batches)}, encoding=encoding)

    def append_many(
        self, streams: dict[str, list[list[bytes]]], encoding: int = Encoding.JSON
    ) -> None:
        """Append one pack with a slice for each stream."""
        builder = PackBuilder()
        key = f"{CLUSTER}/packs/20231114-22/1-{secrets.token_hex(16)}"
        for stream, batches in streams.items():
            uid, record, byte = self.tails.get(stream) or (next(self._uids), 0, 0)
            first_record, first_byte, hot = record, byte, []
            for number, values in enumerate(batches):
                payload = (
                    b"".join(value + b"," for value in values)
                    if encoding == Encoding.JSON
                    else b"".join(values)
                )
                sizes = [len(value) + (encoding == Encoding.JSON) for value in values]
                lengths = (
                    b"".join(size.to_bytes(4, "little") for size in sizes)
                    if len(values) > 1
                    else b""
                )
                time_ms = self.now_ms + record + number
                crc = google_crc32c.value(payload)
                hot.append(
                    HotBatch(
                        record, byte, len(values), payload, lengths, crc, time_ms, 0, encoding, 0
                    )
                )
                self.records += [
                    (stream, uid, record + at, value) for at, value in enumerate(values)
                ]
                record, byte = record + len(values), byte + len(payload)
            entry = builder.add(uid, 1, build_slice(encoding, first_record, first_byte, hot))
            self.pending.append(
                Range(stream, uid, 1, "application/json", encoding, first_record, first_byte, entry.records, entry.length, key,
                      entry.offset, entry.stored, entry.crc)
            )  # fmt: skip
            self.every.append(self.pending[-1])
            self.tails[stream] = (uid, record, byte)
        parts, _ = builder.finish(owner_group=1, created_ms=T0)
        self.blobs.put(key, b"".join(parts))

    def append_kafka(
        self,
        stream: str,
        *batches: tuple[int, bytes],
        encoding: int = Encoding.KAFKA,
        flags: int = 0,
        content_type: str = "",
    ) -> Range:
        """Append one slice with record batches, each with its count of records, to a stream of an
        encoding, in a pack of its own."""
        uid, record, byte = self.tails.get(stream) or (next(self._uids), 0, 0)
        begin, hot = (record, byte), []
        for number, (count, payload) in enumerate(batches):
            crc = google_crc32c.value(payload)
            hot.append(
                HotBatch(
                    record,
                    byte,
                    count,
                    payload,
                    b"",
                    crc,
                    T0 + number,
                    0,
                    Encoding.KAFKA,
                    0,
                    flags=flags,
                )
            )
            record, byte = record + count, byte + len(payload)
        builder = PackBuilder()
        entry = builder.add(uid, 1, build_slice(Encoding.KAFKA, *begin, hot))
        key = f"{CLUSTER}/packs/20231114-22/1-{secrets.token_hex(16)}"
        self.pending.append(
            Range(
                stream,
                uid,
                1,
                content_type,
                encoding,
                *begin,
                entry.records,
                entry.length,
                key,
                entry.offset,
                entry.stored,
                entry.crc,
            )
        )
        self.tails[stream] = (uid, record, byte)
        self.blobs.put(key, b"".join(builder.finish(owner_group=1, created_ms=T0)[0]))
        return self.pending[-1]


class MemoryCoordinator:
    """The server's side, as docs/formats/tables.md asks for it."""

    def __init__(self, settings: StoreSettings, source: Source, name: str = "flights") -> None:
        s = settings
        self.store = StoreRef(s.backend, s.root, s.s3_bucket, s.s3_region, s.s3_endpoint, s.shared)
        self.source = source
        # no merges unless a test sets `merge_files`
        self.table = TableRef("7001", name, "", "tables/7001", merge_bytes=FULL_BYTES)
        self.open: tuple[int, list[Range]] | None = None
        self.jobs = 0
        self.attempt = ""
        self.abandoned: list[str] = []
        self.failures: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()
        self.set_aside: list[tuple[Range, str]] = []
        self.registry = SchemaRegistry()
        self._reader = self.registry.reader()

    def schemas(self, url: str) -> SchemaReader:
        return self._reader

    def tables(self) -> list[TableRef]:
        payload = dict(self.table.columns).get("", "")
        more = {"payload": payload, "ranges_aside": len(self.set_aside)}
        return [msgspec.structs.replace(self.table, store=self.store, **more)]

    def plan(self, name: str, *, merge: bool = False) -> JobPlan | None:
        with self._lock:
            if name != self.table.name:
                raise NoSuchTable(f"there is no table '{name}'")
            if self.open is None:
                bare = merge or bool(self.table.transform)
                if not self.source.pending and not bare:
                    return None
                self.jobs += 1
                self.open = (self.jobs, [] if bare else self.source.pending)
                self.source.pending = self.source.pending if bare else []
            return JobPlan(
                self.table,
                self.open[0],
                secrets.token_hex(16),
                self.store,
                self.open[1],
                streams=sorted(self.source.tails) if self.table.transform else [],
            )

    def commit(self, name: str, request: CommitRequest) -> TableRef:
        with self._lock:
            same_base = (request.base_iceberg, request.base_iceberg_dlq) == (
                self.table.iceberg,
                self.table.iceberg_dlq,
            )
            if (
                self.open is not None
                and self.open[0] == request.job
                and request.uid == self.table.uid
                and same_base
            ):
                self.table = msgspec.structs.replace(
                    self.table,
                    job=request.job,
                    iceberg=request.iceberg,
                    iceberg_dlq=request.iceberg_dlq,
                    result=request.result,
                )
                if request.move is not None:
                    self.table = msgspec.structs.replace(
                        self.table,
                        location=folder_of(int(self.table.uid), request.job),
                        columns=request.move.columns,
                        partitions=request.move.partitions,
                    )
                self.attempt = request.attempt
                self.open = None
            return self.table

    def aside(self, name: str) -> set[tuple[int, int]]:
        return {key for key, count in self.failures.items() if count >= TRIES}

    def fail(self, name: str, uid: str, job: int, ranges: list[FailedRange]) -> TableRef:
        with self._lock:
            if self.open is not None and self.open[0] == job:
                left = self.open[1]
                for each in ranges:
                    self.failures[each.uid, each.record] += 1
                    if self.failures[each.uid, each.record] >= TRIES:
                        kept = [part for one in left for part in parts_of(one, each, inside=False)]
                        gone = [part for one in left for part in parts_of(one, each, inside=True)]
                        self.set_aside += [(part, each.reason) for part in gone]
                        left = kept
                self.source.pending = left + self.source.pending
                self.open = None
            return self.table

    def reasons_aside(self, name: str) -> list[str]:
        return [reason for _, reason in self.set_aside]

    def retry(self, name: str) -> None:
        self.failures.clear()
        self.source.pending = [part for part, _ in self.set_aside] + self.source.pending
        self.set_aside = []

    def ranges(self, streams: Sequence[tuple[str, int]]) -> list[StreamRanges | None]:
        """Return the server's response, derived from the appends."""
        found: list[StreamRanges | None] = []
        for name, first in streams:
            if name not in self.source.tails:
                found.append(None)
                continue
            uid, tail, _ = self.source.tails[name]
            parts = [
                part
                for part in self.source.every
                if part.uid == uid and part.record + part.records > first
            ]
            found.append(StreamRanges(name, str(uid), 0, tail, 0, parts, tail))
        return found

    def abandon(
        self, name: str, uid: str, job: int, reason: str, *, failed: bool = False
    ) -> TableRef:
        with self._lock:
            if self.open is not None and self.open[0] == job:
                self.abandoned.append(reason)
                self.source.pending = self.open[1] + self.source.pending
                self.open = None
            return self.table


def parts_of(part: Range, failed: FailedRange, *, inside: bool) -> list[Range]:
    """Return the claimed records of a range that failed, or the others."""
    begin = part.record + part.skip
    end = begin + claimed(part)
    if part.uid != failed.uid:
        return [] if inside else [part]
    low = min(max(begin, failed.record), end)
    high = max(min(end, failed.record + failed.records), low)
    spans = [(low, high)] if inside else [(begin, low), (high, end)]
    return [
        msgspec.structs.replace(part, skip=first - part.record, take=last - first)
        for first, last in spans
        if first < last
    ]


class InlineRunner:
    """Runs tasks here, one after the other."""

    def __init__(self, blobs: Blobs, cores: int = 2) -> None:
        self.blobs = blobs
        self.cores = cores

    def run(self, job: Job, key: str) -> list[TaskResult]:
        return [run_task(*self._stored(key, task), self.blobs) for task in job.tasks]

    def _stored(self, key: str, task: Task) -> tuple[Job, Task]:
        """Load the job and a task as the task's process reads them."""
        header = load_header(self.blobs, key)
        found = load_task(self.blobs, key, header, task.id)
        assert found == task
        return header, found

    def derive(self, job: Job, key: str, asked: Any, shaped: Any) -> Derived:
        """Derive every row as it is, whatever the transform: that one needs Spark."""
        stored = [self._stored(key, task) for task in job.tasks]
        rows = [batch for each in stored for batch in _rows(*each, self.blobs)]
        table = pa.Table.from_batches(rows)
        made, made_key = shaped(table.schema)
        assert load_header(self.blobs, made_key) == header_of(made)
        schema = pa.ipc.read_schema(pa.BufferReader(made.arrow_schema))
        out = Output(made, Task(0, [], []), self.blobs)
        out.add_rows(table.cast(schema), table.nbytes)
        return Derived(made, [TaskResult(0, len(table), table.nbytes, out.close()[0])])


def _rows(job: Job, task: Task, blobs: Blobs) -> Any:
    return (file_rows if task.redo else input_rows)(job, task, blobs)


class Lake:
    """A store, a source and a coordinator, in a folder or in a bucket."""

    def __init__(self, root: str = "", s3: StoreSettings | None = None) -> None:
        if s3 is None:
            os.makedirs(root, exist_ok=True)
        self.settings = s3 or StoreSettings(backend="local", root=root)
        self.blobs = open_blobs(self.settings)
        self.source = Source(self.blobs)
        self.coordinator = MemoryCoordinator(self.settings, self.source)
        self.runner = InlineRunner(self.blobs)

    def static_table(self, part: str = "main") -> StaticTable:
        table = self.coordinator.table
        pointer = table.iceberg if part == "main" else table.iceberg_dlq
        options = {
            "s3.endpoint": self.settings.s3_endpoint,
            "s3.access-key-id": self.settings.s3_access_key_id,
            "s3.secret-access-key": self.settings.s3_secret_access_key,
            "s3.region": self.settings.s3_region,
        }
        return StaticTable.from_metadata(pointer, options if self.settings.s3_bucket else {})

    def iceberg(self, part: str = "main") -> pa.Table:
        return self.static_table(part).scan().to_arrow()

    def delta(self, part: str = "main") -> pa.Table:
        path = self.blobs.uri(f"{self.coordinator.table.location}/{part}").removeprefix("file://")
        return DeltaTable(path, storage_options=self.blobs.storage_options()).to_pyarrow_table()

    def check_exactly_once(self) -> None:
        """Assert that every record appended is in both tables once, with its exact bytes."""
        wanted = sorted(self.source.records)
        for table in (self.iceberg(), self.delta()):
            names = ["stream", "incarnation", "offset", "value"]
            found = sorted(zip(*(table[name].to_pylist() for name in names), strict=True))
            assert found == wanted
        assert keys(self.iceberg("dlq")) == keys(self.delta("dlq"))


class Many:
    """A coordinator of many tables, each with a store of its own and one record to take."""

    def __init__(self, folder: Path, count: int) -> None:
        self.lakes: dict[str, Lake] = {}
        for name in (f"t{number}" for number in range(count)):
            lake = self.lakes[name] = Lake(str(folder / name))
            lake.coordinator.table = msgspec.structs.replace(
                lake.coordinator.table, name=name, uid=f"7{name[1:]}"
            )
            lake.source.append(f"{name}/s", [b'{"n":1}'])

    def ranges(self, streams: Sequence[tuple[str, int]]) -> list[StreamRanges | None]:
        return [
            found
            for each in streams
            for found in self.lakes[each[0].partition("/")[0]].coordinator.ranges([each])
        ]

    def tables(self) -> list[TableRef]:
        return [table for lake in self.lakes.values() for table in lake.coordinator.tables()]

    def __getattr__(self, verb: str) -> Any:
        return lambda name, *rest, **named: getattr(self.lakes[name].coordinator, verb)(
            name, *rest, **named
        )

    def check(self) -> None:
        for lake in self.lakes.values():
            lake.check_exactly_once()


def many_files(lake: Lake, partition: str, streams: int, days: int) -> int:
    """Run one job with a file for each stream and day. Return the bytes of all files."""
    lake.coordinator.table = msgspec.structs.replace(lake.coordinator.table, partitions=[partition])
    for day in range(days):
        lake.source.now_ms = T0 - T0 % DAY_MS + day * DAY_MS
        lake.source.append_many(
            {
                f"fleet/{number:04d}": [
                    [
                        b'{"n":%d,"x":"%s"}' % (n, os.urandom(512).hex().encode())
                        for n in range(FILE_ROWS)
                    ]
                ]
                for number in range(streams)
            }
        )
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    files = [task.file for task in lake.static_table().scan().plan_files()]
    assert len(files) == streams * days
    return sum(file.file_size_in_bytes for file in files)


def keys(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(
        zip(
            table["incarnation"].to_pylist(),
            table["offset"].to_pylist(),
            table["reason"].to_pylist(),
            strict=True,
        )
    )


def quiet(step: str, detail: str) -> None:
    """Ignore the progress of a job."""
