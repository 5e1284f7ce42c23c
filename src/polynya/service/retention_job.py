"""Apply retention: scan the streams that have one, in parts, and trim those over it.

The index alone reveals whole slices and hot batches that are over the limit. A slice with much data
over its age or size limit is read occasionally. Its old records can then be trimmed while the slice
stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from itertools import islice

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.limits import RECALL_STREAMS
from polynya.base.names import bucket_of
from polynya.local.api import Position, ReadQuery, Refusal
from polynya.service.node_service import NodeService
from polynya.service.topic_policies import TopicPolicies
from polynya.stream.features.pages.eviction import evicted_views
from polynya.stream.features.retention.commands import Trim
from polynya.stream.features.retention.rules import (
    RetentionCut,
    cut_of,
    held_back,
    is_due,
    retention_of,
    slack_ms,
)
from polynya.stream.features.tables.watches import held_from
from polynya.stream.machine import Machine
from polynya.stream.parts import Retention
from polynya.stream.state.model import Stream

log = logging.getLogger("polynya.service")

LOOKED_MAX = 8192  # streams per pass: 20 ms …
LOOKED_AT_ONCE = 256  # … in parts, between which the loop runs
CUTS_MAX = 1024  # streams trimmed per pass, or …
ENTRIES_AT_ONCE = 8192  # … slices released per pass
READS_MAX = 4  # slices read per pass
IN_VAIN_MS = 60_000  # delay before a slice without a record to trim is read again
BUCKETS_EVERY = 5  # passes between two fetches of the retention of buckets and topics


class RetentionJobCounters(msgspec.Struct):
    """The values behind the metrics."""

    failures: int = 0
    round_seconds: float = 0.0  # duration of the last scan of all streams, pauses included


class RetentionJob:
    """The retention job of one core. Call `run_once` about once a second, without overlap."""

    def __init__(self, service: NodeService) -> None:
        self.counters = RetentionJobCounters()
        self._service = service
        self._buckets: dict[str, Retention] = {}
        self._topics = TopicPolicies()
        self._committed: dict[
            int, int
        ] = {}  # table → its last committed job, if tables hold records
        self._passes = 0
        self._back: dict[
            int, dict[str, Retention]
        ] = {}  # group → name → retention of evicted streams to trim
        self._left = 0  # cuts left in this pass
        self._round: Iterator[tuple[int, Stream, Retention] | None] = iter(())
        self._began = time.monotonic()
        self._read_again_ms: dict[
            int, int
        ] = {}  # uid → time from which one of its slices may be read again

    async def run_once(self) -> int:
        """Run one pass, and return the number of streams trimmed. Failed trims are left for the
        next round."""
        if self._passes % BUCKETS_EVERY == 0:
            self._buckets = await self._service.buckets()
            await self._topics.refresh(self._service)
            if any(
                watch.hold
                for machine in self._service.local.led.values()
                for watch in machine.claims.watches.values()
            ):
                self._committed = {
                    table.uid: table.committed for table in await self._service.meta_group.tables()
                }
        self._passes += 1
        cuts: dict[int, list[tuple[int, int, int]]] = {}
        self._back = {}
        inside: list[tuple[int, Stream, RetentionCut]] = []
        looked = 0
        self._left = CUTS_MAX
        while looked < LOOKED_MAX and self._left > 0 and len(inside) < READS_MAX:
            part = list(islice(self._round, LOOKED_AT_ONCE))
            if not part:
                self._begin_round()
                break
            looked += len(part)
            self._look(part, cuts, inside)
            await asyncio.sleep(0)
        await self._bring_back(cuts, inside)
        for group, stream, wanted in inside:
            cut = await self._read(group, stream, wanted)
            if cut is not None:
                cuts.setdefault(group, []).append(cut)
            elif wanted.inside_byte:
                self._read_again_ms[stream.uid] = self._service.now_ms() + IN_VAIN_MS
        return await self._trim(cuts)

    # --- scan -------------------------------------------------------------------------------------

    def _look(
        self,
        part: list[tuple[int, Stream, Retention] | None],
        cuts: dict[int, list[tuple[int, int, int]]],
        inside: list[tuple[int, Stream, RetentionCut]],
    ) -> None:
        now_ms = self._service.now_ms()
        for each in part:
            if each is None or self._left <= 0:  # left for the next round
                continue
            group, stream, retention = each
            machine = self._service.local.led.get(group)
            if (
                machine is not None
                and stream.name in machine.directory.evicted
                and is_due(stream, retention, now_ms)
            ):
                self._back.setdefault(group, {})[stream.name] = retention
                self._left -= 1
            elif machine is not None and stream.uid in machine.directory.by_uid:
                self._cut(group, stream, retention, cuts, inside)

    def _cut(
        self,
        group: int,
        stream: Stream,
        retention: Retention,
        cuts: dict[int, list[tuple[int, int, int]]],
        inside: list[tuple[int, Stream, RetentionCut]],
    ) -> None:
        if stream.deleted:
            return
        now_ms = self._service.now_ms()
        machine = self._service.local.led[group]
        cut = held_back(
            stream, cut_of(stream, retention, now_ms), held_from(machine, stream, self._committed)
        )
        if cut.boundary is not None:
            cuts.setdefault(group, []).append((stream.uid, *cut.boundary))
            self._left -= max(1, cut.entries * CUTS_MAX // ENTRIES_AT_ONCE)
        elif (
            (cut.inside_ms or cut.inside_byte)
            and len(inside) < READS_MAX
            and self._read_again_ms.get(stream.uid, 0) <= now_ms
        ):
            self._read_again_ms[stream.uid] = now_ms + slack_ms(retention)
            inside.append((group, stream, cut))

    def _begin_round(self) -> None:
        now = time.monotonic()
        self.counters.round_seconds, self._began = now - self._began, now
        now_ms = self._service.now_ms()
        self._read_again_ms = {
            uid: at_ms for uid, at_ms in self._read_again_ms.items() if at_ms > now_ms
        }
        self._round = self._all_streams()

    def _all_streams(self) -> Iterator[tuple[int, Stream, Retention] | None]:
        """Yield the streams that have a retention, and None for each other one, so that the caller
        can limit the work."""
        for group, machine in tuple(self._service.local.led.items()):
            for stream in self._candidates(machine):
                retention = retention_of(stream)
                if retention is None and self._topics:
                    retention = self._topics.of(stream.name)
                if retention is None and self._buckets:
                    retention = self._buckets.get(bucket_of(stream.name))
                yield None if retention is None else (group, stream, retention)

    def _candidates(self, machine: Machine) -> Iterator[Stream]:
        by_name = self._buckets or self._topics
        yield from list(
            machine.directory.streams.values() if by_name else machine.directory.retaining.values()
        )
        if by_name:
            yield from evicted_views(machine)

    async def _bring_back(
        self,
        cuts: dict[int, list[tuple[int, int, int]]],
        inside: list[tuple[int, Stream, RetentionCut]],
    ) -> None:
        """Rehydrate the streams and cut them at once: they might be evicted again before the next
        scan."""
        for group, back in self._back.items():
            names = list(back)
            for begin in range(0, len(names), RECALL_STREAMS):
                part = names[begin : begin + RECALL_STREAMS]
                try:
                    await self._service.local.rehydration.bring(group, part)
                except PolynyaError as fault:
                    self._failed(fault)
                    continue
                machine = self._service.local.led.get(group)
                for name in part:
                    stream = None if machine is None else machine.directory.streams.get(name)
                    # it may have got its own retention meanwhile
                    if stream is not None and retention_of(stream) is None:
                        self._cut(group, stream, back[name], cuts, inside)

    # --- trim -------------------------------------------------------------------------------------

    async def _read(
        self, group: int, stream: Stream, wanted: RetentionCut
    ) -> tuple[int, int, int] | None:
        """Return the cut inside a slice, or inside the part that a fork inherits."""
        try:
            position = await self._position(group, stream.name, wanted)
        except PolynyaError as fault:
            self._failed(fault)
            return None
        return (
            None
            if isinstance(position, Refusal) or position[0] <= stream.first_record
            else (stream.uid, *position)
        )

    async def _position(
        self, group: int, name: str, wanted: RetentionCut
    ) -> tuple[int, int] | Refusal:
        if not wanted.inside_byte:
            query = ReadQuery(name, Position.AT_TIME, wanted.inside_ms)
            return await self._service.local.reads.times.position_at(group, query)
        query = ReadQuery(
            name,
            Position.AT_BYTE,
            wanted.inside_byte,
            bytes_max=1,
            touch=False,
            whole_records=True,
            raw=True,
        )
        page = await self._service.local.reads.read(group, query)
        return page if isinstance(page, Refusal) else (page.begin_record, page.begin_byte)

    async def _trim(self, cuts: dict[int, list[tuple[int, int, int]]]) -> int:
        done = 0
        for group, listed in cuts.items():
            try:
                await self._service.call(group, Trim(listed, self._service.now_ms()))
                done += len(listed)
            except PolynyaError as fault:
                self._failed(fault)
        return done

    def _failed(self, fault: PolynyaError) -> None:
        self.counters.failures += 1
        log.warning("trimming a stream by its retention failed; the next round retries: %s", fault)
