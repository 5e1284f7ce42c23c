"""POST: append and/or close. The hot path: no task, no future."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from google_crc32c import value as crc32c

from polynya.base.limits import CONTENT_TYPE_BYTES_MAX
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.responses import COMMON, owner_line
from polynya.front.http.protocol.router import Route, RouteKind
from polynya.front.http.routes.bodies import batch_of, check_coding, encoding_of
from polynya.front.http.routes.refusals import fail_reply, tail_headers
from polynya.stream.commands import Append, Batch, Encoding, Producer
from polynya.stream.replies import Code, Reply
from polynya.wire.headers import BadField, is_true, parse_content_type, parse_incarnation, parse_producer, parse_stream_seq

if TYPE_CHECKING:
    from polynya.front.http.connection import Connection
    from polynya.front.http.protocol.append_template import RequestTemplate
    from polynya.front.http.server import HttpFront

_REFUSED = int(Code.NOT_FOUND)  # this code and those above it are errors
_TAIL = b"\r\n" + COMMON + b"\r\n"


def append(front: HttpFront, exchange: Exchange) -> None:
    headers = exchange.head.headers
    body = exchange.body
    close = "stream-closed" in headers and is_true(headers["stream-closed"])
    content_type = ""
    batch = None
    if body:
        if "content-encoding" in headers:
            check_coding(headers["content-encoding"])
        content_type = headers.get("content-type", "")
        if not content_type:
            exchange.fail("CONTENT_TYPE_REQUIRED")
            return
        batch = batch_of(encoding_of(content_type), body)
        if batch is None:
            exchange.fail("EMPTY_ARRAY")
            return
    elif not close:
        exchange.fail("EMPTY_BODY")
        return
    try:
        producer = parse_producer(headers)
        sequence = parse_stream_seq(headers["stream-seq"]) if "stream-seq" in headers else None
        incarnation = parse_incarnation(headers["stream-incarnation"]) if "stream-incarnation" in headers else 0
        if len(content_type) > CONTENT_TYPE_BYTES_MAX:
            parse_content_type(content_type)
    except BadField as bad:
        exchange.fail("INVALID_HEADER", str(bad))
        return
    counters = front.counters
    counters.appends += 1
    counters.bytes_in += len(body)
    name = exchange.route.name
    service = front.service
    command = Append(name, service.now_ms(), content_type, batch, producer, sequence, close, incarnation)
    service.propose(name, command, partial(_appended, exchange, batch is not None and producer is not None))


def _appended(exchange: Exchange, keyed: bool, reply: Reply | BaseException) -> None:
    """Respond to an append. `keyed`: it has a body and a producer, so success is 200 and a duplicate is 204."""
    if isinstance(reply, BaseException):
        exchange.fault(reply)
        return
    code = reply.code
    if code >= _REFUSED:
        fail_reply(exchange, reply)
        return
    status = 200 if keyed and not code else 204
    if reply.closed or not exchange.plain:
        exchange.answer(status, tail_headers(reply))
        return
    exchange.connection.front.counters.statuses[status] += 1
    exchange.send(_hinted(exchange.connection.front, exchange.route.name, success(status, reply)))


_PLAIN = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: %016d_%016d\r\nStream-Incarnation: %d" + _TAIL
_KEYED = b"\r\nStream-Next-Offset: %016d_%016d\r\nProducer-Epoch: %d\r\nProducer-Seq: %d\r\nStream-Incarnation: %d" + _TAIL
_APPENDED = b"HTTP/1.1 200 OK\r\nContent-Length: 0" + _KEYED
_REPEATED = b"HTTP/1.1 204 No Content" + _KEYED
_FOUND = b"HTTP/1.1 204 No Content\r\nStream-Record-Start: %d" + _KEYED


def success(status: int, reply: Reply) -> bytes:
    """Return the encoded response of the most common results."""
    if reply.producer_epoch < 0:
        return _PLAIN % (reply.record, reply.byte, reply.uid)
    if reply.code and reply.first_record >= 0:  # a duplicate whose record position is still known
        return _FOUND % (reply.first_record, reply.record, reply.byte, reply.producer_epoch, reply.producer_sequence, reply.uid)
    form = _APPENDED if status == 200 else _REPEATED
    return form % (reply.record, reply.byte, reply.producer_epoch, reply.producer_sequence, reply.uid)


def _hinted(front: HttpFront, name: str, answer: bytes) -> bytes:
    """Add the leader's URL to the response if another node leads the group."""
    hint = front.service.hint
    owner = "" if hint is None else hint(name)
    return answer[:-2] + owner_line(owner) + b"\r\n" if owner else answer


def append_again(connection: Connection, repeat: RequestTemplate, body: bytes, producer: Producer | None) -> bool:
    """Propose an append that matched the template, on an idle connection. Return False if it needs a full parse."""
    front = connection.front
    meter = connection.meter
    if meter is not None and meter.take(front.now(), len(body)):
        return False  # over its limits: the full path sends the error
    if repeat.encoding == Encoding.BYTES:
        batch = Batch(Encoding.BYTES, 1, body, crc32c(body))
    else:
        try:
            made = batch_of(repeat.encoding, body)
        except Failure:
            return False
        if made is None:
            return False
        batch = made
    counters = front.counters
    counters.appends += 1
    counters.bytes_in += len(body)
    service = front.service
    command = Append(repeat.name, service.now_ms(), repeat.content_type, batch, producer)
    service.propose(repeat.name, command, connection.appended_again)
    return True


def appended_again(connection: Connection, repeat: RequestTemplate, number: int, reply: Reply | BaseException) -> bytes | None:
    """Return the response to `append_again`; None if it was not the common case and was sent through the full path."""
    if type(reply) is not Reply or reply.code >= _REFUSED or reply.closed:
        exchange = Exchange(connection, number, repeat.head, b"")
        exchange.query = {}
        exchange.route = Route(RouteKind.STREAM, repeat.head.target, repeat.name)
        _appended(exchange, bool(repeat.between), reply)
        return None
    front = connection.front
    status = 204 if not repeat.between or reply.code else 200
    front.counters.statuses[status] += 1
    if not repeat.between:
        answer = _PLAIN % (reply.record, reply.byte, reply.uid)
    elif reply.code:
        answer = success(status, reply)
    else:
        answer = _APPENDED % (reply.record, reply.byte, reply.producer_epoch, reply.producer_sequence, reply.uid)
    return answer if front.service.hint is None else _hinted(front, repeat.name, answer)
