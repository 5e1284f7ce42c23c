"""Conditions of a request on its stream: those that are judged, and those that this server knows and
does not judge, each of which is refused by its name. Appends judge `CONDITIONS`.

A request that names a condition must not be applied without it. The sources of the table are the
protocol's drafts, Ursula 0.4.1 and Ursula 0.11.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from polynya.base.levels import CONDITIONS_LEVEL
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.local.api import StreamInfo
from polynya.service.api import Service
from polynya.stream.features.appends.commands import Append, AppendIf
from polynya.stream.replies import Reply
from polynya.wire.headers import BadField, parse_incarnation
from polynya.wire.http.conditions import (
    CONDITIONS,
    EXPECTED,
    MATCH,
    NO_RECORD,
    RECORD,
    Condition,
    parse_condition,
)

_AT_APPENDS = "send it with an append (POST), which is judged by it"
_AT_CREATION = "send it with a creation (PUT); PUT or PATCH of STREAM/attrs changes attributes"
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
    "stream-attrs": ("Stream-Attrs", _AT_CREATION),
    "producer-digest": ("Producer-Digest", "digests of bodies are not supported; leave it out"),
}
PARAMETERS: dict[str, str] = {
    "incarnation": "send the header Stream-Incarnation",
    "aligned": "every page ends at a record; leave it out",
}
# parameters of reads that no other method passes over
READ_PARAMETERS = frozenset(("record", "tail_records", "max_records", "record_view"))
# judged by a method of a stream
_JUDGED = {"POST": CONDITIONS, "PUT": frozenset(("stream-attrs",))}
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


def refuse_conditions(exchange: Exchange, judged: frozenset[str] = frozenset()) -> None:
    """Raise `Failure` for any condition of a request that judges none, or no other ones: of the
    retention, a trim, or attributes."""
    found = _HEADER_NAMES & exchange.head.headers.keys() - judged
    if not found:
        return
    spellings = {name: spelling for name, (spelling, _) in HEADERS.items()}
    name = min(found)
    raise Failure(
        "NOT_SUPPORTED",
        f"the header {spellings.get(name, 'If-None-Match')} is not supported at this path: send "
        "Stream-Incarnation to name the stream's incarnation",
    )


def _check_headers(method: str, headers: dict[str, str]) -> None:
    for name, (spelling, remedy) in HEADERS.items():
        if name in headers and name not in _JUDGED.get(method, ()):
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


def is_other_incarnation(exchange: Exchange, info: StreamInfo) -> bool:
    """Return True if `Stream-Incarnation` names another incarnation; the error has then been sent.
    Raises `Failure`."""
    text = exchange.head.headers.get("stream-incarnation")
    if text is None:
        return False
    try:
        asked = parse_incarnation(text)
    except BadField as bad:
        raise Failure("INVALID_HEADER", str(bad)) from None
    if asked == info.uid:
        return False
    exchange.fail("INCARNATION_MISMATCH", headers=[("Stream-Incarnation", str(info.uid))])
    return True


# --- appends on a condition ----------------------------------------------------------------------

_SPELLINGS = {
    MATCH: "If-Match",
    EXPECTED: "Stream-Expected-Offset",
    RECORD: "Stream-Record-Match",
}


def read_condition(service: Service, headers: Mapping[str, str], incarnation: int) -> Condition:
    """Return the condition of an append that has one. `incarnation` is that of
    `Stream-Incarnation`. Raises `BadField` and `Failure`."""
    condition = parse_condition(headers)
    assert condition is not None, "a header of a condition is there"
    if 0 != incarnation != condition.incarnation != 0:
        raise BadField(
            f"Stream-Incarnation is {incarnation}, and the ETag in If-Match is of the incarnation "
            f"{condition.incarnation}: send one of them"
        )
    if service.level < CONDITIONS_LEVEL:
        raise Failure("UPGRADE_PENDING")
    if condition.history not in (None, service.history):  # of before a restore
        return structs.replace(condition, record=NO_RECORD)
    return condition


def on_condition(command: Append, condition: Condition) -> AppendIf:
    """Return the append as one that is judged by its condition."""
    return AppendIf(
        command.name,
        command.now_ms,
        command.content_type,
        command.batch,
        command.producer,
        command.stream_seq,
        command.close,
        condition.incarnation or command.incarnation,
        condition.record,
    )


def refusal_code(headers: Mapping[str, str]) -> str:
    """Return the error code of a condition that does not hold, by the spelling that the request
    has."""
    return "OFFSET_CONFLICT" if EXPECTED in headers and MATCH not in headers else "PRECONDITION"


def refusal_message(headers: Mapping[str, str], reply: Reply) -> str:
    """Return the message for a condition that does not hold."""
    spelling, value = next(
        (
            (spelling, headers[name][:128])
            for name, spelling in _SPELLINGS.items()
            if name in headers
        ),
        ("the condition", "another record"),
    )
    return (
        f"the tail of the stream is {format_token(reply.record, reply.byte)}, and {spelling} is "
        f"{value}: read what was appended in between, then decide again"
    )


def tag_headers(headers: Mapping[str, str], reply: Reply) -> list[tuple[str, str]]:
    """Return the ETag of the tail, which a request with `If-Match` or `Stream-Record-Match` gets."""
    if MATCH not in headers and RECORD not in headers:
        return []
    return [("ETag", f'"{format_token(reply.record, reply.byte)}"')]
