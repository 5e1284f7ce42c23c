"""The caller of one connection: what it may do, and the limits that it shares with its other
connections.

`Caller` is the seam that every handler goes through. Without access control it allows everything.
A key whose handler checks names itself is listed in `CHECKED`; each other one needs `admin`.
"""

from __future__ import annotations

from zlib import crc32

from polynya.access import Access, Principal
from polynya.access.grants import Verb, disjoint
from polynya.access.kafka_acls import CLUSTER_NAME, Kind, Operation, Pattern
from polynya.access.kafka_acls import EVERYBODY as ALL_NAMES
from polynya.access.rate_limits import Meter
from polynya.base.names import (
    KAFKA_PREFIX,
    consumer_group_folder,
    partition_name,
    topic_folder,
    transactional_id_folder,
)
from polynya.front.common.response_memory import network_of
from polynya.front.common.stream_quotas import StreamQuotas
from polynya.service.api import Service

PRODUCER_RATE, CONSUMER_RATE = "producer_byte_rate", "consumer_byte_rate"
_OPERATIONS = {
    Verb.READ: Operation.READ,
    Verb.APPEND: Operation.WRITE,
    Verb.CREATE: Operation.CREATE,
    Verb.DELETE: Operation.DELETE,
}
_DESCRIBING = (Verb.READ, Verb.APPEND, Verb.CREATE, Verb.DELETE)
# keys whose handlers check each topic, each group, or the verb of the whole request, or refuse all
CHECKED = frozenset(
    (
        *range(4),
        *range(8, 17),
        *range(19, 27),
        28,
        32,
        33,
        37,
        42,
        44,
        47,
        60,
        61,
        65,
        66,
        68,
        69,
        71,
        72,
        75,
    )
)
# ACLs, log directories, elections, reassignments, quotas, users, the quorum and the list of what has
# configs: of the cluster, not of a topic. The operation on the cluster is Kafka's; ACLs allow none
# that changes it
ADMINISTRATIVE = {
    27: Operation.CLUSTER_ACTION,
    29: Operation.DESCRIBE,
    30: Operation.ALTER,
    31: Operation.ALTER,
    34: Operation.ALTER,
    35: Operation.DESCRIBE,
    43: Operation.ALTER,
    45: Operation.ALTER,
    46: Operation.DESCRIBE,
    48: Operation.DESCRIBE_CONFIGS,
    49: Operation.ALTER_CONFIGS,
    50: Operation.DESCRIBE,
    51: Operation.ALTER,
    55: Operation.DESCRIBE,
    74: Operation.DESCRIBE_CONFIGS,
}
OPEN = frozenset((17, 18, 36))  # before authentication: the SASL keys and ApiVersions


class Caller:
    """The caller of a connection without access control: everything is allowed."""

    guarded = False  # requests need authentication
    meter: Meter | None = None

    @property
    def is_unknown(self) -> bool:
        """Report whether the caller has to authenticate, and has never done so."""
        return False

    def key(self, address: str) -> str:
        """Return the name under which the limits of this caller are counted: its token, else the
        network of its address."""
        return f"address {network_of(address)}"

    def may(self, verb: str, topic: str, operation: Operation | None = None) -> bool:
        """Report whether the verb is allowed on all partitions of a topic, or an ACL allows the
        operation; None: that of the verb."""
        return True

    def may_describe(self, topic: str, operation: Operation = Operation.DESCRIBE) -> bool:
        """Report whether the caller may know of a topic: it has any verb on it, or an ACL allows
        the operation."""
        return True

    def may_use_group(self, group: str, operation: Operation = Operation.READ) -> bool:
        """Report whether the caller may use a consumer group, or an ACL allows the operation."""
        return True

    def may_list_groups(self) -> bool:
        """Report whether an ACL shows the caller all consumer groups in lists."""
        return True

    def readable(self) -> list[str] | None:
        """Return the prefixes of the streams that the caller may read; None: all."""
        return None

    def may_use_transaction(self, id_: str, operation: Operation = Operation.WRITE) -> bool:
        """Report whether the caller may use a transactional id, or an ACL allows the operation."""
        return True

    @property
    def owner(self) -> int:
        """Return a number of the principal, which shares its limits; 0: without access control."""
        return 0

    def may_somewhere(self, verb: str) -> bool:
        """Report whether the verb is allowed on any prefix: for requests that name nothing."""
        return True

    def may_administer(self, operation: Operation = Operation.ALTER) -> bool:
        """Report whether the caller may do all, or an ACL allows the operation on the cluster."""
        return True

    def may_describe_all(self) -> bool:
        """Report whether the caller may know of every topic."""
        return True

    async def has_room(self, topic: str, partitions: int) -> bool:
        """Report whether the quota of streams allows so many new partitions of a topic."""
        return True

    def charge_fetched(self, size: int) -> None:
        """Charge the bytes of an answer to Fetch."""

    def release(self) -> None:
        """End the connection."""


EVERYBODY = Caller()


class TooManyConnections(Exception):
    """The token has as many connections as it may."""


