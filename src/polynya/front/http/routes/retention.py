"""STREAM/retention: the retention of a stream (GET, PUT, DELETE), and trims (POST, and PUT of
STREAM/retention/OFFSET)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from polynya.base.levels import COMPACTION_LEVEL
from polynya.base.limits import (
    RETENTION_BYTES_MAX,
    RETENTION_SECONDS_MAX,
    SNAPSHOTS_KEPT_MAX,
    SNAPSHOTS_KEPT_MIN,
)
from polynya.base.names import bucket_of
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.extension import read_json
from polynya.front.http.protocol.responses import NO_STORE
from polynya.front.http.routes.conditions import is_other_incarnation, refuse_conditions
from polynya.front.http.routes.read_request import parse_offset
from polynya.front.http.routes.refusals import fail_refusal, fail_reply
from polynya.local.api import Position, Refusal, StreamInfo, Trimmed, TrimQuery
from polynya.routing.proposals import reply_to
from polynya.stream.features.compaction.commands import SetCompaction
from polynya.stream.features.retention.commands import SetRetention
from polynya.stream.parts import Retention, SnapshotRule
from polynya.stream.replies import Code, Reply
from polynya.wire.headers import BadField, parse_incarnation
from polynya.wire.times import parse_time_ms

_Seconds = Annotated[int, msgspec.Meta(ge=0, le=RETENTION_SECONDS_MAX)]
_Kept = Annotated[int, msgspec.Meta(ge=SNAPSHOTS_KEPT_MIN, le=SNAPSHOTS_KEPT_MAX)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=RETENTION_BYTES_MAX)]


class RetentionBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a PUT; null means no limit."""

    age_seconds: _Seconds | None = None
    bytes: _Bytes | None = None
    record_time: bool = False  # the age is that of the times that clients gave their records
    snapshot: Literal["off", "any"] = "off"  # trim to the oldest snapshot at each publish
    snapshots_kept: _Kept = SNAPSHOTS_KEPT_MIN


class StreamRetentionBody(RetentionBody, forbid_unknown_fields=True):
    """Body of a PUT of a stream."""

    compact: bool = False  # of the records with one key only the newest is kept


class TrimBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a POST: exactly one field is set."""

    before: str | None = None
    before_time: str | None = None
    keep_bytes: _Bytes | None = None
    keep_age_seconds: _Seconds | None = None


def read_retention(body: bytes) -> Retention:
    """Return the retention of a request's body. Raises `Failure`."""
    return _retention(read_json(body, RetentionBody))


def _retention(found: RetentionBody) -> Retention:
    if found.snapshot == "off" and found.snapshots_kept == SNAPSHOTS_KEPT_MIN:
        return Retention(found.age_seconds, found.bytes, found.record_time)
    rule = SnapshotRule(found.record_time, int(found.snapshot == "any"), found.snapshots_kept)
    return Retention(found.age_seconds, found.bytes, rule)


def shown(retention: Retention | None) -> dict[str, Any]:
    """Return a retention as responses show it."""
    if retention is None:
        return {"age_seconds": None, "bytes": None}
    by: dict[str, Any] = {"record_time": True} if retention.by_record_time else {}
    rule = retention.snapshots
    if rule is not None:
        by |= {"snapshot": "any" if rule.trims else "off", "snapshots_kept": rule.kept}
    return {"age_seconds": retention.age_seconds, "bytes": retention.bytes, **by}


def show_retention(exchange: Exchange) -> None:
    """Handle GET. Raises `Failure`."""
    _spawn(exchange, lambda: _show(exchange))


async def _show(exchange: Exchange) -> None:
    info = await _facts(exchange)
    if info is None:
        return
    bucket = (await exchange.context.service.buckets()).get(bucket_of(info.name))
    retention, origin = (
        (info.retention, "stream") if info.retention is not None else (bucket, "bucket")
    )
    answer = {
        **shown(retention),
        **_compacted(info.compact),
        "from": None if retention is None else origin,
        "retained_offset": format_token(info.first_record, info.first_byte),
        "next_offset": format_token(info.record, info.byte),
    }
    _answer(exchange, info.uid, answer)


def put_retention(exchange: Exchange) -> None:
    """Handle PUT. Raises `Failure`."""
    refuse_conditions(exchange)
    if exchange.route.segments:
        exchange.spawn(_trim_to(exchange))
        return
    body = read_json(exchange.body, StreamRetentionBody)
    _spawn(exchange, lambda: _set(exchange, _retention(body), compact=body.compact))


def clear_retention(exchange: Exchange) -> None:
    """Handle DELETE. Raises `Failure`."""
    refuse_conditions(exchange)
    _spawn(exchange, lambda: _set(exchange, None))


