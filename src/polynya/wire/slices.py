"""Slices: the batches of one stream as a pack stores them, in columns (docs/formats/packs.md)."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, compress, count
from operator import ge, lt
from typing import Any

import google_crc32c
import msgspec

from polynya.base.errors import CorruptData
from polynya.base.limits import COMPRESSED_PAYLOAD_BYTES_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.stream.parts import Encoding
from polynya.stream.state.model import ColdSlice, HotBatch
from polynya.wire.payloads import RAW, ZSTD, decompressed
from polynya.wire.slice_batches import GappedBatches, SliceBatches
from polynya.wire.slice_format import (
    BATCH_BYTES,
    COMPRESSION_AT,
    FIXED,
    GAP_VERSION,
    HEADER,
    KAFKA_VERSION,
    RECORDS_MAX,
    SLICE_MAGIC,
    SPAN_BYTES,
    SPANS,
    VERSION,
    any_of,
    dated,
    version_of,
)

Producers = dict[int, tuple[Any, ...]]  # by the batch's number


class SliceMeta(msgspec.Struct, frozen=True, gc=False):
    """The footer data of a built slice."""

    records: int
    length: int
    stored: int
    append_time_ms_max: int
    record_time_ms_max: int
    crc: int
    encoding: int
    base_record: int
    base_byte: int
    flags: int
    batches: int
    missing_records: int = 0
    missing_bytes: int = 0


def batch_lengths_in(front: bytes, batches: int) -> memoryview[int]:
    """Return the payload bytes of each batch, from the header and columns of a slice."""
    begin = HEADER.size + batches * (8 + 8 + 4)
    return _view(memoryview(front)[begin : begin + 4 * batches], "I")


def batch_flags_in(data: bytes) -> memoryview[int]:
    """Return the flags of each batch of a stored slice. Other data has none."""
    if data[:4] != SLICE_MAGIC:
        return _view(memoryview(b""), "I")
    count = _Header(*HEADER.unpack_from(data)).batches
    begin = HEADER.size + count * (8 + 8 + 4 + 4 + 4)
    return _view(memoryview(data)[begin : begin + 4 * count], "I")


def flags_of(flags: memoryview[int], cold: ColdSlice) -> int:
    """Return the flags of those batches of a slice that an index entry names."""
    return any_of(flags[cold.first_batch :][: cold.batches or None])


def unpacked_bytes(data: bytes) -> int:
    """Return how many bytes of payload `parse_slice` would decompress; 0 for none, also of damaged
    data."""
    if len(data) < HEADER.size or data[COMPRESSION_AT] == RAW:
        return 0
    return min(_Header(*HEADER.unpack_from(data)).length, COMPRESSED_PAYLOAD_BYTES_MAX)


def parse_slice(data: bytes, crc: int) -> Slice:
    """Parse a slice from exactly its stored bytes. Raises CorruptData."""
    if google_crc32c.value(data) != crc:
        raise CorruptData("a pack slice's checksum is wrong")
    return _parse(data)


def built_slice(parts: Sequence[bytes]) -> Slice:
    """Parse a slice from the parts that `build_slice` has just given, without a look at its
    checksum. The slice has a copy of them."""
    return _parse(b"".join(parts))


def _parse(data: bytes) -> Slice:
    if len(data) < HEADER.size:
        raise CorruptData("a pack slice is shorter than its header")
    header = _Header(*HEADER.unpack_from(data))
    version, length = header.version, header.length
    if (
        header.magic != SLICE_MAGIC
        or version not in (VERSION, KAFKA_VERSION, GAP_VERSION)
        or header.compression not in (RAW, ZSTD)
    ):
        raise CorruptData(
            f"a pack slice has an unsupported format: {header.magic!r} version {version} "
            f"compression {header.compression}"
        )
    end, stored = header.columns_end, len(data) - header.begin
    if (
        header.begin != end + -end % 8
        or (stored != length if header.compression == RAW else stored < 0)
        or header.lengths not in (0, header.records)
        or (version != version_of(header.encoding) and version != GAP_VERSION)
    ):
        raise CorruptData("a pack slice's header does not match its length")
    found = _whole(data, header)
    if (
        found.records != header.records
        or sum(found.batch_lengths) != length
        or not _divides(found)
        or not (found.span[0] <= RECORDS_MAX and _spans(found))
    ):
        raise CorruptData("a pack slice's columns do not add up")
    if header.compression == ZSTD:
        found.payload = decompressed(found.payload, length)
    return found


def _divides(found: Slice) -> bool:
    """Report whether each record has a length, if the slice is divided."""
    if found.undivided or found.record_lengths is not None:
        return True
    if found.has_gaps:
        return not found.records or set(found.batch_records) == {1}
    return found.batches == found.records


def _spans(found: Slice) -> bool:
    """Report whether each batch lies in its span, and has a payload only with records."""
    return not found.has_gaps or (
        all(map(ge, found.record_spans, found.batch_records))
        and all(map(ge, found.byte_spans, found.batch_lengths))
        and not any(map(lt, found.batch_records, map(bool, found.batch_lengths)))
    )


def parse_run(data: bytes, entry: ColdSlice) -> Slice:
    """Parse the batches that an index entry names from the stored bytes of its slice. Raises
    CorruptData."""
    return parse_slice(data, entry.crc).run(entry)


class _Header(msgspec.Struct, frozen=True, gc=False):
    """The fields of `HEADER`, in order."""

    magic: bytes
    version: int
    encoding: int
    compression: int
    batches: int
    lengths: int
    producers: int
    records: int
    length: int
    base_record: int
    base_byte: int
    begin: int

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Return the names and types of the columns with one number per batch."""
        return FIXED + SPANS if self.version == GAP_VERSION else FIXED

    @property
    def columns_end(self) -> int:
        """Return where the last column ends, before the padding."""
        per_batch = BATCH_BYTES + SPAN_BYTES * (self.version == GAP_VERSION)
        return HEADER.size + per_batch * self.batches + 4 * self.lengths + self.producers


