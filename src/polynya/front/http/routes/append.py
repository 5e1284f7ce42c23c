"""POST: append and/or close. The hot path: no task, no future."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
from google_crc32c import value as crc32c

from polynya.base.limits import CONTENT_TYPE_BYTES_MAX
from polynya.base.names import KAFKA_PREFIX
from polynya.front.common.pipeline import ResponseQueue
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Context, Exchange
from polynya.front.http.protocol.responses import COMMON, owner_line
from polynya.front.http.routes.append_conditions import on_condition, read_condition, tag_headers
from polynya.front.http.routes.append_records import append_records
from polynya.front.http.routes.bodies import (
    RECORDS_BODY,
    batch_of,
    check_coding,
    encoding_of,
    is_parsed_in_thread,
)
from polynya.front.http.routes.refusals import fail_reply, tail_headers
from polynya.local.api import AppendTo, StreamInfo
from polynya.stream.features.appends.commands import Append
from polynya.stream.parts import Batch, Encoding, Producer
from polynya.stream.replies import Code, Done, Reply
from polynya.wire.conditions import CONDITIONS, Condition
from polynya.wire.headers import (
    BadField,
    is_true,
    parse_content_type,
    parse_incarnation,
    parse_producer,
    parse_stream_seq,
)

_REFUSED = int(Code.NOT_FOUND)  # this code and those above it are errors
_TAIL = b"\r\n" + COMMON + b"\r\n"
_PLAIN = (
    b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: %016d_%016d\r\nStream-Incarnation: %d" + _TAIL
)
_KEYED = (
    b"\r\nStream-Next-Offset: %016d_%016d\r\nProducer-Epoch: %d\r\nProducer-Seq: %d\r\n"
    b"Stream-Incarnation: %d" + _TAIL
)
_APPENDED = b"HTTP/1.1 200 OK\r\nContent-Length: 0" + _KEYED
_REPEATED = b"HTTP/1.1 204 No Content" + _KEYED
_FOUND = b"HTTP/1.1 204 No Content\r\nStream-Record-Start: %d" + _KEYED


class AppendRequest(msgspec.Struct):
    """A parsed append: what its head says, and the exchange that gets the answer."""

    context: Context
    responses: ResponseQueue
    number: int  # of the exchange
    name: str
    append: AppendTo
    content_type: str  # "" without a body
    encoding: int
    producer: Producer | None
    stream_seq: str | None
    close: bool
    incarnation: int
    keyed: bool  # has a body and a producer: success is 200, and a duplicate is 204
    plain: bool  # the answer needs no optional headers
    zone: str  # of the client; "": the node's
    exchange: Exchange
    condition: Condition | None

    def exchange_now(self) -> Exchange:
        """Return the exchange of the response that is due."""
        return self.exchange

    def propose(
        self, body: bytes, producer: Producer | None, done: Done, batch: Batch | None = None
    ) -> None:
        """Propose the append. `done` is `answer`, bound, which sends the response; `batch` that of
        a body that is parsed already. Raises `Failure` for a wrong body."""
        if not body or batch is not None:
            pass
        elif not self.encoding:
            batch = Batch(0, 1, body, crc32c(body))  # Encoding.BYTES, without a call
        elif (batch := batch_of(self.encoding, body)) is None:
            raise Failure("EMPTY_ARRAY")
        context = self.context
        counters = context.counters
        counters.appends += 1
        counters.bytes_in += len(body)
        if self.zone:
            context.clients.receive(self.zone, len(body))
        command = Append(
            self.name,
            context.service.now_ms(),
            self.content_type,
            batch,
            producer,
            self.stream_seq,
            self.close,
            self.incarnation,
        )
        if self.condition is not None:
            command = on_condition(command, self.condition)
        self.append(command, done)

    def answer(self, reply: Reply | BaseException) -> None:
        """Respond to the append."""
        if type(reply) is not Reply:
            self.exchange_now().fault(cast("BaseException", reply))
            return
        code = reply.code
        if code >= _REFUSED:
            fail_reply(self.exchange_now(), reply)
            return
        status = 200 if self.keyed and not code else 204
        if reply.closed or not self.plain:
            headers = tail_headers(reply)
            if self.condition is not None:
                headers += tag_headers(self.exchange.head.headers, reply)
            self.exchange_now().answer(status, headers)
            return
        context = self.context
        context.counters.statuses[status] += 1
        epoch = reply.producer_epoch
        if epoch < 0:
            lines = _PLAIN % (reply.record, reply.byte, reply.uid)
        elif code and reply.first_record >= 0:  # a duplicate whose position is still known
            found = (reply.first_record, reply.record, reply.byte)
            lines = _FOUND % (*found, epoch, reply.producer_sequence, reply.uid)
        else:
            form = _REPEATED if status == 204 else _APPENDED
            lines = form % (reply.record, reply.byte, epoch, reply.producer_sequence, reply.uid)
        hint = context.service.hint
        if hint is not None and (owner := hint(self.name, self.zone)):
            lines = lines[:-2] + owner_line(owner) + b"\r\n"
        self.responses.send(self.number, lines)


def append(exchange: Exchange) -> None:
    """Handle an append. Raises `Failure`."""
    request = parse_append(exchange)
    body, exchange.body = exchange.body, b""  # from here on the batch holds it
    headers = exchange.head.headers
    if (
        request.encoding == RECORDS_BODY
        or "record-key" in headers
        or "record-header" in headers
        or "record-timestamp" in headers
    ):
        append_records(request, body)
        return
    if not body and request.name.startswith(KAFKA_PREFIX):
        exchange.peer.responses.exclusive = True
        exchange.spawn(_close_unless_partition(request))
        return
    if is_parsed_in_thread(request.encoding, body):
        exchange.peer.responses.exclusive = True
        exchange.spawn(_parse_and_propose(request, body))
        return
    exchange.peer.last_append = request
    request.propose(body, request.producer, request.answer)


async def _parse_and_propose(request: AppendRequest, body: bytes) -> None:
    """Parse a large body while other connections are served, and propose it."""
    batch = await asyncio.to_thread(batch_of, request.encoding, body)
    if batch is None:
        raise Failure("EMPTY_ARRAY")
    request.propose(body, request.producer, request.answer, batch)


async def _close_unless_partition(request: AppendRequest) -> None:
    """Close a stream whose name may be that of a partition: a body would have a wrong type."""
    info = await request.context.service.info(request.name)
    if isinstance(info, StreamInfo) and info.encoding == Encoding.KAFKA:
        raise Failure("KAFKA_PARTITION")
    request.propose(b"", request.producer, request.answer)


def parse_append(exchange: Exchange) -> AppendRequest:
    """Parse the head of an append. Raises `Failure`."""
    headers = exchange.head.headers
    close = "stream-closed" in headers and is_true(headers["stream-closed"])
    content_type, encoding = "", int(Encoding.BYTES)
    body = exchange.body
    if body:
        if "content-encoding" in headers:
            check_coding(headers["content-encoding"])
        content_type = headers.get("content-type", "")
        if not content_type:
            raise Failure("CONTENT_TYPE_REQUIRED")
        encoding = encoding_of(content_type)
    elif not close:
        raise Failure("EMPTY_BODY")
    service, condition = exchange.context.service, None
    try:
        producer = parse_producer(headers)
        sequence = parse_stream_seq(headers["stream-seq"]) if "stream-seq" in headers else None
        incarnation = 0
        if "stream-incarnation" in headers:
            incarnation = parse_incarnation(headers["stream-incarnation"])
        if not CONDITIONS.isdisjoint(headers):
            condition = read_condition(service, headers, incarnation)
        if len(content_type) > CONTENT_TYPE_BYTES_MAX:
            parse_content_type(content_type)
    except BadField as bad:
        if body and batch_of(encoding, body) is None:  # an error of the body comes first
            raise Failure("EMPTY_ARRAY") from None
        raise Failure("INVALID_HEADER", str(bad)) from None
    name, head = exchange.route.name, exchange.head
    has_options = exchange.request_id or not head.minor or "origin" in headers
    return AppendRequest(
        exchange.context,
        exchange.peer.responses,
        exchange.number,
        name,
        service.appender(name),
        content_type,
        encoding,
        producer,
        sequence,
        close,
        incarnation,
        bool(body) and producer is not None,
        exchange.keep_alive and not has_options and condition is None,
        headers.get("stream-zone", ""),
        exchange,
        condition,
    )
