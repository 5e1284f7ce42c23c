"""Turn ranges of packs into blocks of rows: one array per column, without a loop over records."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from polynya.base.errors import CorruptData
from polynya.lakehouse.decoding.rows import TIMESTAMP
from polynya.lakehouse.jobs.plan import Range, claimed
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.reading.kafka.undivided import BLOCK_BYTES, Columns, columns_of
from polynya.objectstore import NotFound
from polynya.stream.parts import HIDDEN, PRODUCER_ID, TRANSACTIONAL, Encoding
from polynya.wire.kafka.values import values_type
from polynya.wire.slices import Slice, parse_slice

HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
BASE_TYPES: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "incarnation": pa.int64(),
    "offset": pa.int64(),
    "byte_offset": pa.int64(),
    "batch": pa.int64(),
    "timestamp": TIMESTAMP,
    "append_time": TIMESTAMP,
    "key": pa.binary(),
    "headers": HEADERS,
    "value": pa.binary(),
}
_GAP_BYTES_MAX = 256 << 10  # largest gap between two slices that one request fetches
_REQUEST_BYTES = 8 << 20
REQUESTS_AHEAD = 16  # requests in flight while a task decodes; hides an object store's latency …
_AHEAD_BYTES = 32 << 20  # … with about this many bytes, which the task holds beside its block

Positions = npt.NDArray[np.int64]


class Kind(IntEnum):
    """The content of rows. Where it may be JSON, a comma follows each record in `data`."""

    BYTES = 0
    JSON = 1  # a record that is no JSON object is a dead letter
    MAYBE_JSON = 2  # Kafka's streams: values that are no JSON objects are bytes


class Rows(msgspec.Struct):
    """Claimed records of one slice."""

    part: Range
    kind: Kind
    offsets: Positions  # record numbers
    byte_offsets: Positions
    batches: Positions  # first record of the append
    timestamps_ms: Positions
    append_times_ms: Positions
    data: npt.NDArray[np.uint8]  # payload of these records
    ends: Positions  # end positions of the records in `data`
    keys: pa.Array
    headers: pa.Array
    absent: npt.NDArray[np.bool_]  # records without a value


class Block(msgspec.Struct):
    """Rows of one kind and shape, to be decoded together."""

    parts: list[Rows]
    shape: int
    kind: Kind


class Unreadable(CorruptData):
    """A range whose records cannot be read, by its own fault."""

    def __init__(self, part: Range, reason: str) -> None:
        super().__init__(f"{range_text(part)} cannot be read: {reason}")
        self.part = part
        self.reason = reason


def range_text(part: Range) -> str:
    """Return a range in words: its stream, records and position."""
    begin = part.record + part.skip
    last = begin + claimed(part) - 1
    return (
        f"records {begin} to {last} of stream '{part.stream}', in {part.pack} at offset "
        f"{part.offset},"
    )


def read_rows(part: Range, stored: bytes | Exception) -> Iterator[Rows]:
    """Yield the claimed rows of a slice's stored bytes. Raises Unreadable, also for a failed
    fetch."""
    try:
        if isinstance(stored, NotFound):
            raise Unreadable(part, "the object no longer exists")
        if isinstance(stored, Exception):
            raise Unreadable(part, str(stored))
        yield from _rows(part, stored)
    except Unreadable:
        raise
    except CorruptData as fault:
        raise Unreadable(part, str(fault)) from fault


def _rows(part: Range, stored: bytes) -> Iterator[Rows]:
    found = parse_slice(stored, part.crc)
    if part.first_batch or part.batches not in (0, found.batches):
        found = found.part(part.first_batch, part.batches)
    # The plan has the stream's encoding. Batches of Kafka lie beside those of HTTP, in slices of
    # their own.
    fits = found.encoding == part.encoding or Encoding.KAFKA in (found.encoding, part.encoding)
    if found.records != part.records or len(found.payload) != part.length or not fits:
        raise CorruptData(
            f"the slice of '{part.stream}' at record {part.record} in {part.pack} does not match "
            "the plan"
        )
    begin = part.skip
    end = part.skip + claimed(part)
    if not found.undivided:
        rows = _divided(part, found, begin, end)
        if len(rows.ends):
            yield rows
        return
    kind = _kind_of(part)
    hidden = _hidden(part, found)
    for columns in columns_of(found, begin, end, separated=kind != Kind.BYTES, hidden=hidden):
        yield _undivided(part, kind, columns)


def _hidden(part: Range, found: Slice) -> Container[int]:
    """Return the numbers of the batches that take record numbers but have no rows: those of
    control, and those of aborted transactions."""
    if not found.has_flags:
        return ()
    spans: dict[bytes, list[tuple[int, int]]] = {}
    for producer, first, marker in part.aborted:
        spans.setdefault(producer.to_bytes(8, signed=True), []).append((first, marker))
    records, payload_begins = found.batch_begins[0], found.stored_begins[1]
    hidden = set()
    for at, flags in enumerate(found.batch_flags):
        own = (
            spans.get(bytes(found.payload[payload_begins[at] :][PRODUCER_ID]), ()) if spans else ()
        )
        record = part.record + records[at]
        if flags & HIDDEN or (
            flags & TRANSACTIONAL and any(first <= record < marker for first, marker in own)
        ):
            hidden.add(at)
    return hidden


def _kind_of(part: Range) -> Kind:
    """Return what the values of a stream's records are."""
    if part.encoding != Encoding.KAFKA:
        return Kind(part.encoding)
    return (
        Kind.JSON
        if values_type(part.content_type).startswith("application/json")
        else Kind.MAYBE_JSON
    )


