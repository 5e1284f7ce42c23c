"""`format("polynya")` in a real Spark session against a real node: batch reads, micro-batches and
the sink."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from missing import needed_module
from s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from shared_spark import configured, shared_runner
from worlds.pipeline import PipeWorld

from polynya.spark.catalog import create_views
from polynya.spark.lag import lag

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(600)]
needed_module("pyspark")
from pyspark.sql.datasource import DataSourceStreamReader  # noqa: E402

PAGE = (Path(__file__).parent.parent.parent / "docs" / "spark.md").read_text("utf-8")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipeWorld]:
    world = PipeWorld(tmp_path_factory.mktemp("source") / "data")
    try:
        world.start("--cores", "2")
        yield world
    finally:
        world.close()


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    settings = {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.shuffle.partitions": "2",
    }
    with configured(shared_runner().session, settings) as session:
        yield session


def reader(spark: Any, lake: PipeWorld, **options: Any) -> Any:
    return spark.read.format("polynya").option("server", lake.node.url).options(**options)


def values(frame: Any) -> list[Any]:
    """The decoded values in order of stream and offset."""
    rows = frame.orderBy("stream", "offset").select("value").collect()
    return [json.loads(bytes(row.value)) for row in rows]


def test_a_batch_read_has_every_record_with_its_columns(spark: Any, lake: PipeWorld) -> None:
    lake.append("batch/a", {"n": 1}, {"n": 2})
    lake.append("batch/b", {"n": 3})
    frame = reader(spark, lake, prefix="batch/").load()
    rows = frame.orderBy("stream", "offset").collect()
    assert [(row.stream, row.offset, bytes(row.value)) for row in rows] == [
        ("batch/a", 0, b'{"n": 1}'),
        ("batch/a", 1, b'{"n": 2}'),
        ("batch/b", 0, b'{"n": 3}'),
    ]
    assert all(row.timestamp and row.append_time and row.incarnation for row in rows)
    assert [row.batch for row in rows] == [0, 0, 0] and rows[0].key is None
    served = reader(spark, lake, stream="batch/a, batch/b", readFrom="server").load()
    assert values(served) == [{"n": 1}, {"n": 2}, {"n": 3}]
    part = reader(
        spark, lake, stream="batch/a", startingOffsets='{"batch/a": 1}', pushdown="true"
    ).load()
    assert values(part.where("offset >= 1 and stream = 'batch/a'")) == [{"n": 2}]
    assert values(part.where("offset < 1")) == []


@contextmanager
def running(spark: Any, lake: PipeWorld, checkpoint: Path) -> Iterator[Any]:
    """A query that doubles `n` of each record under `in/` into the stream `out`."""
    frame = (
        spark.readStream.format("polynya")
        .options(server=lake.node.url, prefix="in/", maxRecordsPerTrigger=2)
        .load()
        .selectExpr("get_json_object(cast(value as string), '$.n') * 2 as n")
    )
    writer = frame.writeStream.format("polynya").options(
        server=lake.node.url, stream="out", checkpointLocation=str(checkpoint)
    )
    query = patient(lambda: begun(writer.queryName("doubling").start()))
    try:
        yield query
    finally:
        query.stop()


def begun(query: Any) -> Any:
    query.processAllAvailable()
    return query


def patient(run: Callable[[], Any]) -> Any:
    """Run a query again if Spark gave its planner less than ten seconds to start on a machine that
    has more to do. The checkpoint makes that harmless."""
    for left in (2, 1, 0):
        try:
            return run()
        except Exception as fault:
            if not left or "failed to connect back" not in str(fault):
                raise
    return None


def test_a_query_from_stream_to_stream_is_exactly_once(
    spark: Any, lake: PipeWorld, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    lake.append("in/a", {"n": 0}, {"n": 1})
    lake.append("in/b", {"n": 2})
    with running(spark, lake, checkpoint) as query:
        assert doubled(lake) == [0, 2, 4]
        lake.append("in/a", {"n": 3}, {"n": 4}, {"n": 5})
        lake.append("in/c", {"n": 6})  # a stream that is new to the query
        query.processAllAvailable()
    assert doubled(lake) == [0, 2, 4, 6, 8, 10, 12]
    commits = sorted((checkpoint / "commits").glob("[0-9]*"))
    # the first batch, and two for four records; three if it began before in/c had its record
    assert len(commits) in (3, 4)
    # Spark was killed after the sink's commit and before its own: the batch runs again
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    lake.append("in/a", {"n": 7})
    with running(spark, lake, checkpoint):
        assert doubled(lake) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert [name for name in names(lake, "spark-staging/") if "stage-" in name] == []


def test_limits_hold_from_the_first_batch_and_after_a_restart(
    spark: Any, lake: PipeWorld, tmp_path: Path
) -> None:
    lake.append("rate/a", *({"n": n} for n in range(5)))
    options = {"server": lake.node.url, "prefix": "rate/", "maxOffsetsPerTrigger": "2"}

    left: list[int] = []

    def run(trigger: dict[str, Any], **more: str) -> list[int]:
        """The sizes of the batches of one start."""
        frame = spark.readStream.format("polynya").options(**options, **more).load()
        writer = frame.writeStream.format("noop").trigger(**trigger)
        query = patient(lambda: begun(writer.option("checkpointLocation", str(tmp_path)).start()))
        left.append(lag(query, options).records)
        query.stop()
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    often = {"processingTime": "0 seconds"}
    assert run(often, columns="offset") == [2, 2, 1]
    lake.append("rate/a", *({"n": n} for n in range(3)))
    assert run(often, columns="offset,value") == [2, 1]
    lake.append("rate/b", *({"n": n} for n in range(3)))
    now = {"availableNow": True}
    if hasattr(DataSourceStreamReader, "getDefaultReadLimit"):  # PySpark 4.2
        assert run(now) == [2, 1] and left == [0, 0, 0]
    else:
        assert run(now) + run(now) == [2, 1] and left == [0, 0, 1, 0]


def doubled(lake: PipeWorld) -> list[int]:
    return sorted(int(row["n"]) for row in stream(lake, "out"))


def test_the_pages_quickstart_prints_what_it_says(
    spark: Any, lake: PipeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block runs as it stands, in the session of this file."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    lake.append("shop/orders", {"item": "ice", "price": 2.5}, {"item": "salt", "price": 1})
    code = code.replace("http://127.0.0.1:4437", lake.node.url)
    script = tmp_path / "page.py"
    script.write_text(code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint"))))
    patient(lambda: runpy.run_path(str(script)))
    written = lake.http.get(f"{lake.node.url}/v1/stream/prices?offset=-1").text
    assert written == '[{"item":"ICE","cents":250.0},{"item":"SALT","cents":100.0}]'
    assert all(f"`{record}`" in PAGE for record in written[1:-1].replace("},{", "}|{").split("|"))


def test_a_batch_write_with_a_job_id_adds_nothing_when_it_is_repeated(
    spark: Any, lake: PipeWorld
) -> None:
    rows = [("many/a", '{"n": 1}'), ("many/b", "[2]"), ("many/a", '{"n": 3}')]
    frame = spark.createDataFrame(rows, "stream string, value string").coalesce(1)
    for _ in range(2):
        sink = frame.write.format("polynya").mode("append")
        sink.options(server=lake.node.url, jobId="load-1").save()
    assert stream(lake, "many/a") == [{"n": 1}, {"n": 3}] and stream(lake, "many/b") == [[2]]
    wrong = frame.select("value").write.format("polynya").mode("append")
    with pytest.raises(Exception, match="column 'stream'"):
        wrong.option("server", lake.node.url).save()


def test_streams_have_names_in_sql(spark: Any, lake: PipeWorld) -> None:
    lake.append("sql_shop/orders-2026", {"n": 1}, {"n": 2})
    lake.append("sql_shop/bills", {"n": 3})
    options = {"server": lake.node.url, "prefix": "sql_shop/"}
    spark = spark.newSession()
    spark.conf.set("spark.sql.catalog.spark_catalog", "builtin")  # not that of Delta
    assert create_views(spark, options) == {
        "sql_shop.bills": "sql_shop/bills",
        "sql_shop.orders_2026": "sql_shop/orders-2026",
    }
    query = (
        "select cast(value as string) v from spark_catalog.sql_shop.orders_2026 where offset > 0"
    )
    assert [row.v for row in spark.sql(query).collect()] == ['{"n": 2}']
    spark.sql("create table sql_sink (value string) using polynya options (stream 'sql_shop/out')")
    with pytest.raises(Exception, match="got no options"):
        spark.sql("insert into sql_sink values ('7')")
    where = f"with ('server'='{lake.node.url}', 'stream'='sql_shop/out')"
    spark.sql(f"insert into sql_sink {where} values ('7')")
    assert stream(lake, "sql_shop/out") == [7]
    for name in ("table sql_sink", "database sql_shop cascade", "database polynya cascade"):
        spark.sql(f"drop {name}")


@pytest.fixture
def bucket(tmp_path: Path, s3_server: S3Server) -> Iterator[PipeWorld]:
    """A node with its objects in a bucket, whose keys no process has but the node."""
    store = s3_server.settings()
    world = PipeWorld(
        tmp_path / "data",
        **{f"POLYNYA_COLD_{name.upper()}": value for name, value in store.items()},
    )
    try:
        world.start("--cores", "1")
        yield world
    finally:
        world.close()


def test_tasks_read_a_bucket_with_the_readers_own_keys(
    spark: Any, bucket: PipeWorld, tmp_path: Path
) -> None:
    bucket.append("in/a", {"n": 1}, {"n": 2})
    bucket.append("in/b", {"n": 3})
    keys = {"s3AccessKeyId": ACCESS_KEY, "s3SecretAccessKey": SECRET_KEY}
    assert values(reader(spark, bucket, prefix="in/", **keys).load()) == [
        {"n": n} for n in (1, 2, 3)
    ]
    wrong = reader(spark, bucket, prefix="in/", **{**keys, "s3SecretAccessKey": "wrong"})
    with pytest.raises(Exception, match=r"SignatureDoesNotMatch|403"):
        wrong.load().collect()
    source = spark.readStream.format("polynya").options(
        server=bucket.node.url, prefix="in/", **keys
    )
    frame = source.load().selectExpr("get_json_object(cast(value as string), '$.n') * 2 as n")
    writer = frame.writeStream.format("polynya").options(
        server=bucket.node.url, stream="out", checkpointLocation=str(tmp_path / "checkpoint")
    )
    patient(lambda: begun(writer.start())).stop()
    assert doubled(bucket) == [2, 4, 6]


def stream(lake: PipeWorld, name: str) -> list[Any]:
    answer = lake.http.get(f"{lake.node.url}/v1/stream/{name}?offset=-1")
    found: list[Any] = answer.json()
    return found


def names(lake: PipeWorld, prefix: str) -> list[str]:
    answer = lake.http.get(f"{lake.node.url}/v1/streams?prefix={prefix}")
    return [each["name"] for each in answer.json()["streams"]]
