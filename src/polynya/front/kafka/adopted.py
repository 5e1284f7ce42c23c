"""Reads of adopted streams: record batches for the records that HTTP wrote."""

from __future__ import annotations

import asyncio

from polynya.local.api import OWN_ENCODING, Page, ReadQuery, Refusal
from polynya.service.api import Service
from polynya.stream.commands import Encoding
from polynya.wire.plain_batches import NO_TIME, record_batches
from polynya.wire.record_pages import StoredSpan

AT_ONCE_BYTES = 64 << 10  # of records that HTTP wrote; batches of more are built in a thread


def foreign_bytes(page: Page) -> int:
    """Return the bytes of a page that are not in record batches."""
    if page.info.encoding == Encoding.KAFKA:
        return 0
    return sum(len(span.payload) for span in page.spans if span.encoding != Encoding.KAFKA)


def build_batches(page: Page) -> None:
    """Replace the records that HTTP wrote by record batches."""
    for span in page.spans:
        encoding = page.info.encoding if span.encoding == OWN_ENCODING else span.encoding
        times = (span.time_ms or NO_TIME, span.append_times)
        span.payload = record_batches(
            StoredSpan(span.record, span.byte, span.payload, encoding, span.lengths, *times)
        )
        span.encoding = Encoding.KAFKA


async def read_batches(service: Service, query: ReadQuery) -> Page | Refusal:
    """Read a page whose spans are record batches."""
    page = service.read_nowait(query)
    if page is None:
        page = await service.read(query)
    if not isinstance(page, Page):
        return page
    size = foreign_bytes(page)
    if size > AT_ONCE_BYTES:
        await asyncio.to_thread(build_batches, page)
    elif size:
        build_batches(page)
    return page
