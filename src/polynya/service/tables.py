"""Table operations for drivers and users: create, list, plan a job, commit it. The state is in the
`tables` of the machines."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.names import canonical_prefixes, spelled_name
from polynya.base.partitions import BadPartition, parse_partitions
from polynya.service.api import Facts
from polynya.service.routing import messages
from polynya.service.routing.service import NodeService
from polynya.service.table_leases import TableLeases
from polynya.stream.commands import ClaimRanges, TableAbandon, TableCommit, TableOpen, TablePlanned
from polynya.stream.placement import META_GROUP
from polynya.stream.replies import Code
from polynya.stream.rules.table_failures import FAILURES_MAX, Failure
from polynya.stream.rules.table_watches import covers
from polynya.stream.rules.tables import ClaimedRange, Lag, Table
from polynya.stream.table_commands import (
    ForgetTable,
    TableAlter,
    TableDrop,
    TableFail,
    TableFault,
    TableMake,
    TableMove,
    TableRetry,
    WatchStreams,
)

JOB_BYTES_MAX = 4 << 30  # payload of one job over all groups; the driver calls again for the rest
# approximate limit of slices of one job: each is a row of the plan, assembled in one step
JOB_SLICES_MAX = 50_000
SLICE_COST = 96  # minimum bytes of a slice in the budget, besides its payload
FailedRow = tuple[int, str, int, int, str, int, str]  # as in `TableFail.ranges`
COLUMN_TYPES = ("long", "double", "decimal", "string", "timestamptz", "date", "boolean")
COLUMNS_MAX = 500  # declared columns of a table, as many as it can have
TRANSFORM_CHARACTERS_MAX = 64 << 10  # it is state of the meta group
FAULT_CHARACTERS_MAX = 1000
DERIVED_STREAMS_MAX = 10_000  # input streams of a derived table: each job asks for all of them
PYTHON = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
ALL_RECORDS = 1 << 62  # behind any record
_RANGES: msgspec.msgpack.Decoder[list[ClaimedRange]] = msgspec.msgpack.Decoder(list[ClaimedRange])
_TABLE: msgspec.msgpack.Decoder[Table] = msgspec.msgpack.Decoder(Table)


class TableRefused(Exception):
    """An invalid table request: `status` is the HTTP status, `code` a documented error code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class PlannedJob(msgspec.Struct, frozen=True):
    """A job that a driver may run: the table state that the commit expects, and the claimed ranges.
    `more`: another job may follow."""

    table: Table
    job: int
    attempt: str
    ranges: list[ClaimedRange]
    more: bool = False
    streams: list[str] = []  # canonical names: the input of a derived table


