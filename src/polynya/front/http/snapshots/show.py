"""GET of STREAM/snapshot, STREAM/snapshot/OFFSET and STREAM/snapshots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from polynya.base.errors import Unavailable
from polynya.base.limits import APPEND_BYTES_MAX
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NO_CACHE, NO_STORE
from polynya.front.http.routes.conditions import refuse_conditions
from polynya.front.http.routes.pages import allowed_bytes
from polynya.front.http.routes.read_request import is_local
from polynya.front.http.routes.refusals import fail_refusal
from polynya.front.http.snapshots.asked import (
    facts,
    mark_at,
    mark_headers,
    newest_of,
    no_snapshot,
    parse_offset,
    path_of,
    redirect,
)
from polynya.local.api import Refusal, StreamInfo
from polynya.service.snapshots import body_of, part_of, touch
from polynya.stream.features.marks.held import is_readable
from polynya.stream.parts import Mark
from polynya.stream.replies import Code
from polynya.wire.headers import BadField, format_instant, none_match
from polynya.wire.http.snapshots import etag_of_snapshot, parse_range

_JUDGED = frozenset(("if-none-match",))


def show_newest(exchange: Exchange) -> None:
    """Handle GET of STREAM/snapshot: a redirect to the newest one. Raises `Failure`."""
    refuse_conditions(exchange)
    exchange.spawn(_newest(exchange, local=is_local(exchange)), waits=True)


async def _newest(exchange: Exchange, *, local: bool) -> None:
    info = await facts(exchange, local=local)
    if info is None:
        return
    mark = newest_of(exchange, info)
    if mark is None:
        no_snapshot(exchange, None)
    else:
        redirect(exchange, path_of(exchange, mark), mark_headers(info, mark))


def show_snapshot(exchange: Exchange) -> None:
    """Handle GET of STREAM/snapshot/OFFSET. Raises `Failure`."""
    refuse_conditions(exchange, _JUDGED)
    at = parse_offset(exchange.route.segments[0])
    exchange.spawn(_show(exchange, at, local=is_local(exchange)), waits=True)


async def _show(exchange: Exchange, at: tuple[int, int], *, local: bool) -> None:
    info = await facts(exchange, local=local)
    mark = None if info is None else mark_at(exchange, info, at)
    if info is not None and mark is not None:
        await answer_snapshot(exchange, info, mark)


async def answer_snapshot(
    exchange: Exchange, info: StreamInfo, mark: Mark, cache: str = NO_CACHE
) -> None:
    """Respond with the body of a snapshot, or a range of it. `cache` is the Cache-Control."""
    await touch(exchange.context.service, info)
    headers = body_headers(info, mark, cache)
    if none_match(exchange.head.headers.get("if-none-match"), etag_of_snapshot(mark.sha256)):
        exchange.answer(304, headers)
        return
    span = _range(exchange, mark)
    if exchange.head.method == "HEAD":
        exchange.answer(200, [*headers, ("Content-Length", str(mark.size))])
        return
    begin, end = span or (0, mark.size)
    allowed_bytes(exchange, min(mark.size, APPEND_BYTES_MAX))
    if span is not None:
        headers.append(("Content-Range", f"bytes {begin}-{end - 1}/{mark.size}"))
    status = 200 if span is None else 206
    if len(mark.parts) > 1:
        pieces = _pieces(exchange, info, mark, begin, end)
        await exchange.answer_pieces(status, headers, end - begin, pieces)
        return
    body = await read_body(exchange, info, mark)
    if body is not None:
        exchange.answer_parts(status, headers, [memoryview(body)[begin:end]])


async def _pieces(
    exchange: Exchange, info: StreamInfo, mark: Mark, begin: int, end: int
) -> AsyncIterator[memoryview]:
    """Yield the bytes of a body from `begin` to `end` part by part. Raises Unavailable when the
    snapshot goes meanwhile."""
    at = 0
    for record, byte, size in mark.parts:
        if begin < at + size and at < end:
            part = await part_of(
                exchange.context.service, info, (record, byte), local=is_local(exchange)
            )
            if isinstance(part, Refusal) or len(part) != size:
                raise Unavailable("the snapshot was removed while it was read")
            yield memoryview(part)[max(0, begin - at) : end - at]
        at += size


def _range(exchange: Exchange, mark: Mark) -> tuple[int, int] | None:
    """Return the range of the body that the request asks for; None: all of it. Raises `Failure`."""
    asked = exchange.head.headers.get("range")
    condition = exchange.head.headers.get("if-range", "").strip()
    if asked is None or condition not in ("", etag_of_snapshot(mark.sha256)):
        return None
    try:
        return parse_range(asked, mark.size)
    except BadField as bad:
        size = ("Content-Range", f"bytes */{mark.size}")
        raise Failure("RANGE_NOT_SATISFIABLE", str(bad), (size,)) from None


def body_headers(info: StreamInfo, mark: Mark, cache: str = NO_CACHE) -> Headers:
    """Return the headers of a response with the body of a snapshot."""
    return [
        ("Content-Type", mark.content_type),
        *mark_headers(info, mark),
        ("Stream-Next-Offset", format_token(mark.record, mark.byte)),
        ("ETag", etag_of_snapshot(mark.sha256)),
        ("Accept-Ranges", "bytes"),
        ("Cache-Control", cache),
        ("Content-Security-Policy", "sandbox"),
    ]


async def read_body(exchange: Exchange, info: StreamInfo, mark: Mark) -> bytes | memoryview | None:
    """Return the body of a snapshot; None if the error has been sent."""
    body = await body_of(exchange.context.service, info, mark, local=is_local(exchange))
    if not isinstance(body, Refusal):
        return body
    if body.code in (Code.NOT_FOUND, Code.TRIMMED, Code.PARTS_GONE):  # since the facts were read
        exchange.fail("SNAPSHOT_GONE")
    else:
        fail_refusal(exchange, body)
    return None


def list_snapshots(exchange: Exchange) -> None:
    """Handle GET of STREAM/snapshots. Raises `Failure`."""
    refuse_conditions(exchange)
    exchange.spawn(_list(exchange, local=is_local(exchange)), waits=True)


async def _list(exchange: Exchange, *, local: bool) -> None:
    info = await facts(exchange, local=local)
    if info is None:
        return
    now_ms = exchange.context.service.now_ms()
    listed = [shown(info, mark) for mark in info.marks or () if is_readable(mark, now_ms)]
    headers = [
        ("Content-Type", "application/json"),
        ("Stream-Incarnation", str(info.uid)),
        ("Cache-Control", NO_STORE),
    ]
    exchange.answer(200, headers, msgspec.json.encode({"snapshots": listed}))


def shown(info: StreamInfo, mark: Mark) -> dict[str, Any]:
    """Return a snapshot as the list shows it."""
    return {
        "offset": format_token(mark.record, mark.byte),
        "bytes": mark.size,
        "content_type": mark.content_type,
        "digest": f"sha-256={mark.sha256.hex()}",
        "created_at": format_instant(mark.created_ms),
        "origin": mark.origin,
        "superseded": bool(mark.dropped_ms),
        "behind_trim": mark.record < info.first_record,
    }
