"""Reads of the streams of one core: plan a page, and fetch what is not in memory."""

from __future__ import annotations

from typing import Protocol

from msgspec import structs

from polynya.base.errors import Unavailable
from polynya.base.limits import PAGE_BYTES_MAX
from polynya.cold import FaultedStreams, PackGone
from polynya.local.api import (
    Page,
    Position,
    ReadLimits,
    ReadQuery,
    Refusal,
    Span,
    info_of,
)
from polynya.local.dependencies import Agreement, ColdReader, ParentReader
from polynya.local.lifetimes.ttl import Lifetimes
from polynya.local.local_streams import LocalStreams
from polynya.local.reads.page_spans import is_hidden, span_of, whole_span_of
from polynya.local.reads.pieces import (
    PieceReader,
    PlannedPage,
    PlannedSpans,
    far_pieces,
    finish,
    hot_spans,
    limits_of,
)
from polynya.local.reads.time_lookups import TimeLookups
from polynya.local.rehydration import Rehydration
from polynya.stream.features.pages.eviction import where_of
from polynya.stream.features.segments.rules import segments_of
from polynya.stream.machine import Machine
from polynya.stream.parts import ColdSlice
from polynya.stream.read_plan import ColdPiece, Inherited, ReadPlan, ReadRefused
from polynya.stream.replies import Code
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import stable_of

# attempts of a read to copy an evicted stream that is evicted or rehydrated meanwhile
COPIES_MAX = 3


class Groups(Protocol):
    """The interface of the local groups that reads need."""

    machines: dict[int, Machine]
    agreement: Agreement | None
    streams: LocalStreams
    lifetimes: Lifetimes
    rehydration: Rehydration
    faulted: FaultedStreams

    def here(self, group: int) -> Machine: ...

    def readable(self, group: int) -> bool: ...

    async def prepare(self, group: int, *, local: bool) -> None: ...


