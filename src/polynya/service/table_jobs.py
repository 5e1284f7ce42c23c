"""The jobs of tables, for drivers: plan a job, lease its table, commit, fail or abandon it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import structs

from polynya.base.transforms import source_table
from polynya.service.node_service import NodeService
from polynya.service.table_leases import TableLeases
from polynya.service.table_snapshots import TableSnapshots
from polynya.service.tables import (
    TableRefused,
    Tables,
    checked_columns,
    checked_partitions,
    table_of,
)
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.tables.commands import (
    ClaimRanges,
    TableAbandon,
    TableCommit,
    TableFail,
    TableFault,
    TableMove,
    TableOpen,
    TablePlanned,
    TableReplace,
    TableRetry,
)
from polynya.stream.features.tables.failures import FAILURES_MAX
from polynya.stream.features.tables.rules import ClaimedRange, Lag
from polynya.stream.features.tables.state import Failure, Table
from polynya.stream.replies import Code

JOB_BYTES_MAX = 4 << 30  # payload of one job over all groups; the driver calls again for the rest
# approximate limit of slices of one job: each is a row of the plan, assembled in one step
JOB_SLICES_MAX = 50_000
SLICE_COST = 96  # minimum bytes of a slice in the budget, besides its payload
FailedRow = tuple[int, str, int, int, str, int, str]  # as in `TableFail.ranges`
FAULT_CHARACTERS_MAX = 1000
DERIVED_STREAMS_MAX = 10_000  # input streams of a derived table: each job asks for all of them
ALL_RECORDS = 1 << 62  # behind any record
_RANGES: msgspec.msgpack.Decoder[list[ClaimedRange]] = msgspec.msgpack.Decoder(list[ClaimedRange])


class PlannedJob(msgspec.Struct, frozen=True):
    """A job that a driver may run: the table state that the commit expects, and the claimed ranges.
    `more`: another job may follow."""

    table: Table
    job: int
    attempt: str
    ranges: list[ClaimedRange]
    more: bool = False
    streams: list[str] = []  # canonical names: the input of a derived table …
    source: Table | None = None  # … or the table whose rows are its input


class TableJobs:
    """The jobs of `tables`, as one core serves them. `flush` publishes the hot data under a prefix,
    on every core of the node."""

    def __init__(self, service: NodeService, flush: Callable[[str], Awaitable[None]]) -> None:
        self.tables = Tables(service)
        self.snapshots = TableSnapshots(service)
        self._service = service
        self._flush = flush
        self._planning: dict[int, asyncio.Lock] = {}
        self._leases = TableLeases(service)

    async def plan(self, name: str, *, merge: bool = False, worker: str = "") -> PlannedJob | None:
        """Return the open job or the next one. The next one has the pending records after a flush,
        and is None without any; with `merge` it has no ranges.

        An open job without ranges is a merge of another driver, and any driver may run it. A
        `worker` gets a job with the table's lease; without one, leases do not matter.
        """
        table = await self.tables.find(name)
        if worker and not await self._leases.is_free(table.uid, worker):
            raise _leased(name)
        async with self._planning.setdefault(table.uid, asyncio.Lock()):
            source = await self.tables.source_of(table)
            if source_table(table.transform) and source is None:  # both were dropped meanwhile
                raise TableRefused(
                    404,
                    "TABLE_NOT_FOUND",
                    f"'{name}' and the table that it is derived from were dropped",
                )
            lags: list[Lag] = []
            bare = merge or bool(table.transform)
            if not bare and not (table.open and table.planned):
                lags = await self._flushed(table)
                if not lags:
                    return None
            if worker and not await self._leases.take(table.uid, worker):
                raise _leased(name)
            planned = await self._plan(table, lags, merge=bare)
        if worker and planned is None:
            await self._leases.release(table.uid, worker, 0)
        return planned

    async def extend_lease(self, name: str, worker: str) -> bool:
        """Extend a worker's lease of a table. Return False if it does not have it."""
        return await self._leases.extend((await self.tables.find(name)).uid, worker)

    async def release_lease(self, name: str, worker: str, rest_ms: int) -> None:
        """End a worker's lease of a table; other workers leave the table alone for `rest_ms`."""
        await self._leases.release((await self.tables.find(name)).uid, worker, rest_ms)

    async def _flushed(self, table: Table) -> list[Lag]:
        """Flush the table's streams. Return the lags behind them; empty when the table needs no
        job."""
        for prefix in table.prefixes:
            await self._flush(prefix)
        lags = await self.tables.lags(table)
        unwatched = [lag.group for lag in lags if not lag.watched and lag.group]
        if unwatched:
            await self.tables.watch(table, unwatched)
        retried = any(failure.again for failure in table.failures)
        return lags if retried or any(lag.records for lag in lags) else []

    async def _plan(
        self, table: Table, lags: list[Lag], *, merge: bool = False
    ) -> PlannedJob | None:
        """Open or continue a job. A merge claims in every group, too, which settles the claims of
        the jobs before; if that leaves ranges, it is an ordinary job."""
        service = self._service
        reply = await service.call(META_GROUP, TableOpen(table.uid, service.now_ms()))
        table = table_of(reply.detail)
        # its planner died, perhaps halfway: claim again as a new job
        if reply.code == Code.OK and not table.planned:
            await service.call(META_GROUP, TableAbandon(table.uid, table.job))
            reply = await service.call(META_GROUP, TableOpen(table.uid, service.now_ms()))
            table = table_of(reply.detail)
            if reply.code == Code.OK and not table.planned:
                # two planners that claim for one job would each know only a part of its ranges
                raise _preempted()
        again = table.planned  # opened by another planner
        share = dict.fromkeys(range(1, service.groups + 1), 0)
        ranges, more = await self._claim(table, share if merge else shares(lags, service.groups))
        ranges = left_over(ranges, [failure for failure in table.failures if failure.aside])
        if not table.planned:
            done = await service.call(META_GROUP, TablePlanned(table.uid, table.job))
            if done.code != Code.OK:
                raise _preempted()
        if not ranges and not (merge or again):
            await service.call(META_GROUP, TableAbandon(table.uid, table.job))
            return None
        source = await self.tables.source_of(table)
        streams = await self._input(table) if table.transform and source is None else []
        attempt = secrets.token_hex(16)
        return PlannedJob(table, table.job, attempt, ranges, more or again, streams, source)

    async def _input(self, table: Table) -> list[str]:
        """Return the canonical names of the streams of a derived table."""
        names = await self.tables.names(table, DERIVED_STREAMS_MAX + 1)
        if len(names) > DERIVED_STREAMS_MAX:
            raise TableRefused(
                400,
                "TABLE_TRANSFORM",
                f"the derived table '{table.name}' covers more than {DERIVED_STREAMS_MAX} streams; "
                "drop it and create it with a longer prefix",
            )
        return names

    async def _claim(self, table: Table, share: dict[int, int]) -> tuple[list[ClaimedRange], bool]:
        """Return the ranges of the job, and True if a group may have more than its share of
        bytes."""
        service = self._service
        longer = await self.tables.longer(table)
        again = [
            (each.stream, each.uid, each.record, each.end) for each in table.failures if each.again
        ]
        ranges, more = list[ClaimedRange](), False
        claims = (
            ClaimRanges(
                table.uid,
                table.job,
                table.committed,
                table.prefix,
                longer,
                share[group],
                not table.planned,
                [each for each in again if each[1] >> 48 == group],
            )
            for group in range(1, service.groups + 1)
        )
        replies = await asyncio.gather(
            *(service.call(group, claim) for group, claim in enumerate(claims, 1))
        )
        if any(reply.code != Code.OK for reply in replies):
            raise _preempted()
        for group, reply in enumerate(replies, 1):
            part = _RANGES.decode(msgspec.msgpack.encode(reply.detail))
            part = [await self._spread(each) for each in part]
            more = (
                more
                or sum(cold.read_bytes for each in part for cold in each.slices) >= share[group]
            )
            ranges += part
            await asyncio.sleep(0)
        return ranges, more

    async def _spread(self, part: ClaimedRange) -> ClaimedRange:
        """Return a claimed range with the slices of pages in place of the pages. Raises
        Unavailable, CorruptData."""
        reader = self._service.local.reads.cold
        if reader is None or not any(cold.is_page for cold in part.slices):
            return part
        slices = await reader.spread(part.slices, part.first, part.end or ALL_RECORDS)
        part.slices = slices
        return part

    async def commit(self, command: TableCommit | TableMove | TableReplace) -> Table:
        if isinstance(command, TableMove):
            checked_columns(command.columns)
            checked_partitions(command.partitions, command.columns)
        reply = await self._service.call(META_GROUP, command)
        if reply.code == Code.NOT_FOUND:
            raise TableRefused(404, "TABLE_NOT_FOUND", "there is no such table")
        table = table_of(reply.detail)
        if reply.code == Code.NOT_YET:
            raise TableRefused(
                409,
                "JOB_CONFLICT",
                f"job {command.job} cannot commit: the table is at job {table.committed}, or its "
                "base has changed",
            )
        return table

    async def fail(self, table: int, job: int, ranges: list[FailedRow]) -> Table:
        """Count failures of ranges of the open job, and abandon it."""
        service = self._service
        reply = await service.call(META_GROUP, TableFail(table, job, ranges, service.now_ms()))
        if reply.code == Code.NOT_FOUND:
            raise TableRefused(404, "TABLE_NOT_FOUND", "there is no such table")
        if reply.code == Code.TOO_MANY:
            raise TableRefused(
                409,
                "TABLE_FAILURES",
                f"more than {FAILURES_MAX} ranges of the table cannot be read: check the object "
                "store with 'polynya store verify'",
            )
        return table_of(reply.detail)

    async def retry(self, name: str) -> Table:
        """Put the ranges that are set aside into the table's next job."""
        service = self._service
        table = await self.tables.find(name)
        async with self._planning.setdefault(table.uid, asyncio.Lock()):
            reply = await service.call(META_GROUP, TableRetry(table.uid, service.now_ms()))
        return table_of(reply.detail)

    async def abandon(self, table: int, job: int, reason: str = "") -> Table:
        """Abandon a job, and note the reason if it failed."""
        service = self._service
        if reason:
            fault = TableFault(table, job, reason[:FAULT_CHARACTERS_MAX], service.now_ms())
            await service.call(META_GROUP, fault)
        reply = await service.call(META_GROUP, TableAbandon(table, job))
        if reply.code == Code.NOT_FOUND:
            raise TableRefused(404, "TABLE_NOT_FOUND", "there is no such table")
        return table_of(reply.detail)


