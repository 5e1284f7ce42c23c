"""The ports of a core: the base port (streams, tables, health) and the admin port (plans, commits,
tokens, metrics)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from polynya.access import Access
from polynya.admin import metric_sources
from polynya.admin.access_keeper import Keeper
from polynya.admin.backup_routes import Backups
from polynya.admin.console_routes import console_handlers, console_mounts
from polynya.admin.health import Health, HealthResponse
from polynya.admin.sql_worker import SqlWorker
from polynya.admin.store_checks import StoreChecks
from polynya.base.limits import MIB, TOKEN_NAME_BYTES_MAX
from polynya.config.core_start import CoreStart
from polynya.config.model import split_listen
from polynya.front.http.api.buckets import PATH as BUCKETS
from polynya.front.http.api.buckets import BucketRoutes
from polynya.front.http.api.cluster import PATH as CLUSTER
from polynya.front.http.api.cluster import ClusterActs, ClusterRoutes, act_of
from polynya.front.http.api.iceberg_catalog import MOUNT as CATALOG
from polynya.front.http.api.iceberg_catalog import IcebergCatalog, S3Keys
from polynya.front.http.api.ranges import PATH as RANGES_PATH
from polynya.front.http.api.ranges import RangeRoute
from polynya.front.http.api.sql import PATH as SQL_PATH
from polynya.front.http.api.sql import SqlRoute
from polynya.front.http.api.tables import ReadObject, TableRoutes
from polynya.front.http.api.tokens import TokenRoutes
from polynya.front.http.auth.authorization import Authorizer
from polynya.front.http.protocol.cors import Cors
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Handler, Request, Response
from polynya.front.http.protocol.hosts import Hosts
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.server import HttpFront, Protection
from polynya.front.text.server import TextFront
from polynya.front.text.topics import NodeView
from polynya.service.routing.service import NodeService
from polynya.service.stream_slices import SliceFinder
from polynya.service.tables import TableRefused, Tables
from polynya.stream.placement import META_GROUP
from polynya.system.open_files import raise_limit, shares
from polynya.system.ports import shared_listener, spelled
from polynya.wire.tables import StoreRef

TEXT_PART = 4  # the text protocol may have one in so many of the connections of the base port
STOP_SECONDS = 3.0  # an append in flight needs milliseconds; only stalled readers are cut off
ActOf = Callable[[Request], str]
"""The audit name of a request; empty if it is not audited."""

ADMIN = "/v1/admin/"
# paths below ADMIN that the base port also serves with access control
BASE_ADMIN_ACTS = (
    "flush",
    "store",
)
ADMIN_BODY_BYTES_MAX = 4 * MIB


class Backends(NamedTuple):
    """The backends of the routes, beside streams."""

    tables: Tables
    mounts: Mapping[str, Handler]
    read_object: ReadObject | None  # None without an object store
    checks: StoreChecks | None
    backups: Backups | None
    cluster: ClusterActs
    hosts: Callable[[], Collection[str]]  # hosts of the cluster's nodes


class Listeners:
    """The fronts of one core: HTTP on up to three ports, and the text protocol."""

    def __init__(
        self,
        start: CoreStart,
        service: NodeService,
        behind: Backends,
        health: Health,
        keeper: Keeper,
    ) -> None:
        self._start = start
        self._health = health
        self._audit = keeper.audit.record
        self.tables = routes = TableRoutes(
            behind.tables, _store_ref(start), service.now_ms, behind.read_object
        )
        questions = SqlWorker(start.config)
        clients = shares(raise_limit(), cores=start.cores, nodes=len(start.config.cluster.nodes))
        self.text = (
            text_front(start, service, keeper, connections_max=clients.base // TEXT_PART)
            if start.text_port
            else None
        )
        settings = HttpSettings(
            long_poll_seconds=start.config.long_poll_timeout,
            connections_max=clients.base - (clients.base // TEXT_PART if self.text else 0),
            object_store=start.config.cold.backend != "none",
        )
        aside = msgspec.structs.replace(settings, connections_max=clients.admin)
        buckets = BucketRoutes(service)
        user = self._audited(_table_act, _table_handler(routes.user))
        cluster = ClusterRoutes(behind.cluster)
        acts = self._audited(_cluster_act, cluster.handle)
        admin = self._audited(
            _admin_act,
            _admin_handler(routes, service, TokenRoutes(keeper.tokens, keeper.known), behind),
        )
        hosts = Hosts((*start.config.hosts, split_listen(start.config.listen)[0]), behind.hosts)
        handlers = {
            "/v1/tables": user,
            CLUSTER: cluster.look,
            CLUSTER + "/health": cluster.health,
            **self._health_handlers(),
        }
        guarded = {**handlers, CLUSTER + "/health": cluster.guarded_health}
        open_to = handlers if keeper.access is None else guarded
        only_base = {
            SQL_PATH: SqlRoute(routes, questions).handle,
            RANGES_PATH: RangeRoute(SliceFinder(service), _store_ref(start)).handle,
            BUCKETS: buckets.list,
            **console_handlers(),
        }
        below = {
            "/v1/tables/": user,
            CATALOG: _catalog(start, behind).handle,
            **self._base_acts(cluster, acts, admin, guarded=keeper.access is not None),
            BUCKETS + "/": self._audited(_bucket_act, buckets.handle),
            **console_mounts(),
            **behind.mounts,
        }
        context = keeper.tls.context if keeper.tls is not None else None
        asked = hosts if keeper.access is None else Hosts()
        protection = Protection(
            authorizer=self._authorizer(keeper.access),
            hosts=asked,
            cors=Cors(start.config.origins, hosts),
            tls=context,
        )
        self.base = HttpFront(
            service, settings, {**open_to, **only_base}, below, protection=protection
        )
        near = {**handlers, **self._health_handlers(near=True)}
        within = {
            ADMIN: _bounded(admin),
            "/v1/tables/": _bounded(user),
            CLUSTER + "/": _bounded(acts),
        }
        self.admin = HttpFront(
            service,
            aside,
            near,
            within,
            streams=False,
            protection=Protection(hosts=hosts, cors=Cors(())),
        )
        self.far_admin: HttpFront | None = None
        if start.far_admin_port:
            far_protection = Protection(
                authorizer=self._authorizer(keeper.known, admin_only=True),
                cors=Cors(()),
                tls=context,
            )
            self.far_admin = HttpFront(
                service, aside, guarded, within, streams=False, protection=far_protection
            )
        if keeper.known is not None:
            keeper.known.on_deaths += [front.let_go for front in self._fronts()]
            keeper.known.on_settle.append(self.base.settle)
        health.registry.add(metric_sources.of_front(self.base))
        if self.text is not None:
            health.registry.add(metric_sources.of_text(self.text))
        health.registry.add(lambda: {"polynya_sql_queries_total": questions.asked})

    async def open(self) -> None:
        start = self._start
        await self.base.start([shared_listener(start.host, start.port)])
        await self.admin.start([shared_listener(start.admin_host, start.admin_port)])
        if self.text is not None:
            await self.text.start([shared_listener(start.text_host, start.text_port)])
        if self.far_admin is not None:
            await self.far_admin.start(
                [shared_listener(start.far_admin_host, start.far_admin_port)]
            )

    async def close(self) -> None:
        """Finish the requests in flight, for at most `STOP_SECONDS`."""
        stops = [front.stop(STOP_SECONDS) for front in self._fronts()]
        if self.text is not None:
            stops.append(self.text.stop(STOP_SECONDS))
        await asyncio.gather(*stops)

    def _fronts(self) -> list[HttpFront]:
        return [front for front in (self.base, self.admin, self.far_admin) if front is not None]

    def _authorizer(self, access: Access | None, *, admin_only: bool = False) -> Authorizer | None:
        return (
            None
            if access is None
            else Authorizer(
                access, audit=self._audit, admin_only=admin_only, cores=self._start.cores
            )
        )

    def _audited(self, act_of: ActOf, handler: Handler) -> Handler:
        """Wrap a handler to record audited requests and their outcome."""

        async def noted(request: Request) -> Response:
            name = act_of(request)
            if not name:
                return await handler(request)
            outcome = "failed"
            try:
                response = await handler(request)
                outcome = str(response.status)
                return response
            except Failure as failure:
                outcome = failure.code
                raise
            finally:
                principal = request.principal
                who = "anybody" if principal is None else f"{principal.id} {principal.name}"
                self._audit(
                    name, _target(name, request), who, request.remote, outcome, request.request_id
                )

        return noted

    def _health_handlers(self, *, near: bool = False) -> dict[str, Handler]:
        health = self._health

        async def livez(request: Request) -> Response:
            return _response(health.livez())

        async def readyz(request: Request) -> Response:
            return _response(await health.readyz(verbose="verbose" in request.query))

        async def all_well(request: Request) -> Response:
            return _response(await health.health())

        async def node(request: Request) -> Response:
            return _response(health.node(near=near))

        async def metrics(request: Request) -> Response:
            return _response(await health.metrics())

        return {
            "/livez": livez,
            "/readyz": readyz,
            "/health": all_well,
            "/v1/node": node,
            "/metrics": metrics,
        }

    def _base_acts(
        self, cluster: ClusterRoutes, acts: Handler, admin: Handler, *, guarded: bool
    ) -> dict[str, Handler]:
        """Return the handlers for cluster and store operations on the base port. Without access
        control they only name the admin port."""
        if guarded:
            return {CLUSTER + "/": acts, ADMIN: _bounded(_part_of(admin, BASE_ADMIN_ACTS))}
        url = f"http://{spelled(self._start.admin_host, self._start.admin_port)}"

        async def elsewhere(request: Request) -> Response:
            raise Failure(
                "ADMIN_PORT_ONLY",
                f"without access control only the admin port accepts this: {url}, on the node's "
                "own machine",
            )

        async def cluster_acts(request: Request) -> Response:
            return await (elsewhere if _cluster_act(request) else cluster.handle)(request)

        return {
            CLUSTER + "/": self._audited(_cluster_act, cluster_acts),
            ADMIN: self._audited(_admin_act, elsewhere),
        }


def text_front(
    start: CoreStart, service: NodeService, keeper: Keeper, *, connections_max: int
) -> TextFront:
    """Return the front of the text protocol, with the access control and TLS of the base port."""
    node = start.birth.node or 1
    view = NodeView(
        node,
        leader_of=lambda name: service.leader_of(service.group_of(name)),
        leader=lambda: service.leader_of(META_GROUP),
        nodes=lambda: sorted({node, *service.voters_of(META_GROUP)}),
    )
    return TextFront(
        service,
        view,
        connections_max=connections_max,
        access=keeper.known if start.config.text_needs_token else None,
        cores=start.cores,
        tls=keeper.tls.context if keeper.tls is not None else None,
    )


def _catalog(start: CoreStart, behind: Backends) -> IcebergCatalog:
    keys = start.config.catalog
    given = S3Keys(keys.s3_access_key_id, keys.s3_secret_access_key)
    return IcebergCatalog(behind.tables, _store_ref(start), given, behind.read_object)


def _part_of(handler: Handler, firsts: Collection[str]) -> Handler:
    """Restrict a handler to paths that begin with one of these segments."""

    async def checked(request: Request) -> Response:
        if request.segments[0] not in firsts:
            raise Failure("NO_ROUTE")
        return await handler(request)

    return checked


def _bounded(handler: Handler) -> Handler:
    async def checked(request: Request) -> Response:
        if len(request.body) > ADMIN_BODY_BYTES_MAX:
            raise Failure("BODY_TOO_LARGE")
        return await handler(request)

    return checked


class _Named(msgspec.Struct):
    name: str


def _target(act: str, request: Request) -> str:
    """Return the audited path. For a new token, add the name from the body."""
    if act != "token.create":
        return request.path
    try:
        return f"{request.path}/{msgspec.json.decode(request.body, type=_Named).name[:TOKEN_NAME_BYTES_MAX]}"
    except msgspec.DecodeError:
        return request.path


def _table_act(request: Request) -> str:
    return "table.create" if request.method == "PUT" else ""


def _bucket_act(request: Request) -> str:
    return "" if request.method in ("GET", "HEAD") else "bucket.retention"


def _cluster_act(request: Request) -> str:
    return act_of(request.segments) if request.method == "POST" else ""


def _admin_act(request: Request) -> str:
    """Return the audit name of an admin request. Plans and commits come by the thousand and are not
    audited."""
    first = request.segments[0]
    if first == "flush":
        return "flush"
    if first == "backup":
        return "backup" if request.method == "POST" else ""
    if first == "jwts":
        return "jwt.revoke" if request.method == "POST" else ""
    return (
        {"POST": "token.create", "DELETE": "token.revoke"}.get(request.method, "")
        if first == "tokens"
        else ""
    )


def _table_handler(route: Callable[[Request], Awaitable[tuple[int, Any]]]) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            status, value = await route(request)
        except TableRefused as refused:
            raise Failure(refused.code, str(refused)) from None
        return Response(status, b"" if value is None else msgspec.json.encode(value))

    return handle


def _admin_handler(
    routes: TableRoutes, service: NodeService, tokens: TokenRoutes, behind: Backends
) -> Handler:
    """Return the handler of `/v1/admin/`: `tables/…` for drivers; `store/…` and `backup/…` for
    operators; `tokens` and `jwts`. `POST /v1/admin/flush?prefix=` responds once the unflushed
    records are in the object store."""
    tables = _table_handler(routes.admin)

    async def handle(request: Request) -> Response:
        first, *rest = request.segments
        if first == "tables":
            return await tables(msgspec.structs.replace(request, segments=tuple(rest)))
        if first == "store" and behind.checks is not None:
            return await behind.checks.handle(
                msgspec.structs.replace(request, segments=tuple(rest))
            )
        if first == "backup" and behind.backups is not None:
            return await behind.backups.handle(
                msgspec.structs.replace(request, segments=tuple(rest))
            )
        if first in ("tokens", "jwts"):
            # no copy: the handler sets the principal on this request, and the audit log reads it
            request.segments = tuple(rest)
            return await (tokens.handle if first == "tokens" else tokens.handle_jwts)(request)
        if first == "flush" and not rest and request.method == "POST":
            await service.flush(request.query.get("prefix", ""))
            return Response(200, b"{}")
        raise Failure("NO_ROUTE")

    return handle


def _response(answer: HealthResponse) -> Response:
    return Response(
        answer.status, answer.body, answer.content_type, (("Cache-Control", "no-store"),)
    )


def _store_ref(start: CoreStart) -> StoreRef:
    cold = start.config.cold
    if cold.backend == "local":
        return StoreRef("local", str(start.config.objects_path), shared=cold.shared)
    return StoreRef(cold.backend, cold.root, cold.s3_bucket, cold.s3_region, cold.s3_endpoint)
