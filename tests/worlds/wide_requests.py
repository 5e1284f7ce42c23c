"""Kafka requests of very many equal elements: of each array of each key, by kio's codecs.

A request with one element and one with two differ in the array's length and in an element. So a
request of any number of elements is made of bytes, as fast as they are copied.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import io
import types
import typing
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from kio.serial import entity_writer
from kio.static.primitive import f64
from wire.kafka.kio_values import kio_class

from polynya.wire.kafka.messages import APIS, Api

NAME = "t"  # of every topic, group and the like
# versions that name topics, for keys whose later ones have ids of topics
NAMED = {"Fetch": 12, "Produce": 12, "Metadata": 9, "OffsetCommit": 9, "OffsetFetch": 9}
MIB = 1024 * 1024
TOPIC = 2  # the type of a resource of configs
Path = tuple[str, ...]  # names of fields, from the message to an array


class Wide(NamedTuple):
    """A request and the place of one of its arrays."""

    api: Api
    version: int
    path: Path

    def __str__(self) -> str:
        return f"{self.api.name} {'.'.join(self.path)}"

    def frame(self, count: int) -> bytes:
        """Return the request with that many elements."""
        one, two = (self._body(number) for number in (1, 2))
        at = next(at for at in range(len(one)) if one[at] != two[at])  # the end of the length
        element = two[at + 1 : at + 1 + len(two) - len(one)]
        if self.version >= self.api.flexible:
            begin, length = one[:at], uvarint(count + 1)
        else:
            begin, length = one[: at - 3], count.to_bytes(4)
        body = begin + length + element * count + one[at + 1 + len(element) :]
        return len(body).to_bytes(4) + body

    def _body(self, count: int) -> bytes:
        head = self.api.key.to_bytes(2) + self.version.to_bytes(2) + (7).to_bytes(4) + b"\0\1w"
        made = _value(kio_class(self.api, self.version, "request"), self.path, count)
        buffer = io.BytesIO()
        entity_writer(type(made))(buffer, made)
        return head + (b"\0" if self.version >= self.api.flexible else b"") + buffer.getvalue()


def wide_requests() -> Iterator[Wide]:
    """Yield each array of each key, in the last version that names topics."""
    for api in APIS.values():
        version = NAMED.get(api.name, api.versions[-1])
        for path in _arrays(kio_class(api, version, "request")):
            yield Wide(api, version, path)


def _arrays(kind: Any) -> Iterator[Path]:
    for field, inner in _fields(kind):
        if typing.get_origin(inner) is tuple:
            yield (field,)
            inner = typing.get_args(inner)[0]  # noqa: PLW2901
        if dataclasses.is_dataclass(inner):
            for path in _arrays(inner):
                yield (field, *path)


def _fields(kind: Any) -> list[tuple[str, Any]]:
    """Return the fields of a dataclass, with their types unless null."""
    hints = typing.get_type_hints(kind)
    return [(each.name, _given(hints[each.name])) for each in dataclasses.fields(kind)]


def _given(kind: Any) -> Any:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return next(each for each in typing.get_args(kind) if each is not type(None))
    return kind


def _value(kind: Any, path: Path, count: int) -> Any:  # noqa: PLR0911
    """Return a value with one element in each array, and `count` in the one at the path."""
    kind = _given(kind)
    if typing.get_origin(kind) is tuple:
        element = _value(typing.get_args(kind)[0], path, count)
        return (element,) * (1 if path else count)
    if dataclasses.is_dataclass(kind):
        return _struct(kind, path, count)
    if issubclass(kind, enum.Enum):
        return next(iter(kind))
    if issubclass(kind, dt.timedelta):
        return dt.timedelta(milliseconds=1)
    if issubclass(kind, dt.datetime):
        return dt.datetime.fromtimestamp(1, dt.UTC)
    if issubclass(kind, uuid.UUID):
        return uuid.UUID(int=1)
    if issubclass(kind, str):
        return NAME
    if kind is f64:
        return 0.0
    return kind(b"") if issubclass(kind, bytes) else kind(0)


def _struct(kind: Any, path: Path, count: int) -> Any:
    found = {
        name: _value(inner, path[1:] if path and path[0] == name else ("",), count)
        for name, inner in _fields(kind)
    }
    for name, value in found.items():
        if name == "resource_type":
            found[name] = type(value)(TOPIC)
        elif name == "acks":
            found[name] = type(value)(-1)
        elif name.endswith("max_bytes"):
            found[name] = type(value)(MIB)
    return kind(**found)


def uvarint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
