"""POST: append and/or close. The hot path: no task, no future."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from polynya.base.limits import CONTENT_TYPE_BYTES_MAX
from polynya.base.names import KAFKA_PREFIX
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.append_request import AppendRequest
from polynya.front.http.routes.bodies import (
    RECORDS_BODY,
    batch_of,
    decode,
    encoding_of,
    is_parsed_in_thread,
)
from polynya.front.http.routes.conditions import read_condition
from polynya.front.http.routes.refusals import fail_refusal
from polynya.local.api import Refusal, StreamInfo
from polynya.stream.parts import Batch, Encoding
from polynya.wire.headers import (
    RECORDS,
    BadField,
    is_true,
    parse_content_type,
    parse_incarnation,
    parse_producer,
    parse_stream_seq,
)
from polynya.wire.http.body_coding import CODED
from polynya.wire.http.conditions import CONDITIONS
from polynya.wire.json_records import BadJson, TooManyRecords, parse_records, values_of
from polynya.wire.record_fields import (
    BatchTooLarge,
    RecordFields,
    described,
    parse_batch,
    parse_record_fields,
)

_AT_ONCE_BYTES = 64 * 1024  # of a body; a batch of a larger one is built in a thread
_Build = Callable[[int], Batch | None]  # from the current time; None: the body has no records


def append(exchange: Exchange) -> None:
    """Handle an append. Raises `Failure`."""
    if CODED.isdisjoint(exchange.head.headers):
        _append(exchange)
    else:
        exchange.peer.responses.exclusive = True
        exchange.spawn(_decode_and_append(exchange))


async def _decode_and_append(exchange: Exchange) -> None:
    await decode(exchange)
    _append(exchange)
    exchange.peer.last_append = None  # the head of the next one may look alike


def _append(exchange: Exchange) -> None:
    request = parse_append(exchange)
    body, exchange.body = exchange.body, b""  # from here on the batch holds it
    headers = exchange.head.headers
    if (
        request.encoding == RECORDS_BODY
        or "record-key" in headers
        or "record-header" in headers
        or "record-timestamp" in headers
    ):
        append_records(request, body)
        return
    if not body and request.stream.name.startswith(KAFKA_PREFIX):
        exchange.peer.responses.exclusive = True
        exchange.spawn(_close_unless_partition(request))
        return
    if is_parsed_in_thread(request.encoding, body):
        exchange.peer.responses.exclusive = True
        exchange.spawn(_parse_and_propose(request, body))
        return
    exchange.peer.last_append = request
    request.propose(body, request.producer, request.answer)


async def _parse_and_propose(request: AppendRequest, body: bytes) -> None:
    """Parse a large body while other connections are served, and propose it."""
    batch = await asyncio.to_thread(batch_of, request.encoding, body)
    if batch is None:
        raise Failure("EMPTY_ARRAY")
    request.propose(body, request.producer, request.answer, batch)


async def _close_unless_partition(request: AppendRequest) -> None:
    """Close a stream whose name may be that of a partition: a body would have a wrong type."""
    info = await request.stream.info()
    if isinstance(info, StreamInfo) and info.encoding == Encoding.KAFKA:
        raise Failure("KAFKA_PARTITION")
    request.propose(b"", request.producer, request.answer)


def parse_append(exchange: Exchange) -> AppendRequest:
    """Parse the head of an append. Raises `Failure`."""
    headers = exchange.head.headers
    close = "stream-closed" in headers and is_true(headers["stream-closed"])
    content_type, encoding = "", int(Encoding.BYTES)
    body = exchange.body
    if body:
        content_type = headers.get("content-type", "")
        if not content_type:
            raise Failure("CONTENT_TYPE_REQUIRED")
        encoding = encoding_of(content_type)
    elif not close:
        raise Failure("EMPTY_BODY")
    service, condition = exchange.context.service, None
    try:
        producer = parse_producer(headers)
        sequence = parse_stream_seq(headers["stream-seq"]) if "stream-seq" in headers else None
        incarnation = 0
        if "stream-incarnation" in headers:
            incarnation = parse_incarnation(headers["stream-incarnation"])
        if not CONDITIONS.isdisjoint(headers):
            condition = read_condition(service, headers, incarnation)
        if len(content_type) > CONTENT_TYPE_BYTES_MAX:
            parse_content_type(content_type)
    except BadField as bad:
        if body and batch_of(encoding, body) is None:  # an error of the body comes first
            raise Failure("EMPTY_ARRAY") from None
        raise Failure("INVALID_HEADER", str(bad)) from None
    head = exchange.head
    has_options = exchange.request_id or not head.minor or "origin" in headers
    has_options = has_options or "traceparent" in headers or exchange.span is not None
    return AppendRequest(
        exchange.context,
        exchange.peer.responses,
        exchange.number,
        exchange.stream,
        content_type,
        encoding,
        producer,
        sequence,
        close,
        incarnation,
        bool(body) and producer is not None,
        exchange.keep_alive and not has_options and condition is None,
        headers.get("stream-zone", ""),
        exchange,
        condition,
    )


# --- records with keys, headers or times ----------------------------------------------------------


def append_records(request: AppendRequest, body: bytes) -> None:
    """Handle an append that has `Record-…` headers, or a body of whole records. Raises
    `Failure`."""
    try:
        fields = parse_record_fields(request.exchange.head.headers)
    except BadField as bad:
        raise Failure("INVALID_HEADER", str(bad)) from None
    if not body:
        raise Failure(
            "INVALID_HEADER",
            "Record-Key, Record-Header and Record-Timestamp describe the records of the body, and "
            "the request has no body",
        )
    if request.encoding != RECORDS_BODY:
        assert fields is not None
        build = partial(_described, body, fields, is_json=request.encoding == Encoding.JSON)
        _start(request, build, request.content_type, len(body))
        return
    if fields is not None:
        raise Failure(
            "INVALID_HEADER",
            "Record-Key, Record-Header and Record-Timestamp are not for a body of "
            f"{RECORDS}, whose records have their own",
        )
    info = request.stream.info_nowait()
    if info is None:
        request.responses.exclusive = True
        request.exchange.spawn(_learn_type(request, body))
    else:
        _propose_body(request, body, info)


async def _learn_type(request: AppendRequest, body: bytes) -> None:
    _propose_body(request, body, await request.stream.info())


def _propose_body(request: AppendRequest, body: bytes, info: StreamInfo | Refusal) -> None:
    """Propose a body of whole records, whose values are those of the stream's type."""
    if isinstance(info, Refusal):
        fail_refusal(request.exchange, info)
        return
    if info.encoding == Encoding.KAFKA:
        raise Failure("KAFKA_PARTITION")
    request.encoding = info.encoding
    build = partial(_whole, body, is_json=info.encoding == Encoding.JSON)
    _start(request, build, info.content_type, len(body))


