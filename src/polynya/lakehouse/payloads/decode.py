"""Decode blocks of records with framed values among them: each by its writer's schema, the others
as JSON or bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast

import msgspec
import numpy as np
import pyarrow as pa

from polynya.base.errors import PolynyaError
from polynya.lakehouse.decoding.assemble import arrow_type
from polynya.lakehouse.decoding.decode import Bytes, Decoded, Positions, Schema
from polynya.lakehouse.decoding.kinds import typed
from polynya.lakehouse.decoding.rows import MISFIT, Problem
from polynya.lakehouse.jobs.plan import Writer
from polynya.lakehouse.payloads.framing import HEADER_BYTES, Mask, framed, ids_of
from polynya.lakehouse.payloads.nodes import BadSchema, Node, chosen_column
from polynya.lakehouse.reading.slices import Kind
from polynya.lakehouse.schema.columns import Column, by_field

BAD_SCHEMA, BAD_BODY = "bad_schema", "bad_body"
UNFRAMED = 0  # in place of an id: the schema of values without one
_NO_ID = -(2**31) - 1  # below every id
_DECODERS = 256  # of a process

Writers = Mapping[int, Writer]


class Decoder(Protocol):
    """The decoder of the bodies of one schema."""

    fields: list[tuple[str, Node]]

    def values(self, bodies: Sequence[bytes]) -> tuple[list[Any], dict[int, str]]:
        """Return the values of bodies as objects, and why some cannot be decoded, by number."""
        ...


class SchemaMissing(PolynyaError):
    """The job does not have the schemas of these ids."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(f"the job has no schema {', '.join(map(str, numbers))}")
        self.numbers = numbers


class SchemaUnknown(PolynyaError):
    """No registry has the schema of a record."""


class Layout(NamedTuple):
    """Records laid out as for `typed`."""

    kind: Kind
    data: Bytes
    ends: Positions
    missing: Mask


def ids_in(records: Layout) -> list[int]:
    """Return the schema ids of records with the wire format, each once."""
    _, ids = _ids(records, {})
    return [int(each) for each in np.unique(ids[ids >= _NO_ID + 1])] if len(ids) else []


def decoded_payloads(records: Layout, schema: Schema, writers: Writers) -> Decoded:
    """Return the typed values of records. Modifies their data. Raises SchemaMissing,
    SchemaUnknown."""
    kind, data, ends, missing = records
    chosen, ids = _ids(records, writers)
    numbers = [int(each) for each in np.unique(ids[chosen])]
    if lacking := [number for number in numbers if number not in writers]:
        raise SchemaMissing(lacking)
    for number in numbers:
        if writers[number].unknown:
            raise SchemaUnknown(writers[number].unknown)
    parts = [
        _decoded(_group(records, np.flatnonzero(chosen & (ids == number)), number), writers, schema)
        for number in numbers
    ]
    if not chosen.all():
        rest = typed(kind, data, ends, missing | chosen, schema)
        if not parts:
            return rest
        places = np.flatnonzero(~chosen)
        arrays = [array.take(pa.array(places)) for array in rest.arrays]
        parts.append(_Part(places, arrays, rest.problems, rest.wishes))
    return _joined(parts, schema.columns, len(ends))


def _ids(records: Layout, writers: Writers) -> tuple[Mask, Positions]:
    """Return a mask of the records that a schema decodes, and the schemas' ids."""
    kind, data, ends, missing = records
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    ids = np.full(len(ends), _NO_ID, np.int64)
    if UNFRAMED in writers:
        ids[~missing] = UNFRAMED
        return ~missing, ids
    chosen = framed(data, ends, missing, 0 if kind == Kind.BYTES else 1)
    ids[chosen] = ids_of(data, starts[chosen])
    return chosen, ids


def decoder_of(writer: Writer) -> Decoder:
    """Return the decoder of a schema, which this process keeps. Raises BadSchema."""
    found = _decoder(writer.type, writer.text, tuple(map(tuple, writer.references)), writer.message)
    if isinstance(found, BadSchema):
        raise found
    return found


@lru_cache(_DECODERS)
def _decoder(
    kind: str, text: str, references: tuple[tuple[str, str], ...], message: str
) -> Decoder | BadSchema:
    from polynya.lakehouse.payloads.avro import AvroDecoder

    try:
        if kind == "AVRO":
            return AvroDecoder(text, references)
    except BadSchema as bad:
        return bad
    return BadSchema(f"the schema has the type {kind}; expected AVRO, PROTOBUF or JSON")


