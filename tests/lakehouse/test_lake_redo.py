"""Rebuilds and replays: the table's own rows are decoded again, exactly once, whenever a driver
dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from long_tests import long
from pyiceberg.table import StaticTable
from worlds.lakehouse import Lake, keys, quiet

from polynya.base.errors import ConfigError, CorruptData
from polynya.lakehouse.jobs.commit import STEPS
from polynya.lakehouse.jobs.rewrites.redo import Redefined
from polynya.lakehouse.jobs.worker import compact, merge, rebuild, replay
from polynya.stream.parts import Encoding


class Killed(BaseException):
    """The driver is dead."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "store"))


def sync(lake: Lake, progress: Any = quiet) -> None:
    compact(lake.coordinator, [], lambda: lake.runner, progress)


def rebuilt(lake: Lake, progress: Any = quiet, **wanted: Any) -> Any:
    return rebuild(lake.coordinator, "flights", lambda: lake.runner, progress, Redefined(**wanted))


def replayed(lake: Lake, progress: Any = quiet) -> Any:
    return replay(lake.coordinator, "flights", lambda: lake.runner, progress)


def filled(lake: Lake) -> None:
    """Run three jobs: with JSON, bytes that look like JSON, Kafka values, and dead letters."""
    for number in range(3):
        rows = [msgspec.json.encode({"n": i, "o": {"a": "x" * i}}) for i in range(250)]
        lake.source.append("s/json", [*rows, b'{"n":"odd"}', b"[]", b"{", b'{"n":null}'])
        lake.source.append("s/bytes", [b'{"n":7}', b"", b"plain"], encoding=Encoding.BYTES)
        lake.source.append("s/late", [b'{"late%d":[1,2]}' % number])
        sync(lake)
    lake.check_exactly_once()


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    table = lake.iceberg().sort_by([("incarnation", "ascending"), ("offset", "ascending")])
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def killed_after(step: str) -> Any:
    def progress(done: str, message: str) -> None:
        if done == step:
            raise Killed(step)

    return progress


def test_a_rebuild_has_the_same_rows_in_a_new_folder_and_the_old_one_stays(lake: Lake) -> None:
    filled(lake)
    before, dead, old = rows_of(lake), keys(lake.iceberg("dlq")), lake.coordinator.table
    outcome = rebuilt(lake, partitions=["stream"])
    table = lake.coordinator.table
    assert (outcome.rows, outcome.dead_rows, table.location) == (0, 0, "tables/7001/000000000004")
    lake.check_exactly_once()
    names = list(before[0])
    assert [{name: row[name] for name in names} for row in rows_of(lake)] == before
    assert keys(lake.iceberg("dlq")) == dead and len(dead) == 9
    assert StaticTable.from_metadata(table.iceberg).spec().fields[0].name == "stream"
    there = StaticTable.from_metadata(old.iceberg).scan().to_arrow()
    assert len(there) == len(before), "readers of the old table go on"
    assert len(DeltaTable(f"{lake.settings.root}/{old.location}/main").to_pyarrow_table()) == len(
        before
    )
    filled(lake)
    merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    lake.check_exactly_once()
    assert lake.coordinator.table.location == table.location
    rebuilt(lake, partitions=[])
    lake.check_exactly_once()
    assert StaticTable.from_metadata(lake.coordinator.table.iceberg).spec().fields == ()


def test_a_rebuild_chooses_columns_again(lake: Lake) -> None:
    """The first job saw a string only; the majority and a declaration decide now."""
    lake.source.append("s", [b'{"id":"first","at":"2020-01-01"}'])
    sync(lake)
    lake.source.append("s", [b'{"id":%d,"at":"2020-01-02"}' % n for n in range(500)])
    sync(lake)
    assert str(lake.iceberg().schema.field("id").type) == "string"
    rebuilt(lake, columns={"at": "string"})
    schema = lake.iceberg().schema
    assert str(schema.field("id").type) == "int64" and "at__date" not in schema.names
    assert str(schema.field("at").type) == "string"
    lake.check_exactly_once()
    lake.source.append("s", [b'{"id":8,"at":"2020-01-03"}'])
    sync(lake)
    assert set(lake.iceberg()["at"].to_pylist()) == {"2020-01-01", "2020-01-02", "2020-01-03"}


def test_a_rebuild_of_fields_that_no_sample_shows(lake: Lake) -> None:
    lake.source.append("s", [b'{"n":1}'] * 11_000 + [b'{"rare":{"x":[true]}}'])
    sync(lake)
    rebuilt(lake)
    found = lake.iceberg()
    assert [each for each in found["rare"].to_pylist() if each] == [{"x": [True]}]
    lake.check_exactly_once()


