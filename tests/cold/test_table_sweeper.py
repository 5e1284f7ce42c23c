"""Removal of lost jobs' leftovers under a table's folder, with real tables. Files that a snapshot,
log or reader may still use stay."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from long_tests import long
from pyiceberg.table import StaticTable
from s3_server import s3_server  # noqa: F401  (a fixture)
from worlds.lakehouse import Lake, quiet

from polynya.cold.table_sweeper import LOG_NAMING, RESULTS_KEPT, TableSweeper
from polynya.lakehouse.formats.snapshots import EXPIRE_EVERY_JOBS
from polynya.lakehouse.jobs.commit import run_job
from polynya.lakehouse.jobs.plan import TagRef
from polynya.lakehouse.jobs.rewrites.redo import Redefined
from polynya.lakehouse.jobs.worker import compact, merge, rebuild
from polynya.objectstore import StoreSettings, open_store
from polynya.stream.features.tables.snapshots import SCOPE, Kept, Tag
from polynya.stream.features.tables.state import Table

HOUR_MS = 3_600_000


class Died(BaseException):
    """A driver is killed."""


class Groups:
    """A core with one table, whose clock is the machine's."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.ahead_ms = 0
        self.committed_ms = self.moved_ms = 0
        self.tags: dict[str, Tag] = {}

    def machines(self) -> Mapping[int, Any]:
        found = self.lake.coordinator.table
        table = Table(
            7001,
            found.name,
            "",
            0,
            committed=found.job,
            committed_ms=self.committed_ms,
            main=found.iceberg,
            dlq=found.iceberg_dlq,
            result=found.result,
            moved_job=int([*found.location.split("/"), "0"][2]),
            moved_ms=self.moved_ms,
        )
        kept = Kept(found.keep_snapshots, found.keep_ms, self.tags)
        settings = {f"{SCOPE}/7001": msgspec.json.encode(kept)}
        return {0: SimpleNamespace(meta=SimpleNamespace(tables={7001: table}, settings=settings))}

    def now_ms(self) -> int:
        return int(time.time() * 1000) + self.ahead_ms


