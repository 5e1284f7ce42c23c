"""Commands that set values of a group: tags 80, 89 and 90."""

from __future__ import annotations

from polynya.stream.command import Command


class MetaSet(Command, tag=80, frozen=True, gc=False):
    """Set a key in the meta group unless it has a value. The reply's detail is the resulting
    value."""

    key: str
    value: bytes


class MetaChange(Command, tag=89, frozen=True, gc=False):
    """Change keys of a scope atomically (None deletes) in the meta group, if it is at `version`.
    Detail: the resulting version."""

    scope: str
    version: int
    changes: list[tuple[str, bytes | None]]


class SetLevel(Command, tag=90, frozen=True, gc=False):
    """Raise the group's feature level: later entries follow its rules (base/levels.py). Logged once
    all nodes support it."""

    level: int