class Tables:
    """The table operations of one core; any core can serve them. `flush` publishes the hot data
    under a prefix, on every core of the node."""

    def __init__(self, service: NodeService, flush: Callable[[str], Awaitable[None]]) -> None:
        self._service = service
        self._flush = flush
        self._planning: dict[int, asyncio.Lock] = {}
        self._leases = TableLeases(service)

    async def create(
        self,
        name: str,
        prefix: str,
        *,
        hold: bool = False,
        columns: Sequence[tuple[str, str]] = (),
        partitions: Sequence[str] = (),
        transform: str = "",
    ) -> tuple[Table, bool]:
        """Create a table, with `transform` a derived one. Return it, and True if it is new."""
        _check_name(name)
        _check_columns(columns)
        _check_transform(transform, hold=hold, columns=columns)
        parts = _checked_partitions(partitions, None if transform else columns)
        service = self._service
        try:
            prefixes = canonical_prefixes(prefix)
        except ValueError as error:
            raise TableRefused(400, "TABLE_PREFIX", str(error)) from None
        now_ms = service.now_ms()
        command = TableMake(name, prefixes, prefix, hold, list(columns), now_ms, parts, transform)
        reply = await service.call(META_GROUP, command)
        table = _table(reply.detail)
        if reply.code == Code.EXISTS_DIFFERENT:
            raise TableRefused(409, "TABLE_EXISTS", _conflict(table, command))
        if not transform:
            await self._watch(table, range(1, service.groups + 1))
        return table, reply.code == Code.CREATED

    async def _watch(self, table: Table, groups: Iterable[int]) -> None:
        """Tell groups of the table. One that cannot take it now is told by the next plan."""
        service = self._service
        command = WatchStreams(table.uid, table.prefixes, table.hold, service.now_ms())
        told = await asyncio.gather(
            *(service.call(group, command) for group in groups), return_exceptions=True
        )
        for fault in told:
            if isinstance(fault, BaseException) and not isinstance(fault, PolynyaError):
                raise fault

    async def alter(
        self,
        name: str,
        *,
        new_name: str | None = None,
        hold: bool | None = None,
        columns: Sequence[tuple[str, str]] = (),
    ) -> Table:
        """Rename a table, set whether it holds records, or declare more columns. A declared type
        stays declared."""
        table, service = await self.find(name), self._service
        _check_name(new_name or name)
        _check_transform(table.transform, hold=bool(hold), columns=columns)
        held, declared = table.hold, dict(table.columns)
        for field, kind in columns:
            if declared.setdefault(field, kind) != kind:
                raise TableRefused(
                    409,
                    "TABLE_COLUMN",
                    f"'{field}' is declared as {declared[field]}, and a declared type never "
                    "changes; rebuild the table, or declare another field",
                )
        _check_columns(list(declared.items()))
        command = TableAlter(
            table.uid,
            new_name or name,
            held if hold is None else hold,
            list(declared.items()),
            service.now_ms(),
        )
        reply = await service.call(META_GROUP, command)
        if reply.code == Code.NOT_FOUND:
            raise _not_found(name)
        if reply.code == Code.EXISTS_DIFFERENT:
            raise TableRefused(
                409, "TABLE_EXISTS", f"a table '{new_name}' exists; choose another name"
            )
        altered = _table(reply.detail)
        if altered.hold != held:
            await self._watch(altered, range(1, service.groups + 1))
        return altered

    async def drop(self, name: str) -> Table:
        """Drop a table: its name and its streams are free at once. Its files are deleted after the
        grace."""
        table, service = await self.find(name), self._service
        reply = await service.call(META_GROUP, TableDrop(table.uid, service.now_ms()))
        if reply.code == Code.NOT_FOUND:
            raise _not_found(name)
        await self._forget(table.uid)
        return table

    async def finish_drops(self) -> None:
        """Tell groups again of the dropped tables, until all have forgotten them. Call this on the
        core that leads the meta group."""
        for table in list(self._service.local.here(META_GROUP).tables.values()):
            if table.dropped_ms and not table.forgotten:
                await self._forget(table.uid)

    async def _forget(self, uid: int) -> None:
        """Tell all groups that a table is dropped. Groups that cannot take it now are told later."""
        service, command = self._service, ForgetTable(uid)
        groups = range(1, service.groups + 1)
        told = await asyncio.gather(
            *(service.call(group, command) for group in groups), return_exceptions=True
        )
        faults = [fault for fault in told if isinstance(fault, BaseException)]
        for fault in faults:
            if not isinstance(fault, PolynyaError):
                raise fault
        if not faults:
            await service.call(META_GROUP, command)

    async def all(self) -> list[Table]:
        tables: list[Table] = await self._service.meta_group.tables()
        return sorted(tables, key=lambda table: table.name)

    async def find(self, name: str) -> Table:
        for table in await self.all():
            if table.name == name:
                return table
        raise _not_found(name)

    async def lag(self, table: Table) -> Lag:
        """Return the lag of the table behind its streams, over all groups."""
        total = Lag()
        for lag in await self._lags(table):
            total.streams += lag.streams
            total.records += lag.records
            total.skipped += lag.skipped
            total.lost += lag.lost
            if lag.since_ms:
                total.since_ms = min(total.since_ms or lag.since_ms, lag.since_ms)
        return total

    async def _lags(self, table: Table) -> list[Lag]:
        return await self._service.ask_lags(
            messages.LagQuery(table.uid, table.prefix, await self._longer(table), table.committed)
        )

    async def plan(self, name: str, *, merge: bool = False, worker: str = "") -> PlannedJob | None:
        """Return the open job or the next one. The next one has the pending records after a flush,
        and is None without any; with `merge` it has no ranges.

        An open job without ranges is a merge of another driver, and any driver may run it. A
        `worker` gets a job with the table's lease; without one, leases do not matter.
        """
        table = await self.find(name)
        if worker and not await self._leases.is_free(table.uid, worker):
            raise _leased(name)
        async with self._planning.setdefault(table.uid, asyncio.Lock()):
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
        return await self._leases.extend((await self.find(name)).uid, worker)

    async def release_lease(self, name: str, worker: str, rest_ms: int) -> None:
        """End a worker's lease of a table; other workers leave the table alone for `rest_ms`."""
        await self._leases.release((await self.find(name)).uid, worker, rest_ms)

    async def _flushed(self, table: Table) -> list[Lag]:
        """Flush the table's streams. Return the lags behind them; empty when the table needs no
        job."""
        for prefix in table.prefixes:
            await self._flush(prefix)
        lags = await self._lags(table)
        unwatched = [lag.group for lag in lags if not lag.watched and lag.group]
        if unwatched:
            await self._watch(table, unwatched)
        retried = any(failure.again for failure in table.failures)
        return lags if retried or any(lag.records for lag in lags) else []

    async def _plan(
        self, table: Table, lags: list[Lag], *, merge: bool = False
    ) -> PlannedJob | None:
        """Open or continue a job. A merge claims in every group, too, which settles the claims of
        the jobs before; if that leaves ranges, it is an ordinary job."""
        service = self._service
        reply = await service.call(META_GROUP, TableOpen(table.uid, service.now_ms()))
        table = _table(reply.detail)
        # its planner died, perhaps halfway: claim again as a new job
        if reply.code == Code.OK and not table.planned:
            await service.call(META_GROUP, TableAbandon(table.uid, table.job))
            reply = await service.call(META_GROUP, TableOpen(table.uid, service.now_ms()))
            table = _table(reply.detail)
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
        streams = await self._input(table) if table.transform else []
        attempt = secrets.token_hex(16)
        return PlannedJob(table, table.job, attempt, ranges, more or again, streams)

    async def _input(self, table: Table) -> list[str]:
        """Return the canonical names of the streams of a derived table."""
        names = await self.names(table, DERIVED_STREAMS_MAX + 1)
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
        longer = await self._longer(table)
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
            more = more or sum(cold.stored for each in part for cold in each.slices) >= share[group]
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
        return ClaimedRange(
            part.uid, part.name, part.content_type, part.encoding, slices, part.first, part.end
        )

    async def _longer(self, table: Table) -> list[str]:
        """Return the prefixes of other tables under this table's prefix. Their streams belong to
        those tables."""
        return [
            prefix
            for other in await self.all()
            if other.uid != table.uid and not other.transform and not table.transform
            for prefix in other.prefixes
            if prefix.startswith(tuple(table.prefixes))
        ]

    async def overlaps(self, table: Table) -> tuple[list[Table], list[Table]]:
        """Return the tables that take streams under this table's prefix, and those that it takes
        streams from."""
        others = [
            other
            for other in await self.all()
            if other.uid != table.uid and not other.transform and not table.transform
        ]
        inner = [
            each
            for each in others
            if any(prefix.startswith(tuple(table.prefixes)) for prefix in each.prefixes)
        ]
        outer = [
            each
            for each in others
            if any(prefix.startswith(tuple(each.prefixes)) for prefix in table.prefixes)
        ]
        return inner, outer

    async def names(self, table: Table, limit: int) -> list[str]:
        """Return the first canonical names of the streams that the table covers."""
        return [facts.name for facts in await self.covered(table, limit)]

    async def covered(self, table: Table, limit: int) -> list[Facts]:
        """Return the first streams that the table covers, by canonical name."""
        longer = await self._longer(table)
        found: dict[str, Facts] = {}
        for prefix in table.prefixes:
            listed = await self._service.list_streams(prefix, "", limit + len(longer))
            found |= {facts.name: facts for facts in listed}
        return [found[name] for name in sorted(found) if covers(name, table.prefixes, longer)][
            :limit
        ]

    async def commit(self, command: TableCommit | TableMove) -> Table:
        if isinstance(command, TableMove):
            _check_columns(command.columns)
            _checked_partitions(command.partitions, command.columns)
        reply = await self._service.call(META_GROUP, command)
        if reply.code == Code.NOT_FOUND:
            raise TableRefused(404, "TABLE_NOT_FOUND", "there is no such table")
        table = _table(reply.detail)
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
        return _table(reply.detail)

    async def retry(self, name: str) -> Table:
        """Put the ranges that are set aside into the table's next job."""
        service = self._service
        table = await self.find(name)
        async with self._planning.setdefault(table.uid, asyncio.Lock()):
            reply = await service.call(META_GROUP, TableRetry(table.uid, service.now_ms()))
        return _table(reply.detail)

    async def abandon(self, table: int, job: int, reason: str = "") -> Table:
        """Abandon a job, and note the reason if it failed."""
        service = self._service
        if reason:
            fault = TableFault(table, job, reason[:FAULT_CHARACTERS_MAX], service.now_ms())
            await service.call(META_GROUP, fault)
        reply = await service.call(META_GROUP, TableAbandon(table, job))
        if reply.code == Code.NOT_FOUND:
            raise TableRefused(404, "TABLE_NOT_FOUND", "there is no such table")
        return _table(reply.detail)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name) or name.endswith("__dlq"):
        raise TableRefused(
            400,
            "TABLE_NAME",
            f"'{name}' is not a valid table name: use at most 63 letters, digits and '_', "
            "with no digit first and no '__dlq' at the end",
        )


