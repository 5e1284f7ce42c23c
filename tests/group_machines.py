"""A stream machine in tests of consumer groups: what it answers, holds and stores."""

from __future__ import annotations

from polynya.stream.command import Command
from polynya.stream.features.consumer_groups.state import ConsumerGroups
from polynya.stream.machine import Machine
from polynya.stream.snapshots.encode import machine_from, snapshot_of


def codes(machine: Machine, *commands: Command) -> list[int]:
    return [machine.apply(command).code for command in commands]


def offsets(machine: Machine) -> dict[tuple[bytes, int], int]:
    """Return the offsets of the group `g`, by topic and partition."""
    group = machine.consumer_groups.get("g")
    return {
        (entry.topic, entry.partition): entry.offset
        for entry, _ in (group.entries() if group else ())
    }


def checked(machine: Machine) -> Machine:
    """Check that the bytes are those of the groups, and that a snapshot has all."""
    known = machine.consumer_groups
    assert known.bytes == ConsumerGroups(known.by_id.values()).bytes
    again = machine_from(snapshot_of(machine), lambda position, uid: b"")
    assert again.consumer_groups.by_id == known.by_id
    assert again.consumer_groups.bytes == known.bytes
    assert snapshot_of(again) == snapshot_of(machine)
    return machine
