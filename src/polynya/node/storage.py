"""What a core opens at start: its journal and snapshots, and from them the machines of its groups."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from polynya.base.errors import CorruptData
from polynya.base.limits import JOURNAL_SEGMENT_BYTES
from polynya.node.core import KIND_COPY
from polynya.replica import Group, Shard
from polynya.replica.log import decode_command
from polynya.stream.commands import Append, Batch, Create
from polynya.stream.machine import Machine
from polynya.wal import Files, Journal, JournalEntry, Kind, Snapshot, SnapshotStore

log = logging.getLogger("polynya.storage")


class Storage(msgspec.Struct):
    """The opened state of one core. `log_ms` is the largest time stamp found: log time goes on from there (F14)."""

    journal: Journal
    snapshots: SnapshotStore
    shard: Shard
    log_ms: int


def open_storage(
    folder: Path,
    *,
    core: int,
    cores: int,
    groups: int,
    cluster_id: str = "",
    files: Files | None = None,
    segment_bytes: int = JOURNAL_SEGMENT_BYTES,
) -> Storage:
    """Recover the groups `g % cores == core` (group 0, the meta group, included). Raises CorruptData with the place of the damage."""
    journal_id = int(cluster_id[:14] or "0", 16) << 8 | core
    journal = Journal.open(folder / "journal", journal_id=journal_id, segment_bytes=segment_bytes, files=files)
    for cut in journal.cuts:
        log.warning("a torn tail was cut", extra={"path": str(cut.path), "offset": cut.offset, "bytes": cut.length, "reason": cut.reason})
    snapshots = SnapshotStore(folder / "snapshots", files=files)
    storage = Storage(journal, snapshots, Shard(), 0)
    try:
        latest = snapshots.latest()
        for number in range(core, groups + 1, cores):
            _restore(storage, number, groups, latest.get(number))
        for entry in journal.entries():
            _replay(storage, entry)
    except BaseException:
        journal.close()
        raise
    return storage


def _restore(storage: Storage, number: int, groups: int, snapshot: Snapshot | None) -> None:
    if snapshot is None:
        storage.shard.groups[number] = Group(number, Machine(number, groups))
        return
    journal = storage.journal

    def read_payload(place: int, uid: int) -> bytes:
        command = decode_command(journal.read(place))
        batch = command.batch if isinstance(command, Append | Create) else None
        if not isinstance(batch, Batch):
            raise CorruptData(f"journal place {place:#x} holds no batch, but the snapshot of group {number} says so of stream {uid}")
        return batch.payload

    machine = Machine.restore(snapshot.body, read_payload)
    storage.shard.groups[number] = Group(number, machine, term=snapshot.term, index=snapshot.index)
    storage.log_ms = max(storage.log_ms, max((stream.activity_ms for stream in machine.streams.values()), default=0))


def _replay(storage: Storage, entry: JournalEntry) -> None:
    group = storage.shard.groups.get(entry.group)
    if group is None:
        raise CorruptData(f"the journal holds group {entry.group}, which this core does not own")
    if entry.kind == KIND_COPY:
        return
    if entry.kind != Kind.COMMAND:
        raise CorruptData(
            f"group {entry.group}: journal place {entry.place:#x} holds an entry of kind {entry.kind}, unknown to this release"
        )
    if entry.index > group.applied_index:
        command = storage.shard.replay(entry.group, entry.term, entry.index, entry.payload, entry.place)
        storage.log_ms = max(storage.log_ms, getattr(command, "now_ms", 0))
