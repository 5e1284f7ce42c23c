"""Turn a plan into a job: fix the schema from samples and cut the ranges into tasks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET

from polynya.lakehouse.decoding.assemble import arrow_type
from polynya.lakehouse.decoding.decode import observed, sample_values
from polynya.lakehouse.formats.iceberg import StagingCatalog, with_field_ids
from polynya.lakehouse.jobs.output import DLQ_TYPES
from polynya.lakehouse.jobs.plan import Job, JobPlan, Range, Writer, layout
from polynya.lakehouse.payloads.decode import Heads, add_heads, heads_in, laid
from polynya.lakehouse.payloads.fields import with_writers
from polynya.lakehouse.payloads.registry import Writers
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.reading.slices import BASE_TYPES, Kind, Unreadable, fetched, read_rows
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.choice import chosen, decided, ordered, shape
from polynya.lakehouse.schema.columns import (
    Column,
    adopt,
    declared,
    lacking,
    leaves,
    missing,
    paths,
)
from polynya.lakehouse.schema.partitions import cuts
from polynya.lakehouse.schema.profiles import FieldProfile, merged
from polynya.lakehouse.schema.proposals import proposed_columns
from polynya.stream.parts import Encoding

# a sample costs one slice read; tasks report fields of streams that were not sampled
SAMPLE_STREAMS_MAX = 256
# slices are read whole, because the checksum covers the whole slice, …
SAMPLE_BYTES_LEAST = 64 << 20
SAMPLE_SHARE = 10  # … so samples may cost this many bytes, or one byte in SAMPLE_SHARE of the job
SAMPLE_RECORDS = 20_000  # of all streams together
SAMPLE_RECORDS_STREAM = 400  # of one stream, from its first and last slice
_READERS = 8


class Fixed(msgspec.Struct, frozen=True):
    """A fixed schema for a job: the table's columns, and hints by stream."""

    columns: list[Column]
    shapes: list[dict[str, str]]
    shape_of: dict[int, int]  # index into `shapes` by uid
    decided: list[str] = []  # the new columns, in words
    uncovered: list[str] = []  # fields that found no room for a column, by path
    writers: dict[int, Writer] | None = None  # schemas by id, of a table with a payload


