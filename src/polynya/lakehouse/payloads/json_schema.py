"""JSON Schemas as types. Their values are decoded as other JSON records are.

What a schema leaves open (several types, other properties) has columns by the records' values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from polynya.lakehouse.payloads.nodes import BadSchema, Fields, Node
from polynya.lakehouse.schema import types

_TYPES = {
    "integer": types.LONG,
    "number": types.DOUBLE,
    "string": types.STRING,
    "boolean": types.BOOLEAN,
}
_FORMATS = {"date-time": types.TIME, "date": types.DATE}
_REFERENCES_MAX = 32  # from one schema to the next


def fields_of(text: str, references: Sequence[tuple[str, str]]) -> Fields:
    """Return the fields of a JSON Schema that have one type. Raises BadSchema."""
    try:
        documents = {name: json.loads(each) for name, each in references}
        schema = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise BadSchema(f"the JSON Schema is no JSON: {fault}"[:300]) from None
    node = _Reader(documents).node(schema, schema, 0)
    return node.fields if node is not None and node.type == types.STRUCT else []


class _Reader:
    """Reads schemas, and follows what they refer to: in the document, or by the references' names
    and ids."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        ids = {
            str(each["$id"]): each
            for each in documents.values()
            if isinstance(each, dict) and "$id" in each
        }
        self._documents = {**documents, **ids}
        self._inside: list[int] = []

    def node(self, schema: Any, root: Any, depth: int) -> Node | None:
        """Return the type of a schema in a document; None if it leaves the type open."""
        schema, root = self._resolved(schema, root)
        if not isinstance(schema, dict) or id(schema) in self._inside or depth > types.DEPTH_MAX:
            return None
        if isinstance(schema.get("properties"), dict):
            return self._object(schema, root, depth)
        kinds = schema.get("type")
        kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
        if sorted(map(str, kinds)) == ["integer", "number"]:
            return Node(types.DOUBLE)
        if len(kinds) != 1:
            return None
        if kinds[0] == "string":
            return Node(_FORMATS.get(str(schema.get("format")), types.STRING))
        if kinds[0] == "array":
            return self._holding(types.LIST, schema.get("items"), root, depth)
        if kinds[0] == "object":
            return self._holding(types.MAP, schema.get("additionalProperties"), root, depth)
        return Node(_TYPES[kinds[0]]) if kinds[0] in _TYPES else None

    def _object(self, schema: Any, root: Any, depth: int) -> Node | None:
        self._inside.append(id(schema))
        inner = [
            (name, self.node(each, root, depth + 1)) for name, each in schema["properties"].items()
        ]
        self._inside.pop()
        found = [(name, node) for name, node in inner if name and node is not None]
        if len(schema["properties"]) > types.KEYS_MAX and depth:
            return None  # a map, as for objects without a schema
        return Node(types.STRUCT, found) if found else None

    def _holding(self, kind: str, schema: Any, root: Any, depth: int) -> Node | None:
        element = self.node(schema, root, depth + 1) if isinstance(schema, dict) else None
        return None if element is None else Node(kind, [("", element)])

    def _resolved(self, schema: Any, root: Any) -> tuple[Any, Any]:
        for _ in range(_REFERENCES_MAX):  # they may form a circle
            if not isinstance(schema, dict):
                break
            if isinstance(schema.get("$ref"), str):
                schema, root = self._referenced(schema["$ref"], root)
                continue
            choices = [
                each
                for key in ("anyOf", "oneOf", "allOf")
                for each in schema.get(key) or ()
                if each != {"type": "null"}
            ]
            if "type" in schema or "properties" in schema or len(choices) != 1:
                return schema, root
            schema = choices[0]
        return None, root

    def _referenced(self, reference: str, root: Any) -> tuple[Any, Any]:
        name, _, path = reference.partition("#")
        found = root = self._documents.get(name) if name else root
        for part in path.strip("/").split("/") if path.strip("/") else ():
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        return found, root
