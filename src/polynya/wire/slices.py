"""Slices: the batches of one stream as a pack stores them, in columns (docs/formats/packs.md)."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, reduce
from itertools import accumulate, compress, count, repeat
from operator import ge, lt
from struct import Struct, unpack
from typing import Any, cast

import google_crc32c
import msgspec
from msgspec import structs

from polynya.base.errors import CorruptData
from polynya.base.limits import COMPRESSED_PAYLOAD_BYTES_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.stream.parts import Encoding
from polynya.stream.state.model import ColdSlice, HotBatch
from polynya.wire.payloads import RAW, ZSTD, decompressed
from polynya.wire.slice_batches import GappedBatches, SliceBatches

VERSION = 1
# of a slice whose batches are undivided: they may have many records, and no record lengths
KAFKA_VERSION = 2
GAP_VERSION = 3  # of a slice with missing record numbers or stream positions
RECORDS_MAX = 2**32 - 1  # of a slice
_SLICE_MAGIC = b"PLS1"
_HEADER = Struct("<4sBBBxIII4xQQqqQ")
HEADER_BYTES = _HEADER.size
COMPRESSION_AT = 6  # of the byte in the header
_BATCH_BYTES = 32  # column bytes per batch
# columns with one number per batch, in order
_FIXED = (
    ("append_times_ms", "q"),
    ("record_times_ms", "q"),
    ("batch_records", "I"),
    ("batch_lengths", "I"),
    ("batch_crcs", "I"),
    ("batch_flags", "I"),
)
# further columns of `GAP_VERSION`; in other slices they are those of the records and bytes
_SPANS = (("record_spans", "I"), ("byte_spans", "I"))
_SPAN_BYTES = 8
_ZEROS = bytes(8)
_PIECE_BYTES = 16 << 10  # payloads of this mean size are written from where they are

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


def build_slice(
    encoding: int, base_record: int, base_byte: int, batches: Sequence[HotBatch]
) -> tuple[SliceMeta, list[bytes]]:
    """Build the slice of contiguous batches, as parts to be written in order.

    Raises CorruptData if the CRC of a payload is wrong. Raises ValueError for batches of another
    encoding, or for a record count that does not match the lengths.
    """
    if not batches:
        raise ValueError("a slice has at least one batch")
    # One tuple per field, so that the following loops run in C.
    _, _, records, payloads, lengths, crcs, times, record_times, encodings, _, producers, flags = (
        zip(*map(msgspec.structs.astuple, batches), strict=True)
    )
    if encodings.count(encoding) != len(encodings):
        raise ValueError(f"a slice has one encoding: not all batches are of {encoding}")
    if encoding == Encoding.KAFKA:
        _check_undivided(records, lengths)
    elif records.count(1) != len(records) or any(lengths):
        _check_lengths(records, lengths)
    if crcs != tuple(map(google_crc32c.value, payloads)):
        raise CorruptData(f"a batch after record {base_record} has a wrong checksum")
    columns = _Columns(
        batches=len(batches),
        records=sum(records),
        fixed=_fixed((times, record_times, records, map(len, payloads), crcs, flags)),
        lengths=b"" if encoding == Encoding.KAFKA else _record_lengths(records, lengths, payloads),
        producers=_producers_of(producers),
        append_time_ms_max=max(times),
        record_time_ms_max=max(map(_dated, record_times, times)),
        flags=_any_of(flags),
    )
    return _assemble(encoding, (base_record, base_byte), columns, _pieces(payloads))


def is_intact(batch: HotBatch) -> bool:
    """Return whether the batch's payload and record lengths match its checksum and size."""
    if google_crc32c.value(batch.payload) != batch.crc:
        return False
    if not batch.lengths:
        return batch.records == 1 or batch.encoding == Encoding.KAFKA
    sizes = len(batch.lengths) // 4
    return len(batch.lengths) == 4 * batch.records and sum(
        unpack(f"<{sizes}I", batch.lengths)
    ) == len(batch.payload)


def merge_slices(
    base_record: int, base_byte: int, slices: Sequence[Slice]
) -> tuple[SliceMeta, list[bytes]]:
    """Merge adjacent slices of one stream. The result equals `build_slice` of all their batches,
    mostly without a loop over them. For what is missing between them there are `gap`s.

    Raises ValueError for slices with different encodings, CorruptData if producers cannot be
    decoded.
    """
    encoding = slices[0].encoding
    if any(each.encoding != encoding for each in slices):
        raise ValueError("a slice has one encoding")
    has_gaps = any(each.has_gaps for each in slices)
    records = sum(each.records for each in slices)
    columns = _Columns(
        batches=sum(each.batches for each in slices),
        records=records,
        fixed=b"".join(
            _joined(code, [getattr(each, name) for each in slices])
            for name, code in (_FIXED + _SPANS if has_gaps else _FIXED)
        ),
        lengths=b"",
        producers=_encode_producers(_all_producers(slices)),
        append_time_ms_max=max(max(each.append_times_ms) for each in slices),
        record_time_ms_max=max((each.newest_ms() for each in slices if each.records), default=0),
        flags=_any_of(flags for each in slices for flags in set(each.batch_flags)),
    )
    if has_gaps:
        length = sum(each.payload.nbytes for each in slices)
        spans = [each.span for each in slices]
        columns.missing = (
            sum(span[0] for span in spans) - records,
            sum(span[1] for span in spans) - length,
        )
    if any(each.record_lengths is not None for each in slices):
        columns.lengths = _joined(
            "I",
            [
                each.batch_lengths if each.record_lengths is None else each.record_lengths
                for each in slices
            ],
        )
    return _assemble(
        encoding, (base_record, base_byte), columns, (b"".join([each.payload for each in slices]),)
    )


