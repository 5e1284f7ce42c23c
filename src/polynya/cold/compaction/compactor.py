"""Compact the keys of the streams that are due, one after the other: fetch, let the worker compute,
put packs, replace the entries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from secrets import token_bytes
from time import monotonic

import msgspec

from polynya.base.levels import COMPACTION_LEVEL
from polynya.base.limits import MIB
from polynya.cold.compaction.child import CompactionFailed, Worker
from polynya.cold.compaction.in_hand import InHand
from polynya.cold.compaction.key_map import SLOT_BYTES
from polynya.cold.compaction.planner import (
    CompactionPolicy,
    Extent,
    Pass,
    completed,
    extent_of,
    is_due,
    plan_pass,
    tombstones_until,
)
from polynya.cold.compaction.reading import PieceReader
from polynya.cold.compaction.work import (
    MapBegin,
    MapPiece,
    RewriteBegin,
    RewritePiece,
    Rewritten,
)
from polynya.cold.planner import SLICES_MAX
from polynya.cold.settings import MergeSettings
from polynya.cold.steps import FAULTS, Steps, zstd_levels
from polynya.jobs import Failures, Rest, pause_after, repeat
from polynya.stream.features.compaction.commands import NoteCompaction
from polynya.stream.features.packs.commands import ReplaceSlices
from polynya.stream.features.pages.eviction import stub_of
from polynya.stream.machine import Machine
from polynya.stream.parts import ColdSlice
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Stream
from polynya.wire.pack import PackBuilder, pack_key

log = logging.getLogger("polynya.cold")

INTERVAL_SECONDS = 5.0  # between two looks at the streams that have a policy
MAP_BYTES = 64 * MIB
MAP_GROWTH_MAX = (
    4  # the map becomes so much larger before a stream whose slice does not fit is left
)
KEYS_PER_SLOT = 0.75
NEVER = 2**62
REFUSED_REST_MS = 60_000  # until a stream is due again, of which a group refused a slice, …
DAMAGE_REST_MS = 3_600_000  # … or of which a slice cannot be decoded
FORCED_MAX = 4096  # streams that wait for a pass that was asked for
AT_ONCE = 32  # streams that are looked at before the loop runs


class CompactionCounters(msgspec.Struct):
    """Counters for metrics; they only grow."""

    passes: int = 0  # that were completed
    held_passes: int = 0  # completed but for what a fork, pages or damage kept
    refused: int = 0  # slices that a group refused because the stream had changed
    failures: int = 0  # passes abandoned
    damaged: int = 0  # entries left as they are, because a batch cannot be decoded
    read_bytes: int = 0  # payload of the entries that were rewritten or left
    dropped_records: int = 0
    dropped_bytes: int = 0


class LastPass(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The outcome of the last pass of a stream, as this core knows it."""

    ended_ms: int
    seconds: float
    read_bytes: int
    dropped_records: int
    dropped_bytes: int
    damage: str = ""
    is_complete: bool = True


Policies = Mapping[str, CompactionPolicy]  # by the canonical name of a stream


class _Result(msgspec.Struct):
    """The outcome of a pass so far."""

    is_complete: bool = True  # all slices are in the index, and nothing was left
    read_bytes: int = 0
    dropped_records: int = 0
    dropped_bytes: int = 0
    tombstones: int = 0
    damage: str = ""


