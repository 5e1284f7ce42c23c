"""Derived tables: a user's SQL or function over the rows of streams, exactly once, in Spark."""

from __future__ import annotations

import sys
import threading
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest
from long_tests import every_nth, long
from missing import needed_module
from pyiceberg.table import StaticTable
from shared_spark import Unclosed, shared_runner
from worlds.lakehouse import Lake, Many, quiet

from polynya.lakehouse.jobs.worker import TablesFailed, compact, merge

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
needed_module("pyspark")

SQL = "select stream, `offset`, upper(item) as item, cast(price * 100 as int) as cents from input"


class Killed(BaseException):
    """The driver is dead."""


@pytest.fixture(scope="module")
def runner() -> Unclosed:
    return Unclosed(shared_runner())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "store"))


def transform(lake: Lake, code: str, *partitions: str) -> None:
    lake.coordinator.table = msgspec.structs.replace(
        lake.coordinator.table, transform=code, partitions=list(partitions)
    )


def filled(lake: Lake, begin: int = 0) -> None:
    for stream in ("shop/a", "shop/b"):
        rows = [{"item": f"i{n}", "price": n + 0.5} for n in range(begin, begin + 50)]
        lake.source.append(stream, [msgspec.json.encode(row) for row in rows])


def sync(lake: Lake, runner: Any, progress: Any = quiet) -> list[Any]:
    return compact(lake.coordinator, [], lambda: runner, progress)


def both(lake: Lake) -> list[list[dict[str, Any]]]:
    """The rows of both formats, in order."""
    return [
        sorted(table.to_pylist(), key=lambda row: (row["stream"], row["offset"]))
        for table in (lake.iceberg(), lake.delta())
    ]


def wanted(count: int) -> list[dict[str, Any]]:
    return [
        {"stream": stream, "offset": n, "item": f"I{n}", "cents": n * 100 + 50}
        for stream in ("shop/a", "shop/b")
        for n in range(count)
    ]


def test_a_query_derives_each_record_once(lake: Lake, runner: Any) -> None:
    transform(lake, f"sql:{SQL}", "stream")
    filled(lake)
    (outcome,) = sync(lake, runner)
    assert (outcome.rows, outcome.dead_rows) == (100, 0)
    assert sync(lake, runner) == []
    filled(lake, 50)
    assert [outcome.rows for outcome in sync(lake, runner)] == [100]
    assert both(lake) == [wanted(100)] * 2
    merge(lake.coordinator, "flights", lambda: runner, quiet)
    filled(lake, 100)
    sync(lake, runner)
    assert both(lake) == [wanted(150)] * 2
    table = StaticTable.from_metadata(lake.coordinator.table.iceberg)
    assert [field.name for field in table.spec().fields] == ["stream"]
    assert len(list(table.scan(row_filter="stream = 'shop/a'").plan_files())) == 2


@pytest.mark.parametrize(
    "step", every_nth(["plan-object", "result-object", "staged-dlq", "pointer"], 2)
)
def test_a_driver_dies_after_a_step_of_a_derivation(lake: Lake, runner: Any, step: str) -> None:
    def progress(done: str, message: str) -> None:
        if done == step:
            raise Killed(step)

    transform(lake, f"sql:{SQL}")
    for begin in (0, 50):
        filled(lake, begin)
        with pytest.raises(Killed):
            sync(lake, runner, progress)
    sync(lake, runner)
    assert both(lake) == [wanted(100)] * 2


