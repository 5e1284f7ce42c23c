"""The attributes of streams in the machine: the bound of a group, and what keeps and drops them."""

from __future__ import annotations

import pytest
from worlds.stream import World, json_batch

from polynya.base.levels import ATTRIBUTES_LEVEL
from polynya.base.limits import ATTRS_BYTES_MAX, ATTRS_GROUP_BYTES
from polynya.stream.command import Command
from polynya.stream.features.attributes import held
from polynya.stream.features.attributes.commands import SetAttributes
from polynya.stream.features.attributes.held import attributes_of
from polynya.stream.features.lifetimes.commands import Create, CreateWithAttributes, Delete
from polynya.stream.features.pages.eviction import state_of
from polynya.stream.machine import Machine
from polynya.stream.parts import Retention
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import machine_from, snapshot_of
from polynya.stream.snapshots.restore_history import UID_JUMP

JSON = "application/json"


def of(size: int) -> bytes:
    """Build attributes of so many bytes."""
    return b'{"a":"%b"}' % (b"x" * (size - 8))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose groups hold 100 bytes of attributes."""
    monkeypatch.setattr(held, "ATTRS_GROUP_BYTES", 100)
    return World()


def apply(world: World, command: Command) -> Reply:
    reply = world.apply(1, command)
    world.chain(1)
    return reply


def create(world: World, *names: str) -> None:
    for name in names:
        assert apply(world, Create(name, 1, JSON, 1)).code == Code.CREATED


def test_a_group_holds_so_many_bytes_and_no_more(world: World) -> None:
    create(world, "a", "b")
    assert apply(world, SetAttributes("a", of(60), 2)).code == Code.OK
    for command in (
        SetAttributes("b", of(41), 2),
        CreateWithAttributes("c", 2, JSON, 1, attributes=of(41)),
    ):
        assert apply(world, command).code == Code.ATTRS_FULL
    assert world.machines[1].directory.lookup("c") is None
    assert apply(world, SetAttributes("b", of(40), 2)).code == Code.OK
    assert apply(world, SetAttributes("a", of(61), 2)).code == Code.ATTRS_FULL
    assert apply(world, SetAttributes("a", of(30), 2)).code == Code.OK, "smaller is always taken"
    created = apply(world, CreateWithAttributes("c", 2, JSON, 1, attributes=of(30)))
    assert created.code == Code.CREATED
    assert world.machines[1].directory.attribute_bytes == 100


def test_more_than_the_bound_may_still_become_less(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later release may have a lower bound."""
    create(world, "a")
    assert apply(world, SetAttributes("a", of(90), 2)).code == Code.OK
    monkeypatch.setattr(held, "ATTRS_GROUP_BYTES", 50)
    assert apply(world, SetAttributes("a", of(91), 2)).code == Code.ATTRS_FULL
    assert apply(world, SetAttributes("a", of(80), 2)).code == Code.OK
    assert apply(world, SetAttributes("a", None, 2)).code == Code.OK


@pytest.mark.parametrize("end", ["cleared", "deleted"])
def test_their_bytes_are_free_when_they_go(world: World, end: str) -> None:
    create(world, "a", "b")
    apply(world, SetAttributes("a", of(100), 2))
    assert apply(world, SetAttributes("b", of(10), 2)).code == Code.ATTRS_FULL
    apply(world, SetAttributes("a", None, 3) if end == "cleared" else Delete("a", 3))
    assert apply(world, SetAttributes("b", of(10), 4)).code == Code.OK


def test_a_snapshot_keeps_them_their_revisions_and_their_sum() -> None:
    machine = Machine(1, 4)
    machine.apply(Create("a", 1, JSON, 1, batch=json_batch(b"1")), 1)
    first = machine.apply(SetAttributes("a", of(50), 2), 2)
    twin = machine_from(snapshot_of(machine), lambda position, uid: b"1,")
    stream = twin.directory.streams["a"]
    assert attributes_of(stream) == attributes_of(machine.directory.streams["a"])
    assert twin.directory.attribute_bytes == 50
    assert snapshot_of(twin) == snapshot_of(machine)
    second = twin.apply(SetAttributes("a", of(50), 3, revision=first.detail), 3)
    assert second.code == Code.OK and second.detail > first.detail


def test_the_bytes_of_their_state_are_golden() -> None:
    machine = Machine(1, 4)
    machine.apply(CreateWithAttributes("a", 1, JSON, 1, attributes=b'{"a":1}'), 1)
    extras = bytes.fromhex("97c0c0c2c0c0c09202c4077b2261223a317d")
    assert extras in snapshot_of(machine)


def test_extras_without_attributes_have_the_bytes_of_before() -> None:
    """A node of an older release in the cluster has the same state."""
    machine = Machine(1, 4)
    machine.apply(Create("a", 1, JSON, 1, retention=Retention(60)), 1)
    extras = bytes.fromhex("96933cc0c2c0c2c0c0c0")
    before = snapshot_of(machine)
    assert extras in before and state_of(machine.directory.streams["a"]) in before
    machine.apply(SetAttributes("a", of(50), 2), 2)
    machine.apply(SetAttributes("a", None, 2), 3)
    assert extras in snapshot_of(machine)


def test_a_standalone_node_gets_their_level() -> None:
    for command in (
        SetAttributes("a", of(50), 2),
        CreateWithAttributes("b", 1, JSON, 1, attributes=of(50)),
    ):
        machine = Machine(1, 4)
        machine.apply(Create("a", 1, JSON, 1), 1)
        assert machine.counters.level == 1
        machine.apply(command, 2)
        assert machine.counters.level == ATTRIBUTES_LEVEL


def test_revisions_jump_with_uids_at_a_restore() -> None:
    """Both come from one counter, which a restore moves: no revision of the new history is one of
    the old."""
    machine = Machine(1, 4)
    machine.apply(Create("a", 1, JSON, 1), 1)
    machine.counters.uids += UID_JUMP
    assert machine.apply(SetAttributes("a", of(50), 2), 2).detail == UID_JUMP + 2


def test_a_stream_has_a_small_part_of_what_a_group_holds() -> None:
    assert ATTRS_BYTES_MAX * 1000 < ATTRS_GROUP_BYTES
