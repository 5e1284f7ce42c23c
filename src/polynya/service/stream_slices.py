"""The slices of a stream in the object store, for readers that fetch packs themselves (Spark).

The group's leader answers from its index. A reader may find that a pack is gone, because merges
and trims replace packs, and asks again.
"""

from __future__ import annotations

import msgspec

from polynya.base.errors import Unavailable
from polynya.base.limits import RANGES_PER_ANSWER_MAX
from polynya.local.api import Refusal
from polynya.service.node_service import NodeService
from polynya.stream.features.pages.eviction import evicted_view
from polynya.stream.parts import UNDECIDED, ColdSlice
from polynya.stream.state import index
from polynya.stream.state.aborted import ROW, aborted_of, overlapping
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import stable_of

SLICES = 57  # messages between cores
_TRIES = 3  # a stream may be evicted or return while its state is read


class SlicesQuery(msgspec.Struct, array_like=True, frozen=True):
    """Records `first` to `end` (exclusive) of a stream; `end` -1: to its last stable end."""

    group: int
    name: str  # canonical
    first: int
    end: int


class StreamSlices(msgspec.Struct, array_like=True, frozen=True):
    """A stream's slices in order, at most `RANGES_PER_ANSWER_MAX`, and what it holds."""

    uid: int
    content_type: str
    encoding: int
    first_record: int  # first retained one
    next_record: int  # before the first open transaction
    own_record: int  # of a fork, its first own record: earlier ones lie in its source
    slices: list[ColdSlice]
    end: int  # all stored records from the first wanted one to before this one are in `slices`
    aborted: bytes = b""  # see `state.aborted`


def members_of(cold: ColdSlice, rows: bytes) -> dict[str, list[list[int]]]:
    """Return the member of a slice in a plan that names its aborted transactions, if it needs one:
    producer id, first record and record of the marker of each."""
    if not rows or not cold.flags & UNDECIDED:
        return {}
    own = overlapping(rows, cold.record, cold.record + cold.records)
    return {"aborted": [[*row[:3]] for row in ROW.iter_unpack(own)]} if own else {}


class SliceFinder:
    """The slices of any stream of the cluster. Create one on every core."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        service.rpc.serve(SLICES, SlicesQuery, StreamSlices | None, self._here)

    async def find(self, name: str, first: int, end: int) -> StreamSlices | None:
        """Return the slices that hold these records, or None without such a stream. Raises
        Unavailable."""
        query = SlicesQuery(self._service.group_of(name), name, first, end)
        found: StreamSlices | None = await self._service.rpc.at_home(
            query.group, SLICES, query, self._here
        )
        return found

    async def flush(self, prefix: str) -> None:
        """Write the records in memory under a prefix of canonical names to the store."""
        await self._service.flush(prefix)

    async def _here(self, query: SlicesQuery) -> StreamSlices | None:
        local = self._service.local
        await local.linearize(query.group)
        for _ in range(_TRIES):
            stream = local.streams.find(query.group, query.name)
            if isinstance(stream, Refusal):
                return None
            machine = local.here(query.group)
            if evicted_view(machine, query.name) is not None:
                copy = await local.rehydration.copy(query.group, query.name)
                if copy is None:
                    continue
                stream, machine = copy, local.here(query.group)
            begin = max(query.first, stream.first_record)
            at = index.entries_before(stream.cold, begin)
            stable = stable_of(stream)[0]
            end = stable if query.end < 0 else min(query.end, stable)
            until = min(at + RANGES_PER_ANSWER_MAX, index.first_from(stream.cold, end))
            known = machine.packs.index_of(stream)[at:until] if stream.cold else []
            slices = _first_of(known)
            stored = min(stable, _stored_until(stream, at + len(slices)))
            if any(cold.is_page for cold in slices):
                slices, stored = await self._spread(slices, begin, end, stored)
            return StreamSlices(
                stream.uid,
                stream.content_type,
                stream.encoding,
                stream.first_record,
                stable,
                stream.fork.record if stream.fork is not None else 0,
                slices,
                stored,
                aborted_of(stream),
            )
        raise Unavailable("the stream is being evicted or rehydrated; retry")

    async def _spread(
        self, slices: list[ColdSlice], begin: int, end: int, stored: int
    ) -> tuple[list[ColdSlice], int]:
        """Return the slices with those of pages in their place, and the end of what they hold."""
        reader = self._service.local.reads.cold
        assert reader is not None, "a page without an object store"
        last = slices[-1]
        found = await reader.spread(slices, begin, end)
        if len(found) > RANGES_PER_ANSWER_MAX:
            return found[:RANGES_PER_ANSWER_MAX], found[RANGES_PER_ANSWER_MAX].record
        if last.is_page and last.record + last.records > end:
            stored = min(stored, end)
        return found, stored


def _first_of(slices: list[ColdSlice]) -> list[ColdSlice]:
    """Return the first slices that have at most `RANGES_PER_ANSWER_MAX` entries, those of pages
    included; at least one."""
    left = RANGES_PER_ANSWER_MAX
    for at, cold in enumerate(slices):
        left -= cold.batches if cold.is_page else 1
        if left < 0:
            return slices[: max(1, at)]
    return slices


def _stored_until(stream: Stream, entry: int) -> int:
    """Return the first record behind the entries before this one; missing numbers are passed."""
    if stream.cold is not None and entry < index.count(stream.cold):
        return index.begin_of(stream.cold, entry)[0]
    return stream.hot[0].record if stream.hot else stream.next_record
