"""The bytes of deltas, which every later release must read."""

import pytest

from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots.encode import machine_from, snapshot_of

FIRST = (
    "400000009501dc001201010402009091a7617474656d707481a77061636b732f319302010180909090809490909090800134809591cf00010000000000019090"
    "9090c201dc0018cf0001000000000002a5612f6e6577aa746578742f706c61696e00020200000000c2c2c0c0c0c0c0c0c0c0c0c0c0c0"
)
WITH_LOG_TIME = (
    "430000009501dc001501010402009091a7617474656d707481a77061636b732f31930201018090909080949090909080013480c001039591cf00010000000000"
    "0190909090c201dc0018cf0001000000000002a5612f6e6577aa746578742f706c61696e00020200000000c2c2c0c0c0c0c0c0c0c0c0c0c0c0"
)


@pytest.mark.parametrize(("golden", "log_ms"), [(FIRST, 2), (WITH_LOG_TIME, 3)])
def test_bytes_are_golden(golden: str, log_ms: int) -> None:
    """The first deltas did not know log time: the latest activity of a stream that is there
    counts."""
    machine = Machine(1, 4)
    machine.apply(Create("a/old", 1, "text/plain", Encoding.BYTES))
    base = deltas.SnapshotPart(snapshot_of(machine))
    machine.take_changes()
    machine.apply(Create("a/new", 2, "text/plain", Encoding.BYTES))
    machine.apply(Delete("a/old", 3))
    machine.forks.refuse("attempt")
    machine.packs.hold_slice("packs/1", 2)
    changes = machine.take_changes()
    count, streams = deltas.encode_streams(machine, iter(changes.streams))
    delta = deltas.encode_head(machine, changes, count, whole=False) + streams
    assert deltas.merge([base, deltas.SnapshotPart(delta, delta=True, root=False)]) == snapshot_of(
        machine
    )
    restored = machine_from(
        deltas.merge([base, deltas.SnapshotPart(bytes.fromhex(golden), delta=True, root=False)]),
        lambda position, uid: b"",
    )
    assert restored.counters.log_ms == log_ms
    restored.counters.log_ms = machine.counters.log_ms
    assert snapshot_of(restored) == snapshot_of(machine)
