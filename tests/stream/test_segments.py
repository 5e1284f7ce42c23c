"""Rollovers of leased streams, as a group's log applies them."""

from __future__ import annotations

from worlds.stream import raw_batch

from polynya.base.limits import SEGMENTS_KEPT_MAX
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.retention.commands import Trim
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.features.segments.rules import open_segments, segments_of
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding, SegmentLimits
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import machine_from, snapshot_of
from polynya.stream.state.model import Segments

NAME = "test/a"


def leased() -> Machine:
    machine = Machine(1)
    limits = SegmentLimits(2, 0, 3)
    assert machine.apply(Create(NAME, 1, "text/plain", Encoding.BYTES, segments=limits)).code == (
        Code.CREATED
    )
    return machine


def appended(machine: Machine, count: int) -> None:
    for _ in range(count):
        assert machine.apply(Append(NAME, 2, "text/plain", raw_batch(b"x"))).code == Code.OK


def rolled(machine: Machine, epoch: int, writer: int = 2) -> Reply:
    return machine.apply(Rollover(NAME, machine.directory.streams[NAME].uid, epoch, writer, 5))


def chain(machine: Machine) -> Segments:
    segments = segments_of(machine.directory.streams[NAME])
    assert segments is not None
    return segments


def test_a_rollover_closes_the_epoch_that_it_names_once() -> None:
    machine = leased()
    appended(machine, 3)
    reply = rolled(machine, 1)
    assert (reply.code, reply.detail) == (Code.OK, (2, 2))
    repeat = rolled(machine, 1, writer=1)
    assert (repeat.code, repeat.detail) == (Code.FENCED, (2, 2))
    assert rolled(machine, 3).code == Code.FENCED
    found = chain(machine)
    assert (found.epoch, found.writer, found.record, found.byte, found.opened_ms) == (2, 2, 3, 3, 5)
    assert [(each.epoch, each.writer, each.record) for each in found.sealed] == [(1, 3, 0)]
    assert [each.writer for _, each in open_segments(machine)] == [2]


def test_only_an_open_leased_stream_rolls_over() -> None:
    machine = leased()
    uid = machine.directory.streams[NAME].uid
    assert machine.apply(Rollover(NAME, uid + 1, 1, 2, 5)).code == Code.NOT_FOUND
    assert machine.apply(Rollover("test/b", uid, 1, 2, 5)).code == Code.NOT_FOUND
    machine.apply(Append(NAME, 2, "", None, close=True))
    assert rolled(machine, 1).code == Code.REFUSED
    assert not list(open_segments(machine))
    other = machine.apply(Create("test/b", 1, "text/plain", Encoding.BYTES))
    assert machine.apply(Rollover("test/b", other.uid, 1, 2, 5)).code == Code.REFUSED
    machine.apply(Delete(NAME, 3))
    assert not machine.directory.leased


def test_trimmed_segments_and_the_oldest_leave_the_list() -> None:
    machine = leased()
    uid = machine.directory.streams[NAME].uid
    for epoch in range(1, 5):
        appended(machine, 2)
        assert rolled(machine, epoch).code == Code.OK
    machine.apply(Trim([(uid, 5, 5)], 3))
    appended(machine, 2)
    assert rolled(machine, 5).code == Code.OK
    assert [each.epoch for each in chain(machine).sealed] == [3, 4, 5], "3 has a record left"
    for epoch in range(6, 6 + SEGMENTS_KEPT_MAX + 10):
        appended(machine, 1)
        assert rolled(machine, epoch).code == Code.OK
    kept = chain(machine).sealed
    assert len(kept) == SEGMENTS_KEPT_MAX
    assert kept[-1].epoch == chain(machine).epoch - 1


def test_segments_are_part_of_snapshots() -> None:
    machine = leased()
    appended(machine, 2)
    rolled(machine, 1)
    again = machine_from(snapshot_of(machine), lambda position, uid: b"x")
    assert snapshot_of(again) == snapshot_of(machine)
    assert chain(again) == chain(machine)
    assert [each.writer for _, each in open_segments(again)] == [2]
    assert again.counters.level == 3, "a node without peers has no SetLevel"
