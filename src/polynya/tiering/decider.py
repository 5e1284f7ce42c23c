"""Decide slices that were built while transactions were open: their entries lose flag 8, so that
they can become parts of pages, and the rows of aborted transactions can go.

What has no aborted batch is decided by a command, and no byte is rewritten. The others are
rewritten alone, with flag 4 on these batches. So this works also where nothing is merged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from polynya.base.levels import TRANSACTION_LEVEL
from polynya.base.limits import DECIDED_MAX
from polynya.cold.groups import Groups, survey
from polynya.cold.rewriting.merge_planner import MergeRun
from polynya.cold.rewriting.merger import Merger, rewrite
from polynya.cold.steps import FAULTS, Steps
from polynya.jobs import Failures, repeat
from polynya.stream.features.markers.commands import DecideEntries
from polynya.stream.features.markers.decisions import undecided_from, undecided_in
from polynya.stream.machine import Machine
from polynya.stream.state import index
from polynya.stream.state.aborted import ROW, aborted_of
from polynya.stream.state.entries import ENTRY_BYTES
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import stable_of

log = logging.getLogger("polynya.cold")

INTERVAL_SECONDS = 10.0
REWRITTEN_MAX = 64  # slices of one pass
UNDECIDED_MAX = 4096  # entries, or rows, of a stream; more are told
KNOWN_MAX = 65_536  # streams with decided entries that are remembered


class DecideCounters(msgspec.Struct):
    """Counters; they only grow."""

    decided: int = 0  # ranges of entries that lost their flag
    rewritten: int = 0  # slices with aborted batches
    failures: int = 0
    failures_in_a_row: int = 0
    most: int = (
        0  # undecided entries, or rows of aborted transactions, of a stream: of the last pass
    )


class _Plan(msgspec.Struct):
    """The ranges and slices of one pass."""

    ranges: dict[int, list[tuple[int, int, int]]] = msgspec.field(default_factory=dict)
    runs: list[MergeRun] = msgspec.field(default_factory=list)
    most: int = 0


class Decider:
    """The decider of one core. The merger rewrites slices for it."""

    def __init__(
        self,
        groups: Groups,
        steps: Steps,
        merger: Merger,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.counters = DecideCounters()
        self._groups = groups
        self._steps = steps
        self._merger = merger
        self._sleep = sleep
        self._known: dict[int, int] = {}  # uids: the record before which all is decided
        self._logged: set[int] = set()  # uids of streams with too many rows
        self._failures = Failures(
            log, "deciding slices failed; retrying", *FAULTS, counters=self.counters
        )

    async def run(self) -> None:
        """Decide until cancelled."""
        await repeat(self._pass, INTERVAL_SECONDS, sleep=self._sleep)

    async def _pass(self) -> None:
        await self.decide_due()

    async def decide_due(self) -> int:
        """Look at all streams with transactions once. Return how many ranges and slices were
        decided."""
        plan = await self._planned()
        done = 0
        with self._failures:
            commands = {
                group: DecideEntries(ranges[:DECIDED_MAX], self._groups.now_ms())
                for group, ranges in plan.ranges.items()
            }
            for _, outcome in await self._steps.propose_all(commands):
                if isinstance(outcome, BaseException):
                    raise outcome
                done += len(outcome.detail or ())
            self.counters.decided += done
            if plan.runs:
                rewritten = await rewrite(self._merger, plan.runs)
                self.counters.rewritten += rewritten
                done += rewritten
        return done

    async def _planned(self) -> _Plan:
        plan = _Plan()
        for group, machine in list(self._groups.machines().items()):
            if not self._groups.may_log(machine, TRANSACTION_LEVEL):
                continue
            async for streams in survey(machine.directory.streams.values()):
                for stream in streams:
                    if stream.kafka is not None and stream.cold and not stream.deleted:
                        self._plan(plan, group, machine, stream)
        self.counters.most = plan.most
        return plan

    def _plan(self, plan: _Plan, group: int, machine: Machine, stream: Stream) -> None:
        """Add the entries of a stream that lie before its stable end."""
        cold, rows = stream.cold, aborted_of(stream)
        assert cold is not None
        begin = index.first_from(cold, self._known.get(stream.uid, 0))
        most = max(undecided_from(cold, begin), len(rows) // ROW.size)
        plan.most = max(plan.most, most)
        self._log_large(stream, most)
        end = min(index.entries_before(cold, stable_of(stream)[0]), begin + DECIDED_MAX)
        if begin >= end:
            return
        entries = index.cut(cold, begin, end)
        clear, marked = undecided_in(entries, rows)
        if clear:
            first, last = index.span(entries, clear[0], clear[-1] + 1)
            plan.ranges.setdefault(group, []).append((stream.uid, first, last))
        lengths = index.lengths(entries) if marked else []
        for at in self._free(stream, entries, marked)[: REWRITTEN_MAX - len(plan.runs)]:
            plan.runs.append(
                MergeRun(group, stream.uid, *index.span(entries, at, at + 1), 1, lengths[at])
            )
        self._note(stream.uid, entries, min([*clear, *marked], default=end - begin))

    def _free(self, stream: Stream, entries: bytes, marked: Sequence[int]) -> list[int]:
        """Return the entries that no job of a table may be reading."""
        claims = (stream.tables or {}).values()
        found = []
        for at in marked:
            first, last = index.span(entries, at, at + 1)
            if not any(claim.published < last and first < claim.claimed for claim in claims):
                found.append(at)
        return found

    def _note(self, uid: int, entries: bytes, decided: int) -> None:
        """Remember that the first `decided` of these entries are."""
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        if decided:
            count = min(decided, len(entries) // ENTRY_BYTES)
            self._known[uid] = index.span(entries, 0, count)[1]

    def _log_large(self, stream: Stream, count: int) -> None:
        if count > UNDECIDED_MAX and stream.uid not in self._logged:
            self._logged.add(stream.uid)
            log.warning(
                "the slices of the stream with uid %d are undecided: %d entries of its index, or "
                "aborted transactions that they do not mark",
                stream.uid,
                count,
            )
        elif count <= UNDECIDED_MAX // 2:
            self._logged.discard(stream.uid)
