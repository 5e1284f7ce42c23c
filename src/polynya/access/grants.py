"""Verbs, scopes and principals: the permissions of a caller. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from polynya.access.rate_limits import Meter
from polynya.base.limits import TOKEN_NAME_BYTES_MAX, TOKEN_SCOPES_MAX
from polynya.base.names import BadName, canonical_prefix


class Verb:
    """The verbs of scopes."""

    READ = "read"
    APPEND = "append"
    CREATE = "create"
    DELETE = "delete"
    SNAPSHOT = "snapshot"
    SUBSCRIBE = "subscribe"
    TABLE = "table"
    METRICS = "metrics"
    ADMIN = "admin"


VERBS = {
    Verb.READ: "read streams, follow them, list them and tables",
    Verb.APPEND: "append to streams and close them",
    Verb.CREATE: "create streams and fork them",
    Verb.DELETE: "delete streams and change what is kept of them",
    Verb.SNAPSHOT: "with append: publish and delete snapshots, which readers begin with",
    Verb.SUBSCRIBE: "create, change, claim and delete subscriptions",
    Verb.TABLE: "create tables",
    Verb.METRICS: "scrape the metrics",
    Verb.ADMIN: "everything above on all streams, and the admin port: tokens, flushes, plans and commits",
}
_WITHOUT_PREFIX = frozenset((Verb.METRICS, Verb.ADMIN))
# not in `all`: a writer must not replace what all readers begin with
_NOT_IN_ALL = _WITHOUT_PREFIX | {Verb.SNAPSHOT}


class BadScope(ValueError):
    """The text is not a valid scope; the message has the reason."""


class Grant(msgspec.Struct, frozen=True):
    """Verbs allowed on all streams whose canonical name begins with `prefix`. `exact`: on the one
    stream that has it as its name."""

    verbs: frozenset[str]
    prefix: str = ""
    exact: bool = False


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Limits of one principal on the node; 0 is unlimited. `bytes_per_second` counts bodies in both
    directions. `streams` counts all streams under its prefixes, whatever their creator."""

    requests_per_second: float = 0
    bytes_per_second: int = 0
    streams: int = 0
    connections: int = 0


NO_LIMITS = Limits()


class Proven(msgspec.Struct, frozen=True):
    """The claims of a valid JWT. `issued_ms` is 0 without `iat`."""

    subject: str
    grants: tuple[Grant, ...]
    expires_ms: int
    issued_ms: int = 0
    jti: str = ""


class Principal(msgspec.Struct, eq=False, kw_only=True, weakref=True):
    """An authenticated caller. `expires_ms` is wall time. Only `alive` changes, once, to false."""

    id: str
    name: str  # shown in the audit log
    grants: tuple[Grant, ...]
    expires_ms: int | None = None
    limits: Limits = NO_LIMITS
    meter: Meter | None = None
    alive: bool = True
    jwt: Proven | None = None  # the JWT that authenticated it, else None
    minter: Principal | None = None  # of a short token: the token that signed it

    @property
    def is_admin(self) -> bool:
        return any(Verb.ADMIN in grant.verbs for grant in self.grants)

    def may(self, verb: str, name: str) -> bool:
        """Return True if the verb is allowed on a canonical name, or on all names with a prefix
        that ends in a slash, which is no name."""
        return any(
            (
                verb in grant.verbs
                and (name == grant.prefix if grant.exact else name.startswith(grant.prefix))
            )
            or Verb.ADMIN in grant.verbs
            for grant in self.grants
        )

    def covers(self, verb: str, prefix: str) -> bool:
        """Return True if the verb is allowed on all names with any prefix, which may be a name,
        too."""
        return any(
            (verb in grant.verbs and not grant.exact and prefix.startswith(grant.prefix))
            or Verb.ADMIN in grant.verbs
            for grant in self.grants
        )

    def may_somewhere(self, verb: str) -> bool:
        return any(verb in grant.verbs or Verb.ADMIN in grant.verbs for grant in self.grants)

    def prefixes(self, verb: str) -> list[str]:
        """Return the disjoint prefixes under which the verb is allowed; [""] is everywhere. A grant
        for one stream has none."""
        return disjoint(
            "" if Verb.ADMIN in grant.verbs else grant.prefix
            for grant in self.grants
            if grant.verbs & {verb, Verb.ADMIN} and not grant.exact
        )


def disjoint(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes without those that begin with another one."""
    found: list[str] = []
    for prefix in sorted(set(prefixes)):  # one that begins with another follows it
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found


def parse_scope(text: str) -> Grant:
    """Parse `VERB[,VERB…][:PREFIX]`, such as `read,append:orders/`. A prefix is spelled as under
    `/v1/stream/`; none means all streams.

    `all` is every verb except `snapshot` and those without a prefix. Raise `BadScope`.
    """
    words, colon, prefix = text.strip().partition(":")
    verbs = frozenset(word.strip().lower() for word in words.split(",") if word.strip())
    if "all" in verbs:
        verbs = verbs - {"all"} | (VERBS.keys() - _NOT_IN_ALL)
    unknown = sorted(verbs - VERBS.keys())
    if unknown or not verbs:
        what = f"'{unknown[0]}' is not a verb" if unknown else f"'{text}' names no verb"
        raise BadScope(
            f"{what}: a scope is VERB[,VERB][:PREFIX] with {', '.join(VERBS)} or all, such as "
            "read,append:orders/"
        )
    if prefix and verbs & _WITHOUT_PREFIX:
        raise BadScope(
            f"{' and '.join(sorted(verbs & _WITHOUT_PREFIX))} cannot be limited to a prefix: give "
            "it in a scope of its own"
        )
    if colon and not prefix:
        raise BadScope("the prefix after ':' is empty; leave out the ':' to mean all streams")
    try:
        return Grant(verbs, canonical_prefix(prefix))
    except BadName as bad:
        raise BadScope(f"'{prefix}' is not a prefix of stream names: {bad}") from None


def parse_scopes(texts: Iterable[str]) -> tuple[Grant, ...]:
    """Parse scopes. Raise `BadScope`, also for none and for too many."""
    grants = tuple(parse_scope(text) for text in texts)
    if not grants:
        raise BadScope("a token needs at least one scope, such as read,append:orders/")
    if len(grants) > TOKEN_SCOPES_MAX:
        raise BadScope(f"a token has at most {TOKEN_SCOPES_MAX} scopes")
    return grants


def check_name(name: str) -> str:
    """Return a valid token name. Raise `BadScope`."""
    if not name or len(name.encode()) > TOKEN_NAME_BYTES_MAX or not name.isprintable():
        raise BadScope(f"a token's name has 1 to {TOKEN_NAME_BYTES_MAX} bytes, all printable")
    return name
