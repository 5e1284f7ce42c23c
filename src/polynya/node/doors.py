"""The doors of a core: the base port (streams, tables, health) and the admin port (plans and commits, metrics), composed here (F7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from polynya.base.limits import MIB
from polynya.front.http.buckets import PATH as BUCKETS
from polynya.front.http.buckets import BucketRoutes
from polynya.front.http.errors import Failure
from polynya.front.http.mount import Handler, Request, Response
from polynya.front.http.questions import PATH as SQL_PATH
from polynya.front.http.questions import QuestionRoute
from polynya.front.http.server import HttpFront
from polynya.front.http.settings import HttpSettings
from polynya.front.http.tables import ReadObject, TableRoutes
from polynya.node import sources
from polynya.node.health import Answer, Health
from polynya.node.pages import console_handlers, console_mounts
from polynya.node.ports import shared_listener
from polynya.node.questions import Questions
from polynya.node.start import CoreStart
from polynya.service.node import NodeService
from polynya.service.tables import TableRefused, Tables
from polynya.wire.tables import StoreRef

STOP_SECONDS = 3.0  # an append in flight needs milliseconds; only readers that do not read need to be cut
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
ADMIN_BODY_BYTES_MAX = 4 * MIB


class Doors:
    """Both fronts of one core."""

    def __init__(
        self,
        start: CoreStart,
        service: NodeService,
        tables: Tables,
        health: Health,
        mounts: Mapping[str, Handler] | None = None,
        read_object: ReadObject | None = None,
    ) -> None:
        self._start = start
        self._health = health
        routes = TableRoutes(tables, _store_ref(start), service.now_ms, read_object)
        questions = Questions(start.config)
        settings = HttpSettings(long_poll_seconds=start.config.long_poll_timeout, object_store=start.config.cold.backend != "none")
        buckets = BucketRoutes(service)
        base = {"/v1/tables": _table_handler(routes.user), BUCKETS: buckets.list, **self._health_handlers(), **console_handlers()}
        base[SQL_PATH] = QuestionRoute(routes, questions).handle
        mounts = {"/v1/tables/": _table_handler(routes.user), BUCKETS + "/": buckets.handle, **console_mounts(), **(mounts or {})}
        self.base = HttpFront(service, settings, base, mounts)
        admin = {path: self._local_only(handler) for path, handler in self._health_handlers().items()}
        mount = {"/v1/admin/": self._local_only(_admin_handler(routes, service))}
        self.admin = HttpFront(service, settings, admin, mount, streams=False)

        health.registry.add(sources.of_front(self.base))
        health.registry.add(lambda: {"polynya_sql_questions_total": questions.asked})

    async def open(self) -> None:
        start = self._start
        await self.base.start([shared_listener(start.host, start.port)])
        await self.admin.start([shared_listener(start.admin_host, start.admin_port)])

    async def close(self) -> None:
        """Answer what is in flight, in bounded time."""
        await asyncio.gather(self.base.stop(STOP_SECONDS), self.admin.stop(STOP_SECONDS))

    def _health_handlers(self) -> dict[str, Handler]:
        health = self._health

        async def livez(request: Request) -> Response:
            return _response(health.livez())

        async def readyz(request: Request) -> Response:
            return _response(await health.readyz(verbose="verbose" in request.query))

        async def all_well(request: Request) -> Response:
            return _response(await health.health())

        async def node(request: Request) -> Response:
            return _response(health.node())

        async def metrics(request: Request) -> Response:
            return _response(await health.metrics())

        return {"/livez": livez, "/readyz": readyz, "/health": all_well, "/v1/node": node, "/metrics": metrics}

    def _local_only(self, handler: Handler) -> Handler:
        """The admin port listens on loopback; a page in a browser that resolves its own name to it must not reach it either."""
        allowed = {f"{host}:{self._start.admin_port}" for host in LOCAL_HOSTS}

        async def checked(request: Request) -> Response:
            if request.headers.get("host", "").lower() not in allowed:
                raise Failure("FORBIDDEN_HOST")
            if len(request.body) > ADMIN_BODY_BYTES_MAX:
                raise Failure("BODY_TOO_LARGE")
            return await handler(request)

        return checked


def _table_handler(route: Callable[[Request], Awaitable[tuple[int, Any]]]) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            status, value = await route(request)
        except TableRefused as refused:
            raise Failure(refused.code, str(refused)) from None
        return Response(status, b"" if value is None else msgspec.json.encode(value))

    return handle


def _admin_handler(routes: TableRoutes, service: NodeService) -> Handler:
    """`/v1/admin/tables/…` for drivers; `POST /v1/admin/flush?prefix=`: what is hot becomes cold before this answers."""
    tables = _table_handler(routes.admin)

    async def handle(request: Request) -> Response:
        first, *rest = request.segments
        if first == "tables":
            return await tables(msgspec.structs.replace(request, segments=tuple(rest)))
        if first == "flush" and not rest and request.method == "POST":
            await service.flush(request.query.get("prefix", ""))
            return Response(200, b"{}")
        raise Failure("NO_ROUTE")

    return handle


def _response(answer: Answer) -> Response:
    return Response(answer.status, answer.body, answer.content_type, (("Cache-Control", "no-store"),))


def _store_ref(start: CoreStart) -> StoreRef:
    cold = start.config.cold
    if cold.backend == "local":
        return StoreRef("local", str(start.config.objects_path))
    return StoreRef(cold.backend, cold.root, cold.s3_bucket, cold.s3_region, cold.s3_endpoint)
