"""A parsed append, and its cache: a writer sends the same head again with another sequence number
and body length.

After a connection's append was parsed in full, the bytes of its head become a template. A later
request may differ only in the digits at those two positions, so only they are parsed. Any other
difference leads to a full parse. This covers authentication: the same `Authorization` is the same
principal. When that one is revoked, the connection discards the template
(`Peer.forget_template`).

Measured with 500 connections (bench/compare.py): a third less server CPU per append.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from time import perf_counter
from typing import cast

import msgspec
from google_crc32c import value as crc32c

from polynya.base.histogram import BOUNDS
from polynya.front.common.pipeline import ResponseQueue
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Context, Exchange
from polynya.front.http.protocol.peer import Peer
from polynya.front.http.protocol.responses import (
    COMMON,
    NUMBERED_JSON,
    header_lines,
    owner_line,
)
from polynya.front.http.routes.bodies import batch_of
from polynya.front.http.routes.conditions import on_condition, tag_headers
from polynya.front.http.routes.refusals import fail_reply, tail_headers
from polynya.routing.handle import StreamHandle
from polynya.stream.features.appends.commands import Append
from polynya.stream.parts import Batch, Encoding, Producer
from polynya.stream.replies import Code, Done, Reply
from polynya.wire.http.conditions import Condition
from polynya.wire.http.http1 import Head

_VARIABLE = re.compile(
    rb"\r\n(?:(producer-seq)|content-length): ?(\d{1,15})(?=\r\n|\Z)", re.IGNORECASE
)
_COVERED = frozenset(
    (
        *(
            "host",
            "content-type",
            "content-length",
            "producer-id",
            "producer-epoch",
            "producer-seq",
            "stream-zone",
        ),
        *("accept", "accept-encoding", "user-agent", "authorization"),
    )
)
_DIGITS_MAX = 15
_HEAD_BYTES_MAX = 1024


_REFUSED = int(Code.NOT_FOUND)  # this code and those above it are errors
_TAIL = b"\r\n" + COMMON + b"\r\n"
# instead of the empty line of an answer
_FIRST = b"Stream-Record-Start: %d\r\n\r\n"
_NUMBERS = header_lines([NUMBERED_JSON]) + b"Stream-Record-Next: %d\r\n" + _FIRST
_PLAIN = (
    b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: %016d_%016d\r\nStream-Incarnation: %d" + _TAIL
)
_PLAIN_JSON = _PLAIN[:-2] + _NUMBERS
_KEYED = (
    b"\r\nStream-Next-Offset: %016d_%016d\r\nProducer-Epoch: %d\r\nProducer-Seq: %d\r\n"
    b"Stream-Incarnation: %d" + _TAIL
)
_APPENDED = b"HTTP/1.1 200 OK\r\nContent-Length: 0" + _KEYED
_REPEATED = b"HTTP/1.1 204 No Content" + _KEYED


class AppendRequest(msgspec.Struct):
    """A parsed append: what its head says, and the exchange that gets the answer."""

    context: Context
    responses: ResponseQueue
    number: int  # of the exchange
    stream: StreamHandle
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
    since: float = 0.0  # when it was proposed
    json_records: int = -1  # in the body; -1: it is not JSON

    def exchange_now(self) -> Exchange:
        """Return the exchange of the response that is due."""
        exchange = self.exchange
        if exchange.number != self.number:  # a repeated request; the last response was sent
            exchange.number, exchange.request_id = self.number, ""
        return exchange

    def propose(
        self, body: bytes, producer: Producer | None, done: Done, batch: Batch | None = None
    ) -> None:
        """Propose the append. `done` is `answer`, bound, which sends the response; `batch` that of
        a body that is parsed already. Raises `Failure` for a wrong body."""
        self.since = perf_counter()
        if not body or batch is not None:
            pass
        elif not self.encoding:
            batch = Batch(0, 1, body, crc32c(body))  # Encoding.BYTES, without a call
        elif (batch := batch_of(self.encoding, body)) is None:
            raise Failure("EMPTY_ARRAY")
        if self.encoding == Encoding.JSON and batch is not None:
            self.json_records = batch.records
        context = self.context
        counters = context.counters
        counters.appends += 1
        counters.bytes_in += len(body)
        if self.zone:
            context.clients.receive(self.zone, len(body))
        command = Append(
            self.stream.name,
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
        self.stream.append(command, done)

    def answer(self, reply: Reply | BaseException) -> None:
        """Respond to the append."""
        context = self.context
        seconds, histogram = perf_counter() - self.since, context.counters.append_seconds
        histogram.counts[bisect_left(BOUNDS, seconds)] += 1  # `observe`, without a call
        histogram.total += seconds
        if not self.plain:
            self.exchange_now().trace(histogram, seconds)
        if type(reply) is not Reply:
            self.exchange_now().fault(cast("BaseException", reply))
            return
        code = reply.code
        if code >= _REFUSED:
            fail_reply(self.exchange_now(), reply)
            return
        status = 200 if self.keyed and not code else 204
        if reply.closed or not self.plain:
            headers = tail_headers(reply, self.json_records)
            if self.condition is not None:
                headers += tag_headers(self.exchange.head.headers, reply)
            self.exchange_now().answer(status, headers)
            return
        context.counters.statuses[status] += 1
        epoch, records = reply.producer_epoch, self.json_records
        if epoch >= 0:
            form = _REPEATED if status == 204 else _APPENDED
            lines = form % (reply.record, reply.byte, epoch, reply.producer_sequence, reply.uid)
            first = reply.first_record if code else reply.record - records
            if first >= 0 and records >= 0:
                lines = lines[:-2] + _NUMBERS % (first + records, first)
            elif code and first >= 0:  # a duplicate whose position is still known
                lines = lines[:-2] + _FIRST % first
        elif records < 0:
            lines = _PLAIN % (reply.record, reply.byte, reply.uid)
        else:
            numbers = (reply.record, reply.record - records)
            lines = _PLAIN_JSON % (reply.record, reply.byte, reply.uid, *numbers)
        hint = context.service.hint
        if hint is not None and (owner := hint(self.stream.name, self.zone)):
            lines = lines[:-2] + owner_line(owner) + b"\r\n"
        self.responses.send(self.number, lines)


class RequestTemplate(msgspec.Struct):
    """An append whose head the connection receives again, with other digits: the bytes before,
    between and behind them. Without a producer, only the body length varies and `between` is empty.
    The `seen_…` fields describe the last request, since the next one mostly has the same lengths.
    `request` is the last one, which a match makes the next one."""

    request: AppendRequest
    done: Done  # the request's `answer`, bound once
    before: bytes
    between: bytes
    behind: bytes
    length_first: bool  # the length comes before the sequence
    producer_id: str
    producer_epoch: int
    seen_lead: bytes = b""  # the bytes before the sequence digits; the head if there are none
    seen_begin: int = 0  # its length
    seen_end: int = 0  # end of the sequence digits; 0: no request was read yet
    seen_rest: bytes = b""  # the bytes from the end of the digits to the body
    seen_body: int = 0  # start of the body
    seen_size: int = 0  # size of the whole request

    def read(self, data: bytes) -> tuple[bytes, Producer | None] | None:
        """Return the body and its producer if `data` is exactly one request that matches; else
        None."""
        end = self.seen_end
        if (
            end
            and len(data) == self.seen_size
            and data.startswith(self.seen_lead)
            and data.startswith(self.seen_rest, end)
        ):
            if not self.between:
                return data[end:], None
            sequence = data[self.seen_begin : end]
            if sequence.isdigit():
                return data[self.seen_body :], Producer(
                    self.producer_id, self.producer_epoch, int(sequence)
                )
        return self._read(data)

    def _read(self, data: bytes) -> tuple[bytes, Producer | None] | None:
        """Read a request of other lengths than the last one, and expect the next one to be like
        this one."""
        head, _, body = data.partition(b"\r\n\r\n")
        if not (head.startswith(self.before) and head.endswith(self.behind)):
            return None
        first, last = len(self.before), len(head) - len(self.behind)
        length, sequence = head[first:last], b""
        begin = end = seen_body = len(head) + 4
        if self.between:
            sequence, _, length = length.partition(self.between)
            begin, end = first, first + len(sequence)
            if self.length_first:
                sequence, length = length, sequence
                begin, end = last - len(sequence), last
            if not sequence.isdigit() or len(sequence) > _DIGITS_MAX:
                return None
        if (
            not length.isdigit()
            or len(length) > _DIGITS_MAX
            or int(length) != len(body)
            or not body
        ):
            return None
        self.seen_lead, self.seen_begin, self.seen_end = data[:begin], begin, end
        self.seen_rest, self.seen_body, self.seen_size = data[end:seen_body], seen_body, len(data)
        if not self.between:
            return body, None
        return body, Producer(self.producer_id, self.producer_epoch, int(sequence))


def learn(peer: Peer, head: Head, block: bytes) -> None:
    """Make the template of a peer's appends from the second one. The last request had this head,
    parsed from `block`."""
    request, peer.last_append = peer.last_append, None
    peer.appends += 1
    if peer.appends > 1 and request is not None and request.exchange.head is head:
        peer.template = compile_template(request, block)


def compile_template(request: AppendRequest, block: bytes) -> RequestTemplate | None:
    """Return a template of an append that was just parsed from the head `block`. Return None if it
    has a header that templates do not cover."""
    head, producer = request.exchange.head, request.producer
    if (
        len(block) > _HEAD_BYTES_MAX
        or not request.plain
        or not head.headers.keys() <= _COVERED
        or "?" in head.target
    ):
        return None
    if not request.content_type or head.length <= 0:
        return None
    variables = list(_VARIABLE.finditer(block))
    of_sequence = [bool(match[1]) for match in variables]
    if sorted(of_sequence) != ([False] if producer is None else [False, True]):
        return None
    first, last = variables[0], variables[-1]
    pieces = (
        block[: first.start(2)],
        b"" if producer is None else block[first.end(2) : last.start(2)],
        block[last.end(2) :],
    )
    identity = ("", 0) if producer is None else (producer.id, producer.epoch)
    return RequestTemplate(request, request.answer, *pieces, not of_sequence[0], *identity)
