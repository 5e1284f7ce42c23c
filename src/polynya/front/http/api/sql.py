"""`POST /v1/sql`: one SELECT over the tables, `{"sql", "rows", "explain", "as_of"}` in, `{"columns", "rows",
"truncated", "seconds", "tables"}` out.

The route validates the request and adds the lag of the tables behind their streams. An `Answerer`
runs the query.
"""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, Protocol

import msgspec

from polynya.base.limits import SQL_BODY_BYTES_MAX, SQL_ROWS_DEFAULT, SQL_ROWS_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.front.http.api.tables import TableRoutes
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response, json_response

PATH = "/v1/sql"
AS_OF_CHARACTERS_MAX = 64


class Answerer(Protocol):
    """The executor of queries, in bounded time and memory, outside the core's loop."""

    async def ask(self, query: SqlQuery, tables: list[dict[str, Any]]) -> dict[str, Any]:
        """Run a query. `tables` holds the references that the caller may read, as `GET /v1/tables`
        lists them. The result has `columns`, `rows` and `truncated`. Raises `Failure`."""
        ...


class SqlQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A query, or a request for its plan (`explain`). The tables are as they were `as_of` a time, a
    snapshot or a tag."""

    sql: str
    rows: int = SQL_ROWS_DEFAULT
    explain: bool = False
    as_of: Annotated[str, msgspec.Meta(max_length=AS_OF_CHARACTERS_MAX)] = ""


class SqlRoute:
    """The handler of `PATH`."""

    def __init__(self, tables: TableRoutes, answerer: Answerer) -> None:
        self._tables = tables
        self._answerer = answerer

    async def handle(self, request: Request) -> Response:
        if request.method != "POST":
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "POST"),))
        asked = _read(request.body)
        begun = time.perf_counter()
        principal = request.principal
        answer = await self._answerer.ask(asked, await self._tables.references(principal))
        words = set(re.findall(r"\w+", asked.sql.casefold()))
        answer["seconds"] = round(time.perf_counter() - begun, 3)

        def named(name: str) -> bool:
            return not words.isdisjoint((name.casefold(), f"{name.casefold()}__dlq"))

        answer["tables"] = await self._tables.freshness(principal, named)
        return json_response(answer)


def _read(body: bytes) -> SqlQuery:
    if len(body) > SQL_BODY_BYTES_MAX:
        raise Failure("BODY_TOO_LARGE", f"a query has at most {SQL_BODY_BYTES_MAX} bytes")
    try:
        asked = msgspec.json.decode(body, type=SqlQuery)
    except UNREADABLE as error:
        raise Failure(
            "INVALID_REQUEST",
            f'the body is {{"sql": "select …", "rows": {SQL_ROWS_DEFAULT}}}: {error}',
        ) from None
    if not 1 <= asked.rows <= SQL_ROWS_MAX:
        raise Failure("INVALID_REQUEST", f"rows must be a whole number from 1 to {SQL_ROWS_MAX}")
    return asked
