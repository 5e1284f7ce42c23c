"""The batches of a parsed slice, found by its columns and made when they are accessed."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol, overload

from polynya.stream.parts import PRODUCER_ID, TRANSACTIONAL
from polynya.stream.state.aborted import mark
from polynya.stream.state.model import DecodedBatches, HotBatch


class Columns(Protocol):
    """The part of a parsed slice that its batches are made of."""

    encoding: int
    undivided: bool
    record_lengths: memoryview[int] | None
    append_times_ms: memoryview[int]
    record_times_ms: memoryview[int]
    batch_lengths: memoryview[int]
    batch_crcs: memoryview[int]
    batch_flags: memoryview[int]
    payload: memoryview

    batch_records: memoryview[int]
    record_spans: memoryview[int]

    @property
    def has_flags(self) -> bool:
        """Report whether any batch has a flag."""
        ...

    @property
    def stored_begins(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return how many records and bytes of payload are before each batch, and in all."""
        ...

    @property
    def kept(self) -> Sequence[int]:
        """Return the numbers of the batches that have records."""
        ...

    @property
    def batch_begins(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the first record and first byte of each batch, and the ends."""
        ...

    def newest(self, begin: int, end: int) -> int:
        """Return the largest record time of these batches; 0: they have no times of their own."""
        ...


def _differ(source: Columns, number: int) -> bool:
    """Report whether an undivided batch has other flags than the one before it, or both are of
    transactions of different producers."""
    flags = source.batch_flags
    if flags[number] != flags[number - 1]:
        return True
    return bool(flags[number] & TRANSACTIONAL) and _producer_id(source, number) != _producer_id(
        source, number - 1
    )


def _producer_id(source: Columns, number: int) -> bytes:
    """Return the producer id of a Kafka batch, as it is stored."""
    return bytes(source.payload[source.stored_begins[1][number] :][PRODUCER_ID])


class SliceBatches(DecodedBatches):
    """The batches of a parsed slice that begins at a position of its stream. `bounds`: the numbers
    of the batches at which joined ones begin, and the end."""

    def __init__(self, source: Columns, at: tuple[int, int], bounds: Sequence[int]) -> None:
        self._source = source
        self._record, self._byte = at
        self._bounds = bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> HotBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[HotBatch]: ...
    def __getitem__(self, index: int | slice) -> HotBatch | list[HotBatch]:
        if isinstance(index, slice):
            return [self._run(number) for number in range(len(self))[index]]
        return self._run(range(len(self))[index])

    def whole(self, begin: int, end: int) -> Sequence[HotBatch]:
        source = self._source
        if not source.undivided or end - begin < 2:
            return self[begin:end]
        first, last = self._bounds[begin], self._bounds[end]
        if not source.has_flags:
            return [self._of(first, last)]
        ends = [each for each in range(first + 1, last) if _differ(source, each)]
        return [self._of(*run) for run in pairwise((first, *ends, last))]

    def before_record(self, record: int) -> int:
        return self._before(self._source.batch_begins[0], record - self._record)

    def before_byte(self, byte: int) -> int:
        return self._before(self._source.batch_begins[1], byte - self._byte)

    def _before(self, begins: Sequence[int], position: int) -> int:
        bounds = self._bounds
        if isinstance(bounds, range):
            return bisect_right(begins, position, 0, len(self))
        return bisect_right(bounds, position, 0, len(self), key=begins.__getitem__)

    def _run(self, number: int) -> HotBatch:
        return self._of(self._bounds[number], self._bounds[number + 1])

    def _of(self, begin: int, end: int) -> HotBatch:
        """Return the slice's batches from one number to another, joined."""
        source = self._source
        records, positions = source.batch_begins
        first, last = records[begin], records[end]
        every_length = (
            source.batch_lengths if source.record_lengths is None else source.record_lengths
        )
        payload: Any = source.payload[positions[begin] : positions[end]]
        return HotBatch(
            record=self._record + first,
            byte=self._byte + positions[begin],
            records=last - first,
            payload=payload,
            lengths=b""
            if last - first == 1 or source.undivided
            else every_length[first:last].tobytes(),
            crc=source.batch_crcs[begin] if end == begin + 1 else 0,
            time_ms=source.append_times_ms[end - 1],
            record_time_ms_max=source.newest(begin, end),
            encoding=source.encoding,
            position=0,
            flags=source.batch_flags[begin],
        )


class GappedBatches(DecodedBatches):
    """The batches with records of a slice in which numbers or positions are missing. None are
    joined. An undivided batch has all numbers of its span: its records know their own."""

    def __init__(self, source: Columns, at: tuple[int, int]) -> None:
        self._source = source
        self._record, self._byte = at
        self._kept = source.kept

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, index: int) -> HotBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[HotBatch]: ...
    def __getitem__(self, index: int | slice) -> HotBatch | list[HotBatch]:
        if isinstance(index, slice):
            return [self._of(number) for number in self._kept[index]]
        return self._of(self._kept[index])

    def whole(self, begin: int, end: int) -> Sequence[HotBatch]:
        return self[begin:end]

    def before_record(self, record: int) -> int:
        begins = self._source.batch_begins[0]
        return bisect_right(self._kept, record - self._record, key=begins.__getitem__)

    def before_byte(self, byte: int) -> int:
        begins = self._source.batch_begins[1]
        return bisect_right(self._kept, byte - self._byte, key=begins.__getitem__)

    def _of(self, number: int) -> HotBatch:
        source = self._source
        records, positions = source.batch_begins
        stored, payload_begins = source.stored_begins
        count = source.batch_records[number]
        lengths = source.record_lengths
        payload: Any = source.payload[payload_begins[number] : payload_begins[number + 1]]
        return HotBatch(
            record=self._record + records[number],
            byte=self._byte + positions[number],
            records=source.record_spans[number] if source.undivided else count,
            payload=payload,
            lengths=b""
            if count == 1 or lengths is None
            else lengths[stored[number] : stored[number + 1]].tobytes(),
            crc=source.batch_crcs[number],
            time_ms=source.append_times_ms[number],
            record_time_ms_max=source.record_times_ms[number],
            encoding=source.encoding,
            position=0,
            flags=source.batch_flags[number],
        )


def decided_flags(source: Columns, record: int, rows: bytes) -> memoryview[int]:
    """Return the flags of the batches of a slice that begins at a record of its stream, with flag 4
    on those of the aborted transactions in `rows`."""
    batches = [*GappedBatches(source, (record, 0))]
    mark(batches, rows)
    flags = array("I", source.batch_flags)
    for number, batch in zip(source.kept, batches, strict=True):
        flags[number] = batch.flags
    return memoryview(flags)
