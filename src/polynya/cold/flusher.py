"""The flusher of a core: collect candidates, build packs, put them, publish their slices."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from secrets import token_bytes

import msgspec
from msgspec import structs

from polynya.base import limits
from polynya.base.errors import Unavailable
from polynya.cold.groups import SURVEY_STREAMS, Groups, survey
from polynya.cold.planner import (
    STREAMS_MAX,
    Candidate,
    PackPlan,
    SlicePlan,
    Waiting,
    choose,
    plan_packs,
)
from polynya.cold.settings import FlushSettings
from polynya.cold.steps import (
    FAULTS,
    TRIES,
    Steps,
    entries_for,
    let_the_loop_run,
    zstd_levels,
)
from polynya.jobs import BACKOFF_SECONDS, Rest, pause_after, repeat, wait_for
from polynya.objectstore.api import ObjectStore
from polynya.stream.features.appends.undecided import decided_end
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.machine import Machine
from polynya.stream.parts import TRANSACTIONAL, UNDECIDED
from polynya.stream.replies import Reply
from polynya.stream.state.model import ColdSlice, Stream
from polynya.stream.state.tails import Boundary, stable_of
from polynya.wire.pack import PackBuilder, pack_key, pressed
from polynya.wire.slice_building import build_slice

log = logging.getLogger("polynya.cold")

# smaller packs are built on the loop, in less than a millisecond …
THREAD_FROM_BYTES = 256 * 1024
ZSTD_THREAD_FROM_BYTES = 32 * 1024  # … and these if they are compressed
YIELD_BATCHES = 256  # batches packed between two pauses, about 0.3 ms
SLICE_COST_BATCHES = 10  # the fixed cost of a slice, in batches
# above this and 4 * `from_bytes` hot bytes, flush before the interval ends
PRESSURE_BYTES_MIN = 16 * limits.MIB
REST_SECONDS = 0.5  # minimum pause after a failed pass
PRESSURE_POLL_SECONDS = 0.05
AGE_SCANS = 32  # per `age_ms_max`; an age scan visits every stream with hot batches

# few groups hold a pack; a reader of several of its streams reads one range
_NEIGHBOURS = attrgetter("group", "uid")
NO_LEVELS: Mapping[int, int] = {}
_RECORD = attrgetter("record")
Tails = dict[tuple[int, int], int]  # the first record that need not be flushed


class FlushCounters(msgspec.Struct):
    """Counters for metrics; they only grow."""

    packs: int = 0
    slices: int = 0
    bytes: int = 0  # payload bytes published
    stored_bytes: int = 0  # of their slices in the store
    failures: int = 0  # packs abandoned; their streams are planned again
    refused: int = 0  # slices that a group refused because the stream had changed


class Flusher:
    """The flusher of one core. `run` is its task; `flush_now` may be called concurrently."""

    def __init__(
        self,
        groups: Groups,
        store: ObjectStore,
        settings: FlushSettings,
        cluster_id: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.counters = FlushCounters()
        self.in_flight: set[str] = set()  # keys of packs in flight; the collector skips them
        self._groups = groups
        self._steps = Steps(groups, store, sleep)
        self._settings = settings
        self._cluster_id = cluster_id
        self._sleep = sleep
        self._busy: set[int] = set()  # uids of streams in packs in flight
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._ended = asyncio.Event()  # set and replaced whenever a pack has finished
        self._wake = asyncio.Event()
        self._recovered = asyncio.Event()
        self._failures = 0  # consecutive passes with a failed pack
        self._age_scan_ms = 0
        self._pressure = max(PRESSURE_BYTES_MIN, 4 * settings.from_bytes)
        self._hot = (-1, 0)  # the turn at which the hot bytes were summed, and their sum

    async def run(self) -> None:
        """Flush streams that are due until cancelled. Failures of the store and the log are
        retried; damage affects only its stream."""
        if self._settings.interval_ms:
            await repeat(self._pass, 0.0)

    async def _pass(self) -> Rest:
        self._recovered.clear()
        due = await self.flush_due()
        if self._failures:
            await self._rest(pause_after(self._failures))
        elif not due:
            await self._wait(self._settings.interval_ms / 1000)
        return Rest(0.0)

    def wake(self) -> None:
        """Scan now, because many hot bytes have arrived."""
        self._wake.set()

    def recover(self) -> None:
        """Retry soon, because the store works again."""
        self._recovered.set()

    def trouble(self) -> str | None:
        """Return why hot bytes cannot be flushed, or None if the latest pass succeeded."""
        if not self._failures:
            return None
        return (
            "packs cannot be written (see the log): appends continue until the limit of hot "
            "bytes, then get 503"
        )

    async def flush_due(self) -> int:
        """Run one pass and return the number of packs published."""
        self._groups.faulted.look()
        outcomes = await self._flush_all(plan_packs(await self._due(), self._settings))
        self._failures = self._failures + 1 if None in outcomes else 0
        return sum(outcome is True for outcome in outcomes)

    async def flush_now(self, prefix: str | None = None, *, whole: bool = False) -> None:
        """Publish everything that is hot now, of the streams whose canonical names begin with
        `prefix`; what lies behind the first open transaction only if `whole`.

        Raises Unavailable if the store or the log fails TRIES times, or if a stream is set aside.
        No data is lost, and the call may be retried.
        """
        until = _whole_end if whole else _stable_end
        tails = await self._tails(prefix, until)
        asked = set(tails)
        failures = 0
        while True:
            ended = self._ended
            tails = await self._still_hot(tails)
            if not tails:
                self._groups.faulted.refuse_any(uid for _, uid in asked)
                return
            plans = plan_packs(self._candidates(tails, until), self._settings)
            if not plans:
                await ended.wait()  # the streams are in packs in flight
                continue
            if True in await self._flush_all(plans):
                failures = 0
                continue
            failures += 1
            if failures == TRIES:
                raise Unavailable(
                    "hot data could not be flushed to the object store; it is safe in the "
                    "journal: retry later"
                )
            await self._sleep(BACKOFF_SECONDS * 2**failures)

    async def has_hot(self, prefix: str | None = None) -> bool:
        """Report whether there is anything to flush."""
        return bool(await self._tails(prefix, _whole_end))

    # --- choosing ---------------------------------------------------------------------------------

    async def _due(self) -> list[Candidate]:
        """Return the streams to flush. The call is cheap while nothing is due: machines count hot
        bytes, and ages are scanned rarely."""
        now_ms = self._groups.now_ms()
        if self._hot_bytes() < self._settings.from_bytes and now_ms < self._age_scan_ms:
            return []
        self._age_scan_ms = now_ms + self._settings.age_ms_max // AGE_SCANS
        most = 0 if self._hot_bytes() >= self._pressure else self._settings.hot_bytes_max
        scarce = _scarce(self._groups.machines(), most)
        until = partial(_due_end, scarce, now_ms, self._settings.age_ms_max)
        waiting: list[Waiting] = []
        async for group, streams in self._hot_streams():
            waiting += [
                Waiting(group, stream.uid, size, stream.hot[0].time_ms)
                for stream in streams
                if stream.hot
                and stream.uid not in self._busy
                and stream.uid not in self._groups.faulted
                and (size := until(group, stream)[1] - stream.hot[0].byte) > 0
            ]
        chosen = choose(waiting, self._settings, now_ms)
        if len(chosen) == STREAMS_MAX:
            self._age_scan_ms = now_ms  # more streams may be due
        return self._candidates([(each.group, each.uid) for each in chosen], until)

    async def _tails(self, prefix: str | None, until: Callable[[int, Stream], Boundary]) -> Tails:
        tails = {}
        async for group, streams in self._hot_streams():
            for stream in streams:
                if prefix is None or stream.name.startswith(prefix):
                    tails[group, stream.uid] = until(group, stream)[0]
        return tails

    async def _hot_streams(self) -> AsyncIterator[tuple[int, list[Stream]]]:
        """Yield all streams with hot batches in chunks."""
        for group, machine in list(self._groups.machines().items()):
            async for some in survey(machine.directory.hot.values()):
                yield group, some

    async def _still_hot(self, tails: Tails) -> Tails:
        """Return the streams with a hot batch before their tail, without those set aside."""
        left = {}
        for number, ((group, uid), record) in enumerate(tails.items()):
            if number % SURVEY_STREAMS == SURVEY_STREAMS - 1:
                await asyncio.sleep(0)
            stream = self._stream(group, uid)
            if (
                stream is not None
                and stream.hot
                and stream.hot[0].record < record
                and uid not in self._groups.faulted
            ):
                left[group, uid] = record
        return left

    def _candidates(
        self, chosen: Iterable[tuple[int, int]], until: Callable[[int, Stream], Boundary]
    ) -> list[Candidate]:
        """Return at most `STREAMS_MAX` candidates in their current state, without those in flight.
        `until`: the end of what is to be flushed."""
        found: list[Candidate] = []
        for group, uid in chosen:
            stream = self._stream(group, uid)
            if (
                stream is not None
                and stream.hot
                and uid not in self._busy
                and uid not in self._groups.faulted
            ):
                end = until(group, stream)[0]
                if stream.hot[0].record >= end:
                    continue
                found.append(_candidate(group, stream, end))
                if len(found) == STREAMS_MAX:
                    break
        found.sort(key=_NEIGHBOURS)
        return found

    def _stream(self, group: int, uid: int) -> Stream | None:
        machine = self._groups.machines().get(group)
        return machine.directory.by_uid.get(uid) if machine else None

    # --- flushing ---------------------------------------------------------------------------------

    async def _flush_all(self, plans: list[PackPlan]) -> list[bool | None]:
        """Flush packs concurrently.

        Return for each whether it published anything, or None if it failed. The streams stay busy
        until all packs have finished, so a cancelled caller leaves none in flight.
        """
        uids = {uid for plan in plans for uid in plan.uids}
        terms = {group: self._groups.term(group) for plan in plans for group in plan.groups}
        self._busy |= uids
        try:
            async with asyncio.TaskGroup() as tasks:
                flushes = [tasks.create_task(self._flush(plan, terms)) for plan in plans]
        finally:
            self._busy -= uids
            self._ended.set()
            self._ended = asyncio.Event()
        return [flush.result() for flush in flushes]

    async def _flush(self, plan: PackPlan, terms: Mapping[int, int]) -> bool | None:
        """Flush a pack; `terms` are those in which it was planned, before it waited for a slot."""
        try:
            async with self._slots:
                return await self._carry_out(plan, terms)
        except FAULTS as fault:
            self.counters.failures += 1
            log.warning(
                "a pack of %d bytes was not published and will be planned again: %s",
                plan.size,
                fault,
            )
            return None

    async def _carry_out(self, plan: PackPlan, terms: Mapping[int, int]) -> bool:
        now_ms = self._groups.now_ms()
        key = pack_key(
            self._cluster_id, owner_group=plan.owner_group, now_ms=now_ms, random=token_bytes(16)
        )
        levels = zstd_levels(self._groups, plan.groups, self._settings.zstd_level)
        if plan.size < (ZSTD_THREAD_FROM_BYTES if any(levels.values()) else THREAD_FROM_BYTES):
            built = build_pack(plan, key, now_ms, levels)
        else:
            built = await asyncio.to_thread(build_pack, plan, key, now_ms, levels, let_the_loop_run)
        for each, fault in built.faults:
            await self._meet(each, fault)
        return bool(built.slices) and await self._put(key, plan, built, terms)

    async def _put(self, key: str, plan: PackPlan, built: Built, terms: Mapping[int, int]) -> bool:
        self.in_flight.add(key)
        try:
            await self._steps.write(
                key, built.parts, plan.owner_group, sorted({each.group for each, _ in built.slices})
            )
            self.counters.packs += 1
            published = await self._publish(key, plan.owner_group, built, terms)
            if plan.size >= THREAD_FROM_BYTES:
                await asyncio.to_thread(release_payload, plan)
            return published
        finally:
            self.in_flight.discard(key)

    async def _meet(self, each: SlicePlan, fault: Exception) -> None:
        """Reread a damaged batch so that it is planned again. If that fails, set the stream
        aside."""
        if await self._groups.repair(each.group, each.uid, each.batches):
            return
        last = each.batches[-1]
        extra = {
            "group": each.group,
            "stream": each.uid,
            "record": each.batches[0].record,
            "error": repr(fault),
        }
        log.error(
            "a stream is set aside, because its data cannot be stored: appends to it are refused",
            extra=extra,
        )
        self._groups.faulted.set_aside(
            each.group, each.uid, last.byte + len(last.payload), str(fault)
        )

    async def _publish(
        self, key: str, owner_group: int, built: Built, terms: Mapping[int, int]
    ) -> bool:
        members: dict[int, list[tuple[int, ColdSlice]]] = {}
        for each, cold in built.slices:
            members.setdefault(each.group, []).append((each.uid, cold))
        now_ms = self._groups.now_ms()
        machines = self._groups.machines()
        commands = {
            group: PublishSlices(
                key,
                owner_group,
                terms[group],
                entries_for(self._groups, machines.get(group), listed),
                now_ms,
            )
            for group, listed in members.items()
        }
        outcomes = await self._steps.propose_all(commands)
        published = sum(
            self._count(members[group], reply)
            for group, reply in outcomes
            if isinstance(reply, Reply)
        )
        for _, outcome in outcomes:
            if not isinstance(outcome, Reply):
                raise outcome
        return published > 0

    def _count(self, members: list[tuple[int, ColdSlice]], reply: Reply) -> int:
        accepted = [members[position][1] for position in reply.detail or ()]
        self.counters.slices += len(accepted)
        self.counters.bytes += sum(cold.length for cold in accepted)
        self.counters.stored_bytes += sum(cold.stored for cold in accepted)
        self.counters.refused += len(members) - len(accepted)
        return len(accepted)

    # --- waiting ----------------------------------------------------------------------------------

    async def _rest(self, seconds: float) -> None:
        """Wait after a failed pass. The wait ends early when the store recovers, but lasts at least
        REST_SECONDS against flapping."""
        shortest = min(seconds, REST_SECONDS)
        await self._sleep(shortest)
        await wait_for(self._recovered, seconds - shortest)

    async def _wait(self, seconds: float) -> None:
        """Wait until the time is over, `wake` is called, or a burst has filled the hot tier far
        beyond its limit."""
        deadline = time.monotonic() + seconds
        while (
            (left := deadline - time.monotonic()) > 0
            and not self._wake.is_set()
            and self._hot_bytes() < self._pressure
        ):
            await wait_for(self._wake, min(left, PRESSURE_POLL_SECONDS))
        self._wake.clear()

    def _hot_bytes(self) -> int:
        turns = self._groups.turns()
        if self._hot[0] != turns:
            self._hot = (
                turns,
                sum(machine.directory.hot_bytes for machine in self._groups.machines().values()),
            )
        return self._hot[1] - self._groups.faulted.bytes


def _scarce(machines: Mapping[int, Machine], most: int) -> set[int]:
    """Return the groups that have half of the hot bytes that they may have."""
    return {each for each in machines if 2 * machines[each].directory.hot_bytes >= most}


def _due_end(
    scarce: set[int], now_ms: int, age_ms_max: int, group: int, stream: Stream
) -> Boundary:
    """Return where the hot batches of a stream end that may be flushed: before those of open
    transactions and what follows them, unless these are old, or memory is scarce."""
    stable, tail, hot = stable_of(stream), decided_end(stream), stream.hot
    if stable == tail or not hot or group in scarce:
        return tail
    at = bisect_left(hot, stable[0], key=_RECORD)
    is_old = at < len(hot) and hot[at].time_ms + age_ms_max <= now_ms
    return tail if is_old else stable


def _stable_end(group: int, stream: Stream) -> Boundary:
    return stable_of(stream)


def _whole_end(group: int, stream: Stream) -> Boundary:
    return decided_end(stream)


def _candidate(group: int, stream: Stream, end: int) -> Candidate:
    """Return a stream with its hot batches before this record."""
    hot = stream.hot or []
    count = bisect_left(hot, end, key=_RECORD)
    return Candidate(
        group,
        stream.uid,
        stream.name,
        stream.content_type,
        not stream.cold,
        hot[:count],
        hot[count].record if count < len(hot) else stream.next_record,
        stable_of(stream)[0],
    )


class Built(msgspec.Struct):
    """A pack: the object's parts, each slice with its index entry, and the slices that could not be
    built."""

    parts: list[bytes]
    slices: list[tuple[SlicePlan, ColdSlice]]
    faults: list[tuple[SlicePlan, Exception]]


def build_pack(
    plan: PackPlan,
    key: str,
    now_ms: int,
    levels: Mapping[int, int] = NO_LEVELS,
    between: Callable[[], None] = lambda: None,
) -> Built:
    """Build a pack of all slices that can be built. `levels` of zstd are by group.

    May run in a thread, since hot batches never change. `between` is called after every
    YIELD_BATCHES of work. Slices are published in order, so a slice that cannot be built excludes
    the rest of its stream from this pack.
    """
    builder = PackBuilder()
    found: list[tuple[SlicePlan, ColdSlice]] = []
    faults: list[tuple[SlicePlan, Exception]] = []
    broken: set[int] = set()
    work = 0
    for each in plan.slices:
        if each.uid in broken:
            continue
        head = each.batches[0]
        try:
            built = pressed(
                build_slice(each.encoding, head.record, head.byte, each.batches),
                levels.get(each.group, 0),
            )
        except MemoryError:
            raise
        except Exception as fault:  # noqa: BLE001 (bad data of one stream must not affect the others)
            faults.append((each, fault))
            broken.add(each.uid)
            continue
        entry = builder.add(
            each.uid, each.group, built, path=each.path, content_type=each.content_type
        )
        cold = entry.at(key, head.record, head.byte, missing_records=each.missing_records)
        if each.undecided and cold.flags & TRANSACTIONAL:
            cold = structs.replace(cold, flags=cold.flags | UNDECIDED)
        found.append((each, cold))
        work += len(each.batches) + SLICE_COST_BATCHES
        if work >= YIELD_BATCHES:
            between()
            work = 0
    parts, _ = builder.finish(owner_group=plan.owner_group, created_ms=now_ms)
    return Built(parts, found, faults)


def release_payload(plan: PackPlan) -> None:
    """Free the batches in a thread, in steps. Freeing them at once would block the loop for about
    ten milliseconds."""
    work = 0
    for each in plan.slices:
        work += len(each.batches)
        each.batches = ()
        if work >= YIELD_BATCHES:
            let_the_loop_run()
            work = 0
