"""HTTP front of one core: its connections, its timer, and the dispatch of exchanges to routes."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
import ssl
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from polynya.base.log_throttle import LogThrottle
from polynya.front.common.client_traffic import ClientTraffic
from polynya.front.common.response_memory import ResponseMemory
from polynya.front.common.tls_handshakes import BACKLOG, HANDSHAKES_MAX, Handshakes
from polynya.front.http.auth.authorization import Authorizer
from polynya.front.http.connection import Connection
from polynya.front.http.protocol.cors import Cors
from polynya.front.http.protocol.counters import HttpCounters
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.extension import Handler
from polynya.front.http.protocol.hosts import Hosts
from polynya.front.http.protocol.responses import PREFLIGHT
from polynya.front.http.protocol.router import Router
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.protocol.tail_confirmation import TailConfirmation
from polynya.front.http.routes.table import dispatch
from polynya.service.api import Service
from polynya.wire.http1 import HeadParser

_SWEEP_SECONDS = 2.0
log = logging.getLogger("polynya.http")


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """The access rules of a front: the authorizer (None: no access control), allowed hosts, allowed
    origins, and TLS."""

    authorizer: Authorizer | None = None
    hosts: Hosts = Hosts()
    cors: Cors = Cors()
    tls: ssl.SSLContext | None = None


class HttpFront:
    """The HTTP server of one core. `handlers` maps an exact path to its handler, `mounts` a path
    prefix with a final slash. Both take precedence over streams. `streams` False omits the stream
    routes, for ports with other content."""

    def __init__(
        self,
        service: Service,
        settings: HttpSettings | None = None,
        handlers: Mapping[str, Handler] | None = None,
        mounts: Mapping[str, Handler] | None = None,
        *,
        streams: bool = True,
        protection: Protection | None = None,
    ) -> None:
        self.service = service
        self.settings = settings or HttpSettings()
        self.counters = HttpCounters()
        self.clients = ClientTraffic()
        self.parser = HeadParser()
        self.router = Router(handlers or {}, mounts or {}, streams=streams)
        protection = protection or Protection()
        self.authorizer = protection.authorizer
        self.hosts = protection.hosts
        self.cors = protection.cors
        self.is_tls = protection.tls is not None
        self.now = time.monotonic
        self._tls = protection.tls
        self.random = random.Random()  # noqa: S311 (jitter, no secret)
        self.tick = 0  # coarse seconds, updated by the sweep
        self.body_bytes = 0
        self.memory = ResponseMemory()
        self.stopping = False
        self.connections: set[Connection] = set()
        self.live: dict[Any, None] = {}  # SSE subscribers …
        self.metered: dict[Any, None] = {}  # … and those whose callers have a byte rate limit
        self.waiters: set[Any] = set()  # long-polls
        self._log_throttle = LogThrottle()
        self.tail_confirmation = TailConfirmation(service.info, self.spawn)
        self._lingering: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server | Handshakes] = []
        self._handshakes_max = (
            min(HANDSHAKES_MAX, self.settings.connections_max // 4 + 1) if self.is_tls else 0
        )
        self._timer: asyncio.TimerHandle | None = None
        self._start_id = secrets.token_hex(4)
        self._request_count = 0
        self._drained: asyncio.Event | None = None

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on listening sockets; `stop` closes them."""
        loop = asyncio.get_running_loop()
        for listener in sockets:
            if self._tls is None:
                self._servers.append(
                    await loop.create_server(
                        lambda: Connection(self), sock=listener, backlog=BACKLOG
                    )
                )
            else:
                shaking = Handshakes(
                    listener,
                    self._tls,
                    lambda: Connection(self),
                    at_most=self._handshakes_max,
                    dropped=self.counters.refuse_handshake,
                )
                self._servers.append(shaking)
        self.tick = int(loop.time())
        self._timer = loop.call_later(_SWEEP_SECONDS, self._sweep)

    async def stop(self, grace: float = 5.0) -> None:
        """Stop accepting connections and requests. After `grace` seconds, abort the responses in
        flight."""
        self.stopping = True
        for server in self._servers:
            server.close()
        for waiter in tuple(self.waiters):
            waiter.expire()
        for subscriber in tuple(self.live):
            subscriber.finish()
        for connection in tuple(self.connections):
            if connection.is_idle:
                connection.close()
        self._drained = asyncio.Event()
        if self.connections:
            timer = asyncio.get_running_loop().call_later(grace, self._cut)
            await self._drained.wait()
            timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.tail_confirmation.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cut(self) -> None:
        for connection in tuple(self.connections):
            if connection.transport is not None:
                connection.transport.abort()

    # --- connections ------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        self.connections.add(connection)
        self.counters.connections_opened += 1
        if len(self.connections) > self.settings.connections_max - self._handshakes_max:
            self.counters.connections_refused += 1
            return False
        return True

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._lingering.discard(connection)
        self.memory.drained(connection)
        if self.authorizer is not None:
            self.authorizer.release(connection)
        if self._drained is not None and not self.connections:
            self._drained.set()

    def log_rate_limited(self, said: str, target: str, connection: Connection) -> None:
        """Log a client that does not read its response, at most once a minute per target."""
        times = self._log_throttle.due(self.now(), said, target, connection.remote)
        if times:
            log.warning(
                said,
                extra={
                    "target": target,
                    "from": connection.remote,
                    "unsent": connection.unread_bytes,
                    "times": times,
                },
            )

    def linger(self, connection: Connection) -> None:
        """Track a connection after its last response. The sweep aborts it if the client does not
        close it."""
        self._lingering.add(connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_SWEEP_SECONDS, self._sweep)
        self.sweep(int(loop.time()))

    def sweep(self, tick: int) -> None:
        """Enforce all timeouts at the coarse second `tick`."""
        self.tick = tick
        self.memory.measure()
        for connection in tuple(self.connections):
            connection.sweep(tick)
        for subscriber in tuple(self.live):
            subscriber.sweep(tick)

    # --- requests ---------------------------------------------------------------------------------

    def handle(self, exchange: Exchange) -> None:
        """Find the route and start it. Every path, including errors, responds to the exchange, now
        or later."""
        try:
            exchange.route, exchange.query = self.router.resolve(exchange.head.target)
            if self.authorizer is None or self.authorizer.authorize(self, exchange):
                dispatch(self, exchange)
        except Exception as error:  # noqa: BLE001 (the client must get an answer; what is unexpected is logged)
            if exchange.head.method == "OPTIONS" and isinstance(error, Failure):
                exchange.send(exchange.head_lines(204, []) + PREFLIGHT + b"\r\n")
            else:
                exchange.fault(error)

    def answered(self, exchange: Exchange, status: int, size: int) -> None:
        """Account for the response to an exchange with a principal."""
        if self.authorizer is not None:
            self.authorizer.answered(exchange, status, size)

    def let_go(self) -> None:
        """End the work of revoked principals. Their next request is authorized again."""
        for connection in self.connections:
            if connection.principal is not None and not connection.principal.alive:
                connection.forget_template()
        for subscriber in tuple(self.live):
            principal = subscriber.exchange.principal
            if principal is not None and not principal.alive:
                subscriber.finish()
        for waiter in tuple(self.waiters):
            waiter.expire()

    def settle(self) -> None:
        """Charge live readers for the bytes sent, and pause those over their limit. Runs
        periodically, not per event."""
        for subscriber in tuple(self.metered):
            subscriber.settle()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def new_request_id(self) -> str:
        """Return an id that is unique on the node: the id of this start of the core, and a
        counter."""
        self._request_count += 1
        return f"{self._start_id}-{self._request_count:x}"
