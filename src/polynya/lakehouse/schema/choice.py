"""The choice of a table's columns from samples of its streams, and hints for their decoder.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.columns import Column, adopt, by_field, leaves, missing
from polynya.lakehouse.schema.profiles import FieldProfile, merged
from polynya.lakehouse.schema.proposals import proposed_columns

_KEYS_LEAST = 4  # objects with at most so many keys stay structs however little room there is


def decided(columns: Sequence[Column], before: Sequence[Column], seen: FieldProfile) -> list[str]:
    """Return what was decided for new columns, in words: name, type, and how many sampled values
    have the type."""
    known = {(column.field, column.type) for column in before}
    listed = []
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
        by_sample = inner.total and not types.claims(column.type)
        share = f"{count:,} of {inner.total:,}" if by_sample else "declared, or by a schema"
        listed.append(f"{column.name} {column.type} ({share})")
    return listed


def shape(columns: Sequence[Column], seen: FieldProfile) -> dict[str, str]:
    """Return the type that this stream's sample holds most, for fields with columns of several
    groups or of long and double.

    A hint for speed.
    """
    return dict(_shape(columns, seen, ""))


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
    """Return the columns after adding those that the samples propose, one sample a stream.

    Of all samples together, the majority of a field's values decides which type gets its name. If
    there is no room for all of them, every stream gets an equal share of the room, scalars of the
    record first. A stream whose share is too small gets maps for its larger objects.
    """
    whole = merged(seen)
    wide = adopt(columns, proposed_columns(columns, whole))
    for found in seen:
        wide = adopt(wide, proposed_columns(wide, found))
    if leaves(wide) < types.LEAVES_MAX:
        return wide
    return _shared(list(columns), proposed_columns(columns, whole), list(seen))


def ordered(proposals: Sequence[Column]) -> list[Column]:
    """Return the proposals with the fewest leaves first: scalars, then lists and objects."""
    return sorted(proposals, key=lambda proposed: (bool(proposed.children), leaves([proposed])))


def _shared(
    columns: list[Column], proposals: list[Column], seen: list[FieldProfile]
) -> list[Column]:
    """Divide the column budget, small requests first, so that the others share what is left."""
    before = columns
    waiting = sorted(seen, key=lambda found: leaves(_of(proposals, found)))
    for number, found in enumerate(waiting):
        share = (types.LEAVES_MAX - leaves(columns)) // (len(waiting) - number)
        wanted = _fitting(columns, proposals, found, share)
        columns = adopt(columns, wanted, share)
    return adopt(before, _majority_first(columns, proposals))  # names again


def _majority_first(columns: Sequence[Column], proposals: Sequence[Column]) -> list[Column]:
    """Return the columns, those of one field in the order of the proposals: the first gets its
    name."""
    order = {(proposed.field, proposed.type): at for at, proposed in enumerate(proposals)}
    ranked: dict[str, list[Column]] = {}
    for column in sorted(
        columns, key=lambda column: order.get((column.field, column.type), len(order))
    ):
        ranked.setdefault(column.field, []).append(column)
    found = [ranked[column.field].pop(0) for column in columns]
    inner = {
        proposed.field: proposed.children for proposed in proposals if proposed.type == types.STRUCT
    }
    return [
        msgspec.structs.replace(
            column, children=_majority_first(column.children, inner[column.field])
        )
        if column.type == types.STRUCT and column.field in inner
        else column
        for column in found
    ]


def _fitting(
    columns: list[Column], proposals: list[Column], found: FieldProfile, share: int
) -> list[Column]:
    """Return a stream's proposals, with more maps in place of structs until they fit the share."""
    keys = types.KEYS_MAX
    # the whole decides the types of scalars, the stream the form of its objects
    scalars = [proposed for proposed in _of(proposals, found) if not proposed.children]
    while True:
        objects = [
            proposed
            for proposed in proposed_columns(columns, found, keys=keys)
            if proposed.children
        ]
        own = [proposed for proposed in proposed_columns(columns, found) if not proposed.children]
        wanted = [*scalars, *(each for each in own if each not in scalars), *ordered(objects)]
        if keys <= _KEYS_LEAST or leaves(missing(columns, wanted)) <= share:
            return wanted
        keys //= 2


def _of(proposals: Sequence[Column], found: FieldProfile) -> list[Column]:
    """Return the proposals, or the parts of them, for fields that a stream has."""
    made = []
    for proposed in proposals:
        inner = found.fields.get(proposed.field)
        if inner is None:
            continue
        if proposed.type == types.STRUCT:
            children = _of(proposed.children, inner)
            made += [msgspec.structs.replace(proposed, children=children)] if children else []
        elif proposed.type not in (types.LIST, types.MAP) or inner.types:
            made.append(proposed)
    return made
