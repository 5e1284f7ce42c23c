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
from polynya.spark.options import sink_options, source_options
from polynya.spark.readers import BatchReader, FilteredReader, StreamReader
from polynya.spark.sink.writer import BatchSink, StreamSink

TYPES = {
    "stream": "string",
    "incarnation": "bigint",
    "offset": "bigint",
    "byte_offset": "bigint",
    "batch": "bigint",
    "timestamp": "timestamp",
    "append_time": "timestamp",
    "key": "binary",
    "headers": "array<struct<key: string, value: binary>>",
    "value": "binary",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())


class PolynyaSource(DataSource):
    """`spark.read.format("polynya")`, `readStream`, `df.write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "polynya"

    def schema(self) -> str:
        """Return the columns, or those of the option `columns`."""
        chosen = [name.strip() for name in self.options.get("columns", "").split(",")]
        return ", ".join(f"{name} {_typed(name)}" for name in chosen if name) or SCHEMA

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
    for field in schema.fields:
        given, typed = field.dataType.simpleString(), _typed(field.name)
        if given != typed.replace(" ", ""):
            raise ConfigError(
                f"the schema has the column '{field.name}' as {given}; format('polynya') has it as "
                f"{typed}: declare that, and cast in the query"
            )
    return list(schema.names)


def _typed(name: str) -> str:
    """Return the type of a column. Raises ConfigError if there is no such column."""
    if name not in TYPES:
        raise ConfigError(f"format('polynya') has no column '{name}'; it has {', '.join(TYPES)}")
    return TYPES[name]
