"""The writers that Spark pickles to its tasks and calls on the driver."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from polynya.base.errors import ConfigError
from polynya.client.blocking.generated.client import Client
from polynya.spark.options import SinkOptions
from polynya.spark.sink.commit import BatchCommit, folder_of
from polynya.spark.sink.partitions import COLUMN
from polynya.spark.sink.records import check_names
from polynya.spark.sink.staging import Staged, stage

QUERY = "sql.streaming.queryId"  # the property of a task; the query keeps it over restarts


class StagedMessage(WriterCommitMessage):
    """A task's stage, and the query to which it belongs."""

    def __init__(self, query: str, staged: Staged) -> None:
        self.query = query
        self.staged = staged


class BatchSink(DataSourceArrowWriter):
    """`df.write`. A job with the option `jobId` adds nothing when it is repeated."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(options, schema)
        self._options = options
        # drawn once: Spark pickles this object to all tasks and to the commit
        self._query = options.job or f"job-{secrets.token_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return staged_by_task(self._options, self._query, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        BatchCommit(self._options, self._query, 0).run(_staged(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        drop(self._options, messages)


class StreamSink(DataSourceStreamArrowWriter):
    """`writeStream`. Each batch is appended once, over restarts of the query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(options, schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = self._options.job or (context and context.getLocalProperty(QUERY))
        if not query:
            raise ConfigError(
                "Spark does not tell the id of the query: set the option jobId, another one for "
                "each checkpoint"
            )
        return staged_by_task(self._options, query, iterator)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        queries = {each.query for each in messages if isinstance(each, StagedMessage)}
        for query in queries:
            BatchCommit(self._options, query, batchId).run(_staged(messages))

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        drop(self._options, messages)


def check_columns(options: SinkOptions, schema: StructType) -> None:
    """Raise ConfigError for a write whose rows name no stream, or have columns without a place."""
    check_names([name for name in schema.names if name != COLUMN or not options.topic])
    if options.topic and options.stream:
        raise ConfigError("the options 'stream' and 'topic' exclude each other: set one of them")
    if not options.stream and not options.topic and "stream" not in schema.names:
        raise ConfigError(
            "format('polynya') does not know where to write: set the option 'stream' or 'topic', or give "
            "the DataFrame a column 'stream' with the names"
        )


def staged_by_task(
    options: SinkOptions, query: str, batches: Iterator[pa.RecordBatch]
) -> StagedMessage:
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    return StagedMessage(query, stage(options, folder_of(options, query), partition, batches))


def drop(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Delete the stages of a batch that failed; Spark does not name all of them, and the others
    expire."""
    connection = options.connection
    with Client(connection.server, token=connection.token) as client:
        for each in _staged(messages):
            if each.stream:
                client.stream(each.stream).delete(missing_ok=True)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [each.staged for each in messages if isinstance(each, StagedMessage)]
