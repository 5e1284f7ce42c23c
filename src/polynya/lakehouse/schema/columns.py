"""The typed columns of a table: their names, and what is added to them. Pure and deterministic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from polynya.base.payloads import fields_of
from polynya.lakehouse.schema import types

_ILLEGAL = re.compile(r"\W")


class Column(msgspec.Struct, frozen=True):
    """One typed column. A JSON field may have several, one for each type."""

    field: str  # name in the JSON; "" for the element of a list
    type: str
    name: str = ""  # in the table; "" in a wish
    children: list[Column] = []  # a struct's columns; a list's element; a map's value

    @property
    def group(self) -> str:
        """The group of the type. Types of one group look alike in JSON."""
        return types.group_of(self.type)


def adopt(
    columns: Sequence[Column], wishes: Sequence[Column], most: int = types.LEAVES_MAX
) -> list[Column]:
    """Add the missing wishes to `columns`, named, in order, up to `LEAVES_MAX` leaves and `most`
    new ones. Existing columns keep their positions."""
    return _adopt(
        columns,
        wishes,
        (*types.OUR_COLUMNS, *types.READERS_COLUMNS),
        [min(most, types.LEAVES_MAX - leaves(columns))],
    )


def missing(columns: Sequence[Column], wishes: Sequence[Column]) -> list[Column]:
    """Return the wishes, or the parts of them, that `columns` does not have."""
    known = {(column.field, column.type): column for column in columns}
    found: list[Column] = []
    for wished in wishes:
        there = known.get((wished.field, wished.type))
        if there is None:
            found.append(wished)
        elif wished.children:
            left = missing(there.children, wished.children)
            found += [msgspec.structs.replace(wished, children=left)] if left else []
    return found


def paths(wishes: Sequence[Column], path: str = "") -> list[str]:
    """Return the paths of the leaves of wishes: `a.b`, and `a[]` for the elements of a list."""
    found: list[str] = []
    for wished in wishes:
        here = (
            f"{path}.{wished.field}" if path and wished.field else f"{path}{wished.field or '[]'}"
        )
        found += paths(wished.children, here) if wished.children else [here]
    return found


def renamed(columns: Sequence[Column], path: str = "") -> dict[str, str]:
    """Return the fields of the columns that have other names, by the column's path: `a.b`."""
    found: dict[str, str] = {}
    for column in columns:
        here = f"{path}{column.name}"
        if column.field and column.field != column.name:
            found[here] = column.field
        found |= renamed(column.children, f"{here}.")
    return found


def declared(columns: Sequence[tuple[str, str]]) -> list[Column]:
    """Return declared columns as wishes. A field is a path like `a.b`."""
    wishes = []
    for path, kind in fields_of(columns):
        *outer, field = path.split(".")
        wished = _of_type(field, kind)
        for name in reversed(outer):
            wished = Column(name, types.STRUCT, children=[wished])
        wishes.append(wished)
    return wishes


def lacking(columns: Sequence[Column], wanted: Sequence[tuple[str, str]]) -> list[str]:
    """Return the declared fields, with their types, that the columns do not have: for want of room,
    or because a list keeps the type of its elements."""
    return [
        f"{field}:{kind}"
        for field, kind in fields_of(wanted)
        if missing(columns, declared([(field, kind)]))
    ]


def _of_type(field: str, kind: str) -> Column:
    """Return the wish for a column of a declared type."""
    if kind.startswith("list<"):
        return Column(field, types.LIST, children=[_of_type("", kind[5:-1])])
    return Column(field, kind)


def leaves(columns: Sequence[Column]) -> int:
    """Return the number of leaf columns, as Parquet counts them."""
    return sum(
        leaves(column.children) + (column.type == types.MAP) if column.children else 1
        for column in columns
    )


def by_field(columns: Sequence[Column]) -> dict[str, dict[str, Column]]:
    """Return the columns of each field by type."""
    found: dict[str, dict[str, Column]] = {}
    for column in columns:
        found.setdefault(column.field, {})[column.type] = column
    return found


def _adopt(
    columns: Sequence[Column], wishes: Sequence[Column], reserved: Sequence[str], room: list[int]
) -> list[Column]:
    result = list(columns)
    position = {(column.field, column.type): at for at, column in enumerate(result)}
    taken = set[str]()
    for name in (*reserved, *(column.name for column in result)):
        taken |= spellings(name)
    fields = {column.field for column in result}
    for wished in wishes:
        at = position.get((wished.field, wished.type))
        if at is None:
            named = _named(wished, wished.field in fields, taken, room)
            if named is not None:
                position[wished.field, wished.type] = len(result)
                fields.add(wished.field)
                result.append(named)
        elif wished.children:
            result[at] = _grown(result[at], wished, room)
    return result


def _named(wished: Column, sibling: bool, taken: set[str], room: list[int]) -> Column | None:
    """Return the wish with its names, or None if there is no room."""
    children: list[Column] = []
    if wished.type == types.MAP and room[0] <= 1:
        return None
    if wished.children:
        room[0] -= wished.type == types.MAP  # its keys
        children = (
            [_element(wished.children[0], room, "value" if wished.type == types.MAP else "element")]
            if wished.type in (types.LIST, types.MAP)
            else _adopt([], wished.children, (), room)
        )
        children = [child for child in children if child is not None]
        if not children:
            return None
    elif room[0] <= 0:
        return None
    else:
        room[0] -= 1
    return Column(wished.field, wished.type, _free_name(wished, sibling, taken), children)


def _element(wished: Column, room: list[int], name: str) -> Any:
    named = _named(wished, False, set(), room)
    return named and msgspec.structs.replace(named, name=name)


def _grown(column: Column, wished: Column, room: list[int]) -> Column:
    if column.type == types.STRUCT:
        return msgspec.structs.replace(
            column, children=_adopt(column.children, wished.children, (), room)
        )
    element, more = column.children[0], wished.children[0]
    if element.type != more.type or not more.children:
        return column
    return msgspec.structs.replace(column, children=[_grown(element, more, room)])


def _free_name(wished: Column, sibling: bool, taken: set[str]) -> str:
    base = _ILLEGAL.sub("_", wished.field)[: types.NAME_CHARACTERS_MAX] or "_"
    if base[0].isdigit() or base.casefold().startswith(types.PARTITION_PREFIX):
        base = "_" + base
    if sibling:
        base = f"{base}__{_ILLEGAL.sub('_', wished.type).rstrip('_')}"
    name, number = base, 1
    while not taken.isdisjoint(spellings(name)):
        number += 1
        name = f"{base}_{number}"
    taken |= spellings(name)
    return name


def spellings(name: str) -> set[str]:
    """Return what readers that ignore case compare. Names that share one are equal to some reader.

    Java's `equalsIgnoreCase` takes each character to upper and then to lower case, one to one.
    """
    return {name.casefold(), "".join(map(_lowered, name))}


def _lowered(character: str) -> str:
    upper = character.upper()
    return (upper if len(upper) == 1 else character).lower()[0]
