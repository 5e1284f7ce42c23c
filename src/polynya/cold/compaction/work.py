"""The two steps of a pass on slices, without I/O: map the newest record of each key, and leave out
the others."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import google_crc32c
import msgspec

from polynya.base.errors import CorruptData
from polynya.cold.compaction.key_map import KeyMap
from polynya.stream.parts import CONTROL, HIDDEN, UNDECIDED, ColdSlice
from polynya.wire.kafka.records import UnreadableBatch
from polynya.wire.kafka.sparse_batches import Row, is_abort_marker, keyed_batch, without
from polynya.wire.pack import pressed
from polynya.wire.slice_batches import decided_flags
from polynya.wire.slice_building import gap, merge_slices
from polynya.wire.slice_format import RECORDS_MAX
from polynya.wire.slices import Slice, SliceMeta, parse_slice

_COLUMNS = "qqIIIIII"  # the types of the columns of a slice with gaps, in order


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """An entry of the index, the stored bytes of its slice, and the rows of aborted
    transactions."""

    entry: ColdSlice
    data: bytes
    aborted: bytes = b""


class MapBegin(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Begin a pass with an empty map."""

    slots: int
    seed: bytes


class MapPiece(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Map the keys of an entry."""

    piece: Piece


class RewriteBegin(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The rules of the second step: tombstones and markers of aborts before these records go, and
    the batch that ends at `last` stays. A slice has at most `bytes_max`."""

    tombstones: int
    markers: int
    last: int
    bytes_max: int
    zstd_level: int


class RewritePiece(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Leave the older records of an entry out. None: the slices before it end here."""

    piece: Piece | None
    closes: bool = False  # the entry ends a slice: a bound is behind it


class Rewritten(msgspec.Struct, array_like=True, frozen=True):
    """One slice for the entries from a record to another. Without parts nothing in them changed."""

    record: int
    end: int
    entries: int
    read_bytes: int
    meta: SliceMeta | None = None
    parts: list[bytes] = []
    dropped_records: int = 0
    dropped_bytes: int = 0
    tombstones: int = 0  # that stay for now
    damage: str = ""  # why a batch could not be decoded: its entry is alone here, as it was


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """The result of a step. Of a `MapPiece`: whether the map is full, and why some batches could
    not be decoded. Of a `RewritePiece`: the slices that are complete."""

    is_full: bool = False
    damage: str = ""
    rewritten: list[Rewritten] = []


Request = MapBegin | MapPiece | RewriteBegin | RewritePiece
DONE = Answer()


class CompactionWork:
    """The pass of one stream, as far as it is computation."""

    def __init__(self) -> None:
        self._map = KeyMap(1, b"")
        self._rules = RewriteBegin(0, 0, 0, 0, 0)
        self._open = _OpenSlice()
        self._tombstones = 0  # of the entry at hand that stay for now

    def run(self, request: Request) -> Answer:
        """Do one step."""
        if isinstance(request, MapBegin):
            self._map = KeyMap(request.slots, request.seed)
        elif isinstance(request, RewriteBegin):
            self._rules, self._open = request, _OpenSlice()
        elif isinstance(request, MapPiece):
            return self._put(request.piece)
        else:
            return Answer(rewritten=self._rewrite(request))
        return DONE

    # --- mapping ----------------------------------------------------------------------------------

    def _put(self, piece: Piece) -> Answer:
        try:
            found = _parsed(piece)
        except CorruptData as fault:
            return Answer(False, str(fault))
        damage = ""
        if found.undivided:
            for number in found.kept:
                if found.batch_flags[number] & HIDDEN:
                    continue
                try:
                    if not self._put_batch(_payload(found, number), _first(piece, found, number)):
                        return Answer(True, damage)
                except UnreadableBatch as fault:
                    damage = damage or _named(piece, found, number, fault)
        return Answer(False, damage)

    def _put_batch(self, batch: memoryview, first: int) -> bool:
        put = self._map.put
        return all(row[2] is None or put(row[2], first + row[0]) for row in keyed_batch(batch).rows)

    # --- rewriting --------------------------------------------------------------------------------

    def _rewrite(self, request: RewritePiece) -> list[Rewritten]:
        piece, closed = request.piece, list[Rewritten]()
        if piece is None:
            return self._close()
        try:
            made = self._without_older(piece)
        except (CorruptData, UnreadableBatch) as fault:
            damaged = Rewritten(
                piece.entry.record,
                piece.entry.record + piece.entry.records,
                1,
                piece.entry.stored,
                damage=str(fault),
            )
            return [*self._close(), damaged]
        if not self._open.has_room(piece, made, self._rules.bytes_max):
            closed = self._close()
        self._open.add(piece, made)
        return [*closed, *(self._close() if request.closes else [])]

    def _close(self) -> list[Rewritten]:
        found, self._open = self._open, _OpenSlice()
        return [found.finished(self._rules.zstd_level)] if found.pieces else []

    def _without_older(self, piece: Piece) -> _Shortened:
        """Return what stays of an entry. Raises CorruptData, UnreadableBatch."""
        found = _parsed(piece)
        if not found.undivided:
            return _Shortened([found], False, 0)
        made = _Batches(found)
        before, self._tombstones = found.records, 0
        for number in range(found.batches):
            if not found.batch_records[number]:
                made.skip(number)
                continue
            first = _first(piece, found, number)
            payload = _payload(found, number)
            try:
                kept = self._shortened(payload, found.batch_flags[number], first, made.span(number))
            except UnreadableBatch as fault:
                raise UnreadableBatch(_named(piece, found, number, fault)) from None
            made.add(number, payload if kept is None else kept, is_same=kept is None)
        if not made.is_changed:
            return _Shortened([found], False, 0, self._tombstones)
        shortened = made.slice()
        return _Shortened([shortened], True, before - shortened.records, self._tombstones)

    def _shortened(self, batch: memoryview, flags: int, first: int, span: int) -> bytes | None:
        """Return what stays of a batch, b"" for nothing; None: all of it."""
        rules = self._rules
        is_last = first + span >= rules.last
        if flags & HIDDEN:
            if is_last or (flags & CONTROL and first >= rules.markers and is_abort_marker(batch)):
                return None
            return b""
        newest, tombstones = self._map.newest, rules.tombstones
        found = keyed_batch(batch)
        last_delta = found.rows[-1][0] if is_last and found.rows else -1

        def is_kept(row: Row) -> bool:
            delta, _, key, is_empty, _, _ = row
            if key is None or delta == last_delta:
                return True
            record = first + delta
            if newest(key) > record:
                return False
            if is_empty and record >= tombstones:
                self._tombstones += 1
            return not is_empty or record >= tombstones

        kept = without(batch, found, is_kept)
        if kept is None:
            return b""
        return None if len(kept) == len(batch) and kept == batch else kept


class _Shortened(msgspec.Struct):
    """The batches that stay of an entry."""

    slices: list[Slice]
    is_changed: bool
    dropped: int  # records
    tombstones: int = 0

    @property
    def size(self) -> int:
        return sum(each.payload.nbytes for each in self.slices)


class _OpenSlice:
    """The slice that entries are gathered in."""

    def __init__(self) -> None:
        self.pieces: list[ColdSlice] = []
        self._made: list[_Shortened] = []
        self._slices: list[Slice] = []

    def has_room(self, piece: Piece, made: _Shortened, bytes_max: int) -> bool:
        """Report whether an entry may be in the slice."""
        if not self.pieces:
            return True
        first, last, entry = self.pieces[0], self.pieces[-1], piece.entry
        return (
            sum(each.size for each in self._made) + made.size <= bytes_max
            and made.slices[0].encoding == self._slices[0].encoding
            and entry.record + entry.records - first.record <= RECORDS_MAX
            and entry.byte + entry.length - first.byte <= RECORDS_MAX
            and (last.record + last.records, last.byte + last.length) == (entry.record, entry.byte)
        )

    def add(self, piece: Piece, made: _Shortened) -> None:
        """Add an entry, and a gap for what is missing behind it."""
        entry = piece.entry
        self.pieces.append(entry)
        self._made.append(made)
        self._slices += made.slices
        records, length = made.slices[-1].span
        missing = entry.records - records, entry.length - length
        if any(missing):
            last = made.slices[-1]
            self._slices.append(gap(last.encoding, last.append_times_ms[-1], *missing))

    def finished(self, zstd_level: int) -> Rewritten:
        """Return the slice of all entries, without parts if nothing is left out."""
        first, last = self.pieces[0], self.pieces[-1]
        read = sum(each.length - each.missing_bytes for each in self.pieces)
        end = last.record + last.records
        tombstones = sum(each.tombstones for each in self._made)
        if not any(each.is_changed for each in self._made):
            return Rewritten(first.record, end, len(self.pieces), read, tombstones=tombstones)
        meta, parts = pressed(merge_slices(first.record, first.byte, self._slices), zstd_level)
        return Rewritten(
            first.record,
            end,
            len(self.pieces),
            read,
            meta,
            [bytes(part) for part in parts],
            sum(each.dropped for each in self._made),
            read - sum(each.size for each in self._made),
            tombstones,
        )


class _Batches:
    """The batches that stay of a slice, and gaps for the others."""

    def __init__(self, source: Slice) -> None:
        self.is_changed = False
        self._source = source
        self._rows: list[list[int]] = []
        self._payloads: list[bytes | memoryview] = []
        self._producers: dict[int, int] = {}  # number of a batch -> its number in the source

    def span(self, number: int) -> int:
        """Return the numbers that a batch of the source spans."""
        return self._source.record_spans[number]

    def skip(self, number: int) -> None:
        """Leave a batch out, or a gap as it is. Neighbouring gaps become one."""
        source = self._source
        spans = [source.record_spans[number], source.byte_spans[number]]
        if self._rows and not self._rows[-1][2]:
            last = self._rows[-1]
            if last[6] + spans[0] <= RECORDS_MAX and last[7] + spans[1] <= RECORDS_MAX:
                last[0] = source.append_times_ms[number]
                last[6] += spans[0]
                last[7] += spans[1]
                return
        self._rows.append([source.append_times_ms[number], 0, 0, 0, 0, 0, *spans])

    def add(self, number: int, payload: bytes | memoryview, *, is_same: bool) -> None:
        """Add what stays of a batch."""
        self.is_changed = self.is_changed or not is_same
        if not len(payload):
            self.skip(number)
            return
        source = self._source
        records, crc = source.batch_records[number], source.batch_crcs[number]
        time_ms = source.record_times_ms[number]
        if not is_same:
            records, crc = int.from_bytes(payload[57:61]), google_crc32c.value(bytes(payload))
            time_ms = int.from_bytes(payload[35:43], signed=True) if time_ms else 0
        self._producers[len(self._rows)] = number
        self._payloads.append(payload)
        self._rows.append(
            [
                source.append_times_ms[number],
                max(0, time_ms),
                records,
                len(payload),
                crc,
                source.batch_flags[number],
                source.record_spans[number],
                source.byte_spans[number],
            ]
        )

    def slice(self) -> Slice:
        """Return the slice of what was added. Raises CorruptData if it does not fit in the
        positions of its source."""
        _fit(self._rows)
        columns = [
            memoryview(array(code, [row[at] for row in self._rows]))
            for at, code in enumerate(_COLUMNS)
        ]
        source, numbers = self._source, self._producers
        return Slice(
            source.encoding,
            (-1, -1),
            columns,
            None,
            memoryview(b"".join(self._payloads)),
            lambda: {
                number: source.producers[old]
                for number, old in numbers.items()
                if old in source.producers
            },
        )


def _fit(rows: Sequence[list[int]]) -> None:
    """Give each batch at least the positions of its bytes. Compression may make a batch with fewer
    records larger by some bytes: it gets those of its neighbours that have some to spare. Raises
    CorruptData if the batches have more bytes than positions."""
    missing = 0
    for order in (rows, rows[::-1]):
        for row in order:
            spare = row[7] - row[3]
            given = min(spare, missing)  # below 0: the batch needs more itself
            row[7] -= given
            missing -= given
    if missing:
        raise CorruptData("what stays of a slice is larger than the slice")


def _parsed(piece: Piece) -> Slice:
    """Return the batches of an entry with their flags decided. Raises CorruptData."""
    found = parse_slice(piece.data, piece.entry.crc).run(piece.entry)
    if piece.entry.flags & UNDECIDED:
        found.batch_flags = decided_flags(found, piece.entry.record, piece.aborted)
    return found


def _payload(found: Slice, number: int) -> memoryview:
    begins = found.stored_begins[1]
    return found.payload[begins[number] : begins[number + 1]]


def _first(piece: Piece, found: Slice, number: int) -> int:
    return piece.entry.record + found.batch_begins[0][number]


def _named(piece: Piece, found: Slice, number: int, fault: Exception) -> str:
    return f"the batch at record {_first(piece, found, number)} cannot be decoded: {fault}"
