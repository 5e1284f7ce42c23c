"""The bytes of a delta: what any later release has to read."""

from polynya.stream import deltas
from polynya.stream.commands import Create, Delete, Encoding
from polynya.stream.machine import Machine

GOLDEN = (
    "400000009501dc001201010402009091a7617474656d707481a77061636b732f319302010180909090809490909090800134809591cf00010000000000019090"
    "9090c201dc0018cf0001000000000002a5612f6e6577aa746578742f706c61696e00020200000000c2c2c0c0c0c0c0c0c0c0c0c0c0c0"
)


def test_bytes_are_golden() -> None:
    machine = Machine(1, 4)
    machine.apply(Create("a/old", 1, "text/plain", Encoding.BYTES))
    base = deltas.Part(machine.snapshot())
    machine.take_changes()
    machine.apply(Create("a/new", 2, "text/plain", Encoding.BYTES))
    machine.apply(Delete("a/old", 3))
    machine.refuse_attempt("attempt")
    machine.hold_slice("packs/1", 2)
    changes = machine.take_changes()
    count, streams = deltas.encode_streams(machine, iter(changes.streams))
    delta = deltas.encode_head(machine, changes, count, whole=False) + streams
    parts = deltas.Part(delta, delta=True, root=False), deltas.Part(bytes.fromhex(GOLDEN), delta=True, root=False)
    now, golden = (deltas.merge([base, part]) for part in parts)
    assert now == machine.snapshot()
    assert Machine.restore(golden, lambda place, uid: b"").snapshot() == now
