"""The text of an Avro schema as Avro's Java library prints it: one form for all spellings of a
schema, so that equal schemas have one id. Documentation, defaults and properties stay."""

from __future__ import annotations

from typing import Any

from polynya.registry.avro.model import NO_DEFAULT, PRIMITIVES, AvroSchema, Field, Type
from polynya.registry.texts import write_json


def canonical(schema: AvroSchema, *, normalize: bool = False) -> str:
    """Return the text. `normalize`: properties are sorted by their names."""
    return write_json(_Writer(set(schema.outer), normalize=normalize).show(schema.type, ""))


class _Writer:
    """A pass over a schema; `shown` are the names that were written before."""

    def __init__(self, shown: set[str], *, normalize: bool) -> None:
        self._shown = shown
        self._normalize = normalize

    def show(self, each: Type, space: str) -> Any:
        """Return the JSON of a type inside a namespace."""
        if each.kind in PRIMITIVES:
            properties = self._properties(each.properties)
            return {"type": each.kind, **properties} if properties else each.kind
        if each.kind == "union":
            return [self.show(branch, space) for branch in each.inner]
        if each.kind in ("array", "map"):
            name = "items" if each.kind == "array" else "values"
            inner = self.show(each.inner[0], space)
            return {"type": each.kind, name: inner, **self._properties(each.properties)}
        if each.name in self._shown:
            return _relative(each.name, space)
        self._shown.add(each.name)
        return self._definition(each, space)

    def _definition(self, each: Type, space: str) -> dict[str, Any]:
        own, _, simple = each.name.rpartition(".")
        made: dict[str, Any] = {"type": "error" if each.is_error else each.kind, "name": simple}
        if own != space:
            made["namespace"] = own
        if each.doc is not None:
            made["doc"] = each.doc
        if each.kind == "record":
            made["fields"] = [self._field(field, own) for field in each.fields]
        elif each.kind == "enum":
            made["symbols"] = list(each.symbols)
            if each.default is not None:
                made["default"] = each.default
        else:
            made["size"] = each.size
        made |= self._properties(each.properties)
        if each.aliases:
            made["aliases"] = [_relative(alias, own) for alias in each.aliases]
        return made

    def _field(self, field: Field, space: str) -> dict[str, Any]:
        made: dict[str, Any] = {"name": field.name, "type": self.show(field.type, space)}
        if field.doc is not None:
            made["doc"] = field.doc
        if field.default is not NO_DEFAULT:
            made["default"] = field.default
        if field.order != "ascending":
            made["order"] = field.order
        if field.aliases:
            made["aliases"] = list(field.aliases)
        return made | self._properties(field.properties)

    def _properties(self, found: dict[str, Any]) -> dict[str, Any]:
        return dict(sorted(found.items())) if self._normalize else found


def _relative(name: str, space: str) -> str:
    own, _, simple = name.rpartition(".")
    return simple if own == space else name
