"""Slices: the batches of one stream as a pack stores them, in columns (docs/formats/packs.md)."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, reduce
from itertools import accumulate, repeat
from struct import Struct, unpack
from typing import Any, cast

import google_crc32c
import msgspec

from polynya.base.errors import CorruptData
from polynya.stream.commands import Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire.slice_batches import SliceBatches

VERSION = 1
# of a slice whose batches are undivided: they may have many records, and no record lengths
KAFKA_VERSION = 2
RECORDS_MAX = 2**32 - 1  # of a slice
_SLICE_MAGIC = b"PLS1"
_HEADER = Struct("<4sBBBxIII4xQQqqQ")
HEADER_BYTES = _HEADER.size
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
_ZEROS = bytes(8)
_PIECE_BYTES = 16 << 10  # payloads of this mean size are written from where they are


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
    mostly without a loop over them.

    Raises ValueError for slices with different encodings, CorruptData if producers cannot be
    decoded.
    """
    encoding = slices[0].encoding
    if any(each.encoding != encoding for each in slices):
        raise ValueError("a slice has one encoding")
    columns = _Columns(
        batches=sum(each.batches for each in slices),
        records=sum(each.records for each in slices),
        fixed=b"".join(
            _joined(code, [getattr(each, name) for each in slices]) for name, code in _FIXED
        ),
        lengths=b"",
        producers=_encode_producers(_all_producers(slices)),
        append_time_ms_max=max(max(each.append_times_ms) for each in slices),
        record_time_ms_max=max(
            max(map(_dated, each.record_times_ms, each.append_times_ms)) for each in slices
        ),
        flags=_any_of(flags for each in slices for flags in set(each.batch_flags)),
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
        _version_of(encoding),
        encoding,
        0,
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
    return meta, [front, *payload]


def parse_slice(data: bytes, crc: int) -> Slice:
    """Parse a slice from exactly its stored bytes. Raises CorruptData."""
    if google_crc32c.value(data) != crc:
        raise CorruptData("a pack slice's checksum is wrong")
    if len(data) < _HEADER.size:
        raise CorruptData("a pack slice is shorter than its header")
    (
        magic,
        version,
        encoding,
        compression,
        batches,
        lengths,
        producers,
        records,
        length,
        base_record,
        base_byte,
        begin,
    ) = _HEADER.unpack_from(data)
    if magic != _SLICE_MAGIC or version not in (VERSION, KAFKA_VERSION) or compression:
        raise CorruptData(
            f"a pack slice has an unsupported format: {magic!r} version {version} compression "
            f"{compression}"
        )
    columns = _HEADER.size + _BATCH_BYTES * batches + 4 * lengths + producers
    if (
        begin != columns + -columns % 8
        or begin + length != len(data)
        or lengths not in (0, records)
        or version != _version_of(encoding)
    ):
        raise CorruptData("a pack slice's header does not match its length")
    found = Slice(
        data,
        _Header(
            encoding, batches, lengths, producers, records, length, base_record, base_byte, begin
        ),
    )
    numbers = records if found.undivided else lengths or batches
    if (
        sum(found.batch_records) != records
        or sum(found.batch_lengths) != length
        or numbers != records
    ):
        raise CorruptData("a pack slice's columns do not add up")
    return found


class _Header(msgspec.Struct, frozen=True, gc=False):
    encoding: int
    batches: int
    lengths: int
    producers: int
    records: int
    length: int
    base_record: int
    base_byte: int
    begin: int


class Slice:
    """A parsed slice. Columns are typed memoryviews of the bytes (on a little-endian machine):
    `len(view)` items, no copies.

    Records and bytes count from its start: `base_record` and `base_byte`, or -1.
    """

    def __init__(self, data: bytes, header: _Header) -> None:
        self.encoding = header.encoding
        self.undivided = header.encoding == Encoding.KAFKA
        self.records = header.records
        self.stored = len(data)
        self.base_record = header.base_record
        self.base_byte = header.base_byte
        view = memoryview(data)
        count, at = header.batches, _HEADER.size
        self.append_times_ms = _view(view[at : at + 8 * count], "q")
        self.record_times_ms = _view(view[at + 8 * count : at + 16 * count], "q")
        at += 16 * count
        self.batch_records, self.batch_lengths, self.batch_crcs, self.batch_flags = (
            _view(view[at + 4 * count * column : at + 4 * count * (column + 1)], "I")
            for column in range(4)
        )
        at += 16 * count
        self.record_lengths = (
            _view(view[at : at + 4 * header.lengths], "I") if header.lengths else None
        )
        self._producers = view[at + 4 * header.lengths : at + 4 * header.lengths + header.producers]
        self.payload = view[header.begin :]

    @property
    def batches(self) -> int:
        """Return the number of batches."""
        return len(self.batch_records)

    @cached_property
    def producers(self) -> dict[int, tuple[Any, ...]]:
        """Return (id, epoch, sequence, …) by batch number, for batches with a producer. Raises
        CorruptData."""
        if not self._producers:
            return {}
        try:
            ids, rows = msgspec.msgpack.decode(
                self._producers, type=tuple[list[str], list[list[int]]]
            )
            return {row[0]: (ids[row[1]], *row[2:]) for row in rows}
        except (msgspec.DecodeError, IndexError) as fault:
            raise CorruptData(f"the producers of a pack slice cannot be decoded: {fault}") from None

    @cached_property
    def positions(self) -> array[int]:
        """Return the start of each record in the payload, and the payload's end: `records + 1`
        numbers. Raises ValueError for undivided batches."""
        if self.undivided:
            raise ValueError(
                "the batches of this slice are undivided: the places of their records are not known"
            )
        return array("Q", accumulate(self.record_lengths or self.batch_lengths, initial=0))

    @cached_property
    def batch_begins(self) -> tuple[array[int], array[int]]:
        """Return the first record and first byte of each batch, and the ends: `batches + 1` numbers
        each."""
        return array("Q", accumulate(self.batch_records, initial=0)), array(
            "Q", accumulate(self.batch_lengths, initial=0)
        )

    @cached_property
    def _is_dated(self) -> bool:
        return self.record_times_ms.tobytes() != bytes(self.record_times_ms.nbytes)

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
        few large pieces cost readers less. The batches have no producers (see `producers`).
        """
        return SliceBatches(self, (record, byte), self._bounds(run_bytes))

    def _bounds(self, run_bytes: int) -> Sequence[int]:
        """Return the numbers of the batches at which runs begin, and the end."""
        if not run_bytes or self.undivided:
            return range(self.batches + 1)
        ends = self.batch_begins[1]
        bounds = [0]
        while bounds[-1] < self.batches:
            begin = bounds[-1]
            bounds.append(max(begin + 1, bisect_right(ends, ends[begin] + run_bytes) - 1))
        return bounds


def _fixed(columns: Sequence[Iterable[int]]) -> bytes:
    """Encode the numbers of each batch, in the order of `_FIXED`."""
    return b"".join(
        [
            _bytes(array(code, list(column)))
            for (_, code), column in zip(_FIXED, columns, strict=True)
        ]
    )


def _check_lengths(records: Sequence[int], lengths: Sequence[bytes]) -> None:
    for count, each in zip(records, lengths, strict=True):
        if len(each) != 4 * count and (each or count != 1):
            raise ValueError(f"a batch of {count} records has {len(each)} bytes of lengths")


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
