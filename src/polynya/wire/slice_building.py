"""Build slices: from hot batches, and by merging slices that follow one another."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import repeat
from struct import unpack
from typing import Any, cast

import google_crc32c
import msgspec
from msgspec import structs

from polynya.base.errors import CorruptData
from polynya.stream.parts import Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire.payloads import RAW
from polynya.wire.slice_format import (
    FIXED,
    GAP_VERSION,
    HEADER,
    RECORDS_MAX,
    SLICE_MAGIC,
    SPANS,
    any_of,
    bytes_of,
    dated,
    version_of,
)
from polynya.wire.slices import Slice, SliceMeta

_ZEROS = bytes(8)
_PIECE_BYTES = 16 << 10  # payloads of this mean size are written from where they are


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
        record_time_ms_max=max(map(dated, record_times, times)),
        flags=any_of(flags),
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
            for name, code in (FIXED + SPANS if has_gaps else FIXED)
        ),
        lengths=b"",
        producers=_encode_producers(_all_producers(slices)),
        append_time_ms_max=max(max(each.append_times_ms) for each in slices),
        record_time_ms_max=max((each.newest_ms() for each in slices if each.records), default=0),
        flags=any_of(flags for each in slices for flags in set(each.batch_flags)),
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
            FIXED + SPANS, (time_ms, 0, 0, 0, 0, 0, records, length), strict=True
        )
    ]
    lengths = None if encoding == Encoding.KAFKA else memoryview(array("I"))
    return Slice(encoding, (-1, -1), columns, lengths, memoryview(b""), dict)


class _Columns(msgspec.Struct):
    """The encoded parts of a slice except the payload."""

    batches: int
    records: int
    fixed: bytes  # `BATCH_BYTES` per batch
    lengths: bytes
    producers: bytes
    append_time_ms_max: int
    record_time_ms_max: int
    flags: int
    missing: tuple[int, int] | None = None  # numbers and positions; None: not of `GAP_VERSION`


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
    begin = HEADER.size + len(body)
    header = HEADER.pack(
        SLICE_MAGIC,
        version_of(encoding) if columns.missing is None else GAP_VERSION,
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


def _fixed(columns: Sequence[Iterable[int]]) -> bytes:
    """Encode the numbers of each batch, in the order of `FIXED`."""
    return b"".join(
        [
            bytes_of(array(code, list(column)))
            for (_, code), column in zip(FIXED, columns, strict=True)
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
    return bytes_of(numbers)