def _check_columns(columns: Sequence[tuple[str, str]]) -> None:
    wrong = [f"{field}:{kind}" for field, kind in columns if kind not in COLUMN_TYPES or not field]
    if wrong or len(columns) > COLUMNS_MAX:
        raise TableRefused(
            400,
            "TABLE_COLUMN",
            f"'{wrong[0]}' declares no column; expected a field and one of "
            f"{', '.join(COLUMN_TYPES)}"
            if wrong
            else f"{len(columns)} columns are declared; at most {COLUMNS_MAX} can be",
        )


def _checked_partitions(
    texts: Sequence[str], columns: Sequence[tuple[str, str]] | None
) -> list[str]:
    """Return the partitions in their canonical spelling. Without `columns` these are unknown. Raises
    TableRefused."""
    declared = None if columns is None else dict(columns)
    try:
        return [str(each) for each in parse_partitions(texts, declared)]
    except BadPartition as bad:
        raise TableRefused(400, "TABLE_PARTITION", str(bad)) from None


def _check_transform(transform: str, *, hold: bool, columns: Sequence[tuple[str, str]]) -> None:
    kind, colon, code = transform.partition(":")
    bad = ""
    if transform and not (colon and kind in ("sql", "python") and code.strip()):
        bad = "a transform is 'sql:' and a statement, or 'python:MODULE:FUNCTION'"
    elif kind == "python" and not PYTHON.fullmatch(code):
        bad = f"'{code}' names no function; expected MODULE:FUNCTION"
    elif len(transform) > TRANSFORM_CHARACTERS_MAX:
        bad = f"the transform has {len(transform)} characters; at most {TRANSFORM_CHARACTERS_MAX}"
    elif transform and (hold or columns):
        bad = "a derived table holds no records, and its transform decides its columns"
    if bad:
        raise TableRefused(400, "TABLE_TRANSFORM", bad)


