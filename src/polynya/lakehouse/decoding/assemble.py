"""Map pyarrow's arrays of JSON fields to the table's columns: choose the type to parse a field as,
and split its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from polynya.lakehouse.decoding.declared import converted, parsed_type
from polynya.lakehouse.decoding.rows import TIMESTAMP, to_dates, to_times
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.columns import Column, by_field

NULLS: dict[str, Any] = {}  # a row without any typed value
_SCALARS = {
    types.DECIMAL: pa.decimal128(types.DECIMAL_DIGITS, 0),
    types.LONG: pa.int64(),
    types.DOUBLE: pa.float64(),
    types.STRING: pa.string(),
    types.TIME: TIMESTAMP,
    types.DATE: pa.date32(),
    types.BOOLEAN: pa.bool_(),
    types.BINARY: pa.binary(),
    types.LOCAL_TIME: pa.timestamp("us"),
    types.INT: pa.int32(),
    types.FLOAT: pa.float32(),
    types.UUID: pa.string(),
    types.JSON: pa.string(),
    **dict.fromkeys(types.EPOCHS, TIMESTAMP),
}

Mask = npt.NDArray[np.bool_]


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column, without field ids."""
    if column.type == types.STRUCT:
        return pa.struct([pa.field(child.name, arrow_type(child)) for child in column.children])
    if column.type == types.LIST:
        return pa.list_(pa.field("element", arrow_type(column.children[0])))
    if column.type == types.MAP:
        return pa.map_(pa.string(), pa.field("value", arrow_type(column.children[0])))
    if (digits := types.digits_of(column.type)) is not None:
        return pa.decimal128(*digits)
    return _SCALARS[column.type]


def parse_fields(
    columns: Sequence[Column], shape: dict[str, str], path: str = ""
) -> list[pa.Field]:
    """Return the schema for pyarrow's JSON reader: one type per field, chosen by the hints of
    `shape`."""
    return [
        pa.field(field, _parse_type(there, shape, f"{path}{field}"))
        for field, there in _plain_fields(columns).items()
    ]


def map_fields(columns: Sequence[Column], field: str = "") -> set[str]:
    """Return the names of the fields whose objects may be maps, and of those with columns that
    pyarrow cannot fill, at any depth. Records that have one are decoded one by one."""
    found: set[str] = set()
    for name, there in by_field(columns).items():
        here, alone = name or field, len(there) == 1
        for column in there.values():
            single = column.type == types.MAP or not _is_parsed(column, alone=alone)
            found |= {here} if single else map_fields(column.children, here)
    return found


def _plain_fields(columns: Sequence[Column]) -> dict[str, dict[str, Column]]:
    """Return the columns of each field by type, without those that have maps themselves or as
    elements, and those that pyarrow cannot fill."""
    return {
        field: plain
        for field, there in by_field(columns).items()
        if (
            plain := {
                kind: column
                for kind, column in there.items()
                if not _is_mapped(column, alone=len(there) == 1)
            }
        )
    }


def _is_mapped(column: Column, *, alone: bool) -> bool:
    return (
        column.type == types.MAP
        or not _is_parsed(column, alone=alone)
        or (column.type == types.LIST and _is_mapped(column.children[0], alone=True))
    )


def _is_parsed(column: Column, *, alone: bool) -> bool:
    """Report whether pyarrow parses values of a column's type: those of a declared one only where
    the field has no other column."""
    return types.is_plain(column.type) or (alone and parsed_type(column.type) is not None)


def assemble(
    columns: Sequence[Column],
    found: dict[str, pa.Array],
    count: int,
    shape: dict[str, str],
    redo: Mask,
    path: str = "",
) -> list[pa.Array]:
    """Build the columns' arrays from the parsed fields. Set `redo` where a value fits no column or
    is uncertain."""
    made: dict[str, pa.Array] = {}
    for field, there in _plain_fields(columns).items():
        array = found.get(field)
        if array is not None:
            made |= _field(there, array, shape, redo, f"{path}{field}")
    return [
        made[column.name] if column.name in made else pa.nulls(count, arrow_type(column))
        for column in columns
    ]