async def _set(exchange: Exchange, retention: Retention | None, *, compact: bool = False) -> None:
    """Set the retention, and then whether keys are compacted, if that changes."""
    name, service = exchange.route.name, exchange.context.service
    info = await _facts(exchange)
    if info is None:
        return
    if compact and service.level < COMPACTION_LEVEL:
        raise Failure("UPGRADE_PENDING")
    uid = _incarnation(exchange) or info.uid
    reply = await _proposed(exchange, SetRetention(name, retention, service.now_ms(), uid))
    if reply.code < Code.NOT_FOUND and compact != info.compact:
        reply = await _proposed(exchange, SetCompaction(name, compact, service.now_ms(), uid))
    if reply.code >= Code.NOT_FOUND:
        fail_reply(exchange, reply)
    elif retention is None:
        exchange.answer(204, [("Stream-Incarnation", str(reply.uid))])
    else:
        found = {**shown(retention), **_compacted(compact), "from": "stream"}
        _answer(exchange, reply.uid, found)


def _compacted(compact: bool) -> dict[str, Any]:
    return {"compact": True} if compact else {}


async def _proposed(exchange: Exchange, command: SetRetention | SetCompaction) -> Reply:
    """Propose a command of the stream, and return the reply. Raises the fault."""
    return await reply_to(partial(exchange.stream.propose, command))


def trim_stream(exchange: Exchange) -> None:
    """Handle POST. Raises `Failure`."""
    refuse_conditions(exchange)
    query = _trim_query(
        read_json(exchange.body, TrimBody), exchange, exchange.context.service.now_ms()
    )
    _spawn(exchange, lambda: _trim(exchange, query))


async def _trim(exchange: Exchange, query: TrimQuery) -> None:
    found = await exchange.context.service.trim(query)
    if isinstance(found, Refusal):
        fail_refusal(exchange, found)
        return
    offset = format_token(found.record, found.byte)
    answer = {"retained_offset": offset, "records": found.records, "bytes": found.bytes}
    _answer(exchange, found.uid, answer, [("Stream-Retained-Offset", offset)])


async def _trim_to(exchange: Exchange) -> None:
    """Handle PUT of STREAM/retention/OFFSET: a trim without a body, and a response without one."""
    record, byte = parse_offset("/".join(exchange.route.segments), bare=exchange.route.bare_offsets)
    found = await exchange.context.service.trim(
        TrimQuery(exchange.route.name, record, byte, incarnation=_incarnation(exchange))
    )
    if isinstance(found, Refusal):
        fail_refusal(exchange, found)
    else:
        exchange.answer(204, _trimmed_headers(found))


def _trimmed_headers(found: Trimmed) -> Headers:
    return [
        ("Stream-Retained-Offset", format_token(found.record, found.byte)),
        ("Stream-Incarnation", str(found.uid)),
    ]


def _trim_query(body: TrimBody, exchange: Exchange, now_ms: int) -> TrimQuery:
    given = [name for name in body.__struct_fields__ if getattr(body, name) is not None]
    if len(given) != 1:
        raise Failure(
            "INVALID_REQUEST", f"a trim needs exactly one of {', '.join(body.__struct_fields__)}"
        )
    name, incarnation = exchange.route.name, _incarnation(exchange)
    if body.before is not None:
        record, byte = parse_offset(body.before, bare=exchange.route.bare_offsets)
        return TrimQuery(name, record, byte, incarnation=incarnation)
    if body.keep_bytes is not None:
        return TrimQuery(name, keep_bytes=body.keep_bytes, incarnation=incarnation)
    if body.keep_age_seconds is not None:
        return TrimQuery(
            name,
            Position.AT_TIME,
            max(0, now_ms - body.keep_age_seconds * 1000),
            incarnation=incarnation,
        )
    assert body.before_time is not None
    try:
        return TrimQuery(
            name, Position.AT_TIME, parse_time_ms(body.before_time, now_ms), incarnation=incarnation
        )
    except BadField as bad:
        raise Failure("INVALID_REQUEST", f"before_time: {bad}") from None


def _spawn(exchange: Exchange, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if exchange.route.segments:
        raise Failure("NO_ROUTE")
    exchange.spawn(work())


async def _facts(exchange: Exchange) -> StreamInfo | None:
    """Return the stream's facts; None if the error has been sent."""
    info = await exchange.stream.info()
    if isinstance(info, Refusal):
        fail_refusal(exchange, info)
        return None
    return None if is_other_incarnation(exchange, info) else info


def _answer(
    exchange: Exchange, uid: int, answer: dict[str, Any], headers: Headers | None = None
) -> None:
    lines = [
        ("Content-Type", "application/json"),
        ("Stream-Incarnation", str(uid)),
        ("Cache-Control", NO_STORE),
        *(headers or []),
    ]
    exchange.answer(200, lines, msgspec.json.encode(answer))


def _incarnation(exchange: Exchange) -> int:
    try:
        return parse_incarnation(exchange.head.headers.get("stream-incarnation"))
    except BadField as bad:
        raise Failure("INVALID_HEADER", str(bad)) from None
