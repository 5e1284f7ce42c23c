"""Planning a read: the hot payloads, cold slices and ancestors that make up a page. Copies nothing
and does no I/O.

A position inside a gap of record numbers means its end. No page spans the wide gap that a restored
history leaves (`restore_history`).

The same rules apply to hot batches and, through `cut`, to the batches of a decoded cold slice. If
the halves of a token disagree, the record number wins. Raw pages may begin and end inside a record,
at multiples of 64 KiB from its start. Pages of other encodings hold whole records: at least one,
even over the limit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from polynya.base.limits import RAW_STEP_BYTES
from polynya.stream.parts import UNDECIDED, Encoding
from polynya.stream.record_lengths import holding as holding_length
from polynya.stream.record_lengths import lengths_of, whole_in
from polynya.stream.replies import Code
from polynya.stream.state import record_gaps
from polynya.stream.state.aborted import aborted_of, overlapping
from polynya.stream.state.index import Index, holding, holding_byte
from polynya.stream.state.model import ColdSlice, DecodedBatches, HotBatch, Stream
from polynya.stream.state.tails import high_watermark, stable_of

START = -1  # special record numbers, as in the service's `Position`: the first kept record …
NOW = -2  # … the tail …
AT_BYTE = -3  # … and `byte` is a bare byte position

_RECORD = attrgetter("record")
_BYTE = attrgetter("byte")


class Want(msgspec.Struct, frozen=True, gc=False):
    """A requested page. `until`: read as if the stream's tail were this boundary, trimmed records
    included (an ancestor, up to the fork point). `uncommitted`: with the records of open
    transactions. `aborted`: those whose batches a slice may not mark (see `state.aborted`)."""

    record: int
    byte: int
    bytes_max: int
    whole_records: bool = False
    until: tuple[int, int] | None = None
    uncommitted: bool = False
    aborted: bytes = b""


class HotPart(msgspec.Struct, gc=False):
    """A part of a batch in memory, from (record, byte), with the batch's times and flags.
    `lengths`: of its records, as in a batch; only of whole ones. `records` end in it."""

    record: int
    byte: int
    payload: bytes | memoryview
    encoding: int
    lengths: bytes
    records: int
    time_ms: int
    record_time_ms_max: int
    flags: int


HotPiece = HotBatch | HotPart  # whole batches are not copied


class ColdPiece(msgspec.Struct, gc=False):
    """A slice to fetch and decode; `cut(batches, want)` then gives its pieces. (record, byte) in
    `want` may lie inside the slice."""

    slice: ColdSlice
    want: Want


class Inherited(msgspec.Struct, gc=False):
    """The inherited part of a fork: read the source, by uid, with `until=(to_record, to_byte)`.
    `record` may be AT_BYTE."""

    source_uid: int
    source_name: str
    record: int
    byte: int
    to_record: int
    to_byte: int


class ReadPlan(msgspec.Struct, gc=False):
    """A planned page: its pieces in order, up to (`record`, `byte`) if each is read to its end. A
    piece that comes back short ends the page there. When the first piece is cold or inherited, the
    begin is the requested one, and the first span read gives it exactly."""

    pieces: list[HotPiece | ColdPiece | Inherited]
    begin_record: int
    begin_byte: int
    record: int
    byte: int
    up_to_date: bool


class ReadRefused(msgspec.Struct, frozen=True, gc=False):
    """A deterministic refusal: a `Code`, and the relevant boundary (the tail, or the first kept
    record)."""

    code: int
    record: int
    byte: int


def plan_read(stream: Stream, cold: Index, want: Want) -> ReadPlan | ReadRefused:
    """Return the pieces of a page of at most `bytes_max` bytes (or one record). `cold` is the
    stream's index. Refusals: OFFSET_BEYOND_TAIL, TRIMMED."""
    tail = want.until or (high_watermark(stream) if want.uncommitted else stable_of(stream))
    if want.until is None and tail[0] < want.record <= stream.next_record:
        # an open transaction ends before it: what lies there is seen later
        return ReadPlan([], want.record, want.byte, want.record, want.byte, True)
    begin = _begin(stream, want, tail)
    if isinstance(begin, ReadRefused):
        return begin
    if want.until is not None and _is_gone(stream, cold, begin):
        return ReadRefused(Code.TRIMMED, stream.first_record, stream.first_byte)
    record, byte = begin = (
        begin if begin[0] == AT_BYTE else record_gaps.behind(stream, cold.data, begin, tail)
    )
    if begin == tail:
        return ReadPlan([], record, byte, record, byte, True)
    hot = stream.hot
    if hot and (byte >= hot[0].byte if record == AT_BYTE else record >= hot[0].record):
        return cut(hot, Want(record, byte, want.bytes_max, want.whole_records, tail))
    aborted = aborted_of(stream)
    want = Want(record, byte, want.bytes_max, want.whole_records, tail, aborted=aborted)
    return _plan_old(stream, cold, want)


