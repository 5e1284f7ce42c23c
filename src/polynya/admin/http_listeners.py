"""The HTTP listeners of a core: the base port (streams, tables, health), and the admin ports
(plans, commits, tokens, metrics)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

import msgspec

from polynya.access import Access
from polynya.admin import audited_requests, metric_sources
from polynya.admin.access_keeper import Keeper
from polynya.admin.audit import AuditFile
from polynya.admin.audited_requests import ActOf, audited
from polynya.admin.console_acts import ConsoleActs
from polynya.admin.health import Health
from polynya.admin.listeners import ConnectionShares, Listener, Timed, node_profiles
from polynya.admin.routes import (
    ADMIN,
    BASE_ADMIN_ACTS,
    TOKEN_ACTS,
    Backends,
    admin_handler,
    bounded,
    console_handlers,
    console_mounts,
    debug_handlers,
    health_handlers,
    part_of,
    store_ref,
    table_handler,
)
from polynya.admin.workers.sql_worker import SqlWorker
from polynya.config import core_start
from polynya.config.core_start import CoreStart
from polynya.config.model import split_listen
from polynya.cost import APPEND, Counts
from polynya.front.http.api.buckets import PATH as BUCKETS
from polynya.front.http.api.buckets import BucketRoutes
from polynya.front.http.api.cluster import PATH as CLUSTER
from polynya.front.http.api.cluster import ClusterRoutes
from polynya.front.http.api.cost import PATH as COST
from polynya.front.http.api.cost import CostRoute
from polynya.front.http.api.kafka.groups import GROUPS
from polynya.front.http.api.kafka.mirror import PREFIX as MIRROR
from polynya.front.http.api.kafka.mirror import MirrorRoutes
from polynya.front.http.api.kafka.topics import PATH as TOPICS
from polynya.front.http.api.kafka.topics import TopicRoutes
from polynya.front.http.api.kafka.transactions import TRANSACTIONS
from polynya.front.http.api.profiles import PREFIX as PROFILES
from polynya.front.http.api.profiles import ProfileRoute
from polynya.front.http.api.ranges import PATH as RANGES
from polynya.front.http.api.ranges import RangeRoute
from polynya.front.http.api.segments import PREFIX as SEGMENTS
from polynya.front.http.api.segments import SegmentRoute
from polynya.front.http.api.short_tokens import PATH as SHORT_TOKENS
from polynya.front.http.api.short_tokens import ShortTokenRoute
from polynya.front.http.api.sql import PATH as SQL_PATH
from polynya.front.http.api.sql import SqlRoute
from polynya.front.http.api.subscriptions import PREFIXES as SUBSCRIPTIONS
from polynya.front.http.api.tokens import TokenRoutes
from polynya.front.http.auth.authorization import Authorizer
from polynya.front.http.auth.cookies import TokenCookie
from polynya.front.http.compaction import PREFIX as COMPACTION
from polynya.front.http.compaction import CompactionRoute
from polynya.front.http.protocol.cors import Cors
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Protection
from polynya.front.http.protocol.extension import Handler, Request, Response
from polynya.front.http.protocol.hosts import Hosts
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.reducers.routes import MODULES, ReducerRoutes
from polynya.front.http.reducers.routes import PATH as REDUCERS
from polynya.front.http.registry.log import RegistryLog
from polynya.front.http.registry.routes import MOUNT as REGISTRY
from polynya.front.http.registry.routes import ROOT as REGISTRY_ROOT
from polynya.front.http.registry.routes import RegistryRoutes
from polynya.front.http.server import HttpFront
from polynya.service.assembly import CoreRuntime
from polynya.service.live import LiveStreams
from polynya.service.stream_slices import SliceFinder
from polynya.system.ports import spelled

Handlers = dict[str, Handler]


class HttpListeners:
    """Builds the HTTP listeners of one core. `listeners` returns them."""

    def __init__(
        self,
        start: CoreStart,
        engine: CoreRuntime,
        behind: Backends,
        health: Health,
        keeper: Keeper,
    ) -> None:
        self._start = start
        self._service = service = engine.service
        self._across = engine.appends_across
        self._segments = SegmentRoute(engine.segments)
        self._compaction = CompactionRoute(engine.compaction)
        object_store = start.config.cold.backend != "none"
        self._profiles = ProfileRoute(service, object_store=object_store)
        self._buckets = BucketRoutes(service, object_store=object_store)
        self._reducers = ReducerRoutes(service)
        self._behind = behind
        self._health = health
        self._keeper = keeper
        self._queries = SqlWorker(start.config)
        self._hosts = Hosts(
            (*start.config.hosts, split_listen(start.config.listen)[0]), behind.hosts
        )
        self._cluster = ClusterRoutes(behind.cluster)
        self._topics = TopicRoutes(
            service,
            partial(secrets.token_bytes, 16),
            partitions=start.kafka_partitions,
            profiles=node_profiles(start.config),
            compaction=engine.compaction.find,
        )
        self._registry = RegistryRoutes(RegistryLog(service, self._topics.topics))
        self._tables = self._audited(audited_requests.table_act, table_handler(behind.runs.user))
        self._cluster_acts = self._audited(audited_requests.cluster_act, self._cluster.handle)
        tokens = TokenRoutes(keeper.tokens, keeper.known)
        self._admin_acts = self._audited(
            audited_requests.admin_act,
            admin_handler(behind, service.flush, tokens, AuditFile(start.config.data)),
        )

    def listeners(self, connections: ConnectionShares) -> list[Listener]:
        """Return the listeners of the base port and of the admin ports."""
        settings = HttpSettings(
            long_poll_seconds=self._start.config.long_poll_timeout,
            immutable_max_age=self._start.config.immutable_max_age,
            connections_max=connections.base,
            strict_parameters=self._start.config.strict_parameters,
            http2=self._start.config.serves_http2,
            object_store=self._start.config.cold.backend != "none",
            default_profile=self._start.config.default_profile,
        )
        aside = msgspec.structs.replace(settings, connections_max=connections.admin)
        base = self._base(settings)
        fronts = {core_start.HTTP: base, core_start.ADMIN: self._admin(aside)}
        if core_start.REMOTE_ADMIN in self._start.listeners:
            fronts[core_start.REMOTE_ADMIN] = self._remote_admin(aside)
        known = self._keeper.known
        if known is not None:
            known.on_deaths += [front.let_go for front in fronts.values()]
            known.on_settle.append(base.readers.charge)
        measured = metric_sources.of_front(base), self._query_samples
        return [
            Listener(
                name,
                front,
                measured,
                counts=(_appended(base),),
                clients=(base.context.clients,),
                times=_times(base),
            )
            if front is base
            else Listener(name, front)
            for name, front in fronts.items()
        ]

    # --- fronts -----------------------------------------------------------------------------------

    def _base(self, settings: HttpSettings) -> HttpFront:
        known, guarded = self._keeper.known, self._keeper.access is not None
        handlers = {
            **(self._guarded_handlers() if guarded else self._open_handlers()),
            SQL_PATH: SqlRoute(self._behind.tables, self._queries).handle,
            RANGES: RangeRoute(SliceFinder(self._service), store_ref(self._start)).handle,
            BUCKETS: self._buckets.list,
            TOPICS: self._topics.list,
            REDUCERS: self._reducers.list,
            MODULES: self._audited(audited_requests.module_act, self._reducers.modules),
            REGISTRY_ROOT: self._registry.handle,
            SHORT_TOKENS: ShortTokenRoute(known.counters if known is not None else None).handle,
            **console_handlers(),
        }
        cookie = self._start.config.auth.cookie if guarded else ""
        cors = Cors(self._start.config.origins, self._hosts, credentials=bool(cookie))
        protection = Protection(
            authorizer=self._authorizer(
                self._keeper.access, cookie=TokenCookie(cookie, cors) if cookie else None
            ),
            hosts=Hosts() if guarded else self._hosts,
            cors=cors,
            tls=self._keeper.tls_context,
            console=ConsoleActs(self._keeper.audit.record, enabled=self._start.config.console.acts),
        )
        front = HttpFront(
            self._service,
            settings,
            handlers,
            self._base_mounts(),
            protection=protection,
            live=LiveStreams(self._service),
        )
        front.context.across = self._across
        return front

    def _admin(self, settings: HttpSettings) -> HttpFront:
        handlers = {
            **self._open_handlers(),
            **health_handlers(self._health, self._behind.figures, near=True),
            **debug_handlers(self._behind.figures),
        }
        protection = Protection(hosts=self._hosts, cors=Cors(()))
        return HttpFront(
            self._service,
            settings,
            handlers,
            self._admin_mounts(),
            streams=False,
            protection=protection,
        )

    def _remote_admin(self, settings: HttpSettings) -> HttpFront:
        protection = Protection(
            authorizer=self._authorizer(self._keeper.known, admin_only=True),
            cors=Cors(()),
            tls=self._keeper.tls_context,
        )
        return HttpFront(
            self._service,
            settings,
            {**self._guarded_handlers(), **debug_handlers(self._behind.figures)},
            self._admin_mounts(),
            streams=False,
            protection=protection,
        )

    # --- routes -----------------------------------------------------------------------------------

    def _open_handlers(self) -> Handlers:
        """Return the handlers that every port has, as a caller without a token may use them."""
        return {
            "/v1/tables": self._tables,
            CLUSTER: self._cluster.look,
            CLUSTER + "/health": self._cluster.health,
            COST: CostRoute(self._behind.costs).handle,
            **health_handlers(self._health, self._behind.figures),
        }

    def _guarded_handlers(self) -> Handlers:
        return {**self._open_handlers(), CLUSTER + "/health": self._cluster.guarded_health}

    def _admin_mounts(self) -> Handlers:
        return {
            ADMIN: bounded(self._admin_acts),
            "/v1/tables/": bounded(self._tables),
            CLUSTER + "/": bounded(self._cluster_acts),
        }

    def _base_mounts(self) -> Handlers:
        return {
            "/v1/tables/": self._tables,
            **(self._acts() if self._keeper.access is not None else self._acts_elsewhere()),
            BUCKETS + "/": self._audited(audited_requests.bucket_act, self._buckets.handle),
            TOPICS + "/": self._audited(audited_requests.topic_act, self._topics.handle),
            REDUCERS + "/": self._audited(audited_requests.reducer_act, self._reducers.handle),
            REGISTRY: self._audited(audited_requests.registry_act, self._registry.handle),
            SEGMENTS: self._segments.handle,
            COMPACTION: self._compaction.handle,
            MIRROR: MirrorRoutes(self._service, self._topics.topics).handle,
            PROFILES: self._audited(audited_requests.profile_act, self._profiles.handle),
            **console_mounts(),
            **self._behind.mounts,
            **{
                prefix: self._audited(
                    audited_requests.subscription_act, self._behind.mounts[prefix]
                )
                for prefix in SUBSCRIPTIONS
            },
            GROUPS: self._audited(audited_requests.group_act, self._behind.mounts[GROUPS]),
            TRANSACTIONS: self._audited(
                audited_requests.transaction_act, self._behind.mounts[TRANSACTIONS]
            ),
        }

    def _acts(self) -> Handlers:
        """Return the handlers for cluster and store operations on the base port."""
        tokens = TOKEN_ACTS if self._start.config.console.acts else ()
        return {
            CLUSTER + "/": self._cluster_acts,
            ADMIN: bounded(part_of(self._admin_acts, (*BASE_ADMIN_ACTS, *tokens))),
        }

    def _acts_elsewhere(self) -> Handlers:
        """Return the handlers of the same paths without access control: they only name the admin
        port."""
        url = f"http://{spelled(*self._start.listeners[core_start.ADMIN])}"

        async def elsewhere(request: Request) -> Response:
            raise Failure(
                "ADMIN_PORT_ONLY",
                f"without access control only the admin port accepts this: {url}, on the node's "
                "own machine",
            )

        async def cluster_acts(request: Request) -> Response:
            is_act = audited_requests.cluster_act(request)
            return await (elsewhere if is_act else self._cluster.handle)(request)

        return {
            CLUSTER + "/": self._audited(audited_requests.cluster_act, cluster_acts),
            ADMIN: self._audited(audited_requests.admin_act, elsewhere),
        }

    # --- shared parts -----------------------------------------------------------------------------

    def _authorizer(
        self, access: Access | None, *, admin_only: bool = False, cookie: TokenCookie | None = None
    ) -> Authorizer | None:
        if access is None:
            return None
        record, cores = self._keeper.audit.record, self._start.cores
        return Authorizer(access, audit=record, admin_only=admin_only, cores=cores, cookie=cookie)

    def _audited(self, act_of: ActOf, handler: Handler) -> Handler:
        return audited(act_of, handler, self._keeper.audit.record)

    def _query_samples(self) -> dict[str, float]:
        return {"polynya_sql_queries_total": self._queries.asked}


def _times(front: HttpFront) -> tuple[Timed, ...]:
    counters = front.counters
    return (
        Timed("polynya_http_append_seconds", counters.append_seconds),
        Timed("polynya_http_first_byte_seconds", counters.first_byte_seconds),
        Timed("polynya_tail_delivery_seconds", counters.long_poll_seconds, "long_poll"),
    )


def _appended(front: HttpFront) -> Callable[[], Counts]:
    counters = front.counters
    return lambda: {
        (APPEND, "http", "requests"): counters.appends,
        (APPEND, "http", "bytes"): counters.bytes_in,
    }
