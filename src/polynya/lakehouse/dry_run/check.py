"""Decode existing records as the next job of a table would, and count what fits
(docs/design/table-check.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

from polynya.base.payloads import fields_of
from polynya.lakehouse.decoding.decode import Decoded, Schema, sample_values
from polynya.lakehouse.decoding.kinds import typed
from polynya.lakehouse.dry_run.proposals import Fields, options_of
from polynya.lakehouse.jobs.plan import JobPlan, Range, TableRef, claimed, span_of, store_settings
from polynya.lakehouse.jobs.prepare import Fixed, fix_schema, widened
from polynya.lakehouse.jobs.results import load_result
from polynya.lakehouse.payloads.decode import SchemaMissing, SchemaUnknown, decoded_payloads, laid
from polynya.lakehouse.payloads.registry import Writers
from polynya.lakehouse.reading.blobs import Blobs, open_blobs
from polynya.lakehouse.reading.slices import (
    Block,
    Kind,
    Unreadable,
    absent,
    joined,
    read_blocks,
)
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.columns import Column, leaves
from polynya.lakehouse.server.coordinator import Checked, Coordinator, StreamRanges

STREAMS_MAX = 256
STORED_BYTES_MAX = 256 << 20
EXAMPLES = 3  # of one field and reason
PROBLEMS_MAX = 1000  # fields and reasons that are told apart
_PROPOSED_ROWS = 200  # of a block
_ROUNDS_MAX = 3

Progress = Callable[[int, int], None]
"""Called with the numbers of records that were read and that are to be read."""


class Example(msgspec.Struct, frozen=True):
    stream: str
    offset: int
    message: str


class Problem(msgspec.Struct):
    """Dead letters of one field and reason; the field "" is the whole record."""

    field: str
    reason: str
    records: int = 0
    examples: list[Example] = []


class ColumnCheck(msgspec.Struct):
    """A column of the table: the values that fit it, and those that its field's columns cannot
    have."""

    column: str
    type: str
    field: str
    declared: bool
    values: int = 0
    unfit: int = 0


class Report(msgspec.Struct):
    """The result of a dry run."""

    table: str
    streams: int  # that were read
    records: int
    complete: bool  # every record of every stream was read
    dead_records: int = 0
    columns: list[ColumnCheck] = []
    problems: list[Problem] = []
    proposed: dict[str, str] = {}  # types by field
    without_column: list[str] = []  # fields and declarations that find no room
    unreadable: list[str] = []


def check(
    coordinator: Coordinator,
    asked: Checked,
    records: int,
    progress: Progress,
    blobs: Blobs | None = None,
) -> Report:
    """Read up to `records` records of the streams, and report on them. Raises Unavailable,
    ConfigError, RegistryRefused."""
    store = blobs or open_blobs(store_settings(asked.store))
    names = asked.streams[:STREAMS_MAX]
    found = [each for each in coordinator.ranges([(name, 0) for name in names]) if each is not None]
    ranges, whole = _chosen([_own(each) for each in found], records)
    whole = whole and all(each.end >= each.next for each in found)
    plan = JobPlan(asked.table, asked.table.job + 1, "0" * 32, asked.store, ranges)
    writers = Writers(asked.table.columns, coordinator.schemas)
    before = load_result(store, asked.table.result).columns if asked.table.result else []
    fixed = fix_schema(store, plan, before, writers)
    for number in range(_ROUNDS_MAX):
        run = _Run(store, plan, fixed, discover=number < _ROUNDS_MAX - 1)
        proposals, ids = run.read(progress)
        if not proposals and not ids:
            break
        fixed = widened(fixed, proposals, writers.of(ids) if ids else None)
    complete = whole and not asked.more and len(names) == len(asked.streams)
    report = run.report(asked.table, len(found), complete=complete)
    report.without_column = fixed.uncovered
    return report


def _own(stream: StreamRanges) -> list[Range]:
    """Return the slices with a stream's own records: a fork has no rows of those of its source."""
    return [part for part in stream.ranges if part.record + span_of(part) > stream.own]