def _undivided(part: Range, kind: Kind, columns: Columns) -> Rows:
    return Rows(
        part,
        kind,
        part.record + np.array(columns.numbers, np.int64),
        part.byte + np.array(columns.bytes, np.int64),
        part.record + np.array(columns.batches, np.int64),
        np.array(columns.times_ms, np.int64),
        np.array(columns.append_times_ms, np.int64),
        np.frombuffer(columns.data, np.uint8),
        np.array(columns.ends, np.int64),
        pa.array(columns.keys, pa.binary()),
        pa.array(columns.headers, HEADERS),
        np.frombuffer(columns.absent, np.bool_),
    )


def _divided(part: Range, found: Slice, begin: int, end: int) -> Rows:
    per_batch = np.frombuffer(found.batch_records, np.uint32).astype(np.int64)
    lengths = found.batch_lengths if found.record_lengths is None else found.record_lengths
    ends = np.cumsum(np.frombuffer(lengths, np.uint32), dtype=np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    appended = np.frombuffer(found.append_times_ms, np.int64)
    own = np.frombuffer(found.record_times_ms, np.int64)
    numbers, positions = (np.array(each[:-1], np.int64) for each in found.batch_begins)
    records, payload_begins = (np.array(each[:-1], np.int64) for each in found.stored_begins)
    # numbers and positions of the records, from those of their batches
    offsets = np.arange(found.records) + np.repeat(numbers - records, per_batch)
    begin, end = map(int, np.searchsorted(offsets, (begin, end)))
    rows = Rows(
        part,
        Kind(found.encoding),
        part.record + offsets[begin:end],
        part.byte + (starts + np.repeat(positions - payload_begins, per_batch))[begin:end],
        part.record + np.repeat(numbers, per_batch)[begin:end],
        np.repeat(np.where(own == 0, appended, own), per_batch)[begin:end],
        np.repeat(appended, per_batch)[begin:end],
        np.frombuffer(found.payload, np.uint8),
        ends[begin:end],
        pa.nulls(end - begin, pa.binary()),
        pa.nulls(end - begin, HEADERS),
        np.zeros(end - begin, np.bool_),
    )
    start = int(ends[begin - 1]) if begin else 0
    rows.data = rows.data[start : int(ends[end - 1]) if end else 0]
    rows.ends = rows.ends - start
    hidden = np.frombuffer(found.batch_flags, np.uint32) & HIDDEN
    return _without(rows, np.repeat(hidden != 0, per_batch)[begin:end]) if hidden.any() else rows


def read_blocks(
    blobs: Blobs, ranges: Sequence[Range], shapes: Sequence[int], failed: list[Unreadable]
) -> Iterator[Block]:
    """Yield the rows of a task's ranges in order, in blocks of about `BLOCK_BYTES`.

    Ranges that cannot be read are left out and added to `failed`.
    """
    gathered: list[Rows] = []
    size, kind = 0, (0, Kind.BYTES)
    for (part, stored), shape in zip(fetch(blobs, ranges), shapes, strict=True):
        try:
            for rows in read_rows(part, stored):
                own = (shape, rows.kind)
                if gathered and (own != kind or size + len(rows.data) > BLOCK_BYTES):
                    yield Block(gathered, *kind)
                    gathered, size = [], 0
                kind = own
                gathered.append(rows)
                size += len(rows.data)
        except Unreadable as fault:
            failed.append(fault)
    if gathered:
        yield Block(gathered, *kind)


def joined(block: Block) -> tuple[npt.NDArray[np.uint8], Positions]:
    """Return the payload of a block in one writable array, and the ends of its records."""
    data = np.concatenate([rows.data for rows in block.parts])
    sizes = np.cumsum([0] + [len(rows.data) for rows in block.parts])
    return data, np.concatenate([rows.ends + sizes[at] for at, rows in enumerate(block.parts)])


def base_columns(block: Block, data: npt.NDArray[np.uint8], ends: Positions) -> dict[str, pa.Array]:
    """Return the built-in columns of a block by name."""
    parts = block.parts
    counts = [len(rows.ends) for rows in parts]
    numbers = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
    return {
        "stream": pa.DictionaryArray.from_arrays(
            pa.array(numbers), pa.array([rows.part.stream for rows in parts])
        ).cast(pa.string()),
        "incarnation": pa.array(
            np.repeat(np.array([rows.part.uid for rows in parts], np.int64), counts)
        ),
        "offset": pa.array(np.concatenate([rows.offsets for rows in parts])),
        "byte_offset": pa.array(np.concatenate([rows.byte_offsets for rows in parts])),
        "batch": pa.array(np.concatenate([rows.batches for rows in parts])),
        "timestamp": _times(np.concatenate([rows.timestamps_ms for rows in parts])),
        "append_time": _times(np.concatenate([rows.append_times_ms for rows in parts])),
        "key": pa.concat_arrays([rows.keys for rows in parts]),
        "headers": pa.concat_arrays([rows.headers for rows in parts]),
        "value": _values(data, ends, absent(block), separated=block.kind != Kind.BYTES),
    }


def absent(block: Block) -> npt.NDArray[np.bool_]:
    """Mark the records of a block that have no value."""
    return np.concatenate([rows.absent for rows in block.parts])


def _values(
    data: npt.NDArray[np.uint8], ends: Positions, missing: npt.NDArray[np.bool_], *, separated: bool
) -> pa.Array:
    offsets = np.concatenate((np.zeros(1, np.int64), ends)).astype(np.int32)
    whole = pa.Array.from_buffers(
        pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    whole = pc.binary_slice(whole, 0, -1) if separated else whole
    return (
        pc.if_else(pa.array(missing), pa.scalar(None, pa.binary()), whole)
        if missing.any()
        else whole
    )


def _times(milliseconds: Positions) -> pa.Array:
    return pa.array(milliseconds * 1000).cast(TIMESTAMP)


def _without(rows: Rows, dropped: npt.NDArray[np.bool_]) -> Rows:
    """Return the rows without those of batches that have none."""
    lengths = np.diff(rows.ends, prepend=0)
    keep = ~dropped
    kept = pa.array(keep)
    return Rows(
        rows.part,
        rows.kind,
        rows.offsets[keep],
        rows.byte_offsets[keep],
        rows.batches[keep],
        rows.timestamps_ms[keep],
        rows.append_times_ms[keep],
        rows.data[np.repeat(keep, lengths)],
        np.cumsum(lengths[keep]),
        rows.keys.filter(kept),
        rows.headers.filter(kept),
        rows.absent[keep],
    )


def fetched(blobs: Blobs, part: Range) -> bytes | Exception:
    """Return the stored bytes of a range, or why there are none. Raises StoreUnavailable."""
    return _fetch_run(blobs, [part])[0][1]


def fetch(blobs: Blobs, ranges: Sequence[Range]) -> Iterator[tuple[Range, bytes | Exception]]:
    """Yield each range with its stored bytes, or with the reason for none. One request fetches
    neighbours in a pack, and the next requests run ahead."""
    ahead: deque[tuple[int, Future[list[tuple[Range, bytes | Exception]]]]] = deque()
    held = 0
    with ThreadPoolExecutor(REQUESTS_AHEAD) as readers:
        try:
            for run in _runs(ranges):
                size = run[-1].offset + run[-1].stored - run[0].offset
                while ahead and (len(ahead) >= REQUESTS_AHEAD or held + size > _AHEAD_BYTES):
                    held -= ahead[0][0]
                    yield from ahead.popleft()[1].result()
                ahead.append((size, readers.submit(_fetch_run, blobs, run)))
                held += size
            while ahead:
                yield from ahead.popleft()[1].result()
        finally:
            for _, unread in ahead:
                unread.cancel()


def _fetch_run(blobs: Blobs, run: Sequence[Range]) -> list[tuple[Range, bytes | Exception]]:
    first, last = run[0], run[-1]
    try:
        data = blobs.get_range(first.pack, first.offset, last.offset + last.stored - first.offset)
    except (NotFound, ValueError) as fault:
        return [(first, fault)] if len(run) == 1 else [(part, fetched(blobs, part)) for part in run]
    if len(run) == 1:
        return [(first, data)]
    view = memoryview(data)
    return [
        (part, bytes(view[part.offset - first.offset : part.offset - first.offset + part.stored]))
        for part in run
    ]


def _runs(ranges: Sequence[Range]) -> Iterator[Sequence[Range]]:
    """Yield runs of ranges that are neighbours in a pack, up to the size of a request."""
    begin = 0
    for at in range(1, len(ranges) + 1):
        joins = at < len(ranges) and _adjacent(ranges[at - 1], ranges[at])
        if (
            not joins
            or ranges[at].offset + ranges[at].stored - ranges[begin].offset > _REQUEST_BYTES
        ):
            yield ranges[begin:at]
            begin = at


def _adjacent(one: Range, next_one: Range) -> bool:
    """Report whether one request fetches both: neighbours in a pack, or parts of one slice."""
    gap = next_one.offset - one.offset - one.stored
    follows = next_one.offset == one.offset or gap >= 0
    return one.pack == next_one.pack and follows and gap <= _GAP_BYTES_MAX
