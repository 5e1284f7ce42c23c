"""Invariants of every command that a node applies, independent of what clients notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polynya.stream.command import Command
from polynya.stream.features.consumer_groups.commands import CommitOffsets
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
    assert group is not None and command.generation in (-1, group.generation), (
        f"group {command.id} took a commit of generation {command.generation}: {group}"
    )


_CHECKS: dict[type[Command], Callable[[Machine, Any, Reply], None]] = {
    Rollover: _names_what_it_closed,
    SetProfile: _has_nothing_hot,
    SealProfileEpoch: _has_nothing_hot,
    CommitOffsets: _is_of_this_generation,
}
