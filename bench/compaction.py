"""Compaction: MB/s of the pipeline on Spark, beside a program that does the same work with pyarrow
and processes alone.

    PYTHONPATH=src python bench/compaction.py [--mb 1024] [--repeat 3] [--cores 2] [--raw]

Both read the same packs from the same folder and write Parquet of the same columns with the same
settings, fsynced. The pyarrow program knows the schema beforehand, takes newline-joined records as
they are, writes no field ids, and commits nowhere. The job is measured with its sampling and both
commits, on a warm session; the runs are interleaved. Only the median and the range are told, and
the raw numbers as JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson
import pyarrow.parquet as pq

from bench import _results
from bench._rounds import Runs
from polynya.lakehouse.jobs.commit import JobOutcome, run_job
from polynya.lakehouse.jobs.plan import JobPlan, Range, TableRef, layout
from polynya.lakehouse.payloads.registry import SchemaReader
from polynya.lakehouse.reading.blobs import LocalBlobs
from polynya.lakehouse.reading.slices import BASE_TYPES
from polynya.lakehouse.server.coordinator import StreamRanges
from polynya.stream.parts import Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire.pack import PackBuilder
from polynya.wire.slice_building import build_slice
from polynya.wire.slices import parse_slice
from polynya.wire.tables import CommitRequest, FailedRange, StoreRef

RECORD_BYTES = 1000
BATCH_RECORDS = 64
SLICE_BYTES = 4 << 20
PACK_SLICES = 8
STREAMS = 8


def make_packs(folder: str, megabytes: int) -> list[Range]:
    """Write skewed streams of JSON records of about 1 KB, in packs of 32 MB."""
    blobs = LocalBlobs(folder)
    rng = random.Random(7)
    words = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=12)) for _ in range(4096)
    ]
    tails = [[0, 0] for _ in range(STREAMS)]
    ranges: list[Range] = []
    while sum(part.length for part in ranges) < megabytes * 1_000_000:
        builder = PackBuilder()
        key = f"packs/20240101-00/1-{secrets.token_hex(16)}"
        for _ in range(PACK_SLICES):
            stream = min(int(rng.expovariate(0.7)), STREAMS - 1)
            ranges.append(_add_slice(builder, rng, words, key, stream, tails[stream]))
        parts, _ = builder.finish(owner_group=1, created_ms=0)
        blobs.put(key, b"".join(parts))
    return ranges


def _add_slice(
    builder: PackBuilder,
    rng: random.Random,
    words: list[str],
    key: str,
    stream: int,
    tail: list[int],
) -> Range:
    batches, size, first = [], 0, list(tail)
    while size < SLICE_BYTES - BATCH_RECORDS * RECORD_BYTES:
        records = [_record(rng, words, tail[0] + number) for number in range(BATCH_RECORDS)]
        payload = b"".join(record + b"," for record in records)
        lengths = np.array([len(record) + 1 for record in records], np.uint32).tobytes()
        batches.append(
            HotBatch(
                tail[0],
                tail[1],
                len(records),
                payload,
                lengths,
                google_crc32c.value(payload),
                1_700_000_000_000 + tail[0],
                0,
                1,
                0,
            )
        )
        tail[0] += len(records)
        tail[1] += len(payload)
        size += len(payload)
    entry = builder.add(stream + 1, 1, build_slice(Encoding.JSON, first[0], first[1], batches))
    return Range(
        f"bench/{stream}",
        stream + 1,
        1,
        "application/json",
        Encoding.JSON,
        first[0],
        first[1],
        entry.records,
        entry.length,
        key,
        entry.offset,
        entry.stored,
        entry.crc,
    )


def _record(rng: random.Random, words: list[str], number: int) -> bytes:
    text = " ".join(rng.choices(words, k=50))
    value = {
        "id": number,
        "user": rng.randrange(1_000_000),
        "kind": rng.choice(("view", "click", "buy", "leave")),
        "at": f"2024-01-{1 + number % 28:02d}T10:{number % 60:02d}:00.{number % 1000:03d}Z",
        "amount": rng.randrange(100_000) / 100 + 0.001,
        "ok": rng.random() < 0.5,
        "where": {"lat": rng.random(), "lon": rng.random(), "city": rng.choice(words)},
        "tags": rng.choices(words, k=3),
        "text": text,
    }
    return json.dumps(value).encode()


class OneJob:
    """A coordinator with one plan."""

    def __init__(self, folder: str, ranges: list[Range]) -> None:
        self.table = TableRef(secrets.token_hex(4), "bench", "", f"tables/{secrets.token_hex(4)}")
        self._ranges = ranges
        self._store = StoreRef("local", folder)

    def tables(self) -> list[TableRef]:
        return [self.table]

    def plan(self, name: str, *, merge: bool = False) -> JobPlan:
        return JobPlan(self.table, 1, secrets.token_hex(16), self._store, self._ranges)

    def commit(self, name: str, request: CommitRequest) -> TableRef:
        return TableRef(
            "b",
            name,
            "",
            self.table.location,
            1,
            request.iceberg,
            request.iceberg_dlq,
            request.result,
        )

    def abandon(
        self, name: str, uid: str, job: int, reason: str, *, failed: bool = False
    ) -> TableRef:
        raise SystemExit(f"the job was abandoned: {reason}")

    def fail(self, name: str, uid: str, job: int, ranges: list[FailedRange]) -> TableRef:
        raise SystemExit(f"ranges of the job failed: {ranges}")

    def schemas(self, url: str) -> SchemaReader:
        return SchemaReader(url)

    def ranges(self, streams: Sequence[tuple[str, int]]) -> list[StreamRanges | None]:
        raise NotImplementedError("for derived tables")

    def aside(self, name: str) -> set[tuple[int, int]]:
        return set()

    def reasons_aside(self, name: str) -> list[str]:
        return []

    def retry(self, name: str) -> None:
        """Do nothing: no range is set aside."""


def run_spark(runner: Any, folder: str, ranges: list[Range]) -> JobOutcome:
    """Run the product's pipeline: samples, tasks on Spark, Iceberg and Delta."""
    coordinator = OneJob(folder, ranges)
    done = run_job(
        coordinator.plan("bench"), coordinator, runner, LocalBlobs(folder), lambda step, text: None
    )
    assert done is not None, "a plan with ranges has a result"
    return done


