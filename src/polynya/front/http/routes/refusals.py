"""Convert replies and refusals of the service to headers and errors, whose messages name the
received and the expected value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polynya.base.limits import CONTENT_TYPE_BYTES_MAX, PATH_BYTES_MAX
from polynya.base.names import spelled_name
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import REFUSALS
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NUMBERED_JSON
from polynya.front.http.routes.conditions import (
    refusal_code,
    refusal_message,
    tag_headers,
)
from polynya.local.api import Refusal
from polynya.stream.features.appends.commands import KAFKA_CONTENT_TYPE
from polynya.stream.replies import Code, Reply
from polynya.wire.headers import FOREVER, OCTET_STREAM, format_instant

_NAMES_TAIL = frozenset(
    (
        Code.CLOSED,
        Code.CONTENT_TYPE,
        Code.SEQ_REGRESSION,
        Code.PRODUCER_GAP,
        Code.PRODUCER_STALE,
        Code.PRODUCER_CONFLICT,
        Code.OFFSET_BEYOND_TAIL,
        Code.INCARNATION,
        Code.PRECONDITION,
        Code.UNSTABLE,
    )
)


def tail_headers(reply: Reply, json_records: int = -1) -> Headers:
    """Return the headers of the response to a write: the tail, the producer and the incarnation.
    `json_records`: the records that it has, to a stream of JSON; -1: another stream."""
    headers = [("Stream-Next-Offset", format_token(reply.record, reply.byte))]
    if reply.closed:
        headers.append(("Stream-Closed", "true"))
    if reply.producer_epoch >= 0:
        headers.append(("Producer-Epoch", str(reply.producer_epoch)))
        if reply.producer_sequence >= 0:
            headers.append(("Producer-Seq", str(reply.producer_sequence)))
    is_repeat = reply.code == Code.DUPLICATE
    if json_records >= 0 and not (is_repeat and reply.first_record < 0):
        first = reply.first_record if is_repeat else reply.record - json_records
        headers.append(NUMBERED_JSON)
        headers.append(("Stream-Record-Start", str(first)))
        headers.append(("Stream-Record-Next", str(first + json_records)))
    elif is_repeat and reply.first_record >= 0:
        headers.append(("Stream-Record-Start", str(reply.first_record)))
    if reply.uid:
        headers.append(("Stream-Incarnation", str(reply.uid)))
    return headers


def fail_reply(exchange: Exchange, reply: Reply, *, creating: bool = False) -> None:
    """Respond with the error of a refused command. `creating`: a soft-deleted name is a
    conflict."""
    has_store = exchange.context.settings.object_store
    code, message, headers = refusal_of(
        reply, exchange.head.headers, has_store=has_store, creating=creating
    )
    if reply.code == Code.NOT_FOUND:
        message = _missing(exchange, creating=creating)
    exchange.fail(code, message, headers)


def refusal_of(
    reply: Reply, asked: Mapping[str, str], *, has_store: bool, creating: bool = False
) -> tuple[str, str, Headers]:
    """Return the error code, the message ("": the default of the code) and the headers of a refused
    command. `asked`: the headers of its request."""
    code = _code(reply, asked, has_store=has_store, creating=creating)
    if reply.code == Code.TRIMMED:
        retained = format_token(reply.record, reply.byte)
        return code, trimmed_message(reply), [("Stream-Retained-Offset", retained)]
    headers = tail_headers(reply) if reply.code in _NAMES_TAIL else []
    if reply.code in (Code.PRECONDITION, Code.INCARNATION):
        headers += tag_headers(asked, reply)
    if reply.code == Code.PRODUCER_STALE:
        headers = [(name, value) for name, value in headers if name != "Producer-Seq"]
    if reply.code == Code.PRODUCER_GAP:
        headers = [(name, value) for name, value in headers if not name.startswith("Producer-")]
        headers.append(("Producer-Expected-Seq", str(reply.expected_sequence)))
        headers.append(("Producer-Received-Seq", str(reply.received_sequence)))
    return code, _message(asked, reply), headers


def fail_refusal(exchange: Exchange, refusal: Refusal) -> None:
    """Respond with the error of a refused read."""
    headers: Headers = []
    message = refusal.message
    if refusal.code == Code.OFFSET_BEYOND_TAIL:
        tail = format_token(refusal.record, refusal.byte)
        headers.append(("Stream-Next-Offset", tail))
        if "record" in exchange.query:
            headers.append(("Stream-Record-Next", str(refusal.record)))
        message = (
            f"the offset lies beyond the tail of the stream, which is at {tail}: read from there, "
            "or from -1"
        )
    if refusal.code == Code.NOT_FOUND:
        message = _missing(exchange)
    if refusal.code == Code.TRIMMED:
        headers += retained_headers(exchange, refusal)
        message = trimmed_message(refusal)
    exchange.fail(REFUSALS.get(refusal.code, "INTERNAL"), message, headers)


def retained_headers(exchange: Exchange, refusal: Refusal) -> Headers:
    """Return the headers with the first retained record, where a read begins before it."""
    headers = [("Stream-Retained-Offset", format_token(refusal.record, refusal.byte))]
    if "record" in exchange.query:
        headers.append(("Stream-Record-First", str(refusal.record)))
    return headers


def trimmed_message(at: Refusal | Reply) -> str:
    """Return the message for a position before the first retained record."""
    return (
        "the offset lies before the first retained record, at "
        f"{format_token(at.record, at.byte)}: continue from there, or from -1"
    )


def _missing(exchange: Exchange, *, creating: bool = False) -> str:
    """Return the message for a missing stream; for a create that is the fork's source."""
    if creating:
        return (
            "there is no stream at "
            f"{exchange.head.headers.get('stream-forked-from', '')[:PATH_BYTES_MAX]}, which "
            "Stream-Forked-From names"
        )
    message = f"there is no stream '{spelled_name(exchange.route.name)}'"
    if exchange.head.method != "DELETE":
        message += "; a PUT to its URL creates it"
    return message + (
        " (a path outside /v1 is read as BUCKET/STREAM)" if exchange.route.bare_offsets else ""
    )