class _Group(msgspec.Struct):
    """The records of one schema: their places in the block, and their bodies."""

    number: int
    places: Positions
    bodies: list[bytes]


class _Part(msgspec.Struct):
    """Decoded records of a block: their places, columns, and problems by row of the block."""

    places: Positions
    arrays: list[pa.Array]
    problems: dict[int, list[Problem]] = {}
    wishes: list[Column] = []


def _group(records: Layout, places: Positions, number: int) -> _Group:
    kind, data, ends, _ = records
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    stops = ends - (0 if kind == Kind.BYTES else 1)
    view, header = memoryview(cast("Any", data)), HEADER_BYTES if number != UNFRAMED else 0
    spans = zip((starts[places] + header).tolist(), stops[places].tolist(), strict=True)
    bodies = [bytes(view[begin:end]) for begin, end in spans]
    return _Group(int(number), places, bodies)


def _decoded(group: _Group, writers: Writers, schema: Schema) -> _Part:
    columns = schema.columns
    try:
        decoder = decoder_of(writers[group.number])
    except BadSchema as bad:
        named = f"schema {group.number}: " if group.number != UNFRAMED else ""
        problem = Problem(BAD_SCHEMA, "", f"{named}{bad}")
        nothing = [pa.nulls(len(group.places), arrow_type(column)) for column in columns]
        return _Part(group.places, nothing, {int(at): [problem] for at in group.places})
    values, faults = decoder.values(group.bodies)
    places = group.places.tolist()
    problems = {places[at]: [Problem(BAD_BODY, "", told)] for at, told in faults.items()}
    for at in faults:
        values[at] = {}
    found = _placed(decoder.fields, columns, values, problems, places)
    arrays = [
        found[column.name] if column.name in found else pa.nulls(len(places), arrow_type(column))
        for column in columns
    ]
    return _Part(group.places, arrays, problems)


def _placed(
    fields: Sequence[tuple[str, Node]],
    columns: Sequence[Column],
    values: Sequence[Mapping[str, Any]],
    problems: dict[int, list[Problem]],
    places: Sequence[int],
) -> dict[str, Any]:
    """Return the arrays of the fields' columns by name. Fields without room have none."""
    known, found = by_field(columns), dict[str, Any]()
    for field, node in fields:
        try:
            column, convert = chosen_column(field, node, known.get(field, {}))
        except LookupError:
            continue
        kind, own = arrow_type(column), [row.get(field) for row in values]
        try:
            found[column.name] = pa.array(
                own if convert is None else _converted(own, convert), kind
            )
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
            found[column.name] = _each(own, convert, kind, (field, places, problems))
    return found


def _converted(values: Sequence[Any], convert: Any) -> list[Any]:
    return [None if each is None else convert(each) for each in values]


def _each(
    values: Sequence[Any],
    convert: Any,
    kind: pa.DataType,
    where: tuple[str, Sequence[int], dict[int, list[Problem]]],
) -> pa.Array:
    """Return the values of a field that fit its column, and note the others."""
    field, places, problems = where
    kept: list[Any] = []
    for at, value in enumerate(values):
        try:
            kept.append(value if value is None or convert is None else convert(value))
            pa.array(kept[-1:], kind)
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as fault:
            kept[at:] = [None]
            problem = Problem(MISFIT, field, f"the value does not fit its column: {fault}"[:300])
            problems.setdefault(places[at], []).append(problem)
    return pa.array(kept, kind)


def _nothing(columns: Sequence[Column], count: int) -> Decoded:
    return Decoded([pa.nulls(count, arrow_type(column)) for column in columns], {}, [])


def _joined(parts: Sequence[_Part], columns: Sequence[Column], count: int) -> Decoded:
    """Return the parts of a block in the order of its records."""
    problems = {row: found for part in parts for row, found in part.problems.items()}
    wishes = [each for part in parts for each in part.wishes]
    if not parts:
        return _nothing(columns, count)
    if len(parts) == 1:
        return Decoded(parts[0].arrays, problems, wishes)
    order = np.empty(count, np.int64)
    order[np.concatenate([part.places for part in parts])] = np.arange(count)
    indices = pa.array(order)
    arrays = [
        pa.concat_arrays([part.arrays[at] for part in parts]).take(indices)
        for at in range(len(columns))
    ]
    return Decoded(arrays, problems, wishes)
