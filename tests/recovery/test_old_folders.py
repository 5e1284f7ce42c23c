"""Data folders of the release before incremental snapshots, of a single node and of a cluster
member; and leftovers of a newer release.

`first_clusters.json.z`: {which: {path: bytes in hex}}. `test/a` has three records there, one behind
  the snapshot, and two here, both behind it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import msgspec
import pytest
from worlds.fake_disk import FakeDisk

from polynya.base.errors import ConfigError, CorruptData
from polynya.engine.membership import Membership
from polynya.engine.snapshots.chain import SnapshotChain
from polynya.engine.snapshots.merge_process import merge
from polynya.engine.storage import Storage, open_storage
from polynya.stream.machine import Machine
from polynya.stream.snapshots.encode import machine_from
from polynya.wal import FrameKind

FOLDERS = json.loads(
    zlib.decompress((Path(__file__).parent / "first_clusters.json.z").read_bytes())
)


def disk_of(which: str) -> FakeDisk:
    disk = FakeDisk()
    for name, data in FOLDERS[which].items():
        disk.make_folder(Path(name).parent)
        fd = disk.create(Path(name))
        disk.write(fd, [bytes.fromhex(data)], 0)
        disk.sync(fd)
        disk.close(fd)
        disk.sync_folder(Path(name).parent)
    return disk


def opened(disk: FakeDisk, which: str) -> Storage:
    member = Membership(1, (1, 2, 3)) if which == "member" else None
    groups = 2 if which == "member" else 4
    segment_bytes = 1 << 14 if which == "member" else 4096
    return open_storage(
        Path("/core-0"),
        core=0,
        cores=1,
        groups=groups,
        files=disk,
        segment_bytes=segment_bytes,
        membership=member,
    )


def with_entry(disk: FakeDisk, which: str, kind: int, payload: bytes) -> FakeDisk:
    """One more in the journal, which a newer release wrote."""
    storage = opened(disk, which)
    group = storage.core_replicas.groups[1]
    storage.journal.stage(1, 9, group.last_index + 1, kind, payload)
    batch = storage.journal.take()
    assert batch is not None
    storage.journal.write(batch)
    storage.journal.synced(batch)
    storage.journal.close()
    return disk


@pytest.mark.parametrize("which", ["lone", "member"])
def test_a_kind_of_entry_that_only_a_newer_release_knows_is_no_damage(which: str) -> None:
    disk = with_entry(disk_of(which), which, 77, b"")
    with pytest.raises(
        ConfigError,
        match=r"kind 77, unknown to this release: start this node with the release that wrote it",
    ):
        opened(disk, which)


def test_a_command_that_only_a_newer_release_knows_is_no_damage() -> None:
    disk = with_entry(
        disk_of("lone"), "lone", FrameKind.COMMAND, msgspec.msgpack.encode([127, "what"])
    )
    with pytest.raises(
        ConfigError,
        match=r"group 1: entry \d+ of the journal is a command that this release does not know .*127",
    ):
        opened(disk, "lone")


def machine_of(storage: Storage, name: str) -> Machine:
    (machine,) = [
        group.machine
        for group in storage.core_replicas.groups.values()
        if group.machine.directory.lookup(name)
    ]
    return machine


def test_a_folder_of_a_lone_node_opens() -> None:
    disk = disk_of("lone")
    storage = opened(disk, "lone")
    machine = machine_of(storage, "test/a")
    stream, fork = (
        machine.directory.lookup("test/a"),
        machine_of(storage, "test/fork").directory.lookup("test/fork"),
    )
    assert stream is not None and (stream.next_record, stream.cold is not None) == (3, True)
    assert stream.hot is not None and [bytes(batch.payload) for batch in stream.hot] == [
        b'{"n":2},',
        b'{"n":3},',
    ]
    assert fork is not None and fork.next_record == 3
    assert not any(
        group.machine.directory.lookup("test/gone")
        for group in storage.core_replicas.groups.values()
    )
    assert machine.counters.level == 1 and machine.changes.streams >= {stream.uid}, (
        "what came from the journal is in no snapshot yet"
    )
    chain = storage.chains[machine.group]
    assert isinstance(chain, SnapshotChain) and [link.delta for link in chain.links] == [False]
    restored = machine_from(
        merge(storage.snapshots.chain(machine.group)), lambda position, uid: b'{"n":2},'
    )
    assert (restored.directory.lookup("test/a") or stream).next_record == 2


def test_a_folder_of_a_member_opens() -> None:
    storage = opened(disk_of("member"), "member")
    assert sorted(storage.restored) == [0, 1, 2] and not any(
        restored.reset for restored in storage.restored.values()
    )
    machine = machine_of(storage, "test/a")
    stream = machine.directory.lookup("test/a")
    assert stream is not None and stream.next_record == 0, "as far as the snapshot"
    restored = storage.restored[machine.group]
    assert (
        restored.snapshot.index
        == storage.chains[machine.group].index
        == restored.entries[0].index - 1
    )
    assert [b"one;" in restored.entries[0].payload, b"two;" in restored.entries[1].payload] == [
        True,
        True,
    ]


@pytest.mark.parametrize("which", ["lone", "member"])
def test_snapshots_without_the_journal_that_they_were_written_beside_are_refused(
    which: str,
) -> None:
    """Refuse the snapshots: a member that continued from them would have lost its vote and its
    acknowledgements."""
    disk = disk_of(which)
    for path in list(disk.files):
        if path.suffix == ".journal":
            del disk.files[path]
    before = sorted(disk.files)
    with pytest.raises(CorruptData, match="the journal in /core-0/journal is missing"):
        opened(disk, which)
    assert sorted(disk.files) == before
