"""Column declarations from schema files: JSON Schema, Avro, Protobuf, and Arrow or Parquet.

Only scalars can be declared. Lists, maps, and fields whose type has no column type are named as
skipped; their columns come from the samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from polynya.base.errors import ConfigError
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.protobuf import Messages, is_protobuf

FILE_BYTES_MAX = 16 << 20  # a larger file is data, or wrong
_UNKNOWN = (
    "the file is none of: a JSON Schema of an object, an Avro schema of a record, a Protobuf schema "
    "(.proto), an Arrow schema, a Parquet file"
)
_JSON_TYPES = {
    "integer": types.LONG,
    "number": types.DOUBLE,
    "string": types.STRING,
    "boolean": types.BOOLEAN,
}
_JSON_FORMATS = {"date-time": types.TIME, "date": types.DATE}
_AVRO_TYPES = {
    **dict.fromkeys(("int", "long"), types.LONG),
    **dict.fromkeys(("float", "double"), types.DOUBLE),
    **dict.fromkeys(("string", "bytes", "enum", "fixed"), types.STRING),
    "boolean": types.BOOLEAN,
}
_AVRO_LOGICAL = {
    **dict.fromkeys(("timestamp-millis", "timestamp-micros", "timestamp-nanos"), types.TIME),
    "date": types.DATE,
    **dict.fromkeys(("decimal", "time-millis", "time-micros", "duration"), ""),
}


class Declared(msgspec.Struct):
    """The declarations of a schema file: (field, type), and the fields that cannot be declared."""

    columns: list[tuple[str, str]] = []
    skipped: list[str] = []

    def add(self, path: str, kind: str) -> None:
        if kind:
            self.columns.append((path, kind))
        else:
            self.skipped.append(path)


def declared_in(data: bytes, message: str = "") -> Declared:
    """Return the declarations of a schema file, whose content tells its format. `message` is one of
    a Protobuf schema; empty for the only one that no other message uses. Raises ConfigError."""
    found = Declared()
    if is_protobuf(data):
        messages = Messages(data)
        _walk(found, "", (f".{messages.root(message)}", ()), messages.read)
    elif message:
        raise ConfigError(f"only Protobuf schemas have messages, but '#{message}' names one")
    elif data.lstrip()[:1] == b"{":
        _add_json(data, found)
    else:
        _add_arrow(data, found)
    if not found.columns:
        raise ConfigError(
            f"the schema declares no columns; {len(found.skipped)} fields have no column type"
        )
    return found


def _add_json(data: bytes, found: Declared) -> None:
    try:
        schema = json.loads(data)
    except (ValueError, RecursionError) as fault:
        raise ConfigError(f"{_UNKNOWN} (it is no JSON: {fault})") from None
    if isinstance(schema, dict) and schema.get("type") == "record":
        named: dict[str, Any] = {}
        _walk(found, "", schema, lambda kind: _avro(kind, named))
    elif isinstance(schema, dict) and ("properties" in schema or "$ref" in schema):
        _walk(found, "", schema, lambda kind: _json_schema(kind, schema))
    else:
        raise ConfigError(_UNKNOWN)


Reader = Callable[[Any], tuple[str, list[tuple[str, Any]]]]
"""A function that reads one schema: it returns its column type ("" for none), or its fields."""


def _walk(found: Declared, path: str, schema: Any, read: Reader, depth: int = 0) -> None:
    kind, fields = read(schema)
    if not fields or depth >= types.DEPTH_MAX:
        found.add(path, "" if fields else kind)
        return
    for name, inner in fields:
        here = f"{path}.{name}" if path else name
        if not name or "." in name:
            found.skipped.append(here)
        else:
            _walk(found, here, inner, read, depth + 1)


def _json_schema(schema: Any, root: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    for _ in range(types.DEPTH_MAX):  # references may form a circle
        if not isinstance(schema, dict):
            return "", []
        if isinstance(schema.get("$ref"), str):
            schema = _referenced(schema["$ref"], root)
            continue
        choices = [
            each
            for key in ("anyOf", "oneOf", "allOf")
            for each in schema.get(key) or ()
            if each != {"type": "null"}
        ]
        if "type" in schema or "properties" in schema or len(choices) != 1:
            break
        schema = choices[0]
    if not isinstance(schema, dict) or "$ref" in schema:
        return "", []
    if isinstance(schema.get("properties"), dict):
        return "", list(schema["properties"].items())
    kinds = schema.get("type")
    kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
    if kinds == ["string"]:
        return _JSON_FORMATS.get(str(schema.get("format")), types.STRING), []
    if kinds in (["integer", "number"], ["number", "integer"]):
        return types.DOUBLE, []
    return (_JSON_TYPES.get(str(kinds[0]), "") if len(kinds) == 1 else ""), []


def _referenced(reference: str, root: dict[str, Any]) -> Any:
    """Return what a reference within the file names, or None."""
    found: Any = root
    if not reference.startswith("#/"):
        return None
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _avro(schema: Any, named: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    if isinstance(schema, list):
        left = [each for each in schema if each != "null"]
        return _avro(left[0], named) if len(left) == 1 else ("", [])
    if isinstance(schema, str):
        if schema in named:
            kind, fields = named[schema]
            return kind, list(fields)
        return _AVRO_TYPES.get(schema, ""), []
    if not isinstance(schema, dict):
        return "", []
    kind = schema.get("type")
    if isinstance(kind, dict | list):
        return _avro(kind, named)
    logical = schema.get("logicalType")
    if kind == "record":
        fields = schema.get("fields")
        pairs = [
            (str(each.get("name", "")), each.get("type"))
            for each in (fields if isinstance(fields, list) else ())
            if isinstance(each, dict)
        ]
        declared: tuple[str, list[tuple[str, Any]]] = ("", pairs)
    elif logical == "decimal" and not schema.get("scale"):
        declared = (types.DECIMAL, [])
    else:
        declared = (_AVRO_LOGICAL.get(str(logical), _AVRO_TYPES.get(str(kind), "")), [])
    if "name" in schema:
        named[str(schema["name"])] = declared
        named[f"{schema.get('namespace', '')}.{schema['name']}"] = declared
    return declared


def _add_arrow(data: bytes, found: Declared) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = pa.BufferReader(data)
    try:
        if data[:4] == b"PAR1":
            schema = pq.read_schema(source)
        elif data[:6] == b"ARROW1":
            schema = pa.ipc.open_file(source).schema
        else:
            schema = pa.ipc.read_schema(source)
    except (pa.ArrowException, OSError):
        raise ConfigError(_UNKNOWN) from None
    _walk(found, "", pa.struct(list(schema)), _arrow)


def _arrow(kind: Any) -> tuple[str, list[tuple[str, Any]]]:
    import pyarrow.types as arrow

    if arrow.is_struct(kind):
        return "", [(field.name, field.type) for field in kind]
    if arrow.is_dictionary(kind):
        return _arrow(kind.value_type)
    if arrow.is_uint64(kind) or (arrow.is_decimal(kind) and kind.scale == 0):
        return types.DECIMAL, []
    tests = (
        (arrow.is_integer, types.LONG),
        (arrow.is_floating, types.DOUBLE),
        (arrow.is_boolean, types.BOOLEAN),
        (arrow.is_date, types.DATE),
        (lambda each: arrow.is_timestamp(each) and each.tz is not None, types.TIME),
        (arrow.is_string, types.STRING),
        (arrow.is_large_string, types.STRING),
        (arrow.is_string_view, types.STRING),
    )
    return next((name for test, name in tests if test(kind)), ""), []
