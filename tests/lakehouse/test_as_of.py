"""Queries on earlier states of tables: by time, by snapshot and by tag."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from worlds.lakehouse import Lake, quiet

from polynya.lakehouse.formats.snapshots import Keeping, kept_of
from polynya.lakehouse.jobs.plan import TagRef
from polynya.lakehouse.jobs.rewrites.redo import Redefined
from polynya.lakehouse.jobs.worker import compact, rebuild
from polynya.lakehouse.sql.policy import BadQuery, Bounds
from polynya.lakehouse.sql.query import ask, query

COUNT = "select count(*) from flights"
DEAD = "select count(*) from flights__dlq"


def job(lake: Lake, *records: bytes) -> tuple[str, int]:
    """Run one job, and return the snapshot that it made, and its time."""
    lake.source.append("a", list(records))
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    made = lake.static_table().current_snapshot()
    assert made is not None
    return str(made.snapshot_id), made.timestamp_ms


def first_value(lake: Lake, statement: str, as_of: str) -> Any:
    return query(lake.coordinator.tables(), statement, as_of=as_of).rows[0][0]


def tagged(lake: Lake, name: str, snapshot: str) -> None:
    table = lake.coordinator.table
    tag = TagRef(snapshot, table.job, 0, table.iceberg, table.iceberg_dlq)
    lake.coordinator.table = msgspec.structs.replace(table, tags={name: tag})


def test_rows_and_dead_letters_are_as_they_were(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    first, _ = job(lake, b'{"n":1}')
    second, at = job(lake, b'{"n":2}', b"no json")
    third, _ = job(lake, b'{"n":3,"more":1}')
    found = {
        each: (first_value(lake, COUNT, each), first_value(lake, DEAD, each))
        for each in (first, second, third)
    }
    assert found == {first: (1, 0), second: (3, 1), third: (4, 1)}
    moment = datetime.fromtimestamp(at / 1000, UTC)
    for text in (moment.isoformat(), moment.replace(tzinfo=None).isoformat(" ")):
        assert first_value(lake, COUNT, text) >= 3
    near = datetime.now(UTC) + timedelta(seconds=5)
    assert first_value(lake, COUNT, near.isoformat()) == 4, "the clocks of two machines differ"
    assert first_value(lake, "select max(n) from flights", second) == 2
    with pytest.raises(BadQuery, match="more"):
        first_value(lake, "select more from flights", second)


def test_a_state_that_is_not_kept_is_refused_with_the_first_that_is(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    _, at = job(lake, b'{"n":1}')
    before = datetime.fromtimestamp(at / 1000, UTC) - timedelta(days=1)
    for as_of in (before.isoformat(), "123456789012"):
        with pytest.raises(BadQuery, match="the first one that is kept is of 20"):
            first_value(lake, COUNT, as_of)
    with pytest.raises(BadQuery, match=r"'yesterday' is no time .* its tags: none"):
        first_value(lake, COUNT, "yesterday")


@pytest.mark.parametrize("as_of", ["2999-01-01", "2999-01-01T02:00:00+02:00"])
def test_a_time_in_the_future_is_refused(tmp_path: Path, as_of: str) -> None:
    lake = Lake(str(tmp_path / "store"))
    first, _ = job(lake, b'{"n":1}')
    expected = r"is in the future: it is 2999-01-01 00:00:00 in UTC, and now is 20\d\d-"
    with pytest.raises(BadQuery, match=expected):
        first_value(lake, COUNT, as_of)
    tagged(lake, "2999-01-01", first)
    assert first_value(lake, COUNT, "2999-01-01") == 1, "a tag of that name is no time"


def test_a_tag_is_read_after_a_rebuild_also_within_bounds(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    first, _ = job(lake, b'{"n":1}', b"no json")
    tagged(lake, "audit", first)
    job(lake, b'{"n":2}')
    rebuild(lake.coordinator, "flights", lambda: lake.runner, quiet, Redefined())
    job(lake, b'{"n":3}')
    assert (
        first_value(lake, COUNT, "audit"),
        first_value(lake, DEAD, "audit"),
        first_value(lake, COUNT, ""),
    ) == (
        2,
        1,
        4,
    )
    bounds = Bounds(256 << 20)
    for statement, rows in ((COUNT, 2), (DEAD, 1)):
        with ask(lake.coordinator.tables(), statement, {}, bounds, as_of="audit") as found:
            assert [row for block in found.blocks for row in block] == [(rows,)]
    with pytest.raises(BadQuery, match="its tags: audit"):
        first_value(lake, COUNT, "other")


def test_a_delta_version_is_found_by_its_job(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    for number in range(3):
        job(lake, b'{"f%d":1}' % number)  # each widens the table, which is a version, too
    path = lake.blobs.uri(f"{lake.coordinator.table.location}/main").removeprefix("file://")
    found = DeltaTable(path).history()
    versions = {each["polynya.job"]: each["version"] for each in found if "polynya.job" in each}
    rows = {
        name: DeltaTable(path, version=at).to_pyarrow_table().num_rows
        for name, at in versions.items()
    }
    assert rows == {"1": 1, "2": 2, "3": 3}


def test_snapshots_are_kept_by_count_and_as_long_as_they_were_current() -> None:
    times = [1000, 2000, 3000, 4000]
    now = 5000
    assert kept_of(times, Keeping(last=2), now) == 2
    assert kept_of(times, Keeping(last=1, age_ms=1500), now) == 2, "3000 was current until 4000"
    assert kept_of(times, Keeping(last=1, age_ms=2000), now) == 3
    assert kept_of(times, Keeping(last=3, age_ms=1), now) == 3
    assert kept_of(times, Keeping(last=1, age_ms=10_000), now) == 4
    many = list(range(2000))
    assert kept_of(many, Keeping(last=1, age_ms=10_000), now) == 500, "at most so many"


def test_a_tag_is_one_of_icebergs_from_the_next_job_on(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    first, _ = job(lake, b'{"n":1}')
    tagged(lake, "audit", first)
    job(lake, b'{"n":2}')
    refs = lake.static_table().metadata.refs
    assert {name: str(ref.snapshot_id) for name, ref in refs.items() if name != "main"} == {
        "audit": first
    }
    lake.coordinator.table = msgspec.structs.replace(lake.coordinator.table, tags={})
    job(lake, b'{"n":3}')
    assert set(lake.static_table().metadata.refs) == {"main"}
