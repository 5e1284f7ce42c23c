"""Keys and values of the topic `_schemas`, byte for byte as Confluent's registry writes them:
compaction compares keys as bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.base.names import SCHEMAS_TOPIC
from polynya.registry.texts import write_json

TOPIC = SCHEMAS_TOPIC
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
NOOP = {"keytype": "NOOP", "magic": 0}
_decode = msgspec.json.Decoder().decode

Record = tuple[bytes, bytes | None]


class Reference(msgspec.Struct, frozen=True, array_like=True):
    """A name in a schema that another schema defines."""

    name: str
    subject: str
    version: int

    @property
    def shown(self) -> dict[str, Any]:
        """The reference in JSON."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


class Content(msgspec.Struct, frozen=True):
    """The identity of a schema: type, text, references, and what Confluent keeps beside them."""

    type: str
    text: str
    references: tuple[Reference, ...] = ()
    extra: str = ""  # `metadata` and `ruleSet` as JSON; "": none

    @property
    def shown(self) -> dict[str, Any]:
        """The schema in JSON: Avro is not named."""
        made: dict[str, Any] = {}
        if self.type != AVRO:
            made["schemaType"] = self.type
        if self.references:
            made["references"] = [each.shown for each in self.references]
        if self.extra:
            made |= _decode(self.extra)
        return {**made, "schema": self.text}


class Version(msgspec.Struct, frozen=True):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    content: Content
    deleted: bool = False

    @property
    def shown(self) -> dict[str, Any]:
        """The version in JSON."""
        own = {"subject": self.subject, "version": self.version, "id": self.id}
        return own | self.content.shown


def schema_record(version: Version) -> Record:
    """Return the record of a version."""
    value = version.shown | {"deleted": version.deleted}
    return schema_key(version.subject, version.version), _bytes(value)


def schema_key(subject: str, version: int) -> bytes:
    """Return the key of a version."""
    return _bytes({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def delete_record(subject: str, version: int) -> Record:
    """Return the record that deletes the versions of a subject up to one."""
    key = {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
    return _bytes(key), _bytes({"subject": subject, "version": version})


def config_record(subject: str | None, value: dict[str, Any] | None) -> Record:
    """Return the record of a subject's config, or that of all subjects; None removes it."""
    key = {"keytype": "CONFIG", "subject": subject, "magic": 0}
    return _bytes(key), None if value is None else _bytes(value)


def mode_record(subject: str | None, mode: str | None) -> Record:
    """Return the record of a subject's mode, or that of all subjects; None removes it."""
    key = {"keytype": "MODE", "subject": subject, "magic": 0}
    return _bytes(key), None if mode is None else _bytes({"mode": mode})


def marker_record(history: int, id_max: int) -> Record:
    """Return the record that keeps the newest id and its history. Confluent's registry skips it."""
    return _bytes(NOOP), _bytes({"polynya": {"history": history, "idMax": id_max}})


def read_object(data: bytes | None) -> dict[str, Any] | None:
    """Decode a key or value; None: it is no JSON object."""
    try:
        found = None if data is None else _decode(data)
    except UNREADABLE:
        return None
    return found if isinstance(found, dict) else None


def version_of(value: dict[str, Any], subject: str, number: int) -> Version | None:
    """Return the version in a value; None: something that every version has is missing."""
    id_, text, type_ = value.get("id"), value.get("schema"), value.get("schemaType") or AVRO
    if type(id_) is not int or not isinstance(text, str) or not isinstance(type_, str):
        return None
    references = references_of(value.get("references"))
    if references is None:
        return None
    content = Content(type_, text, references, extra_of(value))
    return Version(subject, number, id_, content, value.get("deleted") is True)


def references_of(value: Any) -> tuple[Reference, ...] | None:
    """Return references from JSON; None: they are no references."""
    try:
        found = msgspec.convert(value or [], list[_Referred])
    except msgspec.ValidationError:
        return None
    return tuple(Reference(each.name, each.subject, each.version) for each in found)


def extra_of(value: dict[str, Any]) -> str:
    """Return the parts of a schema that are kept and not looked at."""
    found = {name: value[name] for name in ("metadata", "ruleSet") if value.get(name)}
    return write_json(found) if found else ""


class _Referred(msgspec.Struct):
    name: str
    subject: str
    version: int


def _bytes(value: Any) -> bytes:
    return write_json(value).encode()
