"""The state of the registry after a part of the topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from polynya.registry.records import (
    Content,
    Version,
    read_object,
    version_of,
)

SubjectVersion = tuple[str, int]  # subject, version
READWRITE, READONLY, READONLY_OVERRIDE, IMPORT = (
    "READWRITE",
    "READONLY",
    "READONLY_OVERRIDE",
    "IMPORT",
)
LEVEL_DEFAULT = "BACKWARD"


class View:
    """All versions by subject and by id, with configs and modes.

    Invariants: a version is in `subjects` and in `by_id`; a content that some version has is in
    `ids` with its smallest id; `id_max` is at least each id that was ever seen."""

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, Version]] = {}
        self.by_id: dict[int, dict[SubjectVersion, Version]] = {}
        self.ids: dict[Content, int] = {}
        self.referrers: dict[SubjectVersion, set[SubjectVersion]] = {}
        self.configs: dict[str | None, dict[str, Any]] = {}  # None: of all subjects
        self.modes: dict[str | None, str] = {}
        self.id_max = 0
        self.history: int | None = None  # in which ids were given; None: no node has said
        self.size = 0  # bytes of names and texts
        self.versions = 0
        self.skipped = 0  # records that are not understood

    # --- records ----------------------------------------------------------------------------------

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a record of the topic. What is not understood is skipped and counted."""
        named, found = read_object(key), read_object(value)
        kind = None if named is None else named.get("keytype")
        rule = _RULES.get(kind) if isinstance(kind, str) else None
        if named is None or rule is None or (value is not None and found is None):
            self.skipped += 1
            return
        subject = named.get("subject")
        if subject is not None and not isinstance(subject, str):
            self.skipped += 1
            return
        rule(self, subject, named, found)

    def _schema(
        self, subject: str | None, key: dict[str, Any], value: dict[str, Any] | None
    ) -> None:
        number = key.get("version")
        if subject is None or type(number) is not int:
            self.skipped += 1
        elif value is None:
            self._remove(subject, number)
        elif (found := version_of(value, subject, number)) is None:
            self.skipped += 1
        else:
            self._put(found)

    def _deleted(
        self, subject: str | None, key: dict[str, Any], value: dict[str, Any] | None
    ) -> None:
        if subject is None or value is None:
            return
        last = value.get("version")
        for each in [*self.subjects.get(subject, {}).values()]:
            if type(last) is int and each.version <= last and not each.deleted:
                self._put(structs.replace(each, deleted=True))

    def _cleared(
        self, subject: str | None, key: dict[str, Any], value: dict[str, Any] | None
    ) -> None:
        if subject is not None and value is not None:
            for each in [*self.subjects.get(subject, {}).values()]:
                if each.deleted:
                    self._remove(subject, each.version)

    def _config(
        self, subject: str | None, key: dict[str, Any], value: dict[str, Any] | None
    ) -> None:
        if value is None:
            self.configs.pop(subject, None)
        else:
            self.configs[subject] = value

    def _mode(self, subject: str | None, key: dict[str, Any], value: dict[str, Any] | None) -> None:
        mode = None if value is None else value.get("mode")
        if isinstance(mode, str):
            self.modes[subject] = mode
        else:
            self.modes.pop(subject, None)

    def _marker(
        self, subject: str | None, key: dict[str, Any], value: dict[str, Any] | None
    ) -> None:
        own = (value or {}).get("polynya")
        if isinstance(own, dict):
            history, newest = own.get("history"), own.get("idMax")
            if type(history) is int and type(newest) is int:
                self.history = history
                self.id_max = max(self.id_max, newest)

    def _put(self, version: Version) -> None:
        self._remove(version.subject, version.version)
        key = (version.subject, version.version)
        known = self.ids.get(version.content)
        if known is not None and (same := next(iter(self.by_id.get(known, {}).values()), None)):
            version = structs.replace(version, content=same.content)  # one text in memory
        self.subjects.setdefault(version.subject, {})[version.version] = version
        self.by_id.setdefault(version.id, {})[key] = version
        self.ids[version.content] = version.id if known is None else min(known, version.id)
        self.id_max = max(self.id_max, version.id)
        for each in version.content.references:
            self.referrers.setdefault((each.subject, each.version), set()).add(key)
        self.versions += 1
        self.size += _size(version)

    def _remove(self, subject: str, number: int) -> None:
        version = self.subjects.get(subject, {}).pop(number, None)
        if version is None:
            return
        if not self.subjects[subject]:
            del self.subjects[subject]
        key = (subject, number)
        sharing = self.by_id[version.id]
        del sharing[key]
        if not sharing:
            del self.by_id[version.id]
            if self.ids.get(version.content) == version.id:
                del self.ids[version.content]
        for each in version.content.references:
            self.referrers.get((each.subject, each.version), set()).discard(key)
        self.versions -= 1
        self.size -= _size(version)

    # --- look-ups ---------------------------------------------------------------------------------

    def all_of(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """Return the versions of a subject in their order. `deleted`: also those that are
        soft-deleted."""
        found = self.subjects.get(subject, {})
        return [found[number] for number in sorted(found) if deleted or not found[number].deleted]

    def sharing(self, id_: int) -> Iterator[Version]:
        """Iterate over the versions with an id, by subject and version."""
        found = self.by_id.get(id_, {})
        return (found[key] for key in sorted(found))

    def same(self, subject: str, content: Content, *, deleted: bool = False) -> Version | None:
        """Return the newest version of a subject with this content."""
        found = self.all_of(subject, deleted=deleted)
        return next((each for each in reversed(found) if each.content == content), None)

    def users_of(self, version: Version) -> list[Version]:
        """Return the versions that refer to one and are not soft-deleted."""
        keys = self.referrers.get((version.subject, version.version), set())
        found = (self.subjects[subject][number] for subject, number in sorted(keys))
        return [each for each in found if not each.deleted]

    def level_of(self, subject: str) -> str:
        """Return the compatibility level of a subject: its own, else that of all, else the
        default."""
        for scope in (subject, None):
            level = self.configs.get(scope, {}).get("compatibilityLevel")
            if isinstance(level, str):
                return level
        return LEVEL_DEFAULT

    def normalizes(self, subject: str) -> bool:
        """Report whether the texts of a subject are normalized unasked."""
        for scope in (subject, None):
            wanted = self.configs.get(scope, {}).get("normalize")
            if isinstance(wanted, bool):
                return wanted
        return False

    def mode_of(self, subject: str | None) -> str:
        """Return the mode of a subject: its own, else that of all. READONLY_OVERRIDE of all
        precedes both."""
        general = self.modes.get(None, READWRITE)
        if subject is None or general == READONLY_OVERRIDE:
            return general
        return self.modes.get(subject, general)


def _size(version: Version) -> int:
    return len(version.subject) + len(version.content.text) + len(version.content.extra)


_RULES = {
    "SCHEMA": View._schema,
    "DELETE_SUBJECT": View._deleted,
    "CLEAR_SUBJECT": View._cleared,
    "CONFIG": View._config,
    "MODE": View._mode,
    "NOOP": View._marker,
}
