"""Decode a block of JSON records to typed columns: with pyarrow where possible, with `rows`
elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pajson

from polynya.lakehouse.decoding import rows
from polynya.lakehouse.decoding.assemble import (
    NULLS,
    arrow_type,
    assemble,
    map_fields,
    parse_fields,
    unknown_rows,
)
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.columns import Column
from polynya.lakehouse.schema.profiles import FieldProfile, observe
from polynya.lakehouse.schema.proposals import proposed_columns

_ROW = re.compile(r"in row (\d+)")
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
# a block with a larger share of misfits is decoded record by record from there on
_SLOW_SHARE = 100
_SLOW_LEAST = 8  # failed parses that any block may have
_SAMPLE_ROWS = 64  # rows checked for each unknown field of a block
_SPACES = b" \t\r\n"
_OBJECT_BEGINS = np.frombuffer(b"{" + _SPACES, np.uint8)
_OBJECT_ENDS = np.frombuffer(b"}" + _SPACES, np.uint8)
NO_OBJECT = (rows.NOT_JSON, rows.NOT_OBJECT, rows.BAD_TEXT)

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


class Schema(msgspec.Struct, frozen=True):
    """The target schema of a block. `discover` collects proposals for fields without a column;
    `full` skips such fields."""

    columns: list[Column]
    shape: dict[str, str] = {}
    discover: bool = False
    full: bool = False


class Decoded(msgspec.Struct):
    """A decoded block: `arrays` in column order, `problems` by row, and `proposals`: the columns
    that a wider schema would have."""

    arrays: list[pa.Array]
    problems: dict[int, list[rows.Problem]]
    proposals: list[Column]
    unframed: int = 0  # values without a schema's id, in a table of framed ones


def decode(data: Bytes, ends: Positions, schema: Schema) -> Decoded:
    """Decode records laid out as a JSON batch: record i is data[ends[i-1]:ends[i]] and ends with a
    comma. Modifies `data`."""
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    fast = _plain(data, starts, ends)
    everywhere = bool(fast.all())
    lengths = ends - starts
    text, text_ends = (
        (data, ends) if everywhere else (data[np.repeat(fast, lengths)], np.cumsum(lengths[fast]))
    )
    text = text.copy() if everywhere and not text.flags.writeable else text
    text[text_ends - 1] = 10
    block = _Block(text, text_ends, schema)
    block.parse_all()
    text[text_ends - 1] = 44
    parsed = (
        np.flatnonzero(fast)[np.concatenate(block.taken)] if block.taken else np.zeros(0, np.int64)
    )
    arrays, redo, unknown = block.columns(len(parsed))
    if block.taken:
        redo = redo | _half_pairs(text, text_ends)[np.concatenate(block.taken)]
    return _Join(data, starts, ends, schema).join(parsed, arrays, redo, unknown)


def _plain(data: Bytes, starts: Positions, ends: Positions) -> npt.NDArray[np.bool_]:
    """Mark records that begin with { and end with }.

    A JSON reader turns such records, one per line, into one row each, an error, or more rows than
    records. After the last brace of an unfinished record come a newline and a brace, which no
    string, object or array allows. So the row count proves the alignment, and no record must be
    wrapped.
    """
    return (ends - starts > 2) & (data[starts] == 123) & (data[np.maximum(ends - 2, 0)] == 125)


def _half_pairs(text: Bytes, ends: Positions) -> npt.NDArray[np.bool_]:
    """Mark records that may have an escape of half a surrogate pair: in the name of a field, the
    JSON reader passes it over."""
    found = np.zeros(len(ends), np.bool_)
    data = text.tobytes()
    if b"\\ud" in data or b"\\uD" in data:
        positions = [match.start() for match in _HALF_PAIR.finditer(data)]
        found[np.searchsorted(ends, positions, side="right")] = True
    return found


class _Block:
    """The parser of a text of plain records, one per line. Records that fail are isolated by
    bisection and left to the slow path."""

    def __init__(self, text: Bytes, ends: Positions, schema: Schema) -> None:
        self._buffer = pa.py_buffer(text)
        self._text = text
        self._ends = ends
        self._schema = schema
        self._parse_schema = pa.schema(parse_fields(schema.columns, schema.shape))
        self._failures_left = max(_SLOW_LEAST, len(ends) // _SLOW_SHARE)
        self.taken: list[Positions] = []
        self._tables: list[pa.Table] = []
        self._unknown: list[npt.NDArray[np.bool_]] = []

    def parse_all(self) -> None:
        work = [(0, len(self._ends))]
        if not self._is_utf8() or self._may_have_maps():
            self._failures_left = 0
        while work:
            begin, end = work.pop()
            if begin == end:
                continue
            if self._failures_left <= 0:
                return
            bad = self._parse(begin, end)
            if bad is None:
                continue
            self._failures_left -= 1
            if bad < 0 and end - begin > 1:
                middle = (begin + end) // 2
                work += [(middle, end), (begin, middle)]
            elif bad >= 0:
                work += [(bad + 1, end), (begin, bad)]

    def columns(
        self, count: int
    ) -> tuple[list[pa.Array], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return the arrays of all parsed records, a mask of records to redo, and a mask of records
        with unknown fields."""
        redo = np.zeros(count, np.bool_)
        unknown = np.concatenate(self._unknown) if self._unknown else np.zeros(0, np.bool_)
        if not self._tables:
            return (
                [pa.nulls(0, arrow_type(column)) for column in self._schema.columns],
                redo,
                unknown,
            )
        table = pa.concat_tables(self._tables).combine_chunks()
        found = {name: _one(table[name]) for name in table.column_names}
        return assemble(self._schema.columns, found, count, self._schema.shape, redo), redo, unknown

    def _may_have_maps(self) -> bool:
        """Report whether a field whose objects may be maps occurs, also under an escaped name."""
        fields = map_fields(self._schema.columns)
        text = self._text.tobytes() if fields else b""
        names = [msgspec.json.encode(field) for field in fields]
        return any(name in text for name in names) or (bool(fields) and b"\\u" in text)

    def _is_utf8(self) -> bool:
        offsets = np.array([0, len(self._text)], np.int64)
        whole = pa.Array.from_buffers(
            pa.large_string(), 1, [None, pa.py_buffer(offsets), self._buffer]
        )
        try:
            whole.validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True

    def _parse(self, begin: int, end: int) -> int | None:
        """Parse a range. Return None on success, else the number of the bad record, or -1 if it is
        unknown."""
        first = int(self._ends[begin - 1]) if begin else 0
        size = int(self._ends[end - 1]) - first
        try:
            table = self._read(first, size, "ignore" if self._schema.full else "infer")
        except pa.ArrowInvalid as fault:
            match = _ROW.search(str(fault))
            row = begin + int(match[1]) if match else -1
            return row if row < end else -1
        if table.num_rows != end - begin:
            return -1
        self._take(begin, end, table)
        return None

    def _read(self, first: int, size: int, unexpected: str) -> pa.Table:
        return pajson.read_json(
            pa.BufferReader(self._buffer.slice(first, size)),
            read_options=pajson.ReadOptions(use_threads=False, block_size=max(size + 1, 1 << 12)),
            parse_options=pajson.ParseOptions(
                explicit_schema=self._parse_schema, unexpected_field_behavior=unexpected
            ),
        )

    def _take(self, begin: int, end: int, table: pa.Table) -> None:
        known = self._parse_schema.names
        mask = np.zeros(end - begin, np.bool_)
        if not self._schema.full:
            try:
                table.validate()
                found = {name: _one(table[name]) for name in table.column_names}
                most = _SAMPLE_ROWS if self._schema.discover else len(mask)
                unknown_rows(self._schema.columns, found, mask, most=most)
            except (
                pa.ArrowInvalid
            ):  # the reader infers a wrong type for an array that begins with nulls: [null, 1]
                first = int(self._ends[begin - 1]) if begin else 0
                table = self._read(first, int(self._ends[end - 1]) - first, "ignore")
                mask[:] = True
        self.taken.append(np.arange(begin, end, dtype=np.int64))
        self._tables.append(_known(table.select(known), self._parse_schema))
        self._unknown.append(mask)


