"""Tables that are derived from other tables: their rows, exactly once in both formats, in Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from long_tests import long
from missing import needed_module
from shared_spark import Unclosed, shared_runner
from worlds.lakehouse import Lake, quiet

from polynya.base.transforms import Transform
from polynya.lakehouse.jobs.plan import JobPlan, TableRef
from polynya.lakehouse.jobs.results import load_result
from polynya.lakehouse.jobs.worker import TablesFailed, compact, merge, replay

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
needed_module("pyspark")

STEPS = ("plan-object", "ran", "result-object", "staged-dlq", "pointer", "delta-main")
FEW_STEPS = ("ran", "pointer", "delta-main")
ITEMS = ("a", "b", "c")


class Killed(BaseException):
    """The driver is dead."""


@pytest.fixture(scope="module")
def runner() -> Unclosed:
    return Unclosed(shared_runner())


class Chain:
    """Tables in one store: the first one has the records of streams, each other one is derived from
    the one before. It is also the coordinator of all."""

    def __init__(self, folder: Path, runner: Any, *transforms: Transform) -> None:
        self.runner = runner
        self.lakes: dict[str, Lake] = {}
        self.above: dict[str, str] = {}
        names = ["first", "second", "third"][: len(transforms)]
        for number, (name, transform) in enumerate(zip(names, transforms, strict=True)):
            uid, made = str(7001 + number), transform
            lake = self.lakes[name] = Lake(str(folder / "store"))
            if number:
                self.above[name] = names[number - 1]
                made = msgspec.structs.replace(made, table=str(7000 + number))
            lake.coordinator.table = msgspec.structs.replace(
                lake.coordinator.table,
                uid=uid,
                name=name,
                location=f"tables/{uid}",
                transform="" if made == RECORDS else str(made),
            )

    def append(self, *items: str) -> None:
        rows = [msgspec.json.encode({"item": item, "price": 1}) for item in items]
        self.lakes["first"].source.append("shop/a", rows)

    def tables(self) -> list[TableRef]:
        return [table for lake in self.lakes.values() for table in lake.coordinator.tables()]

    def plan(self, name: str, *, merge: bool = False) -> JobPlan | None:
        plan = self.lakes[name].coordinator.plan(name, merge=merge)
        if plan is None or name not in self.above:
            return plan
        source = self.lakes[self.above[name]].coordinator.table
        return msgspec.structs.replace(plan, source=source, streams=[])

    def __getattr__(self, verb: str) -> Any:
        if verb == "ranges":
            return self.lakes["first"].coordinator.ranges
        return lambda name, *rest, **named: getattr(self.lakes[name].coordinator, verb)(
            name, *rest, **named
        )

    def sync(self, *names: str, progress: Any = quiet) -> list[Any]:
        coordinator: Any = self
        return compact(coordinator, names, lambda: self.runner, progress)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table, which both formats have."""
        lake = self.lakes[name]
        first, second = (
            sorted(table.to_pylist(), key=lambda row: str(sorted(row.items())))
            for table in (lake.iceberg(), lake.delta())
        )
        assert first == second
        return first

    def table(self, name: str) -> TableRef:
        return self.lakes[name].coordinator.table


RECORDS = Transform("sql:none")  # stands for a table of records
EACH = Transform("sql:select upper(item) as item, price from input")
SUMS = Transform(
    "sql:select item, count(*) as orders from input group by item", ["item"], {"orders": "sum"}
)
BY_COUNT = Transform("sql:select orders, count(*) as items from input group by orders", whole=True)
LARGE = Transform("sql:select orders from input where items > 1", whole=True)


some_steps = pytest.mark.parametrize("steps", [FEW_STEPS, *long([(STEPS,)])], ids=len)


def deaths(steps: tuple[str, ...], *names: str) -> Iterator[tuple[str, str]]:
    """The table and the step at which the driver dies, each step once."""
    return zip(cycle(names), steps, strict=False)


def dying(name: str, step: str) -> Any:
    def progress(done: str, message: str) -> None:
        if done == step and message.startswith(f"'{name}'"):
            raise Killed(step)

    return progress


@some_steps
def test_added_rows_are_taken_once_at_each_death_of_a_driver(
    tmp_path: Path, runner: Any, steps: tuple[str, ...]
) -> None:
    chain = Chain(tmp_path, runner, RECORDS, EACH, SUMS)
    files = chain.lakes["first"].coordinator
    files.table = msgspec.structs.replace(files.table, merge_files=3)  # its files are replaced
    wanted: Counter[str] = Counter()
    for number, (name, step) in enumerate(deaths(steps, "second", "third")):
        items = ITEMS[: 1 + number % 3]
        chain.append(*items)
        wanted.update(item.upper() for item in items)
        with pytest.raises(Killed):
            chain.sync(progress=dying(name, step))
    chain.sync()
    assert Counter(row["item"] for row in chain.rows("second")) == wanted
    assert {row["item"]: row["orders"] for row in chain.rows("third")} == wanted
    assert chain.sync() == []
    # the sources of a named table are synced before it
    chain.append("c")
    assert [done.table.name for done in chain.sync("third")] == ["first", "second", "third"]
    assert {row["item"]: row["orders"] for row in chain.rows("third")} == wanted + Counter("C")


