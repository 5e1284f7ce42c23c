"""Request targets: paths and queries, percent-decoded once."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_BYTE = re.compile(r"[^\x21-\x7e\x80-\xff]")


class BadTarget(ValueError):
    """An invalid path or query; the message has the reason."""


def split_target(target: str) -> tuple[str, str]:
    """Split a request target in origin or absolute form into (path, query). Raises BadTarget for a
    fragment."""
    if _BAD_BYTE.search(target) or "#" in target:
        raise BadTarget("the request target holds a character that must be percent-encoded")
    if not target.startswith("/"):
        scheme, separator, rest = target.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):
            raise BadTarget("the request target must begin with a slash")
        slash = re.search(r"[/?]", rest)
        target = rest[slash.start() :] if slash else "/"
        if target.startswith("?"):
            target = "/" + target
    path, _, query = target.partition("?")
    return path, query


def decode_path(path: str) -> str:
    """Decode a stream path. Raises BadTarget for an encoded slash or NUL, a bad escape, or invalid
    UTF-8; otherwise two spellings would denote one name."""
    if "%" not in path and path.isascii():
        return path
    lower = path.lower()
    if "%2f" in lower:
        raise BadTarget("a stream path may not hold an encoded slash (%2F)")
    if "%00" in lower:
        raise BadTarget("a stream path may not hold NUL (%00)")
    return _decoded(path)


def decode_segments(path: str) -> tuple[str, ...]:
    """Split a path and decode each segment separately, so that an encoded slash stays inside its
    segment."""
    return tuple(_decoded(segment) for segment in path.split("/"))


def parse_query(query: str) -> dict[str, str]:
    """Parse parameters by name. The first of repeated ones counts, except that a repeated `offset`
    is rejected."""
    found: dict[str, str] = {}
    if not query:
        return found
    for part in query.split("&"):
        if not part:
            continue
        name, _, value = part.partition("=")
        if "%" in part or "+" in part or not part.isascii():
            name, value = _decoded(name.replace("+", " ")), _decoded(value.replace("+", " "))
        if name in found:
            if name == "offset":
                raise BadTarget("the parameter 'offset' is given more than once")
            continue
        found[name] = value
    return found


def repeated(query: str, name: str) -> list[str]:
    """Return the values of a parameter that may be given more than once, in their order."""
    found = []
    for part in query.split("&"):
        key, _, value = part.partition("=")
        if _decoded(key.replace("+", " ")) == name:
            found.append(_decoded(value.replace("+", " ")))
    return found


def _decoded(text: str) -> str:
    if "%" not in text and text.isascii():
        return text
    if _BAD_ESCAPE.search(text):
        raise BadTarget("a percent sign must be followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise BadTarget("the path or query is not UTF-8 after percent-decoding") from None
