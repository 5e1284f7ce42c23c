"""GET of STREAM/incarnation and below: parts of a stream that never change, for caches.

A version names what a stream's bytes depend on: its incarnation, the cluster's history (a restore
raises it) and the slices that key compaction has rewritten. Below a version are chunks, each with
the records that begin in 4 MiB of the stream, and the snapshots. Another version is 410.
"""

from __future__ import annotations

from typing import Any

import msgspec

from polynya.base.limits import CHUNK_BYTES
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NO_STORE
from polynya.front.http.routes.conditions import refuse_conditions
from polynya.front.http.routes.pages import allowed_bytes, page_headers, send_parts
from polynya.front.http.routes.refusals import fail_refusal, trimmed_message
from polynya.front.http.snapshots.asked import facts, mark_at, parse_offset
from polynya.front.http.snapshots.show import answer_snapshot, shown
from polynya.local.api import OWN_ENCODING, Page, Position, ReadQuery, Refusal, Span, StreamInfo
from polynya.stream.features.marks.held import is_readable
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code
from polynya.wire.headers import none_match
from polynya.wire.json_records import array_parts

CHUNK, SNAPSHOT = "chunk", "snapshot"
_JUDGED = frozenset(("if-none-match",))


def show_immutable(exchange: Exchange) -> None:
    """Handle GET of STREAM/incarnation, …/VERSION, …/VERSION/chunk/BYTE and
    …/VERSION/snapshot/OFFSET. Raises `Failure`."""
    refuse_conditions(exchange, _JUDGED)
    segments = exchange.route.segments
    if len(segments) < 2:
        exchange.spawn(_list(exchange, *segments), waits=True)
    elif len(segments) == 3 and segments[1] == CHUNK:
        exchange.spawn(_chunk(exchange, segments[0], _begin_of(segments[2])), waits=True)
    elif len(segments) == 3 and segments[1] == SNAPSHOT:
        exchange.spawn(_snapshot(exchange, segments[0], parse_offset(segments[2])), waits=True)
    else:
        raise Failure(
            "NO_ROUTE",
            "below incarnation/VERSION are chunk/BYTE and snapshot/OFFSET; GET STREAM/incarnation "
            "lists them",
        )


def version_of(info: StreamInfo) -> str:
    """Return the name of what a stream's present bytes depend on."""
    return f"{info.uid}.{info.history}.{info.rewrites}"


def _begin_of(text: str) -> int:
    """Parse the first byte of a chunk. Raises `Failure`."""
    begin = int(text) if text.isdecimal() and text.isascii() and len(text) <= 18 else -1
    if begin < 0 or begin % CHUNK_BYTES:
        raise Failure(
            "INVALID_OFFSET",
            f"a chunk begins at a multiple of {CHUNK_BYTES} bytes of the stream, not at "
            f"'{text[:64]}'",
        )
    return begin


async def _facts(exchange: Exchange, version: str | None) -> StreamInfo | None:
    """Return the stream's facts; None if the error has been sent. Raises `Failure`."""
    info = await facts(exchange)
    if info is None or version is None or version == version_of(info):
        return info
    raise Failure(
        "VERSION_GONE",
        f"the stream is '{version_of(info)}' now, and the request names '{version[:80]}': it was "
        "created again, restored or compacted",
    )