class World:
    """A lake whose jobs may be killed at any step, and its sweeper."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.groups = Groups(lake)
        self.number = 0

    def keep(self, count: int, age_ms: int = 0) -> None:
        coordinator = self.lake.coordinator
        coordinator.table = msgspec.structs.replace(
            coordinator.table, keep_snapshots=count, keep_ms=age_ms
        )

    def tag(self, name: str) -> int:
        """Name the current snapshot, for the driver and the sweep."""
        coordinator = self.lake.coordinator
        table = coordinator.table
        current = self.lake.static_table().metadata.current_snapshot_id
        assert current is not None
        made = Tag(str(current), table.job, 0, table.iceberg, table.iceberg_dlq)
        self.groups.tags[name] = made
        tags = {**table.tags, name: TagRef(str(current), table.job)}
        coordinator.table = msgspec.structs.replace(table, tags=tags)
        return current

    def job(self, die_at: str = "") -> None:
        """One job of a few records; with `die_at` its driver is killed there. What a job of before
        left open is taken up."""
        self.number += 1
        self.lake.source.append("s", [b'{"n":%d}' % self.number, b"7"])
        plan = self.lake.coordinator.plan("flights")
        assert plan is not None

        def progress(step: str, message: str) -> None:
            if step == die_at:
                raise Died

        try:
            run_job(plan, self.lake.coordinator, self.lake.runner, self.lake.blobs, progress)
        except Died:
            return
        finally:
            self.groups.committed_ms = int(time.time() * 1000)

    def drain(self) -> None:
        """All jobs that are left."""
        compact(self.lake.coordinator, [], lambda: self.lake.runner, quiet)
        self.groups.committed_ms = int(time.time() * 1000)

    def merge(self, die_at: str = "") -> None:
        """Merge all small files; with `die_at` the driver is killed there."""

        def progress(step: str, message: str) -> None:
            if step == die_at:
                raise Died

        try:
            merge(self.lake.coordinator, "flights", lambda: self.lake.runner, progress)
        except Died:
            return
        finally:
            self.groups.committed_ms = int(time.time() * 1000)

    def rebuild(self, die_at: str = "") -> None:
        """Write the table to a new folder; with `die_at` the driver is killed there."""

        def progress(step: str, message: str) -> None:
            if step == die_at:
                raise Died

        lake, before = self.lake, self.lake.coordinator.table.location
        try:
            rebuild(lake.coordinator, "flights", lambda: lake.runner, progress, Redefined())
        except Died:
            return
        finally:
            self.groups.committed_ms = int(time.time() * 1000)
            if lake.coordinator.table.location != before:
                self.groups.moved_ms = self.groups.committed_ms

    def data(self, part: str = "main") -> set[str]:
        return {key for key in self.files() if f"/{part}/data/" in key}

    def files(self) -> set[str]:
        return set(self.lake.blobs.list_keys("tables/7001"))

    def find(self, grace_ms: int = HOUR_MS) -> set[str]:
        """Orphans; none is named twice."""

        async def look() -> list[str]:
            store = open_store(self.lake.settings)
            assert store is not None
            try:
                found = [info.key for info in await TableSweeper(self.groups, store).find(grace_ms)]  # type: ignore[arg-type]
                await store.delete(found)
                return found
            finally:
                await store.close()

        found = asyncio.run(look())
        assert len(found) == len(set(found))
        return set(found)

    def age(self, hours: float = 2) -> None:
        """All files that are there become so much older."""
        for key in self.files():
            path = os.path.join(self.lake.settings.root, key)
            status = os.stat(path)
            os.utime(path, (status.st_atime, status.st_mtime - hours * 3600))

    def check(self, versions: int = 1_000) -> None:
        """Both formats have every record once, in every snapshot and in the last versions that they
        still list."""
        self.lake.check_exactly_once()
        for part in ("main", "dlq"):
            pointer = (
                self.lake.coordinator.table.iceberg
                if part == "main"
                else self.lake.coordinator.table.iceberg_dlq
            )
            table = StaticTable.from_metadata(pointer)
            for snapshot in table.metadata.snapshots:
                assert all(
                    self.exists(task.file.file_path)
                    for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
                )
            kept = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
            log = [each.metadata_file for each in table.metadata.metadata_log]
            for number, position in enumerate(log):
                older = StaticTable.from_metadata(position)
                is_kept = older.metadata.current_snapshot_id in kept
                if is_kept or number >= len(log) - LOG_NAMING:
                    assert all(
                        self.exists(task.file.file_path) for task in older.scan().plan_files()
                    )
            location = self.lake.coordinator.table.location
            delta = DeltaTable(f"{self.lake.settings.root}/{location}/{part}")
            for version in range(max(0, delta.version() + 1 - versions), delta.version() + 1):
                delta.load_as_version(version)
                assert all(map(self.exists, delta.file_uris()))

    def exists(self, uri: str) -> bool:
        return os.path.exists(uri.removeprefix("file://"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(Lake(str(tmp_path / "objects")))


def test_a_table_in_order_loses_its_old_plans_alone(world: World) -> None:
    for _ in range(3):
        world.job()
    assert world.find() == set(), "all is young"
    world.age()
    assert {key.split("/")[2] for key in world.find()} == {"jobs"}
    assert not [key for key in world.files() if key.endswith((".plan.json", ".task.json"))]
    assert len([key for key in world.files() if key.endswith(".result.json")]) == 3
    assert world.find() == set()
    world.check()
    world.job()
    world.check()


@pytest.mark.parametrize(
    "step",
    [
        "pointer",
        *long(
            [
                "ran",
                "staged-dlq",
                "planned",
                "plan-object",
                "result-object",
                "staged-main",
                "delta-main",
            ]
        ),
    ],
)
def test_what_a_killed_driver_left_goes_once_its_job_is_over_and_nothing_else(
    world: World, step: str
) -> None:
    world.job()
    before = world.files()
    world.job(die_at=step)
    left = world.files() - before
    world.age()
    assert not world.find() & left or step in ("pointer", "delta-main"), (
        "its job is open: it may yet be committed"
    )
    for _ in range(3):
        world.job()
    world.drain()
    world.age()
    found = world.find()
    world.check()
    assert world.find() == set()
    remaining = world.files()
    committed = [key for key in remaining if "/data/" in key]
    assert len(committed) == 2 * world.lake.coordinator.table.job, (
        "of each job one file in each part"
    )
    if step == "ran":
        assert len([key for key in found & left if "/data/" in key]) == 2
    if step == "staged-dlq":
        assert {key.rpartition(".")[2] for key in found & left if "/_iceberg/" in key} == {
            "json",
            "avro",
        }
    world.job()
    world.check()


def test_results_go_once_no_repair_starts_from_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = RESULTS_KEPT // 2  # quicker
    monkeypatch.setattr("polynya.cold.table_sweeper.RESULTS_KEPT", kept)
    for _ in range(4):
        world.job()
    world.job(die_at="pointer")  # Delta lacks the last job
    world.age()
    for _ in range(kept):
        world.job()
        world.age()
        world.find()
    results = [key for key in world.files() if key.endswith(".result.json")]
    assert len(results) == kept, "those of the last jobs"
    world.check()
    world.job(die_at="pointer")
    world.age()
    world.find()
    world.drain()
    world.check()


def test_metadata_lives_as_long_as_its_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.formats.snapshots.EXPIRE_EVERY_JOBS", 4)
    world.keep(3)
    for _ in range(4):
        world.job()
    world.age()
    held = world.lake.coordinator.table.iceberg
    for _ in range(12):
        world.job()
    found = {key for key in world.find() if "/_iceberg/" in key}
    assert [key for key in found if not key.endswith(".metadata.json")] == []
    assert len(found) == 2 * 2, (
        "versions 0 and 1 of both: 2 may have been superseded just now, and 3 was"
    )
    StaticTable.from_metadata(held).scan().to_arrow()
    world.age()
    world.job()
    gone = [key for key in world.find() if "/main/_iceberg/" in key]
    assert world.lake.blobs.key(held) not in world.files(), "its snapshot has expired"
    assert len([key for key in gone if key.endswith(".metadata.json")]) == 7, (
        "2 to 8, as 9 to 15 are in the log of 16"
    )
    kept = world.lake.static_table().metadata
    assert len(kept.metadata_log) == 3 + 4 and len(kept.snapshots) == 4
    current = set()
    for each in kept.metadata_log:
        old = StaticTable.from_metadata(each.metadata_file)
        if old.metadata.current_snapshot_id in {one.snapshot_id for one in kept.snapshots}:
            old.scan().to_arrow()
            current.add(old.metadata.current_snapshot_id)
    assert len(current) == 3, "and the fourth is current"
    world.check()


def test_a_tagged_snapshot_stays_whatever_expires_and_moves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.formats.snapshots.EXPIRE_EVERY_JOBS", 1)
    world.keep(1)
    for _ in range(3):
        world.job()
    number = world.tag("audit")
    pinned = world.lake.coordinator.table.iceberg
    rows = StaticTable.from_metadata(pinned).scan(snapshot_id=number).to_arrow()
    for _ in range(9):
        world.job()
    world.merge()
    for _ in range(2):
        world.age()
        world.job()
        world.find()
    snapshots = world.lake.static_table().metadata
    assert snapshots.refs["audit"].snapshot_id == number
    assert len(snapshots.snapshots) == 2, "the tagged one and the last one"
    assert StaticTable.from_metadata(pinned).scan(snapshot_id=number).to_arrow().equals(rows)
    world.rebuild()
    world.groups.ahead_ms = 3 * HOUR_MS
    for _ in range(2):
        world.age()
        world.job()
        world.find()
    assert StaticTable.from_metadata(pinned).scan(snapshot_id=number).to_arrow().equals(rows)
    assert "audit" not in world.lake.static_table().metadata.refs, "it is in the folder of before"
    world.groups.tags.clear()
    world.age()
    world.find()
    assert world.lake.blobs.key(pinned) not in world.files()
    world.check()


def test_manifests_of_expired_snapshots_go_with_the_last_metadata_that_names_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert EXPIRE_EVERY_JOBS == 10
    monkeypatch.setattr("polynya.lakehouse.formats.snapshots.EXPIRE_EVERY_JOBS", 8)
    world.keep(2)
    for _ in range(8):
        world.job()
    world.age()
    assert not [key for key in world.find() if "/main/_iceberg/snap-" in key], (
        "the metadata before it still names all"
    )
    for _ in range(7):
        world.job()
        world.age()
    gone = [key for key in world.find() if "/main/_iceberg/snap-" in key]
    assert len(gone) == 6
    world.check()


def test_strangers_and_files_that_cannot_be_understood_are_left_alone(world: World) -> None:
    world.job()
    strangers = {
        "tables/7001/main/data/mine.parquet",
        "tables/7001/notes.txt",
        "tables/7001/main/_iceberg/v1.json",
        "tables/7002/x",
    }
    for key in strangers:
        world.lake.blobs.put(key, b"x")
    lost = f"tables/7001/main/data/{1:012d}-{'a' * 32}-00000-{'b' * 16}.parquet"
    open_job = f"tables/7001/main/data/{2:012d}-{'a' * 32}-00000-{'b' * 16}.parquet"
    half = "tables/7001/main/_delta_log/_commit_0b9d1f1e-0000-4000-8000-000000000000.json.tmp"
    for key in (lost, open_job, half):
        world.lake.blobs.put(key, b"x")
    world.age()
    path = Path(world.lake.blobs.key(world.lake.coordinator.table.iceberg))
    manifest = next((Path(world.lake.settings.root) / path.parent).glob("*-m0.avro"))
    whole = manifest.read_bytes()
    for damage in (whole[:-1], whole[:40], b"", whole.replace(b"deflate", b"brotliX")):
        manifest.write_bytes(damage)
        assert world.find() == set()
    manifest.write_bytes(whole)
    metadata = Path(world.lake.settings.root) / path
    described = metadata.read_bytes()
    assert b'"manifest-list":"' in described
    for damage in (b"", b"{", described.replace(b'"manifest-list":"', b'"manifest-list":"\xff')):
        metadata.write_bytes(damage)
        assert world.find() == set()
    metadata.write_bytes(described)
    found = world.find()
    assert {lost, half} <= found and not found & {open_job, *strangers}
    assert strangers - {"tables/7002/x"} <= world.files()
    world.check()


def test_data_files_of_other_engines_go_after_a_day(world: World) -> None:
    """Trino writes them before it asks for the commit, which is refused."""
    world.job()
    foreign = {
        "tables/7001/main/data/20261124_041500_00007_x-0b9d.parquet",
        "tables/7001/main/data/carrier=UA/00000-0-0b9d.parquet",
        "tables/7001/dlq/data/mine.parquet",
    }
    others = {"tables/7001/main/_iceberg/v1.json", "tables/7001/notes.txt"}
    for key in foreign | others:
        world.lake.blobs.put(key, b"x")
    world.age(23)
    assert not world.find() & (foreign | others)
    world.age(2)
    assert world.find() & (foreign | others) == foreign
    world.check()


def test_manifests_that_name_too_few_files_are_not_believed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        world.job()
    world.age()
    monkeypatch.setattr("polynya.cold.table_sweeper._leave_named", lambda unnamed, manifest: 0)
    assert not [key for key in world.find() if "/data/" in key]
    world.check()


@pytest.mark.process
@pytest.mark.long
def test_the_same_in_a_bucket(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = StoreSettings(**request.getfixturevalue("s3_server").settings())
    monkeypatch.setenv("POLYNYA_COLD_S3_ACCESS_KEY_ID", settings.s3_access_key_id)
    monkeypatch.setenv("POLYNYA_COLD_S3_SECRET_ACCESS_KEY", settings.s3_secret_access_key)
    world = World(Lake(s3=settings))
    for step in ("", "ran", "staged-dlq", "", "", "", ""):
        world.job(step)
    world.drain()
    assert world.find() == set()
    # files in a bucket cannot be made older: all are taken to be
    found = world.find(grace_ms=-HOUR_MS)
    assert {key.rpartition(".")[2] for key in found} == {"parquet", "json", "avro"}
    assert (
        len([key for key in world.files() if "/main/data/" in key])
        == world.lake.coordinator.table.job
    )
    world.lake.check_exactly_once()
    world.job()
    world.lake.check_exactly_once()
    assert {key.split("/")[2] for key in world.find(grace_ms=-HOUR_MS)} == {"jobs"}


@pytest.mark.parametrize("seed", [0, *long([1, 2])])
def test_drivers_that_die_anywhere_and_sweeps_at_any_time_lose_nothing(
    world: World, seed: int
) -> None:
    chance = random.Random(seed)
    steps = (
        "plan-object",
        "ran",
        "result-object",
        "staged-main",
        "staged-dlq",
        "pointer",
        "delta-main",
        "",
        "",
        "",
    )
    for _ in range(12):
        world.job(chance.choice(steps))
        if chance.random() < 0.5:
            world.age(chance.choice((0.3, 2)))
        if chance.random() < 0.4 and world.lake.coordinator.table.job:
            world.find(grace_ms=chance.choice((60_000, HOUR_MS)))
    world.drain()
    world.check()
    world.age()
    world.job()
    world.find()
    world.check()
    assert (
        len([key for key in world.files() if "/main/data/" in key])
        == world.lake.coordinator.table.job
    )


def test_merged_files_go_after_the_snapshots_that_have_them_and_the_grace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.formats.snapshots.EXPIRE_EVERY_JOBS", 4)
    world.keep(2)
    for _ in range(3):
        world.job()
    small, held = world.data(), world.lake.coordinator.table.iceberg
    world.merge()  # job 4 expires all snapshots but its own and the one before
    world.age()
    assert not [key for key in world.find() if "/data/" in key]
    world.check()
    for _ in range(3):
        world.job()
    world.age()
    world.job()  # job 8 expires the merge's snapshot
    assert not [key for key in world.find() if "/data/" in key], "its metadata has readers"
    assert StaticTable.from_metadata(held).scan().to_arrow().num_rows == 6
    for _ in range(7):
        world.job()
        world.age()
    gone = {key for key in world.find() if "/main/data/" in key}
    assert gone == small and len(world.data()) == 12
    world.check(versions=8)


@pytest.mark.parametrize("step", ["pointer", *long(["ran", "staged-dlq"])])
def test_a_merge_that_died_leaves_what_others_need(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Crash after "pointer": Delta still has the small files; Iceberg has expired them."""
    monkeypatch.setattr("polynya.lakehouse.formats.snapshots.EXPIRE_EVERY_JOBS", 1)
    world.keep(1)
    for _ in range(3):
        world.job()
    world.merge(die_at=step)
    for _ in range(3):
        world.age()
        world.find()
    delta = DeltaTable(f"{world.lake.settings.root}/tables/7001/main")
    assert len(delta.file_uris()) == 3 and all(map(world.exists, delta.file_uris()))
    world.job()
    world.merge()
    for _ in range(8):
        world.job()
        world.age()
        world.find()
    world.check(versions=3)
    assert len(world.data()) <= 12