class TokenCaller(Caller):
    """The caller of a connection that has to authenticate. It may do nothing until then."""

    guarded = True

    def __init__(self, access: Access, quotas: StreamQuotas, service: Service) -> None:
        self.access = access
        self.principal: Principal | None = None
        self._quotas = quotas
        self._meters: dict[str, Meter] = {}  # of the user's quotas; they live with its connections
        self._service = service

    @property
    def is_known(self) -> bool:
        """Report whether the caller is authenticated, and its token still valid."""
        return self.principal is not None and self.principal.alive

    @property
    def is_unknown(self) -> bool:
        return self.principal is None

    def key(self, address: str) -> str:
        return super().key(address) if self.principal is None else f"token {self.principal.id}"

    @property
    def is_revoked(self) -> bool:
        """Report whether the token was valid, and is no longer."""
        return self.principal is not None and not self.principal.alive

    def bind(self, principal: Principal) -> None:
        """Take over a proven principal. Raises `TooManyConnections`."""
        meter, most = principal.meter, principal.limits.connections
        shared = self.principal is not None and self.principal.meter is meter
        if most and meter is not None and meter.connections_everywhere >= most and not shared:
            self.access.counters.limited += 1
            raise TooManyConnections(f"the token may have {most} connections open; close one")
        self.release()
        self.principal = principal
        if meter is not None:
            meter.connections += 1
            self.meter = meter if any(meter.rates) else None

    def release(self) -> None:
        known, self.principal, self.meter = self.principal, None, None
        if known is not None and known.meter is not None:
            known.meter.connections -= 1

    def may(self, verb: str, topic: str, operation: Operation | None = None) -> bool:
        wanted = operation or _OPERATIONS[verb]
        return self._counted(
            self._has(verb, topic_folder(topic))
            or self._acl(Kind.TOPIC, topic, wanted)
            or (wanted == Operation.CREATE and self._acl(Kind.CLUSTER, CLUSTER_NAME, wanted))
        )

    def may_describe(self, topic: str, operation: Operation = Operation.DESCRIBE) -> bool:
        folder = topic_folder(topic)
        return any(self._has(verb, folder) for verb in _DESCRIBING) or self._acl(
            Kind.TOPIC, topic, operation
        )

    def may_use_group(self, group: str, operation: Operation = Operation.READ) -> bool:
        return self._counted(
            self._has(Verb.SUBSCRIBE, consumer_group_folder(group))
            or self._acl(Kind.GROUP, group, operation)
        )

    def may_list_groups(self) -> bool:
        return self._acl(Kind.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)

    def readable(self) -> list[str] | None:
        prefixes = [] if self.principal is None else self._prefixes(self.principal, Verb.READ)
        return None if "" in prefixes else prefixes

    def may_use_transaction(self, id_: str, operation: Operation = Operation.WRITE) -> bool:
        return self._counted(
            self._has(Verb.APPEND, transactional_id_folder(id_))
            or self._acl(Kind.TRANSACTIONAL_ID, id_, operation)
        )

    @property
    def owner(self) -> int:
        return 0 if self.principal is None else crc32(self.principal.id.encode()) or 1

    def may_somewhere(self, verb: str) -> bool:
        principal = self.principal
        if principal is None:
            return self._counted(False)
        acls = self.access.allowed(principal)
        return self._counted(
            principal.may_somewhere(verb)
            or acls.may_somewhere(Kind.TOPIC, _OPERATIONS[verb])
            or (
                verb == Verb.APPEND and acls.may_somewhere(Kind.CLUSTER, Operation.IDEMPOTENT_WRITE)
            )
        )

    def may_administer(self, operation: Operation = Operation.ALTER) -> bool:
        is_admin = self.principal is not None and self.principal.is_admin
        return self._counted(is_admin or self._acl(Kind.CLUSTER, CLUSTER_NAME, operation))

    def may_describe_all(self) -> bool:
        principal = self.principal
        return principal is not None and any(principal.may(verb, "") for verb in _DESCRIBING)

    async def has_room(self, topic: str, partitions: int) -> bool:
        principal = self.principal
        if principal is None or not principal.limits.streams:
            return principal is not None
        name = partition_name(topic, 0)
        prefixes = self._prefixes(principal, Verb.CREATE)
        found = await self._quotas.has_room(self._service, principal, name, partitions, prefixes)
        self.access.counters.limited += not found
        return found

    def quota_of(self, kind: str) -> Meter | None:
        """Return the meter of the user's quota of this kind; None: it has none."""
        found = None if self.principal is None else self.access.quota_meter(self.principal, kind)
        if found is not None:
            self._meters[kind] = found
        return found

    def charge_fetched(self, size: int) -> None:
        meter = self.quota_of(CONSUMER_RATE)
        if meter is not None:
            meter.charge(size)

    def _prefixes(self, principal: Principal, verb: str) -> list[str]:
        """Return the disjoint prefixes of the streams on which a scope or an ACL allows a verb."""
        operation, acls = _OPERATIONS[verb], self.access.allowed(principal)
        found = principal.prefixes(verb)
        for pattern, name in acls.names(Kind.TOPIC, operation):
            if pattern == Pattern.PREFIXED:
                found.append(KAFKA_PREFIX + name)
            else:
                found.append(KAFKA_PREFIX if name == ALL_NAMES else topic_folder(name))
        if acls.may(Kind.CLUSTER, CLUSTER_NAME, operation):
            found.append(KAFKA_PREFIX)
        return disjoint(found)

    def _has(self, verb: str, name: str) -> bool:
        return self.principal is not None and self.principal.may(verb, name)

    def _acl(self, kind: Kind, name: str, operation: Operation) -> bool:
        principal = self.principal
        return principal is not None and self.access.allowed(principal).may(kind, name, operation)

    def _counted(self, allowed: bool) -> bool:
        self.access.counters.forbidden += not allowed
        return allowed
