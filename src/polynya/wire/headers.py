"""Header fields of the protocol: parsing and formatting. An invalid value raises `BadField` with
the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

from polynya.base.limits import (
    CONTENT_TYPE_BYTES_MAX,
    PRODUCER_ID_BYTES_MAX,
    PRODUCER_NUMBER_MAX,
    RETENTION_BYTES_MAX,
    RETENTION_SECONDS_MAX,
    SEGMENT_LIMIT_MAX,
    STREAM_SEQ_BYTES_MAX,
    TTL_SECONDS_MAX,
)
from polynya.base.names import DISKLESS, LEASED, PROFILES, REPLICATED
from polynya.base.offsets import parse_token
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import Producer, Retention, SegmentLimits

FOREVER = "forever"
OCTET_STREAM = "application/octet-stream"

_TTL = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:([Zz])|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_ETAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT_MS_END = 253_402_300_800_000  # the year 10000, which RFC 3339 cannot represent
_INCARNATION_MAX = 2**63 - 1  # no stream has this incarnation


class BadField(ValueError):
    """An invalid header or parameter. The message names it and the expected value."""


def _not(value: str) -> str:
    """Return the received value, for the end of an error message."""
    return f", not '{value[:64]}'"


def is_true(value: str | None) -> bool:
    """Return whether `Stream-Closed` is `true`, in any case. Every other value is treated as
    absent."""
    return value is not None and value.lower() == "true"


def media_type(content_type: str) -> str:
    """Return the media type in lower case, without parameters."""
    return content_type.split(";", 1)[0].strip().lower()


def parse_content_type(value: str) -> str:
    """Validate a content type. It is stored and echoed in the client's own spelling."""
    if len(value) > CONTENT_TYPE_BYTES_MAX:
        raise BadField(f"Content-Type has at most {CONTENT_TYPE_BYTES_MAX} bytes")
    return value


def parse_ttl(value: str) -> int:
    """Parse `Stream-TTL`: whole seconds, without sign or leading zeros."""
    if not _TTL.fullmatch(value):
        raise BadField(
            "Stream-TTL must be a whole number of seconds, without sign, fraction or leading "
            f"zeros{_not(value)}"
        )
    if len(value) > 10 or int(value) > TTL_SECONDS_MAX:
        raise BadField(f"Stream-TTL is at most {TTL_SECONDS_MAX} seconds")
    return int(value)


def parse_retention(headers: Mapping[str, str]) -> Retention | None:
    """Parse `Stream-Retention-Age` (seconds) and `Stream-Retention-Bytes`: whole numbers or
    `forever`. An absent one sets no limit; return None if both are absent."""
    age, size = headers.get("stream-retention-age"), headers.get("stream-retention-bytes")
    if age is None and size is None:
        return None
    return Retention(
        None
        if age in (None, FOREVER)
        else _bound("Stream-Retention-Age", age, RETENTION_SECONDS_MAX),
        None
        if size in (None, FOREVER)
        else _bound("Stream-Retention-Bytes", size, RETENTION_BYTES_MAX),
    )


def parse_profile(
    headers: Mapping[str, str], default: str = REPLICATED
) -> tuple[int, SegmentLimits | None]:
    """Parse `Stream-Profile`, `Stream-Segment-Records` and `Stream-Segment-Bytes`. Return the
    number of the profile, and the limits of a leased stream's segments."""
    profile = headers.get("stream-profile", default)
    if profile not in PROFILES:
        raise BadField(f"Stream-Profile must be {' or '.join(PROFILES)}{_not(profile)}")
    records = _segment_limit("Stream-Segment-Records", headers)
    size = _segment_limit("Stream-Segment-Bytes", headers)
    if profile == LEASED:
        return Profile.REPLICATED, SegmentLimits(records, size)
    if records or size:
        raise BadField(
            "Stream-Segment-Records and Stream-Segment-Bytes need Stream-Profile: leased"
        )
    if profile == DISKLESS:
        return Profile.DISKLESS, None
    is_named = "stream-profile" in headers
    return Profile.NAMED_REPLICATED if is_named else Profile.REPLICATED, None


def _segment_limit(field: str, headers: Mapping[str, str]) -> int:
    value = headers.get(field.lower())
    if value is None:
        return 0
    if _TTL.fullmatch(value) and len(value) <= 20 and 0 < int(value) <= SEGMENT_LIMIT_MAX:
        return int(value)
    raise BadField(f"{field} must be a whole number from 1 to {SEGMENT_LIMIT_MAX}{_not(value)}")


def _bound(field: str, value: str, largest: int) -> int:
    if _TTL.fullmatch(value) and len(value) <= 20 and int(value) <= largest:
        return int(value)
    raise BadField(
        f"{field} must be a whole number from 0 to {largest}, without sign or leading zeros, or "
        f"'{FOREVER}'{_not(value)}"
    )


