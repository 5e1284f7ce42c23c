"""Reading in a Spark task: record batches from packs in the object store, or from the server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa

from polynya.base.errors import Unavailable
from polynya.base.offsets import format_token, parse_token
from polynya.client.blocking.generated.client import Client
from polynya.lakehouse.jobs.plan import Range, claimed, store_settings
from polynya.lakehouse.machine.store import check_credentials
from polynya.lakehouse.reading.blobs import Blobs, open_blobs
from polynya.lakehouse.reading.slices import (
    BASE_TYPES,
    Block,
    Rows,
    base_columns,
    fetch,
    joined,
    read_rows,
)
from polynya.objectstore import NotFound
from polynya.spark.planning import Span, Split, located
from polynya.spark.server import Server

PLANS_MAX = 3  # merges may replace a pack between a plan and its read, and again


def batches(split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task. Raises ConfigError, DataLoss, CorruptData,
    Unavailable."""
    if split.span is not None:
        yield from _served(split, split.span, columns)
        return
    assert split.store is not None
    settings, variables = store_settings(split.store), {**os.environ, **split.keys.variables}
    check_credentials(settings, variables)
    blobs = open_blobs(settings, variables)
    left = split.ranges
    for _ in range(PLANS_MAX):
        gone: list[Range] = []
        yield from _stored(blobs, left, columns, gone)
        if not gone:
            return
        left = _planned_again(split, gone)
    raise Unavailable(
        f"objects of stream '{left[0].stream}' were replaced {PLANS_MAX} times while they were "
        "read; run the query again"
    )


def _stored(
    blobs: Blobs, ranges: Sequence[Range], columns: Sequence[str], gone: list[Range]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ranges. Those whose object no longer exists are added to `gone`."""
    for part, stored in fetch(blobs, ranges):
        if isinstance(stored, NotFound):
            gone.append(part)
            continue
        for rows in read_rows(part, stored):
            if len(rows.ends):
                yield _batch(rows, columns)


def _batch(rows: Rows, columns: Sequence[str]) -> pa.RecordBatch:
    block = Block([rows], 0, rows.kind)
    data, ends = joined(block)
    made = base_columns(block, data, ends)
    arrays = [made[name] for name in columns]
    return pa.RecordBatch.from_arrays(
        [
            array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
            for array in arrays
        ],
        names=list(columns),
    )


def _planned_again(split: Split, gone: Sequence[Range]) -> list[Range]:
    """Ask the server where the records of these ranges lie now."""
    found: list[Range] = []
    with Server(split.connection) as server:
        for part in gone:
            first = part.record + part.skip
            span = Span(part.stream, part.uid, first, first + claimed(part))
            found += located(server, [span], strict=split.fail_on_data_loss)[1]
    return found


def _served(split: Split, span: Span, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a JSON stream through the server, without times, keys and headers."""
    connection = split.connection
    with (
        Client(connection.server, token=connection.token) as client,
        client.stream(span.stream).read(format_token(span.first, 0)) as reader,
    ):
        for page in reader.pages():
            if not page.is_json:
                raise ValueError(
                    f"stream '{span.stream}' is {page.content_type}; the option readFrom must be "
                    "'store' for it, because pages of the server do not tell its records"
                )
            end = parse_token(page.offset) or (0, 0)
            number = end[0] - len(page.raws)
            values = page.raws[max(0, span.first - number) : max(0, span.end - number)]
            if values:
                yield _served_batch(span, max(number, span.first), values, columns)
            if end[0] >= span.end:
                return


def _served_batch(
    span: Span, first: int, values: Sequence[bytes], columns: Sequence[str]
) -> pa.RecordBatch:
    size = len(values)
    made = {
        "stream": pa.array([span.stream] * size, pa.string()),
        "incarnation": pa.array([span.uid] * size, pa.int64()),
        "offset": pa.array(range(first, first + size), pa.int64()),
        "value": pa.array(values, pa.binary()),
    }
    arrays = [made.get(name, pa.nulls(size, BASE_TYPES[name])) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