def unknown_rows(
    columns: Sequence[Column], found: dict[str, pa.Array], mask: Mask, *, most: int, depth: int = 1
) -> None:
    """Set `mask` where a field without a column has a value that may have a type, for up to `most`
    rows per field."""
    fields = by_field(columns)
    for field, array in found.items():
        there = fields.get(field)
        if there is None:
            if _has_type(array.type, depth):
                mask[np.flatnonzero(_typed_rows(array, depth))[:most]] = True
        else:
            _unknown_within(there, array, mask, most, depth)


def _parse_type(there: dict[str, Column], shape: dict[str, str], path: str) -> pa.DataType:
    if len(there) == 1 and (declared := parsed_type(next(iter(there)))) is not None:
        return declared
    group = _group(there, shape, path)
    if group == "number":
        if types.LONG not in there:
            return pa.float64()  # a decimal's rows are decoded one by one
        return (
            pa.int64()
            if types.DOUBLE not in there or shape.get(f"{path} number") == types.LONG
            else pa.float64()
        )
    if group == types.STRING:
        return pa.string()
    if group == types.BOOLEAN:
        return pa.bool_()
    if group == types.STRUCT:
        return pa.struct(parse_fields(there[types.STRUCT].children, shape, f"{path}\0"))
    element = there[types.LIST].children[0]
    return pa.list_(_parse_type({element.type: element}, {}, ""))


def _group(there: dict[str, Column], shape: dict[str, str], path: str) -> str:
    groups = [column.group for column in there.values()]
    hint = shape.get(path)
    return hint if hint in groups else groups[0]


def _field(
    there: dict[str, Column], array: pa.Array, shape: dict[str, str], redo: Mask, path: str
) -> dict[str, pa.Array]:
    """Return one parsed field's arrays by column name."""
    kind = array.type
    if pa.types.is_floating(kind):
        # the reader accepts NaN, which is not JSON
        redo |= _numpy(pc.invert(pc.fill_null(pc.is_finite(array), True)))
    if len(there) == 1 and parsed_type(only := next(iter(there))) is not None:
        return {there[only].name: converted(only, array, redo)}
    if pa.types.is_float64(kind) and types.LONG in there:
        return _split_numbers(there, array, redo)
    if pa.types.is_floating(kind):
        # perhaps rounded
        redo |= _numpy(pc.fill_null(pc.greater_equal(pc.abs(array), float(types.EXACT_MAX)), False))
        if types.DECIMAL in there:
            redo |= _numpy(pc.fill_null(pc.equal(pc.floor(array), array), False))
        if types.DOUBLE in there:
            return {there[types.DOUBLE].name: array}
        redo |= _numpy(array.is_valid())
        return {there[types.DECIMAL].name: pa.nulls(len(array), _SCALARS[types.DECIMAL])}
    if pa.types.is_integer(kind):
        return {there[types.LONG].name: array}
    if pa.types.is_boolean(kind):
        return {there[types.BOOLEAN].name: array}
    if pa.types.is_string(kind):
        return _split_strings(there, array, redo)
    if pa.types.is_struct(kind):
        return {there[types.STRUCT].name: _struct(there[types.STRUCT], array, shape, redo, path)}
    return {there[types.LIST].name: _list(there[types.LIST], array, redo)}


def _split_numbers(there: dict[str, Column], array: pa.Array, redo: Mask) -> dict[str, pa.Array]:
    """Move whole numbers to the long column. Mark numbers too large to be exact as a double for
    redo."""
    sizes = pc.abs(array)
    large = pc.fill_null(pc.greater_equal(sizes, float(types.EXACT_MAX)), False)
    redo |= _numpy(large)
    whole = pc.and_not(pc.fill_null(pc.equal(pc.floor(array), array), False), large)
    nothing = pa.scalar(None, array.type)
    return {
        there[types.LONG].name: pc.if_else(whole, array, nothing).cast(pa.int64()),
        there[types.DOUBLE].name: pc.if_else(whole, nothing, array),
    }


