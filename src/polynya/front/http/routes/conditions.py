"""Conditions and parameters that this server knows and does not judge: each is refused by its name.
Appends judge `CONDITIONS`.

A request that names a condition must not be applied without it. The sources of the table are the
protocol's drafts, Ursula 0.4.1 and Ursula 0.11.
"""

from __future__ import annotations

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.wire.conditions import CONDITIONS

_AT_APPENDS = "send it with an append (POST), which is judged by it"
_USE_MATCH = (
    "use If-Match, Stream-Expected-Offset or Stream-Record-Match to append (POST) at a known tail, "
    "and Stream-Incarnation to name the stream's incarnation"
)

# header in lower case -> (its spelling, what to do instead), for every method of a stream
HEADERS: dict[str, tuple[str, str]] = {
    "if-match": ("If-Match", _AT_APPENDS),
    "if-unmodified-since": ("If-Unmodified-Since", _USE_MATCH),
    "stream-expected-offset": ("Stream-Expected-Offset", _AT_APPENDS),
    "stream-record-match": ("Stream-Record-Match", _AT_APPENDS),
    "stream-snapshot-match": ("Stream-Snapshot-Match", "snapshots are not supported"),
    "stream-snapshot-digest": ("Stream-Snapshot-Digest", "snapshots are not supported"),
    "stream-snapshot-parts": ("Stream-Snapshot-Parts", "snapshots are not supported"),
    "stream-attrs": ("Stream-Attrs", "attributes of streams are not supported"),
    "producer-digest": ("Producer-Digest", "digests of bodies are not supported; leave it out"),
}
PARAMETERS: dict[str, str] = {
    "incarnation": "send the header Stream-Incarnation",
    "aligned": "every page ends at a record; leave it out",
}
# parameters of reads that no other method passes over
READ_PARAMETERS = frozenset(("record", "tail_records", "max_records", "record_view"))
_HEADER_NAMES = frozenset((*HEADERS, "if-none-match"))
_PARAMETER_NAMES = frozenset(PARAMETERS)


def check_conditions(exchange: Exchange) -> None:
    """Raise `Failure` for a condition or parameter of a stream's request that is not judged."""
    headers = exchange.head.headers
    if not _HEADER_NAMES.isdisjoint(headers):
        _check_headers(exchange.head.method, headers)
    if not exchange.query:
        return
    if exchange.head.method != "GET" and not READ_PARAMETERS.isdisjoint(exchange.query):
        name = min(READ_PARAMETERS & exchange.query.keys())
        raise Failure(
            "NOT_SUPPORTED",
            f"the query parameter '{name}' is not supported at {exchange.head.method}: "
            "it belongs to reads with GET",
        )
    if not _PARAMETER_NAMES.isdisjoint(exchange.query):
        name = min(_PARAMETER_NAMES & exchange.query.keys())
        raise Failure(
            "NOT_SUPPORTED",
            f"the query parameter '{name}' is not supported: {PARAMETERS[name]}",
        )


def refuse_conditions(exchange: Exchange) -> None:
    """Raise `Failure` for any condition of a request that judges none: of the retention, or a
    trim."""
    headers = exchange.head.headers
    if _HEADER_NAMES.isdisjoint(headers):
        return
    spellings = {name: spelling for name, (spelling, _) in HEADERS.items()}
    name = min(_HEADER_NAMES & headers.keys())
    raise Failure(
        "NOT_SUPPORTED",
        f"the header {spellings.get(name, 'If-None-Match')} is not supported at this path: send "
        "Stream-Incarnation to name the stream's incarnation",
    )


def _check_headers(method: str, headers: dict[str, str]) -> None:
    for name, (spelling, remedy) in HEADERS.items():
        if name in headers and not (method == "POST" and name in CONDITIONS):
            raise Failure(
                "NOT_SUPPORTED", f"the header {spelling} is not supported at {method}: {remedy}"
            )
    if "if-none-match" not in headers or method in ("GET", "HEAD"):
        return
    if method != "PUT":
        raise Failure(
            "NOT_SUPPORTED",
            f"the header If-None-Match is not supported at {method}: {_USE_MATCH}",
        )
    if headers["if-none-match"].strip() != "*":
        raise Failure(
            "INVALID_HEADER",
            f"If-None-Match must be * at PUT, not '{headers['if-none-match'][:64]}'",
        )
    for name, spelling in (
        ("producer-id", "Producer-Id"),
        ("stream-forked-from", "Stream-Forked-From"),
    ):
        if name in headers:
            raise Failure(
                "NOT_SUPPORTED",
                f"If-None-Match: * is not supported together with {spelling}: leave one out",
            )


def must_be_new(exchange: Exchange) -> bool:
    """Return True if the creation must be refused when its stream exists (`If-None-Match: *`)."""
    return "if-none-match" in exchange.head.headers
