"""Jobs of derived tables: rows of streams, or of another table, go through the user's transform
into the table.

A derived table claims no records. Its result object says up to which record of each stream its rows
were derived, so the job's commit moves rows and positions at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from polynya.base.partitions import BadPartition, check_type, parse_partitions
from polynya.lakehouse.formats.iceberg import StagingCatalog, with_field_ids
from polynya.lakehouse.jobs.output import DLQ_TYPES
from polynya.lakehouse.jobs.plan import Job, JobPlan, Range, layout
from polynya.lakehouse.jobs.plan_objects import plan_key, store_plan
from polynya.lakehouse.jobs.prepare import fix_schema, main_schema
from polynya.lakehouse.jobs.results import (
    DERIVED,
    Asked,
    Derived,
    Progress,
    Result,
    Rewrite,
    Runner,
    announce,
    counted,
    load_result,
    part_of,
    result_of,
    store_result,
)
from polynya.lakehouse.jobs.stateful.faults import TransformFailed
from polynya.lakehouse.jobs.stateful.from_table import Input, Taken, replaced, source_rows
from polynya.lakehouse.jobs.stateful.keyed import asked_of, folded, keyed_summary, widened
from polynya.lakehouse.payloads.registry import Writers
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.columns import spellings
from polynya.lakehouse.schema.partitions import Cut
from polynya.lakehouse.server.coordinator import Coordinator

JOB_BYTES = 1 << 30  # payload of one job; the next one takes the rest


def derivation(coordinator: Coordinator) -> Rewrite:
    """Return the function that derives the next rows of a table; it returns "" if there are
    none."""

    def derive(plan: JobPlan, runner: Runner, blobs: Blobs, progress: Progress) -> str:
        began = time.monotonic()
        previous = load_result(blobs, plan.table.result) if plan.table.result else None
        asked = asked_of(plan, previous, blobs)
        found = (
            source_rows(plan, asked.transform, previous, blobs, (runner, progress))
            if asked.transform.table
            else _records(coordinator, plan, previous, blobs, (runner, progress))
        )
        if found is None:
            return ""
        job = found.job
        if found.whole:
            asked = Asked(asked.transform)
        key = plan_key(plan, 0)
        store_plan(blobs, job, key)
        progress("plan-object", key)

        def shaped(schema: pa.Schema) -> tuple[Job, str]:
            made = _output_job(blobs, plan, job, widened(schema, asked.transform, previous))
            path = plan_key(plan, 1)
            store_plan(blobs, made, path)
            return made, path

        done = runner.derive(job, key, asked, shaped)
        result = _result(plan, done, previous)
        if asked.transform.key:
            result = folded(result, done, asked.transform, previous)
        said = keyed_summary(result, previous)
        if found.whole:
            result = replaced(blobs, plan, result)
            said = (
                f"{sum(each.rows for each in result.parts['main'].files):,} rows replace all others"
            )
        progress("ran", said)
        result = msgspec.structs.replace(result, taken=found.taken, source=found.source)
        return store_result(blobs, plan, result, progress, began=began)

    return derive


def _records(
    coordinator: Coordinator,
    plan: JobPlan,
    previous: Result | None,
    blobs: Blobs,
    run: tuple[Runner, Progress],
) -> Input | None:
    """Return the next input from the streams of the table, None if they have no new records. `run`
    reads them, and is told of them."""
    ranges, taken = _pending(coordinator, plan, previous.taken if previous else {})
    if not ranges:
        return None
    runner, progress = run
    announce(plan, f"the transform of {counted(len(ranges), 'range')}", progress)
    plan = msgspec.structs.replace(plan, ranges=ranges)
    writers = Writers(plan.table.columns, coordinator.schemas)
    fixed = fix_schema(blobs, plan, previous.columns if previous else [], writers)
    job = Job(
        plan=plan,
        columns=fixed.columns,
        shapes=fixed.shapes,
        tasks=layout(ranges, fixed.shape_of, runner.cores),
        arrow_schema=main_schema(fixed.columns).serialize().to_pybytes(),
        arrow_schema_dlq=b"",
        discover=False,
        full=True,
    )
    return Input(job, taken)


def _result(plan: JobPlan, done: Derived, previous: Result | None) -> Result:
    job, files = done.job, [file for each in done.results for file in each.files]
    parts = {
        "main": part_of(files, job.arrow_schema, previous, plan, "main"),
        "dlq": part_of([], job.arrow_schema_dlq, previous, plan, "dlq"),
    }
    return msgspec.structs.replace(result_of(plan, job, parts, previous), work=DERIVED)


def storable(schema: pa.Schema) -> pa.Schema:
    """Return the types in which rows of this schema are stored. Raises TransformFailed for a column
    that has none, and for a name that two columns have."""
    fields, names = [], set[str]()
    for field in schema:
        if field.name.casefold() in types.READERS_COLUMNS:
            raise TransformFailed(
                f"Iceberg's readers have a column '{field.name}' of their own; name the "
                "transform's column otherwise"
            )
        if not names.isdisjoint(spellings(field.name)):
            raise TransformFailed(
                f"the transform has two columns '{field.name}'; name one of them otherwise"
            )
        names |= spellings(field.name)
        kind = _stored(field.type)
        if kind is None:
            raise TransformFailed(
                f"the transform's column '{field.name}' has the type {field.type}, which tables do "
                "not store; cast it, for example to string"
            )
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _stored(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC") if kind.tz else None
    if pa.types.is_struct(kind):
        inner = [(field.name, _stored(field.type)) for field in kind]
        return pa.struct(inner) if inner and all(each for _, each in inner) else None
    if pa.types.is_list(kind):
        element = _stored(kind.value_type)
        return element and pa.list_(pa.field("element", element))
    if pa.types.is_map(kind):
        value = _stored(kind.item_type)
        return (value and pa.types.is_string(kind.key_type) and pa.map_(pa.string(), value)) or None
    known = (pa.types.is_boolean, pa.types.is_date32, pa.types.is_binary, pa.types.is_decimal)
    return kind if any(test(kind) for test in known) else None


def _output_job(blobs: Blobs, plan: JobPlan, job: Job, schema: pa.Schema) -> Job:
    """Return the job that writes the transform's rows."""
    catalog, path = StagingCatalog(blobs), blobs.uri(plan.table.location)
    main = with_field_ids(catalog, plan.table.iceberg, f"{path}/main", storable(schema))
    dlq = pa.schema(list(DLQ_TYPES.items()))
    dead = with_field_ids(catalog, plan.table.iceberg_dlq, f"{path}/dlq", dlq)
    return msgspec.structs.replace(
        job,
        arrow_schema=main.serialize().to_pybytes(),
        arrow_schema_dlq=dead.serialize().to_pybytes(),
        cuts=_cuts(plan.table.partitions, main),
        tasks=[],
    )