@some_steps
def test_all_rows_are_taken_of_a_table_whose_rows_change(
    tmp_path: Path, runner: Any, steps: tuple[str, ...]
) -> None:
    chain = Chain(tmp_path, runner, SUMS, BY_COUNT, LARGE)
    counts: Counter[str] = Counter()
    fewer = 0
    for number, (name, step) in enumerate(deaths(steps, "third", "second")):
        items = (ITEMS[number % 3], str(number))
        chain.append(*items)
        counts.update(items)
        with pytest.raises(Killed):
            chain.sync(progress=dying(name, step))
    for items in ((), ("a", "b"), ("b", "b")):
        if items:
            chain.append(*items)
        counts.update(items)
        fewer += sum(done.rows < 0 for done in chain.sync())
        by_count = Counter(counts.values())
        assert {row["orders"]: row["items"] for row in chain.rows("second")} == by_count
        large = sorted(count for count, items_ in by_count.items() if items_ > 1)
        assert [row["orders"] for row in chain.rows("third")] == large
    assert fewer, "a table has lost rows"
    assert chain.sync() == []
    # a merge of the source changes no row: its place is noted
    coordinator: Any = chain
    assert merge(coordinator, "first", lambda: runner, quiet) != []
    assert [(done.table.name, done.rows) for done in chain.sync()] == [("second", 0), ("third", 0)]


def test_rows_that_cannot_be_told_from_others_are_all_taken_again(
    tmp_path: Path, runner: Any
) -> None:
    chain = Chain(tmp_path, runner, RECORDS, SUMS)
    chain.append("a", "b")
    chain.sync()
    first = chain.lakes["first"]
    for _ in range(2):  # result objects of old jobs are swept
        chain.append("a")
        compact(first.coordinator, [], lambda: runner, quiet)
    gone = load_result(first.blobs, first.coordinator.table.result).parts["main"].previous_result
    (tmp_path / "store" / gone).unlink()
    messages = list[str]()
    chain.sync(progress=lambda step, said: messages.append(said))
    assert any("the transform of all 4 rows of 'first'" in each for each in messages), messages
    assert chain.rows("second") == [{"item": "a", "orders": 3}, {"item": "b", "orders": 1}]
    # merged and swept files
    chain.append("c")
    compact(first.coordinator, [], lambda: runner, quiet)
    added = load_result(first.blobs, first.coordinator.table.result).parts["main"].files
    merge(first.coordinator, "first", lambda: runner, quiet)
    for file in added:
        (tmp_path / "store" / file.key).unlink()
    chain.sync()
    assert {row["item"]: row["orders"] for row in chain.rows("second")} == {"a": 3, "b": 1, "c": 1}


def test_rows_that_a_replay_changed_are_taken_again(tmp_path: Path, runner: Any) -> None:
    chain = Chain(tmp_path, runner, RECORDS, Transform("sql:select item, price from input"))
    first = chain.lakes["first"]
    chain.append(*"abc")
    first.source.append("shop/b", [b'{"item":"d","price":"dear"}'] + [b'{"price":2}'] * 200)
    chain.sync()
    assert len(chain.rows("second")) == 204
    table = first.coordinator.table
    first.coordinator.table = msgspec.structs.replace(table, columns=[("price", "string")])
    assert replay(first.coordinator, "first", lambda: runner, quiet) is not None
    (done,) = chain.sync()
    assert (done.table.name, done.rows, len(chain.rows("second"))) == ("second", 0, 204)


def test_a_watermark_forbids_to_take_rows_again(tmp_path: Path, runner: Any) -> None:
    times = Transform(
        "sql:select window(timestamp, '1 hour').start as begin, count(*) as orders from input "
        "group by window(timestamp, '1 hour')",
        ["begin"],
        {"orders": "sum"},
        time="begin",
        delay_ms=3_600_000,
    )
    chain = Chain(tmp_path, runner, RECORDS, times)
    chain.append("a")
    chain.sync()
    first = chain.lakes["first"]
    for _ in range(2):
        chain.append("a")
        compact(first.coordinator, [], lambda: runner, quiet)
    gone = load_result(first.blobs, first.coordinator.table.result).parts["main"].previous_result
    (tmp_path / "store" / gone).unlink()
    with pytest.raises(TablesFailed, match="since its job 1 cannot be told from the others"):
        chain.sync()
    assert [row["orders"] for row in chain.rows("second")] == [1]
