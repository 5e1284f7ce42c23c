"""Tables as JSON: as users see them, as drivers do, and the plan of a job.

It is specified in docs/formats/tables.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.names import spelled_name
from polynya.base.payloads import RECORD, fields_of
from polynya.front.http.api.derived_lag import DerivedLag
from polynya.front.http.api.schemas import TableFacts, columns_of, info_of
from polynya.service.stream_slices import members_of
from polynya.service.table_jobs import PlannedJob, TableJobs
from polynya.service.tables import shown_prefix
from polynya.stream.features.tables.rules import ClaimedRange
from polynya.stream.features.tables.snapshots import Kept
from polynya.stream.features.tables.state import Failure, Table
from polynya.stream.parts import ColdSlice
from polynya.wire.tables import Merging, StoreRef

ReadObject = Callable[[str], Awaitable[bytes]]


class TableViews:
    """Describes the tables of a cluster, with what their object store and their jobs tell."""

    def __init__(
        self,
        jobs: TableJobs,
        derived: DerivedLag,
        store: StoreRef,
        now_ms: Callable[[], int],
        read_object: ReadObject | None,
        merging: Merging | None,
    ) -> None:
        """`read_object` and `merging` are as in `TableRoutes`."""
        self._tables = jobs.tables
        self._store = store
        self._now_ms = now_ms
        self._read_object = read_object
        self._merging: dict[str, Any] = msgspec.to_builtins(merging or Merging())
        self._snapshots = jobs.snapshots
        self._derived = derived
        self._known_facts: dict[int, tuple[str, TableFacts]] = {}  # by table, with the pointer

    async def columns(self, table: Table) -> list[dict[str, Any]]:
        """Return the columns after the last job; empty before the first one."""
        metadata = await self.metadata(table)
        return [] if metadata is None else columns_of(metadata)

    async def metadata(self, table: Table) -> bytes | None:
        """Return the current Iceberg metadata, None before the first job."""
        if not table.main or self._read_object is None:
            return None
        return await self._read_object(metadata_key(table, table.main))

    async def _facts(self, table: Table) -> TableFacts | None:
        """Return the facts of the last job, None if they cannot be read now. They are read once a
        job."""
        known = self._known_facts.get(table.uid)
        if known is None or known[0] != table.main:
            try:
                metadata = await self.metadata(table)
                known = table.main, TableFacts() if metadata is None else info_of(metadata)
            except (PolynyaError, OSError, ValueError):
                return None
            self._known_facts[table.uid] = known
        return known[1]

    def reference(self, table: Table) -> dict[str, Any]:
        """Return the table as drivers see it (`TableRef` of docs/formats/tables.md)."""
        return _ref(table) | self._merging

    async def plan(self, job: PlannedJob) -> dict[str, Any]:
        plan = {
            "version": 1,
            "table": self.reference(job.table) | kept_of(await self._snapshots.of(job.table)),
            "job": job.job,
            "attempt": job.attempt,
            "store": self._store,
            "ranges": ranges_of(job.ranges),
        }
        if job.source is not None:
            plan["source"] = self.reference(job.source)
        return {**plan, "more": job.more, "streams": [spelled_name(each) for each in job.streams]}

    async def described(self, table: Table) -> dict[str, Any]:
        """Return a table as users see it: its pointers and its lag behind the streams."""
        lag = await self._tables.lag(table)
        derived = bool(table.transform)
        records = await self._derived.records(table) if derived else lag.records
        trimmed = await self._derived.trimmed(table) if derived else lag.skipped
        info = await self._facts(table)
        behind = max(0, self._now_ms() - lag.since_ms) / 1000 if lag.records else 0.0
        return {
            **self.reference(table),
            **kept_of(await self._snapshots.of(table)),
            **await self._lineage(table),
            "columns": fields_of(table.columns),
            "payload": dict(table.columns).get(RECORD, ""),
            "delta": f"{table.folder}/main",
            "delta_dlq": f"{table.folder}/dlq",
            "store": self._store,
            "streams": lag.streams,
            "rows": table.rows,
            "dead_rows": table.dlq_rows,
            "records_behind": records,
            "records_trimmed": trimmed,
            "records_ended": lag.lost,
            "hold": table.hold,
            "failing": sum(not each.aside for each in table.failures),
            "ranges_aside": sum(each.aside for each in table.failures),
            "records_aside": sum(each.end - each.record for each in table.failures if each.aside),
            "behind_seconds": None if derived else round(behind, 3),
            "fault": table.fault,
            "fault_ms": table.fault_ms,
            "committed_ms": table.committed_ms,
            "files": None if info is None else info.files,
            "bytes": None if info is None else info.bytes,
            "job_seconds": None if info is None else info.job_seconds,
            "merges": None if info is None else info.merges,
            "files_merged": None if info is None else info.files_merged,
            "unframed_values": None if info is None else info.unframed_values,
            "fields_without_column": None if info is None else info.fields_without_column,
        }

    async def _lineage(self, table: Table) -> dict[str, Any]:
        """Return the table that a table is derived from, and those that are derived from it."""
        source = await self._tables.source_of(table)
        named = "" if source is None else source.name
        return {
            "source": named,
            "derived": [each.name for each in await self._tables.derived_from(table)],
        }


def metadata_key(table: Table, pointer: str) -> str:
    """Return the object key of a table's metadata from its URI."""
    return f"tables/{table.uid}/{pointer.partition(f'/tables/{table.uid}/')[2]}"


