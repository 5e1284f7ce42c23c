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
from polynya.lakehouse.jobs.plan import UNFRAMED, Writer
from polynya.lakehouse.payloads.avro import AvroDecoder
from polynya.lakehouse.payloads.framing import HEADER_BYTES, Mask, framed, ids_of
from polynya.lakehouse.payloads.json_schema import fields_of
from polynya.lakehouse.payloads.nodes import (
    BadSchema,
    Batch,
    Fields,
    Node,
    chosen_column,
    proposed_columns,
)
from polynya.lakehouse.payloads.protobuf import ProtobufDecoder
from polynya.lakehouse.reading.slices import Kind
from polynya.lakehouse.schema.columns import Column, by_field, missing

BAD_SCHEMA, BAD_BODY = "bad_schema", "bad_body"
_NO_ID = -(2**31) - 1  # below every id
_DECODERS = 256  # of a process
_RUNS_MAX = 16  # of records with unknown schemas in one slice: each is a failure of its table
_HEADS, _HEAD_BYTES = 64, 16  # of the bodies of one schema in a sample: their messages

Writers = Mapping[int, Writer]
Heads = dict[int, set[bytes]]
"""By id of a schema, the first bytes of some bodies."""


class Decoder(Protocol):
    """The decoder of the bodies of one schema."""

    def fields(self, heads: Sequence[bytes]) -> list[Fields]:
        """Return the fields of each type of body; of Protobuf only of those that begin so."""
        ...

    def values(self, bodies: Sequence[bytes]) -> tuple[list[Batch], dict[int, str]]:
        """Return the values of bodies, and why some cannot be decoded, by number."""
        ...


class JsonDecoder:
    """The fields of JSON bodies, which `typed` decodes."""

    def __init__(self, text: str, references: Sequence[tuple[str, str]]) -> None:
        self._fields = fields_of(text, references)

    def fields(self, heads: Sequence[bytes]) -> list[Fields]:
        return [self._fields]


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
    separator: int  # bytes behind each record


def laid(kind: Kind, data: Bytes, ends: Positions, missing: Mask) -> Layout:
    """Return records of a pack: a comma follows each, except behind bytes."""
    return Layout(kind, data, ends, missing, 0 if kind == Kind.BYTES else 1)


