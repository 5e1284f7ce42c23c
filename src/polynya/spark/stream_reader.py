"""The streaming source: each micro-batch has the records between two offsets, which Spark keeps in
its checkpoint. A repeated batch has the same records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from polynya.spark.options import SourceOptions
from polynya.spark.partitions import SlabPartition, read_slab
from polynya.spark.planning import slabs
from polynya.spark.positions import Offsets, check_named, initial, latest, spans_between
from polynya.spark.server import Server, Tail

POLL_SECONDS = 0.2


class StreamReader(DataSourceStreamReader):
    """A planner that lives as long as the query. Tasks use only `read`."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        # where the next batch begins; None after a restart, until Spark names it
        self._planned: Offsets | None = None
        self._server: Server | None = None  # of the planner; tasks get a copy of this object
        self._polled = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._planned = initial(self._tails(), self._options.starting)
        return self._planned

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Return the end of the next batch. PySpark 4.1 does not pass where it begins, so that
        there the first batch after a start has no limit."""
        begin = self._planned if start is None else start
        return latest(self._tails(), begin, self._options.records_max)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        options = self._options
        self._planned = end
        spans = spans_between(start, end, strict=options.fail_on_data_loss)
        if not spans:
            return []
        return [SlabPartition(slab) for slab in slabs(self._connected(), spans, options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slab(partition, self._columns)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    def _tails(self) -> dict[str, Tail]:
        """Return the tails now, at most every `POLL_SECONDS`: an idle query asks all the time."""
        options = self._options
        time.sleep(max(0.0, self._polled + POLL_SECONDS - time.monotonic()))
        tails = self._connected().tails(options.streams, options.prefix)
        self._polled = time.monotonic()
        check_named(tails, options)
        return tails

    def _connected(self) -> Server:
        self._server = self._server or Server(self._options.connection)
        return self._server