def _whole(data: bytes, header: _Header) -> Slice:
    """Return the slice of these stored bytes, with its payload as stored. A compressed payload is
    not kept for the sake of the columns before it."""
    view = memoryview(data if header.compression == RAW else data[: header.begin])
    columns, at = [], HEADER.size
    for _, code in header.columns:
        size = header.batches * (8 if code == "q" else 4)
        columns.append(_view(view[at : at + size], code))
        at += size
    ends = at + 4 * header.lengths
    producers = view[ends : ends + header.producers]
    return Slice(
        header.encoding,
        (header.base_record, header.base_byte),
        columns,
        _view(view[at:ends], "I") if header.lengths else None,
        memoryview(data)[header.begin :],
        lambda: _decode_producers(producers),
    )


def _decode_producers(encoded: memoryview) -> Producers:
    if not encoded:
        return {}
    try:
        ids, rows = msgspec.msgpack.decode(encoded, type=tuple[list[str], list[list[int]]])
        return {row[0]: (ids[row[1]], *row[2:]) for row in rows}
    except (IndexError, *UNREADABLE) as fault:
        raise CorruptData(f"the producers of a pack slice cannot be decoded: {fault}") from None


class Slice:
    """A parsed slice, or a part of one. Columns are typed memoryviews of the stored bytes (on a
    little-endian machine): `len(view)` items, no copies.

    Records and bytes count from its start: `base_record` and `base_byte`, or -1. With `has_gaps`
    numbers and positions are missing: the spans of a batch are wider than its records and bytes.
    """

    def __init__(
        self,
        encoding: int,
        base: tuple[int, int],
        columns: Sequence[memoryview[int]],
        record_lengths: memoryview[int] | None,
        payload: memoryview,
        producers: Callable[[], Producers],
    ) -> None:
        """`columns`: in the order of `FIXED` and, with gaps, `SPANS`; `producers` decodes them
        when they are needed."""
        self.encoding = encoding
        self.undivided = encoding == Encoding.KAFKA
        self.base_record, self.base_byte = base
        (
            self.append_times_ms,
            self.record_times_ms,
            self.batch_records,
            self.batch_lengths,
            self.batch_crcs,
            self.batch_flags,
        ) = columns[: len(FIXED)]
        self.has_gaps = len(columns) > len(FIXED)
        self.record_spans, self.byte_spans = (
            columns[len(FIXED) :] if self.has_gaps else (self.batch_records, self.batch_lengths)
        )
        self.record_lengths = record_lengths
        self.payload = payload
        self.records = sum(self.batch_records)
        self._producers = producers
        self._parts: dict[tuple[int, int], Slice] = {}

    @property
    def batches(self) -> int:
        """Return the number of batches."""
        return len(self.batch_records)

    @property
    def size(self) -> int:
        """Return the bytes of its columns and payload."""
        lengths = 0 if self.record_lengths is None else self.record_lengths.nbytes
        per_batch = BATCH_BYTES + SPAN_BYTES * self.has_gaps
        return per_batch * self.batches + lengths + self.payload.nbytes

    @property
    def span(self) -> tuple[int, int]:
        """Return the record numbers and stream positions from its begin to its end."""
        numbers, positions = self.batch_begins
        return numbers[-1], positions[-1]

    @cached_property
    def producers(self) -> Producers:
        """Return (id, epoch, sequence, …) by batch number, for batches with a producer. Raises
        CorruptData."""
        return self._producers()

    def run(self, entry: ColdSlice) -> Slice:
        """Return the batches that an index entry names. Raises CorruptData if they do not match
        it."""
        found = self
        if entry.first_batch or entry.batches not in (0, self.batches):
            found = self.part(entry.first_batch, entry.batches)
        sizes = (entry.records - entry.missing_records, entry.length - entry.missing_bytes)
        fits = not found.has_gaps or (
            found.span[0] <= entry.records and found.span[1] <= entry.length
        )
        if (found.records, len(found.payload)) != sizes or not fits:
            raise CorruptData(
                f"the slice at {entry.offset} of {entry.pack} does not match its index entry: it "
                f"has {found.records} records of {len(found.payload)} bytes, expected {sizes[0]} "
                f"of {sizes[1]}"
            )
        return found

    def part(self, first: int, count: int) -> Slice:
        """Return the part with `count` batches from number `first` on, which shares this slice's
        memory. It is kept: an index names each part again and again. Raises CorruptData."""
        found = self._parts.get((first, count))
        if found is None:
            found = self._parts[first, count] = self._cut_part(first, first + count)
        return found

    def _cut_part(self, begin: int, end: int) -> Slice:
        if not 0 <= begin < end <= self.batches:
            raise CorruptData(
                f"a slice of {self.batches} batches does not contain the batches {begin} to {end}"
            )
        numbers, positions = self.batch_begins
        base = (
            (self.base_record + numbers[begin], self.base_byte + positions[begin])
            if self.base_record >= 0
            else (-1, -1)
        )
        records, payload_begins = self.stored_begins
        lengths = self.record_lengths
        if lengths is not None:  # as in a slice of these batches alone
            single = set(self.batch_records[begin:end]) == {1}
            lengths = None if single else lengths[records[begin] : records[end]]
        return Slice(
            self.encoding,
            base,
            [
                getattr(self, name)[begin:end]
                for name, _ in (FIXED + SPANS if self.has_gaps else FIXED)
            ],
            lengths,
            self.payload[payload_begins[begin] : payload_begins[end]],
            lambda: {
                number - begin: producer
                for number, producer in self.producers.items()
                if begin <= number < end
            },
        )

    @cached_property
    def positions(self) -> array[int]:
        """Return the start of each record in the payload, and the payload's end: `records + 1`
        numbers. Raises ValueError for undivided batches."""
        if self.undivided or self.has_gaps:
            raise ValueError(
                "the batches of this slice are undivided, or records are missing: the positions of "
                "its records are not known"
            )
        return array("Q", accumulate(self.record_lengths or self.batch_lengths, initial=0))

    @cached_property
    def batch_begins(self) -> tuple[array[int], array[int]]:
        """Return the first record and first byte of each batch, and the ends: `batches + 1` numbers
        each."""
        return _begins(self.record_spans), _begins(self.byte_spans)

    @cached_property
    def stored_begins(self) -> tuple[array[int], array[int]]:
        """Return how many records and bytes of payload are before each batch, and in all."""
        if not self.has_gaps:
            return self.batch_begins
        return _begins(self.batch_records), _begins(self.batch_lengths)

    @cached_property
    def kept(self) -> array[int]:
        """Return the numbers of the batches that have records."""
        return array("I", compress(count(), self.batch_records))

    def newest_ms(self) -> int:
        """Return the largest time of its records, of which it has at least one."""
        times = map(dated, self.record_times_ms, self.append_times_ms)
        return max(compress(times, self.batch_records) if self.has_gaps else times)

    @cached_property
    def _is_dated(self) -> bool:
        return self.record_times_ms.tobytes() != bytes(self.record_times_ms.nbytes)

    @cached_property
    def has_flags(self) -> bool:
        """Report whether any batch has a flag."""
        return self.batch_flags.tobytes() != bytes(self.batch_flags.nbytes)

    def newest(self, begin: int, end: int) -> int:
        """Return the largest record time of these batches; 0: they have no times of their own."""
        if end == begin + 1 or not self._is_dated:
            return self.record_times_ms[begin]
        return max(map(dated, self.record_times_ms[begin:end], self.append_times_ms[begin:end]))

    def cut(self, begin: int, end: int) -> memoryview:
        """Return the payload of the records in [`begin`, `end`), counted from the slice's first."""
        if not 0 <= begin <= end <= self.records:
            raise ValueError(f"a slice of {self.records} records does not contain {begin} to {end}")
        return self.payload[self.positions[begin] : self.positions[end]]

    def hot_batches(self, *, record: int, byte: int, run_bytes: int = 0) -> Sequence[HotBatch]:
        """Return the batches, created on access, with payloads as views. The slice begins at
        (`record`, `byte`).

        With `run_bytes`, adjacent batches up to this total size become one batch without a CRC: a
        few large pieces cost readers less. Those with flags stay alone. The batches have no
        producers (see `producers`).
        """
        if self.has_gaps:
            return GappedBatches(self, (record, byte))
        return SliceBatches(self, (record, byte), self._bounds(run_bytes))

    def _bounds(self, run_bytes: int) -> Sequence[int]:
        """Return the numbers of the batches at which runs begin, and the end."""
        if not run_bytes or self.undivided or self.has_flags:
            return range(self.batches + 1)
        ends = self.batch_begins[1]
        bounds = [0]
        while bounds[-1] < self.batches:
            begin = bounds[-1]
            bounds.append(max(begin + 1, bisect_right(ends, ends[begin] + run_bytes) - 1))
        return bounds


def _begins(sizes: Iterable[int]) -> array[int]:
    return array("Q", accumulate(sizes, initial=0))


def _view(data: memoryview, code: Any) -> memoryview:
    if sys.byteorder == "little":
        return data.cast(code)
    numbers = array(code, data.tobytes())
    numbers.byteswap()
    return memoryview(numbers)
