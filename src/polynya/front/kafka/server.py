"""The Kafka server of one core: its listeners, its timer, and the tasks that end with it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from polynya.base.limits import CONNECTIONS_PER_CORE_MAX
from polynya.front.common.tls_handshakes import BACKLOG, Handshakes
from polynya.front.kafka.brokers import Brokers
from polynya.front.kafka.connection import Connection
from polynya.front.kafka.connections import Connections, KafkaProtection
from polynya.front.kafka.context import Context, GroupService, TopicDefaults
from polynya.front.kafka.topics.steps import TopicService

_SWEEP_SECONDS = 2.0
log = logging.getLogger("polynya.kafka")


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
        self.context = Context(
            service, brokers, groups, new_id=new_id, defaults=defaults, spawn=self.spawn
        )
        self.connections = Connections(self.context, protection, connections_max)
        self._shaking_max = max(4, connections_max // 4)
        self._tls = protection.tls
        self._servers: list[asyncio.Server | Handshakes] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on listening sockets; `stop` closes them."""
        self._sweep()
        for listener in sockets:
            self._servers.append(await self._listen(listener))
        self.spawn(self.context.topics.follow())
        self.spawn(self.context.brokers.follow())
        self.spawn(self.context.topics.finish_all())

    async def _listen(self, listener: socket.socket) -> asyncio.Server | Handshakes:
        def accept() -> Connection:
            return Connection(self.connections)

        if self._tls is None:
            loop = asyncio.get_running_loop()
            return await loop.create_server(accept, sock=listener, backlog=BACKLOG)
        refuse, most = self.connections.refuse, self._shaking_max
        return Handshakes(listener, self._tls, accept, at_most=most, dropped=refuse)

    async def stop(self, grace: float = 3.0) -> None:
        """Read no further requests; after `grace` seconds drop those in work."""
        for server in self._servers:
            server.close()
        self.connections.stop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while self.connections and loop.time() < deadline:
            await asyncio.sleep(0.02)
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self.connections:
            connection.abort()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_SWEEP_SECONDS, self._sweep)
        self.connections.sweep(int(loop.time()))
        self.context.tails.sweep(self.connections.tick)

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
