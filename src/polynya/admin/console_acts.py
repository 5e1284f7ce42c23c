"""The acts of the web console: requests that its page marks with a header. They have the rights of
their caller alone. `console.acts` turns them off, and each leaves a line in the audit log."""

from __future__ import annotations

from polynya.admin import audited_requests
from polynya.admin.audited_requests import ActOf, Record
from polynya.base.names import spelled_name
from polynya.front.http.api.buckets import PATH as BUCKETS
from polynya.front.http.api.kafka.groups import GROUPS
from polynya.front.http.api.kafka.topics import PATH as TOPICS
from polynya.front.http.api.kafka.transactions import TRANSACTIONS
from polynya.front.http.api.profiles import PREFIX as PROFILES
from polynya.front.http.auth.authorization import is_audited
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.extension import Request
from polynya.front.http.protocol.router import OF_STREAMS, RouteKind
from polynya.front.http.reducers.routes import PATH as REDUCERS
from polynya.front.http.registry.routes import MOUNT as REGISTRY

_READS = ("GET", "HEAD", "OPTIONS")
_OF_STREAM = {"PUT": "stream.create", "POST": "stream.append", "DELETE": "stream.delete"}
_MOUNTS: tuple[tuple[str, ActOf], ...] = (
    (f"{TOPICS}/", audited_requests.topic_act),
    (f"{GROUPS}/", audited_requests.group_act),
    (f"{TRANSACTIONS}/", audited_requests.transaction_act),
    (f"{BUCKETS}/", audited_requests.bucket_act),
    ("/v1/tables/", audited_requests.table_act),
    (f"{REDUCERS}/", audited_requests.reducer_act),
    (REGISTRY, audited_requests.registry_act),
    (PROFILES, audited_requests.profile_act),
    ("/v1/admin/", audited_requests.admin_act),
    ("/v1/cluster/", audited_requests.cluster_act),
    ("/v1/stream/__ds/", audited_requests.subscription_act),
)


class ConsoleActs:
    """The gate of marked requests. `enabled`: the setting `console.acts`.

    A request that its handler audits gets no second line here. Requests without a known caller,
    where tokens are required, get none at all: anybody could fill the log with them."""

    def __init__(self, record: Record, *, enabled: bool) -> None:
        self._record = record
        self._enabled = enabled

    def begin(self, exchange: Exchange) -> None:
        """Admit a marked request. Raises `Failure` where acts are off."""
        if exchange.head.method in _READS:
            return
        if not self._enabled:
            raise Failure("CONSOLE_READ_ONLY")
        # also keeps the append off the path that answers without `Exchange.answer`
        exchange.request_id = exchange.request_id or exchange.context.new_request_id()

    def answered(self, exchange: Exchange, status: int) -> None:
        """Record a request on a stream, with its response."""
        if exchange.route.kind in OF_STREAMS and not is_audited(exchange):
            self._note(exchange, _stream_act(exchange), str(status))

    def refused(self, exchange: Exchange, error: BaseException) -> None:
        """Record a request on anything else that was refused before its handler began."""
        if exchange.route.kind not in OF_STREAMS:
            outcome = error.code if isinstance(error, Failure) else "failed"
            self._note(exchange, _mount_act(exchange), outcome)

    def _note(self, exchange: Exchange, act: str, outcome: str) -> None:
        principal = exchange.principal
        if not act or (principal is None and exchange.context.authorizer is not None):
            return
        who = "anybody" if principal is None else f"{principal.id} {principal.name}"
        route = exchange.route
        target = spelled_name(route.name) if route.kind in OF_STREAMS else route.path
        remote, request_id = exchange.peer.remote, exchange.request_id
        self._record(act, target, who, remote, outcome, request_id)


def _stream_act(exchange: Exchange) -> str:
    """Return the audit name of a request on a stream; empty if it changes nothing."""
    head = exchange.head
    if head.method in _READS:
        return ""
    if exchange.route.kind == RouteKind.RETENTION:
        return "stream.trim" if head.method == "POST" else "stream.retention"
    if exchange.route.kind == RouteKind.ATTRIBUTES:
        return "stream.attrs"
    if exchange.route.kind == RouteKind.SNAPSHOT:
        return "stream.snapshot"
    if head.method == "PUT" and "stream-forked-from" in head.headers:
        return "stream.fork"
    if head.method == "POST" and head.length <= 0:
        return "stream.close"
    return _OF_STREAM.get(head.method, "")


def _mount_act(exchange: Exchange) -> str:
    route, head = exchange.route, exchange.head
    for prefix, act_of in _MOUNTS:
        if route.path.startswith(prefix) and route.segments:
            return act_of(
                Request(head.method, route.path, route.segments, {}, head.headers, b"", "")
            )
    return ""
