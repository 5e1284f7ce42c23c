"""Cluster-wide settings in the meta group, changed by compare-and-swap on a scope's version, and
the feature level of a group. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.levels import check_level
from polynya.stream.command import applies
from polynya.stream.features.settings.commands import MetaChange, MetaSet, SetLevel
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


@applies(MetaChange)
def apply_meta_change(machine: Machine, command: MetaChange, position: int) -> Reply:
    """Change keys of a scope at the expected version. NOT_YET: the version differs. Detail: the
    current version."""
    version = version_of(machine.meta.settings, command.scope)
    if version != command.version:
        return Reply(Code.NOT_YET, detail=version)
    for key, value in command.changes:
        name = f"{command.scope}/{key}"
        if value is None:
            machine.meta.settings.pop(name, None)
        else:
            machine.meta.settings[name] = value
    machine.meta.settings[command.scope] = b"%d" % (version + 1)
    return Reply(Code.OK, detail=version + 1)


def version_of(meta: dict[str, bytes], scope: str) -> int:
    """Return the number of changes to the scope so far, or -1 if its name holds a value that is no
    number."""
    value = meta.get(scope, b"0")
    return int(value) if value.isdigit() and len(value) <= 20 else -1


def values_of(meta: dict[str, bytes], scope: str) -> dict[str, bytes]:
    """Return the settings of a scope, by key."""
    begin = f"{scope}/"
    return {
        name.removeprefix(begin): value for name, value in meta.items() if name.startswith(begin)
    }


@applies(MetaSet)
def apply_meta_set(machine: Machine, command: MetaSet, position: int) -> Reply:
    """Set a key that has no value yet: OK, or EXISTS with the present value as detail."""
    value = machine.meta.settings.setdefault(command.key, command.value)
    return Reply(Code.OK if value == command.value else Code.EXISTS, detail=value)


@applies(SetLevel)
def apply_set_level(machine: Machine, command: SetLevel, position: int) -> Reply:
    """Raise the group's level; it never goes down. Raises ConfigError for a level that this release
    does not support."""
    check_level(command.level, machine.group)
    machine.counters.raise_level(command.level)
    return Reply(Code.OK, detail=machine.counters.level)
