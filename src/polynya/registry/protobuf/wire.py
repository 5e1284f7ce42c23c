"""The wire format of Protobuf, as far as descriptors need it."""

from __future__ import annotations

from collections.abc import Iterator

from polynya.registry.refused import BadSchema

Value = int | bytes


def fields_of(data: bytes) -> Iterator[tuple[int, Value]]:
    """Iterate over the fields of a message: numbers, and bytes. Raises BadSchema."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
        elif kind in (1, 2, 5):
            size = 8 if kind == 1 else 4
            if kind == 2:
                size, at = _varint(data, at)
            if at + size > len(data):
                raise _damaged()
            yield number, data[at : at + size]
            at += size
        else:
            raise _damaged()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _damaged()
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7


def _damaged() -> BadSchema:
    return BadSchema("the bytes are no descriptor of a .proto file")


class Writer:
    """A message that is written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def number(self, field: int, value: int) -> None:
        """Write a number."""
        self._parts.append(_coded(field << 3) + _coded(value & (2**64 - 1)))

    def text(self, field: int, value: str) -> None:
        """Write a string."""
        self.data(field, value.encode())

    def data(self, field: int, value: bytes) -> None:
        """Write bytes, or a message."""
        self._parts.append(_coded(field << 3 | 2) + _coded(len(value)) + value)

    def done(self) -> bytes:
        """Return the message."""
        return b"".join(self._parts)


def _coded(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
