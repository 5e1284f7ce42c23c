"""The whole pipeline on a real Spark session, and the view of Spark's own Iceberg and Delta
readers."""

from __future__ import annotations

import datetime as dt
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from long_tests import long
from missing import missing, needed_module
from shared_spark import configured, shared_runner
from spark_jars import jars
from worlds.lakehouse import DAY_MS, FILE_ROWS, T0, Lake, many_files

from polynya.lakehouse.jobs.worker import compact, merge

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
pyspark = needed_module("pyspark")
__all__ = ["jars"]  # the fixture


@pytest.fixture(scope="module")
def runner() -> Any:
    return shared_runner()


def fill(lake: Lake, start: int) -> None:
    for stream in ("a/x", "a/y", "b"):
        rows = [
            {
                "i": start + i,
                "s": "v" * (i % 7),
                "at": f"2020-01-0{1 + i % 7}T00:00:00.5Z",
                "o": {"l": [i]},
            }
            for i in range(300)
        ]
        lake.source.append(stream, [json.dumps(row).encode() for row in rows])
    lake.source.append(
        "b",
        [
            json.dumps({"i": "bad" if i == 3 else i, "late": {f"f{start}": 0.5}}).encode()
            for i in range(300)
        ],
    )


@pytest.mark.long
def test_spark_runs_jobs(tmp_path: Path, runner: Any) -> None:
    lake = Lake(str(tmp_path / "store"))
    runner_before = runner.session.sparkContext.applicationId
    for start in (0, 500):
        fill(lake, start)
        (outcome,) = compact(
            lake.coordinator, [], lambda: Unclosed(runner), lambda step, message: None
        )
        assert outcome.rows == 1200
        lake.check_exactly_once()
    assert lake.iceberg()["i"].null_count == 2
    assert lake.iceberg("dlq").num_rows == 2
    assert runner.session.sparkContext.applicationId == runner_before


@pytest.mark.long
def test_workers_are_forks_of_a_process_that_has_compiled_modules(runner: Any) -> None:
    def found(batches: Any) -> Any:
        import sys

        files = [getattr(module, "__file__", "") or "" for module in list(sys.modules.values())]
        zipped = any("pyspark.zip" in file for file in files)
        shared = "polynya.lakehouse.jobs.spark_tasks" in sys.modules
        for _ in batches:
            yield sys.modules["pyarrow"].RecordBatch.from_pydict({"id": [2 * zipped + shared]})

    rows = runner.session.range(0, 1, 1, 1).mapInArrow(found, "id long").collect()
    assert [row.id for row in rows] == [1], "no module of the zip file, and those of tasks"


def test_what_spark_writes_is_private(tmp_path: Path, runner: Any) -> None:
    """The JVM and its workers have the umask of the driver; a worker that was started elsewhere
    sets its own."""
    lake = Lake(str(tmp_path / "store"))
    context = runner.session.sparkContext
    before = context.parallelize([0], 1).map(lambda _: os.umask(0o022)).collect()
    fill(lake, 0)
    compact(lake.coordinator, [], lambda: Unclosed(runner), lambda step, message: None)
    local = tmp_path / "jvm"
    assert context._jvm.java.io.File(str(local)).mkdir()
    assert before == [0o077] and stat.S_IMODE(local.stat().st_mode) == 0o700
    written = [
        path
        for path in (tmp_path / "store").rglob("*")
        if path.suffix == ".parquet" or path.is_dir()
    ]
    assert len(written) > 5 and not [
        path for path in written if path != tmp_path / "store" and path.stat().st_mode & 0o077
    ]


@pytest.mark.long
def test_late_fields_are_found_by_tasks(tmp_path: Path, runner: Any) -> None:
    """Fields that no sample shows: the tasks report them, and the job runs again with columns for
    them."""
    lake = Lake(str(tmp_path / "store"))
    records = [b'{"n":%d}' % number for number in range(30_000)]
    records[12_345] = b'{"n":1,"rare":"x"}'
    records[23_456] = b'{"n":1,"rarer":{"x":[true]}}'
    lake.source.append("a", records)
    messages: list[str] = []
    compact(
        lake.coordinator, [], lambda: Unclosed(runner), lambda step, text: messages.append(text)
    )
    assert any("2 more fields" in text for text in messages)
    lake.check_exactly_once()
    assert [value for value in lake.iceberg()["rarer"].to_pylist() if value] == [{"x": [True]}]
    assert lake.iceberg("dlq").num_rows == 0


