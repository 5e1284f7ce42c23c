"""Commands that set values of a group: tags 80, 89 and 90."""

from __future__ import annotations

from polynya.base.levels import LEVEL
from polynya.stream.command import Command, command
from polynya.stream.command_validation import COUNTER, NONE


def _key(command: MetaSet) -> str:
    return (
        f"'{command.key[:100]}' is not a valid key: a key is a non-empty word without a slash"
        if not command.key or "/" in command.key
        else ""
    )


def _scope(command: MetaChange) -> str:
    if not command.scope or "/" in command.scope:
        return (
            f"'{command.scope[:100]}' is not a valid settings scope: a scope is a non-empty word "
            "without a slash"
        )
    return "" if all(key for key, _ in command.changes) else "a setting has an empty key"


def _level(command: SetLevel) -> str:
    if not 1 <= command.level <= LEVEL:
        return f"the command sets level {command.level}; this release supports levels up to {LEVEL}"
    return ""


@command(since=1, bounds=NONE, check=_key)
class MetaSet(Command, tag=80, frozen=True, gc=False):
    """Set a key in the meta group unless it has a value. The reply's detail is the resulting
    value."""

    key: str
    value: bytes


@command(since=1, bounds={"version": COUNTER}, check=_scope)
class MetaChange(Command, tag=89, frozen=True, gc=False):
    """Change keys of a scope atomically (None deletes) in the meta group, if it is at `version`.
    Detail: the resulting version."""

    scope: str
    version: int
    changes: list[tuple[str, bytes | None]]


@command(since=1, bounds={"level": None}, check=_level)
class SetLevel(Command, tag=90, frozen=True, gc=False):
    """Raise the group's feature level: later entries follow its rules (base/levels.py). Logged once
    all nodes support it."""

    level: int
