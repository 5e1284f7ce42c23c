"""Open the journal and the snapshots of a core at start, and restore the state machines of its
groups from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from polynya.base.errors import ConfigError, CorruptData
from polynya.base.limits import JOURNAL_SEGMENT_BYTES
from polynya.config.node_identity import journal_id_of
from polynya.engine.journal_writer import FORGETFUL, hard_state_of
from polynya.engine.membership import Membership
from polynya.engine.snapshots.chain import SnapshotChain, hot_bytes_of
from polynya.engine.snapshots.merge_process import merge
from polynya.engine.snapshots.transfer import PayloadReader
from polynya.engine.turns import KIND_COPY
from polynya.raft import (
    Configuration,
    Entry,
    HardState,
    Recovery,
    RestoredMember,
    decode_configuration,
)
from polynya.raft import EntryKind as RaftKind
from polynya.raft import Snapshot as RaftSnapshot
from polynya.replica import CoreReplicas, Group
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.machine import Machine
from polynya.stream.snapshots.encode import machine_from
from polynya.wal import (
    Files,
    FrameKind,
    Journal,
    JournalEntry,
    OsFiles,
    SnapshotStore,
    has_segments,
)
from polynya.wal.snapshots import SUFFIX, SnapshotLink

_ENTRIES = (RaftKind.COMMAND, RaftKind.NOOP, RaftKind.CONFIGURATION)
log = logging.getLogger("polynya.storage")


class Storage(msgspec.Struct):
    """The opened state of one core.

    `log_ms`: the largest timestamp found, from which log time continues. `restored`: the replicated
      groups, whose logs are applied up to
    their snapshots; empty on a standalone node. `departed`: the hard states of dropped replicas.
    `chains`: the snapshots on disk."""

    journal: Journal
    snapshots: SnapshotStore
    core_replicas: CoreReplicas
    log_ms: int
    restored: dict[int, RestoredMember] = {}
    departed: dict[int, HardState] = {}
    chains: dict[int, SnapshotChain] = {}


def open_storage(  # noqa: PLR0913
    folder: Path,
    *,
    core: int,
    cores: int,
    groups: int,
    cluster_id: str = "",
    files: Files | None = None,
    segment_bytes: int = JOURNAL_SEGMENT_BYTES,
    membership: Membership | None = None,
) -> Storage:
    """Recover the groups `g % cores == core` (including group 0, the meta group), or those of them
    that have a replica here.

    Raises CorruptData with the position of the damage."""
    refuse_lost_journal(folder, files)
    journal = Journal.open(
        folder / "journal",
        journal_id=journal_id_of(cluster_id, core),
        segment_bytes=segment_bytes,
        files=files,
    )
    for cut in journal.cuts:
        log.warning(
            "truncated the torn tail of a journal segment",
            extra={
                "path": str(cut.path),
                "offset": cut.offset,
                "bytes": cut.length,
                "reason": cut.reason,
            },
        )
    snapshots = SnapshotStore(folder / "snapshots", files=files)
    storage = Storage(journal, snapshots, CoreReplicas(), 0)
    try:
        numbers = range(core, groups + 1, cores)
        if membership is None:
            for number in numbers:
                _restore(storage, number, groups, snapshots.links(number))
                storage.core_replicas.groups[number].machine.counters.standalone = True
            for entry in journal.segments.entries():
                _replay(storage, entry)
        else:
            for recovery in _recoveries(journal, numbers).values():
                _recover(storage, recovery, groups, membership)
    except BaseException:
        journal.close()
        raise
    return storage


def refuse_lost_journal(folder: Path, files: Files | None = None) -> None:
    """Check that a core with snapshots still has its journal, which alone holds the latest entries
    and votes. Raises CorruptData."""
    files = OsFiles() if files is None else files
    journal, snapshots = folder / "journal", folder / "snapshots"
    if has_segments(journal, files):
        return
    try:
        names = files.names(snapshots)
    except FileNotFoundError:
        return
    if any(name.endswith(SUFFIX) for name in names):
        raise CorruptData(
            f"the journal in {journal} is missing, but the snapshots in {snapshots} need it. "
            "Nothing was changed. Restore the journal "
            "files from a copy taken at the same time as the snapshots"
        )


def _restore(storage: Storage, number: int, groups: int, links: list[SnapshotLink]) -> None:
    if not links:
        storage.core_replicas.groups[number] = Group(number, Machine(number, groups))
        return
    journal = storage.journal

    machine = machine_from(merge(storage.snapshots.chain(number)), PayloadReader(journal))
    storage.core_replicas.groups[number] = Group(
        number, machine, term=links[-1].term, index=links[-1].index
    )
    storage.chains[number] = SnapshotChain(
        tuple(links), machine.directory.needed_positions(), hot_bytes_of(machine)
    )
    storage.log_ms = max(storage.log_ms, machine.counters.log_ms)


def _replay(storage: Storage, entry: JournalEntry) -> None:
    group = storage.core_replicas.groups.get(entry.group)
    if group is None:
        raise CorruptData(f"the journal holds group {entry.group}, which this core does not own")
    if entry.kind == KIND_COPY:
        return
    if entry.kind != FrameKind.COMMAND:
        raise _of_a_newer_release(entry)
    if entry.index > group.applied_index:
        storage.core_replicas.replay(
            entry.group, entry.term, entry.index, entry.payload, entry.position
        )
        storage.log_ms = max(storage.log_ms, group.machine.counters.log_ms)


def _of_a_newer_release(entry: JournalEntry) -> ConfigError:
    """Return the error for an unknown entry kind; its checksum is valid."""
    return ConfigError(
        f"group {entry.group}: journal position {entry.position:#x} holds an entry of kind "
        f"{entry.kind}, unknown to this release: start this node with the "
        "release that wrote it, or a newer one; nothing was changed"
    )


def _recoveries(journal: Journal, numbers: Iterable[int]) -> dict[int, Recovery]:
    """Collect the journal frames of each group."""
    recoveries = {number: Recovery(number) for number in numbers}
    for frame in journal.segments.entries():
        recovery = recoveries.get(frame.group)
        if recovery is None:
            raise CorruptData(
                f"the journal holds group {frame.group}, which this core does not own"
            )
        if frame.kind in _ENTRIES:
            recovery.entry(
                Entry(
                    frame.payload, frame.kind, frame.term, frame.index, frame.group, frame.position
                )
            )
        elif frame.kind == RaftKind.HARD_STATE:
            recovery.hard_state(hard_state_of(frame.term, frame.index, frame.payload))
        elif frame.kind == RaftKind.RESET:
            recovery.reset(frame.index, frame.term)
        elif frame.kind == RaftKind.CONFIGURED:
            recovery.configured(frame.index, decode_configuration(frame.payload))
        elif frame.kind == RaftKind.DROPPED:
            recovery.dropped(HardState(frame.term, frame.index, frame.payload == FORGETFUL))
        elif frame.kind != KIND_COPY:
            raise _of_a_newer_release(frame)
    return recoveries


def _recover(storage: Storage, recovery: Recovery, groups: int, membership: Membership) -> None:
    """Restore the replica of a group, if this node has one. The leader later tells which entries
    after the snapshot are committed."""
    number, born = recovery.group, membership.born_with(recovery.group)
    if recovery.departed is not None:
        storage.departed[number] = recovery.departed
        storage.snapshots.remove(number)  # completes an interrupted drop
        return
    links = storage.snapshots.links(number)
    blank = recovery.blank and not links
    if blank and membership.node not in born.members and number != META_GROUP:
        return
    _restore(storage, number, groups, links)
    found = storage.chains.get(number)
    if found is None or not found.index:
        snapshot = RaftSnapshot(0, 0, recovery.configuration_at(0, born))
    else:
        snapshot = snapshot_of(found, recovery.configuration_at(found.index, born))
    restored = recovery.result(snapshot)
    if blank and born.votes(membership.node):  # a new member, or one that lost its disk
        restored.hard_state = HardState(amnesiac=True)
    restored.entries = [entry for entry in restored.entries if entry.index > snapshot.index]
    storage.restored[number] = restored


def snapshot_of(found: SnapshotChain, configuration: Configuration) -> RaftSnapshot:
    """Return the Raft description of a group's snapshot."""
    return RaftSnapshot(found.index, found.links[-1].term, configuration, *found.transfer)