def _not_found(name: str) -> TableRefused:
    return TableRefused(
        404,
        "TABLE_NOT_FOUND",
        f"there is no table '{name}'; create it: polynya table create {name} --prefix PREFIX",
    )


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
    return ClaimedRange(part.uid, part.name, part.content_type, part.encoding, slices, begin, end)


def shown_prefix(table: Table) -> str:
    """Return the table's prefix as its user spelled it."""
    return table.typed or spelled_name(table.prefix)


def _conflict(table: Table, asked: TableMake) -> str:
    """Return why a table cannot be created beside another one."""
    known = f"table '{table.name}' with the prefix '{shown_prefix(table)}' exists"
    if table.name != asked.name:
        return f"{known} and takes these streams; choose a longer or a shorter prefix"
    if table.prefixes == asked.prefixes:
        return f"{known} with other options; choose another name and prefix"
    return f"{known}; choose another name and prefix"


def _preempted() -> TableRefused:
    return TableRefused(409, "JOB_PREEMPTED", "another planner has taken over this job; retry")


def _leased(name: str) -> TableRefused:
    return TableRefused(
        409,
        "TABLE_LEASED",
        f"another worker syncs the table '{name}', or did so a moment ago; come back later",
    )


def _table(detail: object) -> Table:
    return _TABLE.decode(msgspec.msgpack.encode(detail))
