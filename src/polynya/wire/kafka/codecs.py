"""Decompress the records of Kafka batches, within bounds that a hostile batch cannot pass, and
compress them again."""

from __future__ import annotations

from collections.abc import Iterator

import cramjam

from polynya.base.errors import CorruptData
from polynya.base.limits import (
    KAFKA_UNCOMPRESSED_BYTES_LEAST,
    KAFKA_UNCOMPRESSED_BYTES_MAX,
    KAFKA_UNCOMPRESSED_RATIO_MAX,
)

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
MASK = 0x07  # of the attributes of a batch
_FRAMED = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
XERIAL = b"\x82SNAPPY\0"  # snappy-java's framing: this, two versions, and blocks with their lengths
XERIAL_BYTES = 16
# versions of snappy-java's framing, and the bytes of a block
_XERIAL_HEAD = XERIAL + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_BLOCK = 32 << 10
# a frame of independent blocks of at most 64 KiB, as Java's clients want them, with its checksum
_LZ4_HEAD = bytes.fromhex("04224d18604082")
_LZ4_BLOCK, _LZ4_STORED, _LZ4_END = 64 << 10, 1 << 31, bytes(4)
_FULL = "failed to write whole buffer"  # of cramjam: the bytes so far are right, and more follow


class TooLarge(CorruptData):
    """Records that are more than the bytes that were asked for, and not damaged up to there."""


def decompressed(codec: int, data: bytes, most: int = 0) -> bytes | memoryview:
    """Return the records of a batch. Raises CorruptData for damaged or too large ones.

    `most`: raise TooLarge for more bytes than these."""
    if codec == NONE:
        return data
    if codec >= len(NAMES):
        raise CorruptData(f"codec {codec} is unknown: 0 to 4 are none, gzip, snappy, lz4 and zstd")
    allowed = _allowed(len(data))
    try:
        if codec == SNAPPY:  # which is cheap: no length that is said is trusted
            found = b"".join(_snappy(block, allowed) for block in _blocks(data, allowed))
            if most and len(found) > most:
                raise TooLarge(f"the records are {len(found)} bytes")
            return found
        buffer = bytearray(most or allowed)  # its pages are touched only when written
        size = _FRAMED[codec].decompress_into(data, buffer)
    except cramjam.DecompressionError as fault:
        if most and str(fault) == _FULL:
            raise TooLarge(f"the records are more than {most} bytes") from None
        raise CorruptData(
            f"{len(data)} bytes of {NAMES[codec]} are damaged or more than {allowed} bytes: {fault}"
        ) from None
    return memoryview(buffer)[:size]


def compressed(codec: int, data: bytes) -> bytes:
    """Return the records of a batch, compressed with one of the known codecs."""
    if codec == NONE:
        return data
    if codec == SNAPPY:
        return b"".join((_XERIAL_HEAD, *_snappy_blocks(data)))
    if codec == LZ4:
        return b"".join((_LZ4_HEAD, *_lz4_blocks(data), _LZ4_END))
    return bytes(cramjam.gzip.compress(data) if codec == GZIP else cramjam.zstd.compress(data))


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[begin : begin + _XERIAL_BLOCK]))
        yield len(block).to_bytes(4) + block


def _lz4_blocks(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), _LZ4_BLOCK):
        plain = data[begin : begin + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            yield len(block).to_bytes(4, "little") + block
        else:
            yield (len(plain) | _LZ4_STORED).to_bytes(4, "little") + plain


def _allowed(compressed: int) -> int:
    """Return the bytes that so many compressed ones may become."""
    scaled = max(KAFKA_UNCOMPRESSED_BYTES_LEAST, compressed * KAFKA_UNCOMPRESSED_RATIO_MAX)
    return min(KAFKA_UNCOMPRESSED_BYTES_MAX, scaled)


def _blocks(data: bytes, allowed: int) -> list[bytes]:
    """Return the blocks of snappy: one, or those of xerial's framing, together within the bound."""
    if not data.startswith(XERIAL):
        return [data]
    blocks = []
    at, total = XERIAL_BYTES, 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        at += 4
        if at + size > len(data):
            raise CorruptData(f"a block of snappy ends at byte {at + size} of {len(data)}")
        if size:
            blocks.append(data[at : at + size])
            total += cramjam.snappy.decompress_raw_len(blocks[-1])
        at += size
        if total > allowed:
            raise CorruptData(f"{len(data)} bytes of snappy become more than {allowed} bytes")
    return blocks


def _snappy(block: bytes, allowed: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > allowed:
        raise CorruptData(f"a block of snappy becomes {size} bytes, more than {allowed}")
    buffer = bytearray(size)
    cramjam.snappy.decompress_raw_into(block, buffer)
    return bytes(buffer)
