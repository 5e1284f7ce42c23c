"""Declared types in both formats, read back by pyiceberg, deltalake, DuckDB and Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from missing import missing, needed_module
from shared_spark import shared_runner
from spark_jars import jars
from worlds.lakehouse import Lake, quiet

from polynya.front.http.api.schemas import columns_of
from polynya.lakehouse.jobs.results import load_result
from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.sql.query import query

__all__ = ["jars"]  # the fixture
ID = "0190163d-8694-739b-aea5-966c26f8ad91"
AT = dt.datetime(2023, 11, 14, 22, 13, 20, 1000, tzinfo=dt.UTC)
COLUMNS = [
    ("price", "decimal(12,3)"),
    ("count", "int"),
    ("ratio", "float"),
    ("ref", "uuid"),
    ("local", "timestamp"),
    ("at", "epoch_millis"),
    ("doc", "json"),
    ("parts", "list<decimal(6,1)>"),
    ("grid", "list<list<int>>"),
]
RECORDS = [
    b'{"price":"-1.125","count":7,"ratio":0.1,"ref":"0190163D-8694-739B-AEA5-966C26F8AD91",'
    b'"local":"2023-11-14T22:13:20.001","at":1700000000001,"doc":{"a":[1.50]},"parts":[1,2.5],'
    b'"grid":[[1,2],[3]]}',
    b'{"price":1.0001,"count":3000000000,"ratio":9007199254740993.0,"ref":"x",'
    b'"local":"2023-11-14T22:13:20Z","at":0.0005,"doc":null,"parts":[1.55],"grid":[[1.5]]}',
]
ROWS = [
    (
        Decimal("-1.125"),
        7,
        float(np.float32(0.1)),
        ID,
        AT.replace(tzinfo=None),
        AT,
        '{"a":[1.50]}',
        [Decimal("1.0"), Decimal("2.5")],
        [[1, 2], [3]],
    ),
    (None,) * 9,
]
UNFIT = ["price", "count", "ratio", "ref", "local", "at", "parts[]", "grid[][]"]


def filled(tmp_path: Path, runner: Any = None) -> Lake:
    lake = Lake(str(tmp_path / "store"))
    lake.coordinator.table = msgspec.structs.replace(lake.coordinator.table, columns=COLUMNS)
    lake.source.append("a", RECORDS)
    compact(lake.coordinator, [], lambda: runner or lake.runner, quiet)
    return lake


def test_declared_types_are_the_same_in_every_reader(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    names = [name for name, _ in COLUMNS]
    for whole in (lake.iceberg(), lake.delta()):
        rows = whole.sort_by("offset").to_pylist()
        assert [tuple(row[name] for name in names) for row in rows] == ROWS
    quoted = ", ".join(f'"{name}"' for name in names)
    statement = f'select {quoted} from flights order by "offset"'
    assert query(lake.coordinator.tables(), statement).rows == ROWS
    (dead,) = lake.iceberg("dlq").to_pylist()
    assert (dead["field"], dead["reason"], dead["value"]) == ("price", "misfit", RECORDS[1])
    assert all(f"{field}: " in dead["message"] for field in UNFIT[1:]), dead["message"]


def test_the_schema_has_the_types_that_readers_see(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    pointer = lake.coordinator.table.iceberg
    columns = columns_of(lake.blobs.get(lake.blobs.key(pointer)))
    assert {each["name"]: each["type"] for each in columns[10:]} == {
        "price": "decimal(12, 3)",
        "count": "int",
        "ratio": "float",
        "ref": "string",
        "local": "timestamp",
        "at": "timestamptz",
        "doc": "string",
        "parts": "list<decimal(6, 1)>",
        "grid": "list<list<int>>",
    }


def test_a_list_keeps_the_type_of_its_elements_and_says_so(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    lake.source.append("a", [b'{"parts":["x"]}'])
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    more = [("parts", "list<long>"), ("n", "int")]
    lake.coordinator.table = msgspec.structs.replace(lake.coordinator.table, columns=more)
    lake.source.append("a", [b'{"parts":[1],"n":2}'])
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    assert lake.iceberg().sort_by("offset")["n"].to_pylist() == [None, 2]
    assert [row["field"] for row in lake.iceberg("dlq").to_pylist()] == ["parts[]"]
    last = load_result(lake.blobs, lake.coordinator.table.result)
    assert last.uncovered == ["parts:list<long>"]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_spark_reads_declared_types_in_both_formats(tmp_path: Path, jars: tuple[str, str]) -> None:
    needed_module("pyspark")
    if not jars[0]:
        missing(jars[1])
    spark, lake = shared_runner().session, filled(tmp_path)
    delta_uri = lake.blobs.uri(f"{lake.coordinator.table.location}/main")
    names = [name for name, _ in COLUMNS]
    for form, path in (("iceberg", lake.coordinator.table.iceberg), ("delta", delta_uri)):
        found = spark.read.format(form).load(path).orderBy("offset").select(*names).collect()
        first = found[0].asDict()
        assert first.pop("at").timestamp() == AT.timestamp(), form
        assert tuple(first[name] for name in names if name != "at") == tuple(
            value for name, value in zip(names, ROWS[0], strict=True) if name != "at"
        ), form
        assert tuple(found[1]) == ROWS[1], form
