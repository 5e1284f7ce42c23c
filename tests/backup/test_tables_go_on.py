"""Tables after a restore: they continue where group states and store prove which records are rows.
Otherwise they restart and report the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from worlds.backup import made, opened
from worlds.cold import CLUSTER, GROUPS
from worlds.stream import World, raw_batch

from polynya.base.names import group_of
from polynya.config.model import Config
from polynya.objectstore import MemoryStore
from polynya.recovery.restore import RestoredState, RestoreOrigin, RestoreResult, address_of
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.features.tables.commands import (
    ClaimRanges,
    TableCommit,
    TableCreate,
    TableOpen,
    TablePlanned,
)
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding
from polynya.stream.snapshots.encode import decode_image, snapshot_of

NAMES = {
    group: next(f"docs/{n}" for n in range(99) if group_of(f"docs/{n}", GROUPS) == group)
    for group in range(1, GROUPS + 1)
}


class Tabled:
    """A table of one stream in each group; each job takes a record of each. Copies are made when
    they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, MemoryStore()
        self.machines = {group: Machine(group, GROUPS) for group in range(GROUPS + 1)}
        self.copies: dict[int, bytes] = {}
        self.has_whole_transactions = True
        self.world = World(GROUPS)
        self.base = address_of(Config(data=str(folder)).store)
        for name in NAMES.values():
            self.machines[group_of(name, GROUPS)].apply(
                Create(name, 1, "text/plain", Encoding.BYTES)
            )
        self.uid = self.machines[0].apply(TableCreate("t", "docs/", 1)).uid
        self.positions = 0

    def flush(self) -> None:
        """A record more of each stream, in a pack."""
        for group, name in NAMES.items():
            machine, stream = self.machines[group], self.machines[group].directory.streams[name]
            self.positions += 1
            machine.apply(Append(name, 2, "text/plain", raw_batch(b"x")), self.positions)
            pack = f"{CLUSTER}/packs/20260101-00/{group}-{self.positions:032x}"
            asyncio.run(self.store.put(pack, b"x"))
            cold = self.world.slice_of(stream, 1, pack)
            machine.apply(PublishSlices(pack, 3, group, [(stream.uid, cold)]))

    def claim(self, groups: range | list[int] = range(1, GROUPS + 1)) -> int:
        """The number of the job that is open then."""
        meta, table = self.machines[0], self.machines[0].meta.tables[self.uid]
        meta.apply(TableOpen(self.uid, 4))
        for group in groups:
            self.machines[group].apply(
                ClaimRanges(self.uid, table.job, table.committed, "docs/", [], 1 << 30, True)
            )
        return table.job

    def commit(self, job: int) -> None:
        meta, table = self.machines[0], self.machines[0].meta.tables[self.uid]
        meta.apply(TablePlanned(self.uid, job))
        main, result = (
            f"tables/{self.uid}/main/_iceberg/{job:05d}.metadata.json",
            f"tables/{self.uid}/jobs/{job:012d}/a.result.json",
        )
        for key in (main, result):
            asyncio.run(self.store.put(key, b"{}"))
        meta.apply(
            TableCommit(
                self.uid,
                job,
                f"a{job}",
                table.main,
                table.dlq,
                self.base + main,
                "",
                GROUPS,
                0,
                5,
                result,
            )
        )
        assert table.committed == job

    def copy(self, *groups: int) -> None:
        for group in groups or self.machines:
            self.copies[group] = snapshot_of(self.machines[group])

    async def state(self, group: int) -> RestoredState:
        return RestoredState(decode_image(self.copies[group]), {}, 9)

    async def objects(self, store: object, done: RestoreResult) -> None:
        pass

    def restored(self) -> tuple[dict[int, Machine], list[str]]:
        origin = RestoreOrigin(cluster_id=CLUSTER, history=7, groups=GROUPS)
        done = asyncio.run(made(self.folder, origin, self, self.store))
        machines, storages = opened(self.folder)
        for storage in storages:
            storage.journal.close()
        self.machines = machines
        return machines, done.warnings


@pytest.fixture
def tabled(tmp_path: Path) -> Tabled:
    found = Tabled(tmp_path / "new")
    for _ in range(2):
        found.flush()
        found.commit(found.claim())
    found.flush()
    return found


def records_to_come(tabled: Tabled) -> dict[int, list[int]]:
    """Return, per group, the records that the next job takes."""
    table = tabled.machines[0].meta.tables[tabled.uid]
    assert not table.open
    tabled.machines[0].apply(TableOpen(tabled.uid, 10))
    command = ClaimRanges(tabled.uid, table.job, table.committed, "docs/", [], 1 << 30, True)
    replies = {group: tabled.machines[group].apply(command) for group in NAMES}
    return {
        group: [cold.record for part in reply.detail for cold in part.slices]
        for group, reply in replies.items()
    }  # type: ignore[union-attr]


def begins_anew(tabled: Tabled, why: str) -> None:
    machines, warnings = tabled.restored()
    assert len(warnings) == 1 and why in warnings[0] and f"tables/{tabled.uid}" in warnings[0]
    (table,) = machines[0].meta.tables.values()
    assert (table.uid != tabled.uid, table.committed, table.main) == (True, 0, "")
    assert not any(
        stream.tables
        for machine in machines.values()
        for stream in machine.directory.streams.values()
    )


def test_what_is_a_row_is_none_again_and_what_is_none_becomes_one(tabled: Tabled) -> None:
    tabled.copy()
    machines, warnings = tabled.restored()
    table = machines[0].meta.tables[tabled.uid]
    assert (warnings, table.committed, table.rows) == ([], 2, 2 * GROUPS) and table.main.endswith(
        "00002.metadata.json"
    )
    assert records_to_come(tabled) == {group: [2] for group in NAMES}


def test_a_job_that_was_open_is_given_up_also_where_some_groups_had_heard_of_it(
    tabled: Tabled,
) -> None:
    tabled.copy(0)
    job = tabled.claim([1])
    tabled.copy(*NAMES)
    tabled.restored()
    assert records_to_come(tabled) == {group: [2] for group in NAMES}
    assert tabled.machines[0].meta.tables[tabled.uid].job > job


def test_a_group_that_was_copied_before_the_last_job_has_rows_that_it_does_not_know(
    tabled: Tabled,
) -> None:
    tabled.copy()
    tabled.commit(tabled.claim())
    tabled.copy(0, 1)
    begins_anew(tabled, "its groups were copied while it received rows")


def test_a_table_that_went_on_after_the_copies_has_rows_of_what_is_lost(tabled: Tabled) -> None:
    tabled.copy()
    tabled.commit(tabled.claim())
    begins_anew(tabled, "it has rows of later records")


def test_groups_that_saw_a_later_commit_than_the_meta_group_are_not_believed(
    tabled: Tabled,
) -> None:
    tabled.copy(0)
    tabled.commit(tabled.claim())
    tabled.flush()
    tabled.claim()
    tabled.copy(*NAMES)
    begins_anew(tabled, "it has rows of later records")


def test_metadata_that_is_gone_and_files_of_another_place_are_no_table(tabled: Tabled) -> None:
    tabled.copy()
    asyncio.run(tabled.store.delete([f"tables/{tabled.uid}/main/_iceberg/00002.metadata.json"]))
    begins_anew(tabled, "its metadata is missing")


def test_another_store_is_another_table(tabled: Tabled, tmp_path: Path) -> None:
    tabled.copy()
    tabled.folder = tmp_path / "elsewhere"
    begins_anew(tabled, "its files are in another object store")
