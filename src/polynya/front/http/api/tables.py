"""Routes of tables: for users (`/v1/tables…`, base port) and drivers
(`/v1/admin/tables/NAME/plan|commit|abandon`, admin port).

The JSON is specified in docs/formats/tables.md, section "Routes".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.base.limits import TABLE_REST_MS_MAX, WORKER_NAME_CHARACTERS_MAX
from polynya.base.names import BadName, canonical_name, canonical_prefixes, spelled_name
from polynya.front.http.api.derived_lag import DerivedLag
from polynya.front.http.api.schemas import history_of, snapshot_in
from polynya.front.http.api.table_views import (
    ReadObject,
    TableViews,
    failure_of,
    kept_of,
    overlap_of,
)
from polynya.front.http.protocol.extension import Request, read_json
from polynya.service.table_jobs import TableJobs
from polynya.service.table_snapshots import check_kept
from polynya.service.tables import TableRefused
from polynya.stream.features.tables.commands import TableCommit, TableMove, TableReplace
from polynya.stream.features.tables.snapshots import Kept, Tag
from polynya.stream.features.tables.state import Table
from polynya.wire.tables import AbandonRequest, CommitRequest, FailRequest, Merging, StoreRef


class _Alter(msgspec.Struct, forbid_unknown_fields=True):
    name: str | None = None
    hold: bool | None = None
    columns: dict[str, str] = {}
    payload: str | None = None
    keep_snapshots: int | None = None
    keep_ms: int | None = None


_Worker = Annotated[str, msgspec.Meta(max_length=WORKER_NAME_CHARACTERS_MAX)]


class _Plan(msgspec.Struct):
    merge: bool = False
    worker: _Worker = ""


class _Lease(msgspec.Struct):
    worker: _Worker
    rest_ms: Annotated[int, msgspec.Meta(ge=0, le=TABLE_REST_MS_MAX)] | None = None


class _Create(msgspec.Struct, forbid_unknown_fields=True):
    prefix: str
    hold: bool = False
    columns: dict[str, str] = {}
    partitions: list[str] = []
    payload: str = ""
    keep_snapshots: int | None = None
    keep_ms: int | None = None


class _Tag(msgspec.Struct, forbid_unknown_fields=True):
    snapshot: str = ""  # "": the current one


class _Check(msgspec.Struct, forbid_unknown_fields=True):
    prefix: str | None = None  # of a table that there is not yet
    columns: dict[str, str] = {}
    partitions: list[str] = []
    payload: str | None = None


class _Derive(msgspec.Struct, forbid_unknown_fields=True):
    transform: str
    prefix: str | None = None  # of the streams whose records are the input …
    table: str = ""  # … or the table whose rows are
    partitions: list[str] = []


CHECKED_STREAMS_MAX = 256  # streams that a dry run reads
NAMES_SHOWN = 5  # streams that the answer to a creation names
_USER_ROUTES = (
    "tables know GET /v1/tables, GET, PUT and DELETE /v1/tables/NAME, GET /v1/tables/NAME/schema, "
    "history, failures and runs, POST /v1/tables/NAME/alter, check, retry, sync, rebuild, replay and "
    "cancel, and PUT and DELETE /v1/tables/NAME/tags/TAG"
)
_PARTS = (("GET", "schema"), ("GET", "history"), ("GET", "failures"), ("POST", "retry"))
Answer = tuple[int, Any]  # status and JSON value (None: no body)


class TableRoutes:
    """The table handlers, independent of HTTP. They return (status, JSON value), or raise
    `TableRefused`, or `Failure` for an invalid body."""

    def __init__(
        self,
        jobs: TableJobs,
        store: StoreRef,
        now_ms: Any,
        read_object: ReadObject | None = None,
        merging: Merging | None = None,
    ) -> None:
        """Create the handlers. `read_object` reads an object of the store by its key; without it,
        schemas are unavailable. `merging` tells drivers which files to merge."""
        self._jobs = jobs
        self._tables = jobs.tables
        self._store = store
        self._now_ms = now_ms
        self._snapshots = jobs.snapshots
        self._derived = DerivedLag(jobs.tables, read_object)
        self._views = TableViews(jobs, self._derived, store, now_ms, read_object, merging)

    async def user(self, request: Request) -> Answer:
        """Handle `GET /v1/tables`, `GET|PUT|DELETE /v1/tables/NAME`, and the parts of a table;
        `segments` are those after `/v1/tables`. A caller sees the tables whose streams it may read."""
        method, segments, principal = request.method, request.segments, request.principal
        if not segments and method == "GET":
            return 200, {
                "tables": [
                    await self._views.described(table) for table in await self._visible(principal)
                ]
            }
        if len(segments) == 1 and method == "GET":
            table = await self._tables.find(segments[0])
            check_covers(principal, Verb.READ, table.prefixes)
            return 200, {"table": await self._views.described(table)}
        if len(segments) == 1 and method == "PUT":
            return await self._create(segments[0], read_json(request.body, _Create), principal)
        if len(segments) == 1 and method == "DELETE":
            check_covers(principal, Verb.TABLE, (await self._tables.find(segments[0])).prefixes)
            return 200, {"table": self._views.reference(await self._tables.drop(segments[0]))}
        if len(segments) == 2 and (method, segments[1]) == ("POST", "alter"):
            return await self._alter(segments[0], read_json(request.body, _Alter), principal)
        if len(segments) == 2 and (method, segments[1]) == ("POST", "check"):
            return await self._check(segments[0], read_json(request.body, _Check), principal)
        if len(segments) == 3 and segments[1] == "tags" and method in ("PUT", "DELETE"):
            return await self._tag(method, segments[0], segments[2], request)
        if len(segments) == 2:
            return await self._part(method, segments[0], segments[1], principal)
        raise TableRefused(405, "METHOD_NOT_ALLOWED", _USER_ROUTES)

    async def _part(self, method: str, name: str, part: str, principal: Principal | None) -> Answer:
        if (method, part) not in _PARTS:
            raise TableRefused(405, "METHOD_NOT_ALLOWED", _USER_ROUTES)
        table = await self._tables.find(name)
        check_covers(principal, Verb.TABLE if part == "retry" else Verb.READ, table.prefixes)
        if part == "schema":
            return 200, {"columns": await self._views.columns(table)}
        if part == "history":
            metadata = await self._views.metadata(table)
            kept = await self._snapshots.of(table)
            return 200, {"jobs": [] if metadata is None else history_of(metadata, kept.tags)}
        if part == "failures":
            return 200, {"failures": [failure_of(each) for each in table.failures]}
        retried = sum(each.aside for each in table.failures)
        return 200, {
            "table": await self._views.described(await self._jobs.retry(name)),
            "ranges": retried,
        }

    async def _create(self, name: str, wanted: _Create, principal: Principal | None) -> Answer:
        try:
            prefixes = canonical_prefixes(wanted.prefix)
        except BadName as bad:
            raise TableRefused(400, "TABLE_PREFIX", str(bad)) from None
        check_covers(principal, Verb.TABLE, prefixes)
        check_kept(wanted.keep_snapshots, wanted.keep_ms)
        columns = list(wanted.columns.items())
        table, new = await self._tables.create(
            name,
            wanted.prefix,
            hold=wanted.hold,
            columns=columns,
            partitions=wanted.partitions,
            payload=wanted.payload,
        )
        await self._keep(table, wanted)
        inner, outer = await self._tables.overlaps(table)
        return 201 if new else 200, {
            "table": await self._views.described(table),
            "covered": [
                spelled_name(each) for each in await self._tables.names(table, NAMES_SHOWN)
            ],
            "taken_by": [overlap_of(other) for other in inner if readable(other, principal)],
            "taken_from": [overlap_of(other) for other in outer if readable(other, principal)],
        }

    async def _keep(self, table: Table, wanted: _Create | _Alter) -> None:
        if wanted.keep_snapshots is not None or wanted.keep_ms is not None:
            await self._snapshots.keep(table, wanted.keep_snapshots, wanted.keep_ms)

    async def _tag(self, method: str, name: str, tag: str, request: Request) -> Answer:
        """Name a snapshot, or remove a name."""
        table = await self._tables.find(name)
        check_covers(request.principal, Verb.TABLE, table.prefixes)
        if method == "DELETE":
            kept = await self._snapshots.untag(table, tag)
            return 200, {"tags": msgspec.to_builtins(kept.tags)}
        wanted = read_json(request.body, _Tag) if request.body else _Tag()
        metadata = await self._views.metadata(table)
        found = None if metadata is None else snapshot_in(metadata, wanted.snapshot)
        if found is None:
            raise TableRefused(
                404,
                "TABLE_TAG",
                f"table '{name}' has no snapshot {wanted.snapshot or 'yet'}: 'polynya table history "
                f"{name}' lists those that are kept",
            )
        made = Tag(str(found.snapshot_id), found.job, found.timestamp_ms, table.main, table.dlq)
        kept = await self._snapshots.tag(table, tag, made)
        return 200, {"tags": msgspec.to_builtins(kept.tags)}

    async def _alter(self, name: str, wanted: _Alter, principal: Principal | None) -> Answer:
        check_covers(principal, Verb.TABLE, (await self._tables.find(name)).prefixes)
        check_kept(wanted.keep_snapshots, wanted.keep_ms)
        table = await self._tables.alter(
            name,
            new_name=wanted.name,
            hold=wanted.hold,
            columns=list(wanted.columns.items()),
            payload=wanted.payload,
        )
        await self._keep(table, wanted)
        return 200, {"table": await self._views.described(table)}

    async def _check(self, name: str, wanted: _Check, principal: Principal | None) -> Answer:
        """Answer what a dry run needs: the table as it would be, and the streams that it covers."""
        table = await self._tables.tried(
            name,
            prefix=wanted.prefix,
            columns=list(wanted.columns.items()),
            partitions=wanted.partitions,
            payload=wanted.payload,
        )
        check_covers(principal, Verb.READ, table.prefixes)
        names = await self._tables.names(table, CHECKED_STREAMS_MAX + 1)
        return 200, {
            "table": self._views.reference(table),
            "store": self._store,
            "streams": [spelled_name(each) for each in names[:CHECKED_STREAMS_MAX]],
            "more": len(names) > CHECKED_STREAMS_MAX,
        }

    async def finish_drops(self) -> None:
        """Finish what drops left to do. Call this on the core that leads the meta group."""
        await self._tables.finish_drops()

    async def references(self, principal: Principal | None) -> list[dict[str, Any]]:
        """Return references to all tables that the caller may read."""
        kept = await self._snapshots.all()
        return [
            {
                **self._views.reference(table),
                **kept_of(kept.get(table.uid, Kept())),
                "store": self._store,
            }
            for table in await self._visible(principal)
        ]

    async def freshness(
        self, principal: Principal | None, wanted: Callable[[str], bool]
    ) -> list[dict[str, Any]]:
        """Return the lag of the wanted tables behind their streams."""
        shown = ("name", "records_behind", "behind_seconds", "records_aside")
        described = [
            await self._views.described(table)
            for table in await self._visible(principal)
            if wanted(table.name)
        ]
        return [{key: table[key] for key in shown} for table in described]

    async def described(self) -> list[dict[str, Any]]:
        """Return all tables as users see them."""
        return [await self._views.described(table) for table in await self._tables.all()]

    async def _visible(self, principal: Principal | None) -> list[Table]:
        return [table for table in await self._tables.all() if readable(table, principal)]

    async def admin(self, request: Request) -> Answer:
        """Handle `POST /v1/admin/tables/NAME/plan|lease|commit|fail|abandon|check|derive`; `segments` are those
        after `/v1/admin/tables`.

        A driver runs the code of a derived table, so only who may use the admin port creates one."""
        method, segments, body = request.method, request.segments, request.body
        if len(segments) != 2 or method != "POST":
            raise TableRefused(
                404,
                "NO_ROUTE",
                "the driver routes are POST /v1/admin/tables/NAME/plan, lease, commit, fail, abandon, "
                "check and derive",
            )
        name, verb = segments
        if verb == "plan":
            wanted = read_json(body, _Plan) if body else _Plan()
            if not wanted.merge and await self._has_derived_all(name):
                return 204, None
            job = await self._jobs.plan(name, merge=wanted.merge, worker=wanted.worker)
            return (204, None) if job is None else (200, await self._views.plan(job))
        if verb == "lease":
            return await self._lease(name, read_json(body, _Lease))
        if verb == "commit":
            return await self._commit(read_json(body, CommitRequest))
        if verb == "fail":
            failed = read_json(body, FailRequest)
            rows = [
                (
                    each.uid,
                    _canonical(each.stream),
                    each.record,
                    each.record + each.records,
                    each.pack,
                    each.offset,
                    each.reason[:500],
                )
                for each in failed.ranges
            ]
            return 200, {
                "table": self._views.reference(
                    await self._jobs.fail(_uid(failed.uid), failed.job, rows)
                )
            }
        if verb == "check":
            return await self._check(name, read_json(body, _Check), request.principal)
        if verb == "derive":
            return await self._derive(name, read_json(body, _Derive))
        if verb == "abandon":
            given_up = read_json(body, AbandonRequest)
            reason = given_up.reason if given_up.failed else ""
            table = await self._jobs.abandon(_uid(given_up.uid), given_up.job, reason)
            return (409 if table.committed >= given_up.job else 200), {
                "table": self._views.reference(table)
            }
        raise TableRefused(
            404,
            "NO_ROUTE",
            f"the driver routes are plan, lease, commit, fail, abandon, check and derive, not '{verb}'",
        )

    async def _has_derived_all(self, name: str) -> bool:
        """Report whether a derived table needs no job: none is open, and nothing is new."""
        table = await self._tables.find(name)
        return bool(table.transform) and not table.open and await self._derived.is_current(table)

    async def _lease(self, name: str, wanted: _Lease) -> Answer:
        """Extend a worker's lease, or with `rest_ms` release it."""
        if wanted.rest_ms is None:
            return 200, {"held": await self._jobs.extend_lease(name, wanted.worker)}
        await self._jobs.release_lease(name, wanted.worker, wanted.rest_ms)
        return 200, {"held": False}

    async def _derive(self, name: str, wanted: _Derive) -> Answer:
        if (wanted.prefix is None) == (not wanted.table):
            one = "a derived table reads the streams of a 'prefix', or a 'table': name one of them"
            raise TableRefused(400, "TABLE_TRANSFORM", one)
        prefix, transform = wanted.prefix or "", wanted.transform
        if wanted.table:
            prefix, transform = await self._tables.over(name, wanted.table, transform)
        table, new = await self._tables.create(
            name, prefix, partitions=wanted.partitions, transform=transform
        )
        names = await self._tables.names(table, NAMES_SHOWN)
        covered = [spelled_name(each) for each in names]
        return 201 if new else 200, {
            "table": await self._views.described(table),
            "covered": covered,
        }

    async def _commit(self, asked: CommitRequest) -> Answer:
        uid = _uid(asked.uid)
        try:
            command = _commit_of(uid, asked, self._now_ms())
            return 200, {"table": self._views.reference(await self._jobs.commit(command))}
        except TableRefused as refused:
            if refused.status != 409:
                raise
            found = [table for table in await self._tables.all() if table.uid == uid]
            return 409, {
                "error": {"code": refused.code, "message": str(refused)},
                "table": self._views.reference(found[0]),
            }


