"""The administration of users, ACLs and quotas by Kafka clients: where their rules are kept, and
the audit of each change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from polynya.access import Access
from polynya.access.kafka_rules import KafkaRules
from polynya.access.token_file import AtRest
from polynya.base.errors import ConfigError, PolynyaError
from polynya.base.levels import USER_RULES_LEVEL
from polynya.front.kafka.auth.caller import Caller, TokenCaller
from polynya.front.kafka.errors import Error, error_of_fault

Made = TypeVar("Made")
Change = Callable[[AtRest], tuple[AtRest, Made]]
Record = Callable[[str, str, str, str, str, str], None]
"""Records an act, its target, the caller, its address, the outcome and the request's id."""
FAULTS = (ConfigError, PolynyaError)
Found = tuple[Error, str | None]
DISABLED: Found = (
    Error.SECURITY_DISABLED,
    "this node has no access control: set auth.required, and create a token with 'admin'",
)
_OLDER: Found = (
    Error.UNSUPPORTED_VERSION,
    f"this needs all nodes of the cluster at level {USER_RULES_LEVEL}: finish the upgrade",
)


# the acts of the audit log, by key: also of a caller that may not
ACTS = {30: "acl.create", 31: "acl.delete", 49: "user.quota", 51: "user.password"}


class RuleStore(Protocol):
    """The tokens and the rules, of this node or of the cluster. Raises ConfigError and
    PolynyaError."""

    async def load(self) -> AtRest: ...

    async def change(self, change: Change[Made], now_ms: int) -> Made: ...


class UserAdmin:
    """The rules as one core changes them."""

    def __init__(self, store: Callable[[], RuleStore], access: Access, record: Record) -> None:
        """`store` returns the present store: a node may join a cluster."""
        self._store = store
        self._access = access
        self._record = record

    async def load(self) -> AtRest:
        return await self._store().load()

    async def change(self, change: Change[Made]) -> Made:
        """Change tokens and rules. They hold on this core at once, and on the others within
        a second."""
        made = await self._store().change(change, now_ms())
        self._access.reload()
        return made

    def record(self, act: str, target: str, by: tuple[Caller, str], outcome: Error) -> None:
        """Write a line of the audit log. `by`: the caller and its address."""
        caller, remote = by
        principal = caller.principal if isinstance(caller, TokenCaller) else None
        who = "anybody" if principal is None else f"{principal.id} {principal.name}"
        name = "ok" if outcome == Error.NONE else Error(outcome).name
        self._record(act, target, who, remote, name, "")


def refusal(admin: UserAdmin | None, level: int) -> Found | None:
    """Return why users and ACLs are not served; None: they are."""
    if admin is None:
        return DISABLED
    return None if level >= USER_RULES_LEVEL else _OLDER


def fault_of(fault: BaseException) -> Found:
    """Return the error of a failed call."""
    if isinstance(fault, ConfigError):
        return Error.KAFKA_STORAGE_ERROR, str(fault)
    return error_of_fault(fault), str(fault)


def with_rules(known: AtRest, rules: KafkaRules) -> AtRest:
    """Return a state with other rules."""
    return AtRest(known.version, known.tokens, known.revoked_jwts, rules)


def now_ms() -> int:
    return int(time.time() * 1000)