async def _list(exchange: Exchange, version: str | None = None) -> None:
    info = await _facts(exchange, version)
    if info is None:
        return
    now_ms = exchange.context.service.now_ms()
    first = -(-info.first_byte // CHUNK_BYTES) * CHUNK_BYTES
    shows = _shows_chunks(info)
    listed: dict[str, Any] = {
        "version": version_of(info),
        "chunk_bytes": CHUNK_BYTES,
        "first_chunk": first if shows else None,
        "chunks": max(0, info.byte // CHUNK_BYTES - first // CHUNK_BYTES) if shows else 0,
        "snapshots": [shown(info, mark) for mark in info.marks or () if is_readable(mark, now_ms)],
    }
    headers = [
        ("Content-Type", "application/json"),
        ("Stream-Incarnation", str(info.uid)),
        ("Cache-Control", NO_STORE),
    ]
    exchange.answer(200, headers, msgspec.json.encode(listed))


def _shows_chunks(info: StreamInfo) -> bool:
    return info.encoding != Encoding.KAFKA


async def _snapshot(exchange: Exchange, version: str, at: tuple[int, int]) -> None:
    info = await _facts(exchange, version)
    mark = None if info is None else mark_at(exchange, info, at)
    if info is not None and mark is not None:
        await answer_snapshot(exchange, info, mark, cache_of(exchange, info))


async def _chunk(exchange: Exchange, version: str, begin: int) -> None:
    info = await _facts(exchange, version)
    if info is None:
        return
    if not _shows_chunks(info):
        raise Failure("NOT_SUPPORTED", _KAFKA)
    end = begin + CHUNK_BYTES
    if info.first_byte > begin:
        at = Refusal(Code.TRIMMED, info.first_record, info.first_byte)
        header = ("Stream-Retained-Offset", format_token(info.first_record, info.first_byte))
        raise Failure("TRIMMED", trimmed_message(at), (header,))
    if info.byte < end or not info.known:
        raise Failure(
            "NOT_COMPLETE",
            f"the chunk has the records up to byte {end}, and the stream ends at {info.byte}: read "
            f"the stream itself at its offsets, and this chunk later",
        )
    etag = f'"{version}-{begin:x}"'
    headers: Headers = [("ETag", etag), ("Cache-Control", cache_of(exchange, info))]
    if none_match(exchange.head.headers.get("if-none-match"), etag):
        exchange.answer(304, headers)
        return
    allowed_bytes(exchange, CHUNK_BYTES)
    page = await _page_of(exchange, begin, end)
    if isinstance(page, Refusal):
        fail_refusal(exchange, page)
        return
    if version_of(page.info) != version:  # since the facts were read
        raise Failure("VERSION_GONE")
    if any(span.encoding not in (OWN_ENCODING, info.encoding) for span in page.spans):
        raise Failure("NOT_SUPPORTED", _KAFKA)
    is_json = info.encoding == Encoding.JSON
    headers += page_headers(page, info.content_type, is_array=is_json)
    headers.append(("Stream-Offset", format_token(page.begin_record, page.begin_byte)))
    parts: list[bytes | memoryview] = [span.payload for span in page.spans]
    send_parts(exchange, headers, array_parts(parts) if is_json else parts)


_KAFKA = "a chunk has records as they are stored, and this stream has Kafka batches: read it at its offsets"


async def _page_of(exchange: Exchange, begin: int, end: int) -> Page | Refusal:
    """Read the records that begin in a part of the stream, as one page."""
    name, spans = exchange.route.name, list[Span]()
    first = await _read(exchange, ReadQuery(name, Position.AT_BYTE, begin, 1, whole_records=True))
    if isinstance(first, Refusal):
        return first
    at = (first.begin_record, first.begin_byte)
    if at[1] < begin:  # of the chunk before
        at = (first.record, first.byte)
    page = first
    begins = at
    while at[1] < end:
        size = max(1, end - at[1])
        read = await _read(exchange, ReadQuery(name, *at, size, whole_records=True))
        if isinstance(read, Refusal):
            return read
        if (read.record, read.byte) == at:  # the end, which was known to be further
            raise Failure("NOT_COMPLETE")
        page, at = read, (read.record, read.byte)
        spans += page.spans
    return msgspec.structs.replace(
        page, spans=spans, begin_record=begins[0], begin_byte=begins[1], up_to_date=False
    )


async def _read(exchange: Exchange, query: ReadQuery) -> Page | Refusal:
    return exchange.stream.read_nowait(query) or await exchange.stream.read(query)


def cache_of(exchange: Exchange, info: StreamInfo) -> str:
    """Return for how long caches may keep a part of a stream: not longer than the stream lives, or
    keeps its records."""
    context = exchange.context
    seconds = int(context.settings.immutable_max_age)
    if info.expires_at_ms is not None:
        seconds = min(seconds, (info.expires_at_ms - context.service.now_ms()) // 1000)
    if info.ttl_seconds is not None:
        seconds = min(seconds, info.ttl_seconds)
    if info.retention is not None and info.retention.age_seconds is not None:
        seconds = min(seconds, info.retention.age_seconds)
    return f"public, max-age={max(0, seconds)}, immutable"
