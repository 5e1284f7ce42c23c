"""Merge small slices: find runs, read them, put one pack of larger slices, replace the entries in
the indexes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from heapq import nlargest
from operator import attrgetter
from secrets import token_bytes
from time import monotonic

import msgspec

from polynya.base import limits
from polynya.cold.compaction.in_hand import InHand
from polynya.cold.fetches import Location
from polynya.cold.groups import Groups, survey
from polynya.cold.pager import Pager
from polynya.cold.planner import SLICES_MAX
from polynya.cold.requests import cut_requests
from polynya.cold.rewriting.merge_planner import (
    FAN_IN,
    PAGE_FULL_SHARE,
    MergeRun,
    Segment,
    cut_segments,
    plan_packs,
    plan_runs,
)
from polynya.cold.rewriting.merged_slices import MergeSource, build_merged
from polynya.cold.settings import EvictSettings, MergeSettings
from polynya.cold.sparse_packs import (
    HiddenPacks,
    PackLimits,
    PackUses,
    choose_packs,
    is_worth,
    packs_of,
    runs_in,
)
from polynya.cold.steps import FAULTS, Steps, entries_for, zstd_levels
from polynya.jobs import Failures, Rest, pause_after, repeat
from polynya.objectstore.api import NotFound, ObjectStore
from polynya.stream.features.packs.commands import ReplaceSlices
from polynya.stream.machine import Machine
from polynya.stream.parts import ColdSlice
from polynya.stream.replies import Reply
from polynya.stream.state import index, record_gaps
from polynya.stream.state.aborted import aborted_of
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import is_stable, stable_of
from polynya.wire.pack import pack_key

log = logging.getLogger("polynya.cold")

SETTLED_MIN = 1024  # above this many entries in closed lines, a scan skips the start of an index
# pause between scans, as a multiple of the last scan's time; with a million streams a scan is
# costly
LOOK_REST = 50
BOUNDS_MAX = 4096  # changes of encoding that are remembered of one stream
RUNS_MAX = 4096  # runs found by one scan
BYTES_MAX = 64 * limits.MIB  # payload merged per scan; after that other runs may be better
REQUESTS = 16  # concurrent requests
GATHER_SECONDS = 10.0  # between two looks for small packs: they read all indexes
EVICTION = EvictSettings()
_WORTH = attrgetter("worth")


class MergeCounters(msgspec.Struct):
    """Counters for metrics; they only grow."""

    packs: int = 0
    slices: int = 0  # slices replaced by fewer
    bytes: int = 0  # payload bytes rewritten
    stored_bytes: int = 0  # of the new slices in the store
    failures: int = 0  # packs abandoned, and slices that could not be read
    refused: int = 0  # runs that a group refused because the stream had changed


class Merger:
    """The merger of one core. It shares `in_flight` with the flusher, and knows the settings of the
    evictor. `run` is its task."""

    def __init__(
        self,
        groups: Groups,
        store: ObjectStore,
        settings: MergeSettings,
        cluster_id: str,
        in_flight: set[str],
        *,
        eviction: EvictSettings = EVICTION,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.counters = MergeCounters()
        self._groups = groups
        self._store = store
        self._steps = Steps(groups, store, sleep)
        self._settings = settings
        self._cluster_id = cluster_id
        self.in_hand = InHand(in_flight)  # shared with the compactor
        self._sleep = sleep
        self._looked: dict[
            int, int
        ] = {}  # uids with nothing to merge, and their entry count at that scan
        self._settled: dict[
            int, int
        ] = {}  # uids of long indexes, and the record before which all lines are closed
        self._jobs: dict[
            int, tuple[int, int]
        ] = {}  # tables, their latest jobs, and the log time at which each was first seen here
        self._found: dict[
            int, set[int]
        ] = {}  # uids, and the first records of entries that join no earlier one, as merging has found
        self.pager = Pager(groups, self._steps, settings, cluster_id, in_flight)
        self._damaged: set[int] = set()  # uids with unreadable slices; their readers get the errors
        self.hidden = HiddenPacks(groups, store, eviction)
        self._gather_at = 0.0  # the earliest time of the next look for small packs
        self._failures = Failures(
            log, "merging small slices failed; retrying", *FAULTS, counters=self.counters
        )
        self._look_seconds = 0.0  # duration of the last scan
        self._long: dict[int, int] = {}  # uids of streams with long indexes, and their groups
        self._more = False  # the last scan found more than was merged

    async def run(self) -> None:
        """Merge runs until cancelled, at a rate that leaves the core to other work."""
        if self._settings.interval_ms:
            await repeat(self._pass, 0.0, sleep=self._sleep)

    async def _pass(self) -> Rest:
        await self.merge_due()
        if self._failures.in_a_row:
            return Rest(pause_after(self._failures.in_a_row))
        rest = max(self._settings.interval_ms / 1000, LOOK_REST * self._look_seconds)
        return Rest(0.0 if self._more else rest)

    async def merge_due(self) -> int:
        """Scan all indexes once and merge the runs that save most per byte written. Return the
        number of packs."""
        merged = 0
        began = monotonic()
        found = await self._look()
        self._look_seconds = monotonic() - began
        with self._failures:
            found += await self._gather({run.uid for run in found})
            chosen = list(_within(found))
            self._more = len(chosen) < len(found)
            for runs in plan_packs(chosen, self._settings):
                began = monotonic()
                merged += await self._merge(runs)
                took = monotonic() - began
                await self._sleep(
                    max(0.0, sum(run.size for run in runs) / self._settings.bytes_per_second - took)
                )
            for uid, group in self._long.items():
                if uid not in self.in_hand.compacted:
                    await self.pager.page_out(group, uid)
        return merged

    # --- scanning ---------------------------------------------------------------------------------

    async def _look(self) -> list[MergeRun]:
        """Return the most worthwhile runs. Streams that have not grown since the last scan cost
        almost nothing."""
        now_ms = self._groups.now_ms()
        known, self._looked = self._looked, {}
        self._long = {}
        settled, self._settled = self._settled, {}
        found: list[MergeRun] = []
        for group, machine in list(self._groups.machines().items()):
            self._note_jobs(machine, now_ms)
            async for streams in survey(machine.directory.streams.values()):
                for stream in streams:
                    entries = index.count(stream.cold)
                    if entries >= self._settings.page_entries // PAGE_FULL_SHARE:
                        self._long[stream.uid] = group
                    if entries < FAN_IN or stream.uid in self._damaged:
                        continue
                    if known.get(stream.uid) == entries:
                        self._looked[stream.uid] = entries
                    else:
                        found += self._runs_of(group, stream, settled.get(stream.uid, 0), now_ms)
                if len(found) > 2 * RUNS_MAX:
                    found = nlargest(RUNS_MAX, found, key=_WORTH)
        return nlargest(RUNS_MAX, found, key=_WORTH)

    async def _gather(self, busy: Container[int]) -> list[MergeRun]:
        """Return runs that empty small packs, if this core has too many packs. The streams `busy`
        have other runs."""
        machines, spare = list(self._groups.machines().items()), self._settings.packs_spare
        if (
            sum(len(each.packs.held) for _, each in machines) <= spare
            or monotonic() < self._gather_at
        ):
            return []
        self._gather_at = monotonic() + GATHER_SECONDS
        uses, packs = PackUses(), self._pack_limits()
        async for group, machine, stream in _each_stream(machines):
            uses.add(group, machine, stream)
        try:
            await self.hidden.look(uses, packs)
            chosen = set(choose_packs(uses.live(), packs))
            await self.hidden.return_named(chosen)
        except FAULTS:
            self.hidden.go_on()
            raise
        found: list[MergeRun] = []
        moved: Counter[str] = Counter()
        now_ms = self._groups.now_ms()
        async for group, machine, stream in _each_stream(machines if chosen else []):
            if stream.uid not in busy and stream.uid not in self._damaged:
                for run, keys in self._sparse_runs(group, machine, stream, chosen, now_ms):
                    found.append(run)
                    moved.update(keys)
        emptied = sum(moved[key] >= uses.slices[key] for key in chosen)
        if not is_worth(emptied, len(plan_packs(found, self._settings))):
            self.hidden.gained_nothing(chosen)
            return []
        self.hidden.go_on()
        return found

    def _pack_limits(self) -> PackLimits:
        return PackLimits(
            pack_bytes=self._settings.pack_bytes_max,
            pack_slices=SLICES_MAX,
            spare=self._settings.packs_spare,
            bytes_max=BYTES_MAX,
            slices_max=RUNS_MAX,
        )

    def _sparse_runs(
        self, group: int, machine: Machine, stream: Stream, chosen: Container[str], now_ms: int
    ) -> Iterator[tuple[MergeRun, list[str]]]:
        """Yield the runs of one stream whose slices are in chosen packs, and these packs."""
        locations, data = packs_of(stream), stream.cold
        keys = [machine.packs.by_number.get(number, "") for number, _ in locations]
        if data is None or not any(key in chosen for key in keys):
            return
        lengths = [length for _, length in locations]
        segments, _ = self._segments(stream, data, len(locations), now_ms)
        for begin, end in runs_in(keys, lengths, segments, chosen, self._settings.slice_bytes_max):
            span, size = index.span(data, begin, end), sum(lengths[begin:end])
            yield MergeRun(group, stream.uid, *span, end - begin, size), keys[begin:end]

    def _note_jobs(self, machine: Machine, now_ms: int) -> None:
        for table, job in machine.claims.jobs.items():
            if self._jobs.get(table, (-1, 0))[0] < job:
                self._jobs[table] = (job, now_ms)

    def _runs_of(self, group: int, stream: Stream, settled: int, now_ms: int) -> list[MergeRun]:
        """Return the runs of one stream. All lines before record `settled` are closed."""
        assert stream.cold is not None
        skipped = index.first_from(stream.cold, settled)
        data = index.behind(stream.cold, skipped)
        lengths = index.lengths(data)
        segments, resting = self._segments(stream, data, len(lengths), now_ms)
        runs, quiet = plan_runs(lengths, segments, self._settings.slice_bytes_max)
        if not runs and not resting:
            self._looked[stream.uid] = skipped + len(lengths)
        if quiet + skipped >= SETTLED_MIN:
            self._settled[stream.uid] = index.span(data, 0, quiet)[1] if quiet else settled
        return [
            MergeRun(
                group,
                stream.uid,
                *index.span(data, begin, end),
                end - begin,
                sum(lengths[begin:end]),
            )
            for begin, end in runs
        ]

    def _segments(
        self, stream: Stream, data: index.Entries, count: int, now_ms: int
    ) -> tuple[list[Segment], list[Segment]]:
        """Return the segments that may be merged, and those that a driver may be reading."""
        bounds, resting = self._bounds(stream, data, now_ms)
        known = [*bounds, *self._known(stream.uid, data), *record_gaps.entries_behind(data)]
        return cut_segments(count, known, [*resting, *index.pages(data)]), resting

    def _known(self, uid: int, data: index.Entries) -> list[int]:
        """Return the entries of an index that join no earlier one, as far as merging has found."""
        return [index.first_from(data, record) for record in self._found.get(uid, ())]

    def _bounds(
        self, stream: Stream, data: index.Entries, now_ms: int
    ) -> tuple[list[int], list[Segment]]:
        """Return the entry numbers at which claims begin and end, and the segments that a driver
        may be reading, or that transactions are open in."""
        bounds: list[int] = []
        resting: list[Segment] = []
        if not is_stable(stream):  # what may be aborted is merged later
            resting.append((index.entries_before(data, stable_of(stream)[0]), index.count(data)))
        for table, claim in (stream.tables or {}).items():
            segment = index.first_from(data, claim.published), index.first_from(data, claim.claimed)
            bounds += segment
            job, since_ms = self._jobs.get(table, (0, 0))
            if claim.job == job and now_ms < since_ms + self._settings.claim_rest_ms:
                resting.append(segment)
        return bounds, resting

    # --- merging ----------------------------------------------------------------------------------

    async def _merge(self, runs: Sequence[MergeRun]) -> bool:
        """Merge runs into one pack. Return whether anything was replaced."""
        runs = [run for run in runs if run.uid not in self.in_hand.uids]
        uids = {run.uid for run in runs}
        self.in_hand.uids |= uids
        try:
            return await self._merge_held(runs)
        finally:
            self.in_hand.uids -= uids

    async def _merge_held(self, runs: Sequence[MergeRun]) -> bool:
        # in one step: what another leader has added to an index meanwhile was not looked at
        terms = {run.group: self._groups.term(run.group) for run in runs}
        sources = [source for run in runs if (source := self._source(run)) is not None]
        data = await self._read(sources)
        if not sources:
            return False
        now_ms = self._groups.now_ms()
        owner_group = sources[0].run.group
        key = pack_key(
            self._cluster_id, owner_group=owner_group, now_ms=now_ms, random=token_bytes(16)
        )
        levels = zstd_levels(self._groups, terms, self._settings.zstd_level)
        parts, slices = await asyncio.to_thread(build_merged, sources, data, key, now_ms, levels)
        members: dict[int, list[tuple[MergeRun, ColdSlice]]] = {}
        for source, cold in zip(sources, slices, strict=True):
            if cold is None and source.bounds:
                self._note_bounds(source)
            elif cold is None:
                self._note_damage(source)
            else:
                members.setdefault(source.run.group, []).append((source.run, cold))
        return bool(members) and await self._replace(key, owner_group, parts, members, terms)

    async def _replace(
        self,
        key: str,
        owner_group: int,
        parts: Sequence[bytes],
        members: Mapping[int, list[tuple[MergeRun, ColdSlice]]],
        terms: Mapping[int, int],
    ) -> bool:
        self.in_hand.packs.add(key)
        try:
            await self._steps.write(key, parts, owner_group, sorted(members))
            self.counters.packs += 1
            now_ms = self._groups.now_ms()
            machines = self._groups.machines()
            commands = {
                group: ReplaceSlices(
                    key,
                    owner_group,
                    terms[group],
                    entries_for(
                        self._groups, machines.get(group), [(run.uid, cold) for run, cold in listed]
                    ),
                    now_ms,
                )
                for group, listed in members.items()
            }
            outcomes = await self._steps.propose_all(commands)
        finally:
            self.in_hand.packs.discard(key)
        taken = sum(
            self._count(members[group], reply)
            for group, reply in outcomes
            if isinstance(reply, Reply)
        )
        for _, outcome in outcomes:
            if not isinstance(outcome, Reply):
                raise outcome
        return taken > 0

    def _count(self, members: Sequence[tuple[MergeRun, ColdSlice]], reply: Reply) -> int:
        accepted = [members[position] for position in reply.detail or ()]
        self.counters.slices += sum(run.entries for run, _ in accepted)
        self.counters.bytes += sum(run.size for run, _ in accepted)
        self.counters.stored_bytes += sum(cold.stored for _, cold in accepted)
        self.counters.refused += len(members) - len(accepted)
        return len(accepted)

    def _source(self, run: MergeRun) -> MergeSource | None:
        """Return the run in its current state, or None if it has changed."""
        machine = self._groups.machines().get(run.group)
        stream = machine.directory.by_uid.get(run.uid) if machine else None
        if machine is None or stream is None:
            return None
        begin, end = (
            index.first_from(stream.cold, run.record),
            index.first_from(stream.cold, run.end),
        )
        if end - begin != run.entries:
            return None
        entries = machine.packs.index_of(stream)[begin:end]
        named = (stream.name, stream.content_type) if begin == 0 else ("", "")
        return MergeSource(run, entries, *named, aborted_of(stream))

    async def _read(self, sources: Sequence[MergeSource]) -> dict[Location, memoryview]:
        """Return the stored bytes of all slices that exist. Raises StoreUnavailable."""
        named = (cold for source in sources for cold in source.entries if not cold.is_inline)
        requests = cut_requests([*named])
        found: dict[Location, memoryview] = {}
        for begin in range(0, len(requests), REQUESTS):
            await asyncio.gather(
                *(self._fetch(request, found) for request in requests[begin : begin + REQUESTS])
            )
        return found

    async def _fetch(self, request: Sequence[ColdSlice], found: dict[Location, memoryview]) -> None:
        begin, end = request[0].offset, request[-1].offset + request[-1].stored
        try:
            data = memoryview(await self._store.get_range(request[0].pack, begin, end - begin))
        except (NotFound, ValueError):
            return
        for cold in request:
            found[cold.pack, cold.offset] = data[
                cold.offset - begin : cold.offset - begin + cold.stored
            ]

    def _note_bounds(self, source: MergeSource) -> None:
        """Plan the next runs of a stream up to where the encoding of its batches changes, or one
        slice is full of records."""
        found = self._found.setdefault(source.run.uid, set())
        found.update(source.bounds)
        if len(found) > BOUNDS_MAX:
            del self._found[source.run.uid]
            self._damaged.add(source.run.uid)
            log.warning(
                "the stream with uid %d changes its encoding too often: its slices are not merged",
                source.run.uid,
            )

    def _note_damage(self, source: MergeSource) -> None:
        """Exclude a stream with lost or damaged slices from merging, unless the run has changed
        since."""
        if self._source(source.run) is not None:
            self.counters.failures += 1
            self._damaged.add(source.run.uid)
            log.error(
                "slices of the stream with uid %d cannot be read: they are not merged",
                source.run.uid,
            )


async def rewrite(merger: Merger, runs: Sequence[MergeRun]) -> int:
    """Write these runs into new packs, with the flags that are decided by now. Return the number of
    packs. Raises StoreError, Unavailable, OutcomeUnknown."""
    sound = [run for run in runs if run.uid not in merger._damaged]
    return sum([await merger._merge(some) for some in plan_packs(sound, merger._settings)])


async def _each_stream(
    machines: Iterable[tuple[int, Machine]],
) -> AsyncIterator[tuple[int, Machine, Stream]]:
    """Yield the streams that have slices, with their groups. Others work between."""
    for group, machine in machines:
        async for streams in survey(machine.directory.streams.values()):
            for stream in streams:
                if stream.cold:
                    yield group, machine, stream


def _within(runs: Iterable[MergeRun]) -> Iterator[MergeRun]:
    """Yield the leading runs, in total at most `BYTES_MAX`."""
    size = 0
    for run in runs:
        size += run.size
        if size > BYTES_MAX:
            return
        yield run
