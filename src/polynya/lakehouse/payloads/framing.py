"""The wire format of Confluent's serializers: a byte 0, the schema's id, and the body. Pure.

The id has four bytes, the most significant first. Before a Protobuf body come the indexes of the
message in its file (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HEADER_BYTES = 5
INDEXES_MAX = 64  # levels of a message in messages

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def framed(data: Bytes, ends: Positions, missing: Mask, separator: int) -> Mask:
    """Mark the records that begin as the wire format does. Each is followed by `separator` bytes."""
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    found = ~missing & (ends - starts - separator >= HEADER_BYTES)
    found[found] = data[starts[found]] == 0
    return found


def ids_of(data: Bytes, starts: Positions) -> Positions:
    """Return the schema ids of the framed records that begin at `starts`."""
    found = np.zeros(len(starts), np.uint32)
    for at in range(1, HEADER_BYTES):
        found = (found << np.uint32(8)) | data[starts + at]
    return found.astype(np.int32).astype(np.int64)


def message_indexes(body: bytes) -> tuple[list[int], int]:
    """Return the indexes of a Protobuf message, and the position of its bytes. Raises ValueError."""
    count, at = _zigzag(body, 0)
    if count == 0:
        return [0], at
    if not 0 < count <= INDEXES_MAX:
        raise ValueError(f"the body has {count} message indexes; expected 1 to {INDEXES_MAX}")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(body, at)
        indexes.append(index)
    return indexes, at


def _zigzag(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(body) and shift < 35:
        byte = body[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError("the body has no valid message indexes")
