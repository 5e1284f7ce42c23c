"""The connections of one core: their admission, the memory of their requests, and why they end."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from typing import NamedTuple

from polynya.access import Access
from polynya.base.log_throttle import LogThrottle
from polynya.front.common.connection_set import ConnectionSet
from polynya.front.common.stream_quotas import StreamQuotas
from polynya.front.common.unauthenticated import Unauthenticated
from polynya.front.kafka.auth.caller import EVERYBODY, Caller, TokenCaller
from polynya.front.kafka.auth.user_admin import UserAdmin
from polynya.front.kafka.call import Connection
from polynya.front.kafka.context import Context
from polynya.front.kafka.request_memory import Frame, RequestMemory
from polynya.wire.kafka.primitives import Malformed

log = logging.getLogger("polynya.kafka")


class KafkaProtection(NamedTuple):
    """The protection of the port. `access` None: no access control. `cores` share the quotas.
    `user_admin`: for Kafka's tools that change users and ACLs."""

    access: Access | None = None
    tls: ssl.SSLContext | None = None
    cores: int = 1
    user_admin: UserAdmin | None = None


class Connections:
    """The connections of one core."""

    def __init__(self, context: Context, protection: KafkaProtection, connections_max: int) -> None:
        self.context = context
        self.open = ConnectionSet[Connection]()
        self.ticks = self.open.ticks
        self.memory = RequestMemory(self._steer_waiting)
        self.waiting: set[Connection] = set()  # connections that are not read
        self.unauthenticated = Unauthenticated[Connection](connections_max)
        self._connections_max = connections_max
        self._quotas = StreamQuotas(protection.cores)
        self._access = protection.access
        if self._access is not None:
            self._access.on_deaths.append(self.let_go)
        self._complaints = LogThrottle()

    def __len__(self) -> int:
        return len(self.open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self.open)

    def caller(self) -> Caller:
        """Return the caller of a new connection."""
        if self._access is None:
            return EVERYBODY
        return TokenCaller(self._access, self._quotas, self.context.service)

    def let_go(self) -> None:
        """Close the connections of revoked and expired tokens."""
        for connection in self:
            caller = connection.caller
            if isinstance(caller, TokenCaller) and caller.is_revoked:
                self.complain("closed a Kafka connection: its token has ended", connection)
                connection.abort()

    def refuse(self) -> None:
        """Count and log a connection that is not taken in."""
        self.context.counters.connections_refused += 1
        if not self.open.stopping:
            self._log_once("refused a Kafka connection: there are too many")

    def _log_once(self, said: str) -> None:
        """Log at most once a minute, whatever the address."""
        if times := self._complaints.due(asyncio.get_running_loop().time(), said):
            fields = {"connections": len(self.open), "times": times}
            log.warning(said, extra=fields | {"unauthenticated": len(self.unauthenticated)})

    def admit(self, connection: Connection) -> bool:
        """Take a connection in; return False if there are too many."""
        self.context.counters.connections_opened += 1
        is_full = len(self.open) >= self._connections_max
        if self.open.stopping or (is_full and not self.unauthenticated):
            self.refuse()
            return False
        if connection.caller.is_unknown:
            dropped = self.unauthenticated.add(connection, connection.remote, is_full=is_full)
            if dropped is not None:
                self._drop(dropped)
        self.open.add(connection)
        self._count()
        return True

    def authenticated(self, connection: Connection) -> None:
        """Count a connection among those of known callers."""
        self.unauthenticated.remove(connection)
        self._count()

    def _count(self) -> None:
        self.context.counters.connections = len(self.open)
        self.context.counters.unauthenticated = len(self.unauthenticated)

    def _drop(self, connection: Connection) -> None:
        """Drop a connection that has not authenticated, for a newer one."""
        self.context.counters.connections_dropped += 1
        self._log_once("dropped a Kafka connection before authentication: there are too many")
        self.open.discard(connection)
        connection.abort()

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self.open.discard(connection)
        self.unauthenticated.remove(connection)
        self._count()
        self.waiting.discard(connection)

    def complain(self, said: str, connection: Connection, error: Exception | None = None) -> None:
        """Log why a connection is closed, at most once a minute for each reason and address."""
        self.context.counters.malformed += isinstance(error, Malformed)
        times = self._complaints.due(asyncio.get_running_loop().time(), said, connection.remote)
        if times:
            extra = {"from": connection.remote, "times": times, "error": str(error or "")}
            log.warning(said, extra=extra)

    def begin(self, connection: Connection, first: memoryview, size: int) -> Frame:
        """Begin a large request, which holds memory from its first bytes to its answer."""
        return Frame(self.memory, connection.caller.key(connection.remote), first, size)

    def _steer_waiting(self) -> None:
        for connection in tuple(self.waiting):
            connection.steer()
