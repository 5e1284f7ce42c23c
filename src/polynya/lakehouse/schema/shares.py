"""The columns that a table gets from the samples of its streams, divided fairly when there is not room
for all. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from polynya.lakehouse.schema.columns import (
    KEYS_MAX,
    LEAVES_MAX,
    LIST,
    MAP,
    STRUCT,
    Column,
    FieldProfile,
    adopt,
    leaves,
    merged,
    missing,
    wish,
)

_KEYS_LEAST = 4  # objects with at most so many keys stay structs however little room there is


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
    if leaves(wide) < LEAVES_MAX:
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
        share = (LEAVES_MAX - leaves(columns)) // (len(waiting) - number)
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
    inner = {wished.field: wished.children for wished in wishes if wished.type == STRUCT}
    return [
        msgspec.structs.replace(
            column, children=_majority_first(column.children, inner[column.field])
        )
        if column.type == STRUCT and column.field in inner
        else column
        for column in found
    ]


def _fitting(
    columns: list[Column], wishes: list[Column], found: FieldProfile, share: int
) -> list[Column]:
    """Return a stream's wishes, with more maps in place of structs until they fit the share."""
    keys = KEYS_MAX
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
        if wished.type == STRUCT:
            children = _of(wished.children, inner)
            made += [msgspec.structs.replace(wished, children=children)] if children else []
        elif wished.type not in (LIST, MAP) or inner.types:
            made.append(wished)
    return made
