"""`GET /v1/tables/NAME/schema`: the columns of a table, from its Iceberg metadata, with Iceberg's type names."""

from __future__ import annotations

from typing import Any

import msgspec


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


def columns_of(metadata: bytes) -> list[dict[str, Any]]:
    """Return the columns of the current schema of an Iceberg metadata file, in order. Raises msgspec.DecodeError."""
    told = msgspec.json.decode(metadata, type=_Metadata)
    current = next((schema for schema in told.schemas if schema.schema_id == told.current_schema_id), None)
    if current is None:
        raise msgspec.DecodeError(f"the current schema {told.current_schema_id} is not among the schemas")
    return [{"name": field.name, "type": type_name(field.type), "required": field.required} for field in current.fields]


def type_name(kind: Any) -> str:
    """Return an Iceberg type as one word: `long`, `list<string>`, `struct<a: long>`, `map<string, long>`."""
    if not isinstance(kind, dict):
        return str(kind)
    if kind.get("type") == "list":
        return f"list<{type_name(kind['element'])}>"
    if kind.get("type") == "map":
        return f"map<{type_name(kind['key'])}, {type_name(kind['value'])}>"
    fields = [f"{field['name']}: {type_name(field['type'])}" for field in kind.get("fields", [])]
    return f"struct<{', '.join(fields)}>"
