"""Derived tables with a key: rows of jobs are merged in both formats, exactly once, in Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from long_tests import long
from missing import missing, needed_module
from shared_spark import Unclosed, shared_runner
from spark_jars import jars
from worlds.lakehouse import Lake, quiet

from polynya.base.transforms import Transform
from polynya.lakehouse.jobs.stateful import fold
from polynya.lakehouse.jobs.worker import TablesFailed, compact, merge
from polynya.lakehouse.sql.query import query

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
needed_module("pyspark")
__all__ = ["jars"]  # the fixture

TOTALS = Transform(
    "sql:select item, count(*) as orders, sum(price) as total, max(price) as most, "
    "max(`offset`) as last from input group by item",
    key=["item"],
    merge={"orders": "sum", "total": "sum", "most": "max"},
)
WINDOWS = Transform(
    "sql:select window.start as begin, item, count(*) as orders from (select "
    "window(timestamp_millis(at), '10 minutes') as window, item from input) group by window, item",
    key=["begin", "item"],
    merge={"orders": "sum"},
    time="begin",
    delay_ms=3_600_000,
)
HOUR_MS = 3_600_000


class Killed(BaseException):
    """The driver is dead."""


@pytest.fixture(scope="module")
def runner() -> Unclosed:
    return Unclosed(shared_runner())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "store"))


def define(lake: Lake, transform: Transform, *partitions: str) -> None:
    lake.coordinator.table = msgspec.structs.replace(
        lake.coordinator.table, transform=str(transform), partitions=list(partitions)
    )


def append(lake: Lake, *rows: dict[str, Any], stream: str = "shop/a") -> None:
    lake.source.append(stream, [msgspec.json.encode(row) for row in rows])


def sync(lake: Lake, runner: Any, progress: Any = quiet) -> list[Any]:
    return compact(lake.coordinator, [], lambda: runner, progress)


def both(lake: Lake, *by: str) -> list[dict[str, Any]]:
    """The rows, which both formats have."""
    first, second = (
        sorted(table.to_pylist(), key=lambda row: [row[name] for name in by])
        for table in (lake.iceberg(), lake.delta())
    )
    assert first == second
    return first


@pytest.mark.parametrize(
    "steps",
    [("pointer", "delta-main"), *long([(("ran", "result-object", "pointer", "delta-main"),)])],
    ids=len,
)
def test_rows_of_a_key_are_merged_at_each_death_of_a_driver(
    lake: Lake, runner: Any, steps: tuple[str, ...]
) -> None:
    define(lake, TOTALS, "item")
    wanted: dict[str, dict[str, Any]] = {}
    for number, step in enumerate((*steps, None)):
        rows = [{"item": item, "price": float(number)} for item in (f"i{number % 2}", "all")]
        append(lake, *rows)
        for at, row in enumerate(rows):
            none = {"item": row["item"], "orders": 0, "total": 0.0, "most": 0.0, "last": 0}
            had = wanted.setdefault(row["item"], none)
            had["orders"] += 1
            had["total"] += row["price"]
            had["most"] = max(had["most"], row["price"])
            had["last"] = 2 * number + at

        def dying(done: str, message: str, step: str | None = step) -> None:
            if done == step:
                raise Killed(step)

        if step is None:
            sync(lake, runner)
        else:
            with pytest.raises(Killed):
                sync(lake, runner, dying)
    assert both(lake, "item") == sorted(wanted.values(), key=lambda row: row["item"])
    assert sync(lake, runner) == []
    merge(lake.coordinator, "flights", lambda: runner, quiet)
    append(lake, {"item": "all", "price": 1.0})
    (outcome,) = sync(lake, runner)
    assert outcome.rows == 0
    some = len(steps) + 1
    counts = [some + 1, some - some // 2, some // 2]  # of `all` and of each other item
    assert [row["orders"] for row in both(lake, "item")] == counts


def test_windows_are_updated_until_the_watermark_passes_them(lake: Lake, runner: Any) -> None:
    define(lake, WINDOWS)
    append(lake, {"item": "a", "at": 5 * HOUR_MS}, {"item": "a", "at": 4 * HOUR_MS - 1})
    sync(lake, runner)  # nothing is late in the first job: there is no watermark
    append(
        lake,
        {"item": "a", "at": 4 * HOUR_MS},
        {"item": "b", "at": 4 * HOUR_MS - 1},
        {"item": "c", "at": None},
    )
    messages = dict[str, str]()
    sync(lake, runner, messages.__setitem__)
    assert "1 late rows were left out" in messages["ran"]
    append(lake, {"item": "a", "at": 3 * HOUR_MS})  # late alone
    (outcome,) = sync(lake, runner)
    assert outcome.rows == 0
    append(lake, {"item": "a", "at": 5 * HOUR_MS + 1})
    sync(lake, runner)
    first, second = (
        {
            (row["begin"] and int(row["begin"].timestamp()), row["item"]): row["orders"]
            for row in table.to_pylist()
        }
        for table in (lake.iceberg(), lake.delta())
    )
    wanted = {(3 * 3600 + 3000, "a"): 1, (4 * 3600, "a"): 1, (5 * 3600, "a"): 2}
    assert first == second == wanted


def test_only_keys_that_are_known_to_be_few_are_broadcast(runner: Any) -> None:
    """Spark would take ten million keys for few (`spark._SETTINGS`)."""
    read = runner.whole.session.range(1000).mapInArrow(lambda batches: batches, "id long")
    plans = []
    for keys in (read.distinct(), fold.f.broadcast(read.distinct())):
        joined = fold._of_keys(read, keys, ["id"], "left_semi")
        assert len(joined.collect()) == 1000
        plans.append(joined._jdf.queryExecution().executedPlan().toString())
    assert all("isFinalPlan=true" in plan for plan in plans)
    assert ["BroadcastHashJoin" in plan for plan in plans] == [False, True]


@pytest.mark.parametrize("rows", [0, fold._BROADCAST_ROWS], ids=["many", "few"])
def test_the_last_row_of_a_key_stays(
    lake: Lake, runner: Any, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "_BROADCAST_ROWS", rows)
    by_time = Transform("sql:select id, at, place from input", ["id"], latest_by="at")
    define(lake, by_time)
    append(lake, {"id": None, "at": 5, "place": "x"}, {"id": 1, "at": 7, "place": "y"})
    append(lake, {"id": 3, "at": 9, "place": "untouched"})
    sync(lake, runner)
    append(lake, {"id": 1, "at": 6, "place": "late"}, {"id": None, "at": 5, "place": "same"})
    append(lake, {"id": 2, "at": 1, "place": "old"}, {"id": 2, "at": 2, "place": "new"})
    sync(lake, runner)
    assert {(row["id"], row["at"], row["place"]) for row in both(lake, "at")} == {
        (None, 5, "same"),
        (1, 7, "y"),
        (2, 2, "new"),
        (3, 9, "untouched"),
    }
    assert lake.iceberg().num_rows == 4


def test_a_definition_that_does_not_fit_its_rows_says_so(lake: Lake, runner: Any) -> None:
    append(lake, {"id": 1, "at": 5}, {"id": 1, "at": 7})
    plain = "sql:select id, at from input"
    for transform, why in (
        (Transform(plain, ["id"]), "2 rows of the key id = 1 for one job"),
        (Transform(plain, ["no"]), "no column 'no' for the key; it has id, at"),
        (Transform(plain, ["id"], {"at": "sum"}, time="id"), "'id' for the watermark has the type"),
        (Transform("sql:select struct(id) as s from input", ["s"]), "select window.start and"),
        (Transform("sql:select 'x' as a, 'y' as b from input", ["a"], {"b": "sum"}), "a number"),
    ):
        define(lake, transform)
        with pytest.raises(TablesFailed, match=why):
            sync(lake, runner)
    define(lake, Transform(plain, ["id"], {"at": "sum"}))
    sync(lake, runner)
    assert both(lake, "id") == [{"id": 1, "at": 12}]


def test_every_reader_has_one_row_for_each_key(
    lake: Lake, runner: Unclosed, jars: tuple[str, str]
) -> None:
    """After each job, and after a merge: Spark's own readers of Iceberg and Delta, DuckDB, pyiceberg
    and deltalake."""
    if not jars[0]:
        missing(jars[1])
    define(lake, TOTALS, "item")
    wanted: dict[str, int] = {}
    for number in range(2):
        items = ("all", f"i{number % 2}")
        append(lake, *({"item": item, "price": 1.0} for item in items))
        wanted |= {item: wanted.get(item, 0) + 1 for item in items}
        sync(lake, runner)
        assert read_by_all(lake, runner) == dict.fromkeys(READERS, sorted(wanted.items()))
    append(lake, {"item": None, "price": 1.0})
    sync(lake, runner)
    merge(lake.coordinator, "flights", lambda: runner, quiet)
    with_null = [*sorted(wanted.items()), (None, 1)]
    assert read_by_all(lake, runner) == dict.fromkeys(READERS, with_null)


READERS = ("spark iceberg", "spark delta", "duckdb", "pyiceberg", "deltalake")


def read_by_all(lake: Lake, runner: Unclosed) -> dict[str, list[tuple[Any, ...]]]:
    """The keys and counts that each reader finds."""
    spark, table = runner.whole.session, lake.coordinator.table
    delta_uri = lake.blobs.uri(f"{table.location}/main")
    found: dict[str, list[tuple[Any, ...]]] = {}
    for form, path in (("iceberg", table.iceberg), ("delta", delta_uri)):
        frame = spark.read.format(form).load(path).select("item", "orders")
        found[f"spark {form}"] = [tuple(row) for row in frame.collect()]
    asked = query(lake.coordinator.tables(), "select item, orders from flights")
    found["duckdb"] = [tuple(row) for row in asked.rows]
    for name, whole in (("pyiceberg", lake.iceberg()), ("deltalake", lake.delta())):
        found[name] = [(row["item"], row["orders"]) for row in whole.to_pylist()]
    return {
        name: sorted(rows, key=lambda row: (row[0] is None, row)) for name, rows in found.items()
    }
