"""Partitioned tables: one file for each value, kept by merges and by new columns, and skipped by
readers."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable
from worlds.lakehouse import T0, Lake, quiet

from polynya.lakehouse.formats import parquet
from polynya.lakehouse.jobs.plan import store_settings
from polynya.lakehouse.jobs.worker import compact, merge
from polynya.lakehouse.sql import query
from polynya.wire.kafka.batches import Record, build_batch


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "store"))


def partition(lake: Lake, *expressions: str, **columns: str) -> None:
    lake.coordinator.table = msgspec.structs.replace(
        lake.coordinator.table, partitions=list(expressions), columns=list(columns.items())
    )


def sync(lake: Lake) -> None:
    compact(lake.coordinator, [], lambda: lake.runner, quiet)


def live(lake: Lake) -> list[Any]:
    return [
        task.file
        for task in StaticTable.from_metadata(lake.coordinator.table.iceberg).scan().plan_files()
    ]


def scanned(lake: Lake, where: Any) -> tuple[int, float]:
    """The rows that pyiceberg finds, and the share of the bytes that it reads for them."""
    scan = StaticTable.from_metadata(lake.coordinator.table.iceberg).scan(row_filter=where)
    size = sum(task.file.file_size_in_bytes for task in scan.plan_files())
    total = sum(file.file_size_in_bytes for file in live(lake))
    return len(scan.to_arrow()), size / total


def test_a_task_writes_a_file_for_each_value_and_merges_keep_them(lake: Lake) -> None:
    partition(lake, "stream", "bucket(4, n)", n="long")
    for job in range(3):
        rows = [msgspec.json.encode({"n": n, f"late{job}": "x"}) for n in range(40)]
        lake.source.append("a/one", rows)
        lake.source.append("a/two", [*rows, b'{"other":1}', b"[]"])
        sync(lake)
    lake.check_exactly_once()
    before = live(lake)
    values = {tuple(file.partition._data) for file in before}
    assert values == {(f"a/{name}", n) for name in ("one", "two") for n in range(4)} | {
        ("a/two", None)
    }
    assert len(before) == 3 * len(values)
    merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    lake.check_exactly_once()
    assert {tuple(file.partition._data) for file in live(lake)} == values
    assert len(live(lake)) == len(values)
    assert scanned(lake, "stream = 'a/one' and n = 7")[0] == 3
    spec = StaticTable.from_metadata(lake.coordinator.table.iceberg).spec()
    assert [field.name for field in spec.fields] == ["stream", "_by_n_bucket"]
    lake.source.append("a/one", [b'{"n":1,"_by_n_bucket":"user"}'])
    sync(lake)
    lake.check_exactly_once()
    assert lake.iceberg()["__by_n_bucket"].drop_null().to_pylist() == ["user"]


def duckdb_files(lake: Lake, where: str) -> tuple[int, int]:
    """The rows that DuckDB finds, and how many files it reads for them."""
    connection = duckdb.connect()
    try:
        (table,) = lake.coordinator.tables()
        assert table.store is not None
        query._load(connection, store_settings(table.store), {})
        asked = f"select * from iceberg_scan('{table.iceberg}') where {where}"
        rows = len(connection.execute(asked).fetchall())
        profile = connection.execute(f"explain analyze {asked}").fetchall()[0][1]
        return rows, int(profile.partition("Total Files Read: ")[2].split()[0])
    finally:
        connection.close()


def delta_share(lake: Lake, where: Any) -> tuple[int, float]:
    """The rows that pyarrow finds by the Delta log, and the share of the bytes that it reads."""
    dataset = DeltaTable(f"{lake.settings.root}/tables/7001/main").to_pyarrow_dataset()
    root = Path(lake.settings.root, "tables/7001/main")
    wanted, every = (
        sum((root / each.path).stat().st_size for each in dataset.get_fragments(filter=chosen))
        for chosen in (where, None)
    )
    return dataset.to_table(filter=where).num_rows, wanted / every


def filled(lake: Lake, streams: int, days: int) -> None:
    """One job with a file for each stream and day."""
    day_ms = 86_400_000
    for day in range(days):
        lake.source.now_ms = T0 - T0 % day_ms + day * day_ms
        lake.source.append_many(
            {
                f"fleet/a-name-with-a-long-beginning/{number:03d}": [
                    [b'{"n":%d,"x":"%s"}' % (n, os.urandom(60).hex().encode()) for n in range(50)]
                ]
                for number in range(streams)
            }
        )
    sync(lake)
    assert len(live(lake)) == streams * days


def test_a_reader_of_one_stream_reads_its_files_only(lake: Lake) -> None:
    partition(lake, "stream")
    filled(lake, 100, 1)
    name = "fleet/a-name-with-a-long-beginning/042"
    rows, share = scanned(lake, f"stream = '{name}'")
    assert rows == 50 and share <= 0.05
    assert duckdb_files(lake, f"stream = '{name}'") == (50, 1)
    rows, share = delta_share(lake, ds.field("stream") == name)
    assert rows == 50 and share <= 0.05


def test_a_reader_of_a_range_of_time_reads_its_files_only(lake: Lake) -> None:
    partition(lake, "day(timestamp)")
    filled(lake, 1, 100)
    begin = dt.datetime.fromtimestamp(T0 / 1000, dt.UTC).replace(hour=0, minute=0, second=0)
    begin, end = (begin.replace(microsecond=0) + dt.timedelta(days=days) for days in (40, 43))
    where = f"timestamp >= '{begin.isoformat()}' and timestamp < '{end.isoformat()}'"
    rows, share = scanned(lake, where)
    assert rows == 150 and share <= 0.05
    assert duckdb_files(lake, where) == (150, 3)
    rows, share = delta_share(
        lake, (ds.field("timestamp") >= begin) & (ds.field("timestamp") < end)
    )
    assert rows == 150 and share <= 0.05


def test_a_task_has_few_files_open(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values in turns, more than may be open: a value gets a further file, and no row is lost."""
    monkeypatch.setattr("polynya.lakehouse.jobs.output.PARTITION_FILES_OPEN_MAX", 3)
    monkeypatch.setattr("polynya.lakehouse.jobs.output.BLOCK_BYTES", 2)
    real, now, most = parquet.Writer, set[int](), [0]

    class Counted(real):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            now.add(id(self))
            most[0] = max(most[0], len(now))

        def close(self, *arguments: Any) -> Any:
            now.discard(id(self))
            return super().close(*arguments)

    monkeypatch.setattr("polynya.lakehouse.jobs.output.Writer", Counted)
    monkeypatch.setattr("polynya.lakehouse.reading.slices.BLOCK_BYTES", 2)
    partition(lake, "n", n="long")
    for _ in range(3):
        lake.source.append("a", [b'{"n":%d}' % n for n in range(6)])
    sync(lake)
    lake.check_exactly_once()
    assert most[0] == 3 and len(live(lake)) > 6


