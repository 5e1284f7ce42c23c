"""Create data folders from a restored state: the groups' snapshots and hot payload, and last the
node's identity.

An interrupted restore leaves a folder without an identity. No node starts on it, and the next
restore starts over.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec
from google_crc32c import value as crc32c

from polynya.backup import copies
from polynya.backup.copies import CompleteMark
from polynya.backup.group_file import Header
from polynya.backup.progress import patiently
from polynya.base.errors import ConfigError, CorruptData
from polynya.base.names import spelled_name
from polynya.cluster.map_cache import initial_map
from polynya.config import node_identity as identities
from polynya.config.model import Config
from polynya.config.node_identity import NodeIdentity
from polynya.engine.turns import KIND_COPY, copy_of
from polynya.files import sync_folder
from polynya.objectstore import NotFound, ObjectStore, StoreSettings, open_store, read_root
from polynya.stream.features.pages.eviction import where_of, whole_of
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.tables.state import Table
from polynya.stream.machine import Machine
from polynya.stream.snapshots.encode import Image, machine_from, snapshot_of, write_image
from polynya.stream.snapshots.restore_history import StreamLoss, Survey, reborn
from polynya.stream.snapshots.store_recovery import whole_again
from polynya.stream.snapshots.torn_transactions import CommitSurvey
from polynya.system.data_dir import lock_folder
from polynya.wal import Journal, SnapshotStore

TERM, INDEX = 1, 1  # of every group's snapshot in the new history; the same on all nodes
COPY_BYTES = 4 << 20  # of payload in one write
TORN_NAMED = 20  # transactions that may have lost a part
GROUPS_NAMED = 8


class RestoreOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a restore. `cluster_id`: the lost cluster's id, which a standalone node
    keeps."""

    cluster_id: str
    history: int
    groups: int


class RestoreTarget:
    """The data folder of one node, locked for a restore. Raises ConfigError when it is in use or
    not empty."""

    def __init__(self, config: Config, origin: RestoreOrigin, held: contextlib.ExitStack) -> None:
        if config.groups not in (None, origin.groups):
            raise ConfigError(
                f"groups: the backup has {origin.groups} groups, and a stream's group is part of "
                "its identity; leave the setting out. To have other "
                "groups, start a new cluster and copy the streams ('polynya import')"
            )
        if config.cluster.join:
            raise ConfigError(
                f"cluster.join of node {config.cluster.node}: a restore creates the initial nodes "
                "of a cluster, which do not join one: remove join, and "
                "list all of them in [[cluster.nodes]], identically in each file"
            )
        self.config = config
        self.folder = Path(config.data)
        lock_folder(config.data, held)
        self._is_begun = self._look()
        self.identity = identities.new_birth(
            config, config.cluster.id or origin.cluster_id, origin.groups, origin.history
        )
        self._placed = initial_map(self.identity, config.cluster).groups
        self._cores: dict[int, tuple[Journal, SnapshotStore]] = {}

    def _look(self) -> bool:
        """Return True if an earlier restore has begun in the folder. Nothing is changed, since this
        restore may still be rejected."""
        folder, is_begun, ours = (
            self.folder,
            (self.folder / identities.RESTORING).exists(),
            frozenset[str](),
        )
        if (folder / identities.FILE).exists():
            raise ConfigError(
                f"data: {folder} holds the data of a node; a restore needs an empty or a new folder"
            )
        if is_begun:
            ours = frozenset((identities.RESTORING, *(core.name for core in folder.glob("core-*"))))
        if self.config.cold.backend == "local":
            ours |= {self.config.objects_path.name}  # `check_root` judges it
        strangers = identities.strangers_in(folder, ours)
        if strangers:
            raise ConfigError(
                f"data: {folder} is not empty ({', '.join(strangers[:5])}); a restore needs an "
                "empty or a new folder"
            )
        return is_begun

    def begin(self) -> None:
        """Mark the folder, so that no node starts on it until `finish`. Only the files of an
        earlier restore are deleted."""
        for core in self.folder.glob("core-*") if self._is_begun else ():
            shutil.rmtree(core)
        (self.folder / identities.RESTORING).touch()
        sync_folder(self.folder)

    def write(self, number: int, machine: Machine) -> None:
        """Write a group's state and payload if this node gets a replica. Runs in a thread.

        The positions in the machine become positions in this node's journal. A read replica gets
        everything from the other nodes."""
        if self.config.cluster.joins:
            return
        if (
            number in self._placed
            and number != META_GROUP
            and self.identity.node not in self._placed[number].voters
        ):
            return
        journal, snapshots = self._core(number % self.identity.cores)
        size = 0
        for _, hot in machine.directory.flush_candidates():
            for batch in hot:
                batch.position = journal.stage(number, 0, 0, KIND_COPY, copy_of(batch))
                size += len(batch.payload)
                if size >= COPY_BYTES:
                    _sync(journal)
                    size = 0
        _sync(journal)
        snapshots.write(number, TERM, INDEX, snapshot_of(machine))

    def finish(self) -> None:
        """Write the identity; a node can then start on the folder."""
        for core in range(self.identity.cores):
            self._core(core)[0].close()
        identities.write_json(self.folder / identities.FILE, self.identity)
        (self.folder / identities.RESTORING).unlink()
        sync_folder(self.folder)
        sync_folder(self.folder.parent)

    def _core(self, core: int) -> tuple[Journal, SnapshotStore]:
        if core not in self._cores:
            folder = self.folder / f"core-{core}"
            folder.mkdir(exist_ok=True)
            journal = Journal.open(
                folder / "journal",
                journal_id=identities.journal_id_of(self.identity.cluster_id, core),
            )
            self._cores[core] = (journal, SnapshotStore(folder / "snapshots"))
        return self._cores[core]


