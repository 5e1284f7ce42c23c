"""POST STREAM/append-batch: many bodies in one append, all or nothing, as Ursula 0.4 has it."""

from __future__ import annotations

import asyncio
from array import array
from functools import partial
from itertools import accumulate

import msgspec
from google_crc32c import value as crc32c

from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.append import parse_append
from polynya.front.http.routes.append_request import AppendRequest
from polynya.front.http.routes.bodies import RECORDS_BODY, batch_of, decode
from polynya.front.http.routes.conditions import check_conditions, tag_headers
from polynya.front.http.routes.refusals import tail_headers
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code, Reply
from polynya.wire.http.body_coding import CODED
from polynya.wire.http.frames import BadFrames, frames_of
from polynya.wire.json_records import RECORDS_PER_APPEND_MAX

_AT_ONCE_BYTES = 64 * 1024  # of a body; a larger one is parsed in a thread
_OF_RECORDS = ("record-key", "record-header", "record-timestamp")


class _Appended(msgspec.Struct, omit_defaults=True):
    """The outcome of one frame."""

    status: int
    stream_next_offset: str = ""
    stream_record_start: int = -1
    stream_record_next: int = -1


def append_batch(exchange: Exchange) -> None:
    """Handle POST. Raises `Failure`."""
    check_conditions(exchange)
    if named := [name for name in _OF_RECORDS if name in exchange.head.headers]:
        raise Failure(
            "NOT_SUPPORTED",
            f"the header {named[0].title()} is not supported at append-batch: each frame is the "
            "body of one append. Send it with POST to the stream itself",
        )
    exchange.peer.responses.exclusive = True
    exchange.spawn(_append(exchange))


async def _append(exchange: Exchange) -> None:
    if not CODED.isdisjoint(exchange.head.headers):
        await decode(exchange)
    request = parse_append(exchange)
    body, exchange.body = exchange.body, b""
    if request.encoding == RECORDS_BODY:
        raise Failure(
            "NOT_SUPPORTED",
            "frames of whole records are not supported: send them as one body to the stream itself",
        )
    if not body:
        raise Failure("EMPTY_BODY")
    work = partial(_framed, request.encoding, body)
    batch, records = work() if len(body) <= _AT_ONCE_BYTES else await asyncio.to_thread(work)
    request.propose(
        batch.payload, request.producer, partial(_answer, request, batch, records), batch
    )


def _framed(encoding: int, body: bytes) -> tuple[Batch, list[int]]:
    """Return the frames as one batch, and the number of records of each. Raises `Failure`."""
    try:
        frames = frames_of(body)
    except BadFrames as bad:
        raise Failure("INVALID_REQUEST", str(bad)) from None
    if encoding != Encoding.JSON:
        return _joined(encoding, [(1, frame, b"") for frame in frames])
    parsed = []
    for number, frame in enumerate(frames, 1):
        try:
            batch = batch_of(encoding, frame)
        except Failure as failure:
            raise Failure(failure.code, f"frame {number}: {failure.message}") from None
        if batch is None:
            raise Failure("EMPTY_ARRAY", f"frame {number} is an empty array: it has no record")
        parsed.append((batch.records, batch.payload, batch.lengths))
    return _joined(encoding, parsed)


def _joined(encoding: int, parts: list[tuple[int, bytes, bytes]]) -> tuple[Batch, list[int]]:
    """Join (records, payload, lengths) of each frame. Raises `Failure`."""
    counts = [records for records, _, _ in parts]
    if sum(counts) > RECORDS_PER_APPEND_MAX:
        raise Failure(
            "TOO_MANY_RECORDS",
            f"one append takes at most {RECORDS_PER_APPEND_MAX} JSON values; send them in several",
        )
    payload = b"".join([part for _, part, _ in parts])
    lengths = b""
    if sum(counts) > 1:
        lengths = b"".join([own or array("I", (len(part),)).tobytes() for _, part, own in parts])
    return Batch(encoding, sum(counts), payload, crc32c(payload), lengths), counts


def _answer(
    request: AppendRequest, batch: Batch, counts: list[int], reply: Reply | BaseException
) -> None:
    """Respond with the outcome of each frame: where it lies, unless a repeat is no longer known."""
    if not isinstance(reply, Reply) or reply.code >= Code.NOT_FOUND:
        request.answer(reply)
        return
    exchange = request.exchange
    headers = [("Content-Type", "application/json"), *tail_headers(reply, request.json_records)]
    if request.condition is not None:
        headers += tag_headers(exchange.head.headers, reply)
    if reply.code == Code.OK:
        outcomes = _placed(batch, counts, reply)
    else:
        outcomes = [_Appended(204)] * len(counts)
    exchange.answer(200, headers, msgspec.json.encode(outcomes))


def _placed(batch: Batch, counts: list[int], reply: Reply) -> list[_Appended]:
    """Return the place of each frame in an append that was applied."""
    sizes = memoryview(batch.lengths).cast("I") if batch.lengths else [len(batch.payload)]
    ends = [0, *accumulate(sizes)]
    record, byte = reply.record - batch.records, reply.byte - len(batch.payload)
    found, done = [], 0
    for count in counts:
        begin, done = done, done + count
        token = format_token(record + done, byte + ends[done])
        found.append(_Appended(204, token, record + begin, record + done))
    return found
