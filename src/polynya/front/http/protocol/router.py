"""Resolve a request target: a stream (with either kind of URL), bucket, stream list, handler path
or mount."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from polynya.base.limits import APPEND_BYTES_MAX
from polynya.base.names import (
    BUCKET_RULE,
    DEFAULT_BUCKET,
    BadName,
    canonical_name,
    is_bucket,
    is_reserved,
)
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import BODY_BYTES_MAX, Handler
from polynya.wire.http.targets import (
    BadTarget,
    decode_path,
    decode_segments,
    parse_query,
    split_target,
)

_ROUTES_MAX = 16_384
_STREAM_PREFIXES = ("/v1/stream/", "/v1/streams/")


class RouteKind:
    """The kinds of routes. They are plain numbers because each request uses one as a table
    index."""

    STREAM = 1
    BUCKET = 2
    LIST = 3
    HANDLER = 4
    MOUNT = 5
    RETENTION = 6
    LIVE = 7
    ATTRIBUTES = 8
    SNAPSHOT = 9
    SNAPSHOTS = 10
    BOOTSTRAP = 11
    APPEND_BATCH = 12
    APPEND_MANY = 13
    APPEND_ALL = 14
    STATE = 15
    IMMUTABLE = 16


_PARTS = {
    "/incarnation": RouteKind.IMMUTABLE,  # first: a snapshot may be below it
    "/retention": RouteKind.RETENTION,
    "/attrs": RouteKind.ATTRIBUTES,
    "/snapshots": RouteKind.SNAPSHOTS,
    "/snapshot": RouteKind.SNAPSHOT,
    "/bootstrap": RouteKind.BOOTSTRAP,
    "/append-batch": RouteKind.APPEND_BATCH,
    "/state": RouteKind.STATE,
}
OF_STREAMS = frozenset((RouteKind.STREAM, *_PARTS.values()))  # whose name is a stream's
_SPELLED = (
    *(RouteKind.SNAPSHOTS, RouteKind.SNAPSHOT, RouteKind.BOOTSTRAP, RouteKind.STATE),
    RouteKind.IMMUTABLE,
)
_WITH_MORE = (
    RouteKind.RETENTION,
    RouteKind.SNAPSHOT,
    RouteKind.IMMUTABLE,
)  # with segments behind it


class Route(msgspec.Struct, frozen=True, gc=False):
    kind: int
    path: str
    name: str = ""  # canonical name of a stream; name of a bucket
    bare_offsets: bool = False  # Ursula's URLs: an offset may be a byte position
    handler: Handler | None = None
    segments: tuple[str, ...] = ()


class Router:
    """The resolver of targets, with a bounded cache of stream routes."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        mounts: Mapping[str, Handler],
        *,
        streams: bool = True,
    ) -> None:
        self._streams = streams
        self._handlers = dict(handlers)
        self._mounts = sorted(mounts.items(), key=lambda mount: -len(mount[0]))
        self._known: dict[str, Route] = {}

    def paths(self) -> tuple[list[str], list[str]]:
        """Return the exact paths of the handlers, and the prefixes of the mounts."""
        return [*self._handlers], [prefix for prefix, _ in self._mounts]

    def resolve(self, target: str) -> tuple[Route, dict[str, str]]:
        """Return the route and the query parameters. Raises `Failure`."""
        route = self._known.get(target)
        if route is not None:
            return route, {}
        try:
            path, query = split_target(target)
            return self._known.get(path) or self._resolve(path), parse_query(query)
        except BadTarget as bad:
            raise Failure("BAD_TARGET", str(bad)) from None
        except BadName as bad:
            raise Failure("INVALID_NAME", str(bad)) from None

    def body_bytes_max(self, target: str) -> int:
        """Return the largest body that the route of a target takes."""
        path = target.partition("?")[0]
        for prefix, most in BODY_BYTES_MAX:
            if path.startswith(prefix):
                return most
        return APPEND_BYTES_MAX

    def _resolve(self, path: str) -> Route:
        handler = self._handlers.get(path)
        if handler is not None:
            return Route(RouteKind.HANDLER, path, handler=handler)
        for prefix, handler in self._mounts:
            if path.startswith(prefix):
                return Route(
                    RouteKind.MOUNT,
                    path,
                    handler=handler,
                    segments=decode_segments(path[len(prefix) :]),
                )
        if not self._streams:
            raise Failure(
                "NO_ROUTE",
                "no route matches this path of an admin port, which has no streams: they are at "
                "the address of the setting 'listen'",
            )
        if path == "/v1/streams":
            return Route(RouteKind.LIST, path)
        if path == "/v1/live":
            return Route(RouteKind.LIVE, path)
        if path == "/v1/append":
            return Route(RouteKind.APPEND_MANY, path)
        if path == "/v1/append-all":
            return Route(RouteKind.APPEND_ALL, path)
        route = self._part(path) or self._stream(path)
        if len(self._known) >= _ROUTES_MAX:
            self._known.clear()
        self._known[path] = route
        return route

    def _stream(self, path: str) -> Route:
        for prefix in _STREAM_PREFIXES:
            if path.startswith(prefix):
                return Route(
                    RouteKind.STREAM, path, canonical_name(decode_path(path[len(prefix) :]))
                )
        decoded = decode_path(path)[1:]
        bucket, slash, _ = decoded.partition("/")
        if is_reserved(bucket) or not decoded:
            raise Failure("NO_ROUTE", "no route matches this path; streams are at /v1/stream/NAME")
        if not is_bucket(bucket):
            raise BadName(BUCKET_RULE)
        if not slash:
            return Route(RouteKind.BUCKET, path, bucket)
        return Route(RouteKind.STREAM, path, canonical_name(decoded), bare_offsets=True)

    def _part(self, path: str) -> Route | None:
        """Resolve the path of a part of a stream, with either kind of URL; None for other paths."""
        for word, kind in _PARTS.items():
            if word not in path:
                continue
            stem, _, rest = path.rpartition(word)
            more = kind in _WITH_MORE and rest.startswith("/")
            if stem + "/" in ("/", *_STREAM_PREFIXES) or (rest and not more):
                continue
            if kind in _SPELLED and stem.endswith(f"/{DEFAULT_BUCKET}"):
                continue  # a stream of this name, with its bucket spelled out
            stream = self._stream(stem)
            if stream.kind != RouteKind.STREAM:
                continue
            segments = decode_segments(rest[1:]) if rest else ()
            return Route(
                kind, path, stream.name, bare_offsets=stream.bare_offsets, segments=segments
            )
        return None

    def stream_of(self, path: str) -> str:
        """Return the canonical name of the stream at a path, as in `Stream-Forked-From`. Raises
        `Failure`."""
        try:
            if not path.startswith("/") or "?" in path:
                raise BadTarget(
                    "Stream-Forked-From must be the path of a stream, such as /v1/stream/source"
                )
            route = self._resolve(path)
        except BadTarget as bad:
            raise Failure("INVALID_HEADER", str(bad)) from None
        except BadName as bad:
            raise Failure("INVALID_HEADER", f"Stream-Forked-From: {bad}") from None
        if route.kind != RouteKind.STREAM:
            raise Failure("INVALID_HEADER", "Stream-Forked-From must be the path of a stream")
        return route.name
