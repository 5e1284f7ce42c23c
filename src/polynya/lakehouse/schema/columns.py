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
    name: str = ""  # in the table; "" in a proposal
    children: list[Column] = []  # a struct's columns; a list's element; a map's value

    @property
    def group(self) -> str:
        """The group of the type. Types of one group look alike in JSON."""
        return types.group_of(self.type)


def adopt(
    columns: Sequence[Column], proposals: Sequence[Column], most: int = types.LEAVES_MAX
) -> list[Column]:
    """Add the missing proposals to `columns`, named, in order, up to `LEAVES_MAX` leaves and
    `most` new ones. Existing columns keep their positions."""
    return _adopt(
        columns,
        proposals,
        (*types.OUR_COLUMNS, *types.READERS_COLUMNS),
        [min(most, types.LEAVES_MAX - leaves(columns))],
    )


def missing(columns: Sequence[Column], proposals: Sequence[Column]) -> list[Column]:
    """Return the proposals, or the parts of them, that `columns` does not have."""
    known = {(column.field, column.type): column for column in columns}
    found: list[Column] = []
    for proposed in proposals:
        there = known.get((proposed.field, proposed.type))
        if there is None:
            found.append(proposed)
        elif proposed.children:
            left = missing(there.children, proposed.children)
            found += [msgspec.structs.replace(proposed, children=left)] if left else []
    return found


def paths(proposals: Sequence[Column], path: str = "") -> list[str]:
    """Return the paths of the leaves of proposals: `a.b`, and `a[]` for the elements of a list."""
    found: list[str] = []
    for proposed in proposals:
        here = (
            f"{path}.{proposed.field}"
            if path and proposed.field
            else f"{path}{proposed.field or '[]'}"
        )
        found += paths(proposed.children, here) if proposed.children else [here]
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
    """Return declared columns as proposals. A field is a path like `a.b`."""
    proposals = []
    for path, kind in fields_of(columns):
        *outer, field = path.split(".")
        proposed = _of_type(field, kind)
        for name in reversed(outer):
            proposed = Column(name, types.STRUCT, children=[proposed])
        proposals.append(proposed)
    return proposals


def lacking(columns: Sequence[Column], wanted: Sequence[tuple[str, str]]) -> list[str]:
    """Return the declared fields, with their types, that the columns do not have: for want of room,
    or because a list keeps the type of its elements."""
    return [
        f"{field}:{kind}"
        for field, kind in fields_of(wanted)
        if missing(columns, declared([(field, kind)]))
    ]


def _of_type(field: str, kind: str) -> Column:
    """Return the proposal for a column of a declared type."""
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
    columns: Sequence[Column], proposals: Sequence[Column], reserved: Sequence[str], room: list[int]
) -> list[Column]:
    result = list(columns)
    position = {(column.field, column.type): at for at, column in enumerate(result)}
    taken = set[str]()
    for name in (*reserved, *(column.name for column in result)):
        taken |= spellings(name)
    fields = {column.field for column in result}
    for proposed in proposals:
        at = position.get((proposed.field, proposed.type))
        if at is None:
            named = _named(proposed, proposed.field in fields, taken, room)
            if named is not None:
                position[proposed.field, proposed.type] = len(result)
                fields.add(proposed.field)
                result.append(named)
        elif proposed.children:
            result[at] = _grown(result[at], proposed, room)
    return result


def _named(proposed: Column, sibling: bool, taken: set[str], room: list[int]) -> Column | None:
    """Return the proposal with its names, or None if there is no room."""
    children: list[Column] = []
    if proposed.type == types.MAP and room[0] <= 1:
        return None
    if proposed.children:
        room[0] -= proposed.type == types.MAP  # its keys
        children = (
            [
                _element(
                    proposed.children[0], room, "value" if proposed.type == types.MAP else "element"
                )
            ]
            if proposed.type in (types.LIST, types.MAP)
            else _adopt([], proposed.children, (), room)
        )
        children = [child for child in children if child is not None]
        if not children:
            return None
    elif room[0] <= 0:
        return None
    else:
        room[0] -= 1
    return Column(proposed.field, proposed.type, _free_name(proposed, sibling, taken), children)


def _element(proposed: Column, room: list[int], name: str) -> Any:
    named = _named(proposed, False, set(), room)
    return named and msgspec.structs.replace(named, name=name)


def _grown(column: Column, proposed: Column, room: list[int]) -> Column:
    if column.type == types.STRUCT:
        return msgspec.structs.replace(
            column, children=_adopt(column.children, proposed.children, (), room)
        )
    element, more = column.children[0], proposed.children[0]
    if element.type != more.type or not more.children:
        return column
    return msgspec.structs.replace(column, children=[_grown(element, more, room)])


def _free_name(proposed: Column, sibling: bool, taken: set[str]) -> str:
    base = _ILLEGAL.sub("_", proposed.field)[: types.NAME_CHARACTERS_MAX] or "_"
    if base[0].isdigit() or base.casefold().startswith(types.PARTITION_PREFIX):
        base = "_" + base
    if sibling:
        base = f"{base}__{_ILLEGAL.sub('_', proposed.type).rstrip('_')}"
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