def shares(lags: Sequence[Lag], groups: int) -> dict[int, int]:
    """Return the byte budget of a job in each group, such that a job has about `JOB_SLICES_MAX`
    slices at most."""
    found = dict.fromkeys(range(1, groups + 1), max(JOB_BYTES_MAX // groups, 1))
    slices = sum(lag.slices for lag in lags)
    if slices > JOB_SLICES_MAX:
        for lag in lags:
            if lag.group in found:  # an older release does not report it
                each = lag.bytes // lag.slices + SLICE_COST if lag.slices else 0
                found[lag.group] = max(
                    1, min(found[lag.group], each * lag.slices * JOB_SLICES_MAX // slices)
                )
    return found


def left_over(ranges: Sequence[ClaimedRange], aside: Sequence[Failure]) -> list[ClaimedRange]:
    """Return the ranges without the records that are set aside."""
    left: list[ClaimedRange] = []
    for part in ranges:
        last = part.slices[-1]
        begin = max(part.first, part.slices[0].record)
        stop = part.end or last.record + last.records
        own = sorted((each.record, each.end) for each in aside if each.uid == part.uid)
        if not own:
            left.append(part)
            continue
        for gone, resume in [*own, (stop, stop)]:
            if begin < min(gone, stop):
                left.append(_piece(part, begin, min(gone, stop)))
            begin = max(begin, resume)
    return left


def _piece(part: ClaimedRange, begin: int, end: int) -> ClaimedRange:
    slices = [
        cold for cold in part.slices if cold.record < end and cold.record + cold.records > begin
    ]
    return structs.replace(part, slices=slices, first=begin, end=end)


def _preempted() -> TableRefused:
    return TableRefused(409, "JOB_PREEMPTED", "another planner has taken over this job; retry")


def _leased(name: str) -> TableRefused:
    return TableRefused(
        409,
        "TABLE_LEASED",
        f"another worker syncs the table '{name}', or did so a moment ago; come back later",
    )
