"""A snapshot of 0.1.0: entries of 48 bytes, no retention, no trims. It loads and continues
unchanged."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
from worlds.stream import World, raw_batch

from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.features.retention.commands import Trim
from polynya.stream.parts import Encoding
from polynya.stream.snapshots.encode import machine_from, snapshot_of
from polynya.stream.state.entries import ENTRY_BYTES, HEAD_BYTES, as_v1
from polynya.stream.state.index import time_ms_max

IMAGE_FIELDS, STREAM_FIELDS, COLD = 16, 23, 18  # of 0.1.0, and where a stream's index is among them


def as_the_first_release(snapshot: bytes) -> bytes:
    image: list[Any] = msgspec.msgpack.decode(snapshot)[:IMAGE_FIELDS]
    image[10] = [stream[:STREAM_FIELDS] for stream in image[10]]
    for stream in image[10]:
        if stream[COLD] is not None:
            stream[COLD] = b"".join(
                _narrow(stream[COLD][at : at + ENTRY_BYTES][:52])
                for at in range(HEAD_BYTES, len(stream[COLD]), ENTRY_BYTES)
            )
    return msgspec.msgpack.encode(image)


def _narrow(entry: bytes) -> bytes:
    record, byte, largest_ms, *rest, span_ms = struct.unpack("<QQQIIIIIII", entry)
    return struct.pack("<QQQIIIIII", record, byte, largest_ms - span_ms, *rest)


def test_a_snapshot_of_the_first_release_is_read() -> None:
    world = World(1)
    world.apply(1, Create("docs/a", 100, "text/plain", Encoding.BYTES))
    for number in range(6):
        world.apply(1, Append("docs/a", 200 + number * 100, "text/plain", raw_batch(b"x" * 10)))
    machine = world.machines[1]
    stream = machine.directory.streams["docs/a"]
    for pack in ("p1", "p2"):
        world.apply(1, PublishSlices(pack, 1, 1, [(stream.uid, world.slice_of(stream, 2, pack))]))
    old = machine_from(
        as_the_first_release(snapshot_of(machine)), lambda position, uid: world.payloads[position]
    )
    restored = old.directory.streams["docs/a"]
    assert list(old.packs.index_of(restored)) == [
        as_v1(cold) for cold in machine.packs.index_of(stream)
    ]
    assert restored.cold is not None
    assert [time_ms_max(restored.cold, at) for at in range(2)] == [400, 600], (
        "at most that of what follows"
    )
    assert old.apply(Trim([(stream.uid, 2, 20)], 900)).detail == [(2, 20, 2, 20)]
    assert list(old.packs.held) == ["p2"]
