"""The text front of one core: its connections, limits and counters."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Sequence

from polynya.access import Access
from polynya.base.log_throttle import LogThrottle
from polynya.front.common.connection_set import ConnectionSet
from polynya.front.common.stream_quotas import StreamQuotas
from polynya.front.common.unauthenticated import Unauthenticated
from polynya.front.text.connection import TextConnection
from polynya.front.text.counters import TextCounters
from polynya.front.text.gate import Caller
from polynya.front.text.topics import NodeView, Topics
from polynya.service.api import Service

log = logging.getLogger("polynya.text")


class TextFront:
    """The server of the text protocol of one core. `access` None: no access control."""

    def __init__(
        self,
        service: Service,
        view: NodeView,
        *,
        connections_max: int,
        access: Access | None = None,
        cores: int = 1,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.service = service
        self.topics = Topics(service, view)
        self.counters = TextCounters()
        self.connections = ConnectionSet[TextConnection]()
        self.spawn = self.connections.spawn
        self.unauthenticated = Unauthenticated[TextConnection](connections_max)
        self._connections_max = connections_max
        self._access = access
        self._quotas = StreamQuotas(cores)
        self.is_tls = tls is not None
        self._tls = tls
        self._complaints = LogThrottle()

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on listening sockets; `stop` closes them."""
        await self.connections.listen(
            sockets,
            lambda: TextConnection(self),
            self._tls,
            handshakes_max=max(4, self._connections_max // 4),
            dropped=self.counters.refuse,
        )
        self.connections.sweep_with(self._sweep)

    async def stop(self, grace: float = 3.0) -> None:
        """Stop accepting, and answer what runs; after `grace` seconds, cut the rest."""
        self.connections.close()
        for connection in self.connections:
            connection.stop()
        await self.connections.drain(grace)
        await self.connections.end()

    def now(self) -> float:
        """Return seconds of a monotonic clock."""
        return time.monotonic()

    def caller(self) -> Caller:
        """Return the access control of a new connection."""
        return Caller(self._access, self._quotas)

    def admit(self, connection: TextConnection) -> bool:
        """Register a connection; False if there are too many."""
        self.connections.add(connection)
        is_full = len(self.connections) > self._connections_max
        if is_full and not self.unauthenticated:
            self.counters.refuse()
            self._log_once("refused a connection of the text protocol: there are too many")
            return False
        if connection.is_unauthenticated:
            dropped = self.unauthenticated.add(connection, connection.remote, is_full=is_full)
            if dropped is not None:
                self.counters.dropped += 1
                self._log_once("dropped a connection of the text protocol before AUTH")
                dropped.abort()
        return True

    def authenticated(self, connection: TextConnection) -> None:
        """Count a connection among those of known callers."""
        self.unauthenticated.remove(connection)

    def late(self, connection: TextConnection) -> None:
        """Count and log a connection that ends without authentication."""
        self.counters.timeouts += 1
        self._log_once("closing a connection of the text protocol: no AUTH in time")

    def _log_once(self, said: str) -> None:
        """Log at most once a minute, whatever the address."""
        if times := self._complaints.due(self.now(), said):
            log.warning(said, extra={"connections": len(self.connections), "times": times})

    def forget(self, connection: TextConnection) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)
        self.unauthenticated.remove(connection)

    def malformed(self, connection: TextConnection, why: str) -> None:
        """Count and log an invalid frame, after which the connection ends."""
        self.counters.malformed += 1
        if times := self._complaints.due(self.now(), "malformed", "", connection.remote):
            fields = {"from": connection.remote, "why": why, "times": times}
            log.warning("closing a connection of the text protocol: invalid frame", extra=fields)

    def unexpected(self, error: Exception) -> None:
        """Log a fault of this node."""
        log.error("a command of the text protocol failed", exc_info=error)

    def _sweep(self, tick: int) -> None:
        now = self.now()
        for connection in self.connections:
            connection.sweep(now)
