"""Pages that are not sent as stored: Kafka batches, and whole records as JSON."""

from __future__ import annotations

import asyncio
from functools import partial
from operator import attrgetter

from msgspec import structs

from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NO_STORE
from polynya.front.http.routes.pages import (
    LINES,
    VARIANTS,
    is_fresh,
    is_json_stream,
    json_form,
    lines_of,
    page_headers,
    send_parts,
)
from polynya.front.http.routes.read_request import ReadRequest, record_numbers
from polynya.local.api import OWN_ENCODING, Page, Span, StreamInfo
from polynya.stream.parts import Encoding
from polynya.wire.headers import ENVELOPE, RECORDS
from polynya.wire.json_records import array_parts
from polynya.wire.kafka.values import values_type
from polynya.wire.record_pages import Form, Shown, StoredSpan, show

_ENCODING = attrgetter("encoding")
AT_ONCE_BYTES = 16 * 1024  # stored; more, or what is compressed, is decoded in a thread
_CODEC_AT = 22  # the low byte of a batch's attributes


def needs_decoding(page: Page, form: str) -> bool:
    """Report whether a page in the form of `json_form` differs from its stored bytes."""
    return (
        form in (RECORDS, ENVELOPE)
        or page.info.encoding == Encoding.KAFKA
        or Encoding.KAFKA in map(_ENCODING, page.spans)
    )


async def send_decoded(
    exchange: Exchange, request: ReadRequest, page: Page, cache: str, live: Headers | None = None
) -> None:
    """Respond with the records of a page, or with 304 if the client has them. Raises `Failure`."""
    is_json = is_json_stream(page.info)
    form = json_form(exchange)
    if form == LINES and not is_json:
        form = ""
    first = max(request.query.record, page.first_record)
    is_whole = form in (RECORDS, ENVELOPE)
    form_shown = Form(is_whole, is_json, envelope=form == ENVELOPE)
    shown = await shown_of(
        page, first, form_shown, request.query.bytes_max, records_max=request.records_max
    )
    token = format_token(shown.record, shown.byte)
    if shown.damage:
        raise Failure("KAFKA_BATCH_UNREADABLE", shown.damage, (("Stream-Next-Offset", token),))
    page = structs.replace(page_up_to(page, shown), begin_record=first)
    is_array = is_json or is_whole
    headers = page_headers(page, form or values_type(page.info.content_type), is_array=is_array)
    headers += record_numbers(request, page) + (live or [])
    variant = VARIANTS[form] or ":v"
    if cache != NO_STORE and is_fresh(exchange, page, headers, cache, variant):
        return
    headers.append(("Cache-Control", cache))
    shown_parts = shown.parts
    if request.records_max:  # one for each record
        shown_parts = [b"".join(shown_parts)] if shown_parts else []
    if form == LINES:
        shown_parts = [await lines_of(shown_parts)]
    elif is_array and form != ENVELOPE:
        shown_parts = array_parts(shown_parts)
    send_parts(exchange, headers, shown_parts)


def page_up_to(page: Page, shown: Shown) -> Page:
    """Return the page as it ends if only this much of it is shown."""
    is_whole = (shown.record, shown.byte) == (page.record, page.byte)
    return structs.replace(
        page,
        record=shown.record,
        byte=shown.byte,
        up_to_date=page.up_to_date and is_whole,
    )


async def shown_of(
    page: Page, first: int, form: Form, bytes_max: int, *, records_max: int = 0
) -> Shown:
    """Show a page from the record `first`, in a thread if that may take long."""
    if not page.spans:
        return Shown([], page.record, page.byte)
    spans = [stored(span, page.info) for span in page.spans]
    end = (page.record, page.byte)
    work = partial(
        show, spans, end, first=first, form=form, bytes_max=bytes_max, records_max=records_max
    )
    size = sum(len(span.payload) for span in spans)
    is_quick = size <= AT_ONCE_BYTES and not any(map(is_compressed, spans))
    return work() if is_quick else await asyncio.to_thread(work)


def stored(span: Span, info: StreamInfo) -> StoredSpan:
    """Return a span of a page as it is shown."""
    encoding = info.encoding if span.encoding == OWN_ENCODING else span.encoding
    times = (span.time_ms, span.append_times)
    return StoredSpan(span.record, span.byte, span.payload, encoding, span.lengths, *times)


def is_compressed(span: StoredSpan) -> bool:
    """Report whether a span has Kafka batches whose first one is compressed, or has no header."""
    payload = span.payload
    return span.encoding == Encoding.KAFKA and (
        len(payload) <= _CODEC_AT or payload[_CODEC_AT] & 7 != 0
    )
