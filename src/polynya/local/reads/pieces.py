"""Make spans of the pieces of a planned page: at the replica that planned it, or at the core that
wants it.

Records of diskless streams do not cross nodes. A replica answers a read with the pieces that are
not in its memory, and the core that wanted the page fetches their slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import structs

from polynya.base.errors import CorruptData
from polynya.base.limits import PAGE_BYTES_MAX
from polynya.local.api import Isolation, Page, ReadLimits, ReadQuery, Span
from polynya.local.dependencies import Sources
from polynya.local.reads.page_spans import fill_append_times, is_hidden, span_of, whole_span_of
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import HIDDEN, UNDECIDED, ColdSlice
from polynya.stream.read_plan import (
    AT_BYTE,
    ColdPiece,
    HotPiece,
    Inherited,
    Want,
    cold_pieces,
    cut,
)
from polynya.stream.state.aborted import mark
from polynya.stream.state.model import Stream
from polynya.stream.state.profile_epochs import profile_of

Piece = HotPiece | ColdPiece | Inherited
Offset = tuple[int, int]  # record, byte

# flags of an entry whose slice may have batches that not every reader gets
_PARTLY_HIDDEN = HIDDEN | UNDECIDED
PIECES_AHEAD = 16  # pieces of a page that are fetched while one is awaited


class FarPiece(msgspec.Struct, array_like=True, gc=False):
    """A cold or inherited piece, for the core that reads it."""

    record: int
    byte: int
    bytes_max: int
    whole_records: bool
    until: Offset
    slice: ColdSlice | None  # None: inherited
    source_uid: int = 0
    source_name: str = ""
    aborted: bytes = b""  # as in `Want`


class PlannedPage(msgspec.Struct, array_like=True, gc=False, tag=4):
    """A page whose first pieces are to be read; the spans of `page` follow them. Its end is that of
    the plan."""

    page: Page
    pieces: list[FarPiece]
    ahead: list[ColdSlice] = []  # slices that a sequential reader needs next


class PlannedSpans(msgspec.Struct, array_like=True, gc=False):
    """The records of a fork's source up to `end`: first these pieces, if there are any, which are
    to be read from `begin` on, then the spans. Older nodes send no pieces."""

    spans: list[Span]
    end: Offset
    begin: Offset = (0, 0)
    pieces: list[FarPiece] = []


class PieceReader:
    """Reads the pieces of pages on one core. All methods raise as `ColdReader.batches`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def page(self, planned: PlannedPage, query: ReadQuery) -> Page:
        """Return the page that a replica has planned for this core."""
        page = planned.page
        pieces = [*map(_near, planned.pieces), *page.spans]
        page.spans, end = await self.spans(
            pieces,
            ((page.begin_record, page.begin_byte), (page.record, page.byte)),
            limits_of(query),
            local=query.local,
        )
        finish(page, end)
        if page.spans and not page.up_to_date:
            self.begin(planned.ahead)
        return page

    async def planned_spans(
        self, planned: PlannedSpans, limits: ReadLimits, *, local: bool
    ) -> tuple[list[Span], Offset]:
        """Return the spans that a replica has planned for this core."""
        if not planned.pieces:
            return planned.spans, planned.end
        pieces = [*map(_near, planned.pieces), *planned.spans]
        return await self.spans(pieces, (planned.begin, planned.end), limits, local=local)

    def ahead(self, pieces: Sequence[Piece]) -> list[ColdSlice]:
        """Return the slices of planned pieces, as far as their pages are in the cache; else the
        pages."""
        found: list[ColdSlice] = []
        for piece in pieces:
            if isinstance(piece, ColdPiece):
                cold, page = self._sources.cold, None
                if cold is not None and piece.slice.is_page:
                    page = cold.kept_page(piece.slice)
                inner = [] if page is None else cold_pieces(page, piece.want, moves=False)
                found += slices_of(inner) or [piece.slice]
        return found

    def begin(self, slices: Iterable[ColdSlice]) -> None:
        """Begin to fetch slices that are read soon."""
        cold = self._sources.cold
        if cold is not None:
            for each in slices:
                cold.begin(each)

    async def spans(
        self,
        pieces: Sequence[Piece | Span],
        bounds: tuple[Offset, Offset],
        limits: ReadLimits,
        *,
        local: bool,
    ) -> tuple[list[Span], Offset]:
        """Return the spans of a plan's pieces, and their end. `bounds`: begin and end of the plan.
        A piece that comes back short ends the page."""
        shown = whole_span_of if limits.whole_records else span_of
        raw = limits.raw
        spans: list[Span] = []
        end, planned_end = bounds
        pieces, at = [*pieces], -1
        while (at := at + 1) < len(pieces):
            piece = pieces[at]
            if isinstance(piece, ColdPiece) and piece.slice.is_page:
                at -= await self._open_page(pieces, at)
                continue
            if isinstance(piece, HotPiece | Span):
                if not (piece.flags and is_hidden(piece.flags, piece.encoding, raw=raw)):
                    spans.append(piece if isinstance(piece, Span) else shown(piece))
                end = planned_end  # hot pieces come last
                continue
            if isinstance(piece, ColdPiece):
                cold, goal = self._sources.cold, piece.want.until
                assert cold is not None and goal is not None, "a cold slice without an object store"
                self.begin(slices_of(pieces[at + 1 : at + 1 + PIECES_AHEAD]))
                part = cut(await cold.batches(piece.slice), piece.want, empty=not spans)
                found = [shown(hot) for hot in part.pieces if isinstance(hot, HotPiece)]
                if piece.want.aborted:
                    mark(found, piece.want.aborted)
                if piece.slice.flags & _PARTLY_HIDDEN:
                    found = [
                        span for span in found if not is_hidden(span.flags, span.encoding, raw=raw)
                    ]
                if limits.append_times:
                    kafka = limits.batch_times
                    await fill_append_times(cold, piece.slice, found, kafka=kafka)
                end = (part.record, part.byte)
            else:
                parents = self._sources.parents
                assert parents is not None
                goal = (piece.to_record, piece.to_byte)
                left = limits.bytes_max - sum(len(span.payload) for span in spans)
                found, end = await parents.read_uid(
                    piece.source_uid,
                    (piece.record, piece.byte),
                    goal,
                    structs.replace(limits, bytes_max=left),
                    local=local,
                )
            spans += found
            if end != goal:
                break
        return spans, end

    async def _open_page(self, pieces: list[Piece | Span], at: int) -> int:
        """Put the slices of a page in place of the piece with this number, and drop what is behind
        them if they do not go to its end. Return 1: that number is to be read again."""
        piece, cold = pieces[at], self._sources.cold
        assert isinstance(piece, ColdPiece) and cold is not None
        found = cold_pieces(
            await cold.page(piece.slice), piece.want, moves=piece.want.record == AT_BYTE
        )
        if not found:
            raise CorruptData(f"the page {piece.slice.pack} does not have the records of its entry")
        is_whole = found[-1].want.until == piece.want.until
        pieces[at:] = [*found, *(pieces[at + 1 :] if is_whole else ())]
        return 1


