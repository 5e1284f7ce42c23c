"""A page of a stream as an HTTP body and its headers."""

from __future__ import annotations

from polynya.base.offsets import format_token
from polynya.front.http.exchange import Headers
from polynya.service.api import Page
from polynya.stream.commands import Encoding
from polynya.wire.json_records import as_array, as_lines

LINES = "application/x-ndjson"


def render(page: Page, *, lines: bool) -> bytes:
    parts = [span.payload for span in page.spans]
    if page.facts.encoding == Encoding.JSON:
        return as_lines(parts) if lines else as_array(parts)
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)


def page_headers(page: Page, *, lines: bool) -> Headers:
    facts = page.facts
    headers = [
        ("Content-Type", LINES if lines else facts.content_type),
        ("Stream-Next-Offset", format_token(page.record, page.byte)),
        ("Stream-Incarnation", str(facts.uid)),
    ]
    if page.up_to_date:
        headers.append(("Stream-Up-To-Date", "true"))
        if facts.closed:
            headers.append(("Stream-Closed", "true"))
    if facts.encoding == Encoding.JSON:
        headers.append(("Vary", "Accept"))
    return headers
