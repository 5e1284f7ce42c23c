"""PUT and DELETE of STREAM/snapshot/OFFSET."""

from __future__ import annotations

import asyncio
from hashlib import sha256

from polynya.base.limits import KIB
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.bodies import decode
from polynya.front.http.routes.conditions import refuse_conditions
from polynya.front.http.routes.refusals import fail_refusal
from polynya.front.http.snapshots.asked import (
    facts,
    fail_snapshot,
    mark_headers,
    needs_level,
    parse_place,
)
from polynya.local.api import Refusal, StreamInfo
from polynya.service.snapshots import Body, boundary_of, drop, publish
from polynya.stream.features.marks.held import repeated
from polynya.stream.replies import Code
from polynya.stream.state.model import Mark
from polynya.wire.headers import OCTET_STREAM, BadField, media_type, parse_content_type
from polynya.wire.http.body_coding import CODED
from polynya.wire.json_records import valid_value

_AT_ONCE_BYTES = 64 * KIB  # of a body; a larger one is hashed and checked in a thread


def put_snapshot(exchange: Exchange) -> None:
    """Handle PUT. Raises `Failure`."""
    refuse_conditions(exchange)
    needs_level(exchange)
    exchange.spawn(_put(exchange, parse_place(exchange.route.segments[0])))


async def _put(exchange: Exchange, at: tuple[int, int]) -> None:
    if not CODED.isdisjoint(exchange.head.headers):
        await decode(exchange)
    body = await _body(exchange)
    info = await facts(exchange)
    if info is None:
        return
    service = exchange.context.service
    place = await boundary_of(service, info, *at)
    if isinstance(place, Refusal):
        _fail_place(exchange, place)
        return
    if repeated(info.marks or (), place, body.sha256, body.origin):
        _answer(exchange, info, place, body, 204)
        return
    diskless = exchange.context.settings.object_store
    reply = await publish(service, info, place, body, diskless=diskless)
    if reply.code >= Code.NOT_FOUND:
        fail_snapshot(exchange, reply, info)
    else:
        _answer(exchange, info, place, body, 201 if reply.code == Code.CREATED else 204)


async def _body(exchange: Exchange) -> Body:
    """Return the body of the request. Raises `Failure`."""
    data = exchange.body
    try:
        content_type = parse_content_type(exchange.head.headers.get("content-type") or OCTET_STREAM)
    except BadField as bad:
        raise Failure("INVALID_HEADER", str(bad)) from None
    is_json = media_type(content_type) == "application/json"
    if len(data) <= _AT_ONCE_BYTES:
        is_valid, digest = _judged(data, is_json=is_json)
    else:
        is_valid, digest = await asyncio.to_thread(_judged, data, is_json=is_json)
    if not is_valid:
        raise Failure(
            "INVALID_JSON", "the Content-Type is application/json, and the body is no JSON value"
        )
    return Body(data, digest, content_type)


def _judged(data: bytes, *, is_json: bool) -> tuple[bool, bytes]:
    """Report whether the body is what its type says, and its digest. A JSON body stands inside of
    answers, so it must be one value."""
    return not is_json or valid_value(data) is not None, sha256(data).digest()


def _answer(
    exchange: Exchange, info: StreamInfo, at: tuple[int, int], body: Body, status: int
) -> None:
    mark = Mark(*at, (), len(body.data), body.sha256, body.content_type, 0)
    headers = mark_headers(info, mark)
    if status == 201:
        path = exchange.route.path.rpartition("/")[0]
        headers.insert(0, ("Location", f"{exchange.base_url}{path}/{format_token(*at)}"))
    exchange.answer(status, headers)


def _fail_place(exchange: Exchange, refusal: Refusal) -> None:
    if refusal.code == Code.NOT_A_BOUNDARY:
        raise Failure(
            "INVALID_OFFSET",
            "no record begins at this offset; one begins at "
            f"{format_token(refusal.record, refusal.byte)}",
        )
    fail_refusal(exchange, refusal)


def delete_snapshot(exchange: Exchange) -> None:
    """Handle DELETE. Raises `Failure`."""
    refuse_conditions(exchange)
    needs_level(exchange)
    exchange.spawn(_delete(exchange, parse_place(exchange.route.segments[0])))


async def _delete(exchange: Exchange, at: tuple[int, int]) -> None:
    info = await facts(exchange)
    if info is None:
        return
    origin = exchange.query.get("origin", "")
    record = next(
        (mark.record for mark in info.marks or () if at[0] < 0 and mark.byte == at[1]), at[0]
    )
    if record < 0:
        raise Failure("NO_SNAPSHOT")
    reply = await drop(exchange.context.service, info, record, origin)
    if reply.code >= Code.NOT_FOUND:
        fail_snapshot(exchange, reply, info)
    else:
        exchange.answer(204, [("Stream-Incarnation", str(info.uid))])
