"""Invariants of every command that a node applies, independent of what clients notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polynya.stream.command import Command
from polynya.stream.features.consumer_groups.commands import CommitOffsets, ConsumerPut
from polynya.stream.features.consumer_groups.modern_records import Holdings
from polynya.stream.features.consumer_groups.state import CONSUMER
from polynya.stream.features.profiles.commands import Profile, SealProfileEpoch, SetProfile
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply


def check_promises(machine: Machine, command: Command, reply: Reply) -> None:
    """Check the invariants after the command. Raises AssertionError."""
    check = _CHECKS.get(type(command))
    if check is not None and reply.code == Code.OK:
        check(machine, command, reply)


def _names_what_it_closed(machine: Machine, command: Rollover, reply: Reply) -> None:
    opened, _ = reply.detail
    assert opened == command.epoch + 1, (
        f"{command.name}: the rollover of segment {command.epoch} closed segment {opened - 1}"
    )


def _has_nothing_hot(
    machine: Machine, command: SetProfile | SealProfileEpoch, reply: Reply
) -> None:
    profile, epoch, changes = reply.detail
    stream = machine.directory.streams.get(command.name)
    assert profile != Profile.DISKLESS or changes or stream is None or not stream.hot, (
        f"{command.name} is diskless from epoch {epoch} on, and has hot records"
    )


def _is_of_this_generation(machine: Machine, command: CommitOffsets, reply: Reply) -> None:
    group = machine.consumer_groups.get(command.id)
    if group is not None and group.kind == CONSUMER:
        return  # members have epochs of their own
    assert group is not None and command.generation in (-1, group.generation), (
        f"group {command.id} took a commit of generation {command.generation}: {group}"
    )


def _gives_no_partition_two_owners(machine: Machine, command: ConsumerPut, reply: Reply) -> None:
    group = machine.consumer_groups.get(command.id)
    owners: dict[tuple[bytes, int], str] = {}
    for member in group.members if group is not None else ():
        for position in Holdings.unpacked(member.assignment).assigned():
            other = owners.setdefault(position, member.id)
            assert other == member.id, f"{command.id}: {position} is of {other} and {member.id}"


_CHECKS: dict[type[Command], Callable[[Machine, Any, Reply], None]] = {
    Rollover: _names_what_it_closed,
    SetProfile: _has_nothing_hot,
    SealProfileEpoch: _has_nothing_hot,
    CommitOffsets: _is_of_this_generation,
    ConsumerPut: _gives_no_partition_two_owners,
}