def overlap_of(table: Table) -> dict[str, str]:
    return {"name": table.name, "prefix": shown_prefix(table)}


def failure_of(failure: Failure) -> dict[str, Any]:
    return {
        "stream": spelled_name(failure.stream),
        "uid": failure.uid,
        "record": failure.record,
        "records": failure.end - failure.record,
        "pack": failure.pack,
        "offset": failure.offset,
        "reason": failure.reason,
        "failures": failure.count,
        "since_ms": failure.since_ms,
        "last_ms": failure.last_ms,
        "state": "aside" if failure.aside else "retry" if failure.again else "failing",
    }


def _ref(table: Table) -> dict[str, Any]:
    return {
        "uid": str(table.uid),
        "name": table.name,
        "prefix": shown_prefix(table),
        "location": table.folder,
        "partitions": table.partitions,
        "transform": table.transform,
        "job": table.committed,
        "iceberg": table.main,
        "iceberg_dlq": table.dlq,
        "result": table.result,
        "columns": table.columns,
    }


def kept_of(kept: Kept) -> dict[str, Any]:
    """Return the members of a table that say which snapshots are kept."""
    tags = msgspec.to_builtins(kept.tags)
    return {"keep_snapshots": kept.count, "keep_ms": kept.age_ms, "tags": tags}


def part_of(cold: ColdSlice) -> dict[str, int]:
    """Return the members of a range that name its part of the slice, if it is known, and its span
    in record numbers, if some are missing."""
    part = {"first_batch": cold.first_batch, "batches": cold.batches} if cold.batches else {}
    return part | ({"numbers": cold.records} if cold.missing_records else {})


def ranges_of(parts: Sequence[ClaimedRange]) -> list[dict[str, Any]]:
    return [
        range_of(part, number)
        for part in parts
        for number, cold in enumerate(part.slices)
        if not cold.is_inline  # a marker has no rows
    ]


def range_of(part: ClaimedRange, number: int) -> dict[str, Any]:
    cold = part.slices[number]
    skip = max(0, part.first - cold.record)
    records, length = cold.records - cold.missing_records, cold.length - cold.missing_bytes
    end = min(cold.records, part.end - cold.record) if part.end else cold.records
    whole = skip == 0 and end == cold.records
    return {
        **({} if whole else {"skip": skip, "take": end - skip}),
        "stream": spelled_name(part.name),
        "uid": part.uid,
        "group": part.uid >> 48,
        "content_type": part.content_type,
        "encoding": part.encoding,
        "record": cold.record,
        "byte": cold.byte,
        "records": records,
        "length": length,
        "pack": cold.pack,
        "offset": cold.offset,
        "stored": cold.stored,
        "crc": cold.crc,
        **part_of(cold),
        **members_of(cold, part.aborted),
    }
