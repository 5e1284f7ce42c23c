"""The primitive types of the Kafka protocol, in their classic and their flexible (compact) form.

A reader gets the buffer and a position, and returns the value and the position after it. It raises
`Malformed`, IndexError, `struct.error` or UnicodeDecodeError: see `messages.decode_request`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from struct import Struct, pack
from typing import Annotated, TypeVar

import msgspec

from polynya.base.limits import KAFKA_HEADER_TAGS_MAX

Int8 = Annotated[int, msgspec.Meta(ge=-(2**7), le=2**7 - 1)]
Int16 = Annotated[int, msgspec.Meta(ge=-(2**15), le=2**15 - 1)]
UInt16 = Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Uuid = bytes  # 16 bytes
Bytes = bytes | memoryview
Put = Callable[[Bytes], None]  # appends a piece to the encoded message

NO_UUID = bytes(16)
_VARINT_BYTES_MAX = 5
_NULL = "null in a field that cannot be null"
_NULL_ARRAY = "null in an array that cannot be null"
_T = TypeVar("_T")
_I16, _I32 = Struct(">h"), Struct(">i")


class Malformed(ValueError):
    """The bytes are not a message of this version."""


class Elements(msgspec.Struct, gc=False):
    """The array elements and tagged fields that a message being decoded may still have. An array
    of one element is free, as the element that holds it has been counted."""

    left: int
    most: int

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise Malformed(f"more than {self.most} array elements and tagged fields; send fewer")


# of the message that this thread or task decodes: large ones are decoded in threads
_elements: ContextVar[Elements] = ContextVar("elements", default=Elements(0, 0))  # noqa: B039 (nothing is left of it)


def allow_elements(most: int) -> Elements:
    """Begin to decode a message of at most so many elements, and return their count."""
    allowed = Elements(most, most)
    _elements.set(allowed)
    return allowed


def uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for position in range(1, _VARINT_BYTES_MAX):
        byte = data[at + position]
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            if value > 0xFFFF_FFFF:
                break
            return value, at + position + 1
    raise Malformed("a varint has more than 32 bits")


def _end(data: memoryview, at: int, size: int) -> int:
    end = at + size
    if size < 0 or end > len(data):
        raise Malformed(f"a field of {size} bytes begins {len(data) - at} bytes before the end")
    return end


def string(data: memoryview, at: int) -> tuple[str, int]:
    """Read a string with a 16-bit length. Null, as -1, is refused."""
    size = _I16.unpack_from(data, at)[0]
    if size == -1:
        raise Malformed(_NULL)
    end = _end(data, at + 2, size)
    return str(data[at + 2 : end], "utf-8"), end


def nullable_string(data: memoryview, at: int) -> tuple[str | None, int]:
    """Read a string as `string` does, or null."""
    return (None, at + 2) if _I16.unpack_from(data, at)[0] == -1 else string(data, at)


def lenient_string(data: memoryview, at: int) -> tuple[str | None, int]:
    """Read a string as `nullable_string` does, with U+FFFD in place of what is not UTF-8."""
    size = _I16.unpack_from(data, at)[0]
    if size == -1:
        return None, at + 2
    end = at + 2 + size
    if size < 0 or end > len(data):
        _end(data, at + 2, size)
    return str(data[at + 2 : end], "utf-8", "replace"), end


def compact_string(data: memoryview, at: int) -> tuple[str, int]:
    """Read a string with a varint length plus one. Null, as 0, is refused."""
    size = data[at]
    if size < 0x80:
        at += 1
    else:
        size, at = uvarint(data, at)
    if size == 0:
        raise Malformed(_NULL)
    end = at + size - 1
    if end > len(data):
        _end(data, at, size - 1)
    return str(data[at:end], "utf-8"), end


def compact_nullable_string(data: memoryview, at: int) -> tuple[str | None, int]:
    """Read a string as `compact_string` does, or null."""
    return compact_string(data, at) if data[at] else (None, at + 1)


def records(data: memoryview, at: int) -> tuple[memoryview | None, int]:
    """Read bytes with a 32-bit length, as a view; -1 is null."""
    size = _I32.unpack_from(data, at)[0]
    if size == -1:
        return None, at + 4
    end = _end(data, at + 4, size)
    return data[at + 4 : end], end


def compact_records(data: memoryview, at: int) -> tuple[memoryview | None, int]:
    """Read bytes with a varint length plus one, as a view; 0 is null."""
    size, at = uvarint(data, at)
    if size == 0:
        return None, at
    end = at + size - 1
    if end > len(data):
        _end(data, at, size - 1)
    return data[at:end], end


def octets(data: memoryview, at: int) -> tuple[bytes, int]:
    """Read bytes with a 32-bit length, as a copy. Null, as -1, is refused."""
    view, at = records(data, at)
    return bytes(given(view)), at


def nullable_octets(data: memoryview, at: int) -> tuple[bytes | None, int]:
    """Read bytes as `octets` does, or null."""
    view, at = records(data, at)
    return None if view is None else bytes(view), at


def compact_octets(data: memoryview, at: int) -> tuple[bytes, int]:
    """Read bytes with a varint length plus one, as a copy. Null, as 0, is refused."""
    view, at = compact_records(data, at)
    return bytes(given(view)), at


def compact_nullable_octets(data: memoryview, at: int) -> tuple[bytes | None, int]:
    """Read bytes as `compact_octets` does, or null."""
    view, at = compact_records(data, at)
    return None if view is None else bytes(view), at


def uuid(data: memoryview, at: int) -> tuple[Uuid, int]:
    """Read 16 bytes."""
    end = _end(data, at, 16)
    return bytes(data[at:end]), end


def int8(data: memoryview, at: int) -> tuple[int, int]:
    """Read a byte: -1 in place of a struct that is null."""
    return int.from_bytes(data[at : _end(data, at, 1)], signed=True), at + 1


def array(data: memoryview, at: int) -> tuple[int, int]:
    """Read the 32-bit length of an array. Null, as -1, is refused. Each element has at least one
    byte."""
    size = _I32.unpack_from(data, at)[0]
    if size == -1:
        raise Malformed(_NULL_ARRAY)
    if size < 0 or size > len(data) - at:
        raise Malformed(f"an array of {size} elements in {len(data) - at} bytes")
    if size > 1:
        _elements.get().take(size)
    return size, at + 4


def nullable_array(data: memoryview, at: int) -> tuple[int, int]:
    """Read the length of an array as `array` does, or -1 for null."""
    return (-1, at + 4) if _I32.unpack_from(data, at)[0] == -1 else array(data, at)


def compact_array(data: memoryview, at: int) -> tuple[int, int]:
    """Read the varint length of an array, which is one more than its elements. Null, as 0, is
    refused."""
    size = data[at]
    if size < 0x80:
        at += 1
    else:
        size, at = uvarint(data, at)
    if size == 0:
        raise Malformed(_NULL_ARRAY)
    if size - 1 > len(data) - at:
        raise Malformed(f"an array of {size - 1} elements in {len(data) - at} bytes")
    if size > 2:
        _elements.get().take(size - 1)
    return size - 1, at


def compact_nullable_array(data: memoryview, at: int) -> tuple[int, int]:
    """Read the length of an array as `compact_array` does, or -1 for null."""
    return compact_array(data, at) if data[at] else (-1, at + 1)


def integers(data: memoryview, at: int, count: int) -> tuple[list[int], int]:
    """Read `count` 32-bit integers."""
    shape = Struct(f">{count}i")
    return list(shape.unpack_from(data, at)), at + shape.size


def large_integers(data: memoryview, at: int, count: int) -> tuple[list[int], int]:
    """Read `count` 64-bit integers."""
    return list(Struct(f">{count}q").unpack_from(data, at)), at + 8 * count


def small_integers(data: memoryview, at: int, count: int) -> tuple[list[int], int]:
    """Read `count` 8-bit integers."""
    return list(Struct(f">{count}b").unpack_from(data, at)), at + count


def tag(data: memoryview, at: int) -> tuple[int, int, int]:
    """Read the head of a tagged field: its number, the begin of its value, and the end."""
    number, at = uvarint(data, at)
    size, at = uvarint(data, at)
    return number, at, _end(data, at, size)


def tags(data: memoryview, at: int) -> tuple[int, int]:
    """Read the number of tagged fields."""
    if not data[at]:  # as usual
        return 0, at + 1
    count, at = uvarint(data, at)
    if count > 1:
        _elements.get().take(count)
    return count, at


def skip_header_tags(data: memoryview, at: int) -> int:
    """Return the position after the tagged fields of a header, of which none is known."""
    count, at = uvarint(data, at)
    if count > KAFKA_HEADER_TAGS_MAX:
        raise Malformed(f"{count} tagged fields; expected at most {KAFKA_HEADER_TAGS_MAX}")
    for _ in range(count):
        at = tag(data, at)[2]
    return at


def skip_tags(data: memoryview, at: int) -> int:
    """Return the position after the tagged fields, of which none is known."""
    if not data[at]:
        return at + 1
    count, at = tags(data, at)
    for _ in range(count):
        at = tag(data, at)[2]
    return at


def counted(count: int) -> None:
    """Refuse a null array where this version allows none."""
    if count < 0:
        raise Malformed(_NULL_ARRAY)


def given(value: _T | None) -> _T:
    """Return the value, or refuse a null where this version allows none."""
    if value is None:
        raise Malformed(_NULL)
    return value


def put_uvarint(put: Put, value: int) -> None:
    """Write an unsigned varint."""
    if value < 0x80:
        put(_SMALL[value])
        return
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    put(bytes(parts))


_SMALL = [bytes([value]) for value in range(0x80)]


def put_string(put: Put, value: str | None) -> None:
    """Write a string with a 16-bit length."""
    if value is None:
        put(b"\xff\xff")
        return
    data = value.encode()
    put(_I16.pack(len(data)) + data)


def put_compact_string(put: Put, value: str | None) -> None:
    """Write a string with a varint length."""
    if value is None:
        put(b"\0")
        return
    data = value.encode()
    if len(data) < 0x7F:
        put(_SMALL[len(data) + 1])
    else:
        put_uvarint(put, len(data) + 1)
    put(data)


def put_records(put: Put, value: list[Bytes] | None) -> None:
    """Write pieces of bytes with a 32-bit length, uncopied."""
    if value is None:
        put(b"\xff\xff\xff\xff")
        return
    put(_I32.pack(sum(map(len, value))))
    for piece in value:
        put(piece)


def put_compact_records(put: Put, value: list[Bytes] | None) -> None:
    """Write pieces of bytes with a varint length, uncopied."""
    if value is None:
        put(b"\0")
        return
    put_uvarint(put, sum(map(len, value)) + 1)
    for piece in value:
        put(piece)


def put_octets(put: Put, value: bytes | None) -> None:
    """Write bytes with a 32-bit length."""
    put_records(put, None if value is None else [value])


def put_compact_octets(put: Put, value: bytes | None) -> None:
    """Write bytes with a varint length."""
    put_compact_records(put, None if value is None else [value])


def put_array(put: Put, count: int) -> None:
    """Write the 32-bit length of an array; -1 is null."""
    put(_I32.pack(count))


def put_compact_array(put: Put, count: int) -> None:
    """Write the varint length of an array; -1 is null."""
    if count < 0x7F:
        put(_SMALL[count + 1])
    else:
        put_uvarint(put, count + 1)


def put_integers(put: Put, values: list[int]) -> None:
    """Write 32-bit integers without a length."""
    put(pack(f">{len(values)}i", *values))


def put_small_integers(put: Put, values: list[int]) -> None:
    """Write 8-bit integers without a length."""
    put(pack(f">{len(values)}b", *values))


def put_tags(put: Put, fields: Iterable[tuple[int, list[Bytes]]]) -> None:
    """Write tagged fields, each with its number and its pieces, in order of the numbers."""
    written = list(fields)
    if not written:
        put(b"\0")
        return
    put_uvarint(put, len(written))
    for number, pieces in written:
        put_uvarint(put, number)
        put_uvarint(put, sum(map(len, pieces)))
        for piece in pieces:
            put(piece)