@pytest.mark.parametrize(
    ("expression", "value", "wanted"),
    [
        ("year(at)", "1969-12-31T23:59:59.9Z", -1),
        ("month(at)", "1970-02-01T00:00:00Z", 1),
        ("day(at)", "1969-12-31T23:59:59.9Z", -1),
        ("hour(at)", "1970-01-02T01:00:00Z", 25),
        ("day(on)", "1970-01-03", 2),
        ("month(on)", "1969-12-31", -1),
        ("on", "1970-01-03", 2),
        ("bucket(16, on)", "2017-11-16", (-653330422 & 0x7FFFFFFF) % 16),
        ("bucket(16, n)", 34, 2017239379 % 16),
        ("bucket(100, s)", "iceberg", 1210000089 % 100),
        ("s", "iceberg", "iceberg"),
        ("b", True, True),
        ("n", 0, 0),
    ],
)
def test_values_are_those_of_the_specification(
    lake: Lake, expression: str, value: Any, wanted: Any
) -> None:
    """The hashes are those of the appendix of Iceberg's specification."""
    partition(lake, expression, at="timestamptz", on="date", n="long", s="string", b="boolean")
    field = expression.rstrip(")").replace("(", " ").split()[-1]
    lake.source.append("a", [msgspec.json.encode({field: value}), b"{}"])
    sync(lake)
    assert sorted(map(str, (file.partition[0] for file in live(lake)))) == sorted(
        [str(wanted), "None"]
    )
    lake.check_exactly_once()


def test_a_table_divided_by_its_keys(lake: Lake) -> None:
    """Keys have no statistics, so only the buckets tell the files apart."""
    partition(lake, "bucket(4, key)")
    records = [Record(b"k%d" % number, b"{}", T0) for number in range(20)]
    lake.source.append_kafka("kafka/t/0", (len(records), build_batch(records)))
    sync(lake)
    assert {file.partition[0] for file in live(lake)} == {0, 1, 2, 3}
    rows, share = scanned(lake, EqualTo("key", b"k7"))
    assert rows == 1 and share < 0.5
