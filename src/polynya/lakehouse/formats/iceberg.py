"""Stage Iceberg metadata with pyiceberg: all files are written, but invisible until the server
moves the pointer."""

from __future__ import annotations

import io
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import types
from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import (
    CommitTableResponse,
    CreateTableTransaction,
    StagedTable,
    Table,
    Transaction,
)
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.typedef import EMPTY_DICT, Record

from polynya.base.errors import CorruptData
from polynya.lakehouse.formats.parquet import ORDER, Change, File
from polynya.lakehouse.formats.snapshots import DEFAULT, Keeping, keep
from polynya.lakehouse.jobs.plan import Merged
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.schema.partitions import Cut

FIELDS_PROPERTY = "polynya.fields"  # JSON: the fields of columns that have other names
# pyiceberg warns of each column without statistics, which some have on purpose (`value`)
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
_LEAF = pa.types
_TYPES: list[tuple[Any, types.IcebergType]] = [
    (_LEAF.is_int64, types.LongType()),
    (_LEAF.is_float64, types.DoubleType()),
    (_LEAF.is_int32, types.IntegerType()),
    (_LEAF.is_float32, types.FloatType()),
    (_LEAF.is_string, types.StringType()),
    (lambda kind: _LEAF.is_timestamp(kind) and kind.tz is None, types.TimestampType()),
    (_LEAF.is_timestamp, types.TimestamptzType()),
    (_LEAF.is_date32, types.DateType()),
    (_LEAF.is_boolean, types.BooleanType()),
    (_LEAF.is_binary, types.BinaryType()),
]


class TableShape(NamedTuple):
    """The columns of a table, with field ids once they are fixed, and the partitions of a new one."""

    schema: pa.Schema
    cuts: Sequence[Cut] = ()
    fields: Mapping[str, str] = MappingProxyType({})  # of columns with other names, by path
    keeping: Keeping = DEFAULT