def _is_gone(stream: Stream, cold: Index, at: tuple[int, int]) -> bool:
    """Report whether an ancestor no longer keeps the data at this position. No fork needs it any
    more, even if one did at planning time."""
    record, byte = at
    if stream.fork is not None and (
        byte < stream.fork.byte if record == AT_BYTE else record < stream.fork.record
    ):
        return False  # its own source has it
    first = cold[0] if cold else stream.hot[0] if stream.hot else None
    kept = (stream.next_record, stream.next_byte) if first is None else (first.record, first.byte)
    # skipped numbers have no bytes
    return byte < kept[1] and (record == AT_BYTE or record < kept[0])


def _begin(stream: Stream, want: Want, tail: tuple[int, int]) -> tuple[int, int] | ReadRefused:
    """Resolve the requested position; AT_BYTE stays, unless it is the tail."""
    record, byte = want.record, want.byte
    if record == AT_BYTE:
        if byte > tail[1]:
            return ReadRefused(Code.OFFSET_BEYOND_TAIL, *tail)
        if byte < stream.first_byte and want.until is None:
            return ReadRefused(Code.TRIMMED, stream.first_record, stream.first_byte)
        return tail if byte == tail[1] else (AT_BYTE, byte)
    if record == START:
        return min((stream.first_record, stream.first_byte), tail)
    if record == NOW or record == tail[0]:
        return tail
    if record > tail[0]:
        return ReadRefused(Code.OFFSET_BEYOND_TAIL, *tail)
    if record < stream.first_record and want.until is None:
        return ReadRefused(Code.TRIMMED, stream.first_record, stream.first_byte)
    return record, byte


def _plan_old(stream: Stream, index: Index, want: Want) -> ReadPlan:
    """Plan a page that begins in the inherited part or in cold slices; it may end in hot
    batches."""
    assert want.until is not None
    pieces: list[HotPiece | ColdPiece | Inherited] = []
    record, byte, until = want.record, want.byte, want.until
    left = want.bytes_max
    # A byte position may resolve to the start of its record, so the bytes before it in its piece
    # count too.
    moves = record == AT_BYTE and (want.whole_records or stream.encoding != Encoding.BYTES)
    fork = stream.fork
    if fork is not None and (byte < fork.byte if record == AT_BYTE else record < fork.record):
        to = min((fork.record, fork.byte), until)
        pieces.append(Inherited(fork.source_uid, fork.source_name, record, byte, *to))
        left -= to[1] if moves else max(0, to[1] - byte)
        record, byte = to
    found = cold_pieces(
        index,
        Want(record, byte, left, want.whole_records, until, aborted=want.aborted),
        moves=moves,
        empty=not pieces,
    )
    for piece in found:
        assert piece.want.until is not None
        (record, byte), cold = piece.want.until, piece.slice
        left = piece.want.bytes_max - _counted(cold, piece.want, moves=moves)
    pieces += found
    if left > 0 and (record, byte) != until and stream.hot and _touches(record, stream.hot[0]):
        record = stream.hot[0].record
        rest = cut(
            stream.hot, Want(record, byte, left, want.whole_records, until), empty=not pieces
        )
        pieces += rest.pieces
        record, byte = rest.record, rest.byte
    if byte == until[1] and not pieces:  # at most skipped numbers are left
        record = until[0]
    return ReadPlan(pieces, want.record, want.byte, record, byte, (record, byte) == until)


def cold_pieces(index: Index, want: Want, *, moves: bool, empty: bool = True) -> list[ColdPiece]:
    """Return the pieces of a page that begins at or before the end of these slices. `moves`: all
    bytes of a slice count, also those before the position. `empty`: the page has nothing yet."""
    assert want.until is not None
    pieces: list[ColdPiece] = []
    record, byte, left, until = want.record, want.byte, want.bytes_max, want.until
    for cold in _cold_from(index, record, byte):
        if (
            (left <= 0 and (pieces or not empty))
            or (record, byte) == until
            or (record != AT_BYTE and cold.record - record >= record_gaps.JUMP)
        ):
            break
        record = record if record == AT_BYTE else max(record, cold.record)
        to = min((cold.record + cold.records, cold.byte + cold.length), until)
        aborted = want.aborted if cold.flags & UNDECIDED else b""
        if aborted:
            aborted = overlapping(aborted, cold.record, cold.record + cold.records)
        part = Want(record, byte, left, want.whole_records, to, aborted=aborted)
        pieces.append(ColdPiece(cold, part))
        left -= _counted(cold, part, moves=moves)
        record, byte = to
    return pieces