def gap(encoding: int, time_ms: int, records: int, length: int) -> Slice:
    """Return what stands for missing numbers and positions behind batches of this append time: a
    batch without records."""
    columns = [
        memoryview(array(code, [value]))
        for (_, code), value in zip(
            _FIXED + _SPANS, (time_ms, 0, 0, 0, 0, 0, records, length), strict=True
        )
    ]
    lengths = None if encoding == Encoding.KAFKA else memoryview(array("I"))
    return Slice(encoding, (-1, -1), columns, lengths, memoryview(b""), dict)


class _Columns(msgspec.Struct):
    """The encoded parts of a slice except the payload."""

    batches: int
    records: int
    fixed: bytes  # `_BATCH_BYTES` per batch
    lengths: bytes
    producers: bytes
    append_time_ms_max: int
    record_time_ms_max: int
    flags: int
    missing: tuple[int, int] | None = None  # numbers and positions; None: not of `GAP_VERSION`


def _dated(own_ms: int, appended_ms: int) -> int:
    return own_ms or appended_ms


def _any_of(flags: Iterable[int]) -> int:
    """Return the flags that any of the batches has."""
    found = 0
    for each in set(flags):
        found |= each
    return found


def _pieces(payloads: Sequence[bytes]) -> Sequence[bytes]:
    """Return payloads in order, large ones as they are: page faults of a copy cost ten times it."""
    large = sum(map(len, payloads)) >= _PIECE_BYTES * len(payloads)
    return payloads if large else (b"".join(payloads),)


def _assemble(
    encoding: int, base: tuple[int, int], columns: _Columns, payload: Sequence[bytes]
) -> tuple[SliceMeta, list[bytes]]:
    length = sum(map(len, payload))
    body = columns.fixed + columns.lengths + columns.producers
    body += _ZEROS[: -len(body) % 8]
    begin = _HEADER.size + len(body)
    header = _HEADER.pack(
        _SLICE_MAGIC,
        _version_of(encoding) if columns.missing is None else GAP_VERSION,
        encoding,
        RAW,
        columns.batches,
        len(columns.lengths) // 4,
        len(columns.producers),
        columns.records,
        length,
        *base,
        begin,
    )
    front = header + body
    meta = SliceMeta(
        records=columns.records,
        length=length,
        stored=begin + length,
        append_time_ms_max=columns.append_time_ms_max,
        record_time_ms_max=columns.record_time_ms_max,
        crc=reduce(google_crc32c.extend, payload, google_crc32c.value(front)),
        encoding=encoding,
        base_record=base[0],
        base_byte=base[1],
        flags=columns.flags,
        batches=columns.batches,
    )
    if columns.missing is not None:
        records, missing_bytes = columns.missing
        meta = structs.replace(meta, missing_records=records, missing_bytes=missing_bytes)
    return meta, [front, *payload]


def batch_lengths_in(front: bytes, batches: int) -> memoryview[int]:
    """Return the payload bytes of each batch, from the header and columns of a slice."""
    begin = _HEADER.size + batches * (8 + 8 + 4)
    return _view(memoryview(front)[begin : begin + 4 * batches], "I")


def flags_in(data: bytes, first: int, batches: int) -> int:
    """Return the flags of some batches of a stored slice; `batches` 0: all. Other data has none."""
    if data[:4] != _SLICE_MAGIC:
        return 0
    count = _Header(*_HEADER.unpack_from(data)).batches
    begin, end = _HEADER.size + count * (8 + 8 + 4 + 4 + 4), first + batches if batches else count
    return _any_of(_view(memoryview(data)[begin + 4 * first : begin + 4 * end], "I"))