def limits_of(query: ReadQuery) -> ReadLimits:
    """Return the limits of a page."""
    size = min(query.bytes_max, PAGE_BYTES_MAX)
    raw = query.isolation != Isolation.ROWS
    return ReadLimits(size, query.whole_records, query.append_times, query.batch_times, raw)


def finish(page: Page, end: Offset) -> None:
    """Set the bounds of a page that has its spans: it may end before its plan."""
    page.up_to_date = page.up_to_date and end == (page.record, page.byte)
    if page.spans:
        page.begin_record, page.begin_byte = page.spans[0].record, page.spans[0].byte
    elif page.begin_record == AT_BYTE:
        page.begin_record, page.begin_byte = end
    page.record, page.byte = end


def far_pieces(stream: Stream, pieces: Sequence[Piece]) -> list[FarPiece]:
    """Return the pieces of a diskless stream that are not in memory, which come first, as they are
    sent. Those of other streams are read where they are planned."""
    if not _stays(stream):
        return []
    return [_far(piece) for piece in pieces if isinstance(piece, ColdPiece | Inherited)]


def _stays(stream: Stream) -> bool:
    """Report whether records of the stream in the object store do not cross nodes."""
    return profile_of(stream) == Profile.DISKLESS


def slices_of(pieces: Sequence[Piece | Span]) -> list[ColdSlice]:
    """Return the slices of the cold pieces."""
    return [piece.slice for piece in pieces if isinstance(piece, ColdPiece)]


def hot_spans(pieces: Sequence[Piece], *, whole: bool) -> list[Span]:
    """Return the pieces in memory as spans."""
    shown = whole_span_of if whole else span_of
    return [shown(piece) for piece in pieces if isinstance(piece, HotPiece)]


def _far(piece: ColdPiece | Inherited) -> FarPiece:
    if isinstance(piece, Inherited):
        return FarPiece(
            piece.record,
            piece.byte,
            0,
            False,
            (piece.to_record, piece.to_byte),
            None,
            piece.source_uid,
            piece.source_name,
        )
    want = piece.want
    assert want.until is not None
    return FarPiece(
        want.record,
        want.byte,
        want.bytes_max,
        want.whole_records,
        want.until,
        piece.slice,
        aborted=want.aborted,
    )


def _near(piece: FarPiece) -> ColdPiece | Inherited:
    if piece.slice is None:
        return Inherited(
            piece.source_uid, piece.source_name, piece.record, piece.byte, *piece.until
        )
    want = Want(
        piece.record,
        piece.byte,
        piece.bytes_max,
        piece.whole_records,
        piece.until,
        aborted=piece.aborted,
    )
    return ColdPiece(piece.slice, want)
