"""Convert a request body to a batch."""

from __future__ import annotations

from google_crc32c import value as crc32c

from polynya.base.limits import KIB
from polynya.front.http.protocol.errors import Failure
from polynya.stream.features.appends.commands import KAFKA_CONTENT_TYPE
from polynya.stream.parts import Batch, Encoding
from polynya.wire.headers import RECORDS, media_type
from polynya.wire.json_records import BadJson, TooManyRecords, parse_records

RECORDS_BODY = -1  # instead of an encoding: the body has whole records, of any stream
_IDENTITY = (("Accept-Encoding", "identity"),)
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


def check_coding(coding: str) -> None:
    """Reject a `Content-Encoding`. It is not stored, so readers could not tell encoded bytes from
    plain ones (RFC 9110, 8.4 and 12.5.3). Raises `Failure`."""
    if coding.strip().lower() not in ("", "identity"):
        raise Failure(
            "CONTENT_ENCODING",
            f"bodies are stored as received, without the Content-Encoding '{coding[:64]}': send "
            "the body uncompressed",
            _IDENTITY,
        )


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