def _message(asked: Mapping[str, str], reply: Reply) -> str:
    """Return the message for a refusal with details; "": the default of its code."""
    detail = reply.detail
    if reply.code == Code.PRECONDITION:
        return refusal_message(asked, reply)
    if reply.code == Code.INCARNATION and "stream-incarnation" not in asked:
        return "the stream is not the incarnation of the ETag in If-Match: it was created again"
    if reply.code == Code.APPEND_EXCEEDS_MEMORY_LIMIT:
        return _over_hot_bound(reply)
    if reply.code == Code.SNAPSHOT_NEEDED and "stream-forked-from" in asked:
        if detail is None:
            return (
                "the fork exists, but the snapshot before its fork point is gone: delete it, and fork "
                "at a later offset"
            )
        return (
            "the source's records before its snapshots are trimmed, and the oldest one is at "
            f"{format_token(*detail)}: fork there or behind it"
        )
    if reply.code == Code.SUB_OFFSET and isinstance(detail, str):
        return detail
    if reply.code == Code.CONTENT_TYPE and str(detail).startswith(KAFKA_CONTENT_TYPE):
        return ""
    if reply.code == Code.CONTENT_TYPE and isinstance(detail, str):
        given = asked.get("content-type", "")
        return (
            f"the stream holds {detail}, and the request's Content-Type is {given}: send "
            f"{detail}, or append to another stream"
            + (
                f" (it is curl's own choice: give it -H 'Content-Type: {detail}')"
                if given == _FORM
                else ""
            )
        )
    if reply.code == Code.PRODUCER_GAP and reply.expected_sequence >= 0:
        return (
            f"Producer-Seq is {reply.received_sequence}, and the next one of this producer is "
            f"{reply.expected_sequence}"
        )
    if reply.code == Code.PRODUCER_CONFLICT:
        return (
            f"Producer-Seq {reply.received_sequence} was appended with another body: send new "
            f"records with the next one, {reply.expected_sequence}, or take a new Producer-Epoch"
        )
    if reply.code == Code.PRODUCER_STALE and reply.producer_epoch >= 0:
        return (
            f"a newer Producer-Epoch is known, {reply.producer_epoch}: another run of this "
            "producer has taken over"
        )
    if reply.code == Code.EXISTS_DIFFERENT and isinstance(detail, list | tuple):
        return _differences(asked, detail)
    return ""


