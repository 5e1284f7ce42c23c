"""Store what changed in groups with diskless streams since the last copies of their states.

The commits of diskless streams are in the groups' logs alone. A copy of a state is made once a
minute; between two copies a delta has what the copy lacks, some seconds old at most
(docs/decisions/0028). A delta is a part of a group snapshot. Merged onto its copy, or onto a later
one, it gives the state at its index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from google_crc32c import extend

from polynya.backup import copies
from polynya.backup.copies import CompleteMark
from polynya.backup.group_file import Header
from polynya.base.errors import Unavailable
from polynya.engine.snapshots.encode import Delta, encode_since_copy
from polynya.jobs import repeat
from polynya.objectstore import ObjectStore, StoreUnavailable
from polynya.service.assembly import CoreRuntime
from polynya.stream.machine import Machine
from polynya.stream.state.changes import SinceCopy
from polynya.tiering.state_copies import StoredCounters

LOOK_SECONDS = 1.0
AT_ONCE = 4  # deltas of a core that are being stored
BYTES_PER_SECOND = 4 << 20  # of one group: large deltas are stored less often
log = logging.getLogger("polynya.tier")


class CopyDeltaWorker:
    """The worker of one core that stores deltas of the groups which the core leads."""

    def __init__(
        self, engine: CoreRuntime, store: ObjectStore, whole: CompleteMark, interval_seconds: float
    ) -> None:
        self.counters = StoredCounters()
        self._engine, self._store = engine, store
        self._cluster_history = (whole.cluster, whole.history)
        self._interval_seconds = interval_seconds
        self._due: dict[int, float] = {}  # when the next delta of a group may be stored
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Store due deltas in an endless loop."""
        await repeat(self.look, LOOK_SECONDS)

    async def look(self) -> None:
        """Store the deltas that are due. One that fails is due again."""
        self._forget_followed()
        now = self._loop.time()
        due = [
            (number, machine)
            for number, machine in self._engine.local.led.items()
            if self._due.get(number, now) <= now and lacks_commits(machine)
        ]
        todo = iter(due)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(AT_ONCE, len(due))):
                tasks.create_task(self._work(todo))

    def _forget_followed(self) -> None:
        """End the tracking of groups that this core no longer leads."""
        led = self._engine.local.led
        for number, group in self._engine.storage.core_replicas.groups.items():
            if led.get(number) is not group.machine:
                group.machine.kept.since_copy = None

    async def _work(self, todo: Iterator[tuple[int, Machine]]) -> None:
        for number, machine in todo:
            try:
                await self._store_one(number, machine)
            except Unavailable:
                continue
            except StoreUnavailable as fault:
                self.counters.failures += 1
                log.warning(
                    "changes of diskless streams could not be copied to the object store; retrying",
                    extra={"group": number, "error": str(fault)},
                )

    async def _store_one(self, number: int, machine: Machine) -> None:
        """Store one delta. Raises StoreUnavailable, Unavailable."""
        group, began = self._engine.storage.core_replicas.groups.get(number), self._loop.time()
        async with self._engine.snapshotter.encoding:
            since = machine.kept.since_copy
            if since is None or since.base < 0 or group is None or group.machine is not machine:
                return  # the group went, or a copy was taken meanwhile
            before, since.left = since.left, machine.diskless.left
            delta = await encode_since_copy(group, since)
            recent, since.recent = since.recent, set()
        size = sum(map(len, delta.body))
        self._due[number] = began + max(self._interval_seconds, size / BYTES_PER_SECOND)
        try:
            await self._put(number, delta, size, since)
        except BaseException:
            since.recent |= recent
            since.left = before
            raise
        self.counters.stored += 1
        self.counters.bytes += size

    async def _put(self, number: int, delta: Delta, size: int, since: SinceCopy) -> None:
        crc = 0
        for part in delta.body:
            crc = int(extend(crc, part))
        now_ms = self._engine.service.now_ms()
        header = Header(number, delta.term, delta.index, now_ms, size, crc, 0)
        await copies.write_delta(self._store, self._cluster_history, header, since.base, delta.body)


def lacks_commits(machine: Machine) -> bool:
    """Return True if diskless streams changed since the last copy or delta."""
    since = machine.kept.since_copy
    if since is None or since.base < 0:
        return False
    changed = not machine.diskless.streams.keys().isdisjoint(machine.changes.streams)
    return (
        changed
        or not machine.diskless.streams.keys().isdisjoint(since.recent)
        or machine.diskless.left != since.left
    )
