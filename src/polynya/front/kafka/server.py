"""The Kafka server of one core: its connections, the memory of their requests, and its timer."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from polynya.access import Access
from polynya.base.limits import CONNECTIONS_PER_CORE_MAX
from polynya.base.log_throttle import LogThrottle
from polynya.front.common.client_traffic import ClientTraffic
from polynya.front.common.stream_quotas import StreamQuotas
from polynya.front.common.tls_handshakes import BACKLOG, Handshakes
from polynya.front.common.unauthenticated import Unauthenticated
from polynya.front.kafka.auth.caller import EVERYBODY, Caller, TokenCaller
from polynya.front.kafka.configs import NodeProfiles
from polynya.front.kafka.connection import Connection
from polynya.front.kafka.groups.coordinators import GroupService
from polynya.front.kafka.request_memory import Frame, Holding, RequestMemory
from polynya.front.kafka.tails import Tails
from polynya.front.kafka.topic_frames import TopicFrames
from polynya.front.kafka.topics.catalog import TopicCatalog
from polynya.front.kafka.topics.producers import ProducerIdSource
from polynya.front.kafka.topics.steps import TopicService
from polynya.wire.kafka.primitives import Malformed

_SWEEP_SECONDS = 2.0
log = logging.getLogger("polynya.kafka")


class Broker(msgspec.Struct, frozen=True, gc=False):
    """A broker as clients see it: a core, or a node with one port for its cores."""

    id: int
    host: str
    port: int
    rack: str | None = None


class TopicDefaults(msgspec.Struct, frozen=True, gc=False):
    """The settings for topics whose clients leave them open."""

    auto_create: bool = True  # a topic that a client names first
    partitions: int = 1
    profiles: NodeProfiles = NodeProfiles()


class Brokers(Protocol):
    """The brokers of the cluster, and the places of groups on them."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def own(self) -> int:
        """The broker of this core."""
        ...

    def all(self) -> Sequence[Broker]: ...

    def leader_of(self, group: int) -> int:
        """Return the broker that a client is to send requests for the group to."""
        ...

    def epoch_of(self, group: int) -> int:
        """Return the epoch of the group's leader, which grows with each change; -1: unknown."""
        ...

    def replicas_of(self, group: int) -> tuple[list[int], list[int]]:
        """Return the brokers with a replica of the group, and those of them that are in sync."""
        ...

    @property
    def zone(self) -> str:
        """The zone of this node; "" without one."""
        ...

    def nodes_in(self, zone: str) -> tuple[int, ...]:
        """Return the active nodes of a zone that are up and serve Kafka."""
        ...

    def owners(self, zone: str) -> tuple[int, ...]:
        """Return the nodes that own the diskless streams for clients of a zone: its own, or all
        active ones."""
        ...

    def owner_of(self, stream: str, group: int, zone: str) -> int:
        """Return the broker that owns a diskless stream for clients of a zone."""
        ...

    def owners_of(self, stream: str, group: int, zone: str) -> list[int]:
        """Return the brokers that own a diskless stream: for clients of this zone, and then of the
        other zones."""
        ...

    async def follow(self) -> None:
        """Keep the known leaders current. Run until cancelled."""
        ...


class KafkaCounters:
    """Counters of one core."""

    def __init__(self) -> None:
        self.requests = self.malformed = 0
        self.batches = self.bytes_in = 0  # proposed, and their bytes as they came
        self.connections = self.connections_opened = self.connections_refused = 0
        self.unauthenticated = self.connections_dropped = 0  # before authentication, for newer ones


class KafkaProtection(NamedTuple):
    """The protection of the port. `access` None: no access control. `cores` share the quotas."""

    access: Access | None = None
    tls: ssl.SSLContext | None = None
    cores: int = 1


