"""Find files under `tables/` that lost jobs, old metadata and dropped tables left behind, and that
no table can ever refer to again.

The layout is that of docs/formats/tables.md. A file is known only by its name, its age and the
files that name it. The sweep relies on these rules:

* A table's rows are append-only, but a merge replaces files. A data file goes when no manifest
  that stays names it, as added, kept or deleted. So the snapshot of the merge that deleted it has
  expired, and all metadata that lists that snapshot was superseded longer ago than the grace
  period. The Delta log removed the file before the job after the merge began, which is earlier.
* A file name contains its job. Files of jobs after the last committed one may still be committed,
  and are skipped.
* Metadata is staged on a plan of its job and committed only while that job is open. Files staged
  before the last commit that are not part
  of it are lost for good. Clocks may differ by the grace period.
* A metadata file is superseded before any file two versions later is written. It has no readers if
  it was superseded longer ago than the
  grace period and is not in the current one's log. Manifests live as long as any metadata file that
  names them; of the log, that are the last `LOG_NAMING`. The others are as old as snapshots that are
  kept, and the current one names these.

* A driver repairs both Delta logs before it begins a job. So a result is needed while its job is the
last committed one or the one before; `RESULTS_KEPT` is more.

* A rebuild writes the table to a folder of its job, `tables/UID/JOB/`. The folder of a finished job
  that is not the table's goes. So does the folder before, the grace after the move.

* Jobs alone commit. A file in a data folder whose name is not that of a job's was written by another
  engine, before its commit was refused. It goes when it is older than `FOREIGN_DATA_KEPT_MS`.

* A tag names metadata files. They, what they name, and the folders that they are in stay until the
  tag is removed.

* A checkpoint of a Delta log has the whole state. Older commits and checkpoints go when it is older
  than `DELTA_LOG_KEPT_MS`, and than the time for which the table keeps snapshots.

A table whose files cannot be parsed is skipped.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable

import msgspec

from polynya.base.errors import CorruptData
from polynya.base.limits import DELTA_LOG_KEPT_MS, FOREIGN_DATA_KEPT_MS
from polynya.base.msgpack import UNREADABLE
from polynya.cold.groups import Groups
from polynya.objectstore.api import NotFound, ObjectInfo, ObjectStore
from polynya.stream.features.tables.snapshots import Kept, kept_in
from polynya.stream.features.tables.state import Table
from polynya.wire.avro import blocks

log = logging.getLogger("polynya.cold")

FILES_MAX = 10_000  # per kind and part in one sweep; the next sweep finds the rest
LOG_NAMING = 5  # last entries of a metadata log that keep what they name
RESULTS_KEPT = 10  # results of the last committed jobs
PARTS = ("main", "dlq")

_DATA = re.compile(rb"(\d{12})-[0-9a-f]{32}-\d{5,}-([0-9a-f]{16})\.parquet")
_PLAN = re.compile(r"/jobs/(\d{12})/[0-9a-f]{32}\.\d+(?:\.\d{5,}\.task|\.plan)\.json")
_RESULT = re.compile(r"/jobs/(\d{12})/[0-9a-f]{32}\.result\.json")
_REBUILT = re.compile(r"tables/\d+/(\d{12})/")
_METADATA = re.compile(r"/(\d{5,})-[0-9a-f-]{36}\.metadata\.json")
_MANIFEST = re.compile(rb"[0-9A-Za-z_-]+\.avro")
_DELTA_COMMIT = re.compile(r"/(\d{20})\.(?:json|checkpoint[.\w-]*\.parquet)")
_DELTA_CHECKPOINT = re.compile(r"/(\d{20})\.checkpoint\.parquet")
_HALF_COMMIT = re.compile(r"/_commit_[0-9a-f-]+\.json\.tmp|/\d{20}\.json#\d+")


class _Snapshot(msgspec.Struct, rename="kebab"):
    snapshot_id: int
    manifest_list: str
    summary: dict[str, str] = {}


class _Older(msgspec.Struct, rename="kebab"):
    metadata_file: str


class _Metadata(msgspec.Struct, rename="kebab"):
    """The fields of an Iceberg metadata file that the sweep needs."""

    current_snapshot_id: int | None = None
    snapshots: list[_Snapshot] = []
    metadata_log: list[_Older] = []


class TableSweeper:
    """The sweeper of the core that leads the meta group; other cores have no tables."""

    def __init__(self, groups: Groups, store: ObjectStore) -> None:
        self._groups = groups
        self._store = store

    async def find(self, grace_ms: int) -> list[ObjectInfo]:
        """Return files that may be deleted. Raises StoreUnavailable."""
        found: list[ObjectInfo] = []
        for machine in self._groups.machines().values():
            kept = kept_in(machine.meta.settings)
            for table in list(machine.meta.tables.values()):
                if table.dropped_ms:
                    if self._is_over(table, grace_ms):
                        found += [info async for info in self._all_of(table.uid, FILES_MAX)]
                elif table.committed:
                    own = kept.get(table.uid, Kept())
                    found += await self._of_table(msgspec.structs.replace(table), grace_ms, own)
        return found

    async def drained(self, grace_ms: int) -> list[tuple[int, int]]:
        """Return the (group, table) of dropped tables that left neither claims nor files. Raises
        StoreUnavailable."""
        return [
            (group, table.uid)
            for group, machine in self._groups.machines().items()
            for table in list(machine.meta.tables.values())
            if table.forgotten
            and self._is_over(table, grace_ms)
            and not [info async for info in self._all_of(table.uid, 1)]
        ]

    def _is_over(self, table: Table, grace_ms: int) -> bool:
        """Report whether readers and drivers of a dropped table had the grace to end."""
        return table.dropped_ms + grace_ms <= self._groups.now_ms()

    async def _all_of(self, table: int, limit: int) -> AsyncIterator[ObjectInfo]:
        async for info in self._store.list(f"tables/{table}/"):
            if limit == 0:
                return
            limit -= 1
            yield info

    async def _of_table(self, table: Table, grace_ms: int, kept: Kept) -> list[ObjectInfo]:
        """Find files of one table. `table` was copied before any listing, so files written later
        count as young."""
        sweep = _TableSweep(self._store, table, self._groups.now_ms(), grace_ms, kept)
        try:
            return await sweep.find()
        except (CorruptData, NotFound, *UNREADABLE) as fault:
            log.warning(
                "the sweep skipped a table, because its files cannot be read",
                extra={"table": table.name, "error": f"{type(fault).__name__}: {fault}"},
            )
            return []


class _TableSweep:
    """One sweep of one table. Files written after `_before_ms` are young; metadata staged after
    `_staged_ms` may be young; Delta commits after `_logged_ms` and other writers' data after
    `_foreign_ms` are kept."""

    def __init__(
        self, store: ObjectStore, table: Table, now_ms: int, grace_ms: int, kept: Kept
    ) -> None:
        self._store = store
        named = (uri for tag in kept.tags.values() for uri in (tag.iceberg, tag.iceberg_dlq) if uri)
        self._pinned = {_key_of(uri, table.uid) for uri in named}
        self._table = table
        self._folder = table.folder
        self._before_ms = now_ms - grace_ms
        self._moved_long_ago = table.moved_ms <= self._before_ms
        self._staged_ms = min(table.committed_ms - grace_ms, self._before_ms)
        self._logged_ms = now_ms - max(grace_ms, DELTA_LOG_KEPT_MS, kept.age_ms)
        self._foreign_ms = now_ms - max(grace_ms, FOREIGN_DATA_KEPT_MS)

    async def find(self) -> list[ObjectInfo]:
        found = [info async for info in self._finished()]
        found += await self._elsewhere()
        for part, pointer in zip(PARTS, (self._table.main, self._table.dlq), strict=True):
            if pointer:
                folder = f"{self._folder}/{part}"
                current = await self._read_metadata(self._key(pointer))
                over = await self._metadata_of(folder, pointer, current)
                found += over
                found += await self._data_of(folder, current, {info.key for info in over})
                found += await self._foreign_data(folder)
                found += [info async for info in self._half_commits(folder)]
                found += await self._old_commits(folder)
        return found

    async def _finished(self) -> AsyncIterator[ObjectInfo]:
        """Yield plan objects of finished jobs, and results that no repair starts from any more."""
        async for info in self._old(f"{self._folder}/jobs/"):
            plan, result = _PLAN.search(info.key), _RESULT.search(info.key)
            job = int((plan or result or ["", "-1"])[1])
            last = self._table.committed - (RESULTS_KEPT if result else 0)
            if 0 <= job <= last and info.key != self._table.result:
                yield info

    async def _elsewhere(self) -> list[ObjectInfo]:
        """Return the files of folders that are not the table's: of rebuilds that were lost, and of
        the folders before the present one. Repairs of the Delta logs need the last results."""
        found: list[ObjectInfo] = []
        if not self._moved_long_ago:
            return found
        table = self._table
        pinned = tuple(f"{key.partition('/_iceberg/')[0]}/" for key in self._pinned)
        async for info in self._old(f"tables/{table.uid}/"):
            if info.key.startswith(pinned):
                continue
            if info.key.startswith(f"{self._folder}/") and table.moved_job:
                continue
            match = _REBUILT.match(info.key)
            if int(match[1]) > table.committed if match else not table.moved_job:
                continue
            result = _RESULT.search(info.key)
            needed = result and int(result[1]) > table.committed - RESULTS_KEPT
            if not needed and info.key != table.result and len(found) < FILES_MAX:
                found.append(info)
        return found

    async def _half_commits(self, folder: str) -> AsyncIterator[ObjectInfo]:
        """Yield temporary files of Delta log commits whose writers died."""
        async for info in self._old(f"{folder}/_delta_log/"):
            if _HALF_COMMIT.search(info.key):
                yield info

    async def _old_commits(self, folder: str) -> list[ObjectInfo]:
        """Return Delta commits and checkpoints before a checkpoint that readers have had for long."""
        listed = [info async for info in self._store.list(f"{folder}/_delta_log/")]
        first = max(
            [
                int(match[1])
                for info in listed
                if info.modified_ms <= self._logged_ms
                and (match := _DELTA_CHECKPOINT.search(info.key))
            ],
            default=0,
        )
        over = [
            info
            for info in listed
            if (match := _DELTA_COMMIT.search(info.key)) and int(match[1]) < first
        ]
        return over[:FILES_MAX]

    # --- Iceberg metadata -------------------------------------------------------------------------

    async def _metadata_of(self, folder: str, pointer: str, current: _Metadata) -> list[ObjectInfo]:
        log = [self._key(older.metadata_file) for older in current.metadata_log]
        naming = {self._key(pointer), *log[-LOG_NAMING:], *self._pinned}
        keep = {*naming, *log}
        newest = -1  # newest version with an old file
        async for info in self._old(f"{folder}/_iceberg/"):
            match = _METADATA.search(info.key)
            newest = max(newest, int(match[1])) if match else newest
        over: list[ObjectInfo] = []
        manifests: dict[str, ObjectInfo] = {}
        readable: list[str] = []  # metadata that may have readers
        async for info in self._store.list(f"{folder}/_iceberg/"):
            match = _METADATA.search(info.key)
            staged_long_ago = info.modified_ms <= self._staged_ms
            young = not staged_long_ago or bool(match and int(match[1]) > newest - 2)
            if match and (info.key in naming or young):
                readable.append(info.key)
            elif info.key in keep:
                continue
            elif match and len(over) < FILES_MAX:
                over.append(info)
            elif info.key.endswith(".avro") and staged_long_ago and len(manifests) < FILES_MAX:
                manifests[info.key.rpartition("/")[2]] = info
        await self._leave_named(manifests, [self._key(pointer), *readable])
        return over + list(manifests.values())

    async def _leave_named(self, manifests: dict[str, ObjectInfo], readable: Iterable[str]) -> None:
        """Remove from `manifests` the lists that metadata files name, and the manifests that those
        lists name."""
        looked_at: set[str] = set()
        for key in readable:
            if not manifests:
                return
            for snapshot in (await self._read_metadata(key)).snapshots:
                listed = self._key(snapshot.manifest_list)
                manifests.pop(listed.rpartition("/")[2], None)
                if listed not in looked_at and manifests:
                    looked_at.add(listed)
                    for name in await self._manifests_in(listed):
                        manifests.pop(name.rpartition("/")[2], None)

    async def _read_metadata(self, key: str) -> _Metadata:
        return msgspec.json.decode(await self._store.get(key), type=_Metadata)

    async def _manifests_in(self, key: str) -> list[str]:
        """Return the keys of the manifests that a manifest list names."""
        data = await self._store.get(key)
        folder = key.rpartition("/")[0]
        names = [
            name
            for block in await asyncio.to_thread(_blocks, data)
            for name in _MANIFEST.findall(block)
        ]
        return [f"{folder}/{name.decode()}" for name in names]

    # --- data files -------------------------------------------------------------------------------

    async def _data_of(self, folder: str, current: _Metadata, over: set[str]) -> list[ObjectInfo]:
        """Return data files of committed jobs that no manifest names but those in `over`.

        There may be very many, so the scan keeps one number per file.
        """
        unnamed = {number async for _, number in self._data_files(folder)}
        snapshot = next(
            (each for each in current.snapshots if each.snapshot_id == current.current_snapshot_id),
            None,
        )
        if not unnamed or (snapshot is None and current.snapshots):
            return []
        named = 0
        if snapshot is not None:
            for key in await self._manifests_in(self._key(snapshot.manifest_list)):
                named += await asyncio.to_thread(_leave_named, unnamed, await self._store.get(key))
            if named < int(snapshot.summary.get("total-data-files", "0")):
                raise CorruptData(
                    f"{folder}: the manifests name {named} of "
                    f"{snapshot.summary['total-data-files']} data files"
                )
        if unnamed:
            await self._leave_readable(folder, unnamed, over)
        found: list[ObjectInfo] = []
        if unnamed:
            async for info, number in self._data_files(folder):
                if number in unnamed:
                    found.append(info)
                    if len(found) == FILES_MAX:
                        break
        return found

    async def _leave_readable(self, folder: str, unnamed: set[int], over: set[str]) -> None:
        """Remove the files that the manifests of older snapshots name."""
        async for info in self._store.list(f"{folder}/_iceberg/"):
            name = info.key.rpartition("/")[2]
            is_manifest = name.endswith(".avro") and not name.startswith("snap-")
            if is_manifest and info.key not in over and unnamed:
                await asyncio.to_thread(_leave_named, unnamed, await self._store.get(info.key))

    async def _foreign_data(self, folder: str) -> list[ObjectInfo]:
        """Return data files that no job wrote."""
        found: list[ObjectInfo] = []
        async for info in self._store.list(f"{folder}/data/"):
            is_job_file = _DATA.fullmatch(info.key.rpartition("/")[2].encode())
            if not is_job_file and info.modified_ms <= self._foreign_ms and len(found) < FILES_MAX:
                found.append(info)
        return found

    async def _data_files(self, folder: str) -> AsyncIterator[tuple[ObjectInfo, int]]:
        """Yield old files of committed jobs, with the random number in their names."""
        async for info in self._old(f"{folder}/data/"):
            match = _DATA.fullmatch(info.key.rpartition("/")[2].encode())
            if match and int(match[1]) <= self._table.committed:
                yield info, int(match[2], 16)

    async def _old(self, folder: str) -> AsyncIterator[ObjectInfo]:
        async for info in self._store.list(folder):
            if info.modified_ms <= self._before_ms:
                yield info

    def _key(self, uri: str) -> str:
        """Return the object key of a URI. Raises CorruptData for a URI outside the table."""
        _, found, name = uri.rpartition(f"/{self._folder}/")
        if not found:
            raise CorruptData(f"{uri} is not below {self._folder}")
        return f"{self._folder}/{name}"


def _key_of(uri: str, table: int) -> str:
    """Return the object key of a URI in any folder of a table."""
    _, found, name = uri.partition(f"/tables/{table}/")
    if not found:
        raise CorruptData(f"{uri} is not below tables/{table}")
    return f"tables/{table}/{name}"


def _leave_named(unnamed: set[int], manifest: bytes) -> int:
    """Remove the data files that a manifest names, and return their count."""
    named = 0
    for block in blocks(manifest):
        for _, random in _DATA.findall(block):
            named += 1
            unnamed.discard(int(random, 16))
    return named


def _blocks(data: bytes) -> list[bytes]:
    return list(blocks(data))
