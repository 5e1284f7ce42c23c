"""The writer of a core: it collects the appends of all diskless streams into packs, and stores up to
four of them at the same time.

A pack closes at its size or after the interval, and at once when the core was idle. Its appends are
answered when their group has committed them. A failure of the store or of a log is repeated for 30
seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from secrets import token_bytes
from typing import Any

import msgspec

from polynya.base import limits
from polynya.base.errors import PolynyaError, Unavailable
from polynya.base.levels import COMPRESSION_LEVEL
from polynya.cold.flusher import THREAD_FROM_BYTES, ZSTD_THREAD_FROM_BYTES
from polynya.cold.steps import OwnerGroupLate, Steps, let_the_loop_run
from polynya.diskless.buffer import (
    BuiltPack,
    BuiltSlice,
    Packable,
    PackBuffer,
    Taken,
    build,
    cost_of,
)
from polynya.diskless.commit import GIVE_UP_SECONDS, Commits, StoredPack
from polynya.diskless.owner_groups import LedGroups, OwnerGroups
from polynya.objectstore.api import ObjectStore, StoreError
from polynya.stream.command import Command
from polynya.stream.replies import Code, Done, Reply
from polynya.wire.pack import pack_key
from polynya.wire.slices import Slice, built_slice

OWNER_GROUPS_MAX = 3  # of one pack: if all groups are slow, another one only costs a put
CLOSE_SECONDS = 5.0  # that a stop waits for packs in flight
log = logging.getLogger("polynya.diskless")


class DisklessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a writer."""

    interval: float = limits.DISKLESS_INTERVAL_MS / 1000  # seconds
    pack_bytes: int = limits.DISKLESS_PACK_BYTES
    bytes_max: int = limits.DISKLESS_BYTES_PER_CORE
    zstd_level: int = 0  # of the payload of slices; 0: stored as it is


class WriteCounters(msgspec.Struct):
    """Counters for metrics. Those with `…_now` go up and down, the others only grow."""

    packs: int = 0
    bytes: int = 0  # of the objects
    payload_bytes: int = 0  # in them, before compression
    appends: int = 0
    refused: int = 0  # appends beyond the limit of memory
    failures: int = 0  # packs that could not be stored
    put_seconds: float = 0.0  # of the packs that were stored, with their intent
    puts_now: int = 0
    waiting_now: int = 0  # appends without an answer
    bytes_now: int = 0  # that they take


