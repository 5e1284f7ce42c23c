"""The events of one stream among many: its records in the form that the client asked for."""

from __future__ import annotations

from polynya.front.http.protocol.errors import ERRORS
from polynya.front.http.routes.decoded_pages import (
    AT_ONCE_BYTES,
    is_compressed,
    shown_of,
)
from polynya.front.http.routes.pages import is_json_stream
from polynya.local.api import LiveEvent, Page, StreamInfo
from polynya.wire.headers import media_type
from polynya.wire.http.live_events import many_control, many_data, stream_part
from polynya.wire.http.sse import SseEncoding, sse_encoding
from polynya.wire.kafka.values import values_type
from polynya.wire.record_pages import Form, Shown, StoredSpan, is_plain, show

Offset = tuple[int, int]


class Showing:
    """The form of a stream's events. `key`: of the frames that readers of one form share."""

    __slots__ = ("_bytes_max", "_encoding", "_form", "_name", "key")

    def __init__(self, name: str, *, records: bool, bytes_max: int) -> None:
        """`name` is spelled for the client. `records`: events have whole records. A page has at
        most `bytes_max`."""
        self._name = name
        self._bytes_max = bytes_max
        self._form = Form(records, is_json=False)
        self._encoding = SseEncoding.BASE64
        self.key = "live-records" if records else "live"

    def learn(self, info: StreamInfo) -> None:
        """Use the content type of a stream."""
        records = self._form.records
        self._form = Form(records, is_json_stream(info))
        media = "application/json" if records else values_type(info.content_type)
        self._encoding = sse_encoding(media_type(media))

    def data(self, payload: bytes, at: Offset, *, up_to_date: bool) -> bytes:
        """Return a data event without its id."""
        part = stream_part(self._name, at)
        return many_data(part, payload, self._encoding, up_to_date=up_to_date)

    def control(self, at: Offset | None, fields: dict[str, object]) -> bytes:
        """Return a control event without its id. `at`: None for a stream without a position."""
        return many_control(stream_part(self._name, at), fields)

    async def page(self, page: Page, first: int) -> Shown:
        """Show a page from the record `first`."""
        return await shown_of(page, first, self._form, self._bytes_max)

    def payload_of(self, event: LiveEvent) -> bytes | None:
        """Return what the client gets of an event; None: a read has to find it, since it has no
        payload, or decoding it may take long."""
        if not event.payload:
            return None if event.record > event.begin_record else b""
        if len(event.payload) > self._bytes_max:
            return None
        begin, end = (event.begin_record, event.begin_byte), (event.record, event.byte)
        span = StoredSpan(*begin, event.payload, event.encoding, time_ms=event.time_ms)
        if is_plain((span,), self._form):
            return event.payload
        if len(event.payload) > AT_ONCE_BYTES or is_compressed(span):
            return None
        shown = show((span,), end, first=0, form=self._form, bytes_max=self._bytes_max)
        is_whole = not shown.damage and (shown.record, shown.byte) == end
        return b"".join(shown.parts) if is_whole else None


def error_fields(code: str, message: str = "") -> dict[str, object]:
    """Return the fields of a control event that reports an error of its stream."""
    return {"error": {"code": code, "message": message or ERRORS[code].message}}
