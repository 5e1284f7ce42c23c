"""Evict idle streams: collect their states, write them as blocks, and log the eviction in their
groups."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from secrets import token_bytes
from struct import pack

import msgspec
from google_crc32c import value as crc32c

from polynya.base.limits import SNAPSHOT_GRACE_MS
from polynya.base.names import owner_of
from polynya.cold.groups import Groups, survey
from polynya.cold.settings import EvictSettings
from polynya.cold.steps import FAULTS, Steps
from polynya.jobs import Failures, Rest, pause_after, repeat
from polynya.objectstore.api import ObjectStore
from polynya.stream.command import level_of
from polynya.stream.features.marks.held import is_overdue
from polynya.stream.features.pages.commands import Evict
from polynya.stream.features.pages.eviction import (
    evicted_view,
    is_evictable,
    mark_of,
    may_leave,
    state_of,
)
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding
from polynya.stream.state.model import HotBatch, Stream
from polynya.wire.pack import PackBuilder, pack_key
from polynya.wire.slice_building import build_slice

log = logging.getLogger("polynya.cold")

ENCODED_AT_ONCE = 128  # streams encoded between two yields, about a millisecond
SLOTS_MAX = 256  # per command; the state machine applies it in one step


class EvictCounters(msgspec.Struct):
    """Counters for metrics; they only grow."""

    streams: int = 0
    blocks: int = 0
    bytes: int = 0  # bytes of states
    refused: int = 0  # streams that changed before the eviction was applied
    failures: int = 0  # blocks abandoned


class IdleState(msgspec.Struct, gc=False):
    """The state of an idle stream, as stored."""

    uid: int
    mark: int
    state: bytes


class Evictor:
    """The evictor of one core. `in_flight` has the keys of packs in flight, which the collector
    skips."""

    def __init__(
        self,
        groups: Groups,
        store: ObjectStore,
        settings: EvictSettings,
        cluster_id: str,
        *,
        in_flight: set[str],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.counters = EvictCounters()
        self._groups = groups
        self._settings = settings
        self._cluster_id = cluster_id
        self._in_flight = in_flight
        self._sleep = sleep
        self._steps = Steps(groups, store, sleep)
        self._failures = Failures(
            log, "eviction of idle streams failed; retrying", *FAULTS, counters=self.counters
        )

    async def run(self) -> None:
        """Evict until cancelled. Nothing is evicted while the store or the log fails."""
        if self._settings.after_ms:
            seconds = self._settings.interval_ms / 1000
            await repeat(self._pass, seconds, at_once=False, sleep=self._sleep)

    async def _pass(self) -> Rest:
        await self.evict_due()
        failures = self._failures.in_a_row
        rest = self._settings.interval_ms / 1000 + (pause_after(failures) if failures else 0.0)
        return Rest(rest)

    async def evict_due(self) -> int:
        """Run one pass and return the number of evicted streams."""
        before_ms = self._groups.now_ms() - self._settings.after_ms
        recent = self._groups.recent
        for uid in [uid for uid, at_ms in recent.items() if at_ms <= before_ms]:
            del recent[uid]
        gone = 0
        for group, machine in list(self._groups.machines().items()):
            if not self._groups.may_log(machine, level_of(Evict)):
                continue
            with self._failures:
                gone += await self._evict_of(group, machine, before_ms)
            if self._failures.in_a_row:
                break
        return gone

    async def _evict_of(self, group: int, machine: Machine, before_ms: int) -> int:
        uids = await self._idle(machine, before_ms)
        gone = 0
        while uids:
            found: list[IdleState] = []
            size = 0
            while (
                uids
                and len(found) < self._settings.block_streams
                and size < self._settings.block_bytes
            ):
                some = [
                    self._take(machine, uids.pop()) for _ in range(min(ENCODED_AT_ONCE, len(uids)))
                ]
                found += [each for each in some if each is not None]
                size = sum(len(each.state) for each in found)
                await asyncio.sleep(0)
            if not found or self._groups.machines().get(group) is not machine:
                return gone
            gone += await self._put_away(group, found)
        return gone

    async def _idle(self, machine: Machine, before_ms: int) -> list[int]:
        """Return the uids of streams that are due, scanned in chunks."""
        found: list[int] = []
        oldest_ms = before_ms
        recent = self._groups.recent
        async for streams in survey(machine.directory.streams.values()):
            for stream in streams:
                if (
                    stream.activity_ms <= before_ms
                    and stream.uid not in recent
                    and is_evictable(stream)
                    and _is_needless(machine, stream)
                ):
                    found.append(stream.uid)
                    oldest_ms = min(oldest_ms, stream.activity_ms)
        if len(found) < self._settings.few and oldest_ms > before_ms - self._settings.after_ms:
            return []
        return found

    def _take(self, machine: Machine, uid: int) -> IdleState | None:
        stream = machine.directory.by_uid.get(uid)
        if stream is None or not is_evictable(stream) or not _is_needless(machine, stream):
            return None
        state = state_of(stream)
        return (
            IdleState(uid, mark_of(stream), state)
            if len(state) <= self._settings.state_bytes_max
            else None
        )

    async def _put_away(self, group: int, found: Sequence[IdleState]) -> int:
        now_ms = self._groups.now_ms()
        key = pack_key(self._cluster_id, owner_group=group, now_ms=now_ms, random=token_bytes(16))
        parts, offset = build_block(found, group, now_ms)
        self._in_flight.add(key)
        try:
            await self._steps.write(key, parts, group, [group])
            self.counters.blocks += 1
            slots = []
            for each in found:
                slots.append((each.uid, each.mark, offset, len(each.state), crc32c(each.state)))
                offset += len(each.state)
            gone = 0
            for begin in range(0, len(slots), SLOTS_MAX):
                gone += await self._log(group, key, slots[begin : begin + SLOTS_MAX])
            return gone
        finally:
            self._in_flight.discard(key)

    async def _log(self, group: int, key: str, slots: list[tuple[int, int, int, int, int]]) -> int:
        reply = await self._groups.propose(group, Evict(key, self._groups.now_ms(), slots))
        accepted = reply.detail or ()
        self.counters.streams += len(accepted)
        self.counters.bytes += sum(slots[at][3] for at in accepted)
        self.counters.refused += len(slots) - len(accepted)
        return len(accepted)


def _is_needless(machine: Machine, stream: Stream) -> bool:
    """Report whether no stream in memory needs this one. Companions follow their owners, one pass
    later, unless the sweep of snapshots will find bodies in them."""
    if not may_leave(machine, stream):
        return False
    owner = evicted_view(machine, owner_of(stream.name))
    soon_ms = machine.counters.log_ms + SNAPSHOT_GRACE_MS
    return owner is None or not is_overdue(owner, stream, soon_ms)


def build_block(found: Sequence[IdleState], group: int, now_ms: int) -> tuple[list[bytes], int]:
    """Return the object's parts, and the offset of the first state. The other states follow
    contiguously."""
    states = [each.state for each in found]
    payload = b"".join(states)
    lengths = pack(f"<{len(states)}I", *map(len, states))
    batch = HotBatch(
        0,
        0,
        len(states),
        payload,
        lengths if len(states) > 1 else b"",
        crc32c(payload),
        now_ms,
        0,
        Encoding.BYTES,
        0,
    )
    builder = PackBuilder()
    entry = builder.add(0, group, build_slice(Encoding.BYTES, -1, -1, [batch]))
    parts, _ = builder.finish(owner_group=group, created_ms=now_ms)
    return parts, entry.offset + entry.stored - entry.length
