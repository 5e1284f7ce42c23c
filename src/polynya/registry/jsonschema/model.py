"""Parse the text of a JSON Schema: the shapes of its keywords, and what its references name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urldefrag

import msgspec

from polynya.base.limits import SCHEMA_DEPTH_MAX
from polynya.registry.refused import BadSchema
from polynya.registry.texts import read_json, write_json

Node = dict[str, Any] | bool
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_MAPS = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas")
_SCHEMAS = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "multipleOf")


class JsonSchema(msgspec.Struct, eq=False):
    """A schema, and the documents that its references name: its own one is ''."""

    root: Node
    documents: dict[str, Node]
    anchors: dict[str, dict[str, Node]] = {}  # by document, once one is needed

    def target(self, reference: str) -> Node | None:
        """Return what a reference names; None: it names nothing that is known."""
        path, fragment = urldefrag(reference)
        own = self.root.get("$id", self.root.get("id")) if isinstance(self.root, dict) else None
        name = "" if path in ("", own) else path
        document, fragment = self.documents.get(name), unquote(fragment)
        if document is None or not fragment or fragment.startswith("/"):
            return None if document is None else _pointed(document, fragment)
        if name not in self.anchors:
            self.anchors[name] = {}
            _find_anchors(document, self.anchors[name])
        return self.anchors[name].get(fragment)


def parse(text: str, references: Mapping[str, str], *, strict: bool = True) -> JsonSchema:
    """Parse a text after those that it refers to. `strict`: each reference names something. Raises
    BadSchema."""
    documents: dict[str, Node] = {}
    for name, other in references.items():
        try:
            node = read_json(other)
            _Checker(None).check(node, "$", 0)
        except BadSchema as bad:
            raise BadSchema(f"the reference {name}: {bad}") from None
        documents[name] = node
        if isinstance(node, dict) and isinstance(own := node.get("$id", node.get("id")), str):
            documents.setdefault(own.removesuffix("#"), node)
    root = read_json(text)
    schema = JsonSchema(root, {**documents, "": root})
    _Checker(schema if strict else None).check(root, "$", 0)
    return schema


def canonical(schema: JsonSchema, *, normalize: bool = False) -> str:
    """Return the text without blanks. `normalize`: members are sorted by their names."""
    return write_json(_sorted(schema.root) if normalize else schema.root)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def _pointed(document: Node, fragment: str) -> Node | None:
    """Return what a JSON pointer names in a document."""
    if not fragment:
        return document
    found: Any = document
    for part in fragment[1:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name[:9]) < len(found):
            found = found[int(name)]
        else:
            return None
    return found if isinstance(found, dict | bool) else None


def _find_anchors(document: Node, found: dict[str, Node]) -> None:
    pending: list[Any] = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
            names = [value.get("$anchor"), value.get("$dynamicAnchor")]
            ids = [value.get("$id"), value.get("id")]
            names += [each[1:] for each in ids if isinstance(each, str) and each[:1] == "#"]
            found.update({each: value for each in names if isinstance(each, str)})
        elif isinstance(value, list):
            pending += value


class _Checker:
    """The checks of one document. `schema` finds what its references name; None: they are not
    looked at."""

    def __init__(self, schema: JsonSchema | None) -> None:
        self._schema = schema

    def check(self, node: Any, where: str, depth: int) -> None:
        """Check a schema and those inside it. Raises BadSchema."""
        if depth > SCHEMA_DEPTH_MAX:
            raise BadSchema(f"{where}: the schema is nested deeper than {SCHEMA_DEPTH_MAX} levels")
        if isinstance(node, bool):
            return
        if not isinstance(node, dict):
            raise BadSchema(f"{where}: expected a schema (an object, true or false)")
        _check_plain(node, where)
        self._check_references(node, where)
        for name in _MAPS:
            inner = node.get(name, {})
            if not isinstance(inner, dict):
                raise BadSchema(f"{where}.{name}: expected an object")
            for key, each in inner.items():
                self.check(each, f"{where}.{name}.{key}", depth + 1)
        for name in _LISTS:
            self._check_list(node.get(name), f"{where}.{name}", depth)
        for name in _SCHEMAS:
            if name in node:
                self.check(node[name], f"{where}.{name}", depth + 1)
        items = node.get("items", True)
        if isinstance(items, list):
            for number, each in enumerate(items):
                self.check(each, f"{where}.items[{number}]", depth + 1)
        else:
            self.check(items, f"{where}.items", depth + 1)

    def _check_list(self, found: Any, where: str, depth: int) -> None:
        if found is None:
            return
        if not isinstance(found, list) or not found:
            raise BadSchema(f"{where}: expected an array of schemas, not empty")
        for number, each in enumerate(found):
            self.check(each, f"{where}[{number}]", depth + 1)

    def _check_references(self, node: dict[str, Any], where: str) -> None:
        for name in _REFERENCES:
            reference = node.get(name)
            if reference is None:
                continue
            if not isinstance(reference, str):
                raise BadSchema(f"{where}.{name}: expected a string")
            is_known = self._schema is None or self._schema.target(reference) is not None
            if not is_known and not reference.startswith(
                ("http://json-schema.org/", "https://json-schema.org/")
            ):
                raise BadSchema(
                    f"{where}.{name}: '{reference[:128]}' names nothing; a schema of another document "
                    "needs to be in 'references' under this name"
                )


def _check_plain(node: dict[str, Any], where: str) -> None:
    """Check the keywords without schemas. Raises BadSchema."""
    types = node.get("type", "object")
    for each in types if isinstance(types, list) else [types]:
        if each not in TYPES:
            raise BadSchema(f"{where}.type: {each!r} is no type; expected {', '.join(TYPES)}")
    if "enum" in node and not isinstance(node["enum"], list):
        raise BadSchema(f"{where}.enum: expected an array")
    required = node.get("required", [])
    if not isinstance(required, bool) and not (
        isinstance(required, list) and all(isinstance(each, str) for each in required)
    ):
        raise BadSchema(f"{where}.required: expected an array of strings")
    for name in _SIZES:
        size = node.get(name, 0)
        if (
            isinstance(size, bool)
            or not isinstance(size, int | float)
            or size < 0
            or size != int(size)
        ):
            raise BadSchema(f"{where}.{name}: expected a number from 0 on, not {size!r}")
    for name in _NUMBERS:
        number = node.get(name, 1)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise BadSchema(f"{where}.{name}: expected a number, not {number!r}")
    if node.get("multipleOf", 1) <= 0:
        raise BadSchema(f"{where}.multipleOf: expected a number above 0")
    if not isinstance(node.get("pattern", ""), str):
        raise BadSchema(f"{where}.pattern: expected a string")