def _differences(asked: Mapping[str, str], differences: Sequence[tuple[str, Any]]) -> str:
    """List the differences between stream and request, by header. Settings of a later release are
    skipped."""
    parts = []
    for setting, value in differences:
        if setting in _NO_HEADER:
            parts.append(_NO_HEADER[setting](value))
        elif setting in _HEADERS:
            name, shown = _HEADERS[setting]
            absent = _ABSENT.get(setting, "not set")
            wanted = (asked.get(name.lower()) or absent)[:CONTENT_TYPE_BYTES_MAX]
            parts.append(
                f"its {name} is {absent if value is None else shown(value)}, and the request's is "
                f"{wanted}"
            )
    if not parts:
        return ""
    return (
        f"the stream exists with another configuration: {'; '.join(parts)}. Send the same "
        "configuration, or choose another name"
    )


def _limit(limit: int) -> str:
    return str(limit) if limit else "the node's setting"


_FORM = "application/x-www-form-urlencoded"
_ABSENT = {
    "content_type": OCTET_STREAM,
    "closed": "false",
    "retention_age": FOREVER,
    "retention_bytes": FOREVER,
    "fork_sub_offset": "0",
}
_HEADERS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "content_type": ("Content-Type", str),
    "ttl_seconds": ("Stream-TTL", str),
    "expires_at_ms": ("Stream-Expires-At", format_instant),
    "closed": ("Stream-Closed", lambda closed: "true" if closed else "false"),
    "retention_age": ("Stream-Retention-Age", str),
    "retention_bytes": ("Stream-Retention-Bytes", str),
    "profile": ("Stream-Profile", str),
    "segment_records": ("Stream-Segment-Records", _limit),
    "segment_bytes": ("Stream-Segment-Bytes", _limit),
    "fork_offset": ("Stream-Fork-Offset", str),
    "fork_sub_offset": ("Stream-Fork-Sub-Offset", str),
}
_NO_HEADER: dict[str, Callable[[Any], str]] = {
    "retention": lambda _: "it has no retention of its own, and the request gives it one",
    "retention_snapshots": lambda _: "its retention has another rule of snapshots",
    "attributes": lambda _: "its attributes are others than those of Stream-Attrs",
    "is_fork": lambda is_fork: (
        "it is a fork, and the request has no Stream-Forked-From" if is_fork else "it is not a fork"
    ),
    "fork_source": lambda _: "it is a fork of another stream than Stream-Forked-From names",
}


def _over_hot_bound(reply: Reply) -> str:
    return (
        f"the data is larger than the limit of {reply.byte:,} bytes for unflushed data "
        "(cold.max_hot_bytes_per_group), "
        "so it can never be accepted; split it, or raise the limit"
    )


def _code(reply: Reply, asked: Mapping[str, str], *, has_store: bool, creating: bool) -> str:
    code = reply.code
    if code == Code.CONTENT_TYPE and str(reply.detail).startswith(KAFKA_CONTENT_TYPE):
        return "KAFKA_PARTITION"
    if code == Code.PRECONDITION:
        return refusal_code(asked)
    if creating and code == Code.GONE:
        return "DELETED_IN_USE"
    if code == Code.MEMORY_PRESSURE and (reply.detail or not has_store):
        return "MEMORY_FULL"
    return REFUSALS.get(code, "INTERNAL")
