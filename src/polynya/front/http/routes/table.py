"""Map methods and route kinds to their functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from polynya.base.spans import Tracer, within
from polynya.front.http.attributes import (
    clear_attributes,
    patch_attributes,
    put_attributes,
    show_attributes,
)
from polynya.front.http.batches.append_all import append_all
from polynya.front.http.batches.append_batch import append_batch
from polynya.front.http.batches.append_many import append_many
from polynya.front.http.immutable import show_immutable
from polynya.front.http.live.reader import live
from polynya.front.http.protocol.errors import REFUSED, Failure
from polynya.front.http.protocol.exchange import CONSOLE, Exchange
from polynya.front.http.protocol.extension import READS_BY_POST, Handler, Request
from polynya.front.http.protocol.request_spans import note_route
from polynya.front.http.protocol.responses import PREFLIGHT
from polynya.front.http.protocol.router import OF_STREAMS, RouteKind
from polynya.front.http.reducers.state import show_state
from polynya.front.http.routes.append import append
from polynya.front.http.routes.conditions import check_conditions
from polynya.front.http.routes.create import create
from polynya.front.http.routes.delete import delete
from polynya.front.http.routes.head import head
from polynya.front.http.routes.listing import list_streams
from polynya.front.http.routes.parameters import check_parameters, taken
from polynya.front.http.routes.read import read
from polynya.front.http.routes.retention import (
    clear_retention,
    put_retention,
    show_retention,
    trim_stream,
)
from polynya.front.http.snapshots.bootstrap import bootstrap
from polynya.front.http.snapshots.parts import post_part
from polynya.front.http.snapshots.publish import delete_snapshot, put_snapshot
from polynya.front.http.snapshots.show import list_snapshots, show_newest, show_snapshot

Answerer = Callable[[Exchange], None]
Methods = dict[str, Answerer]


def options(exchange: Exchange) -> None:
    """Respond to a CORS preflight, on every path."""
    exchange.send(exchange.head_lines(204, []) + PREFLIGHT + b"\r\n")


def put_bucket(exchange: Exchange) -> None:
    """PUT /{bucket} with Ursula's URLs: buckets are implicit, so this only validates the name."""
    exchange.answer(201, [("Location", exchange.base_url + exchange.route.path)])


def call_handler(exchange: Exchange) -> None:
    handler = exchange.route.handler
    assert handler is not None
    exchange.spawn(_call(exchange, handler), waits=exchange.route.path in READS_BY_POST, long=True)


async def _call(exchange: Exchange, handler: Handler) -> None:
    head = exchange.head
    path, segments = exchange.route.path, exchange.route.segments
    exchange.request_id = exchange.request_id or exchange.context.new_request_id()
    request = Request(
        head.method,
        path,
        segments,
        {name: value for name, value in exchange.query.items() if name in taken(exchange.route)},
        head.headers,
        exchange.body,
        exchange.base_url,
        exchange.principal,
        exchange.peer.remote,
        exchange.request_id,
    )
    response = await handler(request)
    headers, body = list(response.headers), response.body
    if response.status >= 400 and body.startswith(b'{"error"'):
        body = exchange.complete_error(body)
        headers.append(("Stream-Outcome", REFUSED))
    if body:
        headers.insert(0, ("Content-Type", response.content_type))
    exchange.answer(response.status, headers, body)