class StagingCatalog(NoopCatalog, MetastoreCatalog):
    """The catalog of one job. A commit writes a metadata file and records its location. No commit
    fails, so pyiceberg deletes nothing."""

    def __init__(self, blobs: Blobs) -> None:
        super().__init__("polynya")
        self._io = BlobIO(blobs)
        self.staged: dict[str, str] = {}  # new pointer by table name

    def open(self, name: str, pointer: str) -> Table:
        """Return the table at a pointer."""
        metadata = FromInputFile.table_metadata(self._io.new_input(pointer))
        return Table(("polynya", name), metadata, pointer, self._io, self)

    def key(self, uri: str) -> str:
        """Return the object key of a URI in the table's metadata."""
        return self._io._blobs.key(uri)

    def create_transaction(
        self, name: str, schema: Schema, location: str, cuts: Sequence[Cut] = ()
    ) -> CreateTableTransaction:
        """Create a table at a location, divided by `cuts`."""
        return MetastoreCatalog.create_table_transaction(
            self,
            ("polynya", name),
            schema,
            location,
            partition_spec=_partition_spec(schema, cuts),
            sort_order=_sort_order(schema),
            properties=table_properties(location),
        )

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        current = None if isinstance(table, StagedTable) else table
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self.staged[table.name()[-1]] = staged.metadata_location
        return CommitTableResponse(
            metadata=staged.metadata, **{"metadata-location": staged.metadata_location}
        )

    def update_namespace_properties(
        self, namespace: Any, removals: set[str] | None = None, updates: Any = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        raise NotImplementedError

    def _load_file_io(self, properties: Any = EMPTY_DICT, location: str | None = None) -> FileIO:
        return self._io


class _Transaction(Transaction):
    """A transaction that applies its updates once for each change of them.

    pyiceberg applies them, and copies all metadata, at each look at the metadata: 40 times a job.
    """

    _known: tuple[tuple[Any, ...], Any] | None = None

    @property
    def table_metadata(self) -> Any:
        if self._known is None or self._known[0] is not self._updates:
            self._known = (self._updates, super().table_metadata)
        return self._known[1]


class _Rewrite(_OverwriteFiles):
    """A snapshot that replaces files. pyiceberg looks for them by a predicate; these are known."""

    def _build_delete_files_partition_predicate(self) -> None: ...

    def _build_manifest_evaluator(self, spec_id: int) -> Any:
        return lambda manifest: True


class _Replace(_Rewrite):
    """A snapshot that replaces files by others with the same rows: readers of changes skip it.

    pyiceberg has no such snapshot.
    """

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        made = super()._summary(snapshot_properties)
        return Summary(operation=Operation.REPLACE, **made.additional_properties)


class BlobIO(FileIO):
    """pyiceberg's file access through the object store. Written files are durable."""

    def __init__(self, blobs: Blobs) -> None:
        super().__init__()
        self._blobs = blobs

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self._blobs)

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self._blobs)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Do nothing: a driver deletes nothing."""


class _Input(InputFile):
    def __init__(self, location: str, blobs: Blobs) -> None:
        super().__init__(location)
        self._blobs = blobs

    def __len__(self) -> int:
        return len(self._blobs.get(self._blobs.key(self.location)))

    def exists(self) -> bool:
        return len(self) >= 0

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._blobs.get(self._blobs.key(self.location)))


class _Output(OutputFile):
    def __init__(self, location: str, blobs: Blobs) -> None:
        super().__init__(location)
        self._blobs = blobs

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._blobs)

    def create(self, overwrite: bool = False) -> Any:
        return _Stream(self._blobs, self._blobs.key(self.location))


class _Stream(io.BytesIO):
    def __init__(self, blobs: Blobs, key: str) -> None:
        super().__init__()
        self._blobs = blobs
        self._key = key

    def close(self) -> None:
        if not self.closed:
            self._blobs.put(self._key, self.getvalue())
            super().close()


def _sort_order(schema: Schema) -> SortOrder:
    """Return the order of the rows in each file. A derived table may have none."""
    if not set(ORDER) <= set(schema.column_names):
        return UNSORTED_SORT_ORDER
    return SortOrder(
        *[
            SortField(source_id=schema.find_field(name).field_id, transform=IdentityTransform())
            for name in ORDER
        ]
    )


def _partition_spec(schema: Schema, cuts: Sequence[Cut]) -> PartitionSpec:
    return PartitionSpec(
        *[
            PartitionField(
                source_id=schema.find_field(cut.column).field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=parse_transform(cut.spelled),
                name=cut.name,
            )
            for number, cut in enumerate(cuts)
        ]
    )


def table_properties(location: str) -> dict[str, str]:
    """Return the properties of a table that gets commits every few seconds, and whose files Delta
    and the streams share."""
    return {
        "format-version": "2",
        "write.metadata.path": f"{location}/_iceberg",
        "write.data.path": f"{location}/data",
        "commit.manifest-merge.enabled": "true",
        "commit.manifest.min-count-to-merge": "20",
        "write.metadata.previous-versions-max": "5",
        "write.metadata.delete-after-commit.enabled": "false",
        "write.metadata.metrics.max-inferred-column-defaults": "600",
        "write.metadata.metrics.column.stream": "full",  # names may differ at their ends only
        "write.metadata.metrics.column.value": "none",
        "write.metadata.metrics.column.key": "none",
        "write.metadata.metrics.column.headers.element.key": "none",
        "write.metadata.metrics.column.headers.element.value": "none",
        "gc.enabled": "false",
    }


def with_field_ids(
    catalog: StagingCatalog, pointer: str, location: str, wanted: pa.Schema
) -> pa.Schema:
    """Return `wanted` with the Parquet field ids that it will have in the table at `pointer` (""
    creates one)."""
    transaction = _widened(catalog, "job", pointer, location, TableShape(wanted))
    schema = transaction.table_metadata.schema()
    return pa.schema(
        [
            _identified(wanted.field(field.name), field)
            for field in schema.fields
            if field.name in wanted.names
        ]
    )


def stage(
    catalog: StagingCatalog,
    name: str,
    pointer: str,
    location: str,
    *,
    shape: TableShape,
    change: Change,
    summary: dict[str, str],
) -> str:
    """Write the metadata of a change to the table at `pointer`. Return the new pointer."""
    schema = shape.schema
    transaction = _widened(catalog, name, pointer, location, shape)
    metadata = transaction.table_metadata
    if not _same(schema, metadata.schema()):
        raise AssertionError("the table's field ids are not those that the files were written with")
    if change.files or change.removed:
        _snapshot(catalog, transaction, change, summary).commit()
    named = msgspec.json.encode(dict(shape.fields)).decode()
    if transaction.table_metadata.properties.get(FIELDS_PROPERTY, "{}") != named:
        transaction.set_properties({FIELDS_PROPERTY: named})
    keep(transaction, shape.keeping, int(summary["polynya.job"]) if pointer else 0)
    transaction.commit_transaction()
    return catalog.staged.get(name, pointer)


def live_files(catalog: StagingCatalog, pointer: str) -> list[Merged]:
    """Return the data files of the table at `pointer`."""
    return [
        Merged(
            catalog.key(each.file_path),
            each.record_count,
            each.file_size_in_bytes,
            list(each.partition._data),
        )
        for each in _live(catalog, pointer)
    ]


def _live(catalog: StagingCatalog, pointer: str) -> Iterator[DataFile]:
    table = catalog.open("live", pointer)
    snapshot = table.current_snapshot()
    if snapshot is not None:
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file


def _snapshot(
    catalog: StagingCatalog, transaction: Transaction, change: Change, summary: dict[str, str]
) -> Any:
    """Return the uncommitted snapshot of a change: an append, or a replacement."""
    update = transaction.update_snapshot(snapshot_properties=summary)
    producer: Any
    if change.removed:
        producer = (_Rewrite if change.rewritten else _Replace)(
            Operation.OVERWRITE, transaction, catalog._io, snapshot_properties=summary
        )
        gone = {each.key for each in change.removed}
        for known in _live(catalog, transaction._table.metadata_location):
            if catalog.key(known.file_path) in gone:
                producer.delete_data_file(known)
                gone.discard(catalog.key(known.file_path))
        if gone:
            raise CorruptData(f"the table does not have the files to replace: {min(gone)}")
    else:
        producer = update.merge_append()
    for data_file in _data_files(catalog, change.files, transaction.table_metadata):
        producer.append_data_file(data_file)
    return producer


def iceberg_schema(wanted: pa.Schema) -> Schema:
    """Return the Iceberg schema of an Arrow schema; ids are provisional."""
    numbers = itertools.count(1)
    return Schema(*[_nested_field(field, numbers) for field in wanted])


def _widened(
    catalog: StagingCatalog,
    name: str,
    pointer: str,
    location: str,
    shape: TableShape,
) -> Transaction:
    if not pointer:
        return catalog.create_transaction(name, iceberg_schema(shape.schema), location, shape.cuts)
    transaction = _Transaction(catalog.open(name, pointer))
    if not _has_fields(transaction.table_metadata.schema().as_struct(), shape.schema):
        with transaction.update_schema() as update:
            update.union_by_name(iceberg_schema(shape.schema))
    return transaction


def _has_fields(known: types.StructType, wanted: Iterable[pa.Field]) -> bool:
    """Report whether a struct has all wanted fields, at any depth. Fields never change their
    type."""
    inner = {field.name: field.field_type for field in known.fields}
    return all(field.name in inner and _has_type(inner[field.name], field.type) for field in wanted)


def _has_type(known: types.IcebergType, wanted: pa.DataType) -> bool:
    if isinstance(known, types.StructType):
        return _has_fields(known, wanted)
    if isinstance(known, types.ListType):
        return _has_type(known.element_type, wanted.value_type)
    return not isinstance(known, types.MapType) or _has_type(known.value_type, wanted.item_type)


def _nested_field(field: pa.Field, numbers: Any) -> types.NestedField:
    return types.NestedField(
        field_id=next(numbers),
        name=field.name,
        field_type=_iceberg_type(field.type, numbers),
        required=False,
    )


def _iceberg_type(kind: pa.DataType, numbers: Any) -> types.IcebergType:
    if pa.types.is_struct(kind):
        return types.StructType(*[_nested_field(field, numbers) for field in kind])
    if pa.types.is_list(kind):
        number = next(numbers)
        return types.ListType(
            element_id=number,
            element=_iceberg_type(kind.value_type, numbers),
            element_required=False,
        )
    if pa.types.is_map(kind):
        key, value = next(numbers), next(numbers)
        return types.MapType(
            key_id=key,
            key_type=types.StringType(),
            value_id=value,
            value_type=_iceberg_type(kind.item_type, numbers),
            value_required=False,
        )
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    return next(made for test, made in _TYPES if test(kind))


def _identified(field: pa.Field, known: types.NestedField) -> pa.Field:
    return pa.field(
        field.name, _identified_type(field.type, known.field_type), metadata=_id(known.field_id)
    )


def _identified_type(kind: pa.DataType, known: Any) -> pa.DataType:
    if pa.types.is_struct(kind):
        inner = {child.name: child for child in known.fields}
        return pa.struct([_identified(field, inner[field.name]) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(
            pa.field(
                "element",
                _identified_type(kind.value_type, known.element_type),
                metadata=_id(known.element_id),
            )
        )
    if pa.types.is_map(kind):
        return pa.map_(
            pa.field("key", kind.key_type, nullable=False, metadata=_id(known.key_id)),
            pa.field(
                "value",
                _identified_type(kind.item_type, known.value_type),
                metadata=_id(known.value_id),
            ),
        )
    return kind


def _id(number: int) -> dict[str, str]:
    return {"PARQUET:field_id": str(number)}


def _same(schema: pa.Schema, known: Schema) -> bool:
    again = pa.schema(
        [
            _identified(schema.field(field.name), field)
            for field in known.fields
            if field.name in schema.names
        ]
    )
    return again.equals(schema, check_metadata=True)


def _data_files(catalog: StagingCatalog, files: Sequence[File], metadata: Any) -> list[DataFile]:
    plan = compute_statistics_plan(metadata.schema(), metadata.properties)
    mapping = parquet_path_to_id_mapping(metadata.schema())
    found = []
    for file in files:
        footer = pq.read_metadata(pa.BufferReader(file.footer))
        statistics = _statistics(footer, plan, mapping)
        found.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=catalog._io._blobs.uri(file.key),
                file_format=FileFormat.PARQUET,
                partition=Record(*file.partition),
                file_size_in_bytes=file.size,
                sort_order_id=metadata.default_sort_order_id,
                spec_id=metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )
    return found


def _statistics(footer: Any, plan: dict[int, Any], mapping: dict[str, int]) -> Any:
    """Return a file's statistics, without bounds of times if it has some that Python cannot
    hold."""
    try:
        return data_file_statistics_from_parquet_metadata(footer, plan, mapping)
    except (ValueError, OverflowError):
        counts = MetricsMode(MetricModeTypes.COUNTS)
        timeless = {
            number: replace(one, mode=counts)
            if isinstance(
                one.iceberg_type, types.TimestamptzType | types.TimestampType | types.DateType
            )
            else one
            for number, one in plan.items()
        }
        return data_file_statistics_from_parquet_metadata(footer, timeless, mapping)