def fix_schema(blobs: Blobs, plan: JobPlan, columns: Sequence[Column], writers: Writers) -> Fixed:
    """Widen the table's columns: by those declared, then by the schemas of sampled records, then by
    samples of the plan's streams. Idempotent.

    Of all samples together, the majority of a field's values decides which type gets its name.
    """
    first = writers.first()
    sampled = _sampled(plan, every=first is not None)
    each = max(1, min(SAMPLE_RECORDS_STREAM, SAMPLE_RECORDS // max(1, len(sampled))))
    with ThreadPoolExecutor(_READERS) as readers:
        samples = readers.map(lambda ranges: _sample(blobs, ranges, each), sampled.values())
        found = dict(zip(sampled, samples, strict=True))
    seen = {uid: each.profile for uid, each in found.items()}
    heads: Heads = {}
    if first == {}:
        for sample in found.values():
            add_heads(heads, sample.heads)
        first = writers.of(heads)
    whole = merged(seen.values())
    wide = adopt(columns, declared(plan.table.columns))
    left = lacking(wide, plan.table.columns)
    wide, more = with_writers(wide, first, heads)
    left += more
    wide = chosen(wide, list(seen.values()))
    left += [path for found in seen.values() for path in paths(proposed_columns(wide, found))]
    return msgspec.structs.replace(
        _with_shapes(wide, seen),
        uncovered=sorted(set(left)),
        decided=decided(wide, columns, whole),
        writers=first,
    )


def make_job(
    blobs: Blobs, plan: JobPlan, fixed: Fixed, *, cores: int, round_number: int, discover: bool
) -> Job:
    """Return the content of the plan object: everything that tasks need."""
    catalog = StagingCatalog(blobs)
    location = blobs.uri(plan.table.location)
    divisions = cuts(plan.table.partitions, plan.table.columns, fixed.columns)
    main = with_field_ids(
        catalog, plan.table.iceberg, f"{location}/main", main_schema(fixed.columns)
    )
    dead = with_field_ids(
        catalog, plan.table.iceberg_dlq, f"{location}/dlq", pa.schema(list(DLQ_TYPES.items()))
    )
    full = leaves(fixed.columns) >= types.LEAVES_MAX
    return Job(
        plan=plan,
        columns=fixed.columns,
        shapes=fixed.shapes,
        tasks=layout(plan.ranges, fixed.shape_of, cores),
        arrow_schema=main.serialize().to_pybytes(),
        arrow_schema_dlq=dead.serialize().to_pybytes(),
        discover=discover and not full,
        full=full,
        round=round_number,
        cuts=divisions,
        schemas=UNSET if fixed.writers is None else fixed.writers,
    )


def widened(
    fixed: Fixed, proposals: Sequence[Column], writers: dict[int, Writer] | None = None
) -> Fixed:
    """Add the columns that the tasks reported as missing: those of schemas, then the smallest
    first."""
    wide, beyond = with_writers(fixed.columns, writers, {})
    wide = adopt(wide, ordered(proposals))
    left = {*fixed.uncovered, *beyond, *paths(missing(wide, proposals))}
    known = fixed.writers if fixed.writers is None else fixed.writers | (writers or {})
    return Fixed(wide, fixed.shapes, fixed.shape_of, uncovered=sorted(left), writers=known)


def main_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the table's Arrow schema, without field ids."""
    return pa.schema(
        list(BASE_TYPES.items()) + [(column.name, arrow_type(column)) for column in columns]
    )


def _with_shapes(columns: list[Column], seen: dict[int, FieldProfile]) -> Fixed:
    """Share equal hints. Hint 0 is empty, for streams without a sample."""
    shapes: list[dict[str, str]] = [{}]
    numbers = {msgspec.json.encode({}): 0}
    shape_of = {}
    for uid, found in seen.items():
        hints = shape(columns, found)
        key = msgspec.json.encode(hints)
        if key not in numbers:
            numbers[key] = len(shapes)
            shapes.append(hints)
        shape_of[uid] = numbers[key]
    return Fixed(columns, shapes, shape_of)


def _sampled(plan: JobPlan, *, every: bool = False) -> dict[int, list[Range]]:
    """Return the ranges to sample by uid: the first and last one of each stream that may hold JSON,
    or of every stream, in order of name.

    If there are many streams, they are sampled evenly.
    """
    streams: dict[int, list[Range]] = {}
    for part in sorted(plan.ranges, key=lambda part: (part.stream, part.uid, part.record)):
        if every or part.encoding != Encoding.BYTES:
            streams.setdefault(part.uid, []).append(part)
    ends = {
        uid: ranges if len(ranges) == 1 else [ranges[0], ranges[-1]]
        for uid, ranges in streams.items()
    }
    total = sum(part.read_bytes for part in plan.ranges)
    allowed = max(SAMPLE_BYTES_LEAST, total // SAMPLE_SHARE)
    cost = sum(part.read_bytes for ranges in ends.values() for part in ranges)
    count = min(len(ends), SAMPLE_STREAMS_MAX, max(1, len(ends) * allowed // max(1, cost)))
    uids = list(ends)
    return (
        {
            uids[at]: ends[uids[at]]
            for at in np.unique(np.linspace(0, len(uids) - 1, count, dtype=np.int64))
        }
        if uids
        else {}
    )


class _Sample(msgspec.Struct):
    profile: FieldProfile
    heads: Heads


def _sample(blobs: Blobs, ranges: list[Range], count: int) -> _Sample:
    values, heads = [], Heads()
    for part in ranges:
        try:
            # the first run is sample enough
            rows = next(read_rows(part, fetched(blobs, part)), None)
        except Unreadable:
            continue  # the task that reads it reports it
        if rows is None or not len(rows.ends):
            continue
        add_heads(heads, heads_in(laid(rows.kind, rows.data, rows.ends, rows.absent)))
        if rows.kind != Kind.BYTES:
            values += list(sample_values(rows.data, rows.ends, -(-count // len(ranges))))
    return _Sample(observed(values), heads)