JSON_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("user", pa.int64()),
        ("kind", pa.string()),
        ("at", pa.string()),
        ("amount", pa.float64()),
        ("ok", pa.bool_()),
        ("where", pa.struct([("lat", pa.float64()), ("lon", pa.float64()), ("city", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("text", pa.string()),
    ]
)


def pyarrow_task(folder: str, name: str, ranges: Sequence[Range]) -> int:
    """Do the same work with the least of ceremony: one process's share of the ranges to one
    file."""
    pa.set_cpu_count(1)
    path = f"{folder}/baseline/{name}.parquet"
    schema = pa.schema(
        list(BASE_TYPES.items())
        + [f if f.name != "at" else pa.field("at", pa.timestamp("us", "UTC")) for f in JSON_SCHEMA]
    )
    written = 0
    with open(path, "wb", buffering=1 << 20) as file:
        dictionary = ["stream", "incarnation", "append_time", "timestamp", "batch", "kind", "ok"]
        writer = pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=dictionary,
            store_schema=False,
        )
        for at in range(0, len(ranges), 4):
            table = _pyarrow_block(folder, ranges[at : at + 4], schema)
            writer.write_table(table)
            written += len(table)
        writer.close()
        file.flush()
        os.fsync(file.fileno())
    return written


def _pyarrow_block(folder: str, ranges: Sequence[Range], schema: pa.Schema) -> pa.Table:
    payloads: list[Any] = []
    lengths: list[Any] = []
    columns: dict[str, list[Any]] = {
        name: [] for name in ("offset", "batch", "time", "uid", "stream")
    }
    for part in ranges:
        with open(f"{folder}/{part.pack}", "rb", buffering=0) as pack:
            found = parse_slice(os.pread(pack.fileno(), part.stored, part.offset), part.crc)
        assert found.payload is not None and found.record_lengths is not None, "JSON records"
        payloads.append(np.frombuffer(found.payload, np.uint8))
        lengths.append(np.frombuffer(found.record_lengths, np.uint32))
        per_batch = np.frombuffer(found.batch_records, np.uint32)
        columns["offset"].append(np.arange(part.record, part.record + part.records))
        columns["batch"].append(
            np.repeat(part.record + np.cumsum(per_batch) - per_batch, per_batch)
        )
        columns["time"].append(
            np.repeat(np.frombuffer(found.append_times_ms, np.int64) * 1000, per_batch)
        )
        columns["uid"].append(np.full(part.records, part.uid))
        columns["stream"].append(np.full(part.records, len(columns["stream"])))
    data = np.concatenate(payloads)
    ends = np.cumsum(np.concatenate(lengths), dtype=np.int64)
    offsets = np.concatenate((np.zeros(1, np.int64), ends)).astype(np.int32)
    value = pc.binary_slice(
        pa.Array.from_buffers(
            pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        ),
        0,
        -1,
    )
    value.cast(pa.string())
    text = data.copy()
    text[ends - 1] = 10
    typed = pajson.read_json(
        pa.BufferReader(text),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pajson.ParseOptions(
            explicit_schema=JSON_SCHEMA, unexpected_field_behavior="ignore"
        ),
    )
    found_columns = {name: np.concatenate(arrays) for name, arrays in columns.items()}
    names = pa.array([part.stream for part in ranges])
    time_us = pa.array(found_columns["time"]).cast(pa.timestamp("us", "UTC"))
    base = [
        names.take(pa.array(found_columns["stream"])),
        pa.array(found_columns["uid"]),
        pa.array(found_columns["offset"]),
        pa.array(offsets[:-1].astype(np.int64) + ranges[0].byte),
        pa.array(found_columns["batch"].astype(np.int64)),
        time_us,
        time_us,
        pa.nulls(len(ends), pa.binary()),
        pa.nulls(len(ends), BASE_TYPES["headers"]),
        value,
    ]
    fields = [
        typed[field.name] if field.name != "at" else typed["at"].cast(pa.timestamp("us", "UTC"))
        for field in JSON_SCHEMA
    ]
    return pa.Table.from_arrays([*base, *fields], schema=schema)


def run_pyarrow(pool: Any, folder: str, ranges: list[Range], cores: int) -> int:
    """Run the baseline: the ranges cut as the pipeline cuts them, over warm processes."""
    os.makedirs(f"{folder}/baseline", exist_ok=True)
    tasks = layout(ranges, {}, cores)
    work = [(folder, f"{secrets.token_hex(4)}-{task.id}", task.ranges) for task in tasks]
    return sum(pool.starmap(pyarrow_task, work, chunksize=1))


def cpu_seconds() -> float:
    """Sum user and system time of this process and all below it: JVM, workers and pool."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


NAMES = {"spark": "PySpark pipeline", "pyarrow": "pyarrow alone, two processes"}


def saved(rates: dict[str, list[float]], cpu: dict[str, list[float]]) -> Runs:
    """Return the runs as docs/benchmarks.md shows them."""
    return {
        shown: [
            {"mb_per_second": rate, "cpu_s": spent}
            for rate, spent in zip(rates[name], cpu[name], strict=True)
        ]
        for name, shown in NAMES.items()
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--mb", type=int, default=1024)
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--cores", type=int, default=2)
    arguments.add_argument("--raw", action="store_true", help="print the raw numbers as JSON")
    _results.add_option(arguments)
    options = arguments.parse_args()
    from polynya.lakehouse.jobs.spark import SparkRunner

    folder = tempfile.mkdtemp(prefix="polynya-bench-")
    runner = SparkRunner(f"local[{options.cores}]")
    pool = multiprocessing.get_context("spawn").Pool(options.cores)
    try:
        ranges = make_packs(folder, options.mb)
        size = sum(part.length for part in ranges) / 1e6
        records = sum(part.records for part in ranges)
        print(
            f"{size:,.0f} MB of JSON, {records:,} records, {len(ranges)} slices, {options.cores} "
            "cores",
            flush=True,
        )
        few = ranges[: max(4, len(ranges) // 8)]
        run_spark(runner, folder, few)
        run_pyarrow(pool, folder, few, options.cores)
        works: dict[str, Callable[[], int]] = {
            "pyarrow": lambda: run_pyarrow(pool, folder, ranges, options.cores),
            "spark": lambda: run_spark(runner, folder, ranges).rows,
        }
        rates: dict[str, list[float]] = {"pyarrow": [], "spark": []}
        cpu: dict[str, list[float]] = {"pyarrow": [], "spark": []}
        for _ in range(options.repeat):
            for name, run in works.items():
                begin, before = time.perf_counter(), cpu_seconds()
                done = run()
                rates[name].append(size / (time.perf_counter() - begin))
                cpu[name].append(cpu_seconds() - before)
                assert done == records, (name, done, records)
                shutil.rmtree(f"{folder}/baseline", ignore_errors=True)
                shutil.rmtree(f"{folder}/tables", ignore_errors=True)
        for name, found in rates.items():
            spent = statistics.median(cpu[name])
            print(
                f"{name:8} {statistics.median(found):6.0f} MB/s   ({min(found):.0f} to "
                f"{max(found):.0f}, {len(found)} runs), {spent:.1f} s of CPU"
            )
        print(
            "ratio    "
            f"{statistics.median(rates['spark']) / statistics.median(rates['pyarrow']):6.2f}   "
            f"(goal: {0.9 if options.mb >= 512 else 0.75})"
        )
        if options.save:
            _results.save("compaction", saved(rates, cpu))
        if options.raw:
            print(
                json.dumps(
                    {
                        "mb": size,
                        "records": records,
                        "cores": options.cores,
                        "mb_per_s": rates,
                        "cpu_s": cpu,
                    }
                )
            )
    finally:
        pool.terminate()
        runner.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    main()