class LocalReads:
    """The reader of one core. `cold` reads the object tier, `parents` what forks inherit.
    `history`: see `StreamInfo`."""

    def __init__(self, groups: Groups, *, history: int) -> None:
        self.cold: ColdReader | None = None
        self.parents: ParentReader | None = None
        self.pieces = PieceReader(self)
        self.times = TimeLookups(groups, self)
        self._groups = groups
        self._machines = groups.machines
        self._find = groups.streams.find
        self._lifetimes = groups.lifetimes
        self._rehydration = groups.rehydration
        self._faulted = groups.faulted
        self._history = history

    def read_nowait(self, group: int, query: ReadQuery) -> Page | Refusal | None:
        """Return None when the group's local state may not serve it, a part of the page is not in
        local memory, or the reader gets nothing of it."""
        machines = self._machines
        if query.record in Position.TIMES or group not in machines:
            return None
        agreement = self._groups.agreement
        if agreement is not None and not (
            agreement.fit(group) if query.local else agreement.readable(group)
        ):
            return None
        planned = self._plan(machines[group], group, query)
        if planned is None or isinstance(planned, Refusal):
            return planned
        stream, plan = planned
        for piece in plan.pieces:
            kind = type(piece)
            if kind is ColdPiece or kind is Inherited:
                return None
        shown = whole_span_of if query.whole_records else span_of
        spans = [*map(shown, plan.pieces)]  # type: ignore[arg-type]
        if stream.kafka is not None:
            raw = query.raw or query.uncommitted
            spans = [
                span
                for span in spans
                if not (span.flags and is_hidden(span.flags, span.encoding, raw=raw))
            ]
            if not spans and not plan.up_to_date:
                return None  # there is nothing to see in it: `StreamReads.read` goes on
        known = not query.local or agreement is None or agreement.readable(group)
        return self._page(stream, plan, spans, known=known)

    async def read_sealed(self, group: int, query: ReadQuery, fault: Unavailable) -> Page | Refusal:
        """Read without a leader. Records of a closed segment never change, so a replica may serve
        them; its page is never up to date. Raises the `fault` of the leader for other reads."""
        machine = self._machines.get(group)
        stream = (
            None
            if machine is None or not machine.directory.leased
            else machine.directory.lookup(query.name)
        )
        segments = None if stream is None else segments_of(stream)
        if segments is None or not (
            query.record == Position.START or 0 <= query.record < segments.record
        ):
            raise fault
        await self._groups.prepare(group, local=True)
        page = await self.read(group, structs.replace(query, local=True))
        if isinstance(page, Page):
            page.up_to_date = False  # what follows a closed segment is read from the leader
        return page

    async def read(self, group: int, query: ReadQuery) -> Page | Refusal:
        """Return a page, with all its records."""
        answer = await self.read_for(group, query, far=False)
        assert not isinstance(answer, PlannedPage)
        return answer

    async def read_for(
        self, group: int, query: ReadQuery, *, far: bool
    ) -> Page | Refusal | PlannedPage:
        """Return a page. `far`: for another core, which reads the pieces of diskless streams
        itself."""
        try:
            return await self._read(group, query, far=far)
        except PackGone:  # the index has changed since the plan: plan again, once
            return await self._read(group, query, far=far)

    async def _read(
        self, group: int, query: ReadQuery, *, far: bool
    ) -> Page | Refusal | PlannedPage:
        if query.record in Position.TIMES:
            position = await self.times.position_at(group, query)
            if isinstance(position, Refusal):
                return position
            query = structs.replace(query, record=position[0], byte=position[1])
        here = self._groups.here
        planned = self._plan(here(group), group, query)
        for _ in range(COPIES_MAX):
            if planned is None:  # it may be rehydrated or deleted during the read
                copy = await self._rehydration.copy(group, query.name)
                planned = self._plan(here(group), group, query, copy)
        if planned is None:
            raise Unavailable("the stream is being evicted or rehydrated; retry")
        if isinstance(planned, Refusal):
            return planned
        stream, plan = planned
        # facts as of the plan: later appends belong to the next page
        known = not query.local or self._groups.readable(group)
        page = self._page(stream, plan, [], known=known)
        pieces = far_pieces(stream, plan.pieces) if far else []
        if pieces:
            page.spans = hot_spans(plan.pieces, whole=query.whole_records)
            ahead = [] if plan.up_to_date else self._next(group, stream, query, page)
            return PlannedPage(page, pieces, ahead)
        page.spans, end = await self.pieces.spans(
            plan.pieces,
            ((plan.begin_record, plan.begin_byte), (plan.record, plan.byte)),
            limits_of(query),
            local=query.local,
        )
        finish(page, end)
        if page.spans and not page.up_to_date:
            self.pieces.begin(self._next(group, stream, query, page))
        return page

    def _next(self, group: int, stream: Stream, query: ReadQuery, page: Page) -> list[ColdSlice]:
        """Return the slices of the page behind one that was read, if they are wanted."""
        machine = self._machines.get(group)
        if machine is None or not query.sequential:
            return []
        size = min(query.bytes_max, PAGE_BYTES_MAX)
        plan = machine.plan_read(
            stream, page.record, page.byte, bytes_max=size, whole_records=query.whole_records
        )
        return [] if isinstance(plan, ReadRefused) else self.pieces.ahead(plan.pieces)

    def _plan(
        self, machine: Machine, group: int, query: ReadQuery, copy: Stream | None = None
    ) -> tuple[Stream, ReadPlan] | Refusal | None:
        """Plan a read. None: the stream is evicted and the read needs more than its tail; call
        again with a fresh `copy`."""
        stream = self._find(group, query.name)
        if not isinstance(stream, Stream):
            return stream
        if (
            stream.extras is not None
            and where_of(stream) is not None
            and not (query.record == Position.NOW or query.record >= stream.next_record)
        ):
            if copy is None:
                return None
            stream = copy
        if query.touch and stream.ttl_seconds is not None:
            self._lifetimes.touch(group, stream)
        plan = machine.plan_read(
            stream,
            query.record,
            query.byte,
            bytes_max=min(query.bytes_max, PAGE_BYTES_MAX),
            whole_records=query.whole_records,
            uncommitted=query.uncommitted,
        )
        if isinstance(plan, ReadRefused):
            if plan.code == Code.OFFSET_BEYOND_TAIL and query.beyond_tail_waits:
                tail = stable_of(stream)
                return stream, ReadPlan([], *tail, *tail, True)
            return Refusal(plan.code, plan.record, plan.byte)
        return stream, self._faulted.readable(stream.uid, plan) if self._faulted.by_uid else plan

    def _page(self, stream: Stream, plan: ReadPlan, spans: list[Span], *, known: bool) -> Page:
        return Page(
            info_of(stream, self._history, known=known),
            spans,
            plan.begin_record,
            plan.begin_byte,
            plan.record,
            plan.byte,
            plan.up_to_date,
        )

    # --- sources of forks -------------------------------------------------------------------------

    async def read_uid(
        self,
        uid: int,
        at: tuple[int, int],
        until: tuple[int, int],
        limits: ReadLimits,
        *,
        local: bool = False,
    ) -> tuple[list[Span], tuple[int, int]]:
        """Return a fork source's spans from `at` up to `until` (the fork point), and their end.
        Soft-deleted sources are included."""
        try:
            return await self._read_uid(uid, at, until, limits, local=local)
        except PackGone:
            return await self._read_uid(uid, at, until, limits, local=local)

    async def _read_uid(
        self,
        uid: int,
        at: tuple[int, int],
        until: tuple[int, int],
        limits: ReadLimits,
        *,
        local: bool,
    ) -> tuple[list[Span], tuple[int, int]]:
        _, plan = self._plan_uid(uid, at, until, limits)
        bounds = (plan.begin_record, plan.begin_byte), (plan.record, plan.byte)
        return await self.pieces.spans(plan.pieces, bounds, limits, local=local)

    def plan_uid(
        self, uid: int, at: tuple[int, int], until: tuple[int, int], limits: ReadLimits
    ) -> PlannedSpans | None:
        """Return what `read_uid` would, without the pieces of a diskless stream. None: all of it
        is to be read here."""
        stream, plan = self._plan_uid(uid, at, until, limits)
        pieces = far_pieces(stream, plan.pieces)
        if not pieces:
            return None
        return PlannedSpans(
            hot_spans(plan.pieces, whole=limits.whole_records),
            (plan.record, plan.byte),
            (plan.begin_record, plan.begin_byte),
            pieces,
        )

    def _plan_uid(
        self, uid: int, at: tuple[int, int], until: tuple[int, int], limits: ReadLimits
    ) -> tuple[Stream, ReadPlan]:
        machine = self._groups.here(uid >> 48)
        stream = machine.directory.by_uid.get(uid)
        if stream is None:
            raise Unavailable(
                f"this node no longer has the source of this fork (incarnation {uid})"
            )
        size, whole = limits.bytes_max, limits.whole_records
        plan = machine.plan_read(stream, *at, bytes_max=size, whole_records=whole, until=until)
        # the fork has been trimmed or deleted since its page was planned
        if isinstance(plan, ReadRefused):
            raise PackGone(f"the source of this fork no longer has record {at[0]}; retry")
        return stream, self._faulted.readable(uid, plan)