def _chosen(streams: Sequence[list[Range]], records: int) -> tuple[list[Range], bool]:
    """Return slices of each stream, evenly spread, and whether they are all."""
    share = max(1, records // max(1, len(streams)))
    room = STORED_BYTES_MAX // max(1, len(streams))
    chosen: list[Range] = []
    whole = True
    for ranges in streams:
        count = sum(map(claimed, ranges))
        size = sum(part.read_bytes for part in ranges)
        step = max(1, -(-count // share), -(-size // room)) if ranges else 1
        chosen += ranges[::step]
        whole = whole and step == 1
    return chosen, whole


class _Run:
    """One pass over the records."""

    def __init__(self, blobs: Blobs, plan: JobPlan, fixed: Fixed, *, discover: bool) -> None:
        self._blobs, self._plan, self._fixed = blobs, plan, fixed
        self._columns = fixed.columns
        full = leaves(fixed.columns) >= types.LEAVES_MAX
        self._full, self._discover = full, discover and not full
        self._values: dict[str, int] = {}  # that fit, by column
        self._problems: dict[tuple[str, str], Problem] = {}
        self._dead = self._records = 0
        self._fields = Fields()
        self._unreadable: list[Unreadable] = []

    def read(self, progress: Progress) -> tuple[list[Column], set[int]]:
        """Decode the records. Return the columns and the ids of schemas that are lacking."""
        proposals, ids, done = list[Column](), set[int](), 0
        total = sum(map(claimed, self._plan.ranges))
        parts = sorted(self._plan.ranges, key=lambda part: (part.stream, part.uid, part.record))
        shapes = [self._fixed.shape_of.get(part.uid, 0) for part in parts]
        for block in read_blocks(self._blobs, parts, shapes, self._unreadable):
            try:
                decoded = self._decoded(block)
            except SchemaMissing as lacking:
                ids.update(lacking.numbers)
            except SchemaUnknown as unknown:
                first = block.parts[0]
                self._note(first.part.stream, int(first.offsets[0]), "", "bad_schema", str(unknown))
            else:
                proposals += decoded.proposals
            done += sum(len(each.ends) for each in block.parts)
            progress(done, total)
        return proposals, ids

    def _decoded(self, block: Block) -> Decoded:
        shape = self._fixed.shapes[block.shape]
        schema = Schema(self._columns, shape, discover=self._discover, full=self._full)
        data, ends = joined(block)
        missing = absent(block)
        if block.kind != Kind.BYTES:
            for value in sample_values(data, ends, _PROPOSED_ROWS, exact=True):
                self._fields.add(value if isinstance(value, dict) else None)
        if self._fixed.writers is None:
            decoded = typed(block.kind, data, ends, missing, schema)
        else:
            records = laid(block.kind, data, ends, missing)
            decoded = decoded_payloads(records, schema, self._fixed.writers)
        self._count(block, decoded, len(ends))
        return decoded

    def _count(self, block: Block, decoded: Decoded, count: int) -> None:
        self._records += count
        self._dead += len(decoded.problems)
        for column, array in zip(self._columns, decoded.arrays, strict=True):
            for path, values in _leaves(column, array, ""):
                self._values[path] = self._values.get(path, 0) + values
        positions = [
            (part.part.stream, int(offset)) for part in block.parts for offset in part.offsets
        ]
        for row, found in decoded.problems.items():
            for each in found:
                self._note(*positions[row], each.field, each.reason, each.message)

    def _note(self, stream: str, offset: int, field: str, reason: str, message: str) -> None:
        key = field, reason
        if key not in self._problems and len(self._problems) >= PROBLEMS_MAX:
            return
        problem = self._problems.setdefault(key, Problem(field, reason))
        problem.records += 1
        if len(problem.examples) < EXAMPLES:
            problem.examples.append(Example(stream, offset, message))

    def report(self, table: TableRef, streams: int, *, complete: bool) -> Report:
        declared = dict(fields_of(table.columns))
        columns = [
            ColumnCheck(path, kind, field, field in declared, self._values.get(path, 0))
            for path, kind, field in _paths(self._columns)
        ]
        for each in columns:
            each.unfit = sum(
                problem.records
                for (field, _), problem in self._problems.items()
                if field.replace("[]", "") == each.field
            )
        return Report(
            table.name,
            streams,
            self._records,
            complete and not self._unreadable,
            self._dead,
            columns,
            sorted(self._problems.values(), key=lambda each: -each.records),
            options_of(self._fields.proposed(), declared),
            unreadable=sorted({str(each) for each in self._unreadable})[:EXAMPLES],
        )


def _leaves(column: Column, array: pa.Array, path: str) -> Iterator[tuple[str, int]]:
    """Yield the columns without columns of their own, with the values that they have."""
    here = f"{path}{column.name}"
    if column.type != types.STRUCT:
        yield here, len(array) - array.null_count
        return
    for child, inner in zip(column.children, array.flatten(), strict=True):
        yield from _leaves(child, inner, f"{here}.")


def _paths(
    columns: Sequence[Column], path: str = "", field: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield the path, the type and the field of each such column."""
    for column in columns:
        here, named = f"{path}{column.name}", f"{field}{column.field}"
        if column.type == types.STRUCT:
            yield from _paths(column.children, f"{here}.", f"{named}.")
        else:
            yield here, spelled(column), named


def spelled(column: Column) -> str:
    """Return the type of a column as a declaration spells it."""
    if column.type in (types.LIST, types.MAP):
        return f"{column.type}<{spelled(column.children[0])}>"
    return column.type
