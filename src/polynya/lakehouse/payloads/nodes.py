"""Types of a writer's schema, the columns that they need, and the values of these columns. Pure.

A type that changes gets a further column, like a JSON field: `x__string` beside `x`. A list or map
whose elements change their type continues as JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.columns import Column, by_field

Convert = Callable[[Any], Any]


class BadSchema(ValueError):
    """A schema cannot be read, or no table can have its values; the message gives the reason."""


class Node(msgspec.Struct, frozen=True):
    """The type of a value. `fields` are those of a struct by name; a list or map has one, ""."""

    type: str
    fields: list[tuple[str, Node]] = []
    convert: Convert | None = None  # of a scalar, from the decoder's value


Fields = list[tuple[str, Node]]


class Batch(msgspec.Struct):
    """Decoded bodies with the same fields: their numbers, and their values as objects."""

    fields: Fields
    numbers: list[int] = []
    values: list[Any] = []


def json_text(value: Any) -> str:
    """Return a value as JSON: bytes as base64."""
    return msgspec.json.encode(value, enc_hook=str).decode()


TEXT = Node(types.STRING, convert=json_text)


def proposed_columns(fields: Sequence[tuple[str, Node]], columns: Sequence[Column]) -> list[Column]:
    """Return the columns that a schema's fields need, those that the table has included."""
    known = by_field(columns)
    found = (_proposed_column(name, node, known.get(name, {})) for name, node in fields)
    return [each for each in found if each is not None]


def _proposed_column(name: str, node: Node, there: dict[str, Column]) -> Column | None:
    column = there.get(node.type)
    if column is not None and not holds(column, node):
        return Column(name, types.STRING)
    if node.type == types.STRUCT:
        children = proposed_columns(node.fields, column.children if column else ())
        return Column(name, types.STRUCT, children=children) if children else None
    if node.type in (types.LIST, types.MAP):
        inner = {column.children[0].type: column.children[0]} if column else {}
        element = _proposed_column("", node.fields[0][1], inner)
        return Column(name, node.type, children=[element]) if element else None
    return Column(name, node.type)


def holds(column: Column, node: Node) -> bool:
    """Report whether a column of the node's type can have its values: the elements of lists and
    maps never change their type."""
    if node.type not in (types.LIST, types.MAP):
        return True
    element, inner = column.children[0], node.fields[0][1]
    return element.type == inner.type and holds(element, inner)


def chosen_column(name: str, node: Node, there: dict[str, Column]) -> tuple[Column, Convert | None]:
    """Return the column of a field's values, and how they get there. Raises LookupError if there
    was no room for one."""
    column = there.get(node.type)
    if column is not None and holds(column, node):
        return column, converter(node, column)
    if node.type in (types.LIST, types.MAP) and types.STRING in there:
        return there[types.STRING], TEXT.convert
    raise LookupError(name)


def converter(node: Node, column: Column) -> Convert | None:
    """Return the function from a decoded value to that of a column; None: it is the same."""
    if node.type == types.STRUCT:
        return _struct(node, column)
    if node.type not in (types.LIST, types.MAP):
        return node.convert
    inner = converter(node.fields[0][1], column.children[0])
    if node.type == types.MAP:
        return lambda value: _entries(value, inner)
    return None if inner is None else lambda value: _elements(value, inner)


def _struct(node: Node, column: Column) -> Convert:
    known, parts = by_field(column.children), []
    for name, inner in node.fields:
        try:
            found, convert = chosen_column(name, inner, known.get(name, {}))
        except LookupError:
            continue
        parts.append((name, found.name, convert))

    def placed(value: Any) -> Any:
        made = {}
        for name, named, change in parts:
            inner = value.get(name)
            if inner is not None:
                made[named] = inner if change is None else change(inner)
        return made

    return placed


def _elements(value: Any, inner: Convert) -> list[Any]:
    return [None if each is None else inner(each) for each in value]


def _entries(value: Any, inner: Convert | None) -> list[tuple[str, Any]]:
    """Return the entries of a map. One that is null is omitted, as in JSON."""
    return [
        (key, each if inner is None else inner(each))
        for key, each in value.items()
        if each is not None
    ]
