"""The definitions of tables: create, list, alter and drop them. The state is in the `tables` of the
machines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence

import msgspec

from polynya.base.column_types import EXPECTED, BadType, canonical_type
from polynya.base.errors import PolynyaError
from polynya.base.names import canonical_prefixes, spelled_name, unnamed_folders
from polynya.base.partitions import BadPartition, parse_partitions
from polynya.base.payloads import RECORD, BadPayload, fields_of, parse_payload, with_payload
from polynya.base.transforms import BadTransform, checked, parse_transform, source_table
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

COLUMNS_MAX = 500  # declared columns of a table, as many as it can have
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
        service = self._service
        columns = with_payload(checked_columns(columns), checked_payload(payload))
        _check_transform(transform, hold=hold, columns=columns)
        made = defined(name, prefix, None if transform else columns, partitions)
        now_ms, parts = service.now_ms(), made.partitions
        command = TableMake(
            name, made.prefixes, prefix, hold, list(columns), now_ms, parts, transform
        )
        reply = await service.call(META_GROUP, command)
        if reply.code == Code.NOT_FOUND:
            message = f"the table that '{name}' reads was dropped meanwhile; name another table"
            raise TableRefused(404, "TABLE_NOT_FOUND", message)
        table = table_of(reply.detail)
        if reply.code == Code.EXISTS_DIFFERENT:
            raise TableRefused(409, "TABLE_EXISTS", _conflict(table, command))
        if not transform:
            await self.watch(table, range(1, service.groups + 1))
        return table, reply.code == Code.CREATED

    async def tried(
        self,
        name: str,
        *,
        prefix: str | None,
        columns: Sequence[tuple[str, str]],
        partitions: Sequence[str],
        payload: str | None,
    ) -> Table:
        """Return a table as it would be, and make nothing: with `prefix` a new one, else the
        table of this name with more declared columns or another payload."""
        columns = checked_columns(columns)
        if prefix is not None:
            declared = with_payload(columns, checked_payload(payload or ""))
            return defined(name, prefix, declared, partitions)
        table = await self.find(name)
        _check_transform(table.transform, hold=False, columns=columns)
        before = dict(table.columns).get(RECORD, "")
        after = before if payload is None else checked_payload(payload)
        types = with_payload(_with_declared(table, columns), after)
        return msgspec.structs.replace(table, columns=types)

    async def watch(self, table: Table, groups: Iterable[int]) -> None:
        """Tell groups of the table. One that cannot take it now is told by the next plan."""
        service = self._service
        command = WatchStreams(table.uid, table.prefixes, table.hold, service.now_ms())
        results = await asyncio.gather(
            *(service.call(group, command) for group in groups), return_exceptions=True
        )
        for fault in results:
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
        held, declared = table.hold, _with_declared(table, checked_columns(columns))
        before = dict(table.columns).get(RECORD, "")
        after = before if payload is None else checked_payload(payload)
        _check_transform(table.transform, hold=False, columns=with_payload((), after))
        command = TableAlter(
            table.uid,
            new_name or name,
            held if hold is None else hold,
            with_payload(declared, after),
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
        if reply.code == Code.REFUSED:
            derived: list[str] = reply.detail
            raise TableRefused(
                409,
                "TABLE_HAS_DERIVED",
                f"{', '.join(derived)} {'are' if len(derived) > 1 else 'is'} derived from "
                f"'{name}': drop {'those' if len(derived) > 1 else 'that'} first",
            )
        await self._forget(table.uid)
        return table

    async def finish_drops(self) -> None:
        """Tell groups again of the dropped tables, until all have forgotten them. Call this on the
        core that leads the meta group."""
        for table in list(self._service.local.here(META_GROUP).meta.tables.values()):
            if table.dropped_ms and not table.forgotten:
                await self._forget(table.uid)

    async def _forget(self, uid: int) -> None:
        """Tell all groups that a table is dropped. Groups that cannot take it now are told
        later."""
        service, command = self._service, ForgetTable(uid)
        groups = range(1, service.groups + 1)
        results = await asyncio.gather(
            *(service.call(group, command) for group in groups), return_exceptions=True
        )
        faults = [fault for fault in results if isinstance(fault, BaseException)]
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

    async def over(self, name: str, source: str, transform: str) -> tuple[str, str]:
        """Return the prefix and the transform of a table `name` whose input are rows of the table
        `source`."""
        if name == source:
            raise TableRefused(
                400,
                "TABLE_TRANSFORM",
                f"'{name}' cannot be derived from itself; name another table",
            )
        table = await self.find(source)
        try:
            made = parse_transform(transform)
            whole = changes_rows(table)
            made = msgspec.structs.replace(made, table=str(table.uid), whole=whole)
            return shown_prefix(table), str(checked(made))
        except BadTransform as bad:
            raise TableRefused(400, "TABLE_TRANSFORM", str(bad)) from None

    async def source_of(self, table: Table) -> Table | None:
        """Return the table whose rows are the input of a table, None if there is none."""
        uid = source_table(table.transform)
        found = [each for each in await self.all() if each.uid == uid] if uid else []
        return found[0] if found else None

    async def derived_from(self, table: Table) -> list[Table]:
        """Return the tables whose input are rows of a table."""
        return [each for each in await self.all() if source_table(each.transform) == table.uid]

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
        """Return the prefixes whose streams this table does not take: those of other tables under
        its own, and the product's own ones that it does not name."""
        return unnamed_folders(table.prefixes) + [
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


def defined(
    name: str,
    prefix: str,
    columns: Sequence[tuple[str, str]] | None,
    partitions: Sequence[str],
) -> Table:
    """Return a table with this definition, which no group knows yet. Without `columns` these are
    unknown. Raises TableRefused."""
    _check_name(name)
    parts = checked_partitions(partitions, columns)
    try:
        first, *others = canonical_prefixes(prefix)
    except ValueError as error:
        raise TableRefused(400, "TABLE_PREFIX", str(error)) from None
    made = Table(0, name, first, 0)
    made.others, made.typed = others, prefix
    made.columns, made.partitions = list(columns or ()), parts
    return made


def _with_declared(table: Table, columns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the declared types of a table with more of them. Raises TableRefused."""
    declared = dict(fields_of(table.columns))
    for field, kind in columns:
        if declared.setdefault(field, kind) != kind:
            raise TableRefused(
                409,
                "TABLE_COLUMN",
                f"'{field}' is declared as {declared[field]}, and a declared type never "
                "changes; rebuild the table, or declare another field",
            )
    _check_count(len(declared))
    return list(declared.items())


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name) or name.endswith("__dlq"):
        raise TableRefused(
            400,
            "TABLE_NAME",
            f"'{name}' is not a valid table name: use at most 63 letters, digits and '_', "
            "with no digit first and no '__dlq' at the end",
        )


def checked_columns(columns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return declared columns, their types in one spelling. Raises TableRefused for an unknown
    type, or for a path with an empty field, like `a..b`."""
    found = []
    for field, kind in columns:
        try:
            found.append((field, canonical_type(kind)))
        except BadType as bad:
            raise _bad_column(field, kind, str(bad)) from None
        if not all(field.split(".")):
            raise _bad_column(field, kind, f"expected a field and one of {EXPECTED}")
    _check_count(len(found))
    return found


def _bad_column(field: str, kind: str, why: str) -> TableRefused:
    return TableRefused(400, "TABLE_COLUMN", f"'{field}:{kind}' declares no column: {why}")


def _check_count(count: int) -> None:
    if count > COLUMNS_MAX:
        raise TableRefused(
            400, "TABLE_COLUMN", f"{count} columns are declared; at most {COLUMNS_MAX} can be"
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
    """Return the partitions in their canonical spelling. Without `columns` these are unknown.
    Raises TableRefused."""
    declared = None if columns is None else dict(columns)
    try:
        return [str(each) for each in parse_partitions(texts, declared)]
    except BadPartition as bad:
        raise TableRefused(400, "TABLE_PARTITION", str(bad)) from None


def _check_transform(transform: str, *, hold: bool, columns: Sequence[tuple[str, str]]) -> None:
    if not transform:
        return
    try:
        parse_transform(transform)
    except BadTransform as bad:
        raise TableRefused(400, "TABLE_TRANSFORM", str(bad)) from None
    if hold or columns:
        bad_options = "a derived table holds no records, and its transform decides its columns"
        raise TableRefused(400, "TABLE_TRANSFORM", bad_options)


def changes_rows(table: Table) -> bool:
    """Report whether jobs of a table change its rows, as those of a table with a key do."""
    if not table.transform:
        return False
    made = parse_transform(table.transform)
    return bool(made.key) or made.whole


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
