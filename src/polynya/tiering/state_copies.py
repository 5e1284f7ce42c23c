"""Keeps copies of the states of the groups that this core leads in the object store, and says which releases of packs they contain.

A recovery from the store alone begins with these copies. So a group tells a pack's home that it needs it no more only when that is in
the copy (F20): until then a recovery would look for it.
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
from polynya.engine.snapshots.capture import captured
from polynya.objectstore import OBJECT_BYTES_MAX, ObjectStore, StoreUnavailable
from polynya.service.assembly import CoreRuntime
from polynya.stream.commands import ReleasePack
from polynya.stream.machine import Machine

LOOK_SECONDS = 1.0
STATE_BYTES_MAX = OBJECT_BYTES_MAX - 4096
EVERY_SECONDS = 60.0  # of a group that changes …
SOON_SECONDS = 30.0  # … or was flushed, or has packs to let go of
BYTES_PER_SECOND = 4 << 20  # of a core: large states are copied less often
log = logging.getLogger("polynya.tier")


class CopyCounters(msgspec.Struct):
    """What metrics show; only growing."""

    copies: int = 0
    bytes: int = 0
    failures: int = 0


class StateCopyWorker:
    """One per core. `owned` is asked before anything is deleted."""

    def __init__(
        self,
        engine: CoreRuntime,
        store: ObjectStore,
        whole: CompleteMark,
        owned: Callable[[], Awaitable[bool]],
        *,
        soon_seconds: float = SOON_SECONDS,
    ) -> None:
        self.counters = CopyCounters()
        self._engine, self._store, self._whole, self._owned = engine, store, whole, owned
        self._place = (whole.cluster, whole.history)
        self._soon_seconds = min(soon_seconds, SOON_SECONDS)
        self._indexes: dict[int, int] = {}  # of the newest copies that this core wrote
        self._written: dict[int, float] = {}  # when
        self._covered: dict[int, int] = {}  # the last message that the copy contains
        self._turns, self._behind = -1, list[int]()  # the turn at which the groups were found whose copies are not of now, and they
        self._packs: dict[int, int] = {}  # the machine's count of packs in it
        self._marked = False
        self._loop = asyncio.get_running_loop()
        engine.settler.contained = self.contained

    def contained(self, group: int) -> int:
        """Releases up to this message of the group's outbox are in its copy."""
        return self._covered.get(group, 0)

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self.look()
            except StoreUnavailable as fault:
                self.counters.failures += 1
                log.warning("states are copied to the object store later", extra={"error": str(fault)})
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Copy what is due. Raises StoreUnavailable."""
        if not self._marked:
            await copies.mark(self._store, self._whole)
            self._marked = True
        local, shard = self._engine.local, self._engine.storage.shard
        if self._turns != local.turns or self._behind:  # what is not due yet will be
            self._turns = local.turns
            self._behind = [number for number in local.led if self._indexes.get(number) != shard.groups[number].applied_index]
        for number in self._behind:
            machine = local.led.get(number)  # it may be led elsewhere by now
            if machine is not None and self._is_due(number, machine):
                await asyncio.sleep(await self._copy(number, machine))

    def _is_due(self, number: int, machine: Machine) -> bool:
        if self._indexes.get(number) == self._engine.storage.shard.groups[number].applied_index:
            return False
        waited = self._loop.time() - self._written.get(number, -EVERY_SECONDS)
        return waited >= EVERY_SECONDS or (waited >= self._soon_seconds and self._is_urgent(number, machine))

    def _is_urgent(self, number: int, machine: Machine) -> bool:
        """Whether packs have come or are to go, of which the copy does not know."""
        if machine.pack_counter != self._packs.get(number):
            return True
        covered = self._covered.get(number, 0)
        return any(message > covered and isinstance(command, ReleasePack) for message, (_, command) in machine.outbox.items())

    async def _copy(self, number: int, machine: Machine) -> float:
        """How long to rest then, in seconds."""
        group = self._engine.storage.shard.groups[number]
        try:
            found = await captured(group, self._engine.snapshotter.encoding, hot=False)
        except Unavailable:
            return 0.0
        if self._engine.local.led.get(number) is not machine:
            return 0.0
        header = Header(number, found.term, found.index, self._engine.service.now_ms(), found.state_bytes, found.state_crc, 0)
        self._written[number] = self._loop.time()
        if found.state_bytes > STATE_BYTES_MAX:
            raise StoreUnavailable(f"the state of group {number} has {found.state_bytes} bytes, more than an object may have")
        await copies.write(self._store, self._place, header, found.state)
        self.counters.copies += 1
        self.counters.bytes += found.state_bytes
        self._indexes[number] = header.index
        self._covered[number] = max(found.messages, self._covered.get(number, 0))
        self._packs[number] = found.packs
        await self._forget(header)
        return found.state_bytes / BYTES_PER_SECOND

    async def _forget(self, header: Header) -> None:
        if await self._owned():
            await copies.forget_older(self._store, self._place, header)
