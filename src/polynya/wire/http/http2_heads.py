"""The head of an HTTP/2 request as the head of an HTTP/1.1 request (RFC 9113 8.3), so that one
parser judges both.

Nothing is repaired: what could become another line, another header or another target is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")  # in lower case (RFC 9113 8.2)
_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
# they frame an HTTP/1.1 message, and have no meaning here (RFC 9113 8.2.2)
_FORBIDDEN = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path"))


class MalformedHead(ValueError):
    """The header list is no valid request; the message has the reason."""


class VirtualHead(msgspec.Struct, frozen=True):
    """The bytes of a request head, with its empty line. `is_chunked`: the body has no length, so
    that its parts are framed as chunks."""

    block: bytes
    method: bytes
    is_chunked: bool


def virtual_head(headers: Iterable[tuple[bytes, bytes]], *, has_body: bool) -> VirtualHead:
    """Return the HTTP/1.1 head of a header list. `has_body`: DATA follows. Raise
    `MalformedHead`."""
    pseudo, fields = _split(headers)
    method, target = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not _METHOD.fullmatch(method) or method == b"CONNECT":
        raise MalformedHead("the method is missing, is no token, or is CONNECT")
    if not _TARGET.fullmatch(target) or not (target[:1] == b"/" or (method, target) == _ASTERISK):
        raise MalformedHead(
            "the path is missing, is no absolute path, or holds a control character"
        )
    if pseudo.get(b":scheme") not in (b"http", b"https"):
        raise MalformedHead("the scheme is neither http nor https")
    lines = [b"%b %b HTTP/1.1" % (method, target), b"Host: " + _host(pseudo, fields)]
    lines += [b"%b: %b" % field for field in fields if field[0] != b"host"]
    lengths = [value for name, value in fields if name == b"content-length"]
    if not has_body and any(length != b"0" for length in lengths):
        raise MalformedHead("a request without DATA has a content-length")
    is_chunked = has_body and not lengths
    if is_chunked:
        lines.append(b"Transfer-Encoding: chunked")
    lines.append(b"Connection: close\r\n\r\n")  # the stream ends with its response
    return VirtualHead(b"\r\n".join(lines), method, is_chunked)


def _split(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[dict[bytes, bytes], list[tuple[bytes, bytes]]]:
    """Return the pseudo-headers and the fields, each checked. Cookies are one field again (8.2.3)."""
    pseudo: dict[bytes, bytes] = {}
    fields: list[tuple[bytes, bytes]] = []
    cookies: list[bytes] = []
    for name, value in headers:
        if not _VALUE.fullmatch(value) or value != value.strip(b" \t"):
            raise MalformedHead("a value holds a control character, or begins or ends in a space")
        if name[:1] == b":":
            if name not in _PSEUDO or name in pseudo or fields or cookies:
                raise MalformedHead("a pseudo-header is unknown, repeated, or behind a field")
            pseudo[name] = value
        elif not _NAME.fullmatch(name) or name in _FORBIDDEN:
            raise MalformedHead("a field's name is no token in lower case, or frames HTTP/1.1")
        elif name == b"te":
            if value.lower() != b"trailers":
                raise MalformedHead("te is something else than trailers")
        elif name == b"cookie":
            cookies.append(value)
        else:
            fields.append((name, value))
    if cookies:
        fields.append((b"cookie", b"; ".join(cookies)))
    return pseudo, fields


def _host(pseudo: dict[bytes, bytes], fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return the host. The guard against DNS rebinding reads one of both, so that they may not
    differ."""
    found = [value for name, value in fields if name == b"host"]
    authority = pseudo.get(b":authority")
    if len(found) > 1 or (found and authority is not None and found[0] != authority):
        raise MalformedHead("host is repeated, or differs from :authority")
    host = authority if authority is not None else found[0] if found else b""
    if not host:
        raise MalformedHead("neither :authority nor host names the host")
    return host


_ASTERISK = (b"OPTIONS", b"*")