def _split_strings(there: dict[str, Column], array: pa.Array, redo: Mask) -> dict[str, pa.Array]:
    made: dict[str, pa.Array] = {}
    nothing = pa.scalar(None, array.type)
    rest: pa.Array | None = array
    for kind, parse in ((types.TIME, to_times), (types.DATE, to_dates)):
        if kind in there:
            values, others = parse(pa.nulls(len(array), array.type) if rest is None else rest)
            made[there[kind].name] = values
            rest = None if others is None else pc.if_else(others, rest, nothing)
    if types.STRING in there:
        made[there[types.STRING].name] = pa.nulls(len(array), array.type) if rest is None else rest
    elif rest is not None:
        redo |= _numpy(rest.is_valid())
    return made


def _struct(
    column: Column, array: pa.Array, shape: dict[str, str], redo: Mask, path: str
) -> pa.Array:
    found = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    children = assemble(column.children, found, len(array), shape, redo, f"{path}\0")
    return pa.StructArray.from_arrays(children, fields=list(arrow_type(column)), mask=_nulls(array))


def _list(column: Column, array: pa.Array, redo: Mask) -> pa.Array:
    element = column.children[0]
    again = np.zeros(len(array.values), np.bool_)
    values = _field({element.type: element}, array.values, {}, again, "")[element.name]
    if again.any():
        redo |= _parents(array, again)
    return pa.ListArray.from_arrays(
        array.offsets, values, type=arrow_type(column), mask=_nulls(array)
    )


def _unknown_within(
    there: dict[str, Column], array: pa.Array, mask: Mask, most: int, depth: int
) -> None:
    if pa.types.is_struct(array.type) and types.STRUCT in there:
        found = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        unknown_rows(there[types.STRUCT].children, found, mask, most=most, depth=depth + 1)
    elif pa.types.is_list(array.type) and types.LIST in there:
        inner = np.zeros(len(array.values), np.bool_)
        element = there[types.LIST].children[0]
        _unknown_within({element.type: element}, array.values, inner, most, depth + 1)
        if inner.any():
            mask |= _parents(array, inner)


def _has_type(kind: pa.DataType, depth: int) -> bool:
    if pa.types.is_struct(kind):
        return any(depth >= types.DEPTH_MAX or _has_type(field.type, depth + 1) for field in kind)
    if pa.types.is_list(kind):
        return depth >= types.DEPTH_MAX or _has_type(kind.value_type, depth + 1)
    return not pa.types.is_null(kind)


def _typed_rows(array: pa.Array, depth: int) -> Mask:
    """Mark values other than null, {} and []. A non-empty list is marked without a look at its
    elements; the slow path checks them."""
    if not _has_type(array.type, depth):
        return np.zeros(len(array), np.bool_)
    if pa.types.is_struct(array.type) and depth < types.DEPTH_MAX:
        found: Mask = np.zeros(len(array), np.bool_)
        for child in array.flatten():
            found |= _typed_rows(child, depth + 1)
        return found
    if pa.types.is_list(array.type):
        return _numpy(pc.fill_null(pc.greater(pc.list_value_length(array), 0), False))
    return _numpy(array.is_valid())


def _parents(array: pa.Array, elements: Mask) -> Mask:
    """Mark lists that hold a marked element."""
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(elements)))
    offsets = array.offsets.to_numpy()
    return np.asarray(sums[offsets[1:]] > sums[offsets[:-1]]) & _numpy(array.is_valid())


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _numpy(mask: pa.Array) -> Mask:
    return np.asarray(mask.to_numpy(zero_copy_only=False), np.bool_)
