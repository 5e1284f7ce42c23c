"""Receive snapshots from other nodes and write them to disk. A chunk is acknowledged once it is in
the file.

A slow disk thus throttles the sender and does not fill this node's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from polynya.base.errors import PolynyaError
from polynya.engine.replicated import ReplicatedEngine
from polynya.raft import ChunkArrived, Snapshot, SnapshotChunk
from polynya.replica.member import Member
from polynya.wal import SnapshotStore
from polynya.wal.scratch import Scratch

ARRIVING_MAX = 4  # groups that receive a snapshot at the same time
QUEUED_BYTES_MAX = 4 << 20  # of one group's chunks; chunks above it are dropped
# without a chunk, a transfer may be evicted: its sender may be waiting for a slot
IDLE_SECONDS = 2.0
STALE_SECONDS = 20.0  # without a chunk: the sender is down or has a newer snapshot


class _Arrival(msgspec.Struct):
    """The incoming snapshot of one group. `kept`: chunks that Raft has accepted and that are not
    written yet."""

    member: Member
    queue: list[SnapshotChunk]
    at: float  # time of the last chunk
    queued: int = 0
    # set while nothing is to be written
    idle: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    kept: list[ChunkArrived] = []
    file: Scratch | None = None
    snapshot: Snapshot | None = None

    def rests(self, since: float) -> bool:
        """Return True if no chunk has arrived since then and none is in progress. Queued chunks
        wait for a lost one."""
        return (
            self.at <= since
            and self.idle.is_set()
            and self.member.raft.transfers.installing is None
        )


class SnapshotReceiver:
    """The incoming snapshots of one core. A group's Raft gets the next chunk when the previous one
    is in the file."""

    def __init__(
        self,
        core: ReplicatedEngine,
        store: SnapshotStore,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._core, self._store, self._spawn = core, store, spawn
        self._arrivals: dict[int, _Arrival] = {}
        core.on_chunk = self.hear

    def hear(self, member: Member, message: SnapshotChunk) -> None:
        """Process a chunk. A dropped chunk is sent again."""
        number, now = member.group.number, asyncio.get_running_loop().time()
        arrival = self._arrivals.get(number)
        if arrival is None:
            if len(self._arrivals) >= ARRIVING_MAX and not self._make_room(now):
                return
            arrival = self._arrivals[number] = _Arrival(member, [], now)
            arrival.idle.set()
            self._watch(member)
        arrival.at = now
        if any(
            known.offset == message.offset and known.snapshot == message.snapshot
            for known in arrival.queue
        ):
            # a duplicate behind a gap: Raft tells the sender what is missing
            if _next(member, [message]) is None:
                self._core.step(member, message)
            return
        if arrival.queued + len(message.data) > QUEUED_BYTES_MAX:
            return
        arrival.queue.append(message)
        arrival.queued += len(message.data)
        self._go_on(member, arrival)

    def keep(self, member: Member, chunks: Sequence[ChunkArrived]) -> None:
        """Queue the chunks that Raft has accepted for writing."""
        arrival = self._arrivals.get(member.group.number)
        if arrival is not None and chunks:
            arrival.kept = [*arrival.kept, *chunks]
            if arrival.idle.is_set():
                arrival.idle.clear()
                self._spawn(self._store_kept(member, arrival))

    async def take(self, number: int, snapshot: Snapshot) -> Scratch | None:
        """Return the complete file, which the caller closes, or None."""
        arrival = self._arrivals.get(number)
        if arrival is None:
            return None
        await arrival.idle.wait()
        # else the replica was removed, and may exist again
        if self._arrivals.get(number) is arrival:
            del self._arrivals[number]
        file, arrival.file = arrival.file, None  # the caller closes it
        if file is None or (arrival.snapshot == snapshot and file.size == snapshot.size):
            return file
        file.close()
        return None

    def forget(self, number: int) -> None:
        """Drop the incoming snapshot of a removed replica."""
        arrival = self._arrivals.pop(number, None)
        if arrival is not None:
            self._spawn(_closed(arrival))

    def close(self) -> None:
        for arrival in self._arrivals.values():
            if arrival.file is not None:
                arrival.file.close()
        self._arrivals = {}

    def _make_room(self, now: float) -> bool:
        idle = next(
            (
                number
                for number, arrival in self._arrivals.items()
                if not arrival.queue and arrival.rests(now - IDLE_SECONDS)
            ),
            None,
        )
        if idle is None:
            return False
        self._drop(self._arrivals.pop(idle))
        return True

    def _go_on(self, member: Member, arrival: _Arrival) -> None:
        if not arrival.idle.is_set():
            return
        message = _next(member, arrival.queue)
        if message is not None:
            arrival.queue.remove(message)
            arrival.queued -= len(message.data)
            self._core.step(member, message)
            # continues if Raft ignored it
            asyncio.get_running_loop().call_soon(self._go_on, member, arrival)
        elif (
            arrival.file is None
            and not arrival.queue
            and self._arrivals.get(member.group.number) is arrival
        ):
            # no chunk was accepted, or the file could not be written
            del self._arrivals[member.group.number]

    async def _store_kept(self, member: Member, arrival: _Arrival) -> None:
        try:
            while arrival.kept:
                await asyncio.to_thread(self._append, arrival, arrival.kept[0])
                del arrival.kept[:1]
        except (OSError, PolynyaError):
            self._drop(arrival)
        finally:
            arrival.idle.set()
        self._go_on(member, arrival)

    def _append(self, arrival: _Arrival, chunk: ChunkArrived) -> None:
        if chunk.offset == 0:
            if arrival.file is not None:
                arrival.file.close()
            arrival.file, arrival.snapshot = None, None
            arrival.file, arrival.snapshot = self._store.scratch(), chunk.snapshot
        if (
            arrival.file is None
            or arrival.snapshot != chunk.snapshot
            or arrival.file.size != chunk.offset
        ):
            raise OSError("an earlier chunk is missing")
        arrival.file.append(chunk.data)

    def _drop(self, arrival: _Arrival) -> None:
        """Discard the transfer; the sender may start over."""
        if arrival.file is not None:
            arrival.file.close()
        arrival.file = None
        arrival.kept = []
        arrival.member.raft.snapshots.forget_incoming()

    def _watch(self, member: Member) -> None:
        loop, number = asyncio.get_running_loop(), member.group.number

        def look() -> None:
            arrival = self._arrivals.get(number)
            if arrival is None:
                return
            if arrival.rests(loop.time() - STALE_SECONDS):
                del self._arrivals[number]
                self._drop(arrival)
            else:
                loop.call_later(STALE_SECONDS, look)

        loop.call_later(STALE_SECONDS, look)


def _next(member: Member, queue: Sequence[SnapshotChunk]) -> SnapshotChunk | None:
    """Return a chunk that Raft can accept or must answer, or None while earlier chunks are
    missing."""
    incoming = member.raft.transfers.incoming
    if incoming is None:
        return min(queue, key=lambda message: message.offset, default=None)
    snapshot, received = incoming
    return next(
        (
            message
            for message in queue
            if message.snapshot != snapshot or message.offset <= received
        ),
        None,
    )


async def _closed(arrival: _Arrival) -> None:
    await arrival.idle.wait()
    if arrival.file is not None:
        arrival.file.close()
        arrival.file = None
