"""A job of a derived table with a key, beside Spark: what it starts from, its columns, and its
result.

The table is the state. A job replaces the files that have rows of its keys. Its result object has
the watermark, so its commit moves rows, positions in the streams, and watermark at once."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from polynya.base.transforms import BadTransform, Transform, parse_transform
from polynya.lakehouse.formats.iceberg import StagingCatalog, live_files
from polynya.lakehouse.jobs.plan import JobPlan
from polynya.lakehouse.jobs.results import KEYED_VERSION, Asked, Derived, Result
from polynya.lakehouse.jobs.stateful.faults import TransformFailed
from polynya.lakehouse.reading.blobs import Blobs

_TIME = pa.types.is_timestamp
_KEYS = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_decimal,
    pa.types.is_binary,
    _TIME,
)
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
_ORDERED = (*_NUMBERS, pa.types.is_string, pa.types.is_large_string, pa.types.is_date32, _TIME)


def asked_of(plan: JobPlan, previous: Result | None, blobs: Blobs) -> Asked:
    """Return what the runner derives. Raises TransformFailed for a definition of a later
    release."""
    try:
        transform = parse_transform(plan.table.transform)
    except BadTransform as bad:
        raise TransformFailed(f"{bad}: run the driver of the server's release") from None
    if not transform.key:
        return Asked(transform)
    live = live_files(StagingCatalog(blobs), plan.table.iceberg) if plan.table.iceberg else []
    return Asked(transform, live, previous.watermark_us if previous else None)


def widened(schema: pa.Schema, transform: Transform, previous: Result | None) -> pa.Schema:
    """Return the columns of the job's rows. With a key they include those that rows of earlier jobs
    have. Raises TransformFailed if the transform's columns do not fit the definition."""
    if not transform.key:
        return schema
    _check_columns(schema, transform)
    if previous is None:
        return schema
    known = pa.ipc.read_schema(pa.BufferReader(previous.parts["main"].arrow_schema))
    return pa.schema([*schema, *(field for field in known if field.name not in schema.names)])


def folded(made: Result, done: Derived, transform: Transform, previous: Result | None) -> Result:
    """Return the result of a job that merged its rows into the table's."""
    main = msgspec.structs.replace(made.parts["main"], removed=done.removed, rewritten=True)
    watermark = previous.watermark_us if previous else None
    if transform.time and done.newest_us is not None:
        newest = done.newest_us - transform.delay_ms * 1000
        watermark = newest if watermark is None else max(watermark, newest)
    return msgspec.structs.replace(
        made,
        version=KEYED_VERSION,
        parts={**made.parts, "main": main},
        rows=main.rows_added,
        watermark_us=watermark,
        late_rows=done.late + (previous.late_rows if previous else 0),
        unmerged=max(0, made.unmerged - len(done.removed)),
    )


def keyed_summary(result: Result, previous: Result | None) -> str:
    """Return what a job did in words."""
    if result.version != KEYED_VERSION:
        return f"{result.rows:,} rows were derived"
    main = result.parts["main"]
    late = result.late_rows - (previous.late_rows if previous else 0)
    return (
        f"{result.rows:,} rows are new, {len(main.removed):,} files were written again, and "
        f"{late:,} late rows were left out"
    )


def _check_columns(schema: pa.Schema, transform: Transform) -> None:
    for name in transform.key:
        _check(schema, name, "the key", _KEYS, "string, long, boolean, date, timestamp or decimal")
    for name, function in transform.merge.items():
        numbers = "a number" if function == "sum" else "a number, text or a time"
        _check(schema, name, function, _NUMBERS if function == "sum" else _ORDERED, numbers)
    if transform.latest_by:
        _check(schema, transform.latest_by, "the last row", _ORDERED, "a number, text or a time")
    if transform.time:
        _check(schema, transform.time, "the watermark", (_TIME,), "a timestamp")


def _check(schema: pa.Schema, name: str, what: str, kinds: tuple, wanted: str) -> None:  # type: ignore[type-arg]
    if name not in schema.names:
        raise TransformFailed(
            f"the transform has no column '{name}' for {what}; it has {', '.join(schema.names)}"
        )
    kind = schema.field(name).type
    if not any(test(kind) for test in kinds):
        hint = "; select window.start and window.end" if pa.types.is_struct(kind) else ""
        raise TransformFailed(
            f"the column '{name}' for {what} has the type {kind}; expected {wanted}{hint}"
        )