def test_the_folder_before_a_rebuild_goes_after_the_grace(world: World) -> None:
    for _ in range(3):
        world.job()
    held = world.lake.coordinator.table.iceberg
    world.rebuild()
    world.age()
    assert world.find() == set(), "its readers have the grace from the move on"
    assert StaticTable.from_metadata(held).scan().to_arrow().num_rows == 6
    world.groups.ahead_ms = 2 * HOUR_MS
    assert {key.split("/")[2] for key in world.find()} == {"main", "dlq", "jobs"}
    left = {key for key in world.files() if not key.startswith("tables/7001/000000000004/")}
    assert left, "the last results"
    assert all(key.endswith(".result.json") for key in left)
    world.check()
    world.job(die_at="pointer")
    world.find()
    world.drain()
    world.rebuild()
    world.groups.ahead_ms = 5 * HOUR_MS
    world.age()
    for _ in range(RESULTS_KEPT + 1):
        world.job()
        world.age()
        world.find()
    assert {key.split("/")[2] for key in world.files()} == {"000000000006"}
    world.check()


@pytest.mark.parametrize("step", ["pointer", *long(["ran", "result-object", "staged-dlq"])])
def test_a_rebuild_that_died_is_swept_or_finished(world: World, step: str) -> None:
    for _ in range(3):
        world.job()
    world.rebuild(die_at=step)
    world.age()
    world.groups.ahead_ms = 2 * HOUR_MS
    assert not [key for key in world.find() if "/7001/0" in key], "it may be committed"
    for _ in range(2):
        world.job()
    world.drain()
    world.groups.ahead_ms = 4 * HOUR_MS
    world.age()
    world.find()
    moved = world.lake.coordinator.table.location != "tables/7001"
    assert moved == (step != "ran")
    there = {key for key in world.files() if "/000000000004/" in key and "/data/" in key}
    assert bool(there) == moved
    world.check()


