"""A data folder that begins with a backup: the groups' snapshots and hot payload, where a node's start finds them, and last its identity.

What is interrupted leaves a folder without an identity, which no node starts on and which the next restore begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from google_crc32c import value as crc32c

from polynya.backup.group_file import GroupFile, machine_of, parse
from polynya.backup.manifest import CopiedObject, FileEntry, Manifest, decode_rows
from polynya.backup.shelf import Reading, parts_of
from polynya.base.errors import ConfigError, CorruptData, PolynyaError
from polynya.node import birth as births
from polynya.node.birth import Birth
from polynya.node.config import Config, cores_default
from polynya.node.core import KIND_COPY, copy_of
from polynya.node.folder import lock_folder
from polynya.node.storage import journal_id_of
from polynya.objectstore import NotFound, ObjectStore, open_store, put_again, read_root
from polynya.stream.machine import Machine
from polynya.stream.rebirth import Note, Survey, reborn
from polynya.stream.snapshots import read_image, write_image
from polynya.wal import Journal, SnapshotStore

TERM, INDEX = 1, 1  # what the logs of the new history begin behind: the same on all nodes
COPY_BYTES = 4 << 20  # of payload in one write
COPIES = 4  # objects at the same time


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What the folders are to begin with. `cluster_id`: of the lost cluster, kept by a node by itself."""

    cluster_id: str
    history: int
    groups: int


class Target:
    """The data folder of one node, taken for a restore. Raises ConfigError when it is in use, or has anything in it."""

    def __init__(self, config: Config, origin: Origin, held: contextlib.ExitStack) -> None:
        if config.groups not in (None, origin.groups):
            raise ConfigError(
                f"groups: the backup has {origin.groups} groups, and a stream's group is part of its identity; leave the setting out. To have other "
                "groups, start a new cluster and copy the streams ('polynya import')"
            )
        self.config = config
        self.folder = Path(config.data)
        lock_folder(config.data, held)
        self._clear()
        groups = origin.groups
        self.birth = Birth(
            cluster_id=config.cluster.id or origin.cluster_id,
            node=config.cluster.node,
            nodes=tuple(sorted(node.id for node in config.cluster.nodes)),
            history=origin.history,
            groups=groups,
            cores=config.cores or min(cores_default(), groups),
            created_ms=time.time_ns() // 1_000_000,
        )
        self._cores: dict[int, tuple[Journal, SnapshotStore]] = {}

    def _clear(self) -> None:
        """Only what a restore has begun is taken away."""
        folder, mark = self.folder, self.folder / births.RESTORING
        ours = frozenset[str]()
        if (folder / births.FILE).exists():
            raise ConfigError(f"data: {folder} is the data of a node; a restore needs an empty or a new folder")
        if mark.exists():
            for core in folder.glob("core-*"):
                shutil.rmtree(core)
            ours = frozenset((births.RESTORING, self.config.objects_path.name))  # objects that are there are not copied again
        strangers = births.strangers_in(folder, ours)
        if strangers:
            raise ConfigError(f"data: {folder} is not empty ({', '.join(strangers[:5])}); a restore needs an empty or a new folder")
        mark.touch()
        births.sync_folder(folder)

    def write(self, number: int, machine: Machine) -> None:
        """A group's state, with its payload; its places are those of this node's journal from now on. For a thread."""
        journal, snapshots = self._core(number % self.birth.cores)
        size = 0
        for _, hot in machine.flush_candidates():
            for batch in hot:
                batch.place = journal.stage(number, 0, 0, KIND_COPY, copy_of(batch))
                size += len(batch.payload)
                if size >= COPY_BYTES:
                    _sync(journal)
                    size = 0
        _sync(journal)
        snapshots.write(number, TERM, INDEX, machine.snapshot())

    def finish(self) -> None:
        """From here on it is a node's."""
        for core in range(self.birth.cores):
            self._core(core)[0].close()
        births.write_json(self.folder / births.FILE, self.birth)
        (self.folder / births.RESTORING).unlink()
        births.sync_folder(self.folder)
        births.sync_folder(self.folder.parent)

    def _core(self, core: int) -> tuple[Journal, SnapshotStore]:
        if core not in self._cores:
            folder = self.folder / f"core-{core}"
            folder.mkdir(exist_ok=True)
            journal = Journal.open(folder / "journal", journal_id=journal_id_of(self.birth.cluster_id, core))
            self._cores[core] = (journal, SnapshotStore(folder / "snapshots"))
        return self._cores[core]


class Restored(msgspec.Struct):
    """What was done; only growing. `notes`: what streams have lost."""

    doing: str = "reading"
    groups: int = 0
    streams: int = 0
    objects: int = 0
    bytes: int = 0
    total: int = 0
    total_bytes: int = 0
    notes: list[Note] = []