class Compactor:
    """The compactor of one core. `run` is its task."""

    def __init__(
        self,
        steps: Steps,
        settings: MergeSettings,
        cluster_id: str,
        in_hand: InHand,
        *,
        policies: Callable[[], Awaitable[Policies]],
        worker: Worker,
    ) -> None:
        self.counters = CompactionCounters()
        self.last: dict[int, LastPass] = {}  # by uid
        self.due: dict[str, float] = {}  # name -> dirty ratio, of the streams that wait
        self._groups = steps.groups
        self._steps = steps
        self._reader = PieceReader(steps, settings.bytes_per_second)
        self._settings = settings
        self._cluster_id = cluster_id
        self._in_hand = in_hand
        self._policies = policies
        self._worker = worker
        self._known: Policies = {}
        self._mapped: dict[int, int] = {}  # uid -> end of what held-up passes have mapped
        self._rest_until: dict[int, int] = {}  # uid -> log time from which it is due again
        self._failed: dict[int, int] = {}  # uid -> its passes that failed since one was completed
        self._due_since: dict[str, int] = {}  # name -> log time
        self._forced: set[str] = set()  # names of streams whose next pass was asked for
        self._wake_up = asyncio.Event()
        self._failures = Failures(
            log,
            "compacting keys failed; retrying",
            *FAULTS,
            CompactionFailed,
            counters=self.counters,
        )

    async def run(self) -> None:
        """Compact until cancelled; without automatic flushing only what is asked for."""
        try:
            await repeat(self._pass, INTERVAL_SECONDS, wake=self._wake_up)
        finally:
            await self._worker.close()

    async def _pass(self) -> Rest:
        done = await self.compact_due()
        if self._failures.in_a_row:
            return Rest(pause_after(self._failures.in_a_row))
        if not done:
            await self._worker.close()
        return Rest(INTERVAL_SECONDS)

    async def compact_due(self) -> int:
        """Look at all streams with a policy once, and compact those that are due: the dirtiest first,
        and behind them those whose last pass failed. Return the number of passes."""
        done = 0
        with self._failures:
            asked = set(self._forced)
            due = await self._look()
            self.due = {stream.name: extent.dirty_ratio for _, _, stream, extent, _ in due}
            self._forced -= asked - self.due.keys()
            since, now_ms = self._due_since, self._groups.now_ms()
            self._due_since = {name: since.get(name, now_ms) for name in self.due}
            for group, machine, stream, _, policy in due:
                if await self._one(group, machine, stream, policy):
                    done += 1
                    self.due.pop(stream.name, None)
                    self._due_since.pop(stream.name, None)
        return done

    def policy_of(self, name: str) -> CompactionPolicy | None:
        """Return the policy of a stream, as of the last look; None: its keys are not compacted."""
        return self._known.get(name)

    async def refresh(self) -> None:
        """Read which streams have a policy now."""
        self._known = await self._policies()

    def extent(self, machine: Machine, stream: Stream) -> Extent | None:
        """Return what may be compacted of a stream now; None: it has no policy."""
        policy = self.policy_of(stream.name)
        if policy is None:
            return None
        found = extent_of(machine, stream, policy, self._groups.now_ms())
        if found.below or self._rests(stream.uid):
            mapped = self._mapped.get(stream.uid, 0)
            return extent_of(machine, stream, policy, self._groups.now_ms(), mapped)
        return found

    def _rests(self, uid: int) -> bool:
        return self._groups.now_ms() < self._rest_until.get(uid, 0)

    def is_waiting(self, name: str) -> bool:
        """Report whether a pass of a stream is due or under way."""
        return name in self._forced or name in self.due

    def force(self, name: str) -> None:
        """Let a pass of a stream begin soon, due or not."""
        if len(self._forced) < FORCED_MAX:
            self._forced.add(name)
            self._wake_up.set()

    def samples(self) -> dict[str, float]:
        """Return the metrics of the streams that wait for a pass."""
        return {
            "polynya_compaction_streams_due": len(self.due),
            "polynya_compaction_dirty_ratio_max": max(self.due.values(), default=0.0),
            "polynya_compaction_overdue_seconds": self._overdue(),
        }

    def _overdue(self) -> float:
        """Return for how long the stream that waits longest has been due."""
        if not self._due_since:
            return 0.0
        return max(0, self._groups.now_ms() - min(self._due_since.values())) / 1000

    # --- scanning ---------------------------------------------------------------------------------

    async def _look(self) -> list[tuple[int, Machine, Stream, Extent, CompactionPolicy]]:
        await self.refresh()
        now_ms, found, compacted = self._groups.now_ms(), [], set()
        for number, (name, policy) in enumerate(self._known.items()):
            if not number % AT_ONCE:
                await asyncio.sleep(0)
            for group, machine in list(self._groups.machines().items()):  # leaders change meanwhile
                stream = machine.directory.streams.get(name)
                if stream is None:
                    await self._wake(group, machine, name, now_ms)
                    continue
                compacted.add(stream.uid)
                extent = self.extent(machine, stream)
                if (
                    extent is not None
                    and self._is_due(stream, extent, policy, now_ms)
                    and self._groups.may_log(machine, COMPACTION_LEVEL)
                ):
                    found.append((group, machine, stream, extent, policy))
        self._in_hand.compacted.clear()
        self._in_hand.compacted.update(compacted)
        for known in (self._mapped, self._rest_until, self._failed, self.last):
            for uid in known.keys() - compacted:
                del known[uid]
        # a failure ends the round: a stream that fails again and again must not hold up the others
        failed = self._failed.get
        return sorted(found, key=lambda each: (failed(each[2].uid, 0), -each[3].dirty_ratio))

    def _is_due(
        self, stream: Stream, extent: Extent, policy: CompactionPolicy, now_ms: int
    ) -> bool:
        if stream.name in self._forced:
            return extent.begin < extent.end
        if not self._settings.interval_ms or self._rests(stream.uid):
            return False
        return is_due(stream, extent, policy, now_ms)

    async def _wake(self, group: int, machine: Machine, name: str, now_ms: int) -> None:
        """Bring an evicted stream back whose tombstones may go."""
        stub = stub_of(machine, name)
        if stub is not None and 0 < stub.horizon_ms <= now_ms:
            await self._groups.bring(group, [name])

    # --- one pass ---------------------------------------------------------------------------------

    async def _one(
        self, group: int, machine: Machine, stream: Stream, policy: CompactionPolicy
    ) -> bool:
        """Compact a stream as it is now: other passes took time since it was looked at."""
        uid = stream.uid
        if uid in self._in_hand.uids or self._groups.machines().get(group) is not machine:
            return False
        extent = self.extent(machine, stream)
        if machine.directory.by_uid.get(uid) is not stream or extent is None:
            return False
        if extent.begin >= extent.end:
            return False
        asked = stream.name in self._forced
        self._forced.discard(stream.name)  # who asks from now on wants what is written until then
        self._in_hand.uids.add(uid)
        try:
            term = self._groups.term(group)
            await self._run(plan_pass(group, machine, stream, extent, term=term), policy)
        except (*FAULTS, CompactionFailed):
            self._failed[uid] = self._failed.get(uid, 0) + 1
            if asked:
                self._forced.add(stream.name)
            raise
        finally:
            self._in_hand.uids.discard(uid)
        self._failed.pop(uid, None)
        return True

    async def _run(self, made: Pass, policy: CompactionPolicy) -> None:
        began, result = monotonic(), _Result()
        now_ms = self._groups.now_ms()
        count = await self._map(made, result)
        if count > made.extent.begin:
            await self._rewrite(made, count, result, now_ms)
            await self._complete(made, count, result, policy, now_ms)
        elif result.damage:
            self._rest_until[made.uid] = now_ms + DAMAGE_REST_MS
        self.last[made.uid] = LastPass(
            self._groups.now_ms(),
            monotonic() - began,
            result.read_bytes,
            result.dropped_records,
            result.dropped_bytes,
            result.damage,
            result.is_complete,
        )

    async def _map(self, made: Pass, result: _Result) -> int:
        """Map the keys of the entries that no pass has mapped, and return how many entries the pass may
        rewrite: those before the first one that the map has no room for."""
        first, end = made.extent.dirty_begin, made.extent.end
        records = sum(each.records - each.missing_records for each in made.entries[first:end])
        growth = 1
        while True:
            most = growth * MAP_BYTES // SLOT_BYTES
            await self._worker.run(
                MapBegin(min(most, int(records / KEYS_PER_SLOT) + 1), token_bytes(16))
            )
            count = await self._map_until_full(made, result)
            if count > first or count == end or growth == MAP_GROWTH_MAX:
                break
            growth *= 2
        if count == first < end:
            self._note_damage(made, result, "one slice has more keys than the map has room for")
        return count

    async def _map_until_full(self, made: Pass, result: _Result) -> int:
        number = made.extent.dirty_begin
        async for _, piece in self._reader.pieces(made, number, made.extent.end):
            if piece is not None:
                answer = await self._worker.run(MapPiece(piece))
                if answer.damage:
                    self._note_damage(made, result, answer.damage)
                if answer.is_full:
                    return number
            number += 1
        return made.extent.end

    async def _rewrite(self, made: Pass, count: int, result: _Result, now_ms: int) -> None:
        levels = zstd_levels(self._groups, (made.group,), self._settings.zstd_level)
        await self._worker.run(
            RewriteBegin(
                tombstones_until(made, now_ms),
                made.began.cleaned if made.drops else 0,
                made.limit if count == made.extent.end else NEVER,
                self._settings.slice_bytes_max,
                levels[made.group],
            )
        )
        packed: list[Rewritten] = []
        begins = frozenset(made.entries[at].record for at in range(made.extent.begin, count))
        async for entry, piece in self._reader.pieces(made, made.extent.begin, count):
            behind = entry.record + entry.records
            closes = behind in made.bounds or behind not in begins
            answer = await self._worker.run(RewritePiece(piece, closes))
            packed += self._noted(made, answer.rewritten, result)
            if sum(
                each.meta.stored for each in packed if each.meta
            ) >= self._settings.pack_bytes_max or (len(packed) >= SLICES_MAX):
                await self._publish(made, packed, result)
                packed = []
        answer = await self._worker.run(RewritePiece(None))
        packed += self._noted(made, answer.rewritten, result)
        if packed:
            await self._publish(made, packed, result)

    def _noted(
        self, made: Pass, rewritten: Iterable[Rewritten], result: _Result
    ) -> list[Rewritten]:
        """Count what the worker has done, and return the slices that are new."""
        found = []
        for each in rewritten:
            result.read_bytes += each.read_bytes
            self.counters.read_bytes += each.read_bytes
            result.tombstones += each.tombstones
            if each.damage:
                self._note_damage(made, result, each.damage)
            if each.meta is not None:
                found.append(each)
        return found

    async def _publish(self, made: Pass, packed: Sequence[Rewritten], result: _Result) -> None:
        now_ms = self._groups.now_ms()
        key = pack_key(
            self._cluster_id, owner_group=made.group, now_ms=now_ms, random=token_bytes(16)
        )
        builder, slices = PackBuilder(), list[tuple[int, ColdSlice]]()
        for each in packed:
            assert each.meta is not None
            named = (
                (made.name, made.content_type)
                if each.record == made.entries[0].record
                else ("", "")
            )
            entry = builder.add(
                made.uid,
                made.group,
                (each.meta, list(each.parts)),
                path=named[0],
                content_type=named[1],
            )
            slices.append((made.uid, entry.at(key, each.meta.base_record, each.meta.base_byte)))
        parts, _ = builder.finish(owner_group=made.group, created_ms=now_ms)
        command = ReplaceSlices(key, made.group, made.term, slices, now_ms)
        self._in_hand.packs.add(key)
        try:
            await self._steps.write(key, parts, made.group, [made.group])
            ((_, outcome),) = await self._steps.propose_all({made.group: command})
        finally:
            self._in_hand.packs.discard(key)
        if not isinstance(outcome, Reply):
            raise outcome
        taken = [packed[at] for at in outcome.detail or ()]
        for counted in (self.counters, result):
            counted.dropped_records += sum(each.dropped_records for each in taken)
            counted.dropped_bytes += sum(each.dropped_bytes for each in taken)
        self.counters.refused += len(packed) - len(taken)
        result.is_complete = result.is_complete and len(taken) == len(packed)

    async def _complete(
        self, made: Pass, count: int, result: _Result, policy: CompactionPolicy, now_ms: int
    ) -> None:
        """Raise `cleaned`, if nothing was refused or left."""
        last = made.entries[count - 1]
        end = last.record + last.records
        if not result.is_complete:
            self._mapped.pop(made.uid, None)
            self._rest_until[made.uid] = now_ms + REFUSED_REST_MS
            return
        if made.extent.below or result.damage:
            self._mapped[made.uid] = end
            self.counters.held_passes += 1
            if result.damage:
                self._rest_until[made.uid] = now_ms + DAMAGE_REST_MS
            return
        progress = completed(made, end, policy, now_ms, waiting=result.tombstones > 0)
        reply = await self._groups.propose(
            made.group,
            NoteCompaction(
                made.uid,
                progress.cleaned,
                progress.horizon_ms,
                progress.generation,
                progress.tombstones,
                made.term,
                self._groups.now_ms(),
            ),
        )
        if reply.code == Code.OK:
            self.counters.passes += 1
            self._mapped.pop(made.uid, None)
        else:
            result.is_complete = False
            self._rest_until[made.uid] = now_ms + REFUSED_REST_MS

    def _note_damage(self, made: Pass, result: _Result, damage: str) -> None:
        if not result.damage:
            log.error(
                "stream %s cannot be compacted everywhere: %s; the slice stays as it is",
                made.name,
                damage,
            )
        result.damage = damage
        self.counters.damaged += 1
