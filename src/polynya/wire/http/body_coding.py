"""Check the digests of a body (RFC 9530) and undo its content coding (RFC 9110, 8.4.1).

`Content-Digest` is of the bytes as sent, `Repr-Digest` of those after decoding. `sha-256` and
`sha-512` are checked; a field without either cannot be, and is refused.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from base64 import b64decode
from collections.abc import Mapping

from polynya.base.limits import (
    APPEND_BYTES_MAX,
    CODED_BODY_BYTES_LEAST,
    CODED_BODY_RATIO_MAX,
)

CONTENT_DIGEST, REPR_DIGEST, CONTENT_ENCODING = "content-digest", "repr-digest", "content-encoding"
CODED = frozenset((CONTENT_DIGEST, REPR_DIGEST, CONTENT_ENCODING))
CODINGS = "gzip, deflate, identity"  # for Accept-Encoding

_SPELLINGS = {CONTENT_DIGEST: "Content-Digest", REPR_DIGEST: "Repr-Digest"}
_HASHES = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}
# `name=:base64:`, and parameters, which no algorithm has
_MEMBER = re.compile(r"\s*([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*={0,2}):\s*(?:;[^,]*)?")
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": zlib.MAX_WBITS}


class UnknownCoding(ValueError):
    """The coding is not supported; the message is for the client."""


class BadDigest(ValueError):
    """A digest does not fit the body, or cannot be checked; the message is for the client."""


class BadCoding(ValueError):
    """The body is not what its coding says; the message is for the client."""


class CodedTooLarge(ValueError):
    """The decoded body is larger than a body may be; the message is for the client."""


def coding_of(headers: Mapping[str, str]) -> str:
    """Return the content coding in lower case; "" for none. Raises `UnknownCoding`."""
    coding = headers.get(CONTENT_ENCODING, "").strip().lower()
    if coding in ("", "identity"):
        return ""
    if coding not in _WINDOWS:
        raise UnknownCoding(
            f"the Content-Encoding '{coding[:64]}' is not supported: send the body with one of "
            f"{CODINGS}"
        )
    return coding


def decoded_bytes_max(size: int) -> int:
    """Return how many bytes a coded body of this size may have when it is decoded."""
    return min(APPEND_BYTES_MAX, max(CODED_BODY_BYTES_LEAST, size * CODED_BODY_RATIO_MAX))


def decode_body(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the body without its coding, once its digests are checked. Raises `UnknownCoding`,
    `BadDigest`, `BadCoding` and `CodedTooLarge`."""
    coding = coding_of(headers) if body else ""
    _check(headers, CONTENT_DIGEST, body)
    if coding and body:
        body = _inflate(coding, body)
    _check(headers, REPR_DIGEST, body)
    return body


def _check(headers: Mapping[str, str], name: str, data: bytes) -> None:
    field = headers.get(name)
    if field is None:
        return
    digests = [(found[1], found[2]) for found in map(_MEMBER.fullmatch, field.split(",")) if found]
    checked = 0
    for algorithm, text in digests:
        make = _HASHES.get(algorithm)
        if make is None:
            continue
        try:
            sent = b64decode(text, validate=True)
        except ValueError:
            sent = b""
        actual = make(data).digest()
        if sent != actual:
            raise BadDigest(
                f"{_SPELLINGS[name]} says {algorithm} {sent.hex() or 'nothing'}, and the "
                f"{len(data):,} bytes {'that arrived' if name == CONTENT_DIGEST else 'decoded'} "
                f"have {actual.hex()}: nothing was stored, send the request again"
            )
        checked += 1
    if not checked:
        raise BadDigest(
            f"{_SPELLINGS[name]} has no digest that is checked here: send sha-256 or sha-512, such "
            "as sha-256=:BASE64:"
        )


def _inflate(coding: str, data: bytes) -> bytes:
    """Return the bytes of one or several compressed streams one after the other, as gzip has."""
    most = decoded_bytes_max(len(data))
    parts: list[bytes] = []
    size = 0
    while True:
        decoder = zlib.decompressobj(_WINDOWS[coding])
        try:
            part = decoder.decompress(data, most - size + 1)
        except zlib.error as error:
            raise BadCoding(f"the body is not valid {coding}: {error}") from None
        parts.append(part)
        size += len(part)
        if size > most:
            raise CodedTooLarge(
                f"the body has {len(data):,} bytes in {coding}, and is more than {most:,} without: "
                f"at most {APPEND_BYTES_MAX:,} and {CODED_BODY_RATIO_MAX} times its size; split it, "
                "or send it uncompressed"
            )
        if not decoder.eof:
            raise BadCoding(f"the body in {coding} ends too early: send it whole")
        if not decoder.unused_data:
            return b"".join(parts)
        if coding == "deflate":
            raise BadCoding(
                f"{len(decoder.unused_data):,} bytes follow the end of the body in deflate"
            )
        data = decoder.unused_data
