"""HEAD: return a stream's metadata, without extending its TTL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.names import LEASED
from polynya.base.offsets import format_token
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NO_STORE, etag_of
from polynya.front.http.routes.preconditions import is_other_incarnation
from polynya.front.http.routes.read_request import is_local
from polynya.front.http.routes.refusals import fail_refusal
from polynya.local.api import Facts, Refusal
from polynya.stream.commands import Retention
from polynya.stream.diskless_commands import Profile
from polynya.wire.headers import FOREVER, format_instant, none_match
from polynya.wire.kafka.values import values_type

if TYPE_CHECKING:
    from polynya.front.http.server import HttpFront


def head(front: HttpFront, exchange: Exchange) -> None:
    """Handle HEAD of a stream. Raises `Failure`."""
    local = is_local(exchange)
    facts = front.service.facts_nowait(exchange.route.name)
    if facts is None:
        exchange.spawn(_wait_facts(front, exchange, local=local), waits=True)
    else:
        _answer(exchange, facts)


async def _wait_facts(front: HttpFront, exchange: Exchange, *, local: bool) -> None:
    _answer(exchange, await front.service.facts(exchange.route.name, local=local))


def _answer(exchange: Exchange, facts: Facts | Refusal) -> None:
    if isinstance(facts, Refusal):
        fail_refusal(exchange, facts)
    elif not is_other_incarnation(exchange, facts):
        begin, end = (
            format_token(facts.first_record, facts.first_byte),
            format_token(facts.record, facts.byte),
        )
        etag = etag_of(facts, begin, end, at_tail=facts.known or facts.closed)
        headers: Headers = [("Content-Type", values_type(facts.content_type)), ("ETag", etag)]
        status = 304 if none_match(exchange.head.headers.get("if-none-match"), etag) else 200
        if facts.stream_seq is not None:
            headers.append(("Stream-Seq", facts.stream_seq))
        exchange.answer(status, headers + facts_headers(facts) + [("Cache-Control", NO_STORE)])


def retention_headers(retention: Retention) -> Headers:
    """Return a stream's own retention as headers that a PUT accepts."""
    age, size = retention.age_seconds, retention.bytes
    return [
        ("Stream-Retention-Age", FOREVER if age is None else str(age)),
        ("Stream-Retention-Bytes", FOREVER if size is None else str(size)),
    ]


def facts_headers(facts: Facts) -> Headers:
    headers = [
        ("Stream-Next-Offset", format_token(facts.record, facts.byte)),
        ("Stream-Incarnation", str(facts.uid)),
    ]
    if facts.closed:
        headers.append(("Stream-Closed", "true"))
    if facts.ttl_seconds is not None:
        headers.append(("Stream-TTL", str(facts.ttl_seconds)))
    if facts.expires_at_ms is not None:
        headers.append(("Stream-Expires-At", format_instant(facts.expires_at_ms)))
    headers.append(("Stream-Retained-Offset", format_token(facts.first_record, facts.first_byte)))
    if facts.retention is not None:
        headers += retention_headers(facts.retention)
    if facts.profile:
        headers.append(("Stream-Profile", Profile.NAMES[facts.profile]))
    if facts.segment:
        headers.append(("Stream-Profile", LEASED))
        headers.append(("Stream-Segment", str(facts.segment)))
        headers.append(("Stream-Segment-Writer", str(facts.segment_writer)))
    return headers
