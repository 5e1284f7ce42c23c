"""The Iceberg REST catalog of a real node, as its readers use it: pyiceberg, DuckDB and Spark name
a table and see all of its rows."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from missing import missing
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError
from pyiceberg.table import Table
from s3_server import S3Server
from shared_spark import shared_runner
from spark_jars import jars
from worlds.pipeline import PipeWorld

from polynya.lakehouse.sql.query import _extension

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
__all__ = ["jars"]  # the fixture
PAGE = Path(__file__).parents[2] / "docs" / "tables.md"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipeWorld]:
    """A node with two tables; `later` has no job yet."""
    world = PipeWorld(tmp_path_factory.mktemp("catalog") / "data")
    try:
        world.start("--cores", "1")
        for name in ("flights", "later"):
            path = f"{world.node.url}/v1/tables/{name}"
            assert world.http.put(path, json={"prefix": f"{name}/"}).status_code == 201
        world.append("flights/ua", {"n": 1, "at": "2013-01-01T10:00:00Z"}, {"n": 2})
        world.append("flights/dl", {"n": "text"}, {"n": 4, "o": {"x": [1]}})
        world.compact_here("flights")
        yield world
    finally:
        world.close()


def by_pyiceberg(lake: PipeWorld) -> RestCatalog:
    return RestCatalog("polynya", uri=f"{lake.node.url}/iceberg", warehouse="any")


def rows_of(table: Table) -> Counter[Any]:
    found = table.scan(selected_fields=("stream", "offset", "value")).to_arrow().to_pylist()
    return Counter((row["stream"], row["offset"], row["value"]) for row in found)


def test_pyiceberg_reads_by_name_and_never_a_stale_state(lake: PipeWorld) -> None:
    catalog = by_pyiceberg(lake)
    assert catalog.list_namespaces() == [("polynya",)]
    assert catalog.list_tables("polynya") == [("polynya", "flights"), ("polynya", "flights__dlq")]
    assert catalog.table_exists("polynya.flights") and not catalog.table_exists("polynya.no")
    with pytest.raises(NoSuchTableError, match="polynya table sync later"):
        catalog.load_table("polynya.later")
    table = catalog.load_table("polynya.flights")
    assert rows_of(table) == lake.rows
    lake.append("flights/ua", {"n": 5, "new": True})
    lake.compact_here("flights")
    assert rows_of(table.refresh()) == lake.rows
    assert "new" in table.schema().column_names


def test_a_foreign_commit_is_refused_with_the_reason(lake: PipeWorld) -> None:
    catalog = by_pyiceberg(lake)
    before = lake.table("flights").iceberg
    path = f"{lake.node.url}/iceberg/v1/namespaces/polynya"
    for method, target in (
        ("POST", f"{path}/tables/flights"),
        ("POST", f"{path}/tables"),
        ("DELETE", f"{path}/tables/flights"),
        ("POST", f"{path}/register"),
        ("DELETE", path),
        ("POST", f"{lake.node.url}/iceberg/v1/transactions/commit"),
    ):
        refused = lake.http.request(method, target, json={} if method == "POST" else None)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (403, 403), (method, target)
        assert error["type"] == "ForbiddenException"
        assert "only Polynya's jobs commit" in error["message"]
    with pytest.raises((ForbiddenError, NotImplementedError)):
        catalog.load_table("polynya.flights").append(
            catalog.load_table("polynya.flights").scan().to_arrow()
        )
    assert lake.table("flights").iceberg == before
    lake.check_exactly_once("flights")


def test_duckdb_attaches_the_catalog(lake: PipeWorld) -> None:
    import duckdb

    block = re.search(r"DuckDB:\n\n```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert block is not None
    names = ("httpfs", "avro", "iceberg")
    fetch, attach, count = block[1].splitlines()
    assert fetch == " ".join(f"{verb} {name};" for verb in ("install", "load") for name in names)
    connection = duckdb.connect()
    with contextlib.closing(connection):
        for name in names:  # nothing is fetched in tests
            connection.execute(f"load '{_extension(name)}'")
        connection.execute(attach.replace("http://127.0.0.1:4437", lake.node.url))
        assert connection.execute(count).fetchall() == [(lake.rows.total(),)]
        assert connection.execute("show all tables").fetchall()[0][:3] == (
            "lake",
            "polynya",
            "flights",
        )
        found = connection.execute(
            'select stream, "offset", "value" from lake.polynya.flights'
        ).fetchall()
    assert Counter(found) == lake.rows


def test_sparks_own_catalog_reads_all_tables(lake: PipeWorld, jars: tuple[str, str]) -> None:
    if not jars[0]:
        missing(jars[1])
    settings = {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "rest",
        "spark.sql.catalog.lake.uri": f"{lake.node.url}/iceberg",
    }
    spark = shared_runner().session.newSession()  # with settings of its own
    for name, value in settings.items():
        spark.conf.set(name, value)
    names = [row.tableName for row in spark.sql("show tables in lake.polynya").collect()]
    assert names == ["flights", "flights__dlq"]
    found = spark.sql("select stream, offset, value from lake.polynya.flights").collect()
    assert Counter((row[0], row[1], bytes(row[2])) for row in found) == lake.rows
    lake.append("flights/ua", {"n": 6, "_file": 1, "_pos": 2, "\u0130": 3, "i": 4})
    lake.compact_here("flights")
    for part in ("snapshots", "history", "files"):
        assert spark.table(f"lake.polynya.flights.{part}").count() > 0
    spark.sql("refresh table lake.polynya.flights")
    rows = spark.sql("select * from lake.polynya.flights").collect()
    assert len(rows) == lake.rows.total()
    assert [row._file_2 for row in rows if row._pos_2 == 2] == [1]
    with pytest.raises(Exception, match=r"only Polynya's jobs commit|does not support"):
        spark.sql("delete from lake.polynya.flights where true")
    lake.check_exactly_once("flights")


def test_readers_of_a_bucket_get_keys_from_the_catalog(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has no keys of the bucket gets those of the settings."""
    store = s3_server.settings()
    variables = {f"POLYNYA_COLD_{name.upper()}": value for name, value in store.items()}
    keys = {
        f"POLYNYA_CATALOG_{name.upper()}": store[name]
        for name in ("s3_access_key_id", "s3_secret_access_key")
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)  # for the job, which runs in this process
    world = PipeWorld(tmp_path / "data", **variables, **keys)
    try:
        world.start("--cores", "1")
        path = f"{world.node.url}/v1/tables/air"
        assert world.http.put(path, json={"prefix": "air/"}).status_code == 201
        world.append("air/1", {"n": 1}, {"n": 2})
        world.compact_here("air")
        assert rows_of(by_pyiceberg(world).load_table("polynya.air")) == world.rows
        secret = store["s3_secret_access_key"]
        assert secret not in "".join(world.node.log) + str(world.tables())
    finally:
        world.close()
