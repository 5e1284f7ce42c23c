"""The readers of the data source. A batch has the records up to the tails at planning, narrowed by
filters on request; a micro-batch of a stream those between two offsets, which Spark keeps in its
checkpoint, so that a repeated one has the same records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from polynya.spark.filters import Narrowed, narrow
from polynya.spark.options import SourceOptions
from polynya.spark.planning import Slab, batch_spans, slabs
from polynya.spark.positions import Offsets, check_named, initial, latest, spans_between
from polynya.spark.reading import batches
from polynya.spark.server import Server, Tail

POLL_SECONDS = 0.2


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        options, narrowed = self._options, self._narrowed
        with Server(options.connection) as server:
            tails = server.tails(options.streams, options.prefix)
            spans = batch_spans(tails, options)
            spans = narrowed.spans(span for span in spans if narrowed.takes(span.stream))
            times_ms = (narrowed.from_ms, narrowed.to_ms)
            found = slabs(server, spans, options, times_ms) if spans else []
        return [SlabPartition(slab) for slab in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slab(partition, self._columns)


class FilteredReader(BatchReader):
    """A batch read that leaves out streams, offsets and packs by the query's filters. Spark accepts
    it only with `spark.sql.python.filterPushdown.enabled`."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        self._narrowed = narrow(filters)
        return filters  # Spark evaluates all of them again, on the rows that are left


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


class SlabPartition(InputPartition):
    def __init__(self, slab: Slab) -> None:
        super().__init__(slab)
        self.slab = slab


def read_slab(partition: InputPartition | None, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a partition's rows; None is that of a read without any."""
    return batches(partition.slab, columns) if isinstance(partition, SlabPartition) else iter(())
