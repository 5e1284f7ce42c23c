"""What lost jobs and old metadata left under `tables/`: files that no table refers to, nor can ever again.

The layout is that of docs/formats/tables.md. Nothing is known of a file but its name, its age and who names it, so all rests on these:

* A table's rows are only ever added to: the current Iceberg snapshot names every data file that any snapshot, and the Delta log, names.
* A file's job is in its name. What belongs to a job behind the last committed one may still be committed, and is not looked at.
* Metadata is staged on a plan of its job, and committed only while that job is open: what was staged before the last commit, and is not
  what it committed, is lost for ever. Clocks may differ by the grace.
* A metadata file was superseded before any file of two versions later was written. One that was, for longer than the grace, and is not in
  the log of the current one, has no readers any more; manifests live as long as any metadata file that names them.

A table whose files cannot be understood is left alone. The logs of Delta are its own, and the results of jobs are kept: repairs begin there.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable

import msgspec

from polynya.base.errors import CorruptData
from polynya.cold.groups import Groups
from polynya.objectstore.api import NotFound, ObjectInfo, ObjectStore
from polynya.stream.rules.tables import Table
from polynya.wire.avro import blocks

log = logging.getLogger("polynya.cold")

FILES_MAX = 10_000  # of one kind and part in one sweep; the next finds more
PARTS = ("main", "dlq")

_DATA = re.compile(rb"(\d{12})-[0-9a-f]{32}-\d{5,}-([0-9a-f]{16})\.parquet")
_PLAN = re.compile(r"/jobs/(\d{12})/[0-9a-f]{32}\.\d+\.plan\.json")
_METADATA = re.compile(r"/(\d{5,})-[0-9a-f-]{36}\.metadata\.json")
_MANIFEST = re.compile(rb"[0-9A-Za-z_-]+\.avro")
_HALF_COMMIT = re.compile(r"/_commit_[0-9a-f-]+\.json\.tmp|/\d{20}\.json#\d+")


class _Snapshot(msgspec.Struct, rename="kebab"):
    snapshot_id: int
    manifest_list: str
    summary: dict[str, str] = {}


class _Older(msgspec.Struct, rename="kebab"):
    metadata_file: str


class _Metadata(msgspec.Struct, rename="kebab"):
    """What matters here of an Iceberg metadata file."""

    current_snapshot_id: int | None = None
    snapshots: list[_Snapshot] = []
    metadata_log: list[_Older] = []


class TableSweeper:
    """Of the core that leads the meta group; on others there are no tables."""

    def __init__(self, groups: Groups, store: ObjectStore) -> None:
        self._groups = groups
        self._store = store

    async def find(self, grace_ms: int) -> list[ObjectInfo]:
        """Files that may go. Raises StoreUnavailable."""
        found: list[ObjectInfo] = []
        for machine in self._groups.machines().values():
            for table in list(machine.tables.values()):
                if table.committed:
                    found += await self._of_table(msgspec.structs.replace(table), grace_ms)
        return found

    async def _of_table(self, table: Table, grace_ms: int) -> list[ObjectInfo]:
        """`table` is as it was before anything is listed: what comes to be meanwhile is younger."""
        sweep = _TableSweep(self._store, table, self._groups.now_ms() - grace_ms, table.committed_ms - grace_ms)
        try:
            return await sweep.find()
        except (CorruptData, NotFound, msgspec.DecodeError, UnicodeDecodeError) as fault:
            log.warning("the files of a table are left alone", extra={"table": table.name, "error": f"{type(fault).__name__}: {fault}"})
            return []


class _TableSweep:
    """One look at one table. Files written after `before_ms` are young; metadata that was staged after `staged_ms` may be young."""

    def __init__(self, store: ObjectStore, table: Table, before_ms: int, staged_ms: int) -> None:
        self._store = store
        self._table = table
        self._folder = f"tables/{table.uid}"
        self._before_ms = before_ms
        self._staged_ms = min(staged_ms, before_ms)

    async def find(self) -> list[ObjectInfo]:
        found = [info async for info in self._plans()]
        for part, pointer in zip(PARTS, (self._table.main, self._table.dlq), strict=True):
            if pointer:
                folder = f"{self._folder}/{part}"
                current = await self._read_metadata(self._key(pointer))
                found += await self._metadata_of(folder, pointer, current)
                found += await self._data_of(folder, current)
                found += [info async for info in self._half_commits(folder)]
        return found

    async def _plans(self) -> AsyncIterator[ObjectInfo]:
        """Plan objects of jobs that are over. Their results stay."""
        async for info in self._old(f"{self._folder}/jobs/"):
            match = _PLAN.search(info.key)
            if match and int(match[1]) <= self._table.committed:
                yield info

    async def _half_commits(self, folder: str) -> AsyncIterator[ObjectInfo]:
        """Temporary files of commits to Delta's log whose writers died."""
        async for info in self._old(f"{folder}/_delta_log/"):
            if _HALF_COMMIT.search(info.key):
                yield info

    # --- Iceberg's metadata ----------------------------------------------------------------------------------------------------

    async def _metadata_of(self, folder: str, pointer: str, current: _Metadata) -> list[ObjectInfo]:
        keep = {self._key(pointer), *(self._key(older.metadata_file) for older in current.metadata_log)}
        newest = -1  # version of which a file is old
        async for info in self._old(f"{folder}/_iceberg/"):
            match = _METADATA.search(info.key)
            newest = max(newest, int(match[1])) if match else newest
        over: list[ObjectInfo] = []
        manifests: dict[str, ObjectInfo] = {}
        readable: list[str] = []  # metadata that somebody may be at
        async for info in self._store.list(f"{folder}/_iceberg/"):
            match = _METADATA.search(info.key)
            staged_long_ago = info.modified_ms <= self._staged_ms
            if match and (info.key in keep or not staged_long_ago or int(match[1]) > newest - 2):
                readable.append(info.key)
            elif match and len(over) < FILES_MAX:
                over.append(info)
            elif info.key.endswith(".avro") and staged_long_ago and len(manifests) < FILES_MAX:
                manifests[info.key.rpartition("/")[2]] = info
        await self._leave_named(manifests, [self._key(pointer), *readable])
        return over + list(manifests.values())

    async def _leave_named(self, manifests: dict[str, ObjectInfo], readable: Iterable[str]) -> None:
        """Take out of `manifests` what metadata files name, and what the lists that they name do."""
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
        """Keys of the manifests that a manifest list names."""
        data = await self._store.get(key)
        folder = key.rpartition("/")[0]
        names = [name for block in await asyncio.to_thread(_blocks, data) for name in _MANIFEST.findall(block)]
        return [f"{folder}/{name.decode()}" for name in names]

    # --- data files ------------------------------------------------------------------------------------------------------------

    async def _data_of(self, folder: str, current: _Metadata) -> list[ObjectInfo]:
        """Those of committed jobs that the current snapshot does not name. There may be very many: of each only a number is kept."""
        unnamed = {number async for _, number in self._data_files(folder)}
        snapshot = next((each for each in current.snapshots if each.snapshot_id == current.current_snapshot_id), None)
        if not unnamed or (snapshot is None and current.snapshots):
            return []
        named = 0
        if snapshot is not None:
            for key in await self._manifests_in(self._key(snapshot.manifest_list)):
                named += await asyncio.to_thread(_leave_named, unnamed, await self._store.get(key))
            if named < int(snapshot.summary.get("total-data-files", "0")):
                raise CorruptData(f"{folder}: the manifests name {named} of {snapshot.summary['total-data-files']} data files")
        found: list[ObjectInfo] = []
        if unnamed:
            async for info, number in self._data_files(folder):
                if number in unnamed:
                    found.append(info)
                    if len(found) == FILES_MAX:
                        break
        return found

    async def _data_files(self, folder: str) -> AsyncIterator[tuple[ObjectInfo, int]]:
        """Old ones of committed jobs, with the random number in their name."""
        async for info in self._old(f"{folder}/data/"):
            match = _DATA.fullmatch(info.key.rpartition("/")[2].encode())
            if match and int(match[1]) <= self._table.committed:
                yield info, int(match[2], 16)

    async def _old(self, folder: str) -> AsyncIterator[ObjectInfo]:
        async for info in self._store.list(folder):
            if info.modified_ms <= self._before_ms:
                yield info

    def _key(self, uri: str) -> str:
        """Raises CorruptData for what is not the table's."""
        _, found, name = uri.rpartition(f"/{self._folder}/")
        if not found:
            raise CorruptData(f"{uri} is not below {self._folder}")
        return f"{self._folder}/{name}"


def _leave_named(unnamed: set[int], manifest: bytes) -> int:
    """Take out the data files that a manifest names; how many it names."""
    named = 0
    for block in blocks(manifest):
        for _, random in _DATA.findall(block):
            named += 1
            unnamed.discard(int(random, 16))
    return named


def _blocks(data: bytes) -> list[bytes]:
    return list(blocks(data))
