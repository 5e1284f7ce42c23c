"""Derive typed columns from JSON: observed values become wishes, and wishes become columns. Pure
and deterministic."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from polynya.base.payloads import fields_of
from polynya.lakehouse.schema import types

# the widest first
_WIDTH = {
    group: width
    for width, group in enumerate((types.STRING, types.STRUCT, types.LIST, "number", types.BOOLEAN))
}

_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)", re.ASCII
)
_OUTER_YEARS = ("0000", "0001", "9999")
_DATE = re.compile(types.DATE_PATTERN[1:-1], re.ASCII)
_ILLEGAL = re.compile(r"\W")
_KEYS_LEAST = 4  # objects with at most so many keys stay structs however little room there is


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


class FieldProfile(msgspec.Struct):
    """The observed values of a field: counts by type in order of first occurrence, `fields` of
    objects, `element` of arrays."""

    types: dict[str, int] = {}
    fields: dict[str, FieldProfile] = {}
    element: FieldProfile | None = None

    @property
    def total(self) -> int:
        return sum(self.types.values())


def observe(seen: FieldProfile, value: Any, depth: int = 0) -> None:
    """Add one parsed JSON value. null, {} and [] carry no type."""
    if value is None:
        return
    if isinstance(value, dict):
        if value and depth < types.DEPTH_MAX:
            seen.types[types.STRUCT] = seen.types.get(types.STRUCT, 0) + 1
            for name, inner in value.items():
                if not (name.isascii() or is_text(name)):
                    continue
                observe(seen.fields.setdefault(name, FieldProfile()), inner, depth + 1)
    elif isinstance(value, list):
        if value and depth < types.DEPTH_MAX:
            seen.types[types.LIST] = seen.types.get(types.LIST, 0) + 1
            seen.element = seen.element or FieldProfile()
            for inner in value:
                observe(seen.element, inner, depth + 1)
    else:
        kind = scalar_type(value)
        seen.types[kind] = seen.types.get(kind, 0) + 1


def is_text(text: str) -> bool:
    """Report whether a parsed JSON string can be encoded as UTF-8: escapes can form half of a
    surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_typed(value: Any, depth: int) -> bool:
    """Report whether `observe` would find a type in a field's value at this depth (1: a field of
    the record)."""
    if isinstance(value, dict):
        return depth < types.DEPTH_MAX and any(
            is_typed(inner, depth + 1) for inner in value.values()
        )
    if isinstance(value, list):
        return depth < types.DEPTH_MAX and any(is_typed(inner, depth + 1) for inner in value)
    return value is not None


def scalar_type(value: Any) -> str:
    """Return the type of a parsed JSON scalar other than null; `WHOLE`, `WIDE` and `HUGE` are told
    apart."""
    if isinstance(value, bool):
        return types.BOOLEAN
    if isinstance(value, int):
        if types.LONG_MIN <= value <= types.LONG_MAX:
            return types.LONG if int(float(value)) == value else types.WIDE
        return types.DECIMAL if abs(value) <= types.DECIMAL_MAX else types.HUGE
    if isinstance(value, float):
        if not math.isfinite(value):
            return types.HUGE
        return types.WHOLE if abs(value) < types.EXACT_MAX and value.is_integer() else types.DOUBLE
    if len(value) == 10 and _DATE.fullmatch(value):
        return types.DATE
    return (
        types.TIME
        if len(value) >= 17 and _TIME.fullmatch(value) and _is_known(value)
        else types.STRING
    )


def _is_known(time: str) -> bool:
    """Report whether a time with a zone is in the years 0001 to 9999 of UTC. Only the outermost
    years need a look."""
    if time[:4] not in _OUTER_YEARS:
        return True
    try:
        datetime.fromisoformat(time).astimezone(UTC)
    except (ValueError, OverflowError):
        return False
    return True


def wish(
    columns: Sequence[Column], seen: FieldProfile, least: int = 1, keys: int = types.KEYS_MAX
) -> list[Column]:
    """Return the columns that the fields of `seen` (an object) lack in `columns`.

    A second type of a field needs at least `least` values and 1 % of the field's values. An object
    with more than `keys` keys is a map.
    """
    known = by_field(columns)
    wishes: list[Column] = []
    for name, inner in seen.fields.items():
        wishes += _wish_field(name, known.get(name, {}), inner, (least, keys))
    return wishes


def adopt(
    columns: Sequence[Column], wishes: Sequence[Column], most: int = types.LEAVES_MAX
) -> list[Column]:
    """Add the missing wishes to `columns`, named, in order, up to `LEAVES_MAX` leaves and `most` new
    ones. Existing columns keep their places."""
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


def merged(profiles: Iterable[FieldProfile]) -> FieldProfile:
    """Return one profile of all values."""
    found = FieldProfile()
    for each in profiles:
        _merge(found, each)
    return found


def _merge(into: FieldProfile, seen: FieldProfile) -> None:
    for kind, number in seen.types.items():
        into.types[kind] = into.types.get(kind, 0) + number
    for name, inner in seen.fields.items():
        _merge(into.fields.setdefault(name, FieldProfile()), inner)
    if seen.element is not None:
        into.element = into.element or FieldProfile()
        _merge(into.element, seen.element)


