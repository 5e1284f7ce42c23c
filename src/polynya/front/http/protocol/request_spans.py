"""The span of an HTTP request, with the attributes of OpenTelemetry's conventions for HTTP."""

from __future__ import annotations

from polynya.base.spans import Span
from polynya.front.http.protocol.router import OF_STREAMS, Route, RouteKind

_TEMPLATES = {
    RouteKind.STREAM: "/v1/stream/{name}",
    RouteKind.BUCKET: "/{bucket}",
    RouteKind.LIST: "/v1/streams",
    RouteKind.RETENTION: "/v1/stream/{name}/retention",
    RouteKind.ATTRIBUTES: "/v1/stream/{name}/attrs",
    RouteKind.SNAPSHOT: "/v1/stream/{name}/snapshot",
    RouteKind.SNAPSHOTS: "/v1/stream/{name}/snapshots",
    RouteKind.BOOTSTRAP: "/v1/stream/{name}/bootstrap",
    RouteKind.APPEND_BATCH: "/v1/stream/{name}/append-batch",
    RouteKind.STATE: "/v1/stream/{name}/state",
}
_PARTS = 3  # of the path of a handler, that name what it serves: `/v1/tables`


def note_route(span: Span, method: str, route: Route) -> None:
    """Name the span by the route: few names, whatever the streams are called."""
    template = _TEMPLATES.get(route.kind) or "/".join(route.path.split("/")[:_PARTS])
    span.name = f"{method} {template}"
    span.attributes["http.route"] = template
    if route.kind in OF_STREAMS:
        span.attributes["polynya.stream"] = route.name


def note_response(span: Span, status: int, request_id: str) -> None:
    """Note what was answered. An error of the server fails the span, one of the client does not."""
    span.attributes["http.response.status_code"] = status
    if request_id:
        span.attributes["polynya.request_id"] = request_id
    if status >= 500:
        span.error = str(status)