def unpacked_bytes(data: bytes) -> int:
    """Return how many bytes of payload `parse_slice` would decompress; 0 for none, also of damaged
    data."""
    if len(data) < _HEADER.size or data[COMPRESSION_AT] == RAW:
        return 0
    return min(_Header(*_HEADER.unpack_from(data)).length, COMPRESSED_PAYLOAD_BYTES_MAX)


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
    if len(data) < _HEADER.size:
        raise CorruptData("a pack slice is shorter than its header")
    header = _Header(*_HEADER.unpack_from(data))
    version, length = header.version, header.length
    if (
        header.magic != _SLICE_MAGIC
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
        or (version != _version_of(header.encoding) and version != GAP_VERSION)
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
    """The fields of `_HEADER`, in order."""

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
        return _FIXED + _SPANS if self.version == GAP_VERSION else _FIXED

    @property
    def columns_end(self) -> int:
        """Return where the last column ends, before the padding."""
        per_batch = _BATCH_BYTES + _SPAN_BYTES * (self.version == GAP_VERSION)
        return _HEADER.size + per_batch * self.batches + 4 * self.lengths + self.producers


def _whole(data: bytes, header: _Header) -> Slice:
    """Return the slice of these stored bytes, with its payload as stored. A compressed payload is
    not kept for the sake of the columns before it."""
    view = memoryview(data if header.compression == RAW else data[: header.begin])
    columns, at = [], _HEADER.size
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
        """`columns`: in the order of `_FIXED` and, with gaps, `_SPANS`; `producers` decodes them
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
        ) = columns[: len(_FIXED)]
        self.has_gaps = len(columns) > len(_FIXED)
        self.record_spans, self.byte_spans = (
            columns[len(_FIXED) :] if self.has_gaps else (self.batch_records, self.batch_lengths)
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
        per_batch = _BATCH_BYTES + _SPAN_BYTES * self.has_gaps
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
        records, places = self.stored_begins
        lengths = self.record_lengths
        if lengths is not None:  # as in a slice of these batches alone
            single = set(self.batch_records[begin:end]) == {1}
            lengths = None if single else lengths[records[begin] : records[end]]
        return Slice(
            self.encoding,
            base,
            [
                getattr(self, name)[begin:end]
                for name, _ in (_FIXED + _SPANS if self.has_gaps else _FIXED)
            ],
            lengths,
            self.payload[places[begin] : places[end]],
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
                "the batches of this slice are undivided, or records are missing: the places of "
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
        times = map(_dated, self.record_times_ms, self.append_times_ms)
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
        return max(map(_dated, self.record_times_ms[begin:end], self.append_times_ms[begin:end]))

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


def _fixed(columns: Sequence[Iterable[int]]) -> bytes:
    """Encode the numbers of each batch, in the order of `_FIXED`."""
    return b"".join(
        [
            _bytes(array(code, list(column)))
            for (_, code), column in zip(_FIXED, columns, strict=True)
        ]
    )


def _check_lengths(records: Sequence[int], lengths: Sequence[bytes]) -> None:
    for number, each in zip(records, lengths, strict=True):
        if len(each) != 4 * number and (each or number != 1):
            raise ValueError(f"a batch of {number} records has {len(each)} bytes of lengths")


def _check_undivided(records: Sequence[int], lengths: Sequence[bytes]) -> None:
    if any(lengths) or min(records) < 1:
        raise ValueError("a Kafka batch has record lengths or no records")
    if sum(records) > RECORDS_MAX:
        raise ValueError(f"a slice has {sum(records)} records; expected at most {RECORDS_MAX}")


def _version_of(encoding: int) -> int:
    return KAFKA_VERSION if encoding == Encoding.KAFKA else VERSION


def _record_lengths(
    records: Sequence[int], lengths: Sequence[bytes], payloads: Sequence[bytes]
) -> bytes:
    if records.count(1) == len(records):
        return b""
    return b"".join(
        [
            each or len(payload).to_bytes(4, "little")
            for each, payload in zip(lengths, payloads, strict=True)
        ]
    )


def _producers_of(batches: Sequence[tuple[Any, ...] | None]) -> bytes:
    """Encode producers, without a loop in the common case that one producer wrote the whole
    slice."""
    if None not in batches:
        ids, *numbers = zip(*cast("Sequence[tuple[Any, ...]]", batches), strict=True)
        if ids.count(ids[0]) == len(ids):
            return msgspec.msgpack.encode(
                [ids[:1], list(zip(range(len(ids)), repeat(0), *numbers))]
            )  # noqa: B905 (repeat has no end)
    return _encode_producers(
        (number, producer) for number, producer in enumerate(batches) if producer is not None
    )


def _encode_producers(producers: Iterable[tuple[int, tuple[Any, ...]]]) -> bytes:
    """Encode (batch number, producer) pairs, in order."""
    known: dict[str, int] = {}
    rows = []
    for number, (identity, *rest) in producers:
        rows.append([number, known.setdefault(identity, len(known)), *rest])
    return msgspec.msgpack.encode([list(known), rows]) if rows else b""


def _all_producers(slices: Sequence[Slice]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    begin = 0
    for each in slices:
        for number, producer in each.producers.items():
            yield begin + number, producer
        begin += each.batches


def _joined(code: Any, columns: Sequence[memoryview]) -> bytes:
    numbers = array(code)
    for column in columns:
        numbers.frombytes(column.cast("B"))
    return _bytes(numbers)


def _bytes(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _view(data: memoryview, code: Any) -> memoryview:
    if sys.byteorder == "little":
        return data.cast(code)
    numbers = array(code, data.tobytes())
    numbers.byteswap()
    return memoryview(numbers)