def _start(request: AppendRequest, build: _Build, content_type: str, size: int) -> None:
    """Build and propose the batch: at once, or in a thread while later requests wait."""
    if size <= _AT_ONCE_BYTES:
        _propose(request, build(request.context.service.now_ms()), content_type)
    else:
        request.responses.exclusive = True
        request.exchange.spawn(_build_and_propose(request, build, content_type))


async def _build_and_propose(request: AppendRequest, build: _Build, content_type: str) -> None:
    now_ms = request.context.service.now_ms()
    _propose(request, await asyncio.to_thread(build, now_ms), content_type)


def _propose(request: AppendRequest, batch: Batch | None, content_type: str) -> None:
    if batch is None:
        raise Failure("EMPTY_ARRAY")
    request.content_type = content_type
    request.propose(batch.payload, request.producer, request.answer, batch)


def _described(body: bytes, fields: RecordFields, now_ms: int, *, is_json: bool) -> Batch | None:
    """Return the batch of a body that is described by headers. Raises `Failure`."""
    try:
        values = values_of(parse_records(body)) if is_json else [body]
        return described(values, fields, now_ms) if values else None
    except (BadJson, TooManyRecords, BatchTooLarge) as bad:
        raise _failure(bad) from None


def _whole(body: bytes, now_ms: int, *, is_json: bool) -> Batch | None:
    """Return the batch of a body of whole records. Raises `Failure`."""
    try:
        return parse_batch(body, now_ms, is_json=is_json)
    except (BadJson, TooManyRecords, BatchTooLarge) as bad:
        raise _failure(bad) from None


def _failure(bad: Exception) -> Failure:
    if isinstance(bad, BadJson):
        return Failure("INVALID_JSON", str(bad))
    return Failure(
        "TOO_MANY_RECORDS" if isinstance(bad, TooManyRecords) else "BODY_TOO_LARGE", str(bad)
    )