@pytest.mark.long
def test_a_gone_object_is_told_by_spark_tasks(tmp_path: Path, runner: Any) -> None:
    from polynya.lakehouse.jobs.commit import RangesFailed, run_job

    lake = Lake(str(tmp_path / "store"))
    for stream in ("a", "b", "c"):  # three slices: the middle one is in no sample
        lake.source.append("s", [stream.encode().join((b'{"k":"', b'"}'))])
    plan = lake.coordinator.plan("flights")
    assert plan is not None
    (Path(lake.settings.root) / plan.ranges[1].pack).unlink()
    with pytest.raises(RangesFailed, match="packs/"):
        run_job(plan, lake.coordinator, runner, lake.blobs, lambda step, message: None)


def test_sparks_own_readers_agree(tmp_path: Path, runner: Any, jars: tuple[str, str]) -> None:
    if not jars[0]:
        missing(jars[1])
    lake = Lake(str(tmp_path / "store"))
    for start in (0, 500):
        fill(lake, start)
        compact(lake.coordinator, [], lambda: Unclosed(runner), lambda step, message: None)
    lake.check_exactly_once()
    table, spark = lake.coordinator.table, runner.session
    wanted = sorted(lake.source.records)
    dead = sorted(
        zip(*(lake.iceberg("dlq")[name].to_pylist() for name in ("stream", "offset")), strict=True)
    )
    for part, pointer in (("main", table.iceberg), ("dlq", table.iceberg_dlq)):
        delta_uri = f"file://{lake.settings.root}/{table.location}/{part}"
        frames = [
            spark.read.format("iceberg").load(pointer),
            spark.read.format("delta").load(delta_uri),
        ]
        for frame in frames:
            if part == "main":
                rows = frame.select("stream", "incarnation", "offset", "value").collect()
                assert sorted((row[0], row[1], row[2], bytes(row[3])) for row in rows) == wanted
                assert (
                    frame.where("stream = 'b' and offset >= 600 and late is not null").count()
                    == 300
                )
                assert frame.where("late.f500 = 0.5").count() == 300
                assert frame.selectExpr("sum(i)").collect()[0][0] == sum(
                    row for row in lake.iceberg()["i"].to_pylist() if row is not None
                )
                assert (
                    frame.where("at < timestamp'2020-01-02 00:00:00Z'").count()
                    == sum(1 for i in range(300) if i % 7 == 0) * 6
                )
            else:
                assert (
                    sorted((row[0], row[1]) for row in frame.select("stream", "offset").collect())
                    == dead
                )


def files_read(frame: Any) -> tuple[int, int]:
    """The rows of a query, and how many files Spark's own metrics say that it read."""
    rows = len(frame.collect())
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0).metrics()
    name = "numFiles" if scan.contains("numFiles") else "resultDataFiles"
    return rows, int(scan.apply(name).value())


def test_sparks_readers_skip_the_files_of_other_partitions(
    tmp_path: Path, runner: Any, jars: tuple[str, str]
) -> None:
    if not jars[0]:
        missing(jars[1])
    lake, spark = Lake(str(tmp_path / "store")), runner.session
    lake.coordinator.table = msgspec.structs.replace(
        lake.coordinator.table, partitions=["stream", "day(timestamp)"]
    )
    day_ms = 86_400_000
    for day in range(4):
        lake.source.now_ms = T0 - T0 % day_ms + day * day_ms
        rows = [b'{"n":%d}' % n for n in range(20)]
        lake.source.append_many({f"a/rather/long/name/{n:02d}": [rows] for n in range(25)})
    compact(lake.coordinator, [], lambda: Unclosed(runner), lambda step, message: None)
    lake.check_exactly_once()
    table = lake.coordinator.table
    delta_uri = f"file://{lake.settings.root}/{table.location}/main"
    begin = dt.datetime.fromtimestamp(lake.source.now_ms / 1000, dt.UTC)
    for frame in (
        spark.read.format("iceberg").load(table.iceberg),
        spark.read.format("delta").load(delta_uri),
    ):
        one = frame.where("stream = 'a/rather/long/name/07'")
        assert files_read(one) == (80, 4)
        assert files_read(one.where(f"timestamp >= timestamp'{begin.isoformat()}'")) == (20, 1)