def _counted(cold: ColdSlice, want: Want, *, moves: bool) -> int:
    """Return the bytes of a page that a piece takes."""
    assert want.until is not None
    return max(0, want.until[1] - (cold.byte if moves else max(want.byte, cold.byte)))


def _touches(record: int, batch: HotBatch) -> bool:
    """Report whether no record and no wide gap is before the batch."""
    return record != AT_BYTE and 0 <= batch.record - record < record_gaps.JUMP


def _cold_from(index: Index, record: int, byte: int) -> Iterable[ColdSlice]:
    """Return the cold slices from the one that holds the position."""
    if not index or not _reaches(index[-1], record, byte):
        return ()
    return index.starting(
        max(0, holding_byte(index.data, byte) if record == AT_BYTE else holding(index.data, record))
    )


def _reaches(cold: ColdSlice, record: int, byte: int) -> bool:
    return (
        byte < cold.byte + cold.length if record == AT_BYTE else record < cold.record + cold.records
    )


def cut(batches: Sequence[HotBatch], want: Want, *, empty: bool = True) -> ReadPlan:
    """Cut the page that begins inside these contiguous batches. `want.until` must be a record
    boundary, not beyond their end. `empty`: the page has nothing yet, so it gets at least one
    record (or raw step), even over the limit."""
    assert want.until is not None
    to_record, to_byte = want.until
    index, record, byte = (
        locate(batches, want.record, want.byte, whole_records=want.whole_records)
        if batches
        else (0, *want.until)
    )
    if index == len(batches):
        record, byte = want.until
    begin = (record, byte)
    last = batches[-1] if batches else None
    to_end = last is not None and (
        (last.record + last.records, last.byte + len(last.payload)) == want.until
    )
    pieces: list[HotPiece | ColdPiece | Inherited] = []
    left = want.bytes_max
    while byte < to_byte or record < to_record:
        batch = batches[index] if index < len(batches) else None
        # only missing numbers and bytes are left
        if batch is None or (batch.record >= to_record and batch.byte >= to_byte):
            if not pieces or to_record - record < record_gaps.JUMP:
                record, byte = to_record, to_byte
            break
        if byte < batch.byte or (byte == batch.byte and record != batch.record):
            if batch.record - record >= record_gaps.JUMP and pieces:
                break
            record, byte = batch.record, batch.byte
        end = record_gaps.run_end(
            batches,
            index,
            len(batches)
            if to_end and to_byte - byte <= left
            else max(index, _before_byte(batches, byte + min(left, to_byte - byte)) - 1),
        )
        # add whole batches at once: the fast path of long pages, and of those up to the tail
        if end > index and byte == batch.byte:
            pieces += (
                batches.whole(index, end)
                if isinstance(batches, DecodedBatches)
                else batches[index:end]
            )
            index, record, empty = end, batches[end - 1].record + batches[end - 1].records, False
            next_byte = batches[end].byte if end < len(batches) else to_byte
            left -= next_byte - byte
            byte = next_byte
            continue
        payload = batch.payload
        begin_in, end_in = byte - batch.byte, min(len(payload), to_byte - batch.byte)
        cut_in, next_record = end_in, to_record
        if end_in - begin_in > left:
            cut_in, next_record = _fit(
                batch, begin_in, Want(record, byte, left, want.whole_records), empty
            )
            if cut_in == begin_in:
                break
        part = (
            payload if cut_in - begin_in == len(payload) else memoryview(payload)[begin_in:cut_in]
        )
        begin_part = (record, byte)
        left -= cut_in - begin_in
        empty = False
        byte = batch.byte + cut_in
        if cut_in == len(payload):
            record = batch.record + batch.records
            index += 1
        else:
            record = next_record if byte != to_byte else to_record
        pieces.append(_part_of(batch, begin_part, part, record))
        if cut_in < len(payload) and byte < to_byte:
            break
    return ReadPlan(pieces, *begin, record, byte, record == to_record)


def _part_of(
    batch: HotBatch, begin: tuple[int, int], payload: bytes | memoryview, end: int
) -> HotPart:
    """Return the part of a batch from `begin`; `end` is the record after it."""
    record, byte = begin
    return HotPart(
        record,
        byte,
        payload,
        batch.encoding,
        _lengths_in(batch, record, end, len(payload)) if batch.lengths else b"",
        end - record,
        batch.time_ms,
        batch.record_time_ms_max,
        batch.flags,
    )


