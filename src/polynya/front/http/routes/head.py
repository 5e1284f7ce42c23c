"""HEAD: return a stream's metadata, without extending its TTL."""

from __future__ import annotations

from polynya.base.names import LEASED
from polynya.base.offsets import format_token
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NO_STORE, NUMBERED_JSON, etag_of
from polynya.front.http.routes.conditions import is_other_incarnation
from polynya.front.http.routes.pages import is_json_stream
from polynya.front.http.routes.read_request import is_local
from polynya.front.http.routes.refusals import fail_refusal
from polynya.local.api import Refusal, StreamInfo
from polynya.stream.features.marks.held import newest
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import Retention
from polynya.wire.headers import FOREVER, format_instant, none_match
from polynya.wire.kafka.values import values_type


def head(exchange: Exchange) -> None:
    """Handle HEAD of a stream. Raises `Failure`."""
    local = is_local(exchange)
    info = exchange.stream.info_nowait()
    if info is None:
        exchange.spawn(_wait_facts(exchange, local=local), waits=True)
    else:
        _answer(exchange, info)


async def _wait_facts(exchange: Exchange, *, local: bool) -> None:
    _answer(exchange, await exchange.stream.info(local=local))


def _answer(exchange: Exchange, info: StreamInfo | Refusal) -> None:
    if isinstance(info, Refusal):
        fail_refusal(exchange, info)
    elif not is_other_incarnation(exchange, info):
        begin, end = (
            format_token(info.first_record, info.first_byte),
            format_token(info.record, info.byte),
        )
        etag = etag_of(info, begin, end, at_tail=info.known or info.closed)
        headers: Headers = [("Content-Type", values_type(info.content_type)), ("ETag", etag)]
        status = 304 if none_match(exchange.head.headers.get("if-none-match"), etag) else 200
        if info.stream_seq is not None:
            headers.append(("Stream-Seq", info.stream_seq))
        exchange.answer(status, headers + facts_headers(info) + [("Cache-Control", NO_STORE)])


def retention_headers(retention: Retention) -> Headers:
    """Return a stream's own retention as headers that a PUT accepts."""
    age, size = retention.age_seconds, retention.bytes
    return [
        ("Stream-Retention-Age", FOREVER if age is None else str(age)),
        ("Stream-Retention-Bytes", FOREVER if size is None else str(size)),
    ]


def facts_headers(info: StreamInfo) -> Headers:
    headers = [
        ("Stream-Next-Offset", format_token(info.record, info.byte)),
        ("Stream-Incarnation", str(info.uid)),
    ]
    if info.closed:
        headers.append(("Stream-Closed", "true"))
    if info.ttl_seconds is not None:
        headers.append(("Stream-TTL", str(info.ttl_seconds)))
    if info.expires_at_ms is not None:
        headers.append(("Stream-Expires-At", format_instant(info.expires_at_ms)))
    headers.append(("Stream-Retained-Offset", format_token(info.first_record, info.first_byte)))
    if is_json_stream(info):
        headers.append(NUMBERED_JSON)
        headers.append(("Stream-Record-First", str(info.first_record)))
        headers.append(("Stream-Record-Next", str(info.record)))
    if info.retention is not None:
        headers += retention_headers(info.retention)
    if info.marks and (mark := newest(info.marks, info.first_record)) is not None:
        headers.append(("Stream-Snapshot-Offset", format_token(mark.record, mark.byte)))
        headers.append(("Stream-Snapshot-Digest", f"sha-256={mark.sha256.hex()}"))
    if info.profile:
        headers.append(("Stream-Profile", Profile.NAMES[info.profile]))
    if info.segment:
        headers.append(("Stream-Profile", LEASED))
        headers.append(("Stream-Segment", str(info.segment)))
        headers.append(("Stream-Segment-Writer", str(info.segment_writer)))
    return headers
