"""Parts of msgpack's format, for what is put together of pieces that are encoded already."""

from __future__ import annotations


def array_head(count: int) -> bytes:
    """What comes before so many values that are an array; the shortest, as encoders write it."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