_ANY: Methods = dict.fromkeys(("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"), call_handler)
METHODS: dict[int, Methods] = {
    RouteKind.STREAM: {
        "POST": append,
        "GET": read,
        "HEAD": head,
        "PUT": create,
        "DELETE": delete,
        "OPTIONS": options,
    },
    RouteKind.BUCKET: {"PUT": put_bucket, "OPTIONS": options},
    RouteKind.LIVE: {"GET": live, "OPTIONS": options},
    RouteKind.LIST: {"GET": list_streams, "HEAD": list_streams, "OPTIONS": options},
    RouteKind.RETENTION: {
        "GET": show_retention,
        "HEAD": show_retention,
        "PUT": put_retention,
        "DELETE": clear_retention,
        "POST": trim_stream,
        "OPTIONS": options,
    },
    RouteKind.ATTRIBUTES: {
        "GET": show_attributes,
        "HEAD": show_attributes,
        "PUT": put_attributes,
        "PATCH": patch_attributes,
        "DELETE": clear_attributes,
        "OPTIONS": options,
    },
    RouteKind.APPEND_BATCH: {"POST": append_batch, "OPTIONS": options},
    RouteKind.APPEND_MANY: {"POST": append_many, "OPTIONS": options},
    RouteKind.APPEND_ALL: {"POST": append_all, "OPTIONS": options},
    RouteKind.SNAPSHOTS: {"GET": list_snapshots, "HEAD": list_snapshots, "OPTIONS": options},
    RouteKind.IMMUTABLE: {"GET": show_immutable, "OPTIONS": options},
    RouteKind.STATE: {"GET": show_state, "OPTIONS": options},
    RouteKind.BOOTSTRAP: {"GET": bootstrap, "OPTIONS": options},
    RouteKind.HANDLER: _ANY | {"OPTIONS": options},
    RouteKind.MOUNT: _ANY | {"OPTIONS": options},
}


# of a snapshot, by the count of segments behind `/snapshot`
SNAPSHOTS: dict[int, Methods] = {
    0: {"GET": show_newest, "HEAD": show_newest, "PUT": put_snapshot, "OPTIONS": options},
    1: {
        "GET": show_snapshot,
        "HEAD": show_snapshot,
        "PUT": put_snapshot,
        "DELETE": delete_snapshot,
        "OPTIONS": options,
    },
    2: {"POST": post_part, "OPTIONS": options},
}


# repeated by machines, and traced only for a client that says so
_PROBES = ("/livez", "/readyz", "/health", "/metrics", "/ping")


def handle(exchange: Exchange) -> None:
    """Find the route and start it. Every path, including errors, responds to the exchange, now or
    later."""
    context = exchange.context
    console = context.protection.console if CONSOLE in exchange.head.headers else None
    if context.tracer is not None and exchange.span is None and _trace(exchange, context.tracer):
        return
    try:
        exchange.route, exchange.query = context.router.resolve(exchange.head.target)
        if exchange.span is not None:
            note_route(exchange.span, exchange.head.method, exchange.route)
        if console is not None:
            console.begin(exchange)
        if context.authorizer is None or context.authorizer.authorize(exchange):
            dispatch(exchange)
    except Exception as error:  # noqa: BLE001 (the client must get an answer; what is unexpected is logged)
        if exchange.head.method == "OPTIONS" and isinstance(error, Failure):
            options(exchange)
        else:
            if console is not None and hasattr(exchange, "route"):
                console.refused(exchange, error)
            exchange.fault(error)


def _trace(exchange: Exchange, tracer: Tracer) -> bool:
    """Handle a request in its span, if it is sampled; else return False."""
    method, parent = exchange.head.method, exchange.head.headers.get("traceparent", "")
    if not parent and exchange.head.target.startswith(_PROBES):
        return False
    span = tracer.begin(method, parent)
    if span is None:
        return False
    exchange.span = span
    span.attributes["http.request.method"] = method
    span.attributes["network.peer.address"] = exchange.peer.remote
    within(span, partial(handle, exchange))
    return True


def dispatch(exchange: Exchange) -> None:
    """Start the answer to a request. Raises `Failure`."""
    route = exchange.route
    methods = METHODS.get(route.kind) or SNAPSHOTS.get(len(route.segments))
    if methods is None:
        raise Failure("NO_ROUTE")
    answerer = methods.get(exchange.head.method)
    if answerer is None:
        allowed = ", ".join(methods)
        message = f"{exchange.head.method[:32]} is not allowed at this path, which allows {allowed}"
        if exchange.route.kind == RouteKind.BUCKET:
            message += "; it names a bucket, and a stream is at /v1/stream/NAME"
        exchange.fail("METHOD_NOT_ALLOWED", message, [("Allow", allowed)])
        return
    if exchange.route.kind == RouteKind.STREAM and answerer is not options:
        check_conditions(exchange)
    if exchange.query:
        check_parameters(exchange)
    if exchange.route.kind in OF_STREAMS:
        exchange.stream = exchange.context.service.open(exchange.route.name)
    answerer(exchange)
