"""Staging: a task's rows in a JSON stream of its own, each as [stream, record]."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from polynya.base.errors import ConfigError, PolynyaError
from polynya.client.blocking.generated.client import Client
from polynya.spark.options import SinkOptions
from polynya.spark.server import Server
from polynya.spark.sink.partitions import COLUMN, Partitions, partitions_of
from polynya.spark.sink.records import is_whole, records_of

STAGE_TTL_SECONDS = 7 * 24 * 3600  # as long as the server remembers a producer


class Staged(msgspec.Struct, frozen=True):
    """The staged rows of a task. `stream` is "" if it had none."""

    partition: int
    stream: str
    records: int
    whole: bool = False  # whole records, with keys, headers and times


class _Row(msgspec.Struct, array_like=True):
    stream: str
    record: msgspec.Raw


def stage(
    options: SinkOptions, folder: str, partition: int, batches: Iterable[pa.RecordBatch]
) -> Staged:
    """Stage rows. They are durable on return."""
    connection, count, whole = options.connection, 0, False
    name = f"{folder}/stage-{partition}-{secrets.token_hex(8)}"
    partitions = None
    if options.topic:
        with Server(connection) as server:
            partitions = partitions_of(server, options.topic)
    with Client(connection.server, token=connection.token) as client:

        def read() -> Iterator[tuple[str, bytes]]:
            nonlocal whole
            for batch in batches:
                whole = is_whole(batch.schema.names)
                yield from rows_of(batch, options.stream, partitions)

        rows = read()
        first = next(rows, None)
        if first is None:
            return Staged(partition, "", 0)
        staged = client.stream(name)
        staged.create(ttl_seconds=STAGE_TTL_SECONDS)
        with staged.producer() as producer:
            for target, record in _chained(first, rows):
                head = msgspec.json.encode(target)
                producer.append(msgspec.Raw(b"[" + head + b"," + record + b"]"))
                count += 1
    return Staged(partition, name, count, whole)


def _chained(
    first: tuple[str, bytes], rest: Iterator[tuple[str, bytes]]
) -> Iterator[tuple[str, bytes]]:
    yield first
    yield from rest


def rows_of(
    batch: pa.RecordBatch, stream: str, partitions: Partitions | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield (stream, JSON record), as in `records_of`. Raises ConfigError, PolynyaError."""
    names = batch.schema.names
    if partitions is not None:
        targets = [*partitions.targets(batch)]
        batch = batch.select([name for name in names if name != COLUMN])
    elif not stream and "stream" not in names:
        raise ConfigError("a write needs the option 'stream', or a column 'stream' of names")
    else:
        targets = [stream] * len(batch) if stream else batch.column("stream").to_pylist()
    for target, value in zip(targets, records_of(batch), strict=True):
        if value is None or not target:
            raise PolynyaError(
                f"a row's {'value' if value is None else 'stream'} is null; expected a JSON record "
                "and the name of a stream: filter such rows before the write"
            )
        yield target, value


def staged_rows(client: Client, stage: Staged) -> Iterator[tuple[str, bytes]]:
    """Yield what was staged, in order. Raises PolynyaError if rows are missing."""
    found = 0
    with client.stream(stage.stream).read() as reader:
        for page in reader.pages():
            for raw in page.raws:
                row = msgspec.json.decode(raw, type=_Row)
                found += 1
                yield row.stream, bytes(row.record)
    if found != stage.records:
        raise PolynyaError(
            f"the staging stream '{stage.stream}' has {found} of {stage.records} rows; the batch "
            "cannot be completed"
        )
