"""The batch source: the records up to the tails at planning, narrowed by filters on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from polynya.spark.filters import Narrowed, narrow
from polynya.spark.options import SourceOptions
from polynya.spark.partitions import SlabPartition, read_slab
from polynya.spark.planning import batch_spans, slabs
from polynya.spark.server import Server


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
