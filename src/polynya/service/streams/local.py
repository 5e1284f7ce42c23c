"""The streams of the groups on this core: lookups, proposals, reads, live readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable
from typing import cast

from msgspec import structs

from polynya.base.errors import NotLeader, Unavailable
from polynya.base.limits import PAGE_BYTES_MAX
from polynya.base.names import group_of
from polynya.cold import FaultedStreams, PackGone
from polynya.service.api import (
    Facts,
    Page,
    Position,
    ReadLimits,
    ReadQuery,
    Refusal,
    Sink,
    Span,
    facts_of,
)
from polynya.service.routing.messages import LagQuery
from polynya.service.streams.appends import Appends, HotMemory
from polynya.service.streams.dependencies import Agreement, ColdReader, ParentReader, Proposer
from polynya.service.streams.feeds import Feeds
from polynya.service.streams.lifetimes import Lifetimes, found_in_grace
from polynya.service.streams.name_index import SortedNames, live_names
from polynya.service.streams.page_spans import span_of, whole_span_of
from polynya.service.streams.pieces import (
    PieceReader,
    PlannedPage,
    PlannedSpans,
    far_pieces,
    finish,
    hot_spans,
    limits_of,
)
from polynya.service.streams.profile_changes import ProfileChanges
from polynya.service.streams.rehydration import Rehydration
from polynya.service.streams.retention import TrimCounters
from polynya.service.streams.segments import SEGMENT_LIMITS, SegmentWriter
from polynya.service.streams.time_lookups import TimeLookups
from polynya.stream.commands import (
    Append,
    ColdSlice,
    Command,
    ConfirmPin,
    Create,
    Delete,
    Evict,
    Expire,
    PinSource,
    Produce,
    Return,
    SegmentLimits,
    Touch,
    Trim,
    Unpin,
)
from polynya.stream.diskless_commands import CommitSlices, SetProfile
from polynya.stream.machine import Machine
from polynya.stream.read_plan import ColdPiece, Inherited, ReadPlan, ReadRefused
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.rules.eviction import evicted_view, where_of
from polynya.stream.rules.segments import segments_of
from polynya.stream.rules.table_lifetimes import live_tables
from polynya.stream.rules.table_watches import held_from
from polynya.stream.rules.tables import Lag, Table, lag_of
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import stable_of

LIST_STEP = 256  # names per loop pass
# attempts of a read to copy an evicted stream that is evicted or rehydrated meanwhile
COPIES_MAX = 3
# creates that wait for a fork attempt on the deleted stream of that name
WAITING_CREATES_MAX = 1024


class LocalGroups:
    """The streams of one core. `machines` maps the number of each local group to its machine. `led`
    holds the groups that this core may propose for: all, or in a cluster (with an `agreement`)
    those it leads. Work that must happen once per cluster uses `led`.
    """

    def __init__(
        self,
        machines: dict[int, Machine],
        proposer: Proposer,
        now_ms: Callable[[], int],
        *,
        groups: int,
        hot_bytes_max: int,
        history: int,
        segment_limits: SegmentLimits = SEGMENT_LIMITS,
    ) -> None:
        self.machines = self.led = machines
        self.agreement: Agreement | None = None
        self.feeds = Feeds()
        self.now_ms = now_ms
        self.cold: ColdReader | None = None
        self.profiles = ProfileChanges(self, proposer.propose)
        self.parents: ParentReader | None = None
        self.lifetimes = Lifetimes(machines, self.feeds, proposer.propose, now_ms)
        self.trims = TrimCounters()
        self._proposer = proposer
        self._history = history
        self._groups = groups
        self.rehydration = Rehydration(machines, proposer.propose, self._propose_again, now_ms)
        self.times = TimeLookups(self)
        self.pieces = PieceReader(self)
        self.faulted = FaultedStreams(machines)
        self.faulted.changed = self._changed
        self.memory = HotMemory(machines, self.faulted, proposer, hot_bytes_max)
        self.segments = SegmentWriter(self, proposer.propose, segment_limits)
        self.appends = Appends(
            machines, proposer, self, self.memory, self.faulted, self.rehydration, self.segments
        )
        self._names = SortedNames(
            name for machine in machines.values() for name in live_names(machine)
        )
        for machine in machines.values():
            machine.watched = self.feeds.sinks
        self._unsettled: dict[str, int] = {}  # names with a create or delete in flight
        self._waiting_creates: list[tuple[int, Create, Done]] = []

    # --- agreement --------------------------------------------------------------------------------

    def join(self, agreement: Agreement, led: dict[int, Machine]) -> None:
        """Join a cluster, in which the groups are replicated."""
        self.agreement, self.led = agreement, led
        self.lifetimes.spread()

    def readable(self, group: int) -> bool:
        """Report whether the current local state may serve a linearizable read or refusal."""
        return self.agreement is None or self.agreement.readable(group)

    def fit(self, group: int) -> bool:
        """Report whether this core serves reads of the group."""
        return group in self.machines if self.agreement is None else self.agreement.fit(group)

    async def linearize(self, group: int) -> None:
        """Wait until `readable`. Raises Unavailable."""
        if self.agreement is not None:
            await self.agreement.linearize(group)

    async def prepare(self, group: int, *, local: bool) -> None:
        """Wait until this core may serve a read. `local`: any replica that has received its initial
        copy will do. Raises Unavailable."""
        if not local:
            await self.linearize(group)
        elif not self.fit(group):
            raise Unavailable(
                "this node has no readable replica of the group; retry, or use another node"
            )

    async def linearize_all(self, groups: Iterable[int]) -> None:
        """Wait until all of the groups are `readable`."""
        if self.agreement is not None:
            await asyncio.gather(*map(self.agreement.linearize, groups))

    def put(self, group: int, machine: Machine) -> None:
        """Add a group, or replace its state with that from another node. Live readers resume on the
        new state."""
        self.remove(group)
        self.machines[group] = machine
        machine.watched = self.feeds.sinks
        for name in live_names(machine):
            self._names.add(name)
        self._changed()

    def remove(self, group: int) -> None:
        """Remove a group from this core."""
        self.faulted.forget(group)
        old = self.machines.pop(group, None)
        if old is None:
            return
        for name in live_names(old):
            self._names.discard(name)
        self.cut_readers(group)
        for each in [
            each for each in self._waiting_creates if each[0] == group
        ]:  # this core may never see the decision
            self._waiting_creates.remove(each)
            each[2](NotLeader(0))
        self._changed()

    def cut_readers(self, group: int) -> None:
        """Disconnect the live readers of a group, so that they resume."""
        for uid in self.feeds.uids():
            if uid >> 48 == group:
                self.feeds.cut(uid)

    # --- lookups ----------------------------------------------------------------------------------

    def settled(self, name: str) -> bool:
        """Report whether committed state may refuse at once: no create or delete of `name` is in
        flight."""
        return name not in self._unsettled

    def here(self, group: int) -> Machine:
        """Return the group's machine. Raises Unavailable when the group has left this node."""
        machine = self.machines.get(group)
        if machine is None:
            raise Unavailable("the group has moved to other nodes; retry")
        return machine

    def find(self, group: int, name: str) -> Stream | Refusal:
        """Return the live stream, or why it cannot be found; for an evicted one its
        `eviction.evicted_view`. Raises Unavailable when the group has left."""
        machine = self.machines.get(group) or self.here(group)
        stream = machine.streams.get(name)
        if stream is None:
            return evicted_view(machine, name) or _NOT_FOUND
        if stream.deleted:
            return _GONE
        if (stream.ttl_seconds is not None or stream.expires_at_ms is not None) and self._expired(
            machine, group, stream
        ):
            return _NOT_FOUND
        return stream

    def facts(self, group: int, name: str, *, local: bool = False) -> Facts | Refusal:
        """Return the facts of a stream. `local`: the state may lack acknowledged records."""
        stream = self.find(group, name)
        return (
            facts_of(stream, self._history, known=not local or self.readable(group))
            if isinstance(stream, Stream)
            else stream
        )

    async def list_streams(
        self, prefix: str, after: str, limit: int, groups: Container[int]
    ) -> list[Facts]:
        """Return up to `limit` live streams of these groups by name, after `after`, under `prefix`.
        A stream that lives throughout is always included. Raises Unavailable when one of the groups
        has left."""
        facts: list[Facts] = []
        while len(facts) < limit:
            wanted = min(limit - len(facts), LIST_STEP)
            names = self._names.page(prefix, after, wanted)
            for name in names:  # an expired stream may still be listed
                group = group_of(name, self._groups)
                entry = self.facts(group, name) if group in groups else None
                if isinstance(entry, Facts):
                    facts.append(entry)
            if len(names) < wanted:
                break
            after = names[-1]
            await asyncio.sleep(0)
        return facts

    def tables(self) -> list[Table]:
        """Return the tables. Call this on the core of the meta group."""
        return live_tables(self.here(0))

    async def lags(self, query: LagQuery) -> list[Lag]:
        """Return the lag of each group. It visits all streams and yields to the loop in between."""
        found: dict[int, Lag] = {}
        for group in query.groups:
            machine = self.here(group)
            for lag in lag_of(machine, query.table, query.prefix, query.without, query.committed):
                found[group] = lag
                await asyncio.sleep(0)
        return list(found.values())

    def _expired(self, machine: Machine, group: int, stream: Stream) -> bool:
        if not self.lifetimes.is_over(machine, stream):
            return False
        if self.settled(stream.name) and group in self.led:
            self._expire(group, stream)
        return True

    def _expire(self, group: int, stream: Stream) -> None:
        if held_from(self.machines[group], stream) is None:
            self._propose_settling(
                group, Expire(stream.name, stream.uid, stream.activity_ms, self.now_ms()), _ignore
            )

    # --- proposals --------------------------------------------------------------------------------

    def propose(self, group: int, command: Command, done: Done) -> None:
        """Propose to the log, unless committed state allows a definite refusal."""
        if type(command) is Append or type(command) is Produce:  # stamped in this pass of the loop
            self.appends.propose(group, command, done)
            return
        if group not in self.machines:  # the group left while the command waited
            done(NotLeader(0))
            return
        command = self.stamped(command)
        machine = self.machines[group]
        if isinstance(command, Evict):
            self.appends.epoch += 1
            command = self.rehydration.only_present(machine, command)
        if machine.evicted or self.rehydration.racing or isinstance(command, Evict):
            ready = self.rehydration.before(group, machine, command, done)
            if ready is None:
                return
            done = ready
        if isinstance(command, Create):
            self._propose_create(group, command, done)
        elif isinstance(command, SetProfile):
            self.appends.epoch += 1
            self.profiles.begin(group, command, done)
        elif isinstance(command, Delete):
            self._propose_delete(group, command, done)
        elif isinstance(command, PinSource):
            self.judge_time(group, machine.lookup(command.name))
            self._proposer.propose(group, command, done)
        else:
            self._proposer.propose(group, command, done)

    def _propose_again(self, group: int, command: Command, done: Done) -> None:
        """Propose a command that has waited: stamp it again, and check that the group is still
        local."""
        if group in self.machines:
            self.propose(group, self.stamped(command), done)
        else:
            done(NotLeader(0))

    def stamped(self, command: Command) -> Command:
        """Stamp the command with this core's log time, which never goes back. It may come from
        another core or have waited."""
        return (
            structs.replace(command, now_ms=self.now_ms())
            if "now_ms" in command.__struct_fields__
            else command
        )

    def _propose_create(self, group: int, command: Create, done: Done) -> None:
        machine = self.machines[group]
        batch = command.batch
        if batch is not None and not self.memory.has_room(group, len(batch.payload)):
            self.memory.refuse(len(batch.payload), done)
            return
        stream = machine.lookup(command.name)
        self.judge_time(group, stream)
        command = self.segments.stamped(command)
        if (
            stream is not None
            and not stream.deleted
            and self.lifetimes.is_in_grace(machine, stream)
        ):
            self._find_in_grace(group, stream, command, done)
            return

        def created(reply: Reply | BaseException) -> None:
            pending = isinstance(reply, Reply) and reply.code == Code.ATTEMPT_PENDING
            if pending and len(self._waiting_creates) < WAITING_CREATES_MAX:
                # retried once the pending fork of the deleted stream is decided
                self._waiting_creates.append((group, command, done))
            else:
                done(reply)

        self._propose_settling(group, command, created)

    def _find_in_grace(self, group: int, stream: Stream, command: Create, done: Done) -> None:
        """Answer a create in the grace period: the log alone would recreate the stream. The reply
        to a no-op linearizes the lookup."""

        def reached(reply: Reply | BaseException) -> None:
            found = found_in_grace(self.machines.get(group), stream.uid, command, reply)
            if found is None:
                self._propose_again(group, command, done)
            else:
                done(found)

        self._proposer.propose(
            group, Touch([(stream.uid, stream.activity_ms)], self.now_ms()), reached
        )

    def _propose_delete(self, group: int, command: Delete, done: Done) -> None:
        stream = self.machines[group].lookup(command.name)
        if stream is None and command.name not in self._unsettled and self.readable(group):
            done(Reply(Code.NOT_FOUND))
            return
        self.judge_time(group, stream)
        self._propose_settling(group, command, done)

    def judge_time(self, group: int, stream: Stream | None) -> None:
        """Log unlogged reads and the expiry of the stream before the command that depends on
        them."""
        if (
            stream is not None
            and not stream.deleted
            and (stream.ttl_seconds is not None or stream.expires_at_ms is not None)
        ):
            self.lifetimes.log_before_end(group, stream)
            if self.lifetimes.is_over(self.machines[group], stream):
                self._expire(group, stream)

    def _propose_settling(self, group: int, command: Create | Delete | Expire, done: Done) -> None:
        name = command.name
        self._unsettled[name] = self._unsettled.get(name, 0) + 1

        def settled(reply: Reply | BaseException) -> None:
            self._settle(name)
            done(reply)

        try:
            self._proposer.propose(group, command, settled)
        except Exception:  # the command cannot be encoded
            self._settle(name)
            raise

    def _settle(self, name: str) -> None:
        left = self._unsettled[name] - 1
        if left:
            self._unsettled[name] = left
        else:
            del self._unsettled[name]

    def applied(self, group: int, command: Command, reply: Reply) -> None:
        """Handle an applied command before its writer gets the reply. An append matters only where
        its stream has live readers."""
        kind = type(command)
        machine = self.machines.get(group)
        if machine is not None and machine.effects:
            self.feeds.moved(machine.take_effects(), known=self.readable(group))
        if kind is Append or kind is Produce:
            return
        if kind is CommitSlices:
            if group in self.led:
                self.profiles.note(cast("CommitSlices", command), reply)
            return
        self.appends.epoch += 1
        if machine is not None and (machine.changing or self.profiles.changes):
            self.profiles.look(group)
        if kind is Create:
            if reply.code == Code.CREATED:
                self._names.add(cast("Create", command).name)
        elif kind in (Delete, Expire):
            if reply.code == Code.OK:
                self._names.discard(cast("Delete", command).name)
            self.lifetimes.forget(reply.uid)
        elif kind is Trim:
            self.trims.note(reply)
        elif kind is Return:
            self.rehydration.note(cast("Return", command), reply)
        elif kind in (ConfirmPin, Unpin) and self._waiting_creates:
            waiting, self._waiting_creates = self._waiting_creates, []
            for where, create, done in waiting:
                self.propose(where, create, done)

    @property
    def turns(self) -> int:
        """A number that grows with each turn that applied a command; unchanged means nothing to
        scan."""
        return self.memory.turns

    def _changed(self) -> None:
        """Handle a group that came or went, or a fault of a stream."""
        self.appends.epoch += 1
        self.memory.measure()

    def sweep(self) -> None:
        """Expire streams that no request has found, and go on with changes of profiles. Call this
        about once a second."""
        self.profiles.sweep()
        for group, stream in self.lifetimes.sweep():
            if group in self.led and self.settled(stream.name):
                self._expire(group, stream)

    # --- reads ------------------------------------------------------------------------------------

    def read_nowait(self, group: int, query: ReadQuery) -> Page | Refusal | None:
        """Return None when the group's local state may not serve it, or a part of the page is not
        in local memory."""
        if query.record in Position.TIMES or group not in self.machines:
            return None
        if self.agreement is not None and not (
            self.fit(group) if query.local else self.readable(group)
        ):
            return None
        planned = self._plan(group, query)
        if planned is None or isinstance(planned, Refusal):
            return planned
        stream, plan = planned
        for piece in plan.pieces:
            kind = type(piece)
            if kind is ColdPiece or kind is Inherited:
                return None
        shown = whole_span_of if query.whole_records else span_of
        spans = [*map(shown, plan.pieces)]  # type: ignore[arg-type]
        return self._page(stream, plan, spans, known=not query.local or self.readable(group))

    async def read_sealed(self, group: int, query: ReadQuery, fault: Unavailable) -> Page | Refusal:
        """Read without a leader. Records of a closed segment never change, so a replica may serve
        them; its page is never up to date. Raises the `fault` of the leader for other reads."""
        machine = self.machines.get(group)
        stream = None if machine is None or not machine.leased else machine.lookup(query.name)
        segments = None if stream is None else segments_of(stream)
        if segments is None or not (
            query.record == Position.START or 0 <= query.record < segments.record
        ):
            raise fault
        await self.prepare(group, local=True)
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
            place = await self.times.place_at(group, query)
            if isinstance(place, Refusal):
                return place
            query = structs.replace(query, record=place[0], byte=place[1])
        planned = self._plan(group, query)
        for _ in range(COPIES_MAX):
            if planned is None:  # it may be rehydrated or deleted during the read
                planned = self._plan(group, query, await self.rehydration.copy(group, query.name))
        if planned is None:
            raise Unavailable("the stream is being evicted or rehydrated; retry")
        if isinstance(planned, Refusal):
            return planned
        stream, plan = planned
        # facts as of the plan: later appends belong to the next page
        page = self._page(stream, plan, [], known=not query.local or self.readable(group))
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
        machine = self.machines.get(group)
        if machine is None or not query.sequential:
            return []
        size = min(query.bytes_max, PAGE_BYTES_MAX)
        plan = machine.plan_read(
            stream, page.record, page.byte, bytes_max=size, whole_records=query.whole_records
        )
        return [] if isinstance(plan, ReadRefused) else self.pieces.ahead(plan.pieces)

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
        machine = self.here(uid >> 48)
        stream = machine.by_uid.get(uid)
        if stream is None:
            raise Unavailable(
                f"this node no longer has the source of this fork (incarnation {uid})"
            )
        size, whole = limits.bytes_max, limits.whole_records
        plan = machine.plan_read(stream, *at, bytes_max=size, whole_records=whole, until=until)
        # the fork has been trimmed or deleted since its page was planned
        if isinstance(plan, ReadRefused):
            raise PackGone(f"the source of this fork no longer has record {at[0]}; retry")
        return stream, self.faulted.readable(uid, plan)

    def _plan(
        self, group: int, query: ReadQuery, copy: Stream | None = None
    ) -> tuple[Stream, ReadPlan] | Refusal | None:
        """Plan a read. None: the stream is evicted and the read needs more than its tail; call
        again with a fresh `copy`."""
        stream = self.find(group, query.name)
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
            self.lifetimes.touch(group, stream)
        plan = self.machines[group].plan_read(
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
        return stream, self.faulted.readable(stream.uid, plan) if self.faulted.by_uid else plan

    def _page(self, stream: Stream, plan: ReadPlan, spans: list[Span], *, known: bool) -> Page:
        return Page(
            facts_of(stream, self._history, known=known),
            spans,
            plan.begin_record,
            plan.begin_byte,
            plan.record,
            plan.byte,
            plan.up_to_date,
        )

    # --- live -------------------------------------------------------------------------------------

    def attach(self, group: int, name: str, sink: Sink, *, local: bool = False) -> Facts | Refusal:
        stream = self.find(group, name)
        if not isinstance(stream, Stream):
            return stream
        self.lifetimes.touch(group, stream)
        self.feeds.attach(stream.uid, sink)
        return facts_of(stream, self._history, known=not local or self.readable(group))

    def detach(self, uid: int, sink: Sink) -> None:
        self.feeds.detach(uid, sink)
        machine = self.machines.get(uid >> 48)
        stream = None if machine is None else machine.by_uid.get(uid)
        if stream is not None:
            self.lifetimes.touch(uid >> 48, stream)  # it was being read until now


_NOT_FOUND = Refusal(Code.NOT_FOUND)
_GONE = Refusal(Code.GONE)


def _ignore(reply: Reply | BaseException) -> None:
    """Ignore the reply: a command that is still needed is proposed again."""