def _lengths_in(batch: HotBatch, record: int, end: int, size: int) -> bytes:
    """Return the lengths of the whole records in a part of a batch, which ends before the record
    `end`, packed; "" for one."""
    first, behind = record - batch.record, end - batch.record
    count = whole_in(lengths_of(batch.lengths)[first:behind], size)
    return b"" if count < 2 else batch.lengths[4 * first : 4 * (first + count)]


def locate(
    batches: Sequence[HotBatch], record: int, byte: int, *, whole_records: bool
) -> tuple[int, int, int]:
    """Return (index of the batch, record, byte) where a page from this token begins. For AT_BYTE,
    raw streams begin at the exact byte."""
    if record == AT_BYTE:
        index = max(0, _before_byte(batches, byte) - 1)
        batch = batches[index]
        if byte < batch.byte:
            return index, batch.record, batch.byte
        if byte >= batch.byte + len(batch.payload):
            return index + 1, batch.record + batch.records, byte
        found, begin_in = _record_at(batch, byte - batch.byte)
        if batch.encoding == Encoding.BYTES and not whole_records:
            return index, found, byte
        return index, found, batch.byte + begin_in
    index = max(0, _before_record(batches, record) - 1)
    batch = batches[index]
    record = max(record, batch.record)
    if record >= batch.record + batch.records:  # in a gap
        index += 1
        if index == len(batches):
            return index, record, batch.byte + len(batch.payload)
        batch = batches[index]
        record = batch.record
    begin_in, length = _span_of(batch, record)
    if begin_in == 0 and not batch.lengths:
        record = batch.record
    inner = byte - batch.byte - begin_in
    if (
        batch.encoding != Encoding.BYTES
        or whole_records
        or not 0 < inner < length
        or inner % RAW_STEP_BYTES
    ):
        inner = 0
    return index, record, batch.byte + begin_in + inner


def _before_record(batches: Sequence[HotBatch], record: int) -> int:
    """Return the count of batches that begin at or before a record."""
    if isinstance(batches, DecodedBatches):
        return batches.before_record(record)
    return bisect_right(batches, record, key=_RECORD)


def _before_byte(batches: Sequence[HotBatch], byte: int) -> int:
    """Return the count of batches that begin at or before a byte."""
    if isinstance(batches, DecodedBatches):
        return batches.before_byte(byte)
    return bisect_right(batches, byte, key=_BYTE)


def _span_of(batch: HotBatch, record: int) -> tuple[int, int]:
    """Return (begin, length) of a record inside its batch."""
    if not batch.lengths:
        return 0, len(batch.payload)
    lengths, number = lengths_of(batch.lengths), record - batch.record
    return sum(lengths[:number]), lengths[number]


def _record_at(batch: HotBatch, inner: int, known: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Return (record, its begin) for the record that holds the batch's byte `inner`. `known`: the
    number in the batch and the begin of a record that does not begin behind it."""
    if not batch.lengths:
        return batch.record, 0
    number, begin = holding_length(lengths_of(batch.lengths), inner, *known)
    return batch.record + number, begin


def _fit(batch: HotBatch, begin_in: int, want: Want, empty: bool) -> tuple[int, int]:
    """Return (end in this batch, record that is next) of a page with `want.bytes_max` bytes left,
    which are fewer than the rest of the batch. The page begins at its byte `begin_in`."""
    limit = begin_in + want.bytes_max
    record, record_begin = _record_at(batch, begin_in)
    known = (record - batch.record, record_begin)
    last, last_begin = _record_at(batch, limit, known)
    if last_begin > begin_in:
        return last_begin, last
    next_begin = record_begin + _length_of(batch, record)
    if batch.encoding == Encoding.BYTES and not want.whole_records:
        step = (limit - record_begin) // RAW_STEP_BYTES * RAW_STEP_BYTES + record_begin
        if step > begin_in:
            return step, record
        if empty:
            step = ((begin_in - record_begin) // RAW_STEP_BYTES + 1) * RAW_STEP_BYTES + record_begin
            if step < next_begin:
                return step, record
    return (next_begin, _record_at(batch, next_begin, known)[0]) if empty else (begin_in, record)


def _length_of(batch: HotBatch, record: int) -> int:
    """Return the length of a record of a batch."""
    return lengths_of(batch.lengths)[record - batch.record] if batch.lengths else len(batch.payload)