def _commit_of(
    uid: int, asked: CommitRequest, now_ms: int
) -> TableCommit | TableMove | TableReplace:
    pointers = (asked.base_iceberg, asked.base_iceberg_dlq, asked.iceberg, asked.iceberg_dlq)
    job = (uid, asked.job, asked.attempt, *pointers)
    if asked.move is None:
        kind = TableCommit if asked.rows >= 0 else TableReplace
        return kind(*job, asked.rows, asked.dead_rows, now_ms, asked.result)
    move = asked.move
    return TableMove(*job, asked.dead_rows, asked.result, move.columns, move.partitions, now_ms)


def check_covers(principal: Principal | None, verb: str, prefixes: Sequence[str]) -> None:
    """Check that the caller has the permission on all streams under these canonical prefixes.
    Raises `TableRefused`."""
    for prefix in prefixes:
        if principal is not None and not principal.covers(verb, prefix):
            raise TableRefused(
                403,
                "FORBIDDEN",
                f"the token does not allow '{verb}' on all streams under '{prefix}'",
            )


def readable(table: Table, principal: Principal | None) -> bool:
    """Report whether the caller may read all streams of the table."""
    return principal is None or all(
        principal.covers(Verb.READ, prefix) for prefix in table.prefixes
    )


def _canonical(name: str) -> str:
    try:
        return canonical_name(name)
    except BadName as bad:
        raise TableRefused(400, "INVALID_REQUEST", str(bad)) from None


def _uid(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) <= 20 and int(text) < 1 << 63):
        raise TableRefused(400, "INVALID_REQUEST", "uid must be a number in a string")
    return int(text)
