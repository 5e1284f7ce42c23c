"""The definitions of tables: create, list, alter and drop them. The state is in the `tables` of the
machines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.names import canonical_prefixes, spelled_name
from polynya.base.partitions import BadPartition, parse_partitions
from polynya.base.payloads import RECORD, BadPayload, fields_of, parse_payload, with_payload
from polynya.local.api import StreamInfo
from polynya.routing import messages
from polynya.service.node_service import NodeService
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.tables.commands import (
    ForgetTable,
    TableAlter,
    TableDrop,
    TableMake,
    WatchStreams,
)
from polynya.stream.features.tables.rules import Lag
from polynya.stream.features.tables.state import Table
from polynya.stream.features.tables.watches import covers
from polynya.stream.replies import Code

COLUMN_TYPES = ("long", "double", "decimal", "string", "timestamptz", "date", "boolean")
COLUMNS_MAX = 500  # declared columns of a table, as many as it can have
TRANSFORM_CHARACTERS_MAX = 64 << 10  # it is state of the meta group
PYTHON = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_TABLE: msgspec.msgpack.Decoder[Table] = msgspec.msgpack.Decoder(Table)


class TableRefused(Exception):
    """An invalid table request: `status` is the HTTP status, `code` a documented error code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Tables:
    """The tables as one core sees them; any core can serve them."""

    def __init__(self, service: NodeService) -> None:
        self._service = service

    async def create(
        self,
        name: str,
        prefix: str,
        *,
        hold: bool = False,
        columns: Sequence[tuple[str, str]] = (),
        partitions: Sequence[str] = (),
        transform: str = "",
        payload: str = "",
    ) -> tuple[Table, bool]:
        """Create a table, with `transform` a derived one. Return it, and True if it is new."""
        _check_name(name)
        check_columns(columns)
        columns = with_payload(columns, checked_payload(payload))
        _check_transform(transform, hold=hold, columns=columns)
        parts = checked_partitions(partitions, None if transform else columns)
        service = self._service
        try:
            prefixes = canonical_prefixes(prefix)
        except ValueError as error:
            raise TableRefused(400, "TABLE_PREFIX", str(error)) from None
        now_ms = service.now_ms()
        command = TableMake(name, prefixes, prefix, hold, list(columns), now_ms, parts, transform)
        reply = await service.call(META_GROUP, command)
        table = table_of(reply.detail)
        if reply.code == Code.EXISTS_DIFFERENT:
            raise TableRefused(409, "TABLE_EXISTS", _conflict(table, command))
        if not transform:
            await self.watch(table, range(1, service.groups + 1))
        return table, reply.code == Code.CREATED

    async def watch(self, table: Table, groups: Iterable[int]) -> None:
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
        payload: str | None = None,
    ) -> Table:
        """Rename a table, set whether it holds records, declare more columns, or change its payload
        ("": none). A declared type stays declared."""
        table, service = await self.find(name), self._service
        _check_name(new_name or name)
        _check_transform(table.transform, hold=bool(hold), columns=columns)
        held, declared = table.hold, dict(fields_of(table.columns))
        before = dict(table.columns).get(RECORD, "")
        for field, kind in columns:
            if declared.setdefault(field, kind) != kind:
                raise TableRefused(
                    409,
                    "TABLE_COLUMN",
                    f"'{field}' is declared as {declared[field]}, and a declared type never "
                    "changes; rebuild the table, or declare another field",
                )
        check_columns(list(declared.items()))
        after = before if payload is None else checked_payload(payload)
        _check_transform(table.transform, hold=False, columns=with_payload((), after))
        command = TableAlter(
            table.uid,
            new_name or name,
            held if hold is None else hold,
            with_payload(list(declared.items()), after),
            service.now_ms(),
        )
        reply = await service.call(META_GROUP, command)
        if reply.code == Code.NOT_FOUND:
            raise _not_found(name)
        if reply.code == Code.EXISTS_DIFFERENT:
            raise TableRefused(
                409, "TABLE_EXISTS", f"a table '{new_name}' exists; choose another name"
            )
        altered = table_of(reply.detail)
        if altered.hold != held:
            await self.watch(altered, range(1, service.groups + 1))
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
        for table in list(self._service.local.here(META_GROUP).meta.tables.values()):
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
        for lag in await self.lags(table):
            total.streams += lag.streams
            total.records += lag.records
            total.skipped += lag.skipped
            total.lost += lag.lost
            if lag.since_ms:
                total.since_ms = min(total.since_ms or lag.since_ms, lag.since_ms)
        return total

    async def lags(self, table: Table) -> list[Lag]:
        """Return the lag of the table in each group."""
        return await self._service.ask_lags(
            messages.LagQuery(table.uid, table.prefix, await self.longer(table), table.committed)
        )

    async def longer(self, table: Table) -> list[str]:
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
        return [info.name for info in await self.covered(table, limit)]

    async def covered(self, table: Table, limit: int) -> list[StreamInfo]:
        """Return the first streams that the table covers, by canonical name."""
        longer = await self.longer(table)
        found: dict[str, StreamInfo] = {}
        for prefix in table.prefixes:
            listed = await self._service.list_streams(prefix, "", limit + len(longer))
            found |= {info.name: info for info in listed}
        return [found[name] for name in sorted(found) if covers(name, table.prefixes, longer)][
            :limit
        ]


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name) or name.endswith("__dlq"):
        raise TableRefused(
            400,
            "TABLE_NAME",
            f"'{name}' is not a valid table name: use at most 63 letters, digits and '_', "
            "with no digit first and no '__dlq' at the end",
        )


def check_columns(columns: Sequence[tuple[str, str]]) -> None:
    """Raise TableRefused for an unknown type, or for a path with an empty field, like `a..b`."""
    wrong = [
        f"{field}:{kind}"
        for field, kind in columns
        if kind not in COLUMN_TYPES or not all(field.split("."))
    ]
    if wrong or len(columns) > COLUMNS_MAX:
        raise TableRefused(
            400,
            "TABLE_COLUMN",
            f"'{wrong[0]}' declares no column; expected a field and one of "
            f"{', '.join(COLUMN_TYPES)}"
            if wrong
            else f"{len(columns)} columns are declared; at most {COLUMNS_MAX} can be",
        )


def checked_payload(text: str) -> str:
    """Return a payload in its canonical spelling; "" for none. Raises TableRefused."""
    try:
        return str(parse_payload(text)) if text else ""
    except BadPayload as bad:
        raise TableRefused(400, "TABLE_PAYLOAD", str(bad)) from None


def checked_partitions(
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


def table_of(detail: object) -> Table:
    return _TABLE.decode(msgspec.msgpack.encode(detail))
