"""Helpers for the msgpack format: array headers for pre-encoded values, and the errors of a failed
decode."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for invalid bytes. Invalid UTF-8 and endless nesting do not
raise DecodeError there."""


def array_head(count: int) -> bytes:
    """Return the header of an array of `count` values, in the shortest form."""
    if count < 16:
        return bytes((0x90 | count,))
    return (
        b"\xdc" + count.to_bytes(2, "big")
        if count < 1 << 16
        else b"\xdd" + count.to_bytes(4, "big")
    )
