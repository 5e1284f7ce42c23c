"""Properties that stories do not show: cost, bounds, damaged snapshots, and agreement with
neighbours."""

import tracemalloc

import msgspec
import pytest
from worlds.stream import World, raw_batch

from polynya.base.errors import ConfigError, CorruptData
from polynya.base.limits import HOT_BYTES_PER_GROUP
from polynya.local.api import Position
from polynya.stream import read_plan
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import RefuseAttempt
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch, Fork, Producer
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import machine_from, snapshot_of
from polynya.stream.state import changes as changes_module


def test_an_idle_stream_costs_less_than_two_kilobytes() -> None:
    count = 100_000
    encoded = [
        msgspec.msgpack.encode(Create(f"docs/agent-{i:08d}/session", i, "application/json", 1))
        for i in range(count)
    ]
    decoder = msgspec.msgpack.Decoder(Create)
    machine = Machine(1)
    tracemalloc.start()
    for command in encoded:
        machine.apply(decoder.decode(command))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(machine.directory.streams) == count
    assert size / count < 800, f"{size / count:.0f} bytes a stream"


def test_positions_mean_the_same_in_the_service() -> None:
    assert (Position.START, Position.NOW, Position.AT_BYTE) == (
        read_plan.START,
        read_plan.NOW,
        read_plan.AT_BYTE,
    )


def test_hot_bytes_are_counted_and_not_bounded_by_the_machine() -> None:
    """The bound is a setting of the node; the log means the same under any."""
    world = World(1)
    machine = world.machines[1]
    big = Batch(0, 1, bytes(HOT_BYTES_PER_GROUP // 2), 0)
    world.apply(1, Create("docs/a", 1, "text/plain", 0, batch=big))
    stream = machine.directory.lookup("docs/a")
    assert stream is not None
    assert (
        world.apply(1, Append("docs/a", 1, "text/plain", big, Producer("p", 0, 0))).code == Code.OK
    )
    assert world.apply(1, Append("docs/a", 1, "text/plain", raw_batch(b"x"))).code == Code.OK
    assert machine.directory.hot_bytes == HOT_BYTES_PER_GROUP + 1
    world.apply(1, PublishSlices("pack", 1, 1, [(stream.uid, world.slice_of(stream, 1, "pack"))]))
    assert world.apply(1, Append("docs/a", 1, "text/plain", raw_batch(b"x"))).code == Code.OK


def test_remembered_attempts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "ATTEMPTS_REMEMBERED_MAX", 2)
    machine = Machine(1)
    for attempt in ("a1", "a2", "a3"):
        machine.apply(RefuseAttempt("docs/fork", attempt, 1))
    assert list(machine.forks.refused) == ["a2", "a3"]
    fork = Fork("a3", "docs/a", 1 << 48 | 1, 0, 0)
    assert (
        machine.apply(Create("docs/fork", 1, "text/plain", 0, fork=fork)).code
        == Code.ATTEMPT_REFUSED
    )


def test_uids_are_never_used_again() -> None:
    machine = Machine(5)
    uids = {
        machine.apply(Create("docs/a", now_ms, "text/plain", 0, ttl_seconds=0)).uid
        for now_ms in range(10)
    }
    assert uids == {5 << 48 | counter for counter in range(1, 11)}
    restored = machine_from(snapshot_of(machine), lambda position, uid: b"")
    assert restored.apply(Create("docs/b", 99, "text/plain", 0)).uid == 5 << 48 | 11


def test_a_snapshot_holds_no_payload() -> None:
    machine = Machine(1)
    machine.apply(Create("docs/a", 1, "text/plain", 0, batch=raw_batch(b"payload" * 1000)), 77)
    data = snapshot_of(machine)
    assert len(data) < 200
    asked: list[tuple[int, int]] = []

    def read_payload(position: int, uid: int) -> bytes:
        asked.append((position, uid))
        return b"payload" * 1000

    restored = machine_from(data, read_payload)
    assert asked == [(77, 1 << 48 | 1)]
    assert snapshot_of(restored) == data
    assert (restored.directory.hot_bytes, restored.directory.needed_positions()) == (7000, 77)
    assert machine.directory.lookup("docs/a") == restored.directory.lookup("docs/a")


def test_a_damaged_snapshot_or_journal_is_a_fault() -> None:
    machine = Machine(1)
    machine.apply(Create("docs/a", 1, "text/plain", 0, batch=raw_batch(b"payload")), 77)
    data = snapshot_of(machine)
    with pytest.raises(CorruptData, match="cannot be decoded"):
        machine_from(data[:-1], lambda position, uid: b"payload")
    with pytest.raises(CorruptData, match="position 77"):
        machine_from(data, lambda position, uid: b"shorter"[:-1])
    image = msgspec.msgpack.decode(data)
    image[0] = 99
    with pytest.raises(ConfigError, match="version 99"):  # a newer release wrote it
        machine_from(msgspec.msgpack.encode(image), lambda position, uid: b"payload")


def test_stale_places_do_not_hide_older_ones() -> None:
    """A batch may be copied forward in the journal; the lowest position is that of any batch, not
    of the first."""
    machine = Machine(1)
    machine.apply(Create("docs/a", 1, "text/plain", 0, batch=raw_batch(b"x")), 10)
    machine.apply(Append("docs/a", 1, "text/plain", raw_batch(b"y")), 20)
    ((_, hot),) = machine.directory.flush_candidates()
    hot[0].position = 30
    assert machine.directory.needed_positions() == 20


def test_the_outbox_may_have_any_command() -> None:
    machine = Machine(1)
    sent = (2, Append("docs/a", 1, "text/plain", raw_batch(b"x")))
    machine.outbox.send(*sent)
    restored = machine_from(snapshot_of(machine), lambda position, uid: b"")
    assert restored.outbox.messages == {1: sent}
