"""The scopes of tokens as ACLs, for Kafka's tools to see: what a token allows on the Kafka port.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from polynya.access.grants import Grant, Verb
from polynya.access.kafka_acls import CLUSTER_NAME, EVERYBODY, Acl, Kind, Operation, Pattern
from polynya.access.token_file import TokenRecord
from polynya.base.names import KAFKA_PREFIX, RESERVED_LATER

_O = Operation
_OF_TOPIC = {
    Verb.READ: (_O.READ, _O.DESCRIBE_CONFIGS),
    Verb.APPEND: (_O.WRITE, _O.DESCRIBE_CONFIGS),
    Verb.CREATE: (_O.CREATE, _O.ALTER, _O.DESCRIBE_CONFIGS),
    Verb.DELETE: (_O.DELETE, _O.ALTER_CONFIGS, _O.DESCRIBE_CONFIGS),
}
_KINDS = (Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID)


def acls_of_tokens(records: Iterable[TokenRecord], now_ms: int) -> set[Acl]:
    """Return what the scopes of active tokens allow."""
    return {
        acl
        for record in records
        if record.state(now_ms) == "active"
        for grant in record.grants
        for acl in _acls_of(record.name, grant)
    }


def _acls_of(user: str, grant: Grant) -> Iterator[Acl]:
    if Verb.ADMIN in grant.verbs:
        for kind in _KINDS:
            yield Acl(user, kind, EVERYBODY, Pattern.LITERAL, _O.ALL)
        yield Acl(user, Kind.CLUSTER, CLUSTER_NAME, Pattern.LITERAL, _O.ALL)
        return
    found = pattern_of(grant.prefix)
    if found is None:
        return
    pattern, name = found
    topic = name[1:] if name[:1] == "~" and name[1:] in RESERVED_LATER else name
    operations = {each for verb in grant.verbs for each in _OF_TOPIC.get(verb, ())}
    if grant.verbs >= _OF_TOPIC.keys():
        operations = {_O.ALL}
    for operation in sorted(operations):
        yield Acl(user, Kind.TOPIC, topic, pattern, operation)
    if Verb.SUBSCRIBE in grant.verbs:
        yield Acl(user, Kind.GROUP, name, pattern, _O.ALL)
    if Verb.APPEND in grant.verbs:
        yield Acl(user, Kind.TRANSACTIONAL_ID, name, pattern, _O.ALL)


def pattern_of(prefix: str) -> tuple[Pattern, str] | None:
    """Return the pattern of the names that a scope's prefix has on the Kafka port; None: it has
    none."""
    if KAFKA_PREFIX.startswith(prefix):
        return Pattern.LITERAL, EVERYBODY
    if not prefix.startswith(KAFKA_PREFIX):
        return None
    name, slash, rest = prefix[len(KAFKA_PREFIX) :].partition("/")
    if slash:
        return None if rest else (Pattern.LITERAL, name)
    return Pattern.PREFIXED, name