class Writer:
    """The writer of one core. `propose` sends a command to the leader of its group. `in_flight` gets
    the keys of packs that are not committed: the collector leaves them alone. `keep` gets the
    slices that were committed, with their pack and offset."""

    def __init__(  # noqa: PLR0913
        self,
        groups: LedGroups,
        propose: Callable[[int, Command, Done], None],
        store: ObjectStore,
        settings: DisklessSettings,
        cluster_id: str,
        *,
        in_flight: set[str],
        keep: Callable[[str, int, Slice], None] = lambda key, offset, found: None,
        store_is_full: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.counters = WriteCounters()
        self.commits = Commits(
            token_bytes(16).hex(), propose, groups.now_ms, self._finished, self._committed
        )
        self._keep = keep
        self.in_flight = in_flight
        self._store_is_full = store_is_full
        self._groups = groups
        self._steps = Steps(groups, store, sleep)
        self._settings = settings
        self._cluster_id = cluster_id
        self._loop = asyncio.get_running_loop()
        self._owner_groups = OwnerGroups(groups, self._loop.time)
        self._buffer = PackBuffer()
        self._due: deque[PackBuffer] = deque()  # closed, and waiting for one of the puts to end
        self._closed_at = float("-inf")
        self._timer: asyncio.Handle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def append(self, group: int, command: Packable, done: Done) -> None:
        """Append to a diskless stream. `done` runs once, with the reply of the group, Unavailable
        (not applied) or OutcomeUnknown."""
        size = cost_of(command)
        if self._stopping:
            done(Unavailable("this node is stopping"))
            return
        if self.counters.bytes_now + size > self._settings.bytes_max:
            self._refuse(size, done)
            return
        counters = self.counters
        counters.appends += 1
        counters.waiting_now += 1
        counters.bytes_now += size
        self._buffer.add(Taken(group, command, partial(self._answered, size, done)))
        if self._buffer.is_full(self._settings.pack_bytes):
            self._close_pack()
        elif self._timer is None:
            wait = self._closed_at + self._settings.interval - self._loop.time()
            # appends of this pass of the loop share the first pack
            self._timer = (
                self._loop.call_soon(self._close_pack)
                if wait <= 0
                else self._loop.call_later(wait, self._close_pack)
            )

    async def close(self) -> None:
        """Store and commit what was taken, for a limited time. What is left then gets Unavailable,
        or OutcomeUnknown if its commit was sent."""
        self._stopping = True
        self._close_pack()
        until = self._loop.time() + CLOSE_SECONDS
        while (running := self._running()) and (left := until - self._loop.time()) > 0:
            await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        while self._due:
            _fail(self._due.popleft(), Unavailable("this node is stopping"))
        running = self._running()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _running(self) -> list[asyncio.Task[None]]:
        return [*self._tasks, *self.commits.tasks]

    def _refuse(self, size: int, done: Done) -> None:
        bound = self._settings.bytes_max
        if size > bound:
            done(Reply(Code.APPEND_EXCEEDS_MEMORY_LIMIT, byte=bound))
            return
        self.counters.refused += 1
        done(Reply(Code.MEMORY_PRESSURE, detail=self._store_is_full() or None))

    def _answered(self, size: int, done: Done, outcome: Reply | BaseException) -> None:
        self.counters.waiting_now -= 1
        self.counters.bytes_now -= size
        try:
            done(outcome)
        except Exception as fault:
            # report it without raising: one client must not fail the others
            self._loop.call_exception_handler(
                {"message": "an answer could not be given", "exception": fault}
            )

    # --- packs ------------------------------------------------------------------------------------

    def _close_pack(self) -> None:
        """Close the pack that is being collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._buffer.slices:
            self._due.append(self._buffer)
            self._buffer = PackBuffer()
            self._closed_at = self._loop.time()
            self._begin_puts()

    def _begin_puts(self) -> None:
        """Store closed packs, in order, as long as few are being stored."""
        while self._due and self.counters.puts_now < limits.DISKLESS_PUTS_MAX:
            buffer = self._due.popleft()
            stored: asyncio.Future[StoredPack | None] = self._loop.create_future()
            for group in sorted({each.group for each in buffer.slices}):
                self.commits.add(group, stored)
            self.counters.puts_now += 1
            self._spawn(self._store(buffer, stored))

    async def _store(self, buffer: PackBuffer, stored: asyncio.Future[StoredPack | None]) -> None:
        pack: StoredPack | None = None
        began = self._loop.time()
        try:
            pack = await self._put(buffer)
            self.counters.put_seconds += self._loop.time() - began
        except (StoreError, PolynyaError) as fault:
            self.counters.failures += 1
            log.warning("a pack of %d bytes could not be stored: %s", buffer.size, fault)
            _fail(buffer, Unavailable(f"the append could not be stored: {_reason(fault)}; retry"))
        except BaseException as fault:
            stopping = isinstance(fault, asyncio.CancelledError)
            _fail(buffer, Unavailable("this node is stopping") if stopping else fault)
            raise
        finally:
            stored.set_result(pack)
            self.counters.puts_now -= 1
            self._begin_puts()

    async def _put(self, buffer: PackBuffer) -> StoredPack:
        """Store the pack with the first owner group that logs its intent in time. Raises StoreError,
        Unavailable, OutcomeUnknown."""
        for tried in range(OWNER_GROUPS_MAX - 1):
            owner_group = self._owner_groups.choose(buffer.groups, again=tried > 0)
            leaves = partial(self._owner_groups.avoid, owner_group, buffer.groups)
            try:
                return await self._put_at(owner_group, buffer, leaves)
            except OwnerGroupLate:
                log.warning("group %d logs no intents now: packs get another home", owner_group)
        owner_group = self._owner_groups.choose(buffer.groups, again=True)
        return await self._put_at(owner_group, buffer, lambda: False)

    async def _put_at(
        self, owner_group: int, buffer: PackBuffer, leaves: Callable[[], bool]
    ) -> StoredPack:
        """Build the pack and store it, while its owner group logs it. Raises OwnerGroupLate as well."""
        groups, now_ms = buffer.groups, self._groups.now_ms()
        key = pack_key(
            self._cluster_id, owner_group=owner_group, now_ms=now_ms, random=token_bytes(16)
        )
        built = await self._build(buffer, owner_group, now_ms)
        intent_ms = now_ms
        if built.parts:
            self.in_flight.add(key)
            try:
                intent_ms = await self._steps.write_beside(
                    key, built.parts, owner_group, groups, GIVE_UP_SECONDS, leaves
                )
            except BaseException:
                self.in_flight.discard(key)
                raise
            self.counters.packs += 1
            self.counters.bytes += sum(map(len, built.parts))
            self.counters.payload_bytes += built.payload_bytes
        for taken, fault in built.failed:
            taken.done(fault)
        return StoredPack(key, owner_group, intent_ms, built.slices, len(built.slices))

    async def _build(self, buffer: PackBuffer, owner_group: int, now_ms: int) -> BuiltPack:
        levels = {
            group: self._settings.zstd_level
            for group in buffer.groups
            if self._groups.may_commit(group, COMPRESSION_LEVEL)
        }
        if buffer.size < (ZSTD_THREAD_FROM_BYTES if any(levels.values()) else THREAD_FROM_BYTES):
            return build(buffer, owner_group, now_ms, levels)
        return await asyncio.to_thread(build, buffer, owner_group, now_ms, levels, let_the_loop_run)

    def _finished(self, pack: StoredPack) -> None:
        self.in_flight.discard(pack.key)

    def _committed(self, key: str, found: BuiltSlice) -> None:
        """Keep a slice in the cache: a reader at the tail wants it now."""
        self._keep(key, found.packed.offset, built_slice(found.parts))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _fail(buffer: PackBuffer, fault: BaseException) -> None:
    """Answer all appends of a pack that was not stored."""
    for taken in buffer.taken:
        taken.done(fault)


def _reason(fault: Exception) -> str:
    return getattr(fault, "reason", "") or str(fault)
