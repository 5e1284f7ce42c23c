"""A state that is captured in slices while the log goes on is that of one moment, and the snapshots
miss nothing of it."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from worlds.backup import file_of
from worlds.stream import raw_batch

from polynya.backup.group_file import Header, machine_of, pack_header, parse
from polynya.base.errors import Unavailable
from polynya.base.names import group_of
from polynya.engine.snapshots import capture as capturing
from polynya.engine.snapshots import encode as encoding
from polynya.engine.snapshots.capture import Captured, captured
from polynya.engine.snapshots.encode import encode_delta, encode_since_copy
from polynya.replica import Group
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots.encode import snapshot_of
from polynya.stream.state.changes import SinceCopy

NAMES = [name for name in (f"docs/s{number}" for number in range(2000)) if group_of(name, 4) == 1][
    :300
]


class Busy:
    """A group to which something happens in every pass of the loop."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.group = Group(1, Machine(1, 4), term=3)
        for name in NAMES[:250]:
            self.apply(Create(name, 1, "text/plain", Encoding.BYTES, batch=raw_batch(b"first")))

    def apply(self, command: Any) -> None:
        self.group.machine.apply(command, self.group.applied_index + 1)
        self.group.applied_index += 1

    def happen(self) -> None:
        name = self.random.choice(NAMES)
        if self.group.machine.directory.lookup(name) is None:
            self.apply(Create(name, 2, "text/plain", Encoding.BYTES))
        elif self.random.random() < 0.2:
            self.apply(Delete(name, 3))
        else:
            self.apply(Append(name, 3, "text/plain", raw_batch(b"more")))

    async def go_on(self, times: int) -> None:
        while True:
            for _ in range(times):
                self.happen()
            await asyncio.sleep(0)


def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "SLICE_BYTES", 500)
    monkeypatch.setattr(capturing, "AT_ONCE", 3)


def seen_moments(monkeypatch: pytest.MonkeyPatch, busy: Busy) -> list[bytes]:
    """The group files of the moments that are said."""
    moment, found = capturing._moment, list[bytes]()

    def seen(group: Group, streams: Any) -> Any:
        found.append(file_of(1, group.machine, (group.term, group.applied_index), 7))
        return moment(group, streams)

    monkeypatch.setattr(capturing, "_moment", seen)
    return found


def file_bytes(found: Captured) -> bytes:
    header = Header(
        1, found.term, found.index, 7, found.state_bytes, found.state_crc, found.batches
    )
    return b"".join([pack_header(header), *found.state, *found.hot])


@pytest.mark.parametrize("seed", range(6))
def test_what_is_captured_is_the_state_at_one_moment(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    small_slices(monkeypatch)
    busy = Busy(seed)
    moments = seen_moments(monkeypatch, busy)

    async def story() -> Captured:
        going = asyncio.ensure_future(busy.go_on(1 + seed))
        try:
            return await captured(busy.group, asyncio.Lock(), hot=True)
        finally:
            going.cancel()

    found = asyncio.run(story())
    assert parse(moments[0], 1) == parse(file_bytes(found), 1) and found.index > 251
    machine = machine_of(parse(file_bytes(found), 1))
    kept = [
        stream.next_record - stream.first_record for stream in machine.directory.streams.values()
    ]
    assert (found.streams, found.records, found.hot_bytes) == (
        len(kept),
        sum(kept),
        machine.directory.hot_bytes,
    )


def test_the_next_snapshot_has_all_that_changed_before_and_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_slices(monkeypatch)
    busy = Busy(9)

    async def story() -> bytes:
        base = (await encode_delta(busy.group, whole=True)).body
        for _ in range(30):
            busy.happen()
        going = asyncio.ensure_future(busy.go_on(2))
        await captured(busy.group, asyncio.Lock(), hot=False)
        going.cancel()
        changed = (await encode_delta(busy.group, whole=False)).body
        return deltas.merge(
            [
                deltas.SnapshotPart(b"".join(base), delta=True),
                deltas.SnapshotPart(b"".join(changed), delta=True, root=False),
            ]
        )

    assert asyncio.run(story()) == snapshot_of(busy.group.machine)


@pytest.mark.parametrize("times", [1, 40])
def test_the_changes_since_a_copy_are_all_of_one_moment(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Seed 20261826 of the swarm: the streams that changed during the last pass were missing."""
    monkeypatch.setattr(encoding, "SLICE_BYTES", 500)
    busy, states = Busy(times), list[bytes]()
    head = deltas.encode_head

    def seen(machine: Machine, *changes: Any, whole: bool) -> bytes:
        states.append(snapshot_of(machine))
        return head(machine, *changes, whole=whole)

    async def story() -> bytes:
        machine = busy.group.machine
        machine.take_changes()
        base = snapshot_of(machine)
        since = machine.kept.since_copy = SinceCopy(0)
        for _ in range(60):
            busy.happen()
        monkeypatch.setattr(deltas, "encode_head", seen)
        going = asyncio.ensure_future(busy.go_on(times))
        await asyncio.sleep(0)
        changed = (await encode_since_copy(busy.group, since)).body
        going.cancel()
        part = deltas.SnapshotPart(b"".join(changed), delta=True, root=False)
        return deltas.merge([deltas.SnapshotPart(base), part])

    assert [asyncio.run(story())] == states


def test_a_group_that_goes_on_from_another_state_is_captured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_slices(monkeypatch)
    busy = Busy(1)

    async def story() -> None:
        going = asyncio.ensure_future(captured(busy.group, asyncio.Lock(), hot=False))
        await asyncio.sleep(0)
        busy.group.machine = Machine(1, 4)
        with pytest.raises(Unavailable, match="from another node replaced"):
            await going

    asyncio.run(story())


def test_an_empty_group_has_a_state_too() -> None:
    machine = Machine(2, 4)
    group: Any = SimpleNamespace(number=2, machine=machine, term=0, applied_index=0)
    found = asyncio.run(captured(group, asyncio.Lock(), hot=True))
    assert b"".join(found.state) == snapshot_of(machine) and found.hot == []
