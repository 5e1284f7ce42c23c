"""The routes of a node beside streams: those below `/v1/admin/` and of tables, the console, health,
metrics and the identity of the node: what their handlers call, and who may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from polynya.admin.audit import AuditFile
from polynya.admin.backup_routes import Backups
from polynya.admin.health import Health, HealthResponse
from polynya.admin.node_figures import NodeFigures
from polynya.admin.store_checks import StoreChecks
from polynya.config.core_start import CoreStart
from polynya.console.assets import AssetResponse, Assets, to_folder
from polynya.front.http.api.cluster import ClusterActs
from polynya.front.http.api.cost import Costs
from polynya.front.http.api.iceberg_catalog import IcebergCatalog, S3Keys
from polynya.front.http.api.table_runs import TableRunRoutes
from polynya.front.http.api.table_views import ReadObject
from polynya.front.http.api.tables import TableRoutes
from polynya.front.http.api.tokens import TokenRoutes
from polynya.front.http.auth.authorization import RECENT
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import (
    ADMIN_BODY_BYTES_MAX,
    NO_STORE,
    Handler,
    Request,
    Response,
)
from polynya.observability import open_metrics
from polynya.service.table_jobs import TableJobs
from polynya.service.tables import TableRefused, Tables
from polynya.wire.tables import Merging, StoreRef

ADMIN = "/v1/admin/"
# paths below ADMIN that the base port also serves with access control
BASE_ADMIN_ACTS = ("flush", "store", "audit")
TOKEN_ACTS = ("tokens", "jwts")  # on the base port for the console, unless its acts are off
PREFIX = "/console/"
DEBUG_STATE = "/debug/state"
AUDIT_LINES_DEFAULT = 200
AUDIT_LINES_MAX = 5000


class Backends(NamedTuple):
    """The backends of the routes, beside streams."""

    tables: TableRoutes
    runs: TableRunRoutes
    mounts: Mapping[str, Handler]
    checks: StoreChecks
    backups: Backups
    cluster: ClusterActs
    hosts: Callable[[], Collection[str]]  # hosts of the cluster's nodes
    costs: Costs
    figures: NodeFigures


def table_routes(
    start: CoreStart, jobs: TableJobs, now_ms: Callable[[], int], read_object: ReadObject | None
) -> TableRoutes:
    """Return the routes of tables. `read_object` is None without an object store."""
    merging = Merging(start.config.lake.merge_files, start.config.lake.merge_size)
    return TableRoutes(jobs, store_ref(start), now_ms, read_object, merging)


def iceberg_catalog(
    start: CoreStart, tables: Tables, read_object: ReadObject | None
) -> IcebergCatalog:
    """Return the Iceberg REST catalog of all tables."""
    keys = start.config.catalog
    given = S3Keys(keys.s3_access_key_id, keys.s3_secret_access_key)
    return IcebergCatalog(tables, store_ref(start), given, read_object)


def table_handler(route: Callable[[Request], Awaitable[tuple[int, Any]]]) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            status, value = await route(request)
        except TableRefused as refused:
            raise Failure(refused.code, str(refused)) from None
        return Response(status, b"" if value is None else msgspec.json.encode(value))

    return handle


def admin_handler(
    behind: Backends,
    flush: Callable[[str], Awaitable[None]],
    tokens: TokenRoutes,
    audit: AuditFile,
) -> Handler:
    """Return the handler of `/v1/admin/`: `tables/…` for drivers; `store/…` and `backup/…` for
    operators; `tokens` and `jwts`; `audit`, the last lines of the audit log.
    `POST /v1/admin/flush?prefix=` responds once the unflushed
    records are in the object store."""
    tables = table_handler(behind.tables.admin)

    async def handle(request: Request) -> Response:
        first, *rest = request.segments
        if first == "tables":
            return await tables(msgspec.structs.replace(request, segments=tuple(rest)))
        if first == "store":
            return await behind.checks.handle(
                msgspec.structs.replace(request, segments=tuple(rest))
            )
        if first == "backup":
            return await behind.backups.handle(
                msgspec.structs.replace(request, segments=tuple(rest))
            )
        if first in ("tokens", "jwts"):
            # no copy: the handler sets the principal on this request, and the audit log reads it
            request.segments = tuple(rest)
            return await (tokens.handle if first == "tokens" else tokens.handle_jwts)(request)
        if first == "audit" and not rest and request.method in ("GET", "HEAD"):
            lines = await asyncio.to_thread(audit.last, _audit_limit(request))
            body = msgspec.json.encode({"acts": lines})
            return Response(200, body, headers=NO_STORE)
        if first == "flush" and not rest and request.method == "POST":
            await flush(request.query.get("prefix", ""))
            return Response(200, b"{}")
        raise Failure("NO_ROUTE")

    return handle


def _audit_limit(request: Request) -> int:
    text = request.query.get("limit", str(AUDIT_LINES_DEFAULT))
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= limit <= AUDIT_LINES_MAX:
        raise Failure(
            "INVALID_PARAMETER",
            f"limit is '{text[:32]}'; expected a number from 1 to {AUDIT_LINES_MAX}",
        )
    return limit


def part_of(handler: Handler, firsts: Collection[str]) -> Handler:
    """Restrict a handler to paths that begin with one of these segments."""

    async def checked(request: Request) -> Response:
        if request.segments[0] not in firsts:
            raise Failure("NO_ROUTE")
        return await handler(request)

    return checked


def bounded(handler: Handler) -> Handler:
    async def checked(request: Request) -> Response:
        if len(request.body) > ADMIN_BODY_BYTES_MAX:
            raise Failure("BODY_TOO_LARGE")
        return await handler(request)

    return checked


def store_ref(start: CoreStart) -> StoreRef:
    cold = start.config.cold
    if cold.backend == "local":
        return StoreRef("local", str(start.config.objects_path), shared=cold.shared)
    return StoreRef(cold.backend, cold.root, cold.s3_bucket, cold.s3_region, cold.s3_endpoint)


def console_handlers() -> dict[str, Handler]:
    """Return handlers by exact path: redirects to the page from `/` and from its path without the
    slash."""

    async def console(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise Failure("NO_ROUTE")
        return _asset(to_folder())

    return {PREFIX.rstrip("/"): console, "/": console}


def console_mounts() -> dict[str, Handler]:
    """Return handlers by prefix: the page and its files."""
    assets = Assets()

    async def console(request: Request) -> Response:
        answer = assets.answer(request.method, "/".join(request.segments), request.headers)
        if answer is None:
            raise Failure("NO_ROUTE")
        if answer.status == 405:
            raise Failure("METHOD_NOT_ALLOWED", headers=answer.headers)
        return _asset(answer)

    return {PREFIX: console}


def _asset(answer: AssetResponse) -> Response:
    return Response(answer.status, answer.body, answer.content_type, answer.headers)


def health_handlers(
    health: Health, figures: NodeFigures, *, near: bool = False
) -> dict[str, Handler]:
    """Return the handlers by path. `near`: of the admin port on loopback."""

    async def livez(request: Request) -> Response:
        return _found(health.livez())

    async def readyz(request: Request) -> Response:
        return _found(await health.readyz(verbose="verbose" in request.query))

    async def findings(request: Request) -> Response:
        return _found(await health.health())

    async def node(request: Request) -> Response:
        return _found(health.node(near=near))

    async def metrics(request: Request) -> Response:
        found = await health.metrics()
        if open_metrics.is_asked(request.headers.get("accept", "")):
            body = open_metrics.open_metrics(found.body, await figures.exemplars())
            found = HealthResponse(found.status, open_metrics.CONTENT_TYPE, body)
        return _found(found)

    async def recent(request: Request) -> Response:
        body = await health.recent.answer()
        return Response(200, body, headers=NO_STORE)

    return {
        RECENT: recent,
        "/livez": livez,
        "/readyz": readyz,
        "/health": findings,
        "/v1/node": node,
        "/metrics": metrics,
    }


def debug_handlers(figures: NodeFigures) -> dict[str, Handler]:
    """Return the handlers of the admin ports for diagnosis, by path."""

    async def state(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        body = msgspec.json.encode(await figures.state())
        return Response(200, body, headers=NO_STORE)

    return {DEBUG_STATE: state}


def _found(answer: HealthResponse) -> Response:
    return Response(answer.status, answer.body, answer.content_type, NO_STORE)
