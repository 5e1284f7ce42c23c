"""Entries of a core's groups: numbered in order, applied once, retracted when they are nowhere,
replayed without a hole."""

from __future__ import annotations

import pytest

from polynya.base.errors import CorruptData
from polynya.replica import CoreReplicas, Group, PendingEntry
from polynya.replica.log import decode_command, encode_command
from polynya.stream.command import Command
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.machine import Machine
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import snapshot_of


def core_replicas_of(*groups: int) -> CoreReplicas:
    core_replicas = CoreReplicas()
    for number in groups:
        core_replicas.groups[number] = Group(number, Machine(number, 4))
    return core_replicas


def entry_of(core_replicas: CoreReplicas, group: int, command: Command) -> PendingEntry:
    entry = PendingEntry(group, command, encode_command(command), None)
    core_replicas.number([entry])
    return entry


def create(name: str) -> Create:
    return Create(name, 1, "text/plain", 0)


def test_each_group_counts_for_itself_and_nothing_shows_before_it_is_committed() -> None:
    core_replicas = core_replicas_of(1, 2)
    entries = [
        entry_of(core_replicas, group, create(f"test/{n}")) for n, group in enumerate((1, 2, 1))
    ]
    assert [(entry.term, entry.index) for entry in entries] == [(1, 1), (1, 1), (1, 2)]
    assert not core_replicas.groups[1].machine.directory.streams
    assert [core_replicas.commit(entry).code for entry in entries] == [Code.CREATED] * 3
    assert list(core_replicas.groups[1].machine.directory.streams) == ["test/0", "test/2"]


def test_entries_are_applied_in_order_and_once() -> None:
    core_replicas = core_replicas_of(1)
    first, second = (
        entry_of(core_replicas, 1, create("test/a")),
        entry_of(core_replicas, 1, create("test/b")),
    )
    with pytest.raises(AssertionError):
        core_replicas.commit(second)
    core_replicas.commit(first)
    with pytest.raises(AssertionError):
        core_replicas.commit(first)


def test_retracted_entries_give_their_indexes_back() -> None:
    core_replicas = core_replicas_of(1, 2)
    core_replicas.commit(entry_of(core_replicas, 1, create("test/a")))
    lost = [
        entry_of(core_replicas, 1, create("test/b")),
        entry_of(core_replicas, 1, create("test/c")),
        entry_of(core_replicas, 2, create("test/d")),
    ]
    core_replicas.retract(lost)
    again = entry_of(core_replicas, 1, create("test/e"))
    assert (again.index, core_replicas.groups[2].last_index) == (2, 0)
    core_replicas.commit(again)
    assert list(core_replicas.groups[1].machine.directory.streams) == ["test/a", "test/e"]


def test_a_replay_gives_the_same_state_and_refuses_a_hole() -> None:
    core_replicas, twin = core_replicas_of(1), core_replicas_of(1)
    commands: list[Command] = [create("test/a"), create("test/b"), Delete("test/a", 2)]
    for position, command in enumerate(commands, start=1):
        entry = entry_of(core_replicas, 1, command)
        entry.position = position
        core_replicas.commit(entry)
        assert (
            twin.replay(1, entry.term, entry.index, entry.payload, position)
            == command
            == decode_command(entry.payload)
        )
    assert snapshot_of(twin.groups[1].machine) == snapshot_of(core_replicas.groups[1].machine)
    with pytest.raises(CorruptData, match="entries are missing"):
        twin.replay(1, 1, 5, encode_command(create("test/c")), 9)