def test_a_function_derives_rows(
    lake: Lake, runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t17_shop.py").write_text(
        "def totals(frame):\n"
        "    return frame.groupBy('stream').sum('price').withColumnRenamed('sum(price)', 'total')\n"
        "def nothing(frame):\n    return None\n"
        "def closed(frame):\n    raise RuntimeError('the shop is closed')\n"
        "def broken(frame):\n"
        "    def fail(batches):\n"
        "        for batch in batches:\n"
        "            raise KeyError('no such item')\n"
        "        yield\n"
        "    return frame.select('item').mapInArrow(fail, 'item string')\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    transform(lake, "python:t17_shop:totals")
    filled(lake)
    sync(lake, runner)
    rows = sorted(lake.iceberg().to_pylist(), key=lambda row: row["stream"])
    total = sum(n + 0.5 for n in range(50))
    assert rows == [{"stream": f"shop/{name}", "total": total} for name in "ab"]
    filled(lake, 50)
    for name, why in (
        ("nothing", "returned a NoneType; expected a DataFrame"),
        ("closed", "the transform t17_shop:closed failed: RuntimeError: the shop is closed"),
        ("broken", "the transform failed: KeyError: 'no such item'"),
    ):
        transform(lake, f"python:t17_shop:{name}")
        with pytest.raises(TablesFailed, match=why):
            sync(lake, runner)
        assert why in lake.coordinator.abandoned[-1]


@pytest.mark.parametrize(
    ("code", "partitions", "why"),
    [
        ("sql:select nothing from input", [], "UNRESOLVED_COLUMN"),
        ("sql:select raise_error('odd price') from input", [], "odd price"),
        ("sql:select item from input", ["day(item)"], "of a column of type string"),
        ("python:no_such_module:f", [], "No module named"),
        *long(
            [
                ("sql:select item from records", [], "The rows are in the view 'input'."),
                ("sql:select item, item from input", [], "the transform has two columns 'item'"),
                ("sql:create table x (a int)", [], "expected one SELECT"),
                ("sql:select interval '1' day as i from input", [], "type duration"),
                ("python:json:no_such", [], "no attribute"),
            ]
        ),
    ],
)
def test_a_transform_that_fails_says_why_and_goes_on_once_it_can(
    lake: Lake, runner: Any, code: str, partitions: list[str], why: str
) -> None:
    transform(lake, code, *partitions)
    filled(lake)
    with pytest.raises(TablesFailed, match=why):
        sync(lake, runner)
    assert why in lake.coordinator.abandoned[-1]
    transform(lake, f"sql:{SQL}")
    sync(lake, runner)
    assert both(lake) == [wanted(50)] * 2


def test_tables_share_a_session_side_by_side(
    tmp_path: Path, runner: Unclosed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two derived tables with views of the same name, and two plain ones. One transform hangs until
    all others are done, and one fails; each table has a pool of its own."""
    many, ended, pools = Many(tmp_path, 4), threading.Event(), dict[str, str]()
    for name, code in (
        ("t0", "python:slow_transform:wait"),
        ("t1", "sql:select stream, n + 1 as m from input"),
        ("t2", "sql:select nothing from input"),
    ):
        transform(many.lakes[name], code)

    def wait(frame: Any) -> Any:
        assert ended.wait(300)
        return frame.select("stream", "n")

    module = types.ModuleType("slow_transform")
    module.wait = wait  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "slow_transform", module)

    def progress(step: str, said: str) -> None:
        if {"t1", "t3"} <= {
            name for name, lake in many.lakes.items() if lake.coordinator.table.job
        }:
            ended.set()

    class Pooled(Unclosed):
        def __init__(self) -> None:
            super().__init__(session)
            self.works = session.works

    session = runner.whole
    real = session._share_fairly

    def shared(job: Any) -> None:
        real(job)
        context = session.session.sparkContext
        pools[job.plan.table.name] = context.getLocalProperty("spark.scheduler.pool")

    monkeypatch.setattr(session, "_share_fairly", shared)
    with pytest.raises(TablesFailed, match="t2") as failed:
        compact(many, [], Pooled, progress, at_once=4)  # type: ignore[arg-type]
    assert list(failed.value.faults) == ["t2"], failed.value
    assert pools == {f"t{number}": f"7{number}" for number in range(4)}
    assert many.lakes["t0"].iceberg()["n"].to_pylist() == [1]
    assert many.lakes["t1"].iceberg()["m"].to_pylist() == [2]
    many.lakes["t3"].check_exactly_once()
    assert session.works()
    assert session.session.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "1"
    assert session.session.conf.get("spark.scheduler.mode") == "FAIR"
