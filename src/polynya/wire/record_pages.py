"""The stored spans of a page as the body that a reader asked for. Pure code.

A stream may hold batches of several encodings: bodies as they were posted, and Kafka batches, which
have keys, headers and times. Readers of values see the same of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from struct import iter_unpack, unpack

import msgspec

from polynya.stream.parts import Encoding
from polynya.wire.json_records import elements_of
from polynya.wire.kafka.primitives import Bytes
from polynya.wire.kafka.records import UnreadableBatch, decoded_records, placed_batches
from polynya.wire.kafka.values import (
    Show,
    append_time,
    enveloped,
    plain_record,
    show_envelope,
    show_json,
    show_json_envelope,
    show_json_record,
    show_record,
    show_value,
)

Offset = tuple[int, int]  # record, byte


class StoredSpan(msgspec.Struct, frozen=True, gc=False):
    """Stored payload of one encoding, and the position where it begins."""

    record: int
    byte: int
    payload: Bytes
    encoding: int
    lengths: bytes = b""  # of its records, packed; only of raw ones, and empty for one record
    time_ms: int = 0  # append time of all records; 0 from an older node
    # where they differ: packed pairs of a record and the time of it and those behind it
    times: bytes = b""


class Form(msgspec.Struct, frozen=True):
    """The form of a body: values or whole records, of a JSON stream or another. `envelope`: instead
    of whole records, lines of `{record, value}`."""

    records: bool
    is_json: bool
    envelope: bool = False

    @property
    def show_value(self) -> Show:
        """Return how the value of a record of a Kafka batch is shown."""
        return show_json if self.is_json else show_value

    def show_whole(self, appended: bytes) -> Show:
        """Return how a whole record of a Kafka batch is shown, with this append time."""
        if self.envelope:
            return show_json_envelope if self.is_json else show_envelope
        return partial(show_json_record if self.is_json else show_record, appended=appended)

    def plain(self, record: int, value: bytes, appended: bytes) -> bytes:
        """Return how a record that was posted alone is shown."""
        if self.envelope:
            return enveloped(record, value, is_json=self.is_json)
        return plain_record(record, value, appended, is_json=self.is_json)


class Shown(msgspec.Struct, gc=False):
    """The pieces of a body, and the position behind the last one. `damage`: why there are none."""

    parts: list[Bytes]
    record: int
    byte: int
    damage: str = ""


class _Damaged(Exception):
    """A batch cannot be decoded. `behind`: the position behind it."""

    def __init__(self, fault: UnreadableBatch, behind: Offset) -> None:
        super().__init__(str(fault))
        self.behind = behind


_Step = tuple[Sequence[Bytes], int, int]  # what is shown, and the position behind it


def show(
    spans: Sequence[StoredSpan],
    end: Offset,
    *,
    first: int,
    form: Form,
    bytes_max: int,
    records_max: int = 0,
) -> Shown:
    """Show spans in order, whose page ends at `end`: up to `bytes_max` of body, and at least one
    step. `records_max`: then each step is one record, and there are so many at most.

    A step is a Kafka batch, a plain span, or one of its records. Records before `first` are left
    out. A batch that cannot be decoded ends the page before it; if it is the first one, the page
    has the damage, and the position behind that batch.
    """
    shown = Shown([], spans[0].record, spans[0].byte)
    size, left = 0, records_max or -1
    ends = [(after.record, after.byte) for _, after in pairwise(spans)] + [end]
    try:
        for span, behind in zip(spans, ends, strict=True):
            for parts, record, byte in _steps(span, behind, first, form, single=left >= 0):
                if left == 0:
                    return shown
                more = sum(map(len, parts))
                if size and size + more > bytes_max:
                    return shown
                shown.parts += parts
                size += more
                left -= left > 0 and bool(parts)
                shown.record, shown.byte = record, byte
        shown.record, shown.byte = end
    except _Damaged as fault:
        if (shown.record, shown.byte) == (spans[0].record, spans[0].byte):
            shown.record, shown.byte = fault.behind
            shown.damage = str(fault)
    return shown


def is_plain(spans: Sequence[StoredSpan], form: Form) -> bool:
    """Report whether the stored bytes are what a reader of this form gets."""
    return not form.records and all(span.encoding != Encoding.KAFKA for span in spans)


def _steps(
    span: StoredSpan, end: Offset, first: int, form: Form, *, single: bool
) -> Iterator[_Step]:
    if span.encoding == Encoding.KAFKA:
        return _batches(span, end, first, form, single=single)
    if form.records:
        return _records(span, first, form)
    if single:
        return _values(span, first)
    return iter([([span.payload], *end)])


def _batches(
    span: StoredSpan, end: Offset, first: int, form: Form, *, single: bool
) -> Iterator[_Step]:
    byte, times, show_one = span.byte, _AppendTimes(span), form.show_value
    try:
        for batch, header, record in placed_batches(span.payload, span.record):
            behind = record + header.last_offset_delta + 1, byte + len(batch)
            if form.records:
                show_one = form.show_whole(append_time(times.at(record)))
            try:
                records = [each for each in decoded_records(batch, record) if each.offset >= first]
            except UnreadableBatch as fault:
                raise _Damaged(fault, behind) from None
            if single:  # a position inside a batch has the byte where the batch begins
                for each in records[:-1]:
                    yield [show_one(each)], each.offset + 1, byte
                records = records[-1:]
            yield [*map(show_one, records)], *behind
            byte = behind[1]
    except UnreadableBatch as fault:  # no batch can be divided off
        raise _Damaged(fault, end) from None


def _records(span: StoredSpan, first: int, form: Form) -> Iterator[_Step]:
    byte, times = span.byte, _AppendTimes(span)
    for record, value in enumerate(plain_values(span), span.record):
        byte += len(value) + (span.encoding == Encoding.JSON)
        appended = append_time(times.at(record))
        shown = [form.plain(record, value, appended)] if record >= first else []
        yield shown, record + 1, byte


def _values(span: StoredSpan, first: int) -> Iterator[_Step]:
    """Yield the records of a plain span as they are stored."""
    begin, payload = 0, memoryview(span.payload)
    for record, value in enumerate(plain_values(span), span.record):
        end = begin + len(value) + (span.encoding == Encoding.JSON)
        yield [payload[begin:end]] if record >= first else [], record + 1, span.byte + end
        begin = end


class _AppendTimes:
    """The append times of a span, for records in their order."""

    def __init__(self, span: StoredSpan) -> None:
        self._time_ms = span.time_ms
        self._left = iter_unpack("<qq", span.times)
        self._next: tuple[int, ...] | None = next(self._left, None)

    def at(self, record: int) -> int:
        """Return the append time of a record in ms; 0: not known."""
        while self._next is not None and self._next[0] <= record:
            self._time_ms = self._next[1]
            self._next = next(self._left, None)
        return self._time_ms


def plain_values(span: StoredSpan) -> Iterator[bytes]:
    """Iterate over the records of a plain span."""
    if span.encoding == Encoding.JSON:
        yield from map(bytes, elements_of([span.payload]))
        return
    at, payload = 0, memoryview(span.payload)
    for length in unpack(f"<{len(span.lengths) // 4}I", span.lengths) or (len(payload),):
        yield bytes(payload[at : at + length])
        at += length
