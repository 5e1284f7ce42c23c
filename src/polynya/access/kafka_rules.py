"""The rules that Kafka's tools make of users: their ACLs and quotas, as kept beside the tokens.
Pure.

They are one state with a version, and not a union as tokens are: an ACL that was deleted must not
come back from an older copy. Of two states of one origin the newer one counts; of two origins that
of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from polynya.access.kafka_acls import EVERYBODY, Acl, Allowed, BadAcl, Kind, Operation, Pattern
from polynya.base.limits import ACLS_MAX, ACLS_OF_USER_MAX, USER_QUOTAS_MAX

DEFAULT_USER = ""  # its quota is that of each user without one


class BadQuota(ValueError):
    """A quota that cannot be stored; the message says why and what to do."""


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """The quota of a user on each node; 0: none."""

    producer_byte_rate: int = 0
    consumer_byte_rate: int = 0


class KafkaRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ACLs and quotas of a node or cluster. `since_ms`, the time of the first change, tells one
    origin from another; `version` counts the changes."""

    since_ms: int = 0
    version: int = 0
    acls: tuple[Acl, ...] = ()
    quotas: dict[str, Quota] = {}

    def allowed(self, user: str) -> Allowed:
        """Return what the ACLs of a user and of everybody allow."""
        return Allowed(acl for acl in self.acls if acl.user in (user, EVERYBODY))

    def quota(self, user: str) -> Quota | None:
        return self.quotas.get(user) or self.quotas.get(DEFAULT_USER)


NO_RULES = KafkaRules()


def newer(one: KafkaRules, other: KafkaRules) -> KafkaRules:
    """Return the newer of two states; `one` is that of the cluster."""
    if not one.version or (one.since_ms == other.since_ms and other.version > one.version):
        return other
    return one


def changed(
    rules: KafkaRules,
    now_ms: int,
    *,
    acls: Iterable[Acl] | None = None,
    quotas: dict[str, Quota] | None = None,
) -> KafkaRules:
    """Return the next version of the rules; the same ones if nothing differs."""
    after_acls = rules.acls if acls is None else tuple(sorted(set(acls)))
    after_quotas = rules.quotas if quotas is None else dict(sorted(quotas.items()))
    if (after_acls, after_quotas) == (rules.acls, rules.quotas):
        return rules
    return KafkaRules(rules.since_ms or now_ms, rules.version + 1, after_acls, after_quotas)


def with_acls(rules: KafkaRules, more: Iterable[Acl], now_ms: int) -> KafkaRules:
    """Add ACLs; one that exists stays as it is. Raises BadAcl if there are too many."""
    after = changed(rules, now_ms, acls=(*rules.acls, *more))
    if len(after.acls) > ACLS_MAX:
        raise BadAcl(f"there may be {ACLS_MAX} ACLs: delete some, or use prefixes")
    counts = dict[str, int]()
    for acl in after.acls:
        counts[acl.user] = counts.get(acl.user, 0) + 1
        if counts[acl.user] > ACLS_OF_USER_MAX:
            raise BadAcl(
                f"{acl.principal} may have {ACLS_OF_USER_MAX} ACLs: delete some, or use prefixes"
            )
    return after


def without_acls(rules: KafkaRules, gone: Iterable[Acl], now_ms: int) -> KafkaRules:
    """Delete ACLs."""
    return changed(rules, now_ms, acls=set(rules.acls) - set(gone))


def with_quota(rules: KafkaRules, user: str, quota: Quota, now_ms: int) -> KafkaRules:
    """Set the quota of a user; one of zeros deletes it. Raises BadQuota if there are too many."""
    quotas = {each: known for each, known in rules.quotas.items() if each != user}
    if quota != Quota():
        quotas[user] = quota
    if len(quotas) > USER_QUOTAS_MAX:
        raise BadQuota(f"{USER_QUOTAS_MAX} users may have a quota: delete some")
    return changed(rules, now_ms, quotas=quotas)


# --- as values of the meta group ------------------------------------------------------------------

_HEAD, _ACLS, _QUOTA = "kafka", "acl/", "quota/"
_Stored = tuple[Kind, str, Pattern, Operation]


def is_rules_key(key: str) -> bool:
    """Report whether a key of the meta group is one of the rules."""
    return key == _HEAD or key.startswith((_ACLS, _QUOTA))


def encode_rules(rules: KafkaRules) -> dict[str, bytes]:
    """Encode the rules: a value with the version, and one for each user's ACLs and quota."""
    if not rules.version:
        return {}
    by_user = dict[str, list[_Stored]]()
    for acl in rules.acls:
        by_user.setdefault(acl.user, []).append((acl.kind, acl.name, acl.pattern, acl.operation))
    encode = msgspec.json.encode
    return {
        _HEAD: encode((rules.since_ms, rules.version)),
        **{_ACLS + user: encode(acls) for user, acls in by_user.items()},
        **{_QUOTA + user: encode(quota) for user, quota in rules.quotas.items()},
    }


def decode_rules(values: dict[str, bytes]) -> KafkaRules:
    """Decode the values of `encode_rules`. Raises msgspec.MsgspecError."""
    if _HEAD not in values:
        return NO_RULES
    since_ms, version = msgspec.json.decode(values[_HEAD], type=tuple[int, int])
    acls, quotas = list[Acl](), dict[str, Quota]()
    for key in sorted(values):
        if key.startswith(_ACLS):
            user = key.removeprefix(_ACLS)
            for kind, name, pattern, operation in msgspec.json.decode(
                values[key], type=list[_Stored]
            ):
                acls.append(Acl(user, kind, name, pattern, operation))
        elif key.startswith(_QUOTA):
            quotas[key.removeprefix(_QUOTA)] = msgspec.json.decode(values[key], type=Quota)
    return KafkaRules(since_ms, version, tuple(sorted(acls)), quotas)
