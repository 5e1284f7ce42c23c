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
    parse_offset,
    path_of,
)
from polynya.front.http.snapshots.origins import note_outcome, origin_of_publish, publishing
from polynya.front.http.snapshots.parts import NO_JSON, PARTS, digest_of, named_parts
from polynya.local.api import Refusal, StreamInfo
from polynya.service.reducers.due import is_unfit
from polynya.service.reducers.states import COMPACTED
from polynya.service.snapshots import ANY_BYTE, Body, Staged, boundary_of, drop, publish, stage
from polynya.stream.features.marks.held import repeated
from polynya.stream.parts import Mark
from polynya.stream.replies import Code, Reply
from polynya.wire.headers import OCTET_STREAM, BadField, media_type, parse_content_type
from polynya.wire.http.body_coding import CODED
from polynya.wire.json_records import valid_value

_AT_ONCE_BYTES = 64 * KIB  # of a body; a larger one is hashed and checked in a thread


def put_snapshot(exchange: Exchange) -> None:
    """Handle PUT. Raises `Failure`."""
    refuse_conditions(exchange, frozenset((PARTS,)))
    needs_level(exchange)
    origin = origin_of_publish(exchange)
    exchange.spawn(_put(exchange, _boundary_of(exchange), origin))


def _boundary_of(exchange: Exchange) -> tuple[int, int]:
    """Return the offset in the path, or the number in `record`, whose byte is not named. Raises
    `Failure`."""
    if exchange.route.segments:
        return parse_offset(exchange.route.segments[0])
    text = exchange.query.get("record", "")
    if text.isdecimal() and text.isascii() and len(text) <= 18:
        return int(text), ANY_BYTE
    raise Failure(
        "INVALID_OFFSET",
        "the path of a snapshot ends in its offset: PUT …/snapshot/OFFSET, or …/snapshot?record=N",
    )


async def _put(exchange: Exchange, at: tuple[int, int], origin: tuple[str, int] | None) -> None:
    if not CODED.isdisjoint(exchange.head.headers):
        await decode(exchange)
    content_type = _content_type(exchange)
    names_parts = PARTS in exchange.head.headers
    data = b"" if names_parts else exchange.body
    digest = b"" if names_parts else await _judge(data, content_type)
    bound = None if origin is None else await publishing(exchange, origin)
    info = await facts(exchange)
    if info is None:
        return
    if bound is not None and is_unfit(bound, info):
        raise Failure("REDUCER_FAULT", COMPACTED)
    service = exchange.context.service
    boundary = await boundary_of(service, info, *at)
    if isinstance(boundary, Refusal):
        _fail_boundary(exchange, boundary)
        return
    parts: list[Staged] = []
    if names_parts:
        parts = named_parts(exchange)
        digest = await digest_of(exchange, info, parts, content_type)
    size = sum(part.size for part in parts) if names_parts else len(data)
    source = "" if bound is None else bound.binding.origin(bound.name)
    mark = Mark(*boundary, (), size, digest, content_type, 0, source)
    if repeated(info.marks or (), boundary, digest, source):
        _answer(exchange, info, mark, 204)
        return
    if data:
        staged = await stage(service, info, data, diskless=exchange.context.settings.object_store)
        if isinstance(staged, Reply):
            fail_snapshot(exchange, staged, info)
            return
        parts = [staged]
    reply = await publish(service, info, boundary, Body(digest, content_type, source), parts)
    if bound is not None:
        await note_outcome(exchange, bound, reply, (boundary[0], size))
    if reply.code >= Code.NOT_FOUND:
        fail_snapshot(exchange, reply, info)
    else:
        _answer(exchange, info, mark, 201 if reply.code == Code.CREATED else 204)


def _content_type(exchange: Exchange) -> str:
    try:
        return parse_content_type(exchange.head.headers.get("content-type") or OCTET_STREAM)
    except BadField as bad:
        raise Failure("INVALID_HEADER", str(bad)) from None


async def _judge(data: bytes, content_type: str) -> bytes:
    """Return the digest of a body that is what its type says. Raises `Failure`."""
    is_json = media_type(content_type) == "application/json"
    if len(data) <= _AT_ONCE_BYTES:
        is_valid, digest = _judged(data, is_json=is_json)
    else:
        is_valid, digest = await asyncio.to_thread(_judged, data, is_json=is_json)
    if not is_valid:
        raise Failure("INVALID_JSON", NO_JSON)
    return digest


def _judged(data: bytes, *, is_json: bool) -> tuple[bool, bytes]:
    """Report whether the body is what its type says, and its digest. A JSON body stands inside of
    answers, so it must be one value."""
    return not is_json or valid_value(data) is not None, sha256(data).digest()


def _answer(exchange: Exchange, info: StreamInfo, mark: Mark, status: int) -> None:
    headers = mark_headers(info, mark)
    if status == 201:
        headers.insert(0, ("Location", exchange.base_url + path_of(exchange, mark)))
    exchange.answer(status, headers)


def _fail_boundary(exchange: Exchange, refusal: Refusal) -> None:
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
    exchange.spawn(_delete(exchange, parse_offset(exchange.route.segments[0])))


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
