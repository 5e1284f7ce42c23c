"""Compression of payloads in slices: zstd, where it saves a tenth (docs/formats/packs.md)."""

from __future__ import annotations

import cramjam

from polynya.base.errors import CorruptData
from polynya.base.limits import COMPRESSED_PAYLOAD_BYTES_MAX

RAW, ZSTD = range(2)  # `compression` in the header of a slice
BYTES_MAX = COMPRESSED_PAYLOAD_BYTES_MAX
BYTES_MIN = 1024  # a smaller payload takes more time than it saves bytes
FRAME_BYTES = 1 << 20  # of payload: frames that fit in a core's cache decompress faster
SAVED_PER_BYTE = 10  # one byte of so many is saved, or the payload stays as it is


def compressed(payload: bytes, level: int) -> bytes | None:
    """Return the payload as zstd frames, or None if that saves too little."""
    size = len(payload)
    if not BYTES_MIN <= size <= COMPRESSED_PAYLOAD_BYTES_MAX:
        return None
    view = memoryview(payload)
    pieces = (view[at : at + FRAME_BYTES] for at in range(0, size, FRAME_BYTES))
    found = b"".join(cramjam.zstd.compress(each, level=level) for each in pieces)
    return found if len(found) <= size - size // SAVED_PER_BYTE else None


def decompressed(stored: memoryview, size: int) -> memoryview:
    """Return the payload of `size` bytes that was compressed to these. Raises CorruptData."""
    if size > COMPRESSED_PAYLOAD_BYTES_MAX:
        raise CorruptData(
            f"a compressed payload of a pack slice says {size} bytes; at most {COMPRESSED_PAYLOAD_BYTES_MAX} are read"
        )
    buffer = bytearray(size)  # its pages are touched only when written
    try:
        written = cramjam.zstd.decompress_into(stored, buffer)
    except cramjam.DecompressionError as fault:
        raise CorruptData(
            f"the payload of a pack slice is not zstd frames of {size} bytes: {fault}"
        ) from None
    if written != size:
        raise CorruptData(f"the payload of a pack slice has {written} bytes; expected {size}")
    return memoryview(buffer).toreadonly()
