"""The shell that flushes a core: collect candidates, build packs, put them, publish their slices."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from secrets import token_bytes

import msgspec

from polynya.base import limits
from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.cold.groups import Groups
from polynya.cold.planner import STREAMS_MAX, Candidate, FlushSettings, PackPlan, SlicePlan, Waiting, choose, plan_packs
from polynya.cold.steps import BACKOFF_SECONDS, TRIES, Steps, pause_after
from polynya.objectstore.api import ObjectStore, StoreError
from polynya.stream.commands import PublishSlices
from polynya.stream.replies import Reply
from polynya.stream.state.model import ColdSlice, Stream
from polynya.wire.pack import PackBuilder, build_slice, pack_key

log = logging.getLogger("polynya.cold")

THREAD_FROM_BYTES = 256 * 1024  # smaller packs are built on the loop, in well under a millisecond
YIELD_SECONDS = 0.0001
YIELD_BATCHES = 256  # packed between two pauses, about 0.3 ms
SLICE_COST_BATCHES = 10  # of a slice by itself
PRESSURE_BYTES_MIN = 16 * limits.MIB  # from here, and 4 times `from_bytes`, on the rest of an interval is not waited for
REST_SECONDS = 0.5  # at least, after a failed pass
PRESSURE_POLL_SECONDS = 0.05
SURVEY_STREAMS = 4096  # looked at in one go
AGE_SCANS = 32  # per `age_ms_max`: looking for old bytes touches every stream with hot ones

_NEIGHBOURS = attrgetter("group", "uid")  # so that few groups hold a pack, and who reads several streams of it reads one range
Tails = dict[tuple[int, int], int]  # (group, uid) -> first record that need not be flushed


class FlushCounters(msgspec.Struct):
    """What metrics show; only growing."""

    packs: int = 0
    slices: int = 0
    bytes: int = 0  # of payload, published
    failures: int = 0  # packs given up, to be planned again
    refused: int = 0  # slices that a group would not take: the stream had changed meanwhile


class Flusher:
    """One per core. `run` is its task; `flush_now` may be called beside it."""

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
        self.in_flight: set[str] = set()  # keys of packs on their way: the collector leaves them alone
        self._groups = groups
        self._steps = Steps(groups, store, sleep)
        self._settings = settings
        self._cluster_id = cluster_id
        self._sleep = sleep
        self._busy: set[int] = set()  # uids in packs on their way
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._ended = asyncio.Event()  # set, and replaced, whenever a pack has ended
        self._wake = asyncio.Event()
        self._recovered = asyncio.Event()
        self._failures = 0  # passes in a row with a pack that failed
        self._age_scan_ms = 0
        self._hot = (-1, 0)  # the turn at which the hot bytes were summed, and they

    async def run(self) -> None:
        """Flush what is due, for ever. Faults of store and log are met with patience; damage costs the stream that has it."""
        if not self._settings.interval_ms:
            return
        while True:
            self._recovered.clear()
            due = await self.flush_due()
            if self._failures:
                await self._rest(self._pause())
            elif not due:
                await self._wait(self._settings.interval_ms / 1000)

    def wake(self) -> None:
        """Look at once: many hot bytes have come in."""
        self._wake.set()

    def recover(self) -> None:
        """Try again soon: the store, which failed, works."""
        self._recovered.set()

    def trouble(self) -> str | None:
        """Why what is hot stays hot, when the latest pass failed."""
        if not self._failures:
            return None
        return "packs cannot be written, the log says why: appends go on until the bound of hot bytes, and then get 503"

    async def flush_due(self) -> int:
        """One pass; the number of packs published."""
        self._groups.faulted.look()
        outcomes = await self._flush_all(plan_packs(await self._due(), self._settings))
        self._failures = self._failures + 1 if None in outcomes else 0
        return sum(outcome is True for outcome in outcomes)

    async def flush_now(self, prefix: str | None = None) -> None:
        """Everything hot at this moment, of the streams whose canonical names begin with `prefix`, is published when this returns.

        Raises Unavailable when the store or the log fails again and again, or a stream is set aside: nothing is lost, and it may be tried again.
        """
        tails = await self._tails(prefix)
        asked = set(tails)
        failures = 0
        while True:
            ended = self._ended
            tails = await self._still_hot(tails)
            if not tails:
                self._check_set_aside(asked)
                return
            plans = plan_packs(self._candidates(tails), self._settings)
            if not plans:
                await ended.wait()  # others have them on their way
                continue
            if True in await self._flush_all(plans):
                failures = 0
                continue
            failures += 1
            if failures == TRIES:
                raise Unavailable("recent bytes could not be moved to the object store now; they are safe in the journal: try again later")
            await self._sleep(BACKOFF_SECONDS * 2**failures)

    def _check_set_aside(self, asked: set[tuple[int, int]]) -> None:
        """Raises Unavailable when one of the streams could not be stored."""
        if any(uid in self._groups.faulted for _, uid in asked):
            raise Unavailable(f"recent bytes cannot be moved to the object store: {self._groups.faulted.trouble()}")

    async def has_hot(self, prefix: str | None = None) -> bool:
        """Whether `flush_now` would have anything to do."""
        return bool(await self._tails(prefix))

    # Choosing.

    async def _due(self) -> list[Candidate]:
        """Cheap while nothing is due: the bytes are counted by the machines, ages are looked at now and then."""
        now_ms = self._groups.now_ms()
        if self._hot_bytes() < self._settings.from_bytes and now_ms < self._age_scan_ms:
            return []
        self._age_scan_ms = now_ms + self._settings.age_ms_max // AGE_SCANS
        waiting: list[Waiting] = []
        async for group, streams in self._hot_streams():
            waiting += [
                Waiting(group, stream.uid, stream.next_byte - stream.hot[0].byte, stream.hot[0].time_ms)
                for stream in streams
                if stream.hot and stream.uid not in self._busy and stream.uid not in self._groups.faulted
            ]
        chosen = choose(waiting, self._settings, now_ms)
        if len(chosen) == STREAMS_MAX:
            self._age_scan_ms = now_ms  # there may be more
        return self._candidates([(each.group, each.uid) for each in chosen])

    async def _tails(self, prefix: str | None) -> Tails:
        tails = {}
        async for group, streams in self._hot_streams():
            for stream in streams:
                if prefix is None or stream.name.startswith(prefix):
                    tails[group, stream.uid] = stream.next_record
        return tails

    async def _hot_streams(self) -> AsyncIterator[tuple[int, list[Stream]]]:
        """All streams with hot batches, some at a time: there may be a hundred thousand."""
        for group, machine in list(self._groups.machines().items()):
            streams = list(machine.hot.values())
            for begin in range(0, len(streams), SURVEY_STREAMS):
                yield group, streams[begin : begin + SURVEY_STREAMS]
                await asyncio.sleep(0)

    async def _still_hot(self, tails: Tails) -> Tails:
        """Those of which a batch before the tail is hot, without streams that are set aside."""
        left = {}
        for number, ((group, uid), record) in enumerate(tails.items()):
            if number % SURVEY_STREAMS == SURVEY_STREAMS - 1:
                await asyncio.sleep(0)
            stream = self._stream(group, uid)
            if stream is not None and stream.hot and stream.hot[0].record < record and uid not in self._groups.faulted:
                left[group, uid] = record
        return left

    def _candidates(self, chosen: Iterable[tuple[int, int]]) -> list[Candidate]:
        """At most `STREAMS_MAX` of them, as they are now, without those on their way."""
        found: list[Candidate] = []
        for group, uid in chosen:
            stream = self._stream(group, uid)
            if stream is not None and stream.hot and uid not in self._busy and uid not in self._groups.faulted:
                first = not stream.cold
                found.append(Candidate(group, uid, stream.name, stream.content_type, stream.encoding, first, list(stream.hot)))
                if len(found) == STREAMS_MAX:
                    break
        found.sort(key=_NEIGHBOURS)
        return found

    def _stream(self, group: int, uid: int) -> Stream | None:
        machine = self._groups.machines().get(group)
        return machine.by_uid.get(uid) if machine else None

    # Flushing.

    async def _flush_all(self, plans: list[PackPlan]) -> list[bool | None]:
        """For each pack: whether anything of it was published, None when it failed. Its streams are busy until all have ended: a caller
        that is cancelled leaves none behind."""
        uids = {uid for plan in plans for uid in plan.uids}
        self._busy |= uids
        try:
            async with asyncio.TaskGroup() as tasks:
                flushes = [tasks.create_task(self._flush(plan)) for plan in plans]
        finally:
            self._busy -= uids
            self._ended.set()
            self._ended = asyncio.Event()
        return [flush.result() for flush in flushes]

    async def _flush(self, plan: PackPlan) -> bool | None:
        try:
            async with self._slots:
                return await self._carry_out(plan)
        except (StoreError, Unavailable, OutcomeUnknown) as fault:
            self.counters.failures += 1
            log.warning("a pack of %d bytes was not published and will be planned again: %s", plan.size, fault)
            return None

    async def _carry_out(self, plan: PackPlan) -> bool:
        now_ms = self._groups.now_ms()
        terms = {group: self._groups.term(group) for group in plan.groups}
        key = pack_key(self._cluster_id, home_group=plan.home_group, now_ms=now_ms, random=token_bytes(16))
        if plan.size < THREAD_FROM_BYTES:
            built = build_pack(plan, key, now_ms)
        else:
            built = await asyncio.to_thread(build_pack, plan, key, now_ms, let_the_loop_run)
        for each, fault in built.faults:
            await self._meet(each, fault)
        return bool(built.slices) and await self._put(key, plan, built, terms)

    async def _put(self, key: str, plan: PackPlan, built: Built, terms: dict[int, int]) -> bool:
        self.in_flight.add(key)
        try:
            await self._steps.write(key, built.parts, plan.home_group, sorted({each.group for each, _ in built.slices}))
            self.counters.packs += 1
            published = await self._publish(key, plan.home_group, built, terms)
            if plan.size >= THREAD_FROM_BYTES:
                await asyncio.to_thread(let_go, plan)
            return published
        finally:
            self.in_flight.discard(key)

    async def _meet(self, each: SlicePlan, fault: Exception) -> None:
        """A slice could not be built: what is damaged in memory is read again, to be planned again. Else the stream is set aside."""
        if await self._groups.repair(each.group, each.uid, each.batches):
            return
        last = each.batches[-1]
        extra = {"group": each.group, "stream": each.uid, "record": each.batches[0].record, "error": repr(fault)}
        log.error("a stream is set aside, because its data cannot be stored: appends to it are refused", extra=extra)
        self._groups.faulted.set_aside(each.group, each.uid, last.byte + len(last.payload), str(fault))

    async def _publish(self, key: str, home_group: int, built: Built, terms: dict[int, int]) -> bool:
        members: dict[int, list[tuple[int, ColdSlice]]] = {}
        for each, cold in built.slices:
            members.setdefault(each.group, []).append((each.uid, cold))
        now_ms = self._groups.now_ms()
        commands = {group: PublishSlices(key, home_group, terms[group], listed, now_ms) for group, listed in members.items()}
        outcomes = await self._steps.propose_all(commands)
        published = sum(self._count(members[group], reply) for group, reply in outcomes if isinstance(reply, Reply))
        for _, outcome in outcomes:
            if not isinstance(outcome, Reply):
                raise outcome
        return published > 0

    def _count(self, members: list[tuple[int, ColdSlice]], reply: Reply) -> int:
        accepted = [members[position][1] for position in reply.detail or ()]
        self.counters.slices += len(accepted)
        self.counters.bytes += sum(cold.length for cold in accepted)
        self.counters.refused += len(members) - len(accepted)
        return len(accepted)

    # Waiting.

    def _pause(self) -> float:
        return pause_after(self._failures)

    async def _rest(self, seconds: float) -> None:
        """Wait after a failed pass; not long once the store works again, nor without a pause where it only works now and then."""
        shortest = min(seconds, REST_SECONDS)
        await self._sleep(shortest)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - shortest):
                await self._recovered.wait()

    async def _wait(self, seconds: float) -> None:
        """For so long, until `wake`, or until a burst has filled the hot tier far beyond the bound."""
        deadline = time.monotonic() + seconds
        pressure = max(PRESSURE_BYTES_MIN, 4 * self._settings.from_bytes)
        while (left := deadline - time.monotonic()) > 0 and not self._wake.is_set() and self._hot_bytes() < pressure:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, PRESSURE_POLL_SECONDS)):
                    await self._wake.wait()
        self._wake.clear()

    def _hot_bytes(self) -> int:
        turns = self._groups.turns()
        if self._hot[0] != turns:
            self._hot = (turns, sum(machine.hot_bytes for machine in self._groups.machines().values()))
        return self._hot[1] - self._groups.faulted.bytes


class Built(msgspec.Struct):
    """A pack: the object's parts, each slice with its entry of the index, and the slices that could not be built."""

    parts: list[bytes]
    slices: list[tuple[SlicePlan, ColdSlice]]
    faults: list[tuple[SlicePlan, Exception]]


