"""Merges of small files: the same rows in fewer files of both formats, whenever a driver dies, and
invisible for readers of changes and of older snapshots."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from long_tests import every_nth
from pyiceberg.table import StaticTable
from worlds.lakehouse import Lake, quiet

from polynya.base.errors import CorruptData
from polynya.lakehouse.jobs.commit import STEPS, run_job
from polynya.lakehouse.jobs.plan import Merged
from polynya.lakehouse.jobs.rewrites.merge_plan import TIERS, chosen
from polynya.lakehouse.jobs.rewrites.merging import merge_all
from polynya.lakehouse.jobs.worker import compact, merge


class Killed(BaseException):
    """The driver is dead."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "store"))


def merging(lake: Lake, files: int, full: int = 128 << 20) -> None:
    coordinator = lake.coordinator
    coordinator.table = msgspec.structs.replace(
        coordinator.table, merge_files=files, merge_bytes=full
    )


def fill(lake: Lake, jobs: int, start: int = 0) -> None:
    """Jobs of two streams, each with a new field, nested fields that grow, and a dead letter."""
    for number in range(start, start + jobs):
        inner = {"a": number} | {f"b{number}": [{"c": number, f"d{number}": "x"}]}
        rows = [msgspec.json.encode({"n": i, f"f{number}": 0.5, "o": inner}) for i in range(3)]
        lake.source.append("s/b", rows)
        lake.source.append("s/a", [b'{"n":1,"o":null}', b"[]"])
        compact(lake.coordinator, [], lambda: lake.runner, quiet)


def files(lake: Lake, part: str = "main") -> tuple[int, int]:
    """Count the files of each format."""
    table = lake.coordinator.table
    pointer = table.iceberg if part == "main" else table.iceberg_dlq
    iceberg = list(StaticTable.from_metadata(pointer).scan().plan_files())
    return len(iceberg), len(DeltaTable(f"{lake.settings.root}/tables/7001/{part}").file_uris())


def operations(lake: Lake) -> list[str]:
    metadata = StaticTable.from_metadata(lake.coordinator.table.iceberg).metadata
    return [str(each.summary.operation.value) for each in metadata.snapshots if each.summary]


def test_a_merge_keeps_each_row_once_and_sorts_the_file(lake: Lake) -> None:
    fill(lake, 4)
    before = lake.delta().sort_by([("stream", "ascending"), ("offset", "ascending")])
    (outcome,) = merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    assert (outcome.rows, outcome.dead_rows, outcome.replaced) == (0, 0, 8)
    lake.check_exactly_once()
    assert files(lake) == files(lake, "dlq") == (1, 1)
    assert lake.delta().to_pylist() == before.to_pylist(), "in order of stream and offset"
    assert operations(lake)[-1] == "replace"
    summary = StaticTable.from_metadata(lake.coordinator.table.iceberg).current_snapshot()
    assert summary is not None and summary.summary is not None
    assert summary.summary["total-records"] == "20" and summary.summary["total-data-files"] == "1"
    fill(lake, 1, 4)
    lake.check_exactly_once()
    assert files(lake) == (2, 2)
    assert merge(lake.coordinator, "flights", lambda: lake.runner, quiet)[0].replaced == 4
    assert merge(lake.coordinator, "flights", lambda: lake.runner, quiet) == []
    lake.check_exactly_once()


def test_delta_readers_of_changes_see_no_change(lake: Lake) -> None:
    fill(lake, 2)
    merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    log = Path(lake.settings.root, "tables/7001/main/_delta_log")
    newest = max(log.glob("*.json"))
    actions = [msgspec.json.decode(line) for line in newest.read_bytes().splitlines()]
    changes = [next(iter(each.values())) for each in actions if "add" in each or "remove" in each]
    assert len(changes) == 3 and not any(each["dataChange"] for each in changes)


def test_older_snapshots_stay_readable(lake: Lake) -> None:
    fill(lake, 3)
    delta = DeltaTable(f"{lake.settings.root}/tables/7001/main")
    held, version = lake.coordinator.table.iceberg, delta.version()
    rows = lake.iceberg().num_rows
    merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    assert StaticTable.from_metadata(held).scan().to_arrow().num_rows == rows
    delta.update_incremental()
    assert len(delta.file_uris()) == 1
    delta.load_as_version(version)
    assert delta.to_pyarrow_table().num_rows == rows


@pytest.mark.parametrize(
    "step",
    every_nth([step for step in STEPS if step not in ("planned", "schema", "plan-object")], 2),
)
def test_a_merge_killed_after_a_step_loses_and_doubles_nothing(lake: Lake, step: str) -> None:
    fill(lake, 2)

    def progress(done: str, message: str) -> None:
        if done == step:
            raise Killed(step)

    for number in range(2, 3):
        with pytest.raises(Killed):
            merge(lake.coordinator, "flights", lambda: lake.runner, progress)
        fill(lake, 1, number)
        lake.check_exactly_once()
    merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    lake.check_exactly_once()
    assert files(lake) == files(lake, "dlq") == (1, 1)


def test_two_drivers_that_merge_at_once(lake: Lake) -> None:
    fill(lake, 3)
    plans = [lake.coordinator.plan("flights", merge=True) for _ in range(2)]
    assert all(plan is not None and plan.job == 4 and not plan.ranges for plan in plans)
    together, outcomes = threading.Barrier(2), list[Any]()

    def in_step(step: str, message: str) -> None:
        if step in ("planned", "staged-dlq"):
            together.wait(60)

    def work(plan: Any) -> None:
        outcomes.append(
            run_job(plan, lake.coordinator, lake.runner, lake.blobs, in_step, rewrite=merge_all)
        )

    threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2 and {each.table.job for each in outcomes} == {4}
    lake.check_exactly_once()
    assert files(lake) == (1, 1)


