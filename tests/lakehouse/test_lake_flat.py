"""Commits stay flat: what a job's commit costs does not grow with the jobs before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyiceberg.table
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from worlds.lakehouse import Lake, quiet

from polynya.lakehouse.jobs.worker import compact
from polynya.objectstore.files import Files

COPIES_MAX = 20  # of the metadata of both tables, a job; pyiceberg alone makes over 60


def test_a_job_copies_the_metadata_a_few_times_and_old_snapshots_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.formats.snapshots.EXPIRE_EVERY_JOBS", 4)
    copies = 0
    real = pyiceberg.table.update_table_metadata

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal copies
        copies += 1
        return real(*arguments, **named)

    monkeypatch.setattr(pyiceberg.table, "update_table_metadata", counted)
    lake = Lake(str(tmp_path / "store"))
    lake.coordinator.table = msgspec.structs.replace(lake.coordinator.table, keep_snapshots=2)
    costs, snapshots = [], []
    for number in range(13):
        before = copies
        lake.source.append("s", [b'{"n":%d}' % number])
        compact(lake.coordinator, [], lambda: lake.runner, quiet)
        costs.append(copies - before)
        table = StaticTable.from_metadata(lake.coordinator.table.iceberg)
        snapshots.append(len(table.metadata.snapshots))
    lake.check_exactly_once()
    assert max(costs[1:]) <= COPIES_MAX, costs
    assert max(snapshots) <= 2 + 4, snapshots
    folder = lake.blobs.uri("tables/7001/main").removeprefix("file://")
    checkpoints = list(Path(folder, "_delta_log").glob("*.checkpoint*.parquet"))
    assert checkpoints and DeltaTable(folder).version() == 13


def test_a_job_syncs_the_files_of_the_delta_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job opens the store again, as a worker's does."""
    monkeypatch.setattr("polynya.lakehouse.reading.blobs._NEWEST_FILES", 4)
    lake, synced, costs = Lake(str(tmp_path / "store")), 0, []
    real = Files.sync

    def counted(files: Files, descriptor: int) -> None:
        nonlocal synced
        synced += 1
        real(files, descriptor)

    monkeypatch.setattr(Files, "sync", counted)
    for number in range(24):
        before = synced
        lake.source.append("s", [b'{"n":%d}' % number])
        compact(lake.coordinator, [], lambda: lake.runner, quiet)
        costs.append(synced - before)
    lake.check_exactly_once()
    assert sorted(costs[1:])[11] <= costs[1] + 1, costs
    assert max(costs[1:]) <= costs[1] + 4, "no job syncs the log of those before"
