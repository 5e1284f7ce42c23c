"""Misspelt query parameters: a name close to one that the route takes is refused.

An unknown parameter is ignored, as HTTP's servers and caches expect; a misspelt one would be ignored
too, and its read or condition would be another than the one that was meant. The tables here declare
what each route takes: a handler gets no other parameter.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.router import Route, RouteKind

_READS = (
    "offset",
    "from_time",
    "from_record_time",
    "record",
    "tail_records",
    "max_bytes",
    "max_records",
    "record_view",
    "live",
    "timeout_ms",
    "cursor",
)
_ALWAYS = frozenset(["access_token"])
_OF_REGISTRY = (
    *("subject", "subjectPrefix", "deleted", "deletedOnly", "deleted_only", "latestOnly"),
    *("offset", "limit", "normalize", "format", "fetchMaxId"),
    *("permanent", "verbose", "defaultToGlobal", "force"),
)
_STREAMS = frozenset(("consistency", *_ALWAYS))
STREAM = frozenset((*_READS, *_STREAMS))
_BY_KIND: dict[int, frozenset[str]] = {
    RouteKind.STREAM: STREAM,
    RouteKind.LIST: frozenset(("prefix", "after", "limit", "attrs", *_STREAMS)),
    RouteKind.LIVE: frozenset(
        (
            *("stream", "prefix", "match", "offset", "cursor", "live", "timeout_ms", "record_view"),
            *_STREAMS,
        )
    ),
    RouteKind.BUCKET: _STREAMS,
    RouteKind.RETENTION: _STREAMS,
    RouteKind.ATTRIBUTES: _STREAMS,
    RouteKind.APPEND_BATCH: _STREAMS,
    RouteKind.APPEND_MANY: _ALWAYS,
    RouteKind.APPEND_ALL: _ALWAYS,
    RouteKind.SNAPSHOT: frozenset(("origin", "record", *_STREAMS)),
    RouteKind.SNAPSHOTS: _STREAMS,
    RouteKind.STATE: frozenset(("reducer", "key", "after", "limit", *_ALWAYS)),
    RouteKind.IMMUTABLE: frozenset(("origin", *_ALWAYS)),
    RouteKind.BOOTSTRAP: frozenset(("origin", "live", "cursor", *_STREAMS)),
}
BY_PATH: dict[str, frozenset[str]] = {
    path: frozenset((*names, *_ALWAYS))
    for path, names in {
        "/readyz": ("verbose",),
        "/v1/cost": ("hours",),
        "/v1/groups": ("prefix", "after"),
        "/v1/kafka/clients": ("prefix", "after"),
        "/v1/transactions": ("prefix", "after", "state", "producer", "open_seconds"),
        "/v1/mirror/": ("begin", "end", "first"),
        "/v1/segments/": ("epoch",),
        "/v1/reducers/": ("reducer", "after", "all"),
        "/v1/stream/__ds/": ("prefix", "after", "limit", "groups"),
        "/v1/streams/__ds/": ("prefix", "after", "limit", "groups"),
        "/v1/admin/audit": ("limit",),
        "/v1/admin/flush": ("prefix",),
        "/v1/admin/backup/part": ("group", "token", "offset"),
        "/v1/admin/backup/objects": ("prefix", "after"),
        "/v1/admin/backup/object": ("key", "offset", "length"),
        "/iceberg/v1/namespaces": ("parent",),
        "/registry": _OF_REGISTRY,
    }.items()
}
"""The parameters of handlers and mounts, by the beginning of a path; the first that fits counts."""

_SHORT = 5  # letters of a name of which one may differ; of a longer one two
_LETTERS_MAX = 2 + max(map(len, STREAM.union(*BY_PATH.values())))
_NOT_OURS = ("_", "utm_")


def taken(route: Route) -> frozenset[str]:
    """Return the parameters that a route takes."""
    known = _BY_KIND.get(route.kind)
    if known is not None:
        return known
    path = unquote(route.path)
    return next((names for begin, names in BY_PATH.items() if path.startswith(begin)), _ALWAYS)


def check_parameters(exchange: Exchange) -> None:
    """Raise `Failure` for a parameter that resembles one of the route, unless the node ignores all
    unknown ones."""
    if not exchange.context.settings.strict_parameters:
        return
    known = taken(exchange.route)
    for name in exchange.query:
        if name not in known and (nearest := resembled(name, known)):
            raise Failure(
                "UNKNOWN_PARAMETER",
                f"the query parameter '{name}' is unknown; did you mean '{nearest}'?",
            )


def resembled(name: str, known: frozenset[str]) -> str:
    """Return the known parameter that is close to a name; "" if none is."""
    if len(name) < 2 or len(name) > _LETTERS_MAX or name.startswith(_NOT_OURS):
        return ""
    return _nearest(name, known)


@lru_cache(maxsize=256)
def _nearest(name: str, known: frozenset[str]) -> str:
    found = [
        (away, own)
        for own in known
        if (away := _distance(name, own)) <= (1 if len(own) <= _SHORT else 2)
    ]
    return min(found)[1] if found else ""


def _distance(left: str, right: str) -> int:
    """Return the edit distance (Levenshtein): insertions, deletions and replacements."""
    row: list[int] = [*range(len(right) + 1)]
    for at, letter in enumerate(left, 1):
        above, row = row, [at]
        for to, other in enumerate(right, 1):
            row.append(min(above[to] + 1, row[-1] + 1, above[to - 1] + (letter != other)))
    return row[-1]
