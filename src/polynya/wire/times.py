"""User-supplied times: an instant, Unix milliseconds, or a duration before now."""

from __future__ import annotations

import re

from polynya.wire.headers import BadField, parse_instant_ms

_MS_OF = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|min|m|h|d|w)", re.ASCII)
_SHORT = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt](\d\d:\d\d))?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)
_MS_MAX = 10**15
EXPECTED = (
    "a time such as 2030-01-31T12:00:00Z, milliseconds since 1970, or a duration before now such "
    "as 10m"
)


def parse_time_ms(text: str, now_ms: int) -> int:
    """Parse a time as Unix milliseconds: an RFC 3339 time, a bare number, or a duration before
    `now_ms` (`10m`, `1.5h`, `7d`). A date alone and a time without seconds are accepted; the
    default zone is UTC. Raises BadField."""
    duration = parse_duration_ms(text)
    if duration is not None:
        return max(0, now_ms - duration)
    if text.isdecimal() and text.isascii():
        if len(text) > 15:
            raise BadField(f"{text} is not a valid time: expected {EXPECTED}")
        return int(text)
    text = text.replace(" ", "+")  # a plus sign that the query did not encode
    short = _SHORT.fullmatch(text)
    if short is not None:
        text = f"{short[1]}T{short[2] or '00:00'}:00{short[3] or 'Z'}"
    try:
        return max(0, parse_instant_ms(text))
    except BadField:
        raise BadField(f"{text!r} is not a valid time: expected {EXPECTED}") from None


def parse_duration_ms(text: str) -> int | None:
    """Parse a duration (`500ms`, `90s`, `15min`, `12h`, `7d`) as milliseconds, at most 10^15.
    Return None for other text."""
    match = _DURATION.fullmatch(text)
    return None if match is None else min(_MS_MAX, round(float(match[1]) * _MS_OF[match[2]]))
