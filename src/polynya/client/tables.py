"""Operations on tables, SQL, and ranges of the object store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from polynya.client.calls import call, decoded
from polynya.client.messages import HttpRequest, HttpResponse, Operation, Retry
from polynya.client.values import JSON_TYPE

Shape = TypeVar("Shape")


class ResultColumn(msgspec.Struct, frozen=True):
    name: str
    type: str  # DuckDB's name


class SqlAnswer(msgspec.Struct, frozen=True):
    """The result of a query. `rows` are in column order; `truncated` means that more rows exist."""

    columns: list[ResultColumn]
    rows: list[list[Any]]
    truncated: bool = False
    seconds: float = 0.0
    tables: list[dict[str, Any]] = []  # the lag of each table that the query names

    @property
    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dictionaries by column name."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


class TableInfo(msgspec.Struct, frozen=True):
    """A table: its locations, its size, and its lag behind its streams."""

    name: str
    prefix: str
    job: int = 0
    rows: int = 0
    dead_rows: int = 0
    streams: int = 0
    records_behind: int | None = 0  # None: unknown now, of a derived table
    behind_seconds: float | None = 0.0  # None: of a derived table
    iceberg: str = ""  # URI of the current metadata; "" before the first job
    iceberg_dlq: str = ""
    delta: str = ""


class _Tables(msgspec.Struct):
    tables: list[TableInfo]


class _Table(msgspec.Struct):
    table: TableInfo


def query(sql: str, rows: int, retry: Retry, as_of: str = "") -> Operation[SqlAnswer]:
    """Run one SELECT over tables on the server, as of a time, a snapshot or a tag."""
    body = {"sql": sql, "rows": rows} | ({"as_of": as_of} if as_of else {})
    return (yield from _ask("POST", "/v1/sql", body, SqlAnswer, retry))


def listing(retry: Retry) -> Operation[list[TableInfo]]:
    found = yield from _ask("GET", "/v1/tables", None, _Tables, retry)
    return found.tables


def find(name: str, retry: Retry) -> Operation[TableInfo]:
    found = yield from _ask("GET", _path(name), None, _Table, retry)
    return found.table


def create(name: str, body: dict[str, Any], retry: Retry) -> Operation[TableInfo]:
    found = yield from _ask("PUT", _path(name), body, _Table, retry)
    return found.table


def create_body(
    prefix: str, *, hold: bool, columns: dict[str, str] | None, partitions: Sequence[str]
) -> dict[str, Any]:
    return (
        {"prefix": prefix}
        | ({"hold": True} if hold else {})
        | ({"columns": columns} if columns else {})
        | ({"partitions": list(partitions)} if partitions else {})
    )


def ranges(streams: list[dict[str, Any]], shape: type[Shape], retry: Retry) -> Operation[Shape]:
    """Write the streams' records in memory to the object store, and return where all of them
    lie."""
    body = {"streams": streams, "flush": True}
    return (yield from _ask("POST", "/v1/ranges", body, shape, retry))


def _ask(method: str, path: str, body: Any, shape: type[Shape], retry: Retry) -> Operation[Shape]:
    """Send an idempotent request and decode the response."""
    request = HttpRequest(
        method,
        path,
        {} if body is None else {"content-type": JSON_TYPE},
        b"" if body is None else msgspec.json.encode(body),
    )

    def take(answer: HttpResponse) -> Shape:
        return decoded(answer, shape, f"{method} {path}")

    return (yield from call(request, retry, f"{method} {path}", take, repeatable=True))


def _path(name: str) -> str:
    return f"/v1/tables/{quote(name, safe='')}"