def test_a_merge_that_fails_stops_no_later_job(lake: Lake) -> None:
    fill(lake, 2)
    path = next(Path(lake.settings.root, "tables/7001/main/data").iterdir())
    path.rename(path.with_suffix(".away"))
    with pytest.raises(Exception, match=path.name):
        merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    fill(lake, 1, 2)
    assert lake.coordinator.table.job == 4
    path.with_suffix(".away").rename(path)
    lake.check_exactly_once()


def test_a_merge_of_too_few_rows_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(lake, 2)
    real = lake.runner.run

    def run(job: Any, key: str) -> Any:
        lost = real(job, key)
        return [
            msgspec.structs.replace(
                done, files=[msgspec.structs.replace(done.files[0], rows=done.files[0].rows - 1)]
            )
            for done in lost
        ]

    monkeypatch.setattr(lake.runner, "run", run)
    with pytest.raises(CorruptData, match="merged 10 rows to 9"):
        merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    lake.check_exactly_once()


def test_rows_of_files_that_are_not_sorted_are_sorted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.jobs.rewrites.merge_files.GROUP_BYTES", 300)
    monkeypatch.setattr("polynya.lakehouse.jobs.rewrites.merge_files._BATCH_BYTES", 100)
    for _ in range(3):
        for stream in ("b", "a", "c"):
            lake.source.append(stream, [b'{"n":%d}' % number for number in range(20)])
        compact(lake.coordinator, [], lambda: lake.runner, quiet)
    folder = Path(lake.settings.root, "tables/7001/main/data")
    disordered = next(folder.iterdir())
    table = pq.ParquetFile(disordered).read()
    disordered.chmod(0o600)
    pq.write_table(table.take(list(range(len(table)))[::-1]), disordered, store_schema=False)
    before = set(folder.iterdir())
    merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    (merged,) = set(folder.iterdir()) - before
    found = pq.ParquetFile(merged)
    assert found.num_row_groups > 3
    rows = found.read(columns=["stream", "offset"]).to_pylist()
    assert rows == sorted(rows, key=lambda row: (row["stream"], row["offset"])) and len(rows) == 180


def test_a_merged_file_declares_its_order_and_has_a_stream_in_few_row_groups(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.jobs.rewrites.merge_files.GROUP_BYTES", 2_000)
    for _ in range(3):
        rows = [b'{"n":%d}' % number for number in range(20)]
        lake.source.append_many({f"s{number:02d}": [rows] for number in range(90)})
        compact(lake.coordinator, [], lambda: lake.runner, quiet)
    merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    table = StaticTable.from_metadata(lake.coordinator.table.iceberg)
    (task,) = table.scan().plan_files()
    order = table.sort_order()
    names = [table.schema().find_column_name(field.source_id) for field in order.fields]
    assert names == ["stream", "incarnation", "offset"]
    assert task.file.sort_order_id == order.order_id > 0
    footer = pq.ParquetFile(task.file.file_path.removeprefix("file://")).metadata
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    read = [
        group.total_byte_size
        for group in groups
        if group.column(0).statistics.min <= "s17" <= group.column(0).statistics.max
    ]
    assert sum(read) <= 0.05 * sum(group.total_byte_size for group in groups)


def test_merges_are_part_of_a_sync_once_enough_files_came(lake: Lake) -> None:
    merging(lake, 4)
    fill(lake, 3)
    assert operations(lake) == ["append"] * 3
    fill(lake, 1, 3)
    assert operations(lake) == ["append"] * 4 + ["replace"]
    assert files(lake) == (1, 1)
    lake.check_exactly_once()


def simulated(days: int, minutes: int, size: int = 40_000) -> tuple[int, float]:
    """The most live files of a table at any time, and how often a byte was written, by the choice
    alone."""
    live: list[Merged] = []
    most = written = 0
    for minute in range(days * minutes):
        live.append(Merged(f"{minute:09d}", 1, size + minute * 7919 % size))
        written += live[-1].size
        for group in chosen(live, 10, 128 << 20, whole=False):
            total = sum(file.size for file in group)
            written += total
            live = [file for file in live if file not in group]
            live.append(Merged(f"{minute:09d}m", 1, total))
        most = max(most, sum(file.size < 128 << 20 for file in live))
    return most, written / sum(file.size for file in live)


def test_few_files_stay_after_days_of_commits_each_minute() -> None:
    most, amplification = simulated(4, 1440)
    assert most <= 10 * TIERS and amplification <= TIERS + 2
    assert simulated(1, 1440, 3 << 20)[0] <= 10 * TIERS


def test_full_files_are_left_alone_and_small_ones_become_full() -> None:
    full = 1000
    sizes = [1000, 5000, 999, 600, 500, 400, 300]
    live = [Merged(f"{number}", 1, size) for number, size in enumerate(sizes)]
    groups = chosen(live, 2, full, whole=True)
    assert [[file.size for file in group] for group in groups] == [[999, 600], [500, 400, 300]]
    assert chosen(live[:3], 2, full, whole=True) == []
    assert chosen(live, 6, full, whole=False) == []