def parse_instant_ms(value: str) -> int:
    """Parse `Stream-Expires-At`, an RFC 3339 time, as Unix milliseconds. Fractions below a
    millisecond are truncated."""
    match = _INSTANT.fullmatch(value)
    if match is None:
        raise BadField(
            "Stream-Expires-At must be an RFC 3339 time with zone, such as "
            f"2030-01-31T12:00:00Z{_not(value)}"
        )
    year, month, day, hour, minute, second = (int(match[group]) for group in range(1, 7))
    fraction_ms = int((match[7] or "0")[:3].ljust(3, "0"))
    offset = timedelta(0) if match[8] else timedelta(hours=int(match[10]), minutes=int(match[11]))
    leap = second == 60  # RFC 3339 allows leap seconds; treated as the next second
    try:
        zone = timezone(-offset if match[9] == "-" else offset)
        if match[11] and int(match[11]) > 59:
            raise ValueError
        instant = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=zone)
    except ValueError:
        raise BadField("Stream-Expires-At names a date or time that does not exist") from None
    instant_ms = (
        (instant - _EPOCH) // timedelta(milliseconds=1) + fraction_ms + (1000 if leap else 0)
    )
    if instant_ms >= _INSTANT_MS_END:
        raise BadField("Stream-Expires-At must lie before the year 10000 in UTC")
    return instant_ms


def format_instant(instant_ms: int) -> str:
    """Format an RFC 3339 time in UTC, with milliseconds only if they are not zero."""
    seconds, ms = divmod(instant_ms, 1000)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ms:03d}Z" if ms else f"{text}Z"


def parse_producer(headers: dict[str, str]) -> Producer | None:
    """Parse `Producer-Id`, `Producer-Epoch` and `Producer-Seq`. Return None if all are absent.
    Raises BadField if only some are present."""
    name = headers.get("producer-id")
    epoch = headers.get("producer-epoch")
    sequence = headers.get("producer-seq")
    if name is None and epoch is None and sequence is None:
        return None
    if name is None or epoch is None or sequence is None:
        raise BadField("Producer-Id, Producer-Epoch and Producer-Seq must come together")
    if not name or len(name) > PRODUCER_ID_BYTES_MAX:
        raise BadField(f"Producer-Id must have 1 to {PRODUCER_ID_BYTES_MAX} bytes")
    return Producer(name, _number("Producer-Epoch", epoch), _number("Producer-Seq", sequence))


def _number(field: str, value: str) -> int:
    if value.isdecimal() and value.isascii() and len(value) <= 32:
        number = int(value)
        if number <= PRODUCER_NUMBER_MAX:
            return number
    raise BadField(f"{field} must be a whole number from 0 to {PRODUCER_NUMBER_MAX}{_not(value)}")


def parse_stream_seq(value: str | None) -> str | None:
    """Validate `Stream-Seq`. It is opaque and compared by bytes: header text is Latin-1, whose code
    points equal its bytes."""
    if value is not None and len(value) > STREAM_SEQ_BYTES_MAX:
        raise BadField(f"Stream-Seq has at most {STREAM_SEQ_BYTES_MAX} bytes")
    return value


def parse_sub_offset(value: str) -> int:
    if not _TTL.fullmatch(value) or len(value) > 16:
        raise BadField(
            "Stream-Fork-Sub-Offset must be a whole number, without sign or leading "
            f"zeros{_not(value)}"
        )
    return int(value)


def parse_incarnation(value: str | None) -> int:
    """Parse `Stream-Incarnation`; 0 when absent. A value that this server never sent matches no
    stream."""
    if value is None:
        return 0
    if value.isdecimal() and value.isascii() and len(value) <= 20 and int(value) > 0:
        return min(int(value), _INCARNATION_MAX)
    raise BadField(f"Stream-Incarnation must be the number that this server answered{_not(value)}")


def none_match(value: str | None, etag: str) -> bool:
    """Return whether `If-None-Match` (one tag, a list, weak tags, `*`) matches `etag` (weak
    comparison, RFC 9110 13.1.2)."""
    if value is None:
        return False
    if value.strip() == "*":
        return True
    return any(tag.removeprefix("W/") == etag for tag in _ETAG.findall(value))


RECORDS = "application/vnd.polynya.records+json"
ENVELOPE = "application/vnd.durable-stream-records+ndjson"  # Ursula's: a number and a value a line
ENVELOPE_EVENT = "application/vnd.durable-stream-record+json"  # one of them, as an event
RECORD_HEADERS = frozenset(("record-key", "record-header", "record-timestamp"))
_REFUSED = ("q=0", "q=0.0", "q=0.00", "q=0.000")


def accepts_lines(accept: str | None) -> bool:
    """Return whether `Accept` names NDJSON with a quality above 0."""
    if accept is None or "ndjson" not in accept.lower():
        return False
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if kind in ("application/x-ndjson", "application/ndjson"):
            return not any(parameter.replace(" ", "") in _REFUSED for parameter in parameters)
    return False


def accepts_records(accept: str) -> bool:
    """Return whether `Accept` names whole records as JSON with a quality above 0."""
    if "vnd.polynya.records" not in accept.lower():
        return False
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if kind == RECORDS:
            return not any(each.replace(" ", "") in _REFUSED for each in parameters)
    return False


def format_event_id(record: int, byte: int, life: tuple[int, int]) -> str:
    """Format an SSE `id:`: the offset after the event, and the stream's incarnation (uid,
    history)."""
    return f"{record:016d}_{byte:016d}~{life[0]:x}.{life[1]:x}"


def parse_event_id(value: str) -> tuple[int, int, tuple[int, int] | None]:
    """Parse `Last-Event-ID` into (record, byte, incarnation). A bare offset has no incarnation."""
    token, separator, life = value.partition("~")
    at = parse_token(token)
    if at is None:
        raise BadField("Last-Event-ID must be an id that this server sent")
    if not separator:
        return *at, None
    uid, _, history = life.partition(".")
    try:
        return *at, (int(uid, 16), int(history, 16))
    except ValueError:
        raise BadField("Last-Event-ID must be an id that this server sent") from None
