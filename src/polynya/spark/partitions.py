"""A Spark task's work, as Spark pickles it from the planner to the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from polynya.spark.planning import Slab
from polynya.spark.reading import batches


class SlabPartition(InputPartition):
    def __init__(self, slab: Slab) -> None:
        super().__init__(slab)
        self.slab = slab


def read_slab(partition: InputPartition | None, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a partition's rows; None is that of a read without any."""
    return batches(partition.slab, columns) if isinstance(partition, SlabPartition) else iter(())
