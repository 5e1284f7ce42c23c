"""From a plan to a job: the schema fixed from samples, the ranges cut into tasks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from polynya.lakehouse.assemble import arrow_type
from polynya.lakehouse.blobs import Blobs
from polynya.lakehouse.decode import observed, sample_values
from polynya.lakehouse.iceberg import StagingCatalog, with_field_ids
from polynya.lakehouse.plan import Job, Plan, Range, layout
from polynya.lakehouse.schema import LEAVES_MAX, Column, Seen, adopt, leaves, shape, wish
from polynya.lakehouse.slices import BASE_TYPES, read_rows
from polynya.lakehouse.task import DLQ_TYPES
from polynya.stream.commands import Encoding

SAMPLE_STREAMS_MAX = 256  # a sample costs one read of a slice; what is not sampled the tasks report
SAMPLE_RECORDS = 400  # of one stream, from up to this many slices:
SAMPLE_SLICES = 2  # the first and the last


class Fixed(msgspec.Struct, frozen=True):
    """A schema for a job: the table's columns, and hints by stream."""

    columns: list[Column]
    shapes: list[dict[str, str]]
    shape_of: dict[int, int]  # by uid


def fix_schema(blobs: Blobs, plan: Plan, columns: Sequence[Column]) -> Fixed:
    """The columns of the table so far, widened by samples of the plan's streams; repeatable."""
    seen = {uid: _sample(blobs, ranges) for uid, ranges in _sampled(plan).items()}
    wide = list(columns)
    for found in seen.values():
        wide = adopt(wide, wish(wide, found))
    return _with_shapes(wide, seen)


def make_job(blobs: Blobs, plan: Plan, fixed: Fixed, *, cores: int, round_number: int, discover: bool) -> Job:
    """The plan object's content: everything that tasks need."""
    catalog = StagingCatalog(blobs)
    place = blobs.uri(plan.table.location)
    main = with_field_ids(catalog, plan.table.iceberg, f"{place}/main", main_schema(fixed.columns))
    dead = with_field_ids(catalog, plan.table.iceberg_dlq, f"{place}/dlq", pa.schema(list(DLQ_TYPES.items())))
    full = leaves(fixed.columns) >= LEAVES_MAX
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
    )


def widened(fixed: Fixed, wishes: Sequence[Column]) -> Fixed:
    """With what the tasks missed."""
    return Fixed(adopt(fixed.columns, wishes), fixed.shapes, fixed.shape_of)


def main_schema(columns: Sequence[Column]) -> pa.Schema:
    """The table's Arrow schema, without field ids."""
    return pa.schema(list(BASE_TYPES.items()) + [(column.name, arrow_type(column)) for column in columns])


def _with_shapes(columns: list[Column], seen: dict[int, Seen]) -> Fixed:
    """Equal hints are shared; hint 0 is the empty one, for streams without a sample."""
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


def _sampled(plan: Plan) -> dict[int, list[Range]]:
    """Ranges by uid of the JSON streams to look at, in order of stream and record; evenly spread when there are too many."""
    streams: dict[int, list[Range]] = {}
    for part in sorted(plan.ranges, key=lambda part: (part.stream, part.uid, part.record)):
        if part.encoding == Encoding.JSON:
            streams.setdefault(part.uid, []).append(part)
    uids = list(streams)
    if len(uids) > SAMPLE_STREAMS_MAX:
        uids = [uids[at] for at in np.linspace(0, len(uids) - 1, SAMPLE_STREAMS_MAX, dtype=np.int64)]
    return {uid: streams[uid] for uid in uids}


def _sample(blobs: Blobs, ranges: list[Range]) -> Seen:
    chosen = ranges if len(ranges) <= SAMPLE_SLICES else [ranges[0], ranges[-1]]
    values = []
    for part in chosen:
        rows = read_rows(part, blobs.get_range(part.pack, part.offset, part.stored))
        if len(rows.ends):
            values += list(sample_values(rows.data, rows.ends, SAMPLE_RECORDS // len(chosen)))
    return observed(values)
