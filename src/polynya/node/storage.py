"""What a core opens at start: its journal and snapshots, and from them the machines of its groups."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from polynya.base.errors import CorruptData
from polynya.replica import Group, Shard
from polynya.replica.log import decode_command
from polynya.stream.commands import Append, Batch, Create
from polynya.stream.machine import Machine
from polynya.wal.journal import Journal
from polynya.wal.snapshots import SnapshotStore

log = logging.getLogger("polynya.storage")


class Storage(msgspec.Struct):
    """The opened state of one core. `log_ms` is the largest time stamp found: log time goes on from there (F14)."""

    journal: Journal
    snapshots: SnapshotStore
    shard: Shard
    floors: dict[int, int]  # group → a place at or before the first entry that its snapshot does not contain
    log_ms: int


def open_storage(folder: Path, *, core: int, cores: int, groups: int, cluster_id: str = "") -> Storage:
    """Recover the groups `g % cores == core` (group 0, the meta group, included). Raises CorruptData with the place of the damage."""
    journal = Journal.open(folder / "journal", journal_id=int(cluster_id[:14] or "0", 16) << 8 | core)
    for cut in journal.cuts:
        log.warning("a torn tail was cut", extra={"path": str(cut.path), "offset": cut.offset, "bytes": cut.length, "reason": cut.reason})
    snapshots = SnapshotStore(folder / "snapshots")
    latest = snapshots.latest()
    shard = Shard()

    def read_payload(place: int, uid: int) -> bytes:
        command = decode_command(journal.read(place))
        batch = command.batch if isinstance(command, Append | Create) else None
        if not isinstance(batch, Batch):
            raise CorruptData(f"{folder}: journal place {place:#x} holds no batch of stream {uid}, but a snapshot says so")
        return batch.payload

    log_ms = 0
    for number in range(core, groups + 1, cores):
        snapshot = latest.get(number)
        if snapshot is None:
            shard.groups[number] = Group(number, Machine(number, groups))
        else:
            machine = Machine.restore(snapshot.body, read_payload)
            shard.groups[number] = Group(number, machine, term=snapshot.term, index=snapshot.index)
            log_ms = max(log_ms, max((stream.activity_ms for stream in machine.streams.values()), default=0))
    floors: dict[int, int] = {}
    for entry in journal.entries():
        group = shard.groups.get(entry.group)
        if group is None:
            raise CorruptData(f"{folder}: the journal holds group {entry.group}, which core {core} of {cores} does not own")
        if entry.index > group.applied_index:
            floors.setdefault(entry.group, entry.place)
            command = shard.replay(entry.group, entry.term, entry.index, entry.payload, entry.place)
            log_ms = max(log_ms, getattr(command, "now_ms", 0))
    for number in shard.groups:
        floors.setdefault(number, journal.position)
    return Storage(journal, snapshots, shard, floors, log_ms)
