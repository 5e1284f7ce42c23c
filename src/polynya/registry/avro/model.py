"""Parse the JSON of an Avro schema into types. Names refer to types, so types may be circular."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from polynya.base.limits import SCHEMA_DEPTH_MAX
from polynya.registry.refused import BadSchema
from polynya.registry.texts import read_json

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED = frozenset(("record", "enum", "fixed"))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ORDERS = ("ascending", "descending", "ignore")
NO_DEFAULT: Any = object()
# attributes that the specification defines, by kind; all others are properties of the user
_OWN = {
    "record": ("type", "name", "namespace", "doc", "aliases", "fields"),
    "enum": ("type", "name", "namespace", "doc", "aliases", "symbols", "default"),
    "fixed": ("type", "name", "namespace", "doc", "aliases", "size"),
    "array": ("type", "items"),
    "map": ("type", "values"),
}
_OF_FIELD = ("name", "type", "doc", "default", "order", "aliases")


class Type(msgspec.Struct, eq=False, gc=False):
    """A type. `kind` is that of the specification, or `union`."""

    kind: str
    name: str = ""  # full name
    aliases: tuple[str, ...] = ()  # full names
    doc: str | None = None
    fields: list[Field] = []
    symbols: tuple[str, ...] = ()
    default: str | None = None  # of an enum
    size: int = 0
    inner: list[Type] = []  # the items of an array, the values of a map, the branches of a union
    properties: dict[str, Any] = {}
    is_error: bool = False

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a decimal."""
        if self.properties.get("logicalType") != "decimal" or self.kind not in ("bytes", "fixed"):
            return None
        precision, scale = self.properties.get("precision"), self.properties.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int):
            return None
        return (precision, scale) if precision >= max(scale, 1) and scale >= 0 else None

    @property
    def shown(self) -> str:
        """The type in a message."""
        return f"{self.kind} {self.name}" if self.name else self.kind


class Field(msgspec.Struct, eq=False, gc=False):
    """A field of a record."""

    name: str
    type: Type
    default: Any = NO_DEFAULT
    doc: str | None = None
    order: str = "ascending"
    aliases: tuple[str, ...] = ()
    properties: dict[str, Any] = {}


class AvroSchema(msgspec.Struct, eq=False):
    """A parsed schema, and the names that it has from its references."""

    type: Type
    outer: frozenset[str]


def parse(text: str, references: Mapping[str, str], *, strict: bool = True) -> AvroSchema:
    """Parse a schema after those that it refers to, in their order. `strict`: defaults must be of
    their fields' types. Raises BadSchema."""
    names: dict[str, Type] = {}
    for name, other in references.items():
        try:
            _Parser(names, strict=False).read(read_json(other), "", "$", 0)
        except BadSchema as bad:
            raise BadSchema(f"the reference {name}: {bad}") from None
    outer = frozenset(names)
    return AvroSchema(_Parser(names, strict=strict).read(read_json(text), "", "$", 0), outer)