@pytest.mark.parametrize("work", [rebuilt, replayed])
@pytest.mark.parametrize(
    "step", [*long(["plan-object"]), "ran", "result-object", *long(["staged-dlq"]), "pointer"]
)
def test_a_driver_dies_after_a_step(lake: Lake, work: Any, step: str) -> None:
    """The next driver completes the rewrite, or it did not happen; a repeat of it does."""
    lake.source.append("s", [b'{"n":%d}' % n for n in range(200)] + [b'{"n":"odd"}', b"[]"])
    sync(lake)
    declare(lake, n="string")
    with pytest.raises(Killed):
        work(lake, killed_after(step))
    lake.source.append("s", [b'{"n":1,"new":2}'])
    sync(lake)
    lake.check_exactly_once()
    done = STEPS.index(step) >= STEPS.index("result-object")
    assert (replayed(lake) is None) == done
    lake.check_exactly_once()
    assert [row["reason"] for row in lake.iceberg("dlq").to_pylist()] == ["not_object"]
    # a rebuild gives the name to the declared type
    name = "n__string" if work is replayed or not done else "n"
    assert [row[name] for row in rows_of(lake)][200:] == ["odd", None, None]


def declare(lake: Lake, **columns: str) -> None:
    lake.coordinator.table = msgspec.structs.replace(
        lake.coordinator.table, columns=list(columns.items())
    )


def test_a_replay_takes_the_dead_letters_that_fit_now(lake: Lake) -> None:
    for stream in ("a", "b"):
        rows = [b'{"n":%d}' % n for n in range(300)]
        lake.source.append(stream, [*rows, b'{"n":"odd"}', b'{"n":true}', b"[]"])
        sync(lake)
    lake.source.append("c", [b'{"n":1}'])
    sync(lake)
    assert replayed(lake) is None, "no column is there yet"
    untouched = {task.file.file_path for task in scan(lake).plan_files()}
    declare(lake, n="string")
    outcome = replayed(lake)
    assert (outcome.rows, outcome.dead_rows) == (0, -2)
    lake.check_exactly_once()
    dead = lake.iceberg("dlq").to_pylist()
    assert sorted((row["stream"], row["offset"]) for row in dead) == [
        (stream, offset) for stream in "ab" for offset in (301, 302)
    ]
    assert [row["n__string"] for row in rows_of(lake) if row["offset"] == 300] == ["odd"] * 2
    assert len(untouched & {task.file.file_path for task in scan(lake).plan_files()}) == 1
    declare(lake, n="boolean")
    assert replayed(lake).dead_rows == -2 and replayed(lake) is None
    merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    lake.check_exactly_once()
    snapshots = StaticTable.from_metadata(lake.coordinator.table.iceberg).metadata.snapshots
    operations = [each.summary.operation.value for each in snapshots if each.summary]
    assert operations == ["append"] * 3 + ["overwrite"] * 2 + ["replace"]


def test_a_value_fits_of_a_record_with_another_that_does_not(lake: Lake) -> None:
    rows = [b'{"n":%d,"m":%d}' % (n, n) for n in range(300)]
    lake.source.append("a", [*rows, b'{"n":"odd","m":"even"}'])
    sync(lake)
    declare(lake, n="string")
    assert replayed(lake).dead_rows == 0
    lake.check_exactly_once()
    assert [row["n__string"] for row in rows_of(lake) if row["offset"] == 300] == ["odd"]
    (letter,) = lake.iceberg("dlq").to_pylist()
    assert (letter["field"], letter["message"][:2]) == ("m", "m:")
    assert replayed(lake) is None


def test_a_column_that_fits_no_dead_letter_leads_to_no_replay(lake: Lake) -> None:
    """The letters name the columns of their field, and so would be worded otherwise now."""
    lake.source.append("a", [*(b'{"n":%d}' % n for n in range(300)), b'{"n":"odd"}'])
    sync(lake)
    declare(lake, n="boolean")
    lake.source.append("a", [b'{"n":true}'])
    sync(lake)
    assert replayed(lake) is None


def test_all_dead_letters_fit(lake: Lake) -> None:
    lake.source.append("a", [b'{"n":%d}' % n for n in range(300)] + [b'{"n":"odd"}'])
    sync(lake)
    declare(lake, n="string")
    assert replayed(lake).dead_rows == -1
    lake.check_exactly_once()
    assert lake.iceberg("dlq").num_rows == lake.delta("dlq").num_rows == 0
    lake.source.append("a", [b"[]"])
    sync(lake)
    lake.check_exactly_once()
    assert lake.iceberg("dlq").num_rows == 1


def scan(lake: Lake) -> Any:
    return StaticTable.from_metadata(lake.coordinator.table.iceberg).scan()


def test_what_cannot_be_rebuilt_is_told(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="no rows yet"):
        rebuilt(lake)
    filled(lake)
    with pytest.raises(ConfigError, match="'day\\(n\\)' names no column"):
        rebuilt(lake, partitions=["day(n)"])
    path = next(Path(lake.settings.root, "tables/7001/main/data").iterdir())
    path.rename(path.with_suffix(".away"))
    with pytest.raises(Exception, match=path.name):
        rebuilt(lake)
    path.with_suffix(".away").rename(path)
    filled(lake)
    assert len(lake.coordinator.abandoned) == 3


def test_a_rebuild_of_too_few_rows_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(lake)
    real = lake.runner.run

    def run(job: Any, key: str) -> Any:
        (done,) = real(job, key)
        short = msgspec.structs.replace(done.files[0], rows=done.files[0].rows - 1)
        return [msgspec.structs.replace(done, files=[short])]

    monkeypatch.setattr(lake.runner, "run", run)
    with pytest.raises(CorruptData, match="wrote 773 of 774 rows"):
        rebuilt(lake)