def _cuts(partitions: Sequence[str], schema: pa.Schema) -> list[Cut]:
    """Return the partitions of the transform's columns. Raises TransformFailed if one cannot be."""
    found = []
    for each in parse_partitions(partitions, None):
        known = schema.field(each.field).type if each.field in schema.names else None
        try:
            check_type(each, "" if known is None else _NAMES.get(known, str(known)))
        except BadPartition as bad:
            raise TransformFailed(f"the transform's columns do not fit the table: {bad}") from None
        found.append(Cut(each.field, each.transform, each.buckets))
    return found


_NAMES = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamptz",
}


def _pending(coordinator: Coordinator, plan: JobPlan, taken: Taken) -> tuple[list[Range], Taken]:
    """Return the ranges of the next job, and the positions after them."""
    wanted = [(name, taken[name][1] if name in taken else 0) for name in plan.streams]
    answers = coordinator.ranges(wanted)
    # another stream has the name now: all of it is new
    again = {
        name: 0
        for (name, first), answer in zip(wanted, answers, strict=True)
        if answer is not None and first and int(answer.uid) != taken[name][0]
    }
    fresh = dict(zip(again, coordinator.ranges(list(again.items())), strict=True))
    ranges: list[Range] = []
    positions, size = dict(taken), 0
    for (name, first), found in zip(wanted, answers, strict=True):
        answer = fresh.get(name, found)
        if answer is None or size >= JOB_BYTES:
            continue
        begin = max(0 if name in fresh else first, answer.first, answer.own)
        stop = min(answer.end, answer.next)
        for part in answer.ranges:
            skip = max(0, begin - part.record)
            take = min(part.records, stop - part.record) - skip
            if take <= 0:
                continue
            ranges.append(msgspec.structs.replace(part, skip=skip, take=take))
            size += part.length
            if size >= JOB_BYTES:
                stop = part.record + skip + take
                break
        positions[name] = (int(answer.uid), max(begin, stop))
    return ranges, positions