class _Parser:
    """The parser of one text; `names` has the types that are known by name."""

    def __init__(self, names: dict[str, Type], *, strict: bool) -> None:
        self._names = names
        self._strict = strict

    def read(self, value: Any, space: str, where: str, depth: int) -> Type:
        """Return the type of a JSON value. `space` is the namespace around it."""
        if depth > SCHEMA_DEPTH_MAX:
            raise BadSchema(f"{where}: the schema is nested deeper than {SCHEMA_DEPTH_MAX} levels")
        if isinstance(value, str):
            return self._named(value, space, where)
        if isinstance(value, list):
            return self._union(value, space, where, depth)
        if not isinstance(value, dict):
            raise BadSchema(
                f"{where}: expected a type (a name, an object or an array), not {value!r}"
            )
        kind = value.get("type")
        if isinstance(kind, dict | list):
            return self.read(kind, space, f"{where}.type", depth + 1)
        if not isinstance(kind, str):
            raise BadSchema(f"{where}: 'type' is missing")
        if kind in PRIMITIVES:
            return Type(kind, properties=_properties(value, ("type",)))
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(value, kind, space, where, depth)
        if kind == "array":
            inner = self.read(_needed(value, "items", where), space, f"{where}.items", depth + 1)
            return Type(kind, inner=[inner], properties=_properties(value, _OWN[kind]))
        if kind == "map":
            inner = self.read(_needed(value, "values", where), space, f"{where}.values", depth + 1)
            return Type(kind, inner=[inner], properties=_properties(value, _OWN[kind]))
        return self._named(kind, space, f"{where}.type")

    def _named(self, name: str, space: str, where: str) -> Type:
        if name in PRIMITIVES:
            return Type(name)
        found = self._names.get(full_name(name, space)) or self._names.get(name)
        if found is None:
            raise BadSchema(
                f"{where}: the type '{name}' is unknown; define it before, or name the schema that "
                "defines it in 'references'"
            )
        return found

    def _union(self, branches: list[Any], space: str, where: str, depth: int) -> Type:
        inner = [
            self.read(each, space, f"{where}[{number}]", depth + 1)
            for number, each in enumerate(branches)
        ]
        seen = set[str]()
        for number, each in enumerate(inner):
            if each.kind == "union":
                raise BadSchema(f"{where}[{number}]: a union has no union as a branch")
            label = each.name or each.kind
            if label in seen:
                raise BadSchema(f"{where}[{number}]: the union has the type '{label}' twice")
            seen.add(label)
        return Type("union", inner=inner)

    def _define(self, value: dict[str, Any], kind: str, space: str, where: str, depth: int) -> Type:
        given = _needed(value, "name", where)
        inside = value.get("namespace", space)
        if not isinstance(given, str) or not isinstance(inside, str):
            raise BadSchema(f"{where}: 'name' and 'namespace' must be strings")
        name = full_name(given, inside)
        if not all(_NAME.fullmatch(part) for part in name.split(".")):
            raise BadSchema(
                f"{where}.name: '{name}' is not a name: its parts have A-Z, a-z, 0-9 and _, and do "
                "not begin with a digit"
            )
        if name in self._names or name in PRIMITIVES:
            raise BadSchema(f"{where}.name: the type '{name}' is defined twice")
        space = name.rpartition(".")[0]
        is_error, kind = kind == "error", "record" if kind == "error" else kind
        made = Type(
            kind,
            name,
            tuple(full_name(each, space) for each in _strings(value, "aliases", where)),
            _doc(value, where),
            properties=_properties(value, _OWN[kind]),
            is_error=is_error,
        )
        self._names[name] = made
        if kind == "record":
            self._fields(made, value, space, where, depth)
        elif kind == "enum":
            _symbols(made, value, where)
        else:
            size = value.get("size")
            if type(size) is not int or size < 0:
                raise BadSchema(f"{where}.size: expected a number of bytes, not {size!r}")
            made.size = size
        return made

    def _fields(
        self, made: Type, value: dict[str, Any], space: str, where: str, depth: int
    ) -> None:
        fields = _needed(value, "fields", where)
        if not isinstance(fields, list):
            raise BadSchema(f"{where}.fields: expected an array")
        made.fields = []
        seen = set[str]()
        for number, each in enumerate(fields):
            path = f"{where}.fields[{number}]"
            field = self._field(each, space, path, depth)
            if field.name in seen:
                raise BadSchema(f"{path}.name: the record has the field '{field.name}' twice")
            seen.add(field.name)
            made.fields.append(field)

    def _field(self, value: Any, space: str, where: str, depth: int) -> Field:
        if not isinstance(value, dict):
            raise BadSchema(f"{where}: expected an object with 'name' and 'type'")
        name = _needed(value, "name", where)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadSchema(f"{where}.name: {name!r} is not a name")
        found = self.read(_needed(value, "type", where), space, f"{where}.type", depth + 1)
        default = value.get("default", NO_DEFAULT)
        if default is not NO_DEFAULT and self._strict and not is_default(found, default):
            raise BadSchema(
                f"{where}.default: {_short(default)} is no value of the type {found.shown}"
            )
        order = value.get("order", "ascending")
        if order not in _ORDERS:
            raise BadSchema(f"{where}.order: expected one of {', '.join(_ORDERS)}, not {order!r}")
        aliases = _strings(value, "aliases", where)
        doc = _doc(value, where)
        return Field(name, found, default, doc, order, aliases, _properties(value, _OF_FIELD))


def full_name(name: str, space: str) -> str:
    """Return the full name of a name in a namespace."""
    return name if "." in name or not space else f"{space}.{name}"


def is_default(wanted: Type, value: Any) -> bool:
    """Report whether a JSON value is a default of a type: that of a union is of any branch."""
    kind = wanted.kind
    if kind == "union":
        return any(is_default(each, value) for each in wanted.inner)
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        return type(value) is int and -(1 << bits) <= value < 1 << bits
    if kind in ("float", "double"):
        return type(value) in (int, float) or value in ("NaN", "Infinity", "-Infinity")
    if kind in ("string", "bytes", "fixed"):
        return isinstance(value, str)
    if kind == "enum":
        return value in wanted.symbols
    if kind == "array":
        return isinstance(value, list) and all(is_default(wanted.inner[0], each) for each in value)
    if not isinstance(value, dict):
        return False
    if kind == "map":
        return all(is_default(wanted.inner[0], each) for each in value.values())
    return all(
        is_default(each.type, value[each.name])
        if each.name in value
        else each.default is not NO_DEFAULT
        for each in wanted.fields
    )


def _symbols(made: Type, value: dict[str, Any], where: str) -> None:
    symbols = _strings(value, "symbols", where)
    if "symbols" not in value:
        raise BadSchema(f"{where}: 'symbols' is missing")
    for symbol in symbols:
        if not _NAME.fullmatch(symbol):
            raise BadSchema(f"{where}.symbols: '{symbol}' is not a name")
    if len(set(symbols)) < len(symbols):
        raise BadSchema(f"{where}.symbols: a symbol is there twice")
    default = value.get("default")
    if default is not None and default not in symbols:
        raise BadSchema(f"{where}.default: {_short(default)} is not one of the symbols")
    made.symbols, made.default = symbols, default


def _needed(value: dict[str, Any], name: str, where: str) -> Any:
    if name not in value:
        raise BadSchema(f"{where}: '{name}' is missing")
    return value[name]


def _strings(value: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
    found = value.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadSchema(f"{where}.{name}: expected an array of strings")
    return tuple(found)


def _doc(value: dict[str, Any], where: str) -> str | None:
    doc = value.get("doc")
    if doc is not None and not isinstance(doc, str):
        raise BadSchema(f"{where}.doc: expected a string")
    return doc


def _properties(value: dict[str, Any], own: tuple[str, ...]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name not in own}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 64 else f"{text[:60]} …"