class Restorer:
    """From a backup into the data folders of some nodes, which share an object store, or have none."""

    def __init__(self, shelf: Reading, manifest: Manifest, targets: Sequence[Target], store: ObjectStore | None) -> None:
        self.done = Restored()
        self._shelf, self._manifest, self._targets, self._store = shelf, manifest, targets, store
        self._old, self._new = manifest.cluster, targets[0].birth.cluster_id
        self._survey = Survey(self._renamed)

    async def run(self) -> Restored:
        """Raises CorruptData, ConfigError, StoreUnavailable; what was begun is begun anew by the next restore."""
        manifest = self._manifest
        if manifest.objects.count and self._store is None:
            raise ConfigError(
                "cold.backend: the backup has objects, and a node without an object store cannot have them; choose another backend"
            )
        await self._look_around()
        if self._store is not None:
            await self._copy_objects(self._store)
        for entry in manifest.files:
            self.done.doing = f"group {entry.group}"
            file = await self._file(entry)
            await asyncio.to_thread(self._write, file)
            self.done.groups += 1
        for target in self._targets:
            await asyncio.to_thread(target.finish)
        return self.done

    def _renamed(self, key: str) -> str:
        """Packs lie under the id of their cluster."""
        return self._new + key.removeprefix(self._old) if key.startswith(f"{self._old}/") else key

    async def _look_around(self) -> None:
        """What the groups say of each other, before anything is written."""
        for entry in self._manifest.files:
            self._survey.add(read_image((await self._file(entry)).state))
            self.done.doing = f"looking at group {entry.group}"
        if self._survey.forks:
            for entry in self._manifest.files:
                self._survey.add_origins(read_image((await self._file(entry)).state))

    async def _file(self, entry: FileEntry) -> GroupFile:
        data = b"".join([part async for part in parts_of(self._shelf, entry.name, entry.size, entry.crc)])
        try:
            return await asyncio.to_thread(parse, data, entry.group)
        except CorruptData as fault:
            raise CorruptData(f"{entry.name} is damaged: {fault}") from None

    def _write(self, file: GroupFile) -> None:
        image = read_image(file.state)
        self.done.notes += reborn(image, self._survey, now_ms=file.header.log_ms)
        for target in self._targets:
            target.write(file.header.group, machine_of(msgspec.structs.replace(file, state=write_image(image))))
        self.done.streams += len(image.streams)

    # --- objects ---------------------------------------------------------------------------------------------------------------

    async def _copy_objects(self, store: ObjectStore) -> None:
        self.done.doing = "objects"
        entry = self._manifest.objects
        self.done.total, self.done.total_bytes = entry.count, entry.bytes
        async for part in parts_of(self._shelf, entry.name, entry.size, entry.crc):
            todo = iter(decode_rows(part))

            async def work(todo: Iterator[CopiedObject] = todo) -> None:
                for row in todo:
                    await self._copy(store, row)

            try:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(COPIES):
                        tasks.create_task(work())
            except* PolynyaError as failed:
                raise failed.exceptions[0] from None

    async def _copy(self, store: ObjectStore, row: CopiedObject) -> None:
        try:
            data = await self._shelf.get(f"objects/{row.key}")
        except (NotFound, ValueError):
            raise CorruptData(f"objects/{row.key} is missing") from None
        if len(data) != row.size or crc32c(data) != row.crc:
            raise CorruptData(f"objects/{row.key} is damaged: its checksum is wrong")
        await put_again(store, self._renamed(row.key), data)
        self.done.objects += 1
        self.done.bytes += row.size


def open_shared(configs: Sequence[Config]) -> ObjectStore | None:
    """The object store that these nodes share. Raises ConfigError, StoreUnavailable."""
    if any(config.store != configs[0].store for config in configs):
        raise ConfigError("cold: the nodes of a cluster share one object store, and these files name several (cold.root)")
    return open_store(configs[0].store)


async def check_root(store: ObjectStore, birth: Birth, *, take_over: bool) -> None:
    """Whether the restored nodes may have this root. Raises ConfigError, StoreUnavailable."""
    found = await read_root(store)
    if found is None:
        return
    if found.cluster_id != birth.cluster_id:
        raise ConfigError(f"cold: the object store's root belongs to another cluster ({found.cluster_id}); choose another root or bucket")
    if found.history > birth.history:
        raise ConfigError(
            f"cold: the object store's root is used by a later history ({found.history}) than what would be restored ({birth.history}): it was restored "
            "before; choose another root"
        )
    if found.start_id and not take_over:
        raise ConfigError(
            "cold: the object store's root belongs to the cluster that was backed up, and that has not stopped in order. If it is gone for good, "
            "--take-over says so: its nodes can never use this root again. Else choose another root"
        )


def _sync(journal: Journal) -> None:
    batch = journal.take()
    if batch is not None:
        journal.write(batch)
        journal.synced(batch)
