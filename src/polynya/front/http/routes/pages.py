"""A page of a stream as an HTTP body and its headers."""

from __future__ import annotations

from polynya.base.offsets import format_token
from polynya.front.http.exchange import Headers
from polynya.service.api import Page
from polynya.stream.commands import Encoding
from polynya.wire.json_records import as_lines

LINES = "application/x-ndjson"
_INERT = frozenset(["application/octet-stream", "text/plain", "text/plain; charset=utf-8"])  # common ones that no browser runs


def render(page: Page, *, lines: bool) -> list[bytes | memoryview]:
    """The body in parts, so that a large page is not copied together."""
    parts: list[bytes | memoryview] = [span.payload for span in page.spans]
    if page.facts.encoding != Encoding.JSON:
        return parts
    if lines:
        return [as_lines(parts)]
    return [b"[", *parts[:-1], memoryview(parts[-1])[:-1], b"]"] if parts else [b"[]"]


def page_headers(page: Page, *, lines: bool) -> Headers:
    facts = page.facts
    headers = [
        ("Content-Type", LINES if lines else facts.content_type),
        ("Stream-Next-Offset", format_token(page.record, page.byte)),
        ("Stream-Incarnation", str(facts.uid)),
    ]
    if page.has_all:
        headers.append(("Stream-Up-To-Date", "true"))
        if facts.closed:
            headers.append(("Stream-Closed", "true"))
    if facts.encoding == Encoding.JSON:
        headers.append(("Vary", "Accept"))
    elif facts.content_type not in _INERT:  # HTML, SVG, … that somebody opens is no page of this origin, whose pages hold tokens
        headers.append(("Content-Security-Policy", "sandbox"))
    return headers
