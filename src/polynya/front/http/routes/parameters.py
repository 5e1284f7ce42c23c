"""Misspelt query parameters: a name close to one that the route knows is refused.

An unknown parameter is ignored, as HTTP's servers and caches expect; a misspelt one would be ignored
too, and its read or condition would be another than the one that was meant.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.router import RouteKind

if TYPE_CHECKING:
    from polynya.front.http.server import HttpFront

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
_EVERYWHERE = ("consistency", "access_token")
KNOWN: dict[int, frozenset[str]] = {
    RouteKind.STREAM: frozenset((*_READS, *_EVERYWHERE)),
    RouteKind.LIST: frozenset(("prefix", "after", "limit", *_EVERYWHERE)),
}
_SHORT = 5  # letters of a name of which one may differ; of a longer one two
_LETTERS_MAX = 2 + max(len(name) for names in KNOWN.values() for name in names)
_NOT_OURS = ("_", "utm_")


def check_parameters(front: HttpFront, exchange: Exchange) -> None:
    """Raise `Failure` for a parameter that resembles one of the route, unless the node ignores all
    unknown ones."""
    known = KNOWN.get(exchange.route.kind)
    if known is None or not front.settings.strict_parameters:
        return
    for name in exchange.query:
        if name not in known and (nearest := resembled(name, exchange.route.kind)):
            raise Failure(
                "UNKNOWN_PARAMETER",
                f"the query parameter '{name}' is unknown; did you mean '{nearest}'?",
            )


def resembled(name: str, kind: int) -> str:
    """Return the parameter of a route that is close to a name; "" if none is."""
    if len(name) < 2 or len(name) > _LETTERS_MAX or name.startswith(_NOT_OURS):
        return ""
    return _nearest(name, kind)


@lru_cache(maxsize=256)
def _nearest(name: str, kind: int) -> str:
    found = [
        (away, own)
        for own in KNOWN[kind]
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