def declared(columns: Sequence[tuple[str, str]]) -> list[Column]:
    """Return declared columns as wishes. A field is a path like `a.b`."""
    wishes = []
    for path, kind in fields_of(columns):
        *outer, field = path.split(".")
        wished = Column(field, kind)
        for name in reversed(outer):
            wished = Column(name, types.STRUCT, children=[wished])
        wishes.append(wished)
    return wishes


def decided(columns: Sequence[Column], before: Sequence[Column], seen: FieldProfile) -> list[str]:
    """Return what was decided for new columns, in words: name, type, and how many sampled values
    have the type."""
    known = {(column.field, column.type) for column in before}
    told = []
    for column in columns:
        if (column.field, column.type) in known:
            continue
        inner = seen.fields.get(column.field, FieldProfile())
        kinds = [column.type]
        if column.type == types.DOUBLE:
            kinds += (
                [types.WHOLE]
                if any(
                    other.field == column.field and other.type == types.LONG for other in columns
                )
                else [types.WHOLE, types.LONG]
            )
        elif column.type == types.LONG:
            kinds += [types.WIDE]
        elif column.type == types.MAP:
            kinds = [types.STRUCT]
        count = sum(inner.types.get(kind, 0) for kind in kinds)
        share = f"{count:,} of {inner.total:,}" if inner.total else "declared, or by a schema"
        told.append(f"{column.name} {column.type} ({share})")
    return told


def leaves(columns: Sequence[Column]) -> int:
    """Return the number of leaf columns, as Parquet counts them."""
    return sum(
        leaves(column.children) + (column.type == types.MAP) if column.children else 1
        for column in columns
    )


def shape(columns: Sequence[Column], seen: FieldProfile) -> dict[str, str]:
    """Return the type that this stream's sample holds most, for fields with columns of several
    groups or of long and double.

    A hint for speed.
    """
    return dict(_shape(columns, seen, ""))


def by_field(columns: Sequence[Column]) -> dict[str, dict[str, Column]]:
    """Return the columns of each field by type."""
    found: dict[str, dict[str, Column]] = {}
    for column in columns:
        found.setdefault(column.field, {})[column.type] = column
    return found


