"""Avro schemas as types, and Avro bodies as values, by fastavro.

Logical types are applied here, not by fastavro: a time that Python cannot hold costs a record one
field, not all of them.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fastavro import _read_py, parse_schema, schemaless_reader

from polynya.lakehouse.payloads import scalars
from polynya.lakehouse.payloads.nodes import TEXT, BadSchema, Batch, Fields, Node
from polynya.lakehouse.schema import types

ROOT = "value"  # the field of a schema that is no record
_MARK = secrets.token_bytes(
    8
)  # with a number, after each body: 12 bytes that no producer can foresee
_FAILURES_LEAST = 8
_FAILURES_SHARE = 100  # of a block; beyond, bodies are decoded one by one
_NAMED = ("record", "error", "enum", "fixed")
_SCALARS = {
    "boolean": scalars.plain(types.BOOLEAN),
    "int": scalars.plain(types.LONG),
    "long": scalars.plain(types.LONG),
    "float": scalars.plain(types.DOUBLE),
    "double": scalars.plain(types.DOUBLE),
    "string": scalars.plain(types.STRING),
    "bytes": scalars.plain(types.BINARY),
    "fixed": scalars.plain(types.BINARY),
    "enum": scalars.plain(types.STRING),
}
_LOGICAL = {  # (logical type, type): node
    ("timestamp-millis", "long"): scalars.timestamp(types.TIME, micros=1000),
    ("timestamp-micros", "long"): scalars.timestamp(types.TIME),
    ("timestamp-nanos", "long"): scalars.timestamp(types.TIME, per_micro=1000),
    ("local-timestamp-millis", "long"): scalars.timestamp(types.LOCAL_TIME, micros=1000),
    ("local-timestamp-micros", "long"): scalars.timestamp(types.LOCAL_TIME),
    ("local-timestamp-nanos", "long"): scalars.timestamp(types.LOCAL_TIME, per_micro=1000),
    ("date", "int"): scalars.date(),
    ("time-millis", "int"): scalars.time_of_day(1000),
    ("time-micros", "long"): scalars.time_of_day(1),
    ("uuid", "string"): scalars.uuid_text(),
    ("uuid", "fixed"): scalars.uuid_text(),
}


class AvroDecoder:
    """The decoder of one writer's schema. Raises BadSchema for one that cannot be read."""

    def __init__(self, text: str, references: Sequence[tuple[str, str]] = ()) -> None:
        try:
            named: dict[str, Any] = {}
            for _, each in references:
                parse_schema(json.loads(each), named_schemas=named)
            schema = parse_schema(_loaded(text), named_schemas=named)
        except BadSchema:
            raise
        except Exception as fault:  # fastavro raises its own and Python's
            raise BadSchema(f"the Avro schema cannot be read: {fault}"[:300]) from None
        whole = _Schema(named)
        raw = whole.raw(schema)
        root = whole.node(schema, 0)
        self._is_record = root.type == types.STRUCT
        self._fields = root.fields if self._is_record else [(ROOT, root)]
        # the recursion of the fast reader is C's: a deep body would end the process
        self._read = _read_py.schemaless_reader if whole.is_recursive else schemaless_reader
        self._one = parse_schema(raw)
        self._many = parse_schema(_marked(raw))

    def fields(self, heads: Sequence[bytes]) -> list[Fields]:
        return [self._fields]

    def values(self, bodies: Sequence[bytes]) -> tuple[list[Batch], dict[int, str]]:
        found: list[Any] = [None] * len(bodies)
        faults: dict[int, str] = {}
        left = max(_FAILURES_LEAST, len(bodies) // _FAILURES_SHARE)
        work = [(0, len(bodies))] if bodies else []
        while work:
            begin, end = work.pop()
            if end - begin == 1 or left <= 0:
                for at in range(begin, end):
                    try:
                        found[at] = self._alone(bodies[at])
                    except Exception as fault:
                        faults[at] = _describe(fault)
                continue
            try:
                found[begin:end] = self._together(bodies[begin:end])
            except Exception:
                left -= 1
                middle = (begin + end) // 2
                work += [(middle, end), (begin, middle)]
        numbers = [at for at in range(len(bodies)) if at not in faults]
        rows = [found[at] for at in numbers] if faults else found
        if not self._is_record:
            rows = [{ROOT: each} for each in rows]
        return [Batch(self._fields, numbers, rows)], faults

    def _together(self, bodies: Sequence[bytes]) -> list[Any]:
        """Decode bodies as one array, with a mark after each that proves where it ends."""
        marks = [_MARK + at.to_bytes(4) for at in range(len(bodies))]
        data = b"".join(part for pair in zip(bodies, marks, strict=True) for part in pair)
        rows: Any = self._read(io.BytesIO(_zigzag(len(bodies)) + data + b"\0"), self._many, None)
        if [row["end"] for row in rows] != marks:
            raise ValueError("a body does not end where its schema does")
        return [row["body"] for row in rows]

    def _alone(self, body: bytes) -> Any:
        data = io.BytesIO(body)
        value = self._read(data, self._one, None)
        if data.tell() != len(body):
            raise ValueError(f"{len(body) - data.tell()} bytes follow it")
        return value


class _Schema:
    """A parsed schema with its named types."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._defined: set[str] = set()
        self._inside: list[str] = []
        self.is_recursive = False

    def raw(self, schema: Any) -> Any:
        """Return the schema without logical types, defaults and references: a named type is
        defined where it occurs first. Raises BadSchema for items without bytes."""
        if isinstance(schema, list):
            return [self.raw(each) for each in schema]
        if isinstance(schema, str):
            if schema not in self._named:
                return schema
            if schema in self._inside:
                self.is_recursive = True
            return schema if schema in self._defined else self.raw(self._named[schema])
        kind = schema["type"]
        if kind in _NAMED:
            return self._named_type(schema)
        if kind == "array":
            if not self._width(schema["items"], 0):
                raise BadSchema("the Avro schema has an array of items without bytes")
            return {"type": "array", "items": self.raw(schema["items"])}
        if kind == "map":
            return {"type": "map", "values": self.raw(schema["values"])}
        return self.raw(kind)

    def _named_type(self, schema: Any) -> Any:
        name = schema["name"]
        if name in self._inside:
            self.is_recursive = True
        if name in self._defined:
            return name
        self._defined.add(name)
        if schema["type"] == "enum":
            return {"type": "enum", "name": name, "symbols": schema["symbols"]}
        if schema["type"] == "fixed":
            return {"type": "fixed", "name": name, "size": schema["size"]}
        self._inside.append(name)
        fields = [
            {"name": field["name"], "type": self.raw(field["type"])} for field in schema["fields"]
        ]
        self._inside.pop()
        return {"type": "record", "name": name, "fields": fields}

    def _width(self, schema: Any, depth: int) -> bool:
        """Report whether each value of a type has at least a byte."""
        schema = self._named.get(schema, schema) if isinstance(schema, str) else schema
        if not isinstance(schema, dict):
            return schema != "null"
        if schema["type"] in ("record", "error"):
            inner = (self._width(field["type"], depth + 1) for field in schema["fields"])
            return depth > types.DEPTH_MAX or any(inner)
        if schema["type"] == "fixed":
            return bool(schema["size"] > 0)
        return bool(schema["type"] != "null")

    def node(self, schema: Any, depth: int) -> Node:
        """Return the type of a schema at a depth; JSON text where columns end."""
        if isinstance(schema, list):
            left = [each for each in schema if each != "null"]
            return self.node(left[0], depth) if len(left) == 1 else TEXT
        if isinstance(schema, str):
            if schema in self._named:
                return self.node(self._named[schema], depth)
            return _SCALARS.get(schema, TEXT)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.node(kind, depth)
        if kind in ("record", "error"):
            return self._record(schema, depth)
        if kind in ("array", "map"):
            inner = schema["items" if kind == "array" else "values"]
            if depth >= types.DEPTH_MAX:
                return TEXT
            element = self.node(inner, depth + 1)
            return Node(types.LIST if kind == "array" else types.MAP, [("", element)])
        return _scalar(schema, kind) or self.node(kind, depth)

    def _record(self, schema: Any, depth: int) -> Node:
        name = schema["name"]
        if depth >= types.DEPTH_MAX or name in self._inside:
            return TEXT
        self._inside.append(name)
        fields = [
            (field["name"], self.node(field["type"], depth + 1)) for field in schema["fields"]
        ]
        self._inside.pop()
        return Node(types.STRUCT, fields)


def _scalar(schema: Any, kind: str) -> Node | None:
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is int and type(scale) is int and 0 <= scale <= precision > 0:
            return scalars.decimal(precision, scale)
    return _LOGICAL.get((str(logical), kind)) or _SCALARS.get(kind)


def _loaded(text: str) -> Any:
    """Return a schema's JSON. A registry may have the name of a primitive type without quotes."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        if text.strip() in (*_SCALARS, "null"):
            return text.strip()
        raise BadSchema(f"the Avro schema is no JSON: {fault}"[:300]) from None


def _marked(raw: Any) -> Any:
    end = {"type": "fixed", "name": "polynya_end", "size": 12}
    fields = [{"name": "body", "type": raw}, {"name": "end", "type": end}]
    return {"type": "array", "items": {"type": "record", "name": "polynya_row", "fields": fields}}


def _zigzag(number: int) -> bytes:
    number <<= 1
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def _describe(fault: Exception) -> str:
    reason = f"{type(fault).__name__}: {fault}" if not isinstance(fault, ValueError) else str(fault)
    return f"the body does not decode under its Avro schema: {reason}"[:300]