class RestoreResult(msgspec.Struct):
    """The progress and the result of a restore; counters only grow. `notes`: losses by stream;
    `warnings`: other differences."""

    doing: str = "reading"
    groups: int = 0
    streams: int = 0
    objects: int = 0
    bytes: int = 0
    total: int = 0
    total_bytes: int = 0
    notes: list[StreamLoss] = []
    warnings: list[str] = []


class RestoredState(msgspec.Struct, frozen=True):
    """The restored state of a group, and its hot payload by position."""

    image: Image
    hot: Mapping[int, bytes]
    log_ms: int
    term: int = 0


class States(Protocol):
    """The source of the restored states. All methods may raise CorruptData, ConfigError,
    StoreUnavailable. `has_whole_transactions`: no state has a part of one alone."""

    @property
    def has_whole_transactions(self) -> bool: ...

    async def state(self, group: int) -> RestoredState:
        """Return a new copy of the state, which the caller may change. It may be called several
        times."""
        ...

    async def objects(self, store: ObjectStore, done: RestoreResult) -> None:
        """Copy the objects that the states refer to into the store, unless they are there."""
        ...


class Restorer:
    """Restores the data folders of nodes that share one object store, or have none."""

    def __init__(
        self,
        states: States,
        targets: Sequence[RestoreTarget],
        store: ObjectStore | None,
        rename: Callable[[str], str],
    ) -> None:
        """`rename` maps a pack's key to its key in the store."""
        self.done = RestoreResult()
        self._states, self._targets, self._store = states, targets, store
        self._identity = targets[0].identity
        self._survey = Survey(rename)

    async def run(self) -> RestoreResult:
        """Restore all folders. Raises CorruptData, ConfigError, StoreUnavailable; the next restore
        then starts over."""
        groups, commits = range(self._identity.groups + 1), CommitSurvey()
        for target in self._targets:
            await asyncio.to_thread(target.begin)
        for group in groups:  # references between groups, before anything is written
            self.done.doing = f"looking at group {group}"
            state = await self._states.state(group)
            self._survey.add(state.image, state.term)
            commits.add(state.image, state.log_ms)
        if not self._states.has_whole_transactions:
            self._name_torn(commits)
        for group in groups if self._survey.forks else ():
            self._survey.add_origins((await self._states.state(group)).image)
        if self._store is not None:
            self.done.doing = "objects"
            await self._states.objects(self._store, self.done)
        self._survey.kept = await self._tables_that_go_on()
        for group in groups:
            self.done.doing = f"group {group}"
            await self._one(group)
            self.done.groups += 1
        if self._store is not None:
            store, whole = (
                self._store,
                CompleteMark(
                    self._identity.cluster_id, self._identity.history, self._identity.groups
                ),
            )
            await patiently(lambda: copies.mark(store, whole))
        for target in self._targets:
            await asyncio.to_thread(target.finish)
        return self.done

    def _name_torn(self, commits: CommitSurvey) -> None:
        """Warn of the transactions of which a part may be lost, the last ones by name."""
        torn = commits.torn()
        for each in islice(torn, TORN_NAMED):
            self.done.warnings.append(
                f"the transaction {each.number} of {each.id or 'an unknown id'} (producer "
                f"{each.producer}) committed at {_time(each.decided_ms)}, after the copies of "
                f"the groups {', '.join(map(str, each.groups[:GROUPS_NAMED]))}: if it wrote there, "
                "that part may be lost"
            )
        more = sum(1 for _ in torn)
        if more:
            self.done.warnings.append(f"{more} earlier transactions may have lost parts, too")

    async def _tables_that_go_on(self) -> frozenset[int]:
        """Return all tables, or none with warnings. Tables that share streams depend on each
        other's rows."""
        tables = self._survey.tables
        why = await self._against(tables.values()) if tables else ""
        if not why:
            return frozenset(tables)
        self.done.warnings += [
            f"the table {table.name} starts over ({why}); its old rows stay under {table.folder}, "
            "as a Delta table"
            for table in tables.values()
        ]
        return frozenset()

    async def _against(self, tables: Iterable[Table]) -> str:
        """Return the reason why the tables cannot continue with the rows that they have, or ""."""
        if self._store is None or not self._survey.agree_on_tables():
            return "its groups were copied while it received rows"
        base = address_of(self._targets[0].config.store)
        for table in tables:
            for pointer in (table.main, table.dlq):
                if pointer and not pointer.startswith(base):
                    return "its files are in another object store"
                if pointer and not await _is_there(self._store, pointer.removeprefix(base)):
                    return "its metadata is missing from the object store"
            if await self._is_ahead(table):
                return "it has rows of later records, which are lost"
        return ""

    async def _is_ahead(self, table: Table) -> bool:
        """Return True if a result exists of a job later than the last one known to be committed."""
        assert self._store is not None
        folder = f"{table.folder}/jobs/"
        async for info in self._store.list(folder):
            job = info.key.removeprefix(folder).partition("/")[0]
            if info.key.endswith(".result.json") and (
                not job.isdigit() or int(job) > table.committed
            ):
                return True
        return False

    async def _one(self, group: int) -> None:
        state = await self._states.state(group)
        await self._inflate(state.image)
        self.done.notes += reborn(state.image, self._survey, now_ms=state.log_ms)
        self.done.streams += len(state.image.streams)
        body = await asyncio.to_thread(self._write, group, state)
        if self._store is not None:
            header = Header(group, TERM, INDEX, state.log_ms, len(body), int(crc32c(body)), 0)
            store, cluster_history = (
                self._store,
                (self._identity.cluster_id, self._identity.history),
            )
            await patiently(lambda: copies.write(store, cluster_history, header, [body]))

    async def _inflate(self, image: Image) -> None:
        """Load the state of evicted streams that has data from other groups or from packs, which
        only a full state can hold.

        Their share of the block is not released: a small object stays."""
        keys = {held.number: self._survey.rename(key) for key, held in image.held.items()}
        for number, view in enumerate(image.streams):
            where = where_of(view)
            if where is None or (view.cold is None and view.uid not in self._survey.forks):
                continue
            if self._store is None:
                raise ConfigError(
                    "cold.backend: streams of this backup are in the object store; the restored "
                    "node needs one"
                )
            try:
                data = await self._store.get_range(keys[where.pack], where.offset, where.length)
            except (NotFound, ValueError) as fault:
                raise CorruptData(
                    f"the state of the stream {spelled_name(view.name)} is not in the object "
                    f"store: {fault}"
                ) from None
            stream = image.streams[number] = whole_of(view, data)
            whole_again(image, stream, view)

    def _write(self, group: int, state: RestoredState) -> bytes:
        """Write a group's state to every node, and return it."""
        body = write_image(state.image)
        for target in self._targets:
            target.write(group, machine_from(body, lambda position, uid: state.hot[position]))
        return body


