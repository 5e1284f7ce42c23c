"""Parts of msgpack's format, for what is put together of pieces that are encoded already; and what comes of bytes that are none."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be: text that is no UTF-8, and nesting without end, are no DecodeError there."""


def array_head(count: int) -> bytes:
    """What comes before so many values that are an array; the shortest, as encoders write it."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
