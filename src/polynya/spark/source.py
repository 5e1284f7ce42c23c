"""The data source `polynya`: its columns, and the readers and writers that Spark asks it for."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from polynya.base.errors import ConfigError
from polynya.lakehouse.reading.slices import BASE_TYPES
from polynya.spark.options import sink_options, source_options
from polynya.spark.readers import BatchReader, FilteredReader, StreamReader
from polynya.spark.sink.writer import BatchSink, StreamSink

SCHEMA = (
    "stream string, incarnation bigint, offset bigint, byte_offset bigint, batch bigint, "
    "timestamp timestamp, append_time timestamp, key binary, "
    "headers array<struct<key: string, value: binary>>, value binary"
)


class PolynyaSource(DataSource):
    """`spark.read.format("polynya")`, `readStream`, `df.write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "polynya"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options)
        kind = FilteredReader if options.pushdown else BatchReader
        return kind(options, _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(source_options(self.options), _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchSink(sink_options(self.options), _appended(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamSink(sink_options(self.options), _appended(schema, overwrite))


def _appended(schema: StructType, overwrite: bool) -> StructType:
    if overwrite:
        raise ConfigError("streams can only be appended to: use mode('append')")
    return schema


def _columns(schema: StructType) -> list[str]:
    """Return the columns to read: all, or those of the user's schema. Raises ConfigError."""
    unknown = [name for name in schema.names if name not in BASE_TYPES]
    if unknown:
        raise ConfigError(
            f"format('polynya') has no column '{unknown[0]}'; it has {', '.join(BASE_TYPES)}"
        )
    return list(schema.names)
