"""POST of records with keys, headers or times: the append is stored as one Kafka record batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.routes.bodies import RECORDS_BODY
from polynya.front.http.routes.refusals import fail_refusal
from polynya.local.api import Refusal, StreamInfo
from polynya.stream.parts import Batch, Encoding
from polynya.wire.headers import RECORDS, BadField
from polynya.wire.json_records import BadJson, TooManyRecords, parse_records, values_of
from polynya.wire.record_fields import (
    BatchTooLarge,
    RecordFields,
    described,
    parse_batch,
    parse_record_fields,
)

if TYPE_CHECKING:
    from polynya.front.http.routes.append import AppendRequest

_AT_ONCE_BYTES = 64 * 1024  # of a body; a batch of a larger one is built in a thread
_Build = Callable[[int], Batch | None]  # from the current time; None: the body has no records


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
    info = request.context.service.info_nowait(request.name)
    if info is None:
        request.responses.exclusive = True
        request.exchange.spawn(_learn_type(request, body))
    else:
        _propose_body(request, body, info)


async def _learn_type(request: AppendRequest, body: bytes) -> None:
    _propose_body(request, body, await request.context.service.info(request.name))


def _propose_body(request: AppendRequest, body: bytes, info: StreamInfo | Refusal) -> None:
    """Propose a body of whole records, whose values are those of the stream's type."""
    if isinstance(info, Refusal):
        fail_refusal(request.exchange, info)
        return
    if info.encoding == Encoding.KAFKA:
        raise Failure("KAFKA_PARTITION")
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
