"""Decode a page of a Kafka partition, and render it as an HTTP body."""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import structs

from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NO_STORE
from polynya.front.http.routes.pages import (
    LINES,
    VARIANTS,
    is_fresh,
    json_form,
    page_headers,
    render_json,
    send_parts,
)
from polynya.service.api import Page, ReadQuery
from polynya.wire.headers import RECORDS, media_type
from polynya.wire.kafka.values import (
    Show,
    Shown,
    Span,
    show,
    show_json,
    show_json_record,
    show_record,
    show_value,
    values_type,
)

_AT_ONCE_BYTES = 16 * 1024  # stored; more, or what is compressed, is decoded in a thread
_CODEC_AT = 22  # the low byte of a batch's attributes


async def send_decoded(
    exchange: Exchange, query: ReadQuery, page: Page, cache: str, live: Headers | None = None
) -> None:
    """Respond with the records of a page, or with 304 if the client has them. Raises `Failure`."""
    content_type = values_type(page.facts.content_type)
    is_json = media_type(content_type) == "application/json"
    form = json_form(exchange)
    if form == LINES and not is_json:
        form = ""
    first = max(query.record, page.begin_record)
    if page.spans:
        shown = await _shown(page, first, _show(form, is_json=is_json), query.bytes_max)
    else:
        shown = Shown([], page.record, page.byte)
    place = format_token(shown.record, shown.byte)
    if shown.damage:
        raise Failure("KAFKA_BATCH_UNREADABLE", shown.damage, (("Stream-Next-Offset", place),))
    is_whole = (shown.record, shown.byte) == (page.record, page.byte) or not page.spans
    page = structs.replace(
        page,
        begin_record=first,
        record=shown.record,
        byte=shown.byte,
        up_to_date=page.up_to_date and is_whole,
    )
    is_array = is_json or form == RECORDS
    headers = page_headers(page, form or content_type, varies=is_array)
    if not is_array:
        headers.append(("Vary", "Accept"))
    headers += live or []
    variant = VARIANTS[form] or ":v"
    if cache != NO_STORE and is_fresh(exchange, page, headers, cache, variant):
        return
    headers.append(("Cache-Control", cache))
    parts = render_json([*shown.parts], lines=form == LINES) if is_array else [*shown.parts]
    send_parts(exchange, headers, parts)


def _show(form: str, *, is_json: bool) -> Show:
    if form == RECORDS:
        return show_json_record if is_json else show_record
    return show_json if is_json else show_value


async def _shown(page: Page, first: int, show_one: Show, bytes_max: int) -> Shown:
    spans = [Span(span.record, span.byte, span.payload) for span in page.spans]
    work = partial(show, spans, first, show_one, bytes_max)
    size = sum(len(span.payload) for span in spans)
    is_plain = all(
        len(span.payload) > _CODEC_AT and not span.payload[_CODEC_AT] & 7 for span in spans
    )
    return work() if is_plain and size <= _AT_ONCE_BYTES else await asyncio.to_thread(work)