def test_delta_commits_before_an_old_checkpoint_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.formats.delta._CHECKPOINT_EVERY", "3")
    for _ in range(7):
        world.job()
    world.age(24 * 8)
    world.job()
    found = {key.rpartition("/")[2] for key in world.find() if "/main/_delta_log/" in key}
    kept = {key for key in world.files() if "/main/_delta_log/" in key}
    assert found >= {f"{version:020d}.json" for version in range(4)} and found
    assert len([key for key in kept if ".checkpoint." in key]) >= 1
    world.lake.check_exactly_once()
    world.job()
    world.lake.check_exactly_once()


def test_merges_and_sweeps_at_any_time_lose_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.formats.snapshots.EXPIRE_EVERY_JOBS", 3)
    world.keep(2)
    chance = random.Random(5)
    steps = ("ran", "result-object", "staged-dlq", "pointer", "delta-main", "", "")
    for _ in range(12):
        (world.merge if chance.random() < 0.3 else world.job)(chance.choice(steps))
        if chance.random() < 0.6:
            world.age(chance.choice((0.3, 2)))
        if chance.random() < 0.5 and world.lake.coordinator.table.job:
            world.find(grace_ms=chance.choice((60_000, HOUR_MS)))
    for _ in range(2):  # the open job, and what came after its plan
        world.drain()
    world.lake.check_exactly_once()
    world.check(versions=1)