def _wish_field(
    name: str, there: dict[str, Column], seen: FieldProfile, limits: tuple[int, int]
) -> list[Column]:
    """Return the wishes for a field. `limits` are `least` and `keys` of `wish`."""
    enough = max(limits[0], -(-seen.total // 100)) if there else -(-seen.total // 100)
    wishes = []
    for kind in _wanted_types(there, seen, enough):
        children: list[Column] = []
        if kind == types.STRUCT:
            wishes += _wish_object(name, there, seen, limits)
            continue
        if kind == types.LIST and seen.element is not None:
            children = _wish_element(there.get(types.LIST), seen.element, limits)
        if children or kind != types.LIST:
            wishes.append(Column(name, kind, children=children))
    return wishes


def _wish_object(
    name: str, there: dict[str, Column], seen: FieldProfile, limits: tuple[int, int]
) -> list[Column]:
    """Return the wishes for a field's objects: a struct, or a map if they have too many keys. A
    struct that would grow beyond gets a map beside it."""
    known = (
        {column.field for column in there[types.STRUCT].children}
        if types.STRUCT in there
        else set()
    )
    few = len(known | seen.fields.keys()) <= limits[1]
    wishes = []
    if types.STRUCT in there or (types.MAP not in there and few):
        inner = there[types.STRUCT].children if types.STRUCT in there else []
        children = wish(inner, seen, *limits)
        if not few:
            children = [child for child in children if child.field in known]
        wishes += [Column(name, types.STRUCT, children=children)] if children else []
    if types.MAP in there or not few:
        children = _wish_element(there.get(types.MAP), merged(seen.fields.values()), limits)
        wishes += [Column(name, types.MAP, children=children)] if children else []
    return wishes


def _wish_element(
    there: Column | None, seen: FieldProfile, limits: tuple[int, int]
) -> list[Column]:
    """Return the wish for the element of a list, or for the value of a map. Its type is fixed; only
    a struct can grow."""
    if there is None:
        return _wish_field("", {}, seen, limits)[:1]
    element = there.children[0]
    return [
        wished
        for wished in _wish_field("", {element.type: element}, seen, limits)
        if wished.type == element.type
    ]


def _wanted_types(there: dict[str, Column], seen: FieldProfile, enough: int) -> Iterator[str]:
    """Yield the types to add or to extend: the group with the most values first, which gets the
    name. Ties go to the wider."""
    count = seen.types
    groups: dict[str, int] = {}
    for kind, number in count.items():
        groups[types.GROUPS[kind]] = groups.get(types.GROUPS[kind], 0) + number
    for group in sorted(groups, key=lambda group: (-groups[group], _WIDTH[group])):
        kind = group
        if kind in (types.STRUCT, types.LIST):
            if (
                kind in there
                or (kind == types.STRUCT and types.MAP in there)
                or count[kind] >= enough
            ):
                yield kind
        elif kind == types.BOOLEAN:
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


def _adopt(
    columns: Sequence[Column], wishes: Sequence[Column], reserved: Sequence[str], room: list[int]
) -> list[Column]:
    result = list(columns)
    place = {(column.field, column.type): at for at, column in enumerate(result)}
    taken = set[str]()
    for name in (*reserved, *(column.name for column in result)):
        taken |= spellings(name)
    fields = {column.field for column in result}
    for wished in wishes:
        at = place.get((wished.field, wished.type))
        if at is None:
            named = _named(wished, wished.field in fields, taken, room)
            if named is not None:
                place[wished.field, wished.type] = len(result)
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


def _shape(columns: Sequence[Column], seen: FieldProfile, path: str) -> Iterator[tuple[str, str]]:
    for field, there in by_field(columns).items():
        inner = seen.fields.get(field)
        if inner is None or not inner.types:
            continue
        here = f"{path}{field}"
        groups: dict[str, int] = {}
        for kind, count in inner.types.items():
            groups[types.GROUPS[kind]] = groups.get(types.GROUPS[kind], 0) + count
        most = max(groups, key=lambda group: groups[group])
        if len({types.group_of(kind) for kind in there}) > 1:
            yield here, most
        if (
            types.LONG in there
            and types.DOUBLE in there
            and not (types.WHOLE in inner.types or types.DOUBLE in inner.types)
        ):
            yield f"{here} number", types.LONG
        if types.STRUCT in there:
            yield from _shape(there[types.STRUCT].children, inner, f"{here}\0")


def chosen(columns: Sequence[Column], seen: Collection[FieldProfile]) -> list[Column]:
    """Return the columns after adding those that the samples wish for, one sample a stream.

    Of all samples together, the majority of a field's values decides which type gets its name. If
    there is no room for all wishes, every stream gets an equal share of the room, scalars of the
    record first. A stream whose share is too small gets maps for its larger objects.
    """
    whole = merged(seen)
    wide = adopt(columns, wish(columns, whole))
    for found in seen:
        wide = adopt(wide, wish(wide, found))
    if leaves(wide) < types.LEAVES_MAX:
        return wide
    return _shared(list(columns), wish(columns, whole), list(seen))


def ordered(wishes: Sequence[Column]) -> list[Column]:
    """Return the wishes with the fewest leaves first: scalars, then lists and objects."""
    return sorted(wishes, key=lambda wished: (bool(wished.children), leaves([wished])))


def _shared(columns: list[Column], wishes: list[Column], seen: list[FieldProfile]) -> list[Column]:
    """Divide the room: streams that wish for little first, so that the others share what is left."""
    before = columns
    waiting = sorted(seen, key=lambda found: leaves(_of(wishes, found)))
    for number, found in enumerate(waiting):
        share = (types.LEAVES_MAX - leaves(columns)) // (len(waiting) - number)
        wanted = _fitting(columns, wishes, found, share)
        columns = adopt(columns, wanted, share)
    return adopt(before, _majority_first(columns, wishes))  # names again


def _majority_first(columns: Sequence[Column], wishes: Sequence[Column]) -> list[Column]:
    """Return the columns, those of one field in the order of the wishes: the first gets its name."""
    order = {(wished.field, wished.type): at for at, wished in enumerate(wishes)}
    ranked: dict[str, list[Column]] = {}
    for column in sorted(
        columns, key=lambda column: order.get((column.field, column.type), len(order))
    ):
        ranked.setdefault(column.field, []).append(column)
    found = [ranked[column.field].pop(0) for column in columns]
    inner = {wished.field: wished.children for wished in wishes if wished.type == types.STRUCT}
    return [
        msgspec.structs.replace(
            column, children=_majority_first(column.children, inner[column.field])
        )
        if column.type == types.STRUCT and column.field in inner
        else column
        for column in found
    ]


def _fitting(
    columns: list[Column], wishes: list[Column], found: FieldProfile, share: int
) -> list[Column]:
    """Return a stream's wishes, with more maps in place of structs until they fit the share."""
    keys = types.KEYS_MAX
    # the whole decides the types of scalars, the stream the form of its objects
    scalars = [wished for wished in _of(wishes, found) if not wished.children]
    while True:
        objects = [wished for wished in wish(columns, found, keys=keys) if wished.children]
        own = [wished for wished in wish(columns, found) if not wished.children]
        wanted = [*scalars, *(each for each in own if each not in scalars), *ordered(objects)]
        if keys <= _KEYS_LEAST or leaves(missing(columns, wanted)) <= share:
            return wanted
        keys //= 2


def _of(wishes: Sequence[Column], found: FieldProfile) -> list[Column]:
    """Return the wishes, or the parts of them, for fields that a stream has."""
    made = []
    for wished in wishes:
        inner = found.fields.get(wished.field)
        if inner is None:
            continue
        if wished.type == types.STRUCT:
            children = _of(wished.children, inner)
            made += [msgspec.structs.replace(wished, children=children)] if children else []
        elif wished.type not in (types.LIST, types.MAP) or inner.types:
            made.append(wished)
    return made
