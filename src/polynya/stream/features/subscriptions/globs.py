"""Glob patterns over stream names as spelled under /v1/stream/: `*` is one segment, `**` any number
of them."""

from __future__ import annotations

import re
from collections.abc import Callable

from polynya.base.limits import PATH_BYTES_MAX
from polynya.base.names import (
    DEFAULT_BUCKET,
    RESERVED_LAST,
    RESERVED_LATER,
    is_internal,
    is_reserved,
    spelled_name,
)

_STAR = re.compile("%2a", re.IGNORECASE)  # the spelling of a literal star in a pattern


class BadPattern(ValueError):
    """The text is not a valid pattern; the message gives the reason."""


def check_pattern(pattern: str) -> None:
    """Raise `BadPattern` for an invalid pattern. Strip leading and trailing slashes first."""
    if len(pattern.encode()) > PATH_BYTES_MAX:
        raise BadPattern(f"a pattern has at most {PATH_BYTES_MAX} bytes")
    for segment in pattern.split("/"):
        if segment in ("", ".", ".."):
            raise BadPattern("a pattern has no empty, '.' or '..' segments")
        if "*" in segment and segment not in ("*", "**"):
            raise BadPattern(
                f"in '{segment}': a wildcard is a whole segment, '*' or '**'; write %2A for a "
                "literal star"
            )
    if reserved := _reserved_segment(pattern.split("/")):
        raise BadPattern(
            f"no stream matches: '{reserved}' is reserved there, for the product's own streams and "
            "routes; name the streams themselves, as in 'docs/*'"
        )


def _reserved_segment(segments: list[str]) -> str:
    """Return a segment that no name of a client's stream has at its position; "": there is none."""
    start = segments[1:] if segments[0] == DEFAULT_BUCKET else segments
    if start and is_reserved(start[0]):
        return start[0]
    some = [each for each in segments if each != "**"]  # which may match no segment
    for segment in some[1:]:
        if segment in RESERVED_LATER or segment.startswith("$"):
            return segment
    return segments[-1] if len(some) > 1 and segments[-1] in RESERVED_LAST else ""


def first_segment(pattern: str) -> str:
    """Return the first segment that matching names must have; "" if any may match."""
    segment = pattern.split("/", 1)[0]
    return "" if "*" in segment else _STAR.sub("*", segment)


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a predicate over canonical names."""
    parts = [
        segment if segment in ("*", "**") else _STAR.sub("*", segment)
        for segment in pattern.split("/")
    ]
    wild = [segment in ("*", "**") for segment in pattern.split("/")]
    return lambda name: (
        not is_internal(name) and _matches(parts, wild, spelled_name(name).split("/"))
    )


def _matches(parts: list[str], wild: list[bool], segments: list[str]) -> bool:
    """Match by widening only the last `**`: it can take whatever an earlier one could. So the
    search is never exponential."""
    at = part = 0
    star = star_at = -1
    while at < len(segments):
        if part < len(parts) and wild[part] and parts[part] == "**":
            star, star_at = part, at
            part += 1
        elif part < len(parts) and (wild[part] or parts[part] == segments[at]):
            at += 1
            part += 1
        elif star >= 0:
            star_at += 1
            at, part = star_at, star + 1
        else:
            return False
    return all(wild[rest] and parts[rest] == "**" for rest in range(part, len(parts)))
