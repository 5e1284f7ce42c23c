"""The Delta log over the same files, written by deltalake. It follows the Iceberg pointer, and any
driver can catch it up at any time."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from polynya.base.errors import Unavailable
from polynya.lakehouse.formats.parquet import Change, File
from polynya.lakehouse.reading.blobs import Blobs, LocalBlobs

_TRIES = 5
_CHECKPOINT_EVERY = "10"  # commits; opening a table reads those since the last checkpoint
# longer string bounds are omitted, because the log repeats them for each file …
_TEXT_CHARACTERS_MAX = 32
_NAME_CHARACTERS_MAX = 1024  # … except those of streams' names, by which readers skip files
_MEASURED_MAX = 32  # columns with statistics, Delta's own default


def app_id(table_uid: str, part: str) -> str:
    """Return the application id of a table's log. A recreated table has another id."""
    return f"polynya-{table_uid}-{part}"


def committed_job(blobs: Blobs, location: str, app: str) -> int:
    """Return the last job in the log, or 0."""
    try:
        return _open(blobs, location).transaction_version(app) or 0
    except TableNotFoundError:
        return 0


def apply(
    blobs: Blobs, location: str, app: str, job: int, *, schema: pa.Schema, change: Change
) -> None:
    """Put a job's change into the log, unless this or a later job is there. Jobs come in order.
    Raises Unavailable."""
    wanted = DeltaSchema.from_arrow(
        pa.schema([field.remove_metadata() for field in _plain(schema)])
    )
    fault: Exception | None = None
    for _ in range(_TRIES):
        try:
            table = _opened(blobs, location, wanted)
            if (table.transaction_version(app) or 0) < job:
                table = _widened(blobs, location, table, wanted)
                _commit(table, app, job, wanted, location, change)
            blobs.sync_folder(f"{location}/_delta_log")
            return
        except CommitFailedError as raced:
            fault = raced
        except (DeltaError, OSError) as failed:
            fault = failed
    raise Unavailable(
        f"the Delta log of {location} could not be written: {fault}. The next run repairs it"
    ) from fault


def _commit(
    table: DeltaTable, app: str, job: int, wanted: DeltaSchema, location: str, change: Change
) -> None:
    """Commit one job. The log does not enforce application versions, but of two commits on one base
    with the same application one fails. Streaming readers skip files without a data change."""
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    is_new, folder = not change.removed or change.rewritten, f"{location}/"
    actions: list[AddAction | RemoveAction] = [
        RemoveAction(each.key.removeprefix(folder), is_new, now_ms, each.size, {})
        for each in change.removed
    ]
    actions += [
        AddAction(file.key.removeprefix(folder), file.size, {}, now_ms, is_new, statistics(file))
        for file in change.files
    ]
    table.create_write_transaction(
        actions,
        mode="append",
        schema=wanted,
        commit_properties=CommitProperties(
            custom_metadata={"polynya.job": str(job)},
            max_commit_retries=0,
            app_transactions=[Transaction(app, job)],
        ),
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=True, cleanup_expired_logs=False
        ),
    )


def statistics(file: File) -> str:
    """Return Delta's statistics of a file from its Parquet footer: counts, bounds and nulls of flat
    columns."""
    footer = pq.read_metadata(pa.BufferReader(file.footer))
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(min(footer.num_columns, _MEASURED_MAX)):
        path = footer.schema.column(number).path
        if "." in path:
            continue
        found = [
            footer.row_group(group).column(number).statistics
            for group in range(footer.num_row_groups)
        ]
        if not found or any(one is None or not one.has_null_count for one in found):
            continue
        nulls[path] = sum(one.null_count for one in found)
        try:
            bounds = [(one.min, one.max) for one in found if one.has_min_max]
        except (ValueError, OverflowError):
            continue  # a value that Python cannot hold: the file has no bounds of this column
        empty = sum(
            1 for at, one in enumerate(found) if one.null_count == footer.row_group(at).num_rows
        )
        if bounds and len(bounds) + empty == len(found):
            length = _NAME_CHARACTERS_MAX if path == "stream" else _TEXT_CHARACTERS_MAX
            low, high = (
                _bound(min(low for low, _ in bounds), length, up=False),
                _bound(max(high for _, high in bounds), length, up=True),
            )
            if low is not None and high is not None:
                least[path], most[path] = low, high
    return json.dumps(
        {"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    )


def _bound(value: Any, length: int, *, up: bool) -> Any:
    """Return a bound in Delta's spelling, or None if it has no exact one."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None  # readers differ in the spelling of times without a zone
        micros = (value - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
        millis = -(-micros // 1000) if up else micros // 1000
        return _spelled(millis)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= length else None
    return None if isinstance(value, bytes | bool | Decimal) else value


_MICROSECOND = datetime.resolution


def _spelled(millis: int) -> str | None:
    try:
        moment = datetime.fromtimestamp(millis / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{millis % 1000:03d}Z" if moment.year >= 1000 else None


def _open(blobs: Blobs, location: str) -> DeltaTable:
    return DeltaTable(_address(blobs, location), storage_options=blobs.storage_options())


def _address(blobs: Blobs, location: str) -> str:
    return (
        blobs.uri(location).removeprefix("file://")
        if isinstance(blobs, LocalBlobs)
        else blobs.uri(location)
    )


def _opened(blobs: Blobs, location: str, wanted: DeltaSchema) -> DeltaTable:
    try:
        return _open(blobs, location)
    except TableNotFoundError:
        return DeltaTable.create(
            _address(blobs, location),
            schema=wanted,
            mode="ignore",
            configuration={"delta.checkpointInterval": _CHECKPOINT_EVERY},
            storage_options=blobs.storage_options() or None,
        )


def _widened(blobs: Blobs, location: str, table: DeltaTable, wanted: DeltaSchema) -> DeltaTable:
    """Add missing columns. Columns are only ever added, so adding all of them is safe."""
    if table.schema().to_json() == wanted.to_json():
        return table
    table.alter.add_columns(
        list(wanted.fields),
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        ),
    )
    return _open(blobs, location)


def _plain(schema: pa.Schema) -> list[pa.Field]:
    """Return the fields without Parquet field ids, which Delta would take for column mapping."""
    return [pa.field(field.name, _plain_type(field.type)) for field in schema]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _plain_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, pa.field("value", _plain_type(kind.item_type)))
    return kind