def address_of(store: StoreSettings) -> str:
    """Return the URL of the store's root, which table files put before a key."""
    if store.backend == "local":
        return f"file://{Path(store.root).absolute()}/"
    return "/".join(filter(None, (f"s3://{store.s3_bucket}", store.root))) + "/"


def _time(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        await store.head(key)
    except NotFound:
        return False
    return True


def open_shared(configs: Sequence[Config]) -> ObjectStore | None:
    """Open the object store that these nodes share; their node lists must agree. Raises
    ConfigError, StoreUnavailable."""
    lists = {
        tuple(sorted(node.id for node in config.cluster.nodes)): config.cluster.node
        for config in configs
    }
    if len(lists) > 1:
        said = " and ".join(
            f"{', '.join(map(str, ids))} (node {node})" for ids, node in lists.items()
        )
        raise ConfigError(
            f"cluster.nodes: the files name different nodes: {said}; all files need the same list"
        )
    if any(config.store != configs[0].store for config in configs):
        raise ConfigError(
            "cold: the nodes of a cluster share one object store; these files name different ones "
            "(cold.root)"
        )
    return open_store(configs[0].store)


async def check_root(store: ObjectStore, identity: NodeIdentity, *, take_over: bool) -> None:
    """Check that the restored nodes may use this root. Raises ConfigError, StoreUnavailable."""
    found = await read_root(store)
    if found is None:
        return
    if found.cluster_id != identity.cluster_id:
        raise ConfigError(
            f"cold: the object store's root belongs to another cluster ({found.cluster_id}); "
            "choose another root or bucket"
        )
    if found.history == identity.history and await _went_on(store, identity):
        late = (
            ". A node of the restored cluster starts on an empty folder, and gets all data from "
            "the others"
            if identity.node
            else ""
        )
        raise ConfigError(
            "cold: this state was restored to this object store before, and its nodes have run "
            "since: their objects would be mistaken "
            f"for new ones. Choose another root or bucket, or take a new backup{late}"
        )
    if found.history > identity.history:
        raise ConfigError(
            f"cold: the object store's root is used by a later history ({found.history}) than the "
            f"one to restore ({identity.history}): it was restored "
            "before; choose another root"
        )
    if found.start_id and not take_over:
        raise ConfigError(
            "cold: the object store's root belongs to the cluster that was backed up, which did "
            "not stop cleanly. If it is lost for good, add "
            "--take-over: its nodes can never use this root again. Otherwise choose another root"
        )


async def _went_on(store: ObjectStore, identity: NodeIdentity) -> bool:
    """Return True if nodes of this history have run.

    Some nodes of a cluster may start while others are still to be restored. They commit nothing
    without a quorum; a new leader copies its group's state at once."""
    if not identity.node:
        return True
    begun = dict.fromkeys(range(identity.groups + 1), INDEX)
    return await copies.ahead(store, (identity.cluster_id, identity.history), begun) is not None


def _sync(journal: Journal) -> None:
    batch = journal.take()
    if batch is not None:
        journal.write(batch)
        journal.synced(batch)
