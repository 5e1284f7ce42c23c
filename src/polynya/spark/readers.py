"""The readers of the data source. A batch has the records up to the tails at planning, narrowed by
filters on request; a micro-batch of a stream those between two offsets, which Spark keeps in its
checkpoint, so that a repeated one has the same records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from polynya.base.errors import PolynyaError
from polynya.spark.cursors import INLINE_BYTES, Coded, Cursors, NodeBases, size_of
from polynya.spark.filters import Narrowed, narrow
from polynya.spark.options import SourceOptions
from polynya.spark.planning import Split, batch_spans, splits
from polynya.spark.positions import (
    Offsets,
    capped,
    check_named,
    initial,
    latest,
    spans_between,
)
from polynya.spark.reading import batches
from polynya.spark.selection import find
from polynya.spark.server import Server, Tail
from polynya.spark.times import resolve, resolved

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1, which knows no such source

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing: PySpark wraps the source."""


POLL_SECONDS = 0.2


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        options, narrowed = self._options, self._narrowed
        with Server(options.connection) as server:
            found = find(server, options)
            starting, ending = resolved(found, options)
            options = msgspec.structs.replace(options, starting=starting, ending=ending)
            spans = batch_spans(found.tails, options)
            spans = narrowed.spans(span for span in spans if narrowed.takes(span.stream))
            times_ms = (narrowed.from_ms, narrowed.to_ms)
            planned = splits(server, spans, options, times_ms) if spans else []
        return [SplitPartition(split) for split in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self._columns)


class FilteredReader(BatchReader):
    """A batch read that leaves out streams, offsets and packs by the query's filters. Spark accepts
    it only with `spark.sql.python.filterPushdown.enabled`."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        self._narrowed = narrow(filters)
        return filters  # Spark evaluates all of them again, on the rows that are left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A planner that lives as long as the query. Tasks use only `read`.

    PySpark 4.2 passes to `latestOffset` where a batch begins. PySpark 4.1 does not, but after a
    restart it first calls `partitions` with the last offset as begin and end. A planner that is
    asked for an end before that is one of a new query."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._cursors = Cursors(NodeBases(options.connection), options.cursors)
        # where the next batch begins, and as Spark knows it; None: Spark has not told it yet
        self._planned: Offsets | None = None
        self._coded: Coded = {}
        self._guessed = False  # it begins where a new query does, as Spark has told no position
        self._target: dict[str, Tail] | None = None  # of `availableNow`
        self._server: Server | None = None  # of the planner; tasks get a copy of this object
        self._polled = 0.0
        self._seen: dict[str, Tail] = {}  # the tails at the last poll

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if not self._guessed:
            self._begin(self._initial())
        return self._coded

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Return the end of the next batch."""
        options = self._options
        if start is not None:
            self._begin(self._cursors.decode(start), start)
        elif self._planned is None:
            self._begin(self._initial())
            self._guessed = True
        unlimited = type(limit).__name__ == "ReadAllAvailable"  # the trigger `once`
        records, size = (0, 0) if unlimited else (options.records_max, options.bytes_max)
        end = latest(self._tails(), self._planned, records, size)
        if end == self._planned:
            return self._coded
        return self._cursors.encode(end)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        from pyspark.sql.streaming import datasource  # of PySpark 4.2

        options = self._options
        if options.records_max:
            return datasource.ReadMaxRows(options.records_max)
        if options.bytes_max:
            return datasource.ReadMaxBytes(options.bytes_max)
        return datasource.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = dict(self._polled_tails())

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the tails for the query's progress; None: too many streams, or none seen yet."""
        end: dict[str, Any] = {name: [tail.uid, tail.next] for name, tail in self._seen.items()}
        return end if end and size_of(end) <= INLINE_BYTES else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        options = self._options
        if self._guessed and start == end != self._coded:
            raise PolynyaError(
                "Spark planned a batch before it told the position of the query, so its records "
                "would be read twice; use PySpark 4.1.4 or 4.2 and later"
            )
        self._guessed = False
        begin = self._cursors.decode(start)
        self._begin(self._cursors.decode(end), end)
        assert self._planned is not None
        spans = spans_between(begin, self._planned, strict=options.fail_on_data_loss)
        if not spans:
            return []
        return [SplitPartition(split) for split in splits(self._connected(), spans, options)]

    def commit(self, end: dict[str, Any]) -> None:
        self._cursors.forget_replaced(end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self._columns)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    def _initial(self) -> Offsets:
        """Return where a new query begins."""
        options = self._options
        found = find(self._connected(), options)
        check_named(found.tails, options)
        return initial(found.tails, resolve(found, options, options.starting))

    def _begin(self, offsets: Offsets, coded: Coded | None = None) -> None:
        self._planned = offsets
        self._coded = self._cursors.encode(offsets) if coded is None else coded

    def _tails(self) -> dict[str, Tail]:
        """Return the tails that a batch may reach."""
        tails = self._polled_tails()
        return tails if self._target is None else capped(tails, self._target)

    def _polled_tails(self) -> dict[str, Tail]:
        """Return the tails now, at most every `POLL_SECONDS`: an idle query asks all the time."""
        time.sleep(max(0.0, self._polled + POLL_SECONDS - time.monotonic()))
        self._seen = find(self._connected(), self._options).tails
        self._polled = time.monotonic()
        check_named(self._seen, self._options)
        return self._seen

    def _connected(self) -> Server:
        self._server = self._server or Server(self._options.connection)
        return self._server


class SplitPartition(InputPartition):
    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


def read_split(
    partition: InputPartition | None, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield a partition's rows; None is that of a read without any."""
    return batches(partition.split, columns) if isinstance(partition, SplitPartition) else iter(())
