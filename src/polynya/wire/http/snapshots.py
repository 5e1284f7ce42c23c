"""Snapshots of streams in HTTP: their digests, ranges of their bodies, and the multipart answer of a
bootstrap."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence

from polynya.wire.headers import BadField

Piece = bytes | memoryview
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.ASCII)


def repr_digest(digest: bytes) -> str:
    """Return a SHA-256 as the value of `Repr-Digest` (RFC 9530)."""
    return f"sha-256=:{b64encode(digest).decode()}:"


def etag_of_snapshot(digest: bytes) -> str:
    """Return the ETag of a snapshot's body."""
    return f'"{digest.hex()}"'


def parse_range(value: str, size: int) -> tuple[int, int] | None:
    """Parse `Range` for a body of this size: (begin, end). None: the whole body, for a range that is
    none of bytes, or several. Raises BadField for one that the body has nothing of."""
    found = _RANGE.fullmatch(value.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:  # the last bytes
        begin, end = max(0, size - int(found[2])), size
    else:
        begin = int(found[1])
        end = min(size, int(found[2]) + 1) if found[2] else size
        if found[2] and int(found[2]) < begin:
            return None
    if begin >= end:
        raise BadField(f"the range {value[:64]} has none of the {size:,} bytes of the snapshot")
    return begin, end


def boundary_of(random: bytes) -> str:
    """Return the boundary between the parts. With 16 or more secret random bytes no part holds it
    (RFC 2046 5.1.1), so the parts are not searched."""
    return f"polynya-{random.hex()}"


def multipart(
    boundary: str, parts: Sequence[tuple[Sequence[tuple[str, str]], Sequence[Piece]]]
) -> list[Piece]:
    """Return the pieces of a multipart body of (headers, pieces of the body), without a copy of
    these."""
    found: list[Piece] = []
    for number, (headers, body) in enumerate(parts):
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        begin = "\r\n" if number else ""
        found.append(f"{begin}--{boundary}\r\n{lines}\r\n".encode("latin-1", "replace"))
        found += body
    found.append(f"\r\n--{boundary}--\r\n".encode())
    return found
