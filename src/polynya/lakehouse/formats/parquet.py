"""The Parquet files that both formats refer to: written as a stream into the object store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polynya.lakehouse.jobs.plan import Merged
from polynya.lakehouse.reading.blobs import Blobs, Upload
from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.partitions import Value

ORDER = ("stream", "incarnation", "offset")  # of the rows in a file; it ends with their key
UNMEASURED = ("value", "key", "headers")  # no statistics, which would be as large as the values
_BYTES_STREAMS = "polynya.bytes"  # in a footer: the incarnations whose records are not parsed
_SAMPLE_ROWS = 4096
_DISTINCT_SHARE = 4  # a dictionary pays off when a value repeats at least this often


class File(msgspec.Struct, frozen=True):
    """A durable Parquet file."""

    key: str
    rows: int
    size: int
    footer: bytes  # the file's Parquet footer, the source of both formats' statistics
    partition: list[Value] = []  # one value for each of the table's partitions


class Change(msgspec.Struct, frozen=True):
    """The change of a job to one of the two tables: files added, and those that they replace."""

    files: list[File]
    removed: list[Merged]
    rewritten: bool = False  # the rows that replace those of `removed` have other values


class Writer:
    """A Parquet file being uploaded to the store."""

    def __init__(
        self,
        blobs: Blobs,
        key: str,
        schema: pa.Schema,
        sample: pa.Table | None = None,
        partition: Sequence[Value] = (),
    ) -> None:
        self._key = key
        self._partition = list(partition)
        self._upload = blobs.open_upload(key)
        self._sink = _Sink(self._upload)
        self._metadata: list[Any] = []
        self._open = True
        self._parquet = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=_dictionary_columns(schema, sample),
            write_statistics=[
                path
                for path in _leaf_paths(schema)
                if path.split(".")[0] not in UNMEASURED
                and not pa.types.is_decimal(schema.field(path.split(".")[0]).type)
            ],
            store_schema=False,
            metadata_collector=self._metadata,
        )
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        self._parquet.write_table(table, row_group_size=max(1, len(table)))
        self.rows += len(table)

    def close(self, bytes_streams: Iterable[int] = ()) -> File:
        """Complete the file, which names incarnations that hold bytes."""
        if named := ",".join(map(str, sorted(bytes_streams))):
            self._parquet.add_key_value_metadata({_BYTES_STREAMS: named})
        self._parquet.close()
        self._upload.close()
        self._open = False
        footer = pa.BufferOutputStream()
        self._metadata[0].write_metadata_file(footer)
        size, own = self._sink.size, footer.getvalue().to_pybytes()
        return File(self._key, self.rows, size, own, self._partition)

    def abort(self) -> None:
        if self._open:
            self._open = False
            self._sink.upload = None
            self._parquet.close()
            self._upload.abort()


class _Sink:
    """The file object that pyarrow writes to. Without an upload it discards data."""

    closed = False

    def __init__(self, upload: Upload) -> None:
        self.upload: Upload | None = upload
        self.size = 0

    def write(self, data: Any) -> int:
        if self.upload is not None:
            self.upload.write(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None: ...

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self.size


def bytes_streams(footer: pq.FileMetaData) -> set[int]:
    """Return the incarnations of a file that hold bytes."""
    named = (footer.metadata or {}).get(_BYTES_STREAMS.encode(), b"")
    return set(map(int, named.split(b","))) if named else set()


def _dictionary_columns(schema: pa.Schema, sample: pa.Table | None) -> list[str]:
    """Return the columns whose values repeat. Parquet would spend time on other dictionaries and
    then drop them."""
    chosen = ["stream", "incarnation", "append_time", "timestamp", "batch", "reason", "field"]
    if sample is not None:
        head = sample.slice(0, _SAMPLE_ROWS)
        for name in schema.names[len(types.OUR_COLUMNS) :]:
            kind = schema.field(name).type
            if not pa.types.is_nested(kind) and pc.count_distinct(
                head[name]
            ).as_py() * _DISTINCT_SHARE <= len(head):
                chosen.append(name)
    return [name for name in chosen if name in schema.names]


def _leaf_paths(schema: pa.Schema) -> list[str]:
    return [path for field in schema for path in _paths(field.name, field.type)]


def _paths(path: str, kind: pa.DataType) -> list[str]:
    if pa.types.is_struct(kind):
        return [inner for field in kind for inner in _paths(f"{path}.{field.name}", field.type)]
    if pa.types.is_list(kind):
        return _paths(f"{path}.list.element", kind.value_type)
    if pa.types.is_map(kind):
        return [f"{path}.key_value.key", *_paths(f"{path}.key_value.value", kind.item_type)]
    return [path]
