"""A table's columns with Iceberg's type names, its facts and its history, from its Iceberg
metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from polynya.stream.features.tables.snapshots import Tag


class _Field(msgspec.Struct, frozen=True):
    name: str
    type: Any
    required: bool = False
    doc: str = ""


class _Schema(msgspec.Struct, frozen=True, rename="kebab"):
    fields: list[_Field]
    schema_id: int = 0


class _Metadata(msgspec.Struct, frozen=True, rename="kebab"):
    schemas: list[_Schema]
    current_schema_id: int
    properties: dict[str, str] = {}


def columns_of(metadata: bytes) -> list[dict[str, Any]]:
    """Return the columns of the current schema of an Iceberg metadata file, in order. Raises
    msgspec.DecodeError."""
    decoded = msgspec.json.decode(metadata, type=_Metadata)
    current = next(
        (schema for schema in decoded.schemas if schema.schema_id == decoded.current_schema_id),
        None,
    )
    if current is None:
        raise msgspec.DecodeError(
            f"the current schema {decoded.current_schema_id} is not among the schemas"
        )
    fields = _fields_in(decoded.properties)
    return [
        {"name": field.name, "type": type_name(field.type), "required": field.required}
        | _named(field.name, fields)
        for field in current.fields
    ]


def _fields_in(properties: dict[str, str]) -> dict[str, str]:
    """Return the fields of the columns that have other names, by the column's path."""
    return msgspec.json.decode(properties.get("polynya.fields", "{}"), type=dict[str, str])


def _named(column: str, fields: dict[str, str]) -> dict[str, Any]:
    """Return the field of a column, and of those inside it, if they have other names."""
    own = {"field": fields[column]} if column in fields else {}
    inner = {path: field for path, field in fields.items() if path.startswith(f"{column}.")}
    return own | ({"fields": inner} if inner else {})


class _Snapshot(msgspec.Struct, frozen=True, rename="kebab"):
    snapshot_id: int
    timestamp_ms: int = 0
    summary: dict[str, str] = {}

    @property
    def job(self) -> int:
        return int(self.summary.get("polynya.job", 0))


class _Snapshots(msgspec.Struct, frozen=True, rename="kebab"):
    current_snapshot_id: int | None = None
    snapshots: list[_Snapshot] = []


class TableFacts(msgspec.Struct, frozen=True):
    """Facts about a table's files and last job, from the Iceberg metadata that the job wrote."""

    files: int = 0
    bytes: int = 0
    job_seconds: float = 0.0
    fields_without_column: list[str] = []
    merges: int = 0
    files_merged: int = 0
    unframed_values: int = 0


def info_of(metadata: bytes) -> TableFacts:
    """Return the facts of an Iceberg metadata file. Raises msgspec.DecodeError."""
    decoded = msgspec.json.decode(metadata, type=_Snapshots)
    current = next(
        (
            each.summary
            for each in decoded.snapshots
            if each.snapshot_id == decoded.current_snapshot_id
        ),
        {},
    )
    return TableFacts(
        int(current.get("total-data-files", 0)),
        int(current.get("total-files-size", 0)),
        float(current.get("polynya.seconds", 0)),
        msgspec.json.decode(current.get("polynya.fields-without-column", "[]"), type=list[str]),
        int(current.get("polynya.merges", 0)),
        int(current.get("polynya.files-merged", 0)),
        int(current.get("polynya.unframed", 0)),
    )


def snapshot_in(metadata: bytes, wanted: str) -> _Snapshot | None:
    """Return a snapshot that an Iceberg metadata file keeps; "": the current one."""
    decoded = msgspec.json.decode(metadata, type=_Snapshots)
    number = wanted or str(decoded.current_snapshot_id)
    return next((each for each in decoded.snapshots if str(each.snapshot_id) == number), None)


def history_of(metadata: bytes, tags: Mapping[str, Tag] | None = None) -> list[dict[str, Any]]:
    """Return the jobs of the snapshots that an Iceberg metadata file keeps, and of those with tags,
    the latest first. Raises msgspec.DecodeError."""
    decoded = msgspec.json.decode(metadata, type=_Snapshots)
    named: dict[str, list[str]] = {}
    for name, tag in (tags or {}).items():
        named.setdefault(tag.snapshot, []).append(name)
    there = {str(each.snapshot_id) for each in decoded.snapshots}
    jobs = _jobs(decoded) + [
        _tagged(tag) for tag in (tags or {}).values() if tag.snapshot not in there
    ]
    once = {job["snapshot"]: job | {"tags": named.get(job["snapshot"], [])} for job in jobs}
    return sorted(once.values(), key=lambda job: job["time_ms"], reverse=True)


def _tagged(tag: Tag) -> dict[str, Any]:
    """Return the job of a snapshot that only its tag keeps: what it wrote is not known here."""
    unknown = dict.fromkeys(("rows", "files", "files_merged", "bytes", "job_seconds"))
    own = {"job": tag.job, "snapshot": tag.snapshot, "time_ms": tag.time_ms, "operation": ""}
    return own | unknown


def _jobs(decoded: _Snapshots) -> list[dict[str, Any]]:
    return [
        {
            "job": each.job,
            "snapshot": str(each.snapshot_id),
            "time_ms": each.timestamp_ms,
            "operation": each.summary.get("operation", ""),
            "rows": int(each.summary.get("added-records", 0))
            - int(each.summary.get("deleted-records", 0)),
            "files": int(each.summary.get("added-data-files", 0)),
            "files_merged": int(each.summary.get("deleted-data-files", 0)),
            "bytes": int(each.summary.get("added-files-size", 0)),
            "job_seconds": float(each.summary.get("polynya.seconds", 0)),
        }
        for each in sorted(decoded.snapshots, key=lambda each: each.timestamp_ms, reverse=True)
    ]


def type_name(kind: Any) -> str:
    """Return an Iceberg type as one word: `long`, `list<string>`, `struct<a: long>`, `map<string,
    long>`."""
    if not isinstance(kind, dict):
        return str(kind)
    if kind.get("type") == "list":
        return f"list<{type_name(kind['element'])}>"
    if kind.get("type") == "map":
        return f"map<{type_name(kind['key'])}, {type_name(kind['value'])}>"
    fields = [f"{field['name']}: {type_name(field['type'])}" for field in kind.get("fields", [])]
    return f"struct<{', '.join(fields)}>"
