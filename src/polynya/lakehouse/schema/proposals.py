"""Proposed columns: those that observed values lack. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.columns import Column, by_field
from polynya.lakehouse.schema.profiles import FieldProfile, merged

# the widest first
_WIDTH = {
    group: width
    for width, group in enumerate(
        (types.STRING, types.JSON, types.STRUCT, types.LIST, "number", types.BOOLEAN)
    )
}


def proposed_columns(
    columns: Sequence[Column], seen: FieldProfile, least: int = 1, keys: int = types.KEYS_MAX
) -> list[Column]:
    """Return the columns that the fields of `seen` (an object) lack in `columns`.

    A second type of a field needs at least `least` values and 1 % of the field's values. An object
    with more than `keys` keys is a map.
    """
    known = by_field(columns)
    proposals: list[Column] = []
    for name, inner in seen.fields.items():
        proposals += _field_proposals(name, known.get(name, {}), inner, (least, keys))
    return proposals


def _field_proposals(
    name: str, there: dict[str, Column], seen: FieldProfile, limits: tuple[int, int]
) -> list[Column]:
    """Return the proposals for a field. `limits` are `least` and `keys` of `proposed_columns`."""
    enough = max(limits[0], -(-seen.total // 100)) if there else -(-seen.total // 100)
    proposals = []
    for kind in _wanted_types(there, seen, enough):
        children: list[Column] = []
        if kind == types.STRUCT:
            proposals += _object_proposals(name, there, seen, limits)
            continue
        if kind == types.LIST and seen.element is not None:
            children = _element_proposals(there.get(types.LIST), seen.element, limits)
        if children or kind != types.LIST:
            proposals.append(Column(name, kind, children=children))
    return proposals


def _object_proposals(
    name: str, there: dict[str, Column], seen: FieldProfile, limits: tuple[int, int]
) -> list[Column]:
    """Return the proposals for a field's objects: a struct, or a map if they have too many keys.
    A struct that would grow beyond gets a map beside it."""
    known = (
        {column.field for column in there[types.STRUCT].children}
        if types.STRUCT in there
        else set()
    )
    few = len(known | seen.fields.keys()) <= limits[1]
    proposals = []
    if types.STRUCT in there or (types.MAP not in there and few):
        inner = there[types.STRUCT].children if types.STRUCT in there else []
        children = proposed_columns(inner, seen, *limits)
        if not few:
            children = [child for child in children if child.field in known]
        proposals += [Column(name, types.STRUCT, children=children)] if children else []
    if types.MAP in there or not few:
        children = _element_proposals(there.get(types.MAP), merged(seen.fields.values()), limits)
        proposals += [Column(name, types.MAP, children=children)] if children else []
    return proposals


def _element_proposals(
    there: Column | None, seen: FieldProfile, limits: tuple[int, int]
) -> list[Column]:
    """Return the proposal for the element of a list, or for the value of a map. Its type is fixed;
    only a struct can grow."""
    if there is None:
        return _field_proposals("", {}, seen, limits)[:1]
    element = there.children[0]
    return [
        proposed
        for proposed in _field_proposals("", {element.type: element}, seen, limits)
        if proposed.type == element.type
    ]


def _wanted_types(there: dict[str, Column], seen: FieldProfile, enough: int) -> Iterator[str]:
    """Yield the types to add or to extend: the group with the most values first, which gets the
    name. Ties go to the wider."""
    count = seen.types
    claimed = set().union(*map(types.claims, there)) - {
        types.group_of(kind) for kind in there if types.is_plain(kind)
    }
    groups: dict[str, int] = {}
    for kind, number in count.items():
        groups[types.GROUPS[kind]] = groups.get(types.GROUPS[kind], 0) + number
    for group in sorted(groups, key=lambda group: (-groups[group], _WIDTH[group])):
        kind = group
        if group in claimed:
            continue
        if kind in (types.STRUCT, types.LIST):
            if (
                kind in there
                or (kind == types.STRUCT and types.MAP in there)
                or count[kind] >= enough
            ):
                yield kind
        elif kind in (types.BOOLEAN, types.JSON):
            if kind not in there and count[kind] >= enough:
                yield kind
        else:
            yield from (
                _wanted_number(there, count, enough)
                if group == "number"
                else _wanted_string(there, count, enough)
            )


def _wanted_number(there: dict[str, Column], count: dict[str, int], enough: int) -> Iterator[str]:
    """Yield the numeric types to add, the one with the most values first."""
    longs, wholes, doubles, wides, decimals = (
        count.get(kind, 0)
        for kind in (types.LONG, types.WHOLE, types.DOUBLE, types.WIDE, types.DECIMAL)
    )
    wanted: dict[str, int] = {}
    if types.DECIMAL in there and types.LONG not in there:  # it holds every integer
        wanted |= {types.DOUBLE: doubles} if doubles >= enough and types.DOUBLE not in there else {}
    elif types.DOUBLE not in there and types.LONG not in there:
        small = longs + wholes + doubles + wides
        fractions = wholes or doubles
        if small >= enough:
            wanted[types.DOUBLE if fractions else types.LONG] = small
        if fractions and wides >= enough:
            wanted[types.LONG] = wides
    elif types.DOUBLE not in there:
        wanted |= {types.DOUBLE: doubles} if doubles >= enough else {}
    elif types.LONG not in there:
        wanted |= {types.LONG: wides} if wides >= enough else {}
    if types.DECIMAL not in there and decimals >= enough:
        wanted[types.DECIMAL] = decimals
    if (
        not there.keys() & {types.LONG, types.DOUBLE, types.DECIMAL}
        and not wanted
        and count.get(types.HUGE, 0) >= enough
    ):
        wanted[types.DOUBLE] = 0  # such values are dead letters, and the field has a column
    yield from sorted(wanted, key=lambda kind: -wanted[kind])


def _wanted_string(there: dict[str, Column], count: dict[str, int], enough: int) -> Iterator[str]:
    """Yield the types of strings to add. A field of which 1 % are neither dates nor times, or the
    less frequent of the two, is a string."""
    number = {kind: count.get(kind, 0) for kind in (types.TIME, types.DATE, types.STRING)}
    if types.STRING in there:
        return
    if types.TIME in there or types.DATE in there:
        wanted = [kind for kind in number if kind not in there and number[kind] >= enough]
        yield from [types.STRING] if types.STRING in wanted else wanted
    elif (total := sum(number.values())) >= enough:
        kind = max(number, key=lambda kind: number[kind])
        yield types.STRING if (total - number[kind]) * 100 >= total else kind