class KafkaFront:
    """The Kafka listener of one core."""

    def __init__(
        self,
        service: TopicService,
        brokers: Brokers,
        groups: GroupService,
        *,
        new_id: Callable[[], bytes],
        defaults: TopicDefaults = TopicDefaults(),  # noqa: B008 (frozen)
        connections_max: int = CONNECTIONS_PER_CORE_MAX,
        protection: KafkaProtection | None = None,
    ) -> None:
        protection = protection or KafkaProtection()
        self.service = service
        self.brokers = brokers
        self.groups = groups
        self.defaults = defaults
        self.topics = TopicCatalog(service, new_id)
        self.producer_ids = ProducerIdSource(service)
        self.tails = Tails(service)
        self.checking = asyncio.Lock()  # one request's batches in the thread that checks them
        self.coding = asyncio.Lock()  # one large message in the thread that codes it
        self.counters = KafkaCounters()
        self.clients = ClientTraffic()
        self.tick = 0
        self.connections: set[Connection] = set()
        self.waiting: set[Connection] = set()  # connections that are not read
        self.unauthenticated = Unauthenticated[Connection](connections_max)
        self.topic_frames = TopicFrames()
        self._quotas = StreamQuotas(protection.cores)
        self._access, self._tls = protection.access, protection.tls
        if self._access is not None:
            self._access.on_deaths.append(self.let_go)
        self._connections_max = connections_max
        self.memory = RequestMemory()
        self._complaints = LogThrottle()
        self._servers: list[asyncio.Server | Handshakes] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on listening sockets; `stop` closes them."""
        loop = asyncio.get_running_loop()
        self.tick = int(loop.time())
        self.tails.sweep(self.tick)
        for listener in sockets:
            self._servers.append(await self._listen(listener))
        self._timer = loop.call_later(_SWEEP_SECONDS, self._sweep)
        self.spawn(self.topics.follow())
        self.spawn(self.brokers.follow())
        self.spawn(self.topics.finish_all())

    async def _listen(self, listener: socket.socket) -> asyncio.Server | Handshakes:
        if self._tls is None:
            loop = asyncio.get_running_loop()
            return await loop.create_server(
                lambda: Connection(self), sock=listener, backlog=BACKLOG
            )
        most = max(4, self._connections_max // 4)
        return Handshakes(
            listener, self._tls, lambda: Connection(self), at_most=most, dropped=self._refused
        )

    async def stop(self, grace: float = 3.0) -> None:
        """Read no further requests; after `grace` seconds drop those in work."""
        self._stopping = True
        for server in self._servers:
            server.close()
        for connection in tuple(self.connections):
            connection.finish()
        deadline = asyncio.get_running_loop().time() + grace
        while self.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in tuple(self.connections):
            if connection.transport is not None:
                connection.transport.abort()

    # --- connections ----------------------------------------------------------------------------

    def caller(self) -> Caller:
        """Return the caller of a new connection."""
        if self._access is None:
            return EVERYBODY
        return TokenCaller(self._access, self._quotas, self.service)

    def let_go(self) -> None:
        """Close the connections of revoked and expired tokens."""
        for connection in tuple(self.connections):
            caller = connection.caller
            if isinstance(caller, TokenCaller) and caller.is_revoked:
                self.complain("closed a Kafka connection: its token has ended", connection)
                connection.abort()

    def _refused(self) -> None:
        self.counters.connections_refused += 1
        if not self._stopping:
            self._log_once("refused a Kafka connection: there are too many")

    def _log_once(self, said: str) -> None:
        """Log at most once a minute, whatever the address."""
        if times := self._complaints.due(asyncio.get_running_loop().time(), said):
            fields = {"connections": len(self.connections), "times": times}
            log.warning(said, extra=fields | {"unauthenticated": len(self.unauthenticated)})

    def admit(self, connection: Connection) -> bool:
        """Take a connection in; return False if there are too many."""
        self.counters.connections_opened += 1
        is_full = len(self.connections) >= self._connections_max
        if self._stopping or (is_full and not self.unauthenticated):
            self._refused()
            return False
        if connection.caller.is_unknown:
            dropped = self.unauthenticated.add(connection, connection.remote, is_full=is_full)
            if dropped is not None:
                self._drop(dropped)
        self.connections.add(connection)
        self._count()
        return True

    def authenticated(self, connection: Connection) -> None:
        """Count a connection among those of known callers."""
        self.unauthenticated.remove(connection)
        self._count()

    def _count(self) -> None:
        self.counters.connections = len(self.connections)
        self.counters.unauthenticated = len(self.unauthenticated)

    def _drop(self, connection: Connection) -> None:
        """Drop a connection that has not authenticated, for a newer one."""
        self.counters.connections_dropped += 1
        self._log_once("dropped a Kafka connection before authentication: there are too many")
        self.connections.discard(connection)
        connection.abort()

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.unauthenticated.remove(connection)
        self._count()
        self.waiting.discard(connection)

    def complain(self, said: str, connection: Connection, error: Exception | None = None) -> None:
        """Log why a connection is closed, at most once a minute for each reason and address."""
        self.counters.malformed += isinstance(error, Malformed)
        times = self._complaints.due(asyncio.get_running_loop().time(), said, connection.remote)
        if times:
            extra = {"from": connection.remote, "times": times, "error": str(error or "")}
            log.warning(said, extra=extra)

    def begin(self, connection: Connection, first: memoryview, size: int) -> Frame:
        """Begin a large request, which holds memory from its first bytes to its answer."""
        return Frame(self.memory, connection.caller.key(connection.remote), first, size)

    def release(self, holding: Holding) -> None:
        """End a large request."""
        was_short = self.memory.is_short
        self.memory.release(holding)
        if was_short:
            for connection in tuple(self.waiting):
                connection.steer()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_SWEEP_SECONDS, self._sweep)
        self.tick = int(loop.time())
        for connection in tuple(self.connections):
            connection.sweep(self.tick)
        self.tails.sweep(self.tick)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that ends with this front."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a Kafka request failed", exc_info=error)
