"""The frame of records that a module gets: ABI 1, little endian.

`record u64, append time i64, record time i64, key length u32, value length u32, key, value`. Times
are milliseconds since 1970; the length 2^32-1 stands for no key, or no value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from polynya.reducers.reducer import Record

_HEAD = struct.Struct("<QqqII")
NONE = 2**32 - 1


def encode(records: Iterable[Record]) -> bytes:
    """Return the frame of the records."""
    parts: list[bytes] = []
    for each in records:
        key, value = each.key, each.value
        parts.append(
            _HEAD.pack(
                each.record,
                each.append_ms,
                each.record_ms,
                NONE if key is None else len(key),
                NONE if value is None else len(value),
            )
        )
        if key:
            parts.append(key)
        if value:
            parts.append(value)
    return b"".join(parts)


def split(frame: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (record time, frame of that record alone) for each record of a frame."""
    at = 0
    while at < len(frame):
        _, _, time_ms, key, value = _HEAD.unpack_from(frame, at)
        end = at + _HEAD.size + sum(length for length in (key, value) if length != NONE)
        yield time_ms, frame[at:end]
        at = end
