"""The numbers in OpenTelemetry's `MetricsData` (metrics.proto 1.x), as Kafka's clients push it.

A small decoder of what these clients send: gauges and sums. Histograms and summaries are counted as
dropped points, and all other fields are skipped. Long texts are cut. The fields of a push are
bounded, as each costs time and few bytes. Groups, which protobuf has given up, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct, error

import msgspec

from polynya.base.errors import CorruptData
from polynya.base.limits import (
    CLIENT_ATTRIBUTES_MAX,
    CLIENT_LABEL_CHARACTERS_MAX,
    CLIENT_PUSH_FIELDS_MAX,
)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_VARINT_BYTES_MAX = 10
_DOUBLE, _SIGNED = Struct("<d"), Struct("<q")
# fields: of MetricsData, ResourceMetrics, ScopeMetrics
_RESOURCES, _SCOPES, _METRICS = 1, 2, 2
_NAME, _GAUGE, _SUM, _OTHERS = 1, 5, 7, (9, 10, 11)  # of Metric
_POINTS, _TEMPORALITY, _MONOTONIC = 1, 2, 3  # of Gauge and Sum
_AS_DOUBLE, _AS_INT, _ATTRIBUTES = 4, 6, 7  # of NumberDataPoint
_KEY, _VALUE = 1, 2  # of KeyValue
_DELTA = 1  # a temporality
_Value = int | memoryview
_Field = tuple[int, int, _Value]  # number, wire type, value


class Kind(IntEnum):
    """The meaning of a number: the state of now, or a sum that only grows: the growth since the last
    push, or all of it."""

    GAUGE = 0
    DELTA = 1
    TOTAL = 2


class Point(msgspec.Struct, frozen=True, gc=False):
    """A number of a metric."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    kind: Kind
    value: float


class Points(msgspec.Struct, frozen=True, gc=False):
    """The numbers of a push, and the count of those that were left out."""

    taken: list[Point]
    dropped: int


def points_of(data: bytes | memoryview, most: int) -> Points:
    """Decode at most so many numbers of a `MetricsData`. Raises CorruptData."""
    taken: list[Point] = []
    dropped = 0
    decoder = _Decoder()
    try:
        for metric in decoder.metrics(memoryview(data)):
            found, others = decoder.points(metric, most - len(taken))
            taken += found
            dropped += others
    except (IndexError, error, UnicodeDecodeError) as fault:
        raise CorruptData(f"the metrics are no MetricsData of OpenTelemetry: {fault}") from None
    return Points(taken, dropped)


class _Decoder:
    """Reads the fields of one push, and counts them."""

    def __init__(self) -> None:
        self._left = CLIENT_PUSH_FIELDS_MAX

    def metrics(self, data: memoryview) -> Iterator[memoryview]:
        for resource in self._inside(data, _RESOURCES):
            for scope in self._inside(resource, _SCOPES):
                yield from self._inside(scope, _METRICS)

    def points(self, metric: memoryview, room: int) -> tuple[list[Point], int]:
        """Return the numbers of a metric, and how many were left out."""
        name, found, dropped = "", list[tuple[Kind, memoryview]](), 0
        for number, wire, value in self._fields(metric):
            if wire != _BYTES or isinstance(value, int):
                continue
            if number == _NAME:
                name = _text(value)
            elif number == _GAUGE:
                found += [(Kind.GAUGE, each) for each in self._inside(value, _POINTS)]
            elif number == _SUM:
                kind = self._kind_of_sum(value)
                found += [(kind, each) for each in self._inside(value, _POINTS)]
            elif number in _OTHERS:
                dropped += sum(1 for _ in self._inside(value, _POINTS))
        kept = found[: max(0, room)]
        return [self._point(name, *each) for each in kept], dropped + len(found) - len(kept)

    def _kind_of_sum(self, data: memoryview) -> Kind:
        plain = {number: value for number, wire, value in self._fields(data) if wire == _VARINT}
        if not plain.get(_MONOTONIC):
            return Kind.GAUGE
        return Kind.DELTA if plain.get(_TEMPORALITY) == _DELTA else Kind.TOTAL

    def _point(self, name: str, kind: Kind, data: memoryview) -> Point:
        value, attributes = 0.0, list[tuple[str, str]]()
        for number, wire, field in self._fields(data):
            if isinstance(field, int):
                continue
            if number == _AS_DOUBLE and wire == _FIXED64:
                value = float(_DOUBLE.unpack(field)[0])
            elif number == _AS_INT and wire == _FIXED64:
                value = float(_SIGNED.unpack(field)[0])
            elif number == _ATTRIBUTES and wire == _BYTES:
                attributes.append(self._attribute(field))
        return Point(name, tuple(sorted(attributes)[:CLIENT_ATTRIBUTES_MAX]), kind, value)

    def _attribute(self, data: memoryview) -> tuple[str, str]:
        key, text = "", ""
        for number, _, value in self._fields(data):
            if isinstance(value, int):
                continue
            if number == _KEY:
                key = _text(value)
            elif number == _VALUE:
                text = self._value(value)
        return key, text

    def _value(self, data: memoryview) -> str:
        """Return an AnyValue as text: a string, a bool, an integer or a double; "" for others."""
        for number, wire, value in self._fields(data):
            if number == 1 and not isinstance(value, int):
                return _text(value)
            if number == 2 and isinstance(value, int):
                return "true" if value else "false"
            if number == 3 and isinstance(value, int):
                return str(value - (1 << 64) if value >> 63 else value)
            if number == 4 and wire == _FIXED64 and not isinstance(value, int):
                return str(_DOUBLE.unpack(value)[0])
        return ""

    def _inside(self, data: memoryview, wanted: int) -> Iterator[memoryview]:
        """Yield the messages of a repeated field."""
        for number, wire, value in self._fields(data):
            if number == wanted and wire == _BYTES and not isinstance(value, int):
                yield value

    def _fields(self, data: memoryview) -> Iterator[_Field]:
        """Yield the fields of a message. Raises CorruptData, IndexError."""
        at, end = 0, len(data)
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise CorruptData(f"the metrics have more than {CLIENT_PUSH_FIELDS_MAX} fields")
            tag, at = _varint(data, at)
            number, wire = tag >> 3, tag & 7
            if wire == _VARINT:
                value, at = _varint(data, at)
                yield number, wire, value
                continue
            if wire == _BYTES:
                size, at = _varint(data, at)
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
            else:
                raise CorruptData(f"field {number} has the wire type {wire}; expected 0, 1, 2 or 5")
            if at + size > end:
                raise CorruptData(f"field {number} ends at byte {at + size} of {end}")
            yield number, wire, data[at : at + size]
            at += size


def _text(data: memoryview) -> str:
    return str(data, "utf-8")[:CLIENT_LABEL_CHARACTERS_MAX]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    for _ in range(_VARINT_BYTES_MAX):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
    raise CorruptData(f"a varint has more than {_VARINT_BYTES_MAX} bytes")
