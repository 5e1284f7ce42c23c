"""Read rows of the table's own files, to be decoded again."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polynya.base.errors import CorruptData
from polynya.lakehouse.decoding.decode import Decoded, Schema
from polynya.lakehouse.decoding.kinds import typed
from polynya.lakehouse.formats.parquet import bytes_streams
from polynya.lakehouse.jobs.plan import Merged
from polynya.lakehouse.payloads.decode import Layout, Writers, decoded_payloads
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.reading.slices import Kind
from polynya.lakehouse.schema import types

BATCH_BYTES = 8 << 20  # decoded bytes of the rows that are decoded together


class FileRows(msgspec.Struct):
    """Rows of one kind. `base` has their built-in columns by name."""

    kind: Kind
    base: dict[str, pa.Array]

    @property
    def count(self) -> int:
        return len(self.base["value"])

    @property
    def uids(self) -> list[int]:
        """Return the incarnations of the rows, each once."""
        found: list[int] = self.base["incarnation"].unique().to_pylist()
        return found

    def decoded(self, schema: Schema, writers: Writers | None) -> Decoded:
        """Return the typed values of the rows, with a payload by its schemas. Raises
        SchemaMissing, SchemaUnknown."""
        return typed_values(self.kind, self.base["value"], schema, writers)


def typed_values(kind: Kind, values: pa.Array, schema: Schema, writers: Writers | None) -> Decoded:
    """Return the typed values of records of one kind. Raises SchemaMissing, SchemaUnknown."""
    records = layout_of(kind, values)
    if writers is None:
        return typed(*records[:-1], schema)
    return decoded_payloads(records, schema, writers)


def layout_of(kind: Kind, values: pa.Array) -> Layout:
    """Return records as the decoders read them. Those of bytes are like others here: with a comma
    behind each."""
    missing = values.is_null().to_numpy(zero_copy_only=False)
    data, ends = laid_out(values)
    return Layout(kind, data, ends, missing, 1)


def opened(blobs: Blobs, file: Merged) -> pq.ParquetFile:
    """Open a file for reading some of its columns. Raises CorruptData if it has another number of
    rows."""
    parquet = pq.ParquetFile(pa.PythonFile(_RangeFile(blobs, file), mode="r"))
    if parquet.metadata.num_rows != file.rows:
        raise CorruptData(f"{file.key} has {parquet.metadata.num_rows} rows, its table {file.rows}")
    return parquet


class _RangeFile(io.RawIOBase):
    """An object as a file: each read is one request."""

    def __init__(self, blobs: Blobs, file: Merged) -> None:
        super().__init__()
        self._blobs, self._file = blobs, file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        size = left if size < 0 else min(size, left)
        data = self._blobs.get_range(self._file.key, self._at, size) if size else b""
        self._at += len(data)
        return data


def read_again(blobs: Blobs, file: Merged, strict: Collection[int]) -> Iterator[FileRows]:
    """Yield the rows of a file in order, in runs of one kind.

    The file names its streams of bytes. Records of the incarnations `strict` are dead letters if
    they are no JSON objects; records of others need not be JSON. Raises CorruptData if the file has
    another number of rows.
    """
    parquet = opened(blobs, file)
    found = parquet.metadata
    size = sum(found.row_group(number).total_byte_size for number in range(found.num_row_groups))
    step = max(1, BATCH_BYTES * found.num_rows // max(1, size))
    plain = bytes_streams(found)
    for batch in parquet.iter_batches(step, columns=list(types.OUR_COLUMNS)):
        kinds = _kinds(batch["incarnation"], plain, strict)
        begins = np.flatnonzero(np.diff(kinds, prepend=-1))
        for begin, end in zip(begins, [*begins[1:], len(kinds)], strict=True):
            part = batch.slice(int(begin), int(end - begin))
            # copied, so that a run has buffers of its own
            whole = pa.Table.from_batches([part]).take(pa.array(range(part.num_rows)))
            base = {name: whole[name].combine_chunks() for name in types.OUR_COLUMNS}
            yield FileRows(Kind(int(kinds[begin])), base)


def _kinds(
    incarnations: pa.Array, plain: Collection[int], strict: Collection[int]
) -> npt.NDArray[np.int64]:
    uids = incarnations.to_numpy()
    kinds = np.full(len(uids), int(Kind.MAYBE_JSON), np.int64)
    kinds[np.isin(uids, list(strict))] = int(Kind.JSON)
    kinds[np.isin(uids, list(plain))] = int(Kind.BYTES)
    return kinds


def laid_out(values: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return records as `decode` reads them: their bytes, writable, each with a comma behind it, and
    the ends of the records."""
    records = pc.binary_join_element_wise(pc.fill_null(values, b""), b"", b",")
    _, offsets, data = records.buffers()
    ends = np.frombuffer(offsets, np.int32)[records.offset : records.offset + len(records) + 1]
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].copy()
    return text, (ends[1:] - ends[0]).astype(np.int64)
