"""Decisions: what a request to change the registry appends to the topic, and its answer. They hold
for the view that they were made from, so the append is refused if the tail has moved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import structs

from polynya.base.limits import (
    REGISTRY_BYTES_MAX,
    REGISTRY_VERSIONS_MAX,
    SCHEMA_REFERENCES_MAX,
    SUBJECT_BYTES_MAX,
)
from polynya.registry import refused
from polynya.registry.compatibility import LEVELS, compared
from polynya.registry.records import (
    Content,
    Record,
    Reference,
    Version,
    config_record,
    delete_record,
    marker_record,
    mode_record,
    schema_key,
    schema_record,
)
from polynya.registry.refused import Refused
from polynya.registry.schemas import TYPES, Candidate
from polynya.registry.view import (
    IMPORT,
    LEVEL_DEFAULT,
    READONLY,
    READONLY_OVERRIDE,
    READWRITE,
    View,
)

ID_MAX = VERSION_MAX = 2**31 - 1
ID_JUMP = 1 << 20  # after a restore: ids that were given after the backup may be in records
MODES = (READWRITE, READONLY, READONLY_OVERRIDE, IMPORT)
_CONFIG_OF_SUBJECT = "compatibilityLevel", "normalize"


class Change(msgspec.Struct, frozen=True):
    """Records to append in one batch, and the answer; none: nothing is to be appended."""

    records: tuple[Record, ...]
    answer: Any


class Asked(msgspec.Struct, frozen=True):
    """A schema to register. `id` and `version` are of a schema that comes from another registry."""

    content: Content
    id: int | None = None
    version: int | None = None


# --- names ----------------------------------------------------------------------------------------


def check_subject(subject: str) -> None:
    """Raise Refused for a name that no subject may have."""
    if subject.startswith(":.") or subject == ":*:":
        raise Refused(
            refused.INVALID_SUBJECT,
            f"the subject '{subject[:64]}' names a context; this registry has only the default one: "
            "leave ':.CONTEXT:' out",
        )
    size = len(subject.encode("utf-8", "replace"))
    is_text = subject.isprintable() and subject.strip()
    if not is_text or size > SUBJECT_BYTES_MAX or subject in ("__GLOBAL", "__EMPTY"):
        raise Refused(
            refused.INVALID_SUBJECT,
            f"the subject '{subject[:64]}' is invalid: expected 1 to {SUBJECT_BYTES_MAX} bytes of "
            "printable text, and not __GLOBAL or __EMPTY",
        )


def find_version(view: View, subject: str, text: str, *, deleted: bool = False) -> Version:
    """Return the version of a subject that a path names. Raises Refused."""
    check_subject(subject)
    number = parse_version(text)
    found = view.all_of(subject, deleted=deleted)
    if not found and (number is None or not view.all_of(subject, deleted=True)):
        raise subject_missing(subject)
    if number is None:
        return found[-1]
    for each in found:
        if each.version == number:
            return each
    raise version_missing(number)


def parse_version(text: str) -> int | None:
    """Return the number in a path; None is the latest. Raises Refused."""
    if text in ("latest", "-1"):
        return None
    if text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= VERSION_MAX:
        return int(text)
    raise Refused(
        refused.INVALID_VERSION,
        f"The specified version '{text[:64]}' is not a valid version id. Allowed values are between "
        '[1, 2^31-1] and the string "latest"',
    )


def subject_missing(subject: str) -> Refused:
    """Return the refusal of a subject that has no versions."""
    return Refused(refused.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def version_missing(number: int) -> Refused:
    """Return the refusal of a version that a subject does not have."""
    return Refused(refused.VERSION_NOT_FOUND, f"Version {number} not found.")


def check_type(type_: str) -> None:
    """Raise Refused for a type that the registry does not know."""
    if type_ not in TYPES:
        raise Refused(
            refused.INVALID_SCHEMA,
            f"Invalid schema type {type_[:64]}: expected one of {', '.join(sorted(TYPES))}",
        )


# --- schemas --------------------------------------------------------------------------------------


def resolve(view: View, references: Iterable[Reference]) -> dict[str, str]:
    """Return the texts of references by name, those that others refer to first. Raises Refused."""
    found: dict[str, str] = {}
    seen = set[tuple[str, int]]()
    wanted: list[tuple[Reference, bool]] = [(each, False) for each in reversed([*references])]
    while wanted:
        reference, is_open = wanted.pop()
        key = (reference.subject, reference.version)
        version = view.subjects.get(reference.subject, {}).get(reference.version)
        if version is None:
            raise Refused(
                refused.INVALID_SCHEMA,
                f"Invalid schema: the reference '{reference.name}' is to version "
                f"{reference.version} of the subject '{reference.subject}', which does not exist; "
                "register that first",
            )
        if is_open:
            found.setdefault(reference.name, version.content.text)
        elif key not in seen:
            seen.add(key)
            if len(seen) > SCHEMA_REFERENCES_MAX:
                raise Refused(
                    refused.INVALID_SCHEMA,
                    f"Invalid schema: more than {SCHEMA_REFERENCES_MAX} schemas are referred to",
                )
            wanted.append((reference, True))
            wanted += [(each, False) for each in reversed(version.content.references)]
    return found


def earlier(view: View, subject: str, level: str) -> list[Version]:
    """Return the versions with which a new one is compared, the newest first."""
    found = view.all_of(subject)[::-1]
    return found[: compared(level, len(found))]


def candidate_of(view: View, version: Version) -> Candidate:
    """Return a version as it is compared. Raises Refused."""
    content = version.content
    return Candidate(content.text, resolve(view, content.references), version.version)


def check_registration(view: View, subject: str, asked: Asked) -> None:
    """Raise Refused if the mode of the subject does not allow a new version."""
    mode = view.mode_of(subject)
    if mode in (READONLY, READONLY_OVERRIDE):
        raise _not_permitted(f"Subject {subject} is in read-only mode")
    if asked.id is not None and mode != IMPORT:
        raise _not_permitted(f"Subject {subject} is not in import mode")
    if asked.id is None and mode == IMPORT:
        raise _not_permitted(f"Subject {subject} is not in read-write mode; it is in import mode")


def register(view: View, subject: str, asked: Asked, history: int) -> Change:
    """Add a version to a subject. Raises Refused."""
    content, versions = asked.content, view.all_of(subject, deleted=True)
    if view.versions >= REGISTRY_VERSIONS_MAX or view.size > REGISTRY_BYTES_MAX:
        raise _not_permitted(
            f"the registry has {view.versions:,} versions with {view.size:,} bytes; at most "
            f"{REGISTRY_VERSIONS_MAX:,} and {REGISTRY_BYTES_MAX:,} are kept: delete old ones "
            "permanently"
        )
    number = asked.version or (versions[-1].version + 1 if versions else 1)
    known = view.ids.get(content)
    id_ = asked.id if asked.id is not None else known
    is_new = id_ is None
    if id_ is None:
        id_ = next_id(view, history)
    if not 0 <= id_ <= ID_MAX or not 1 <= number <= VERSION_MAX:
        raise _not_permitted(f"id {id_} or version {number} is above {ID_MAX}")
    if asked.id is not None:
        _check_import(view, subject, asked, number)
    records = [schema_record(Version(subject, number, id_, content))]
    if is_new and view.history != history:
        records.append(marker_record(history, id_))
    return Change(tuple(records), {"id": id_, "version": number})


def next_id(view: View, history: int) -> int:
    """Return the id of a new schema. After a restore it is far behind the last one that is
    known."""
    was_restored = view.history not in (None, history)
    return view.id_max + (ID_JUMP if was_restored and view.id_max else 1)


def _check_import(view: View, subject: str, asked: Asked, number: int) -> None:
    other = next(view.sharing(asked.id or 0), None)
    if other is not None and other.content != asked.content:
        raise _not_permitted(f"Overwrite new schema with id {asked.id} is not permitted.")
    held = view.subjects.get(subject, {}).get(number)
    if held is not None and held.content != asked.content:
        raise _not_permitted(f"version {number} of subject {subject} is another schema")


# --- deletions ------------------------------------------------------------------------------------


def delete_version(view: View, subject: str, text: str, *, permanent: bool, history: int) -> Change:
    """Delete a version of a subject. Raises Refused."""
    check_subject(subject)
    number = parse_version(text)
    every = view.all_of(subject, deleted=True)
    if not every or (number is None and not permanent and not view.all_of(subject)):
        raise subject_missing(subject)
    left = every if permanent or number is not None else view.all_of(subject)
    found = next((each for each in left[::-1] if number in (None, each.version)), None)
    if found is None:
        raise version_missing(number or 0)
    _check_writable(view, subject)
    _check_unused(view, [found])
    if permanent and not found.deleted:
        raise Refused(
            refused.VERSION_NOT_SOFT_DELETED,
            f"Subject '{subject}' Version {found.version} was not deleted first before being "
            "permanently deleted",
        )
    if not permanent and found.deleted:
        raise Refused(
            refused.VERSION_SOFT_DELETED,
            f"Subject '{subject}' Version {found.version} was soft deleted. Set permanent=true to "
            "delete permanently",
        )
    if permanent:
        key = schema_key(subject, found.version)
        return Change(((key, None), _kept_ids(view, history)), found.version)
    records = [schema_record(structs.replace(found, deleted=True))]
    if len(view.all_of(subject)) == 1:
        records += _without_settings(view, subject)
    return Change(tuple(records), found.version)


def delete_subject(view: View, subject: str, *, permanent: bool, history: int) -> Change:
    """Delete a subject. The answer has the versions. Raises Refused."""
    check_subject(subject)
    every, found = view.all_of(subject, deleted=True), view.all_of(subject)
    if not every:
        raise subject_missing(subject)
    _check_writable(view, subject)
    if permanent and found:
        raise Refused(
            refused.SUBJECT_NOT_SOFT_DELETED,
            f"Subject '{subject}' was not deleted first before being permanently deleted",
        )
    if not permanent and not found:
        raise Refused(
            refused.SUBJECT_SOFT_DELETED,
            f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently",
        )
    _check_unused(view, every if permanent else found)
    if permanent:
        gone: list[Record] = [(schema_key(subject, each.version), None) for each in every]
        return Change((*gone, _kept_ids(view, history)), [each.version for each in every])
    last = delete_record(subject, every[-1].version)
    records = [last, *_without_settings(view, subject)]
    return Change(tuple(records), [each.version for each in found])


def _check_writable(view: View, subject: str) -> None:
    if view.mode_of(subject) in (READONLY, READONLY_OVERRIDE):
        raise _not_permitted(f"Subject {subject} is in read-only mode")


def _check_unused(view: View, versions: list[Version]) -> None:
    for each in versions:
        users = [
            user
            for user in view.users_of(each)
            if user.subject != each.subject or len(versions) == 1
        ]
        if users:
            raise Refused(
                refused.REFERENCE_EXISTS,
                f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,"
                f"subject={each.subject},version={each.version}}}: version {users[0].version} of "
                f"subject {users[0].subject} has one",
            )


def _kept_ids(view: View, history: int) -> Record:
    """Return the marker by which the ids of deleted schemas are not given again."""
    return marker_record(history if view.history is None else view.history, view.id_max)


def _without_settings(view: View, subject: str) -> list[Record]:
    """Return the records that remove config and mode of a subject."""
    found: list[Record] = []
    if subject in view.configs:
        found.append(config_record(subject, None))
    if subject in view.modes:
        found.append(mode_record(subject, None))
    return found


# --- settings -------------------------------------------------------------------------------------


def set_config(
    view: View, subject: str | None, *, level: str | None, normalize: bool | None
) -> Change:
    """Set the compatibility level of a subject, or of all. The answer is what was asked."""
    asked: dict[str, Any] = {}
    if level is not None:
        asked["compatibility"] = check_level(level)
    if normalize is not None:
        asked["normalize"] = normalize
    if not asked:
        raise Refused(
            refused.INVALID_LEVEL,
            "the body has neither 'compatibility' nor 'normalize'; expected at least one",
        )
    if subject is not None:
        check_subject(subject)
    value = {
        name: each
        for name, each in view.configs.get(subject, {}).items()
        if name in _CONFIG_OF_SUBJECT
    }
    if level is not None:
        value["compatibilityLevel"] = asked["compatibility"]
    if normalize is not None:
        value["normalize"] = normalize
    return Change((config_record(subject, value),), asked)


def check_level(level: str) -> str:
    """Return a compatibility level as it is kept. Raises Refused."""
    if level.upper() not in LEVELS:
        raise Refused(
            refused.INVALID_LEVEL,
            f"Invalid compatibility level '{level[:64]}'. Valid values are {', '.join(LEVELS)}",
        )
    return level.upper()


def delete_config(view: View, subject: str | None) -> Change:
    """Remove the config of a subject, or of all. The answer is what it was. Raises Refused."""
    before = view.configs.get(subject)
    if before is None:
        if subject is None:
            return Change((), config_shown(view, None))
        check_subject(subject)
        raise no_config(subject)
    return Change((config_record(subject, None),), config_shown(view, subject))


def config_shown(view: View, subject: str | None) -> dict[str, Any]:
    """Return a config as it is answered."""
    found = view.configs.get(subject, {})
    shown = {name: found[name] for name in _CONFIG_OF_SUBJECT if found.get(name) is not None}
    return {"compatibilityLevel": LEVEL_DEFAULT, **shown} if subject is None else shown


def no_config(subject: str) -> Refused:
    """Return the refusal of a subject without a config of its own."""
    return Refused(
        refused.NO_CONFIG_OF_SUBJECT,
        f"Subject '{subject}' does not have subject-level compatibility configured",
    )


def set_mode(view: View, subject: str | None, mode: str, *, force: bool) -> Change:
    """Set the mode of a subject, or of all. Raises Refused."""
    if subject is not None:
        check_subject(subject)
    name = mode.upper()
    if name not in MODES or (subject is not None and name == READONLY_OVERRIDE):
        raise Refused(
            refused.INVALID_MODE,
            f"Invalid mode '{mode[:64]}'. Valid values are {', '.join(MODES)}; the third only for "
            "all subjects",
        )
    has_schemas = view.versions if subject is None else view.all_of(subject, deleted=True)
    if name == IMPORT and view.mode_of(subject) != IMPORT and has_schemas and not force:
        raise _not_permitted(
            "Cannot import since found existing subjects: delete them permanently, or set force=true"
        )
    return Change((mode_record(subject, name),), {"mode": name})


def delete_mode(view: View, subject: str) -> Change:
    """Remove the mode of a subject. The answer is what it was. Raises Refused."""
    check_subject(subject)
    before = view.modes.get(subject)
    if before is None:
        raise no_mode(subject)
    return Change((mode_record(subject, None),), {"mode": before})


def no_mode(subject: str) -> Refused:
    """Return the refusal of a subject without a mode of its own."""
    return Refused(
        refused.NO_MODE_OF_SUBJECT,
        f"Subject '{subject}' does not have subject-level mode configured",
    )


def _not_permitted(message: str) -> Refused:
    return Refused(refused.NOT_PERMITTED, message)
