"""The level at which a group works: which rules its log is applied by (base/levels.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from polynya.base.levels import LEVELS, check_level
from polynya.stream.commands import Command, SetLevel
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


def level_of(kind: type[Command]) -> int:
    """The level that a group must have reached before a command of this kind is logged."""
    return LEVELS.get(tag_of(kind), 1)


def tag_of(kind: type[Command]) -> int:
    """The number that stands for this kind in logs. It stays when the class is renamed."""
    tag = kind.__struct_config__.tag
    assert isinstance(tag, int)
    return tag


def apply_set_level(machine: Machine, command: SetLevel, place: int) -> Reply:
    """It never goes back. Raises ConfigError for a level that this release does not know: from here on it would not know what to do."""
    check_level(command.level, machine.group)
    machine.level = max(machine.level, command.level)
    return Reply(Code.OK, detail=machine.level)


RULES: dict[type[Command], Callable[[Machine, Any, int], Reply]] = {SetLevel: apply_set_level}