def heads_in(records: Layout) -> Heads:
    """Return the schema ids of records with the wire format, and the first bytes of some of their
    bodies."""
    chosen, ids = _ids(records, {})
    found = {}
    for number in np.unique(ids[chosen]):
        positions = np.flatnonzero(chosen & (ids == number))
        step = max(1, len(positions) // _HEADS)
        bodies = _group(records, positions[::step], int(number)).bodies
        found[int(number)] = {body[:_HEAD_BYTES] for body in bodies}
    return found


def add_heads(heads: Heads, more: Heads) -> None:
    for number, found in more.items():
        heads.setdefault(number, set()).update(found)


def unknown_runs(records: Layout, writers: Writers) -> list[tuple[int, int, str]]:
    """Return the runs of records whose schema is unknown: the first row, the last one, and the
    reason. Many runs are told as one."""
    _, ids = _ids(records, writers)
    unknown = [number for number, writer in writers.items() if writer.unknown]
    rows = np.flatnonzero(np.isin(ids, unknown))
    if not len(rows):
        return []
    begins = np.flatnonzero((np.diff(rows, prepend=-2) > 1) | (np.diff(ids[rows], prepend=-1) != 0))
    ends = np.append(begins[1:], len(rows)) - 1
    if len(begins) > _RUNS_MAX:
        begins, ends = begins[:1], ends[-1:]
    return [
        (int(rows[begin]), int(rows[end]), writers[int(ids[rows[begin]])].unknown)
        for begin, end in zip(begins, ends, strict=True)
    ]


def decoded_payloads(records: Layout, schema: Schema, writers: Writers) -> Decoded:
    """Return the typed values of records. Modifies their data. Raises SchemaMissing,
    SchemaUnknown."""
    kind, data, ends, missing, _ = records
    chosen, ids = _ids(records, writers)
    numbers = [int(each) for each in np.unique(ids[chosen])]
    if lacking := [number for number in numbers if number not in writers]:
        raise SchemaMissing(lacking)
    for number in numbers:
        if writers[number].unknown:
            raise SchemaUnknown(writers[number].unknown)
    groups = [
        _group(records, np.flatnonzero(chosen & (ids == number)), number) for number in numbers
    ]
    parts = [part for group in groups for part in _decoded(group, writers, schema)]
    unframed = int(np.count_nonzero(~(missing | chosen)))
    if not chosen.all():
        rest = typed(kind, data, ends, missing | chosen, schema)
        if not parts:
            rest.unframed = unframed
            return rest
        positions = np.flatnonzero(~chosen)
        arrays = [array.take(pa.array(positions)) for array in rest.arrays]
        parts.append(_Part(positions, arrays, rest.problems, rest.proposals))
    found = _joined(parts, schema.columns, len(ends))
    found.unframed = unframed
    return found


def _ids(records: Layout, writers: Writers) -> tuple[Mask, Positions]:
    """Return a mask of the records that a schema decodes, and the schemas' ids."""
    _, data, ends, missing, separator = records
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    ids = np.full(len(ends), _NO_ID, np.int64)
    if UNFRAMED in writers:
        ids[~missing] = UNFRAMED
        return ~missing, ids
    chosen = framed(data, ends, missing, separator)
    ids[chosen] = ids_of(data, starts[chosen])
    return chosen, ids


def decoder_of(writer: Writer) -> Decoder | JsonDecoder:
    """Return the decoder of a schema, which this process keeps. Raises BadSchema."""
    found = _decoder(writer.type, writer.text, tuple(map(tuple, writer.references)), writer.message)
    if isinstance(found, BadSchema):
        raise found
    return found


@lru_cache(_DECODERS)
def _decoder(
    kind: str, text: str, references: tuple[tuple[str, str], ...], message: str
) -> Decoder | JsonDecoder | BadSchema:
    try:
        if kind == "AVRO":
            return AvroDecoder(text, references)
        if kind == "PROTOBUF":
            return ProtobufDecoder(text, references, message)
        if kind == "JSON":
            return JsonDecoder(text, references)
    except BadSchema as bad:
        return bad
    return BadSchema(f"the schema has the type {kind}; expected AVRO, PROTOBUF or JSON")


class _Group(msgspec.Struct):
    """The records of one schema: their positions in the block, and their bodies."""

    number: int
    positions: Positions
    bodies: list[bytes]


class _Part(msgspec.Struct):
    """Decoded records of a block: their positions, columns, and problems by row of the block."""

    positions: Positions
    arrays: list[pa.Array]
    problems: dict[int, list[Problem]] = {}
    proposals: list[Column] = []


def _group(records: Layout, positions: Positions, number: int) -> _Group:
    data, ends = records.data, records.ends
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    stops = ends - records.separator
    view, header = memoryview(cast("Any", data)), HEADER_BYTES if number != UNFRAMED else 0
    spans = zip((starts[positions] + header).tolist(), stops[positions].tolist(), strict=True)
    bodies = [bytes(view[begin:end]) for begin, end in spans]
    return _Group(int(number), positions, bodies)


def _decoded(group: _Group, writers: Writers, schema: Schema) -> list[_Part]:
    """Decode the records of one schema."""
    try:
        decoder = decoder_of(writers[group.number])
    except BadSchema as bad:
        named = f"schema {group.number}: " if group.number != UNFRAMED else ""
        problem = Problem(BAD_SCHEMA, "", f"{named}{bad}")
        problems = {int(position): [problem] for position in group.positions}
        return [_without(group.positions, schema.columns, problems)]
    if isinstance(decoder, JsonDecoder):
        return [_json(group, schema)]
    batches, faults = decoder.values(group.bodies)
    parts = [_batch(group.positions[batch.numbers], batch, schema) for batch in batches]
    if faults:
        numbers = sorted(faults)
        reported = {group.positions[at]: [Problem(BAD_BODY, "", faults[at])] for at in numbers}
        parts.append(_without(group.positions[numbers], schema.columns, reported))
    return parts


def _without(
    positions: Positions, columns: Sequence[Column], problems: Mapping[Any, list[Problem]]
) -> _Part:
    """Return records that have no typed values."""
    reported = {int(position): found for position, found in problems.items()}
    return _Part(
        positions, [pa.nulls(len(positions), arrow_type(each)) for each in columns], reported
    )


def _json(group: _Group, schema: Schema) -> _Part:
    """Decode JSON bodies as records are: an object each, with a comma behind."""
    data = np.frombuffer(bytearray(b"".join(body + b"," for body in group.bodies)), np.uint8)
    ends = np.cumsum([len(body) + 1 for body in group.bodies])
    found = typed(Kind.JSON, data, ends, np.zeros(len(ends), np.bool_), schema)
    problems = {int(group.positions[row]): reported for row, reported in found.problems.items()}
    return _Part(group.positions, found.arrays, problems, found.proposals)


def _batch(positions: Positions, batch: Batch, schema: Schema) -> _Part:
    columns, problems = schema.columns, dict[int, list[Problem]]()
    if schema.discover:
        wanted = missing(columns, proposed_columns(batch.fields, columns))
        if wanted:  # of a message that no sample had
            return _Part(positions, _without(positions, columns, {}).arrays, proposals=wanted)
    found = _placed(batch.fields, columns, batch.values, problems, positions.tolist())
    arrays = [
        found[column.name] if column.name in found else pa.nulls(len(positions), arrow_type(column))
        for column in columns
    ]
    return _Part(positions, arrays, problems)


def _placed(
    fields: Sequence[tuple[str, Node]],
    columns: Sequence[Column],
    values: Sequence[Mapping[str, Any]],
    problems: dict[int, list[Problem]],
    positions: Sequence[int],
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
            found[column.name] = _each(own, convert, kind, (field, positions, problems))
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
    field, positions, problems = where
    kept: list[Any] = []
    for at, value in enumerate(values):
        try:
            kept.append(value if value is None or convert is None else convert(value))
            pa.array(kept[-1:], kind)
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as fault:
            kept[at:] = [None]
            problem = Problem(MISFIT, field, f"the value does not fit its column: {fault}"[:300])
            problems.setdefault(positions[at], []).append(problem)
    return pa.array(kept, kind)


def _nothing(columns: Sequence[Column], count: int) -> Decoded:
    return Decoded([pa.nulls(count, arrow_type(column)) for column in columns], {}, [])


def _joined(parts: Sequence[_Part], columns: Sequence[Column], count: int) -> Decoded:
    """Return the parts of a block in the order of its records."""
    problems = {row: found for part in parts for row, found in part.problems.items()}
    proposals = [each for part in parts for each in part.proposals]
    if not parts:
        return _nothing(columns, count)
    if len(parts) == 1:
        return Decoded(parts[0].arrays, problems, proposals)
    order = np.empty(count, np.int64)
    order[np.concatenate([part.positions for part in parts])] = np.arange(count)
    indices = pa.array(order)
    arrays = [
        pa.concat_arrays([part.arrays[at] for part in parts]).take(indices)
        for at in range(len(columns))
    ]
    return Decoded(arrays, problems, proposals)