@contextmanager
def bytes_read(session: Any) -> Iterator[list[int]]:
    """Yield a list that gets the bytes that Hadoop's file systems read meanwhile, metadata
    included. They do not count vectored reads."""

    def total() -> int:
        counts = session._jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
        return sum(each.getBytesRead() for each in counts)

    found: list[int] = []
    with configured(session, {"parquet.hadoop.vectored.io.enabled": "false"}):
        before = total()
        yield found
        found.append(total() - before)


@pytest.mark.parametrize("files", [100, *long([1000])])
@pytest.mark.parametrize("partition", ["stream", *long(["day(timestamp)"])])
def test_sparks_readers_read_few_bytes_of_many_files(
    tmp_path: Path, runner: Any, jars: tuple[str, str], partition: str, files: int
) -> None:
    """One stream, or two days, of a table of many files: at most 5 % of the bytes of all."""
    if not jars[0]:
        missing(jars[1])
    lake, spark = Lake(str(tmp_path / "store")), runner.session
    if partition == "stream":
        size, wanted = many_files(lake, partition, files, 1), FILE_ROWS
        where = "stream = 'fleet/0042'"
    else:
        size, wanted = many_files(lake, partition, 1, files), 2 * FILE_ROWS
        begin = dt.datetime.fromtimestamp((T0 - T0 % DAY_MS) / 1000, dt.UTC) + dt.timedelta(days=40)
        where = (
            f"timestamp >= timestamp'{begin.isoformat()}' "
            f"and timestamp < timestamp'{(begin + dt.timedelta(days=2)).isoformat()}'"
        )
    table = lake.coordinator.table
    shares = {}
    for form, uri in (
        ("iceberg", table.iceberg),
        ("delta", lake.blobs.uri(f"{table.location}/main")),
    ):
        with bytes_read(spark) as some:
            assert len(spark.read.format(form).load(uri).where(where).collect()) == wanted
        with bytes_read(spark) as every:
            spark.read.format(form).load(uri).selectExpr("sum(length(value) + n)").collect()
        shares[form] = round(some[0] / size, 4), round(every[0] / size, 2)
    for few, whole in shares.values():
        assert 0 < few <= 0.05 and whole >= 0.5, f"{shares}, of one part and of all"


def test_streaming_readers_across_merges_see_each_row_once(
    tmp_path: Path, runner: Any, jars: tuple[str, str]
) -> None:
    """Spark merges, and queries of both logs stop before a merge and go on after it."""
    if not jars[0]:
        missing(jars[1])
    lake, spark = Lake(str(tmp_path / "store")), runner.session
    seen: dict[str, list[tuple[int, int]]] = {"iceberg": [], "delta": []}

    def read(form: str) -> None:
        table = lake.coordinator.table
        uri = table.iceberg if form == "iceberg" else lake.blobs.uri(f"{table.location}/main")

        def take(frame: Any, number: int) -> None:
            rows = frame.select("incarnation", "offset").collect()
            seen[form] += [(row[0], row[1]) for row in rows]

        query = spark.readStream.format(form).load(uri).writeStream.foreachBatch(take)
        query = query.option("checkpointLocation", str(tmp_path / form))
        query.trigger(availableNow=True).start().awaitTermination()

    for number in range(4):
        lake.source.append("a", [b'{"n":%d}' % each for each in range(number, number + 5)])
        compact(lake.coordinator, [], lambda: Unclosed(runner), lambda step, message: None)
        if number != 1:
            read("iceberg")
            read("delta")
        if number < 3:
            merge(lake.coordinator, "flights", lambda: Unclosed(runner), lambda step, message: None)
    lake.check_exactly_once()
    wanted = sorted((uid, offset) for _, uid, offset, _ in lake.source.records)
    assert {form: sorted(rows) for form, rows in seen.items()} == {
        "iceberg": wanted,
        "delta": wanted,
    }


class Unclosed:
    """The shared runner, which outlives a single run."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.cores = runner.cores

    def run(self, job: Any, key: str) -> Any:
        return self._runner.run(job, key)
