"""A cluster for backups, made of machines and a store in memory; and the result of a restore."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from google_crc32c import value as crc32c
from worlds.cold import CLUSTER, GROUPS, Tier

from polynya.backup.group_file import Header, hot_pieces, pack_header
from polynya.backup.manifest import Manifest
from polynya.backup.source import About, Captured, GroupCommits, Lost
from polynya.backup.writer import BackupProgress, BackupWriter
from polynya.config.model import Config
from polynya.engine.storage import Storage, open_storage
from polynya.objectstore import MemoryStore, ObjectStore
from polynya.recovery.from_backup import FromBackup, renaming
from polynya.recovery.restore import RestoreOrigin, Restorer, RestoreResult, RestoreTarget, States
from polynya.stream.features.transactions.commands import TxnHold
from polynya.stream.features.transactions.state import TransactionState
from polynya.stream.machine import Machine
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import snapshot_of

ALL = range(GROUPS + 1)


def file_of(group: int, machine: Machine, at: tuple[int, int], log_ms: int) -> bytes:
    """Build the file of a group's machine as it is now, after the entry `at` (term, index)."""
    state = snapshot_of(machine)
    hot = [
        piece
        for _, batches in machine.directory.flush_candidates()
        for piece in hot_pieces(batches)
    ]
    return b"".join(
        [
            pack_header(Header(group, *at, log_ms, len(state), crc32c(state), len(hot) // 2)),
            state,
            *hot,
        ]
    )


class BackedUp(Tier):
    """A backed-up world that includes the meta group."""

    def __init__(self) -> None:
        super().__init__()
        self.world.machines()[0] = Machine(0, GROUPS)


class FakeSource:
    """`polynya.backup.source.BackupSource`. `before_capture` is called with the group; `lost`
    tokens are held no more."""

    def __init__(self, tier: Tier, part_bytes: int = 300) -> None:
        self.tier = tier
        self.captured: list[int] = []
        self.copied: list[str] = []
        self.before_capture: Callable[[int], None] = lambda group: None
        self.before_commits: Callable[[int, int | None], None] = lambda group, hold_ms: None
        self.lost: set[str] = set()
        self._held: dict[str, bytes] = {}
        self._part_bytes = part_bytes

    async def about(self) -> About:
        return About(CLUSTER, 1, GROUPS, "9.9", True)

    async def prepare(self, group: int, backup: str) -> None:
        pass

    async def commits(self, group: int, backup: str, hold_ms: int | None = None) -> GroupCommits:
        """Answer like `polynya.admin.backup_routes`."""
        self.before_commits(group, hold_ms)
        machine = self.tier.world.machines()[group]
        known, now = machine.transactions, self.tier.world.now
        held = None
        if hold_ms is not None:
            reply = machine.apply(TxnHold(backup, now + hold_ms if hold_ms else 0, now))
            if reply.code == Code.BACKUP_HOLDS:
                return GroupCommits(group, len(known), backup=reply.detail)
            held = reply.detail
        deciding = [
            each.id
            for each in known.active.values()
            if each.state == TransactionState.PREPARE_COMMIT
        ]
        hold = ("", 0) if known.hold is None else (known.hold.backup, known.hold.commits)
        round_, count = held or hold
        return GroupCommits(group, len(known), deciding, round_, count)

    async def capture(self, group: int, backup: str = "") -> Captured:
        self.before_capture(group)
        machine = self.tier.world.machines()[group]
        token = f"{group}-{len(self.captured)}"
        self.captured.append(group)
        data = self._held[token] = file_of(group, machine, (1, 7), self.tier.world.now)
        records = sum(stream.next_record for stream in machine.directory.streams.values())
        return Captured(
            group,
            token,
            len(data),
            1,
            7,
            self.tier.world.now,
            len(machine.directory.streams),
            records,
            machine.directory.hot_bytes,
        )

    async def part(self, captured: Captured, offset: int) -> bytes:
        if captured.token in self.lost:
            raise Lost
        return self._held[captured.token][offset : offset + self._part_bytes]

    async def objects(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        async for info in self.tier.store.list(prefix):
            yield info.key, info.size

    async def read(self, key: str, offset: int, length: int) -> bytes:
        self.copied.append(key)
        return await self.tier.store.get_range(key, offset, length)


async def taken(source: FakeSource, repository: MemoryStore) -> tuple[Manifest, BackupProgress]:
    done = BackupProgress()
    return await BackupWriter(source, repository, repository, done).take(), done


async def restored(
    folder: Path, repository: MemoryStore, manifest: Manifest, store: ObjectStore, cores: int = 2
) -> RestoreResult:
    """Return the restored data folder of a single node."""
    rename = renaming(manifest.cluster, manifest.cluster)
    origin = RestoreOrigin(
        cluster_id=manifest.cluster, history=manifest.next_history, groups=manifest.groups
    )
    return await made(
        folder, origin, FromBackup(repository, manifest, rename, has_store=True), store, cores
    )


async def made(
    folder: Path,
    origin: RestoreOrigin,
    states: States,
    store: ObjectStore,
    cores: int = 2,
    rename: Callable[[str], str] = lambda key: key,
) -> RestoreResult:
    with contextlib.ExitStack() as held:
        target = RestoreTarget(Config(data=str(folder), cores=cores), origin, held)
        return await Restorer(states, [target], store, rename).run()


def opened(
    folder: Path, cores: int = 2, cluster: str = CLUSTER
) -> tuple[dict[int, Machine], list[Storage]]:
    """Open the storage of all cores, and return the machines that a node would start with."""
    storages = [
        open_storage(
            folder / f"core-{core}", core=core, cores=cores, groups=GROUPS, cluster_id=cluster
        )
        for core in range(cores)
    ]
    return {
        number: group.machine
        for storage in storages
        for number, group in storage.core_replicas.groups.items()
    }, storages