def _known(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table without fields that were inferred inside structs."""
    if table.schema.equals(schema):
        return table
    arrays = [_narrow(_one(table[at]), field.type) for at, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema) if arrays else table


def _narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type.equals(kind):
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        inner = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        children = [_narrow(inner[field.name], field.type) for field in kind]
        return (
            pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
            if children
            else pa.nulls(len(array), kind)
        )
    return pa.ListArray.from_arrays(
        array.offsets, _narrow(array.values, kind.value_type), type=kind, mask=mask
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class _Join:
    """Merges the rows of the fast and the slow path in record order."""

    def __init__(self, data: Bytes, starts: Positions, ends: Positions, schema: Schema) -> None:
        self._data = data
        self._starts = starts
        self._ends = ends
        self._schema = schema
        self._seen = FieldProfile()
        self._exact = _is_exact(schema.columns)
        self._problems: dict[int, list[rows.Problem]] = {}

    def join(
        self,
        parsed: Positions,
        arrays: list[pa.Array],
        redo: npt.NDArray[np.bool_],
        unknown: npt.NDArray[np.bool_],
    ) -> Decoded:
        if unknown.any():
            if self._schema.discover:
                for row in parsed[np.flatnonzero(unknown)]:
                    observe(self._seen, self._value(int(row))[0])
            else:
                redo = redo | unknown
        slow = np.ones(len(self._ends), np.bool_)
        slow[parsed[~redo]] = False
        if slow.any():
            arrays = self._mixed(arrays, parsed, np.flatnonzero(slow))
        proposals = (
            proposed_columns(
                self._schema.columns, self._seen, max(1, len(self._ends) // _SLOW_SHARE)
            )
            if self._seen.fields
            else []
        )
        return Decoded(arrays, self._problems, proposals)

    def _mixed(self, arrays: list[pa.Array], parsed: Positions, slow: Positions) -> list[pa.Array]:
        placed = [self._position(int(row)) for row in slow]
        order = np.zeros(len(self._ends), np.int64)
        order[parsed] = np.arange(len(parsed))
        order[slow] = len(parsed) + np.arange(len(slow))
        indices = pa.array(order)
        mixed = []
        for column, fast in zip(self._schema.columns, arrays, strict=True):
            values = pa.array([row.get(column.name) for row in placed], arrow_type(column))
            mixed.append(pa.concat_arrays([fast, values]).take(indices))
        return mixed

    def _value(self, row: int) -> tuple[Any, rows.Problem | None]:
        record = self._data[self._starts[row] : self._ends[row] - 1].tobytes()
        return rows.parse(record, exact=self._exact)

    def _position(self, row: int) -> dict[str, Any]:
        value, problem = self._value(row)
        if problem is None and not isinstance(value, dict):
            problem = rows.Problem(
                rows.NOT_OBJECT, "", "the record is not a JSON object, so it has no typed columns"
            )
        if problem is not None:
            self._problems[row] = [problem]
            return NULLS
        if self._schema.discover:
            observe(self._seen, value)
        problems: list[rows.Problem] = []
        strict = not (self._schema.discover or self._schema.full)
        placed = rows.by_column(self._schema.columns, value, problems, unknown_is_problem=strict)
        if problems:
            self._problems[row] = problems
        return placed


def _is_exact(columns: Sequence[Column]) -> bool:
    """Report whether a column needs the digits of numbers as they are spelled."""
    return any(types.claims(each.type) or _is_exact(each.children) for each in columns)


def may_be_object(data: Bytes, ends: Positions) -> npt.NDArray[np.bool_]:
    """Mark records that begin and end as JSON objects do, white space included."""
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    last = data[np.maximum(ends - 2, 0)]
    return np.isin(data[starts], _OBJECT_BEGINS) & np.isin(last, _OBJECT_ENDS)


def without_strangers(decoded: Decoded) -> Decoded:
    """Return a decoded block without the problems of records that are no JSON objects at all."""
    kept = {
        row: found
        for row, found in decoded.problems.items()
        if found[0].field or found[0].reason not in NO_OBJECT
    }
    return Decoded(decoded.arrays, kept, decoded.proposals)


def sample_values(
    data: Bytes, ends: Positions, count: int, *, exact: bool = False
) -> Iterator[Any]:
    """Yield the parsed values of up to `count` evenly spread records. `exact` keeps the digits of
    fractions."""
    for row in np.unique(np.linspace(0, len(ends) - 1, min(count, len(ends)), dtype=np.int64)):
        start = int(ends[row - 1]) if row else 0
        value, problem = rows.parse(data[start : int(ends[row]) - 1].tobytes(), exact=exact)
        if problem is None:
            yield value


def observed(values: Sequence[Any] | Iterator[Any]) -> FieldProfile:
    """Return the profile of the objects among parsed records."""
    seen = FieldProfile()
    for value in values:
        if isinstance(value, dict):
            observe(seen, value)
    return seen
