"""Convert a request body to a batch."""

from __future__ import annotations

import asyncio

from google_crc32c import value as crc32c

from polynya.base.limits import CODED_BODY_RATIO_MAX, KIB
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.stream.features.appends.commands import KAFKA_CONTENT_TYPE
from polynya.stream.parts import Batch, Encoding
from polynya.wire.headers import RECORDS, media_type
from polynya.wire.http.body_coding import (
    CODINGS,
    CONTENT_ENCODING,
    BadCoding,
    BadDigest,
    CodedTooLarge,
    UnknownCoding,
    decode_body,
    decoded_bytes_max,
)
from polynya.wire.json_records import BadJson, TooManyRecords, parse_records

RECORDS_BODY = -1  # instead of an encoding: the body has whole records, of any stream
_ACCEPTED = (("Accept-Encoding", CODINGS),)
_DECODED_AT_ONCE_BYTES = 64 * KIB  # of a body; larger ones are decoded in a thread
# of brackets alone it takes 50 ms to parse; larger JSON bodies are parsed in a thread
_JSON_AT_ONCE_BYTES = 256 * KIB
_ENCODINGS_MAX = 1024
_BY_MEDIA = {
    "application/json": int(Encoding.JSON),
    "application/octet-stream": int(Encoding.BYTES),
    RECORDS: RECORDS_BODY,
}
_encodings = dict(_BY_MEDIA)


def encoding_of(content_type: str) -> int:
    """Return the stream encoding. JSON mode is the media type `application/json`, with any
    parameters. That of whole records is `RECORDS_BODY`.

    Raises `Failure` for that of Kafka's partitions: an HTTP body is no record batch."""
    encoding = _encodings.get(content_type)
    if encoding is None:
        media = media_type(content_type)
        if media == KAFKA_CONTENT_TYPE:
            raise Failure("KAFKA_PARTITION")
        encoding = _BY_MEDIA.get(media, Encoding.BYTES)
        if len(_encodings) >= _ENCODINGS_MAX:
            _encodings.clear()
        _encodings[content_type] = encoding
    return encoding


async def decode(exchange: Exchange) -> None:
    """Check the digests of a request's body and undo its coding, which is not stored: readers could
    not tell encoded bytes from plain ones. The memory that it may take counts as that of a body
    which arrives. Raises `Failure`."""
    headers, body = exchange.head.headers, exchange.body
    size = decoded_bytes_max(len(body)) if body and headers.get(CONTENT_ENCODING) else len(body)
    bodies = exchange.context.bodies
    if size > _DECODED_AT_ONCE_BYTES:
        bodies.take(size)
    try:
        if len(body) <= _DECODED_AT_ONCE_BYTES // CODED_BODY_RATIO_MAX:
            exchange.body = decode_body(headers, body)
        else:
            exchange.body = await asyncio.to_thread(decode_body, headers, body)
    except UnknownCoding as unknown:
        raise Failure("CONTENT_ENCODING", str(unknown), _ACCEPTED) from None
    except BadDigest as bad:
        raise Failure("DIGEST_MISMATCH", str(bad)) from None
    except BadCoding as bad:
        raise Failure("INVALID_CODING", str(bad)) from None
    except CodedTooLarge as large:
        raise Failure("BODY_TOO_LARGE", str(large)) from None
    finally:
        if size > _DECODED_AT_ONCE_BYTES:
            bodies.give_back(size)


def is_parsed_in_thread(encoding: int, body: bytes) -> bool:
    """Report whether the parsing of a body takes longer than other connections may wait."""
    return encoding == Encoding.JSON and len(body) > _JSON_AT_ONCE_BYTES


def batch_of(encoding: int, body: bytes) -> Batch | None:
    """Return the batch; None for an empty JSON array. Raises `Failure`."""
    if encoding != Encoding.JSON:
        return Batch(encoding, 1, body, crc32c(body))
    try:
        records, payload, lengths = parse_records(body)
    except BadJson as bad:
        raise Failure("INVALID_JSON", str(bad)) from None
    except TooManyRecords as many:
        raise Failure("TOO_MANY_RECORDS", str(many)) from None
    return Batch(encoding, records, payload, crc32c(payload), lengths) if records else None
