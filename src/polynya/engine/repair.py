"""Repair hot batches whose copy in memory is corrupt, from this core's journal or from another
member of the group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from polynya.base.errors import CorruptData, PolynyaError
from polynya.base.msgpack import UNREADABLE
from polynya.engine.leadership import LeadershipTransport
from polynya.engine.replicated import ReplicatedEngine
from polynya.engine.snapshots.transfer import batch_at
from polynya.replica import Group
from polynya.stream.parts import Batch
from polynya.stream.state.model import HotBatch
from polynya.transport import Reply
from polynya.wal import Journal
from polynya.wire.slice_building import is_intact

# other kinds: health, access, shutdown barrier, cluster view and map, leadership, object store
KIND_BATCH = 1014
ANSWER_SECONDS = 5.0  # timeout for one member
log = logging.getLogger("polynya.repair")


class BatchWanted(msgspec.Struct, array_like=True, frozen=True):
    """The request for a batch from another member, by the batch's first record."""

    group: int
    uid: int
    record: int


class Repairer:
    """The batch repairer of one core. A replacement must pass its checksum and have the size of the
    original."""

    def __init__(self, journal: Journal, groups: Mapping[int, Group]) -> None:
        self.repaired = 0  # batches
        self._journal, self._groups = journal, groups
        self._transport: LeadershipTransport | None = None
        self._positions: Callable[[int], Iterable[int]] = lambda group: ()

    def join(
        self, transport: LeadershipTransport, positions: Callable[[int], Iterable[int]]
    ) -> None:
        """Start to request batches from other members, and to serve theirs. `positions` returns the
        other cores that have a group."""
        self._transport, self._positions = transport, positions
        transport.on(KIND_BATCH, self._answer)

    async def repair(self, group: int, uid: int, batches: Sequence[HotBatch]) -> bool:
        """Return True if some of the batches were corrupt and all are intact now."""
        damaged = [batch for batch in batches if not is_intact(batch)]
        for batch in damaged:
            found = await self._from_journal(uid, batch) or await self._from_others(
                group, uid, batch
            )
            if found is None:
                return False
            _take(batch, found)
            self.repaired += 1
            log.warning(
                "a batch was corrupt in memory and has been repaired",
                extra={"group": group, "stream": uid, "record": batch.record},
            )
        return bool(damaged)

    async def _from_journal(self, uid: int, batch: HotBatch) -> Batch | None:
        try:
            found = await asyncio.to_thread(batch_at, self._journal, batch.position, uid)
        except (CorruptData, OSError, *UNREADABLE) as fault:
            log.warning(
                "a batch cannot be read from the journal",
                extra={"stream": uid, "error": str(fault)},
            )
            return None
        return found if _fits(batch, found) else None

    async def _from_others(self, group: int, uid: int, batch: HotBatch) -> Batch | None:
        wanted = msgspec.msgpack.encode(BatchWanted(group, uid, batch.record))
        for position in self._positions(group):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    found = msgspec.msgpack.decode(
                        await self._ask(position, wanted), type=Batch | None
                    )
            except (PolynyaError, TimeoutError, *UNREADABLE) as fault:
                log.warning(
                    "a batch cannot be fetched from another node",
                    extra={"stream": uid, "error": str(fault)},
                )
                continue
            if found is not None and _fits(batch, found):
                return found
        return None

    async def _ask(self, position: int, wanted: bytes) -> bytes:
        assert self._transport is not None
        answer: asyncio.Future[bytes | BaseException] = asyncio.get_running_loop().create_future()
        self._transport.call_nowait(
            position,
            KIND_BATCH,
            wanted,
            lambda found: None if answer.done() else answer.set_result(found),
        )
        found = await answer
        if isinstance(found, BaseException):
            raise found
        return found

    def _answer(self, body: bytes, reply: Reply, sender: int) -> None:
        """Serve a batch from this node's memory if it is intact."""
        wanted = msgspec.msgpack.decode(body, type=BatchWanted)
        group = self._groups.get(wanted.group)
        stream = None if group is None else group.machine.directory.by_uid.get(wanted.uid)
        hot = (stream.hot if stream is not None else None) or ()
        found = next(
            (batch for batch in hot if batch.record == wanted.record and is_intact(batch)), None
        )
        reply(msgspec.msgpack.encode(None if found is None else _batch_of(found)))


def others_of(
    core: ReplicatedEngine, core_at: Callable[[int, int], int]
) -> Callable[[int], list[int]]:
    """Return a function that lists the cores on other nodes that have a group. `core_at` maps a
    node and a group to a core."""

    def others(group: int) -> list[int]:
        member = core.members.get(group)
        nodes = () if member is None else member.raft.configuration.members
        return [core_at(node, group) for node in nodes if node != core.node]

    return others


def _with(hot: HotBatch, found: Batch) -> HotBatch:
    """Return the hot batch with the payload found. A batch that was copied forward in the journal
    has no lengths there."""
    return msgspec.structs.replace(
        hot, payload=found.payload, crc=found.crc, lengths=found.lengths or hot.lengths
    )


def _fits(hot: HotBatch, found: Batch) -> bool:
    return (
        found.records == hot.records
        and len(found.payload) == len(hot.payload)
        and is_intact(_with(hot, found))
    )


def _take(hot: HotBatch, found: Batch) -> None:
    """Replace the payload. It is never changed in place, so threads that hold the old one are
    safe."""
    whole = _with(hot, found)
    hot.payload, hot.lengths, hot.crc = whole.payload, whole.lengths, whole.crc


def _batch_of(hot: HotBatch) -> Batch:
    return Batch(hot.encoding, hot.records, hot.payload, hot.crc, hot.lengths)
