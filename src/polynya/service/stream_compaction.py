"""The key compaction of any stream of the cluster: how far it is, and passes on request. The group's
leader answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from polynya.base.errors import NotLeader
from polynya.cold.compaction.compactor import Compactor, LastPass
from polynya.local.api import Refusal, StreamInfo
from polynya.service.node_service import NodeService
from polynya.stream.features.compaction.progress import compaction_of
from polynya.stream.machine import Machine
from polynya.stream.state.model import Stream

COMPACTION = 72  # messages between cores
COMPACT = 73


class CompactionQuery(msgspec.Struct, array_like=True, frozen=True):
    group: int
    name: str  # canonical


class StreamCompaction(msgspec.Struct, array_like=True, frozen=True):
    """The key compaction of a stream. `held_by`: what begins behind the bytes that may be compacted.
    `kept_for`: what needs the records before them."""

    uid: int
    cleaned: int
    horizon_ms: int
    passes: int
    bytes: int
    dirty_bytes: int
    held_by: str
    kept_for: str
    is_due: bool
    last: LastPass | None


class CompactionFinder:
    """The key compaction of any stream of the cluster. Create one on every core; the object tier
    sets `compactor`."""

    def __init__(self, service: NodeService) -> None:
        self.compactor: Compactor | None = None
        self._service = service
        service.rpc.serve(COMPACTION, CompactionQuery, StreamCompaction | None, self._here)
        service.rpc.serve(COMPACT, CompactionQuery, StreamCompaction | None, self._compact_here)

    async def info(self, name: str) -> StreamInfo | Refusal:
        """Return the facts of a stream. Raises Unavailable."""
        return await self._service.info(name)

    async def find(self, name: str) -> StreamCompaction | None:
        """Return how far the compaction of a stream is; None without such a stream in memory, or if
        its keys are not compacted. Raises Unavailable."""
        return await self._ask(COMPACTION, name, self._here)

    async def compact(self, name: str) -> StreamCompaction | None:
        """Flush a stream, and let its leader begin a pass soon. None as of `find`. Raises
        Unavailable."""
        return await self._ask(COMPACT, name, self._compact_here)

    async def _ask(
        self,
        kind: int,
        name: str,
        here: Callable[[CompactionQuery], Awaitable[StreamCompaction | None]],
    ) -> StreamCompaction | None:
        query = CompactionQuery(self._service.group_of(name), name)
        found: StreamCompaction | None = await self._service.rpc.at_home(
            query.group, kind, query, here
        )
        return found

    async def _compact_here(self, query: CompactionQuery) -> StreamCompaction | None:
        if await self._here(query) is None or self.compactor is None:
            return None
        await self._service.flush_here(query.name)
        self.compactor.force(query.name)
        return await self._here(query)

    async def _here(self, query: CompactionQuery) -> StreamCompaction | None:
        local = self._service.local
        await local.linearize(query.group)
        if query.group not in local.led:
            raise NotLeader(0)
        stream = local.streams.find(query.group, query.name)
        if isinstance(stream, Refusal) or self.compactor is None:
            return None
        await self.compactor.refresh()
        return self._view(local.led[query.group], stream)

    def _view(self, machine: Machine, stream: Stream) -> StreamCompaction | None:
        assert self.compactor is not None
        found = self.compactor.extent(machine, stream)
        if found is None:
            return None
        progress = compaction_of(stream)
        return StreamCompaction(
            stream.uid,
            progress.cleaned,
            progress.horizon_ms,
            progress.generation,
            found.total_bytes,
            found.dirty_bytes,
            found.held_by,
            found.below,
            self.compactor.is_waiting(stream.name),
            self.compactor.last.get(stream.uid),
        )
