"""ACLs as Kafka's tools make them: their codes, their validity, and what they allow. Pure.

An ACL allows an operation on names to the principal `User:NAME`: the token, or the subject of the
JWT, of that name. It holds on the Kafka port, beside the scopes of a token. See
docs/design/kafka-access.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from polynya.base.limits import ACL_NAME_BYTES_MAX, TOKEN_NAME_BYTES_MAX

EVERYBODY = "*"  # a user: all of them; a literal name: all names; a host: all hosts
CLUSTER_NAME = "kafka-cluster"
USER = "User:"


class Kind(enum.IntEnum):
    """The types of resources (org.apache.kafka.common.resource.ResourceType)."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(enum.IntEnum):
    """The types of patterns (org.apache.kafka.common.resource.PatternType)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    """The operations (org.apache.kafka.common.acl.AclOperation)."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    """The types of permissions (org.apache.kafka.common.acl.AclPermissionType)."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_O = Operation
OPERATIONS: dict[Kind, tuple[Operation, ...]] = {
    Kind.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    Kind.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    Kind.CLUSTER: (_O.CREATE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.IDEMPOTENT_WRITE),
    Kind.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE),
}
"""The operations that each type of resource has here; `ALL` are these, but of the cluster."""
_ADMIN_ALONE = (_O.ALL, _O.ALTER, _O.CLUSTER_ACTION, _O.ALTER_CONFIGS)
# Kafka's implications (AclOperation): who may do the first may do the second
_IMPLIED = {
    _O.DESCRIBE: (_O.READ, _O.WRITE, _O.DELETE, _O.ALTER),
    _O.DESCRIBE_CONFIGS: (_O.ALTER_CONFIGS,),
}


class BadAcl(ValueError):
    """An ACL that cannot be stored; the message says why and what to do."""


class RefusedAcl(BadAcl):
    """An ACL of Kafka's that a node does not enforce."""


class Acl(msgspec.Struct, frozen=True, order=True):
    """A user's right to one operation on the names of a pattern, from any host."""

    user: str  # `EVERYBODY`: all
    kind: Kind
    name: str  # `EVERYBODY` in a literal pattern: all
    pattern: Pattern
    operation: Operation

    @property
    def principal(self) -> str:
        return USER + self.user

    def __str__(self) -> str:
        """Return the text for a line of the audit log."""
        return (
            f"{self.principal} {self.operation.name} on {self.kind.name} {self.pattern.name} "
            f"{self.name}"
        )


