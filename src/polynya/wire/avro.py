"""Decompressed blocks of Avro object container files, sufficient to find the file names in Iceberg
manifests.

https://avro.apache.org/docs/1.12.0/specification/#object-container-files
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from polynya.base.errors import CorruptData
from polynya.base.limits import MIB

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_BLOCK_BYTES_MAX = 256 * MIB  # decompressed size
_VARINT_BYTES_MAX = 10


def blocks(data: bytes) -> Iterator[bytes]:
    """Yield the serialized objects of each block. Raises CorruptData for damaged files and for
    codecs other than `null` and `deflate`."""
    if not data.startswith(_MAGIC):
        raise CorruptData("this is not an Avro container file")
    fields, at = _header(data, len(_MAGIC))
    codec = fields.get(b"avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise CorruptData(f"the Avro codec {codec!r} is not supported")
    sync, at = _take(data, at, _SYNC_BYTES)
    while at < len(data):
        _, at = _long(data, at)
        size, at = _long(data, at)
        block, at = _take(data, at, size)
        again, at = _take(data, at, _SYNC_BYTES)
        if again != sync:
            raise CorruptData("a block of an Avro file has a wrong sync marker")
        yield block if codec == b"null" else _inflated(block)


def _header(data: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    """Parse the file's metadata map. Return it and the offset of its end."""
    fields: dict[bytes, bytes] = {}
    while True:
        count, at = _long(data, at)
        if not count:
            return fields, at
        if count < 0:  # the block's size follows
            count = -count
            _, at = _long(data, at)
        for _ in range(count):
            size, at = _long(data, at)
            key, at = _take(data, at, size)
            size, at = _long(data, at)
            fields[key], at = _take(data, at, size)


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise CorruptData("an Avro file is truncated")
    return data[at : at + size], at + size


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Parse a zigzag varint."""
    value = 0
    for number in range(_VARINT_BYTES_MAX):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise CorruptData("an Avro file contains an invalid varint")


def _inflated(block: bytes) -> bytes:
    machine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = machine.decompress(block, _BLOCK_BYTES_MAX)
    except zlib.error as fault:
        raise CorruptData(f"a block of an Avro file cannot be decompressed: {fault}") from None
    if not machine.eof:
        raise CorruptData("a block of an Avro file is truncated, or too large")
    return found
