"""Routes of the runs of a table: `POST /v1/tables/NAME/sync|rebuild|replay` starts a process on this node,
`GET …/runs` lists them, `POST …/cancel` stops one.

The JSON is specified in docs/formats/tables.md, section "Routes".
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.front.http.api.tables import Answer, TableRoutes, check_covers
from polynya.front.http.protocol.extension import Request, read_json
from polynya.service.tables import Tables, shown_prefix
from polynya.stream.features.tables.state import Table

VERBS = ("sync", "rebuild", "replay")
QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"


class Wanted(msgspec.Struct, frozen=True):
    """A request for a run. `arguments` are those of its command beside the table."""

    verb: str
    table: str
    uid: int
    arguments: tuple[str, ...]
    caller: str


class Run(msgspec.Struct, kw_only=True):
    """A run of a table. `message` is its last line, in the end its outcome; `log` its last lines."""

    id: str
    verb: str
    table: str
    uid: int
    caller: str
    asked_ms: int
    started_ms: int = 0
    ended_ms: int = 0
    state: str = QUEUED
    message: str = ""
    log: list[str] = []

    @property
    def has_ended(self) -> bool:
        return self.state not in (QUEUED, RUNNING)


class Runs(Protocol):
    """The runs of this node."""

    async def start(self, wanted: Wanted) -> Run:
        """Queue a run, or return the one that waits to do the same. Raises `Failure`."""
        ...

    async def found(self, uid: int) -> list[Run]:
        """Return the runs of a table that are kept, the newest first."""
        ...

    async def cancel(self, uid: int, run: str) -> Run:
        """Stop a run of a table. Raises `Failure`."""
        ...


class _Rebuild(msgspec.Struct, forbid_unknown_fields=True):
    columns: Annotated[dict[str, str], msgspec.Meta(max_length=1000)] = {}
    partitions: list[str] | None = None  # None: those that it has


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Cancel(msgspec.Struct, forbid_unknown_fields=True):
    run: str


class TableRunRoutes:
    """The handlers of runs; other requests on tables go to `others`."""

    def __init__(self, tables: Tables, runs: Runs, others: TableRoutes) -> None:
        self._tables = tables
        self._runs = runs
        self._others = others

    async def user(self, request: Request) -> Answer:
        """Handle a request below `/v1/tables`. Raises `TableRefused`, `Failure`."""
        if len(request.segments) != 2:
            return await self._others.user(request)
        name, part = request.segments
        if (request.method, part) == ("GET", "runs"):
            return await self._list(name, request.principal)
        if request.method != "POST" or part not in (*VERBS, "cancel"):
            return await self._others.user(request)
        table = await self._tables.find(name)
        check_covers(request.principal, Verb.TABLE, table.prefixes)
        if part == "cancel":
            run = await self._runs.cancel(table.uid, read_json(request.body, _Cancel).run)
            return 200, {"run": shown(run)}
        arguments = await self._arguments(part, table, request.body)
        caller = "anybody" if request.principal is None else request.principal.name
        wanted = Wanted(part, table.name, table.uid, arguments, caller)
        return 202, {"run": shown(await self._runs.start(wanted))}

    async def _list(self, name: str, principal: Principal | None) -> Answer:
        table = await self._tables.find(name)
        check_covers(principal, Verb.READ, table.prefixes)
        runs = await self._runs.found(table.uid)
        may_run = principal is None or all(
            principal.covers(Verb.TABLE, prefix) for prefix in table.prefixes
        )
        return 200, {"runs": [shown(run, log=may_run) for run in runs]}

    async def _arguments(self, verb: str, table: Table, body: bytes) -> tuple[str, ...]:
        """Return the options of the command. Raises `TableRefused` for columns and partitions that
        a table cannot have."""
        if verb != "rebuild":
            read_json(body or b"{}", _Nothing)
            return ()
        wanted = read_json(body or b"{}", _Rebuild)
        if not table.transform and (wanted.columns or wanted.partitions):
            known = {field: kind for field, kind in table.columns if field}
            await self._tables.tried(
                table.name,
                prefix=shown_prefix(table),
                columns=list((known | wanted.columns).items()),
                partitions=table.partitions if wanted.partitions is None else wanted.partitions,
                payload=None,
            )
        columns = (f"--column={field}:{kind}" for field, kind in wanted.columns.items())
        if wanted.partitions == []:
            return *columns, "--no-partition"
        return *columns, *(f"--partition={each}" for each in wanted.partitions or ())


def shown(run: Run, *, log: bool = True) -> dict[str, Any]:
    """Return a run as users see it. The log may name records of other streams' objects: it is shown
    to those who may start a run."""
    fields: dict[str, Any] = msgspec.to_builtins(run)
    del fields["uid"]
    return fields if log else {**fields, "log": []}
