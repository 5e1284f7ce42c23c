"""A snapshot on its way to another node: memory is bounded, and any damage is detected."""

from __future__ import annotations

import gc
import struct
import tracemalloc
from pathlib import Path

import pytest
from google_crc32c import value as crc32c
from worlds.fake_disk import FakeDisk

from polynya.base.errors import CorruptData
from polynya.engine.snapshots.chain import SnapshotChain, hot_bytes_of
from polynya.engine.snapshots.transfer import pack_transfer, unpack_transfer
from polynya.replica.log import encode_command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch, Encoding
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots.encode import snapshot_of
from polynya.wal import Journal, SnapshotStore
from polynya.wal.scratch import Scratch

PAYLOAD = 64 << 10


class Sender:
    """A machine with its journal and its snapshots: a base and a delta."""

    def __init__(
        self, folder: Path, batches: int, payload: int = PAYLOAD, disk: FakeDisk | None = None
    ) -> None:
        self.journal = Journal.open(
            folder / "journal", journal_id=1, segment_bytes=1 << 20, files=disk
        )
        self.store = SnapshotStore(folder / "snapshots", files=disk)
        self.machine = Machine(1, 4)
        self.index = 0
        self.apply(Create("a", 1, "text/plain", Encoding.BYTES))
        self.apply(Create("gone", 1, "text/plain", Encoding.BYTES))
        self.append("a", batches // 2, payload)
        self.store.write(1, 1, self.index, snapshot_of(self.machine))
        base, _ = self.index, self.machine.take_changes()
        self.apply(Create("b", 2, "text/plain", Encoding.BYTES))
        self.apply(Delete("gone", 3))
        self.append("b", batches - batches // 2, payload)
        changes = self.machine.take_changes()
        count, streams = deltas.encode_streams(self.machine, iter(sorted(changes.streams)))
        head = deltas.encode_head(self.machine, changes, count, whole=False)
        self.store.write_delta(1, 1, self.index, [head, streams], base)
        self.chain = SnapshotChain(tuple(self.store.links(1)), None, hot_bytes_of(self.machine))

    def apply(self, command: Append | Create | Delete) -> None:
        self.index += 1
        position = self.journal.stage(1, 1, self.index, 1, encode_command(command))
        batch = self.journal.take()
        assert batch is not None
        self.journal.write(batch)
        self.journal.synced(batch)
        self.machine.apply(command, position)

    def append(self, name: str, batches: int, size: int) -> None:
        for number in range(batches):
            payload = number.to_bytes(4, "little") * (size // 4)
            self.apply(
                Append(name, 5, "text/plain", Batch(Encoding.BYTES, 1, payload, crc32c(payload)))
            )

    def packed(self) -> Scratch:
        file = self.store.scratch()
        pack_transfer(self.chain.links, self.store, self.journal, file)
        return file


def test_what_is_in_memory_does_not_grow_with_what_is_sent(tmp_path: Path) -> None:
    sender = Sender(tmp_path, 400)
    for stream in sender.machine.directory.streams.values():
        for batch in stream.hot or ():
            batch.payload = b""  # the sender reads it from its journal
    gc.collect()
    tracemalloc.start()
    try:
        file = sender.packed()
        _, packing = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        machine = unpack_transfer(file, sender.chain.transfer[1])
        kept, unpacking = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert file.size > 400 * PAYLOAD and packing < 2 << 20
    assert kept > 400 * PAYLOAD > 10 * (unpacking - kept), "the machine's payload, and little more"
    assert list(machine.directory.streams) == ["a", "b"]


def test_what_arrives_is_what_was_sent() -> None:
    sender = Sender(Path("/node"), 7, 40, FakeDisk())
    file = sender.packed()
    assert file.size == sender.chain.transfer[0]
    machine = unpack_transfer(file, sender.chain.transfer[1])
    assert snapshot_of(machine) == snapshot_of(sender.machine)
    assert [
        [batch.payload for batch in hot] for _, hot in machine.directory.flush_candidates()
    ] == [
        [batch.payload for batch in hot] for _, hot in sender.machine.directory.flush_candidates()
    ]


def of_the_first_clusters(sender: Sender) -> tuple[bytes, int]:
    """Return the snapshot stream of a node of the first clusters, and its identity."""
    body = snapshot_of(sender.machine)
    hot = [batch for _, batches in sender.machine.directory.flush_candidates() for batch in batches]
    pieces = [
        piece
        for batch in hot
        for piece in (struct.pack("<QI", batch.position, len(batch.payload)), batch.payload)
    ]
    return b"".join((struct.pack("<Q", len(body)), body, *pieces)), crc32c(body)


def test_what_a_node_of_the_first_clusters_sends_arrives() -> None:
    sender = Sender(Path("/node"), 7, 40, FakeDisk())
    data, identity = of_the_first_clusters(sender)
    file = sender.store.scratch()
    file.append(data)
    machine = unpack_transfer(file, identity)
    assert snapshot_of(machine) == snapshot_of(sender.machine)
    assert [
        [batch.payload for batch in hot] for _, hot in machine.directory.flush_candidates()
    ] == [
        [batch.payload for batch in hot] for _, hot in sender.machine.directory.flush_candidates()
    ]


@pytest.mark.parametrize("first", [False, True])
def test_damage_anywhere_is_found(first: bool) -> None:
    sender = Sender(Path("/node"), 3, 8, FakeDisk())
    whole = sender.packed()
    data, identity = (
        of_the_first_clusters(sender)
        if first
        else (whole.read(0, whole.size), sender.chain.transfer[1])
    )
    for at in range(len(data)):
        file = sender.store.scratch()
        file.append(data[:at], bytes([data[at] ^ 1 << at % 8]), data[at + 1 :])
        with pytest.raises(CorruptData):
            unpack_transfer(file, identity)
        file.close()
    for length in range(0, len(data), 7):
        file = sender.store.scratch()
        file.append(data[:length])
        with pytest.raises(CorruptData):
            unpack_transfer(file, identity)
        file.close()


def test_what_is_gone_from_the_disk_is_not_sent() -> None:
    disk = FakeDisk()
    sender = Sender(Path("/node"), 3, 8, disk)
    sender.store.write_delta(1, 1, 99, [b"all anew"], 0)
    with pytest.raises(OSError, match="No such file"):
        sender.packed()
    assert not [path for path in disk.files if path.suffix == ".tmp"], (
        "files of transfers have no names"
    )
