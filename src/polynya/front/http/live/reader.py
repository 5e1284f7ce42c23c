"""GET /v1/live: a reader of many streams, and the turns of its streams.

Live events are written as they come, by no task. Streams that have to be read have turns, of one
page each. An event stream goes on for a minute; a long-poll is one page of the same events. After
one the reader is parked: its streams stay attached for the next one.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.limits import LIVE_PAGE_BYTES, RAW_STEP_BYTES
from polynya.front.http.live.answers import Answer, EventStream, PolledPage
from polynya.front.http.live.backlog import Room
from polynya.front.http.live.budget import Budget
from polynya.front.http.live.matching import check_count, find_matching
from polynya.front.http.live.selection import Selection, parse_selection
from polynya.front.http.live.showing import Offset
from polynya.front.http.live.strand import Strand
from polynya.front.http.live.turns import Turns
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.responses import NO_CACHE, NO_STORE
from polynya.front.http.routes.live_response import recycle_at
from polynya.front.http.routes.pages import allowed_bytes, json_form
from polynya.local.api import Position, StreamInfo
from polynya.service.live import LiveStreams
from polynya.service.live.cursors import State, StreamPosition, cursor_name
from polynya.wire.headers import RECORDS
from polynya.wire.http.sse import error_event

log = logging.getLogger("polynya.http")

_RETRY_SECONDS = 1.0  # before a stream without a leader has another turn
_ENDS = {"Content-Type": "text/event-stream", "Cache-Control": NO_CACHE}
_PAGE = {"Content-Type": "application/json", "Cache-Control": NO_STORE}


def live(exchange: Exchange) -> None:
    """Start the events of many streams. Raises `Failure`."""
    shared = exchange.context.readers.many
    if shared is None:
        raise Failure("NO_ROUTE")
    selection = parse_selection(exchange)
    if selection.seconds is None:
        exchange.spawn(_open(exchange, selection, shared), waits=True, long=True)
    else:
        exchange.context.counters.long_polls += 1
        poll = _poll(exchange, selection, shared, selection.seconds)
        exchange.spawn(poll, waits=True, long=True)


async def _open(exchange: Exchange, selection: Selection, shared: LiveStreams) -> None:
    """Open the connection. A reconnecting browser gives up on any status but 200, so its errors are
    an event."""
    budget = Budget(exchange.peer.meter, exchange.context.now)
    reader = ManyReader(exchange, selection, shared, EventStream(exchange), budget)
    try:
        await reader.prepare()
        reader.open()
    except (Unavailable, Failure) as error:
        reader.release()
        if not selection.cursor:
            raise
        code = error.code if isinstance(error, Failure) else "UNAVAILABLE"
        message = error.message if isinstance(error, Failure) else str(error)
        body = error_event(exchange.error_json(code, message))
        exchange.answer(200, [*_ENDS.items()], body)
    except BaseException:
        reader.release()
        raise


async def _poll(
    exchange: Exchange, selection: Selection, shared: LiveStreams, seconds: float
) -> None:
    """Answer with one page of events, which waits so many seconds for news. Its caller is charged
    for its bytes as for those of every answer, so it has no budget of its own."""
    page = PolledPage()
    timer = asyncio.get_running_loop().call_later(seconds, page.wake)
    reader = shared.parked.take(cursor_name(selection.cursor))
    try:
        if not isinstance(reader, ManyReader) or not await reader.resume(exchange, selection, page):
            if reader is not None:
                reader.release()
            budget = Budget(None, exchange.context.now)
            reader = ManyReader(exchange, selection, shared, page, budget)
            await reader.prepare()
        reader.open()
        await page.done.wait()
    except BaseException:
        if reader is not None:
            reader.release()
        raise
    finally:
        timer.cancel()
    if page.goes_on:  # before the answer: its cursor may be used at once
        reader.park()
    else:
        reader.release()
    exchange.answer(200, [*_PAGE.items()], page.body())


class ManyReader:
    """A reader of many streams, which fills one answer; that of a long-poll one after another."""

    def __init__(
        self,
        exchange: Exchange,
        selection: Selection,
        shared: LiveStreams,
        answer: Answer,
        budget: Budget,
    ) -> None:
        self._exchange, self._context = exchange, exchange.context
        self._selection, self._shared = selection, shared
        self._answer = answer
        self._responses = exchange.peer.responses
        self.principal = exchange.principal
        self._budget = budget
        self.cursor = shared.cursors.begin(self.finish)
        self._turns = Turns[Strand](
            self._context.connections.spawn,
            self._may_write,
            self._give_turn,
            self._notify_all,
            is_slow=lambda strand: strand.stream.group in self._failing,
        )
        self._failing: set[int] = set()  # groups that did not answer a short while ago
        self._strands: dict[str, Strand] = {}
        self._early: list[str] | None = []  # new streams, while this reader is not open
        # strands that wrote when the answer had ended: those to take back to their positions, or those
        # whose tail was confirmed
        self._dropped: dict[Strand, bool] = {}
        self._ends_at = recycle_at(self._context)
        self.room = Room()
        self.records = json_form(exchange) == RECORDS
        self.local = selection.local
        rate = self._budget.bytes_per_second
        self.page_bytes = (
            LIVE_PAGE_BYTES if rate is None else min(LIVE_PAGE_BYTES, max(RAW_STEP_BYTES, rate))
        )

    # --- the opening ------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Find the streams and their positions. Raises `Failure` and Unavailable."""
        selection, positions = self._selection, dict[str, StreamPosition]()
        if selection.cursor:
            found = await self._shared.cursors.take(selection.cursor)
            if found is None:
                raise Failure("CURSOR_GONE")
            self.cursor.before = cursor_name(selection.cursor)
            positions = {
                position.name: position for position in found if selection.wants(position.name)
            }
        covers = bool(selection.prefixes)
        await self._shared.new_streams.watch(self.created, all_groups=covers)
        infos = await find_matching(self._context.service, selection, self._shared)
        check_count(0, self._shared, len(selection.listed))
        for name in selection.listed:
            self._add(name, selection.begin_of(name, positions.get(name)), positions.get(name))
        for name, info in infos.items():
            if name not in selection.listed:
                self._add_matched(info, positions.get(name))
        for name, position in positions.items():  # the client is told that they are gone
            if name not in self._strands and name not in infos and position.state == State.OPEN:
                self._add(name, (Position.START, 0), position)

    def _add_matched(self, info: StreamInfo, position: StreamPosition | None) -> None:
        begin = self._selection.begin_of(info.name, position)
        is_known = position is not None and position.state != State.UNTOLD
        knows = position is not None and position.state == State.CLOSED and position.uid == info.uid
        if info.closed and (knows or (not is_known and begin[0] == Position.NOW)):
            at = (info.record, info.byte)
            self.cursor.add(StreamPosition(info.name, info.uid, *at, State.CLOSED))
        else:
            self._add(info.name, begin, position)

    def _add(
        self, name: str, begin: tuple[int, int], position: StreamPosition | None, index: int = -1
    ) -> None:
        """Add a strand, whose position is the cursor's at `index`; -1: it gets one."""
        handle = self._context.service.open(name)
        strand = Strand(self, handle, begin, listed=name in self._selection.listed)
        self._strands[name] = strand
        self._shared.followed += 1
        if position is not None and position.state in (State.OPEN, State.CLOSED):
            strand.resume(position)
        else:
            position = StreamPosition(name, 0, *begin)
        strand.index = index if index >= 0 else self.cursor.add(position)
        if self._early is None:
            self.enqueue(strand)

    async def resume(self, exchange: Exchange, selection: Selection, answer: Answer) -> bool:
        """Go on with another answer after `park`. Return False if its request has other streams.
        Raises `Failure`."""
        if self.records != (json_form(exchange) == RECORDS):
            return False
        if not self._selection.is_of_same_streams(selection):
            return False
        positions = await self._shared.cursors.take(selection.cursor)
        if positions is None:
            raise Failure("CURSOR_GONE")
        moved = self.cursor.moved_after(int(selection.cursor.rpartition(".")[2], 16))
        self.cursor = self._shared.cursors.begin(self.finish)
        self.cursor.go_on(cursor_name(selection.cursor), positions)
        self._exchange, self._selection, self._answer = exchange, selection, answer
        self._responses, self.principal = exchange.peer.responses, exchange.principal
        dropped, self._dropped = self._dropped, {}
        for name, index in _to_take_back(self._strands, moved, positions):
            self._begin_again(name, index)
        for strand, is_behind in dropped.items():
            if self._strands.get(strand.stream.name) is not strand:
                continue
            if is_behind:
                self._begin_again(strand.stream.name, strand.index)
            else:
                self.request_confirmation(strand)
        return True

    def _begin_again(self, name: str, index: int) -> None:
        """Let a strand begin at a position of the cursor, instead of the one that is there."""
        strand = self._strands.get(name)
        if strand is not None:
            strand.stop()
            self.remove(strand)
        position = self.cursor.positions[index] if index >= 0 else None
        self._add(name, self._selection.begin_of(name, position), position, index)

    def open(self) -> None:
        """Open the answer."""
        is_resumed = bool(self._selection.cursor)
        self._answer.begin(self.cursor.event_id, self.release, resumed=is_resumed)
        if self._answer.finished:
            return
        self._context.readers.add(self, is_metered=self._budget.is_metered)
        early, self._early = self._early or [], None
        strands = [each for each in self._strands.values() if not (each.is_live or each.is_over)]
        if is_resumed:  # a page may end early, and not before the same streams each time
            self._context.random.shuffle(strands)
        for strand in strands:
            self.enqueue(strand)
        for name in early:
            self.created(name)
        if self._turns.are_idle:
            self._notify_all()

    def created(self, name: str) -> None:
        """Handle that a stream was created."""
        if not self._selection.wants(name):
            return
        if self._early is not None:
            self._early.append(name)
            return
        strand = self._strands.get(name)
        if strand is None:
            try:
                check_count(len(self.cursor.positions) + 1, self._shared)
            except Failure as full:
                self._answer.end_with_error(full.code, full.message)
                return
            self._add(name, (Position.START, 0), None)
            strand = self._strands[name]
        strand.notice()

    # --- the end ----------------------------------------------------------------------------------

    def sweep(self, tick: int) -> None:
        """Send keep-alives, and end the answer after its lifetime."""
        self._answer.sweep(tick)

    def finish(self) -> None:
        """End the answer; the client resumes."""
        self._answer.finish()

    def park(self) -> None:
        """Keep the cursor after a long-poll, and all streams attached for a while. Those that move
        meanwhile are read in the next one. A reader is not older than an event stream gets."""
        context, name = self._context, self.cursor.name
        is_revoked = self.principal is not None and not self.principal.alive
        if context.connections.stopping or is_revoked or context.ticks.now >= self._ends_at:
            self.release()
            return
        context.readers.discard(self)
        self._turns.clear()
        self._early = []
        self._shared.cursors.keep(self.cursor, partial(self._shared.parked.drop, name))
        self._shared.parked.put(name, self, len(self._strands), context.ticks.now)

    def release(self) -> None:
        """Detach from all streams, and keep the cursor."""
        self._shared.new_streams.leave(self.created)
        self._shared.cursors.keep(self.cursor)
        self._context.readers.discard(self)
        self._budget.charge()
        self._turns.clear()
        for strand in self._strands.values():
            strand.stop()
        self._shared.followed -= len(self._strands)
        self._strands = {}

    # --- turns ------------------------------------------------------------------------------------

    def enqueue(self, strand: Strand) -> None:
        """Give the strand a turn."""
        if not self._answer.finished:
            self._turns.add(strand)

    async def _may_write(self) -> bool:
        """Wait until there may be a turn. Return False at the end of the response."""
        await self._responses.wait_writable()
        await self._budget.wait(lambda: self._answer.finished)
        if self._context.connections.stopping:
            self.finish()
        return not self._answer.finished

    async def _give_turn(self, strand: Strand) -> float | None:
        """Let a strand write a page. Return the seconds until its next turn, or None."""
        group = strand.stream.group
        try:
            seconds = await strand.turn()
            self._failing.discard(group)
            return seconds
        except (Unavailable, Failure):
            self._failing.add(group)
            return _RETRY_SECONDS
        except CorruptData as error:
            return strand.fail("DATA_DAMAGED", str(error))
        except Exception:  # the response has begun, so no error status is possible
            log.exception("a live reader failed", extra={"target": self._exchange.shown_target})
            self.finish()
            return None

    def _notify_all(self) -> None:
        """Handle that the client has been told of all streams."""
        if not self._answer.finished:
            self._answer.all_notified(len(self._strands))

    # --- for strands ------------------------------------------------------------------------------

    @property
    def flows(self) -> bool:
        """Report whether events may be written at once."""
        return not (
            self._answer.finished or self._responses.write_paused or self._budget.is_used_up
        )

    def write(
        self, strand: Strand, rest: bytes, at: Offset, state: int, *, wakes: bool = True
    ) -> None:
        """Write an event of a strand that is at this position behind it. `wakes`: it is news for a
        client that waits."""
        if self._answer.finished:
            self._dropped[strand] = wakes or self._dropped.get(strand, False)
            return
        event_id = self.cursor.move(strand.index, at[0], at[1], state)
        self._answer.event(event_id, rest, wakes=wakes)
        self._budget.sent += len(rest)

    def write_outside_streams(self, strand: Strand, rest: bytes) -> None:
        """Write an event of a stream without a position."""
        if self._answer.finished:
            self._dropped[strand] = True
        else:
            self._answer.unplaced(rest)

    def allowed_bytes(self) -> int:
        """Return the size of a page. Raises `Failure` while there is no memory for one."""
        return allowed_bytes(self._exchange, self.page_bytes)

    def detach(self, strand: Strand) -> None:
        """Detach a strand from its stream."""
        self._context.service.detach(strand.uid, strand)
        self._context.readers.tail_confirmation.forget(strand)

    def remove(self, strand: Strand) -> None:
        """Remove the strand of a stream that does not exist."""
        if self._strands.get(strand.stream.name) is strand:
            del self._strands[strand.stream.name]
            self._shared.followed -= 1

    def request_confirmation(self, strand: Strand) -> None:
        """Request that the tail is confirmed. Local readers need that not."""
        if not self.local:
            self._context.readers.tail_confirmation.request(strand)

    def charge(self) -> None:
        """Charge for the bytes written. A reader over its limit goes back to reads, which wait."""
        self._budget.charge()


def _to_take_back(
    strands: dict[str, Strand], moved: set[int], positions: list[StreamPosition]
) -> list[tuple[str, int]]:
    """Return the streams that a client knows at other positions than their strands, and the index
    of each position: those `moved` since, and those that began again since, which may have none."""
    found: dict[str, int] = {}
    for index in sorted(moved):  # the newest position of a stream decides
        if index < len(positions):
            name = positions[index].name
            strand = strands.get(name)
            if strand is None:
                is_due = positions[index].state == State.OPEN
            else:
                is_due = strand.index in (index, -1) or strand.index >= len(positions)
            if is_due:
                found[name] = index
    later = {name: -1 for name, strand in strands.items() if strand.index >= len(positions)}
    return [*(later | found).items()]