def build_pack(plan: PackPlan, key: str, now_ms: int, between: Callable[[], None] = lambda: None) -> Built:
    """The pack of what can be built. May run in a thread: hot batches never change. `between` is called now and then.

    A slice that cannot be built ends its stream in this pack, as slices are published in order."""
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
            built = build_slice(each.encoding, head.record, head.byte, each.batches)
        except MemoryError:
            raise
        except Exception as fault:  # noqa: BLE001 (whatever is wrong with the data of one stream must not end the others)
            faults.append((each, fault))
            broken.add(each.uid)
            continue
        entry = builder.add(each.uid, each.group, built, path=each.path, content_type=each.content_type)
        found.append((each, ColdSlice(head.record, head.byte, entry.records, entry.length, key, entry.offset, entry.stored, entry.crc)))
        work += len(each.batches) + SLICE_COST_BATCHES
        if work >= YIELD_BATCHES:
            between()
            work = 0
    parts, _ = builder.finish(home_group=plan.home_group, created_ms=now_ms)
    return Built(parts, found, faults)


def let_go(plan: PackPlan) -> None:
    """Free the batches in a thread, some at a time: all at once would hold up the loop for some ten milliseconds."""
    work = 0
    for each in plan.slices:
        work += len(each.batches)
        each.batches = ()
        if work >= YIELD_BATCHES:
            let_the_loop_run()
            work = 0


def let_the_loop_run() -> None:
    """A real, short sleep: a thread that only offers the interpreter takes it back before the loop wakes, up to 5 ms long."""
    time.sleep(YIELD_SECONDS)