class AclFilter(msgspec.Struct, frozen=True):
    """A filter of ACLs; None and ANY match each."""

    kind: int = Kind.ANY
    name: str | None = None
    pattern: int = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Report whether the filter has an ACL, as AclBindingFilter and ResourcePatternFilter."""
        return (
            self.kind in (Kind.ANY, acl.kind)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, EVERYBODY)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, Permission.ALLOW)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern != Pattern.MATCH:
            return self.name == acl.name
        if acl.pattern == Pattern.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, EVERYBODY)


def made_acl(  # noqa: PLR0913
    *,
    kind: int,
    name: str,
    pattern: int,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> Acl:
    """Return the ACL of a request. Raises BadAcl, and RefusedAcl for one that a node does not
    enforce."""
    known = _kind(kind)
    if pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        raise BadAcl(f"pattern type {pattern} is of filters; expected literal (3) or prefixed (4)")
    if not 0 < len(name.encode()) <= ACL_NAME_BYTES_MAX:
        raise BadAcl(f"the name of a resource has 1 to {ACL_NAME_BYTES_MAX} bytes")
    if known == Kind.CLUSTER and (name != CLUSTER_NAME or pattern != Pattern.LITERAL):
        raise BadAcl(f"the only name of the cluster is the literal '{CLUSTER_NAME}'")
    wanted = _operation(known, operation)
    if permission == Permission.DENY:
        raise RefusedAcl("DENY is not supported: what no ACL and no scope allows is denied")
    if permission != Permission.ALLOW:
        raise BadAcl(f"permission type {permission} is not one of an ACL; expected ALLOW (3)")
    if host != EVERYBODY:
        raise RefusedAcl(f"the host is '{host[:100]}'; only '*' is supported: a firewall has hosts")
    return Acl(_user(principal), known, name, Pattern(pattern), wanted)


def _kind(kind: int) -> Kind:
    found = next((each for each in OPERATIONS if each == kind), None)
    if found is not None:
        return found
    expected = "expected topic (2), group (3), cluster (4) or transactional id (5)"
    if kind in (Kind.DELEGATION_TOKEN, Kind.USER):
        raise RefusedAcl(f"there are no ACLs of {Kind(kind).name} here; {expected}")
    raise BadAcl(f"resource type {kind} has no ACLs; {expected}")


def _operation(kind: Kind, operation: int) -> Operation:
    if operation not in tuple(Operation) or operation in (Operation.UNKNOWN, Operation.ANY):
        raise BadAcl(f"operation {operation} is not one of an ACL")
    wanted = Operation(operation)
    if kind == Kind.CLUSTER and wanted in _ADMIN_ALONE:
        raise RefusedAcl(
            f"{wanted.name} on the cluster is for tokens with 'admin' alone: see 'polynya token "
            "create'"
        )
    if wanted != Operation.ALL and wanted not in OPERATIONS[kind]:
        names = ", ".join(each.name for each in OPERATIONS[kind])
        raise RefusedAcl(f"{wanted.name} has no effect on {kind.name}; expected one of {names}")
    return wanted


def _user(principal: str) -> str:
    user = principal.removeprefix(USER)
    is_valid = 0 < len(user.encode()) <= TOKEN_NAME_BYTES_MAX and user.isprintable()
    if not principal.startswith(USER) or not is_valid:
        raise (RefusedAcl if ":" in principal else BadAcl)(
            f"the principal is '{principal[:100]}'; expected User:NAME, with the name of a token, "
            f"the subject of a JWT or '*', of 1 to {TOKEN_NAME_BYTES_MAX} printable bytes"
        )
    return user


def check_filter(wanted: AclFilter) -> AclFilter:
    """Return a filter whose codes are known. Raises BadAcl."""
    for value, codes in (
        (wanted.kind, Kind),
        (wanted.pattern, Pattern),
        (wanted.operation, Operation),
        (wanted.permission, Permission),
    ):
        if not value or value not in tuple(codes):
            raise BadAcl(f"{value} is no {codes.__name__.lower()} of a filter of ACLs")
    return wanted


class Allowed:
    """The operations that the ACLs of one user and of everybody allow."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._literal: dict[tuple[Kind, str], set[Operation]] = {}
        self._prefixed: dict[tuple[Kind, str], set[Operation]] = {}
        for acl in acls:
            table = self._literal if acl.pattern == Pattern.LITERAL else self._prefixed
            table.setdefault((acl.kind, acl.name), set()).update(implied(acl.kind, acl.operation))
        self._lengths = sorted({len(name) for _, name in self._prefixed})

    def may(self, kind: Kind, name: str, operation: Operation) -> bool:
        """Report whether an ACL allows the operation on a name."""
        literal = self._literal
        if operation in literal.get((kind, name), ()) or operation in literal.get(
            (kind, EVERYBODY), ()
        ):
            return True
        return any(
            operation in self._prefixed.get((kind, name[:length]), ())
            for length in self._lengths
            if length <= len(name)
        )

    def may_somewhere(self, kind: Kind, operation: Operation) -> bool:
        """Report whether an ACL allows the operation on any name."""
        return any(
            operation in operations
            for table in (self._literal, self._prefixed)
            for (each, _), operations in table.items()
            if each == kind
        )

    def names(self, kind: Kind, operation: Operation) -> list[tuple[Pattern, str]]:
        """Return the names and the prefixes on which an ACL allows the operation."""
        return [
            (pattern, name)
            for pattern, table in (
                (Pattern.LITERAL, self._literal),
                (Pattern.PREFIXED, self._prefixed),
            )
            for (each, name), operations in table.items()
            if each == kind and operation in operations
        ]


NOTHING = Allowed(())


def implied(kind: Kind, operation: Operation) -> set[Operation]:
    """Return the operations that an ACL's operation allows."""
    given = set(OPERATIONS[kind]) if operation == Operation.ALL else {operation}
    return given | {each for each, by in _IMPLIED.items() if given.intersection(by)}
