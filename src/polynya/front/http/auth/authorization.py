"""Authorization: map each request to a verb and a name, and check the caller's permission and
limits.

Paths that are not listed here need `admin`, so a new route is closed until it gets a rule.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode
from collections.abc import Callable

from polynya.access import Access, Denied, KeysUnknown, Principal
from polynya.access.grants import Verb
from polynya.base.limits import URL_TOKEN_SECONDS_MAX
from polynya.base.names import consumer_group_folder, spelled_name, transactional_id_folder
from polynya.front.common.stream_quotas import StreamQuotas
from polynya.front.http.api.buckets import PATH as BUCKETS
from polynya.front.http.api.buckets import PROFILE
from polynya.front.http.api.iceberg_catalog import MOUNT as CATALOG
from polynya.front.http.api.kafka.mirror import PREFIX as MIRROR
from polynya.front.http.api.kafka.topics import PATH as TOPICS
from polynya.front.http.api.kafka.topics import prefix_of
from polynya.front.http.api.profiles import PREFIX as PROFILES
from polynya.front.http.api.segments import PREFIX as SEGMENTS
from polynya.front.http.api.short_tokens import PATH as SHORT_TOKENS
from polynya.front.http.auth.cookies import TokenCookie, check_cookie_rights
from polynya.front.http.protocol.errors import Failure, is_registry
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.extension import READS_BY_POST
from polynya.front.http.protocol.peer import Peer
from polynya.front.http.protocol.router import Route, RouteKind
from polynya.front.http.reducers.routes import MODULE
from polynya.front.http.reducers.routes import PATH as REDUCERS
from polynya.front.http.registry.log import PREFIX as SCHEMAS
from polynya.front.http.routes.table import dispatch, handle
from polynya.wire.http.http1 import Head

Audit = Callable[[str, str, str, str, str, str], None]
"""Audit callback: (operation, target, principal's id and name, address, outcome, request id)."""

_ANYBODY = frozenset(
    (
        "/",
        "/livez",
        "/readyz",
        "/health",
        "/v1/cluster/health",
        "/console",
        "/favicon.ico",
        "/v1/stream/__ds/jwks.json",
        "/v1/streams/__ds/jwks.json",
    )
)
# public, with more details for an authenticated caller
_MORE_WITH_TOKEN = frozenset(("/v1/cluster/health",))
_ANYBODY_BELOW = "/console/"  # pages without data, which they request with the user's token
RECENT = "/v1/node/recent"  # the figures of the last 24 hours
_GROUPS = "/v1/groups"
_TRANSACTIONS = "/v1/transactions"
_SUBSCRIPTIONS = ("/v1/stream/__ds/", "/v1/streams/__ds/")
# of a subscription, authenticated by the token of the wake
_WORK = frozenset(("callback", "ack", "release", "retry"))
_READ_ONLY = frozenset(
    (RouteKind.SNAPSHOTS, RouteKind.BOOTSTRAP, RouteKind.STATE, RouteKind.IMMUTABLE)
)
_STREAM = {
    "GET": Verb.READ,
    "HEAD": Verb.READ,
    "POST": Verb.APPEND,
    "PUT": Verb.CREATE,
    "DELETE": Verb.DELETE,
}
# audit names of admin operations …
_ACTS = {
    RouteKind.STREAM: "stream.delete",
    RouteKind.RETENTION: "stream.retention",
}
# … except with these methods
_HARMLESS = {
    RouteKind.STREAM: ("GET", "HEAD", "POST", "PUT", "PATCH"),
    RouteKind.RETENTION: ("GET", "HEAD"),
}
_OF_EVENTS = (RouteKind.STREAM, RouteKind.LIVE, RouteKind.BOOTSTRAP)
_CHALLENGE = (("WWW-Authenticate", "Bearer"),)
_CHALLENGE_AGAIN = (("WWW-Authenticate", 'Bearer error="invalid_token"'),)


class Authorizer:
    """The authorizer of one exchange.context. `admin_only`: everything but the node's health needs `admin`, as
    on the admin port. `cores` share the quotas."""

    def __init__(
        self,
        access: Access,
        *,
        audit: Audit,
        admin_only: bool = False,
        cores: int = 1,
        cookie: TokenCookie | None = None,
    ) -> None:
        self._access = access
        self._audit = audit
        self._admin_only = admin_only
        self._cookie = cookie
        self._quotas = StreamQuotas(cores)

    # --- requests ---------------------------------------------------------------------------------

    def authorize(self, exchange: Exchange) -> bool:
        """Authorize a request. Return True to dispatch it now; False if it gets its response, or is
        dispatched, later. Raises `Failure`."""
        peer = exchange.peer
        method, path = exchange.head.method, exchange.route.path
        if method == "OPTIONS" or is_open(path):
            return path not in _MORE_WITH_TOKEN or self._recognize(exchange)
        try:
            principal = self._access.identify(self._credential(exchange), short=True)
        except KeysUnknown:
            exchange.spawn(self._ask_again(exchange))
            return False
        except Denied as denied:
            self._access.counters.denied += 1
            raise Failure("TOKEN_REFUSED", str(denied), _CHALLENGE_AGAIN) from None
        self._check_user(exchange, principal)
        exchange.principal = principal
        self._check_source(exchange, principal)
        self._check_grants(exchange, principal)
        self._bind(peer, principal, exchange)
        meter = peer.meter
        if meter is not None and (
            wait := meter.take(self._access.now(), len(exchange.body), paced=_is_paced(exchange))
        ):
            self._access.counters.limited += 1
            raise Failure("RATE_LIMIT", headers=(("Retry-After", str(max(1, math.ceil(wait)))),))
        if principal.limits.streams and exchange.route.kind == RouteKind.STREAM and method == "PUT":
            exchange.spawn(self._create(exchange, principal))
            return False
        return True

    def is_known(self, head: Head) -> bool:
        """Report whether the credentials are valid, before a large body is read."""
        path = head.target.partition("?")[0]
        if is_open(path):
            return True
        try:
            found = self._cookie_of(head)
            self._access.identify(_bearer(head) if found is None else found, short=True)
        except KeysUnknown:
            return True
        except (Denied, Failure):
            self._access.counters.denied += 1
            return False
        return True

    def answered(self, exchange: Exchange, status: int, size: int) -> None:
        """Charge the caller for the response, and audit admin operations."""
        principal = exchange.principal
        assert principal is not None
        if principal.meter is not None:
            principal.meter.charge(size)
        if is_audited(exchange):
            is_trim = exchange.route.kind == RouteKind.RETENTION and exchange.head.method == "POST"
            act = "stream.trim" if is_trim else _ACTS[exchange.route.kind]
            who = f"{principal.id} {principal.name}"
            request_id = exchange.request_id or exchange.context.new_request_id()
            self._audit(
                act,
                spelled_name(exchange.route.name),
                who,
                exchange.peer.remote,
                str(status),
                request_id,
            )

    def _recognize(self, exchange: Exchange) -> bool:
        """Set the principal of a request to a public path; invalid credentials count as none.
        Return False if it waits for new keys."""
        try:
            exchange.principal = self._access.identify(_bearer(exchange.head), short=True)
        except KeysUnknown:
            exchange.spawn(self._ask_again(exchange))
            return False
        except (Denied, Failure):
            exchange.principal = None
        return True

    async def _ask_again(self, exchange: Exchange) -> None:
        await self._access.refresh()
        # closed meanwhile; no task watches for that here
        if exchange.peer.responses.transport is not None:
            handle(exchange)

    async def _create(self, exchange: Exchange, principal: Principal) -> None:
        if await self._quotas.has_room(exchange.context.service, principal, exchange.route.name):
            dispatch(exchange)
        else:
            self._access.counters.limited += 1
            exchange.fail("STREAM_QUOTA")

    # --- authentication ---------------------------------------------------------------------------

    def _credential(self, exchange: Exchange) -> str:
        """Return the request's token. Raises `Failure`."""
        if "authorization" not in exchange.head.headers and "access_token" in exchange.query:
            if not _is_events(exchange):
                raise Failure("TOKEN_IN_URL", headers=_CHALLENGE)
            return exchange.query["access_token"]
        if (found := self._cookie_of(exchange.head)) is not None:
            assert self._cookie is not None
            self._cookie.check_page(exchange)
            return found
        try:
            return _bearer(exchange.head)
        except Failure:
            self._access.counters.denied += 1
            raise

    def _cookie_of(self, head: Head) -> str | None:
        """Return the token in the cookie of a request that has none in its header; None without.
        Raises `Failure`."""
        if self._cookie is None or "authorization" in head.headers:
            return None
        return self._cookie.token(head)

    def _check_source(self, exchange: Exchange, principal: Principal) -> None:
        """Check a token in a URL, which an `EventSource` needs because it sends no headers, and one
        in a cookie. The former must expire soon. Raises `Failure`."""
        if "authorization" in exchange.head.headers:
            return
        if not (_is_events(exchange) and "access_token" in exchange.query):
            check_cookie_rights(principal)
            return
        left = (
            _FOREVER_MS
            if principal.expires_ms is None
            else principal.expires_ms - self._access.wall_ms()
        )
        if left > URL_TOKEN_SECONDS_MAX * 1000:
            raise Failure("TOKEN_IN_URL", headers=_CHALLENGE)

    def _check_user(self, exchange: Exchange, principal: Principal) -> None:
        """Check the user of a request that has one: the name or the id of the token, as with Kafka.
        Raises `Failure`."""
        user = _user(exchange.head)
        if user is not None and user not in (principal.id, principal.name):
            self._access.counters.denied += 1
            raise Failure(
                "TOKEN_REFUSED",
                "the user is not the name or the id of the token that the password is",
                _CHALLENGE_AGAIN,
            )

    def _bind(self, peer: Peer, principal: Principal, exchange: Exchange) -> None:
        """Bind the connection to the principal. Raises `Failure` when the principal has too many
        connections."""
        if peer.principal is principal:
            return
        meter, most = principal.meter, principal.limits.connections
        if (
            most
            and meter is not None
            and meter.connections_everywhere >= most
            and not _shares_meter(peer, principal)
        ):
            self._access.counters.limited += 1
            exchange.keep_alive = False
            raise Failure(
                "CONNECTION_QUOTA",
                f"the token may have {most} connections open; close one, or reuse one",
            )
        self.release(peer)
        peer.principal = principal
        if meter is not None:
            meter.connections += 1
            peer.meter = meter if any(meter.rates) else None

    def release(self, peer: Peer) -> None:
        """Unbind a connection that is closed or has a new principal."""
        known, peer.principal = peer.principal, None
        peer.meter = None
        peer.forget_template()
        if known is not None and known.meter is not None:
            known.meter.connections -= 1

    # --- permissions ------------------------------------------------------------------------------

    def _check_grants(self, exchange: Exchange, principal: Principal) -> None:
        """Check the caller's permission. Raises `Failure`."""
        verb, name = self._asked(exchange)
        if verb and not (
            principal.may_somewhere(verb) if name is None else principal.may(verb, name)
        ):
            self._refuse(verb, "" if name is None else f" on {spelled_name(name)}")
        if verb == Verb.SNAPSHOT and not principal.may(Verb.APPEND, exchange.route.name):
            self._refuse(Verb.APPEND, f" on {spelled_name(exchange.route.name)}")
        source = exchange.head.headers.get("stream-forked-from")
        if source is not None and verb == Verb.CREATE:
            name = exchange.context.router.stream_of(source)
            if not principal.may(Verb.READ, name):
                self._refuse(Verb.READ, f" on {spelled_name(name)}, which the fork would show")

    def _refuse(self, verb: str, where: str) -> None:
        self._access.counters.forbidden += 1
        raise Failure("FORBIDDEN", f"the token does not allow '{verb}'{where}")

    def _asked(self, exchange: Exchange) -> tuple[str, str | None]:
        """Return the verb, and the canonical name or prefix. None: the route checks names itself.
        An empty verb: any token will do."""
        route, method = exchange.route, exchange.head.method
        if self._admin_only:
            return (Verb.METRICS if route.path == "/metrics" else Verb.ADMIN), None
        if route.kind == RouteKind.STREAM:
            return _STREAM.get(method, Verb.READ), route.name
        if route.kind == RouteKind.BUCKET:
            return Verb.CREATE, f"{route.name}/"
        if route.kind in (RouteKind.LIST, RouteKind.LIVE):  # which check each stream
            return Verb.READ, None
        if route.kind == RouteKind.RETENTION:
            return (Verb.READ if method in ("GET", "HEAD") else Verb.DELETE), route.name
        if route.kind in _READ_ONLY:
            return Verb.READ, route.name
        if route.kind == RouteKind.SNAPSHOT:
            return (Verb.READ if method in ("GET", "HEAD") else Verb.SNAPSHOT), route.name
        if route.kind == RouteKind.ATTRIBUTES:
            return (Verb.READ if method in ("GET", "HEAD") else Verb.APPEND), route.name
        if route.kind == RouteKind.APPEND_BATCH:
            return Verb.APPEND, route.name
        if route.kind in (RouteKind.APPEND_MANY, RouteKind.APPEND_ALL):  # which check each stream
            return Verb.APPEND, None
        return _asked_of_handler(route, method)


def is_audited(exchange: Exchange) -> bool:
    """Report whether the authorizer audits this request: an admin's deletion, trim or retention."""
    kind, principal = exchange.route.kind, exchange.principal
    return (
        kind in _ACTS
        and exchange.head.method not in _HARMLESS[kind]
        and principal is not None
        and principal.is_admin
    )


def is_open(path: str) -> bool:
    """Report whether a path is public: health, public keys, and requests with the token of a wake,
    which their route checks."""
    if path in _ANYBODY or path.startswith(_ANYBODY_BELOW):
        return True
    if not path.startswith(_SUBSCRIPTIONS):
        return False
    # exactly these paths: an id or a stream may have the name of a verb
    parts = path.split("/")[4:]
    return len(parts) == 3 and parts[0] == "subscriptions" and parts[2] in _WORK


def _is_paced(exchange: Exchange) -> bool:
    """Report whether to slow the caller down instead of refusing it: an `EventSource` would take an
    error as the end."""
    return exchange.route.kind in _OF_EVENTS and _is_events(exchange)


def _is_events(exchange: Exchange) -> bool:
    """Report whether the request opens server-sent events."""
    is_live = exchange.route.kind == RouteKind.LIVE or exchange.query.get("live") == "sse"
    return is_live and exchange.head.method == "GET"


def _asked_of_handler(route: Route, method: str) -> tuple[str, str | None]:
    path, reads = route.path, method in ("GET", "HEAD")
    if path in ("/v1/node", SHORT_TOKENS):  # which compares with the caller's grants
        return "", None
    if path in ("/metrics", RECENT):
        return Verb.METRICS, None
    if path in READS_BY_POST or path.startswith(SEGMENTS):
        return Verb.READ, None
    if path.startswith(f"{REDUCERS}/") and route.segments[1:] == (MODULE,):
        return (Verb.READ if reads else Verb.ADMIN), None
    if path.startswith(PROFILES):
        return (Verb.READ if reads else Verb.CREATE), None
    if path == "/v1/tables" or path.startswith("/v1/tables/"):
        return (Verb.READ if reads else Verb.TABLE), None
    if is_registry(path):
        return _of_registry(route, method), SCHEMAS
    if path.startswith(CATALOG):
        return ("" if path == f"{CATALOG}config" else Verb.READ), None
    if path.startswith(_SUBSCRIPTIONS):
        return Verb.SUBSCRIBE, None
    if path == BUCKETS or path.startswith(f"{BUCKETS}/"):
        changes = Verb.CREATE if route.segments[1:] == (PROFILE,) else Verb.DELETE
        bucket = f"{route.segments[0]}/" if route.segments else ""
        return Verb.READ if reads else changes, bucket
    if path == TOPICS or path.startswith(f"{TOPICS}/"):
        writes = Verb.APPEND if method == "POST" else Verb.DELETE
        verb = Verb.READ if reads else Verb.CREATE if method == "PUT" else writes
        return verb, prefix_of(route.segments[0]) if route.segments else None
    if path.startswith(MIRROR):  # the route demands `create` too
        verb = Verb.READ if reads else Verb.APPEND
        return verb, prefix_of(route.segments[0]) if route.segments else None
    if path == _GROUPS or path.startswith(f"{_GROUPS}/"):
        named = [segment for segment in route.segments if segment]
        return Verb.SUBSCRIBE, consumer_group_folder(named[0]) if named else None
    if reads and (path == _TRANSACTIONS or path.startswith(f"{_TRANSACTIONS}/")):
        named = [segment for segment in route.segments if segment]
        return Verb.APPEND, transactional_id_folder(named[0]) if named else None
    return Verb.ADMIN, None


def _of_registry(route: Route, method: str) -> str:
    """Return the verb for the schema registry: a schema is registered by an append to its topic, and
    compared or looked up by a read."""
    if method in ("GET", "HEAD"):
        return Verb.READ
    if method != "POST":
        return Verb.DELETE
    registers = route.segments[:1] == ("subjects",) and len(route.segments) > 2
    return Verb.APPEND if registers else Verb.READ


def _basic(head: Head) -> tuple[str, str] | None:
    """Return user and password of a request for the schema registry, whose clients send them; None
    without."""
    scheme, _, coded = head.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic" or not is_registry(head.target):
        return None
    try:
        user, colon, password = b64decode(coded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, password) if colon else None


def _user(head: Head) -> str | None:
    found = _basic(head)
    return None if found is None else found[0]


def _bearer(head: Head) -> str:
    """Return the bearer token, or the password of a client of the schema registry. Raises
    `Failure`."""
    text = head.headers.get("authorization", "")
    if (found := _basic(head)) is not None and found[1]:
        return found[1]
    scheme, _, credential = text.partition(" ")
    if scheme.lower() != "bearer" or not credential.strip():
        raise Failure("UNAUTHORIZED", headers=_CHALLENGE)
    return credential.strip()


def _shares_meter(peer: Peer, principal: Principal) -> bool:
    """Report whether the connection counts for the same caller already."""
    return peer.principal is not None and peer.principal.meter is principal.meter


_FOREVER_MS = 1 << 62
