"""Recovery of a group's state after the loss of all nodes, from its last copy and the packs written
after it.

A pack names, for each slice, the stream's uid and the slice's position. A stream's first slice also
has its path and content type. Committed records are permanent. So a slice that begins where a
stream's index ends continues it, whether or not it was published. A slice with a path was written
when no earlier record was in a pack any more. If it begins further on, or inside an unpublished
slice, the records before it were trimmed after the copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from polynya.base.levels import COMPRESSION_LEVEL, ENTRY_LEVEL
from polynya.stream.features.appends.commands import KAFKA_CONTENT_TYPE
from polynya.stream.features.appends.producers import cut_receipts
from polynya.stream.features.appends.rules import media_type
from polynya.stream.features.retention.trimming import past_of, tidy
from polynya.stream.parts import ColdSlice, Encoding
from polynya.stream.snapshots.companions import drop_bodiless, orphans
from polynya.stream.snapshots.encode import Image
from polynya.stream.snapshots.restore_history import StreamLoss
from polynya.stream.state import index
from polynya.stream.state.entries import as_v1
from polynya.stream.state.model import PackReference, Stream, StreamExtras
from polynya.stream.state.pack_tables import is_page_key
from polynya.stream.state.record_gaps import JUMP, Offset

COUNTER = (1 << 48) - 1  # the counter in a uid; the upper bits are its birth group


class UnnamedSlice(msgspec.Struct, frozen=True):
    """A slice that no copy names. Only the first slice of a stream has a `path`."""

    uid: int
    slice: ColdSlice
    owner_group: int
    encoding: int
    append_ms: int  # largest append time
    path: str = ""
    content_type: str = ""


def salvage(image: Image, pieces: Mapping[int, Sequence[UnnamedSlice]]) -> list[StreamLoss]:
    """Change the state to match the object store; `pieces` are by uid. Returns the known losses."""
    # only the log knows the position of a slice that a diskless writer stored
    placed = {
        uid: [each for each in some if each.slice.record >= 0] for uid, some in pieces.items()
    }
    pieces = {uid: some for uid, some in placed.items() if some}
    notes = [
        note
        for stream in image.streams
        for note in _reach(image, stream, pieces.get(stream.uid, ()))
    ]
    known = image.uid_counter
    for uid in sorted(pieces):
        if uid & COUNTER > known:  # a smaller uid was deleted before the copy was taken
            notes += _revive(image, uid, pieces[uid])
            image.uid_counter = max(image.uid_counter, uid & COUNTER)
    for stream in orphans(image):
        _drop(image, stream)
    return notes + drop_bodiless(image)


def whole_again(image: Image, stream: Stream, view: Stream) -> None:
    """Extend an evicted stream's state with the slices found for its stub, which may have returned
    and been trimmed or merged since."""
    first = max((view.first_record, view.first_byte), (stream.first_record, stream.first_byte))
    is_merged = (
        view.cold is not None
        and stream.cold is not None
        and index.begin_of(view.cold, 0) < index.end_of(stream.cold, -1)
    )
    if is_merged or view.first_record > stream.first_record:
        _trim(image, stream, first)
    stream.cold = index.joined(stream.cold, view.cold) or None
    stream.activity_ms = view.activity_ms


def _reach(image: Image, stream: Stream, pieces: Sequence[UnnamedSlice]) -> list[StreamLoss]:
    """Extend the stream as far as there are slices."""
    known, ends = stream.next_record, _ends(stream)
    if stream.hot:
        stream.next_record, stream.next_byte = stream.hot[0].record, stream.hot[0].byte
        stream.hot = None
    _continue(image, stream, pieces, ends)
    end = stream.next_record
    if end >= known:
        return []
    if stream.first_record > end:
        stream.first_record, stream.first_byte = end, stream.next_byte
    stream.producers = cut_receipts(stream.producers, end)
    for link in (stream.links or {}).values():
        if link.record > end:
            link.record, link.byte = end, stream.next_byte
    return [
        StreamLoss(
            stream.name, stream.uid, end, known, "the records existed only on the lost disks"
        )
    ]


def _ends(stream: Stream) -> list[int]:
    """Return where records of an earlier history end. No slice of the present history continues
    there, but one of a lost history may."""
    hot = stream.hot or []
    following = [batch.record for batch in hot[1:]] + [stream.next_record]
    ends = [batch.record + batch.records for batch in hot]
    return [end for end, record in zip(ends, following, strict=False) if record - end >= JUMP]


def _continue(
    image: Image, stream: Stream, pieces: Sequence[UnnamedSlice], ends: Sequence[int]
) -> None:
    at: Offset = (stream.next_record, stream.next_byte)
    chains = _Chains(pieces, ends)
    while found := chains.following(at) or chains.instead(at) or chains.behind_a_trim(at):
        cold = found.slice
        if not _touches(cold, at):
            _drop_from(image, stream, cold.record)
            _trim(
                image,
                stream,
                max((cold.record, cold.byte), (stream.first_record, stream.first_byte)),
            )
        if cold.is_compressed:
            image.level = max(image.level, COMPRESSION_LEVEL)
        if image.level < ENTRY_LEVEL:
            cold = as_v1(cold)
        largest_ms = max(found.append_ms, index.time_ms_max(stream.cold, -1) if stream.cold else 0)
        entry = index.packed(cold, _hold(image, cold.pack, found.owner_group), largest_ms)
        stream.cold = index.appended(stream.cold, entry)
        stream.activity_ms = max(stream.activity_ms, found.append_ms)
        at = _end(found)
    stream.next_record, stream.next_byte = at


def _touches(cold: ColdSlice, at: Offset) -> bool:
    """Report whether nothing lies between the position and the slice but missing numbers."""
    return cold.byte == at[1] and cold.record >= at[0]


class _Chains:
    """The slices of a stream, and how far those that follow each other reach from a position."""

    def __init__(self, pieces: Sequence[UnnamedSlice], ends: Sequence[int]) -> None:
        self._ends = ends
        self._first = [piece for piece in pieces if piece.path]
        self._at_byte: dict[int, list[UnnamedSlice]] = {}
        for piece in pieces:
            self._at_byte.setdefault(piece.slice.byte, []).append(piece)
        self._reach: dict[Offset, int] = {}  # the record where the chain from there ends
        for position in sorted({_end(piece) for piece in pieces}, reverse=True):
            found = self.following(position)
            self._reach[position] = position[0] if found is None else self._reach[_end(found)]

    def following(self, at: Offset) -> UnnamedSlice | None:
        """Return the slice that begins at this position, or after a gap there. Of several, the
        later slices continue only one: the others were uploaded and never published."""
        bound = min((end for end in self._ends if end > at[0]), default=None)
        fitting = [
            piece
            for piece in self._at_byte.get(at[1], ())
            if _touches(piece.slice, at)
            and not (at[0] in self._ends and piece.slice.record == at[0])
            and (bound is None or piece.slice.record >= bound or _end(piece)[0] <= bound)
        ]
        return min(
            fitting,
            key=self._order,
            default=None,
        )

    def instead(self, at: Offset) -> UnnamedSlice | None:
        """Return a slice with a path that begins before the position, and that reaches further with
        the slices that follow it. The records before it were trimmed, and the slice accepted before
        was uploaded but never published."""
        longer = [
            piece
            for piece in self._first
            if at[0] - JUMP < piece.slice.record < at[0] < self._reach[_end(piece)]
            and not any(piece.slice.record < end < _end(piece)[0] for end in self._ends)
        ]
        return max(
            longer,
            key=lambda piece: (self._reach[_end(piece)], -piece.slice.record),
            default=None,
        )

    def behind_a_trim(self, at: Offset) -> UnnamedSlice | None:
        """Return the next slice of this history with a path."""
        least = max([at[0] + 1, *self._ends])
        later = [each for each in self._first if least <= each.slice.record < at[0] + JUMP]
        return min(later, key=self._order, default=None)

    def _order(self, piece: UnnamedSlice) -> tuple[int, int, int]:
        return piece.slice.record, -self._reach[_end(piece)], -piece.slice.records


def _end(piece: UnnamedSlice) -> Offset:
    cold = piece.slice
    return cold.record + cold.records, cold.byte + cold.length


def _drop_from(image: Image, stream: Stream, record: int) -> None:
    """Drop the slices that reach beyond a record at which another slice begins.

    If that is inside one of them, this one was never published. Its records before that one were
    trimmed when no fork needed them, so the forks that have pinned them were deleted. Without their
    pins such forks lose what they inherit, if an older copy has them."""
    past = past_of(stream)
    stored = index.joined(past, stream.cold)
    kept = index.entries_before(stored, record)
    if kept == index.count(stored):
        return
    begin = index.begin_of(stored, kept)[0]
    _release_slices(image, index.behind(stored, kept))
    in_past = min(kept, index.count(past))
    if stream.extras is not None and past:
        stream.extras.past = index.cut(past, 0, in_past) or None
        tidy(stream)
    stream.cold = index.cut(stored, in_past, kept) or None
    for attempt, pin in list((stream.pins or {}).items()) if begin < record else ():
        if pin.first_record < record and begin < pin.record + (pin.prefix > 0):
            del (stream.pins or {})[attempt]
    stream.pins = stream.pins or None


def _trim(image: Image, stream: Stream, at: Offset) -> None:
    """Drop everything before the position, except slices that forks may need."""
    if stream.pins and stream.cold:
        stream.extras = stream.extras or StreamExtras()
        stream.extras.past = index.joined(stream.extras.past, stream.cold)
    else:
        _release_slices(image, stream.cold)
    stream.cold = None
    stream.first_record, stream.first_byte = at


def _revive(image: Image, uid: int, pieces: Sequence[UnnamedSlice]) -> list[StreamLoss]:
    """Recreate a stream created after the copy, as far as its slices tell."""
    first = min(pieces, key=lambda piece: piece.slice.record)
    if not first.path:
        return []
    begin = first.slice
    notes = (
        [
            StreamLoss(
                first.path, uid, 0, begin.record, "the stream was a fork, and its source is unknown"
            )
        ]
        if begin.record
        else []
    )
    for other in [each for each in image.streams if each.name == first.path]:
        _drop(image, other)
        notes.append(
            StreamLoss(
                other.name,
                other.uid,
                other.first_record,
                other.next_record,
                "the stream was deleted and created again",
            )
        )
    stream = Stream(
        uid, first.path, first.content_type, _encoding_of(first), first.append_ms, first.append_ms
    )
    stream.first_record = stream.next_record = begin.record
    stream.first_byte = stream.next_byte = begin.byte
    image.streams.append(stream)
    _continue(image, stream, pieces, ())
    return notes


def _encoding_of(piece: UnnamedSlice) -> int:
    """Return the encoding of a piece's stream: Kafka batches may lie in a stream of any."""
    content_type = piece.content_type
    if piece.encoding != Encoding.KAFKA or media_type(content_type) in ("", KAFKA_CONTENT_TYPE):
        return piece.encoding
    return Encoding.JSON if media_type(content_type) == "application/json" else Encoding.BYTES


def _hold(image: Image, pack: str, owner_group: int) -> int:
    held = image.held.get(pack)
    if held is None:
        image.pack_counter += 1
        held = image.held[pack] = PackReference(owner_group, 0, image.pack_counter)
    held.slices += 1
    return held.number


def _drop(image: Image, stream: Stream) -> None:
    _release_slices(image, stream.extras.past if stream.extras is not None else None)
    _release_slices(image, stream.cold)
    image.streams.remove(stream)


def _release_slices(image: Image, cold: index.Entries | None) -> None:
    keys = {held.number: pack for pack, held in image.held.items()}
    for number in index.pack_numbers(cold) if cold else ():
        if not number:  # an entry without a pack
            continue
        held = image.held[keys[number]]
        held.slices -= 1
        # the leader releases the packs of a page before it
        if not held.slices and not is_page_key(keys[number]):
            del image.held[keys[number]]
