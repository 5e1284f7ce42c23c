"""The Kafka server of one core: its listeners, its timer, and the tasks that end with it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from polynya.base.limits import CONNECTIONS_PER_CORE_MAX
from polynya.front.kafka.admin.quorum_members import QuorumSource, unknown_quorum
from polynya.front.kafka.brokers import Brokers
from polynya.front.kafka.connection import Connection
from polynya.front.kafka.connections import Connections, KafkaProtection
from polynya.front.kafka.context import Context, GroupService, TopicDefaults
from polynya.front.kafka.topics.steps import TopicService
from polynya.service.transactions.kafka import KafkaTransactions

log = logging.getLogger("polynya.kafka")


class KafkaFront:
    """The Kafka listener of one core."""

    def __init__(  # noqa: PLR0913
        self,
        service: TopicService,
        brokers: Brokers,
        groups: GroupService,
        transactions: KafkaTransactions,
        *,
        new_id: Callable[[], bytes],
        defaults: TopicDefaults = TopicDefaults(),  # noqa: B008 (frozen)
        connections_max: int = CONNECTIONS_PER_CORE_MAX,
        protection: KafkaProtection | None = None,
        quorum: QuorumSource = unknown_quorum,
    ) -> None:
        protection = protection or KafkaProtection()
        self.context = Context(
            service,
            brokers,
            groups,
            transactions,
            new_id=new_id,
            defaults=defaults,
            spawn=self.spawn,
        )
        self.context.user_admin, self.context.quorum = protection.user_admin, quorum
        self.connections = Connections(self.context, protection, connections_max)
        self._handshakes_max = max(4, connections_max // 4)
        self._tls = protection.tls

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on listening sockets; `stop` closes them."""
        connections, context = self.connections, self.context
        await connections.open.listen(
            sockets,
            lambda: Connection(connections),
            self._tls,
            handshakes_max=self._handshakes_max,
            dropped=connections.refuse,
        )
        connections.open.sweep_with(self._sweep)
        context.tails.sweep(connections.ticks.now)
        self.spawn(context.topics.follow())
        self.spawn(context.brokers.follow())
        self.spawn(context.topics.finish_all())

    async def stop(self, grace: float = 3.0) -> None:
        """Read no further requests; after `grace` seconds drop those in work."""
        open_ = self.connections.open
        open_.close()
        for connection in open_:
            connection.stop()
        await open_.drain(grace)
        await open_.end()

    def _sweep(self, tick: int) -> None:
        for connection in self.connections:
            connection.sweep(tick)
        self.context.tails.sweep(tick)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that ends with this front."""
        task = self.connections.open.spawn(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a Kafka request failed", exc_info=error)
