"""Copy the states of the groups that this core leads to the object store, and report which pack
releases the copies include.

A recovery from the store alone begins with these copies. So a group releases a pack only once its
copy includes the release; until then a recovery would need the pack.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from polynya.backup import copies
from polynya.backup.copies import CompleteMark
from polynya.backup.group_file import Header
from polynya.base.errors import Unavailable
from polynya.engine.snapshots.capture import Captured, captured
from polynya.jobs import Failures, repeat
from polynya.objectstore import OBJECT_BYTES_MAX, ObjectStore, StoreUnavailable
from polynya.service.assembly import CoreRuntime
from polynya.stream.features.packs.commands import ReleasePack
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.machine import Machine

LOOK_SECONDS = 1.0
STATE_BYTES_MAX = OBJECT_BYTES_MAX - 4096
EVERY_SECONDS = 60.0  # for a group that changes …
SOON_SECONDS = 30.0  # … or that was flushed or has packs to release
BYTES_PER_SECOND = 4 << 20  # of a core: large states are copied less often
log = logging.getLogger("polynya.tier")


class StoredCounters(msgspec.Struct):
    """Counters for metrics of copies, or of their deltas; they only grow."""

    stored: int = 0
    bytes: int = 0
    failures: int = 0


class StateCopyWorker:
    """The state copy worker of one core. `owned` is called before anything is deleted."""

    def __init__(
        self,
        engine: CoreRuntime,
        store: ObjectStore,
        whole: CompleteMark,
        owned: Callable[[], Awaitable[bool]],
        *,
        soon_seconds: float = SOON_SECONDS,
        diskless_seconds: float = SOON_SECONDS,
    ) -> None:
        """`soon_seconds`: how long a copy may lack a pack; `diskless_seconds`: how long the store
        may lack diskless streams and Kafka topics."""
        self.counters = StoredCounters()
        self._engine, self._store, self._whole, self._owned = engine, store, whole, owned
        self._cluster_history = (whole.cluster, whole.history)
        self._soon_seconds = min(soon_seconds, SOON_SECONDS)
        self._diskless_seconds = diskless_seconds
        self._topics = -1  # revision of the topics in the copy of the meta group
        self._indexes: dict[int, int] = {}  # of the newest copies that this core wrote
        self._written: dict[int, float] = {}  # time of the newest copy
        self._covered: dict[int, int] = {}  # the last outbox message that the copy includes
        self._turns, self._behind = -1, list[int]()  # groups with outdated copies, as of that turn
        self._packs: dict[int, int] = {}  # the machine's pack counter in the copy
        self._marked = False
        self._loop = asyncio.get_running_loop()
        engine.outbox_sender.contained = self.contained

    def contained(self, group: int) -> int:
        """Return the last message of the group's outbox that its copy includes."""
        return self._covered.get(group, 0)

    async def run(self) -> None:
        """Copy due states in an endless loop."""
        failures = Failures(
            log,
            "states could not be copied to the object store; retrying",
            StoreUnavailable,
            counters=self.counters,
        )
        await repeat(self.look, LOOK_SECONDS, failures)

    async def look(self) -> None:
        """Copy the states that are due. Raises StoreUnavailable."""
        if not self._marked:
            await copies.mark(self._store, self._whole)
            self._marked = True
        local, core_replicas = self._engine.local, self._engine.storage.core_replicas
        if self._turns != local.turns or self._behind:  # groups that were not due are checked again
            self._turns = local.turns
            self._behind = [
                number
                for number in local.led
                if self._indexes.get(number) != core_replicas.groups[number].applied_index
            ]
        for number in self._behind:
            machine = local.led.get(number)  # another core may lead it by now
            if machine is not None and self._is_due(number, machine):
                await asyncio.sleep(await self._copy(number, machine))

    def _is_due(self, number: int, machine: Machine) -> bool:
        if (
            self._indexes.get(number)
            == self._engine.storage.core_replicas.groups[number].applied_index
        ):
            return False
        waited = self._loop.time() - self._written.get(number, -EVERY_SECONDS)
        return (
            waited >= EVERY_SECONDS
            or (waited >= self._soon_seconds and self._is_urgent(number, machine))
            or (waited >= self._diskless_seconds and self._lacks_diskless(number, machine))
        )

    def _lacks_diskless(self, number: int, machine: Machine) -> bool:
        """Return True if diskless streams have no copy that deltas could build on, or if the copy
        of the meta group lacks changes of topics."""
        if number == META_GROUP:
            return machine.meta.topic_changes.revision != self._topics
        return bool(machine.diskless.streams) and machine.kept.since_copy is None

    def _is_urgent(self, number: int, machine: Machine) -> bool:
        """Return True if the group gained packs, or must release some, since the copy."""
        if machine.packs.counter != self._packs.get(number):
            return True
        covered = self._covered.get(number, 0)
        return any(
            message > covered and isinstance(command, ReleasePack)
            for message, (_, command) in machine.outbox.messages.items()
        )

    async def _copy(self, number: int, machine: Machine) -> float:
        """Copy one state; return the seconds to pause."""
        topics, before = machine.meta.topic_changes.revision, machine.kept.since_copy
        found: Captured | None = None
        try:
            found = await self._stored(number, machine)
        finally:
            if found is None:
                machine.kept.join(before)
        if found is None:
            return 0.0
        if machine.kept.since_copy is not None:
            machine.kept.since_copy.base = found.index
        if number == META_GROUP:
            self._topics = topics
        self.counters.stored += 1
        self.counters.bytes += found.state_bytes
        self._indexes[number] = found.index
        self._covered[number] = max(found.messages, self._covered.get(number, 0))
        self._packs[number] = found.packs
        if await self._owned():
            await copies.forget_older(self._store, self._cluster_history, number, found.index)
        return found.state_bytes / BYTES_PER_SECOND

    async def _stored(self, number: int, machine: Machine) -> Captured | None:
        """Capture and store one state, unless another core leads the group by now."""
        group = self._engine.storage.core_replicas.groups[number]
        try:
            found = await captured(group, self._engine.snapshotter.encoding, hot=False, begins=True)
        except Unavailable:
            return None
        if self._engine.local.led.get(number) is not machine:
            return None
        header = Header(
            number,
            found.term,
            found.index,
            self._engine.service.now_ms(),
            found.state_bytes,
            found.state_crc,
            0,
        )
        self._written[number] = self._loop.time()
        if found.state_bytes > STATE_BYTES_MAX:
            raise StoreUnavailable(
                f"the state of group {number} has {found.state_bytes} bytes, more than an object "
                "may have"
            )
        await copies.write(self._store, self._cluster_history, header, found.state)
        return found
