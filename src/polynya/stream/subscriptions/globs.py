"""Glob patterns over stream names as they are spelled under /v1/stream/: `*` is one segment, `**` any number of them (R143)."""

from __future__ import annotations

import re
from collections.abc import Callable

from polynya.base.limits import PATH_BYTES_MAX
from polynya.base.names import spelled_name

_STAR = re.compile("%2a", re.IGNORECASE)  # how a pattern spells a star that is meant literally


class BadPattern(ValueError):
    """The text is no pattern; the message says why."""


def check_pattern(pattern: str) -> None:
    """Raises `BadPattern`. Leading and trailing slashes are to be stripped before."""
    if len(pattern.encode()) > PATH_BYTES_MAX:
        raise BadPattern(f"a pattern has at most {PATH_BYTES_MAX} bytes")
    for segment in pattern.split("/"):
        if segment in ("", ".", ".."):
            raise BadPattern("a pattern has no empty, '.' or '..' segments")
        if "*" in segment and segment not in ("*", "**"):
            raise BadPattern(f"in '{segment}': a wildcard is a whole segment, '*' or '**'; write %2A for a star that is meant literally")


def first_segment(pattern: str) -> str:
    """What the first segment of a matching name must be; "" when it may be any."""
    segment = pattern.split("/", 1)[0]
    return "" if "*" in segment else _STAR.sub("*", segment)


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """The test of canonical names."""
    parts = [segment if segment in ("*", "**") else _STAR.sub("*", segment) for segment in pattern.split("/")]
    wild = [segment in ("*", "**") for segment in pattern.split("/")]
    return lambda name: _matches(parts, wild, spelled_name(name).split("/"))


def _matches(parts: list[str], wild: list[bool], segments: list[str]) -> bool:
    """Only the last `**` is ever widened: what an earlier one could take, the last one can take as well. So no search is exponential."""
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
